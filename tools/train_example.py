#!/usr/bin/env python3
"""Train the example model on public-domain text and write everything under examples/.

  python3 tools/train_example.py --fetch FILE                  the text, from Debian's packages
  python3 tools/train_example.py --text FILE --out examples    train, quantise, capture, check
  python3 tools/train_example.py --check examples              recompute and compare (NumPy only)

Training needs PyTorch 2.4 or newer and takes minutes on a GPU. The seed fixes the run on one
machine and software version; other GPUs round differently and give another, equally good model.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from example_check import check_examples
from example_quantise import (FORMATS, LayerWeights, Tensor, matrix_of, read_checkpoint, to_bf16, write_checkpoint,
                              write_safetensors)

if TYPE_CHECKING:
    import torch
    from example_model import ByteModel, ModelConfig, MoeOutput

TEXT_PACKAGES = ("bible-kjv", "bible-kjv-text")
TEXT_SHA256 = "cd45f0c9cedab8e4439bd6486c8952c77cc8b0ecc5d1f6ae3513f2039f47229d"
HELD_OUT = 0.03  # of the text for validation, and as much again, at the very end, for the test
CAPTURE_TOKENS = 192
MIN_MARGIN = 2e-5  # between selection scores, so that any float32 summation order gives the same ids
PEAK_RATE, FINAL_RATE, WARMUP = 2e-3, 1e-4, 100
WEIGHT_DECAY, BIAS_RATE = 0.1, 1e-3


# ---------------------------------------------------------------------------------------------
# text


def fetch_text(path: Path) -> None:
    """Print the King James Bible with the package's own reader, one verse a line."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "-q", "download", *TEXT_PACKAGES], cwd=folder, check=True)
        for package in Path(folder).glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(package), folder], check=True)
        reader = shutil.which("bible") or f"{folder}/usr/bin/bible"
        text = subprocess.run([reader, "-p", f"{folder}/usr/lib", "-l", "0", "-f", "gen1:1-rev22:21"], check=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE).stdout
    path.write_bytes(text)
    same = hashlib.sha256(text).hexdigest() == TEXT_SHA256
    print(f"{path}: {len(text)} bytes, {'the text' if same else 'NOT the text'} the shipped example was trained on")


def split_text(data: "torch.Tensor") -> tuple["torch.Tensor", "torch.Tensor", "torch.Tensor"]:
    """Training, validation and test parts, in the order of the text."""
    held_out = int(len(data) * HELD_OUT)
    return data[:-2 * held_out], data[-2 * held_out:-held_out], data[-held_out:]


# ---------------------------------------------------------------------------------------------
# training


def windows(data: "torch.Tensor", context: int) -> "torch.Tensor":
    """Consecutive windows [N, context + 1] that predict every byte but the first once."""
    count = (len(data) - 1) // context
    return data[:count * context + 1].unfold(0, context + 1, context)


def cross_entropy(model: "ByteModel", batch: "torch.Tensor") -> "torch.Tensor":
    """Mean loss in nats of windows [B, context + 1] with BF16 matrices."""
    import torch
    import torch.nn.functional as F

    with torch.autocast(batch.device.type, dtype=torch.bfloat16):
        logits = model(batch[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


def bits_per_byte(model: "ByteModel", data: "torch.Tensor") -> float:
    """Loss on all windows of held-out data; every window starts without context."""
    import torch

    model.eval()
    rows = windows(data, model.config.context)
    with torch.no_grad():
        total = sum(float(cross_entropy(model, batch)) * len(batch) for batch in rows.split(64))
    model.train()
    return total / len(rows) / math.log(2)


def make_optimizer(model: "ByteModel") -> "torch.optim.Optimizer":
    """AdamW that decays matrices only."""
    import torch

    decayed = [p for p in model.parameters() if p.dim() > 1]
    kept = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": kept, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.95), fused=model.head.is_cuda)


def learning_rate(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to the final rate."""
    progress = min(1.0, max(0.0, (step - WARMUP) / max(1, steps - WARMUP)))
    cosine = FINAL_RATE + (PEAK_RATE - FINAL_RATE) * 0.5 * (1 + math.cos(math.pi * progress))
    return cosine * min(1.0, (step + 1) / WARMUP)


def train(model: "ByteModel", data: "torch.Tensor", validation: "torch.Tensor", args: argparse.Namespace) -> list[dict]:
    """Train, keep the state that was best on the validation part, and return the curve."""
    import torch

    optimizer = make_optimizer(model)
    generator = torch.Generator().manual_seed(args.seed)
    offsets = torch.arange(model.config.context + 1, device=data.device)
    curve: list[dict] = []
    best: dict[str, Any] = {}
    for step in range(args.steps):
        starts = torch.randint(len(data) - model.config.context, (args.batch,), generator=generator).to(data.device)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps)
        loss = cross_entropy(model, data[starts[:, None] + offsets])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        for moe in model.moes:
            moe.update_bias(BIAS_RATE)
        if (step + 1) % args.report == 0 or step + 1 == args.steps:
            value = bits_per_byte(model, validation)
            curve.append({"step": step + 1, "train": float(loss.detach()) / math.log(2), "validation": value})
            print(f"step {step + 1:5}: train {curve[-1]['train']:.4f} validation {value:.4f} bits per byte", flush=True)
            if value <= min(point["validation"] for point in curve):
                best = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    model.load_state_dict(best)
    return curve


# ---------------------------------------------------------------------------------------------
# export


def export_layers(model: "ByteModel", data: "torch.Tensor") -> list[LayerWeights]:
    """All MoE layers, with the activation ranges seen on 16 windows of the training text."""
    rows = model.moe_inputs(windows(data, model.config.context)[:16, :-1])
    return [moe.export(float(x.float().abs().max()), moe.exact(x).hidden_amax) for moe, x in zip(model.moes, rows)]


def base_config(config: "ModelConfig") -> dict[str, object]:
    """What config.json says in every format."""
    return {"architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "torch_dtype": "bfloat16",
            "vocab_size": config.vocabulary, "hidden_size": config.hidden, "moe_intermediate_size": config.intermediate,
            "num_hidden_layers": config.layers, "num_hash_layers": 0, "n_routed_experts": config.experts,
            "n_shared_experts": 1, "num_experts_per_tok": config.top_k, "scoring_func": "sqrtsoftplus",
            "topk_method": "noaux_tc", "norm_topk_prob": True, "routed_scaling_factor": config.routed_scale,
            "hidden_act": "silu", "swiglu_limit": config.clamp}


def capture(model: "ByteModel", data: "torch.Tensor") -> tuple[list["torch.Tensor"], list["MoeOutput"], int]:
    """MoE inputs and outputs of the first window whose routing has no near tie in any layer."""
    for number, window in enumerate(windows(data, model.config.context)):
        rows = [x[-CAPTURE_TOKENS:] for x in model.moe_inputs(window[None, :-1])]
        outputs = [moe.exact(x) for moe, x in zip(model.moes, rows)]
        if min(float(output.margin.min()) for output in outputs) >= MIN_MARGIN:
            return rows, outputs, number
    raise ValueError("every held-out window has a near tie in its routing; train longer or lower MIN_MARGIN")


def write_capture(folder: Path, rows: list["torch.Tensor"], outputs: list["MoeOutput"]) -> None:
    """One file a layer with the inputs, the routing and both outputs."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (x, output) in enumerate(zip(rows, outputs)):
        write_safetensors(folder / f"layer{number}.safetensors", {
            "x": Tensor("BF16", to_bf16(x.float().cpu().numpy())),
            "topk_ids": Tensor("I32", output.ids.cpu().numpy().astype(np.int32)),
            "topk_weights": Tensor("F32", output.weights.cpu().numpy()),
            "y_bf16": Tensor("BF16", to_bf16(output.routed.cpu().numpy())),
            "y_shared_bf16": Tensor("BF16", to_bf16(output.shared.cpu().numpy()))})


def sample(model: "ByteModel", prompt: "torch.Tensor", count: int, seed: int) -> str:
    """Continue a prompt at temperature 0.7."""
    import torch

    model.eval()
    generator = torch.Generator().manual_seed(seed)
    tokens = prompt
    with torch.no_grad(), torch.autocast(prompt.device.type, dtype=torch.bfloat16):
        for _ in range(count):
            logits = model(tokens[None, -model.config.context:])[0, -1].float().cpu()
            choice = torch.multinomial(torch.softmax(logits / 0.7, -1), 1, generator=generator)
            tokens = torch.cat((tokens, choice.to(tokens.device)))
    return bytes(tokens.tolist()).decode("ascii", "replace")


def load_checkpoint(model: "ByteModel", folder: Path) -> None:
    """Put a quantised checkpoint's dequantised experts into the model."""
    tensors = read_checkpoint(folder)
    for number, moe in enumerate(model.moes):
        prefix = f"layers.{number}.ffn"
        experts = {name: np.stack([matrix_of(tensors, f"{prefix}.experts.{e}.{name}")
                                   for e in range(model.config.experts)]) for name in ("w1", "w2", "w3")}
        shared = {name: matrix_of(tensors, f"{prefix}.shared_experts.{name}") for name in ("w1", "w2", "w3")}
        moe.load_experts(experts, shared)


def write_examples(model: "ByteModel", data: "torch.Tensor", test: "torch.Tensor", out: Path) -> dict[str, object]:
    """Checkpoints and captures, and the language model's loss in each format."""
    model.eval()
    layers = export_layers(model, data)
    for expert_format in FORMATS:
        write_checkpoint(out / f"tiny-moe-{expert_format}", layers, expert_format, base_config(model.config),
                         shards=2 if expert_format == "fp8" else 1)
    rows, outputs, window = capture(model, test)
    write_capture(out / "tiny-moe-capture", rows, outputs)
    losses = {"bf16": bits_per_byte(model, test)}
    for expert_format in FORMATS:
        load_checkpoint(model, out / f"tiny-moe-{expert_format}")
        losses[expert_format] = bits_per_byte(model, test)
    counts = [np.bincount(o.ids.cpu().numpy().ravel(), minlength=model.config.experts) for o in outputs]
    return {"test_bits_per_byte": losses, "capture_window": window,
            "capture_tokens_per_expert": [count.tolist() for count in counts],
            "capture_values_clamped": [output.clamped for output in outputs],
            "capture_min_margin": min(float(output.margin.min()) for output in outputs)}


def folder_sizes(out: Path) -> dict[str, int]:
    """Bytes of each example folder."""
    return {folder.name: sum(f.stat().st_size for f in folder.iterdir()) for folder in sorted(out.glob("tiny-moe-*"))}


def run(args: argparse.Namespace) -> None:
    """Train, export, check, and write the log."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch
    from example_model import ByteModel, ModelConfig

    torch.manual_seed(args.seed)
    torch.use_deterministic_algorithms(True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    raw = args.text.read_bytes()
    text = torch.frombuffer(bytearray(raw), dtype=torch.uint8).to(device).long()
    data, validation, test = split_text(text)
    model = ByteModel(ModelConfig(dropout=args.dropout)).to(device)
    start = time.monotonic()
    curve = train(model, data, validation, args)
    seconds = time.monotonic() - start
    model.round_to_bf16()
    text_sample = sample(model, test[:128], 384, args.seed)
    results = write_examples(model, data, test, args.out)
    log = {"device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU", "torch": torch.__version__,
           "text_sha256": hashlib.sha256(raw).hexdigest(), "text_bytes": [len(data), len(validation), len(test)],
           "parameters": sum(p.numel() for p in model.parameters()), "seed": args.seed, "steps": args.steps,
           "batch": args.batch, "dropout": args.dropout, "train_seconds": round(seconds, 1), "curve": curve, **results,
           "sample_after_128_test_bytes": text_sample, "check": check_examples(args.out), "bytes": folder_sizes(args.out)}
    (args.out / "training.json").write_text(json.dumps(log, indent=1) + "\n")
    print(f"trained in {seconds:.0f} s; bits per byte on the test part: {results['test_bits_per_byte']}")
    print(f"sizes {log['bytes']}, clamped values {results['capture_values_clamped']}")


def main() -> int:
    """Parse the arguments and do one of the three jobs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    job = parser.add_mutually_exclusive_group(required=True)
    job.add_argument("--fetch", type=Path, metavar="FILE", help="write the text to FILE and stop")
    job.add_argument("--text", type=Path, metavar="FILE", help="train on this text")
    job.add_argument("--check", type=Path, metavar="DIR", help="check the example files in DIR and stop")
    parser.add_argument("--out", type=Path, default=Path("examples"), help="where to write (default: examples)")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=64, help="windows a step")
    parser.add_argument("--report", type=int, default=250, help="steps between validations")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.fetch:
        fetch_text(args.fetch)
    elif args.check:
        check_examples(args.check)
    else:
        run(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
