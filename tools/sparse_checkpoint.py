#!/usr/bin/env python3
"""Writes a checkpoint of DeepSeek-V4-Flash's full geometry as sparse files: 46 shards of 150 GB that take some MB on a disk.

Usage: sparse_checkpoint.py OUT [--format mxfp4|nvfp4] [--filled L] [--shards N]

Headers, index and config.json are those of a real one; values are holes, which read as zeros. The scales of the first L layers are written
(--filled), 1 for each group. For trying what readers cost where the size of the files would hide it: OUT must not exist.
"""

from __future__ import annotations

import argparse
import json
import math
import struct
import sys
from pathlib import Path

LAYERS, HASH_LAYERS, EXPERTS, HIDDEN, INTERMEDIATE, TOPK, VOCABULARY = 43, 3, 256, 4096, 2048, 6, 129280
BITS = {"BF16": 16, "F32": 32, "I64": 64, "I8": 8, "U8": 8, "F8_E4M3": 8, "F8_E8M0": 8}
ONE = {"F8_E8M0": b"\x7f", "F8_E4M3": b"\x38", "F32": struct.pack("<f", 1.0)}
Tensor = tuple[str, str, tuple[int, ...]]  # name, dtype, shape


def size_of(tensor: Tensor) -> int:
    return BITS[tensor[1]] * math.prod(tensor[2]) // 8


def expert_tensors(base: str, rows: int, cols: int, weights: str) -> list[Tensor]:
    if weights == "mxfp4":
        return [(base + ".weight", "I8", (rows, cols // 2)), (base + ".scale", "F8_E8M0", (rows, cols // 32))]
    return [(base + ".weight", "U8", (rows, cols // 2)), (base + ".weight_scale", "F8_E4M3", (rows, cols // 16)),
            (base + ".weight_scale_2", "F32", ()), (base + ".input_scale", "F32", ())]


def fp8_tensors(base: str, rows: int, cols: int) -> list[Tensor]:
    return [(base + ".weight", "F8_E4M3", (rows, cols)), (base + ".scale", "F8_E8M0", (-(-rows // 128), -(-cols // 128)))]


def layer_tensors(prefix: str, weights: str, is_hash: bool) -> list[Tensor]:
    tensors: list[Tensor] = []
    for name, rows, cols in (("attn.wq_a", 1024, HIDDEN), ("attn.wq_b", 32768, 1024), ("attn.wkv", 512, HIDDEN), ("attn.wo_b", HIDDEN, 8192)):
        tensors += fp8_tensors(prefix + name, rows, cols)
    tensors += [(prefix + "attn_norm.weight", "BF16", (HIDDEN,)), (prefix + "ffn_norm.weight", "BF16", (HIDDEN,)),
                (prefix + "ffn.gate.weight", "BF16", (EXPERTS, HIDDEN))]
    tensors.append((prefix + "ffn.gate.tid2eid", "I64", (VOCABULARY, TOPK)) if is_hash else (prefix + "ffn.gate.bias", "F32", (EXPERTS,)))
    shapes = (("w1", INTERMEDIATE, HIDDEN), ("w3", INTERMEDIATE, HIDDEN), ("w2", HIDDEN, INTERMEDIATE))
    for matrix, rows, cols in shapes:
        tensors += fp8_tensors(f"{prefix}ffn.shared_experts.{matrix}", rows, cols)
    for expert in range(EXPERTS):
        for matrix, rows, cols in shapes:
            tensors += expert_tensors(f"{prefix}ffn.experts.{expert}.{matrix}", rows, cols, weights)
    return tensors


def all_tensors(weights: str) -> list[Tensor]:
    tensors: list[Tensor] = [("embed.weight", "BF16", (VOCABULARY, HIDDEN))]
    for layer in range(LAYERS):
        tensors += layer_tensors(f"layers.{layer}.", weights, layer < HASH_LAYERS)
    return tensors + layer_tensors("mtp.0.", "mxfp4", False) + [("head.weight", "BF16", (VOCABULARY, HIDDEN))]


def cut(tensors: list[Tensor], count: int) -> list[list[Tensor]]:
    """Shards of about the same size."""
    total, shards, done = sum(map(size_of, tensors)), [[]], 0
    for tensor in tensors:
        if done >= total * len(shards) // count and len(shards) < count:
            shards.append([])
        shards[-1].append(tensor)
        done += size_of(tensor)
    return shards


def write_shard(path: Path, tensors: list[Tensor], filled: set[str]) -> None:
    header, offset = {}, 0
    for tensor in tensors:
        header[tensor[0]] = {"dtype": tensor[1], "shape": list(tensor[2]), "data_offsets": [offset, offset + size_of(tensor)]}
        offset += size_of(tensor)
    text = json.dumps(header, separators=(",", ":")).encode()
    with path.open("xb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)
        for name, dtype, _ in tensors:
            if name.rsplit(".", 1)[0].rsplit("ffn.", 1)[0] in filled and "scale" in name.rsplit(".", 1)[1]:
                begin, end = header[name]["data_offsets"]
                file.seek(8 + len(text) + begin)
                file.write(ONE[dtype] * ((end - begin) // len(ONE[dtype])))


def write(out: Path, weights: str, filled: int, count: int) -> None:
    shards = cut(all_tensors(weights), count)
    out.mkdir()
    prefixes = {f"layers.{layer}." for layer in range(filled)}
    weight_map, total = {}, 0
    for number, tensors in enumerate(shards):
        name = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        write_shard(out / name, tensors, prefixes)
        weight_map |= {tensor[0]: name for tensor in tensors}
        total += sum(map(size_of, tensors))
    (out / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    quantization = {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    if weights == "nvfp4":
        quantization |= {"moe_quant_algo": "NVFP4", "quant_algo": "MIXED_PRECISION", "group_size": 16, "ignore": ["*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"]}
    config = {"model_type": "deepseek_v4", "hidden_size": HIDDEN, "moe_intermediate_size": INTERMEDIATE, "n_routed_experts": EXPERTS,
              "n_shared_experts": 1, "num_experts_per_tok": TOPK, "num_hidden_layers": LAYERS, "num_hash_layers": HASH_LAYERS,
              "num_nextn_predict_layers": 1, "norm_topk_prob": True, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc",
              "routed_scaling_factor": 1.5, "swiglu_limit": 10.0, "expert_dtype": "fp4", "quantization_config": quantization}
    (out / "config.json").write_text(json.dumps(config, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--format", choices=("mxfp4", "nvfp4"), default="nvfp4")
    parser.add_argument("--filled", type=int, default=0, metavar="L")
    parser.add_argument("--shards", type=int, default=46, metavar="N")
    arguments = parser.parse_args()
    if arguments.out.exists():
        print(f"{arguments.out} is there; name a new directory", file=sys.stderr)
        return 2
    write(arguments.out, arguments.format, arguments.filled, arguments.shards)
    files = list(arguments.out.iterdir())
    print(f"{len(files)} files, {sum(f.stat().st_size for f in files) / 1e9:.1f} GB, on disk {sum(f.stat().st_blocks for f in files) * 512 / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
