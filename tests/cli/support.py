"""What the command line tests share: safetensors files, small checkpoints and runs of the program; standard library only.

MONOMOE_CLI is the program, MONOMOE_EXAMPLES the examples directory; CTest sets both.
"""

from __future__ import annotations

import json
import math
import os
import random
import struct
import subprocess
import tempfile
import unittest
from pathlib import Path

CLI = os.environ.get("MONOMOE_CLI", "build/monomoe")
EXAMPLES = Path(os.environ.get("MONOMOE_EXAMPLES", "examples"))

HIDDEN, INTERMEDIATE, EXPERTS, TOPK, TOKENS, VOCABULARY = 256, 192, 6, 2, 11, 13
OK, CHECK_FAILED, USAGE, BAD_INPUT, UNAVAILABLE, INTERNAL = range(6)

Tensor = tuple[str, list[int], bytes]  # dtype, shape, data
WIDTH = {"BF16": 2, "F32": 4, "I32": 4, "I64": 8, "F8_E4M3": 1, "F8_E8M0": 1, "U8": 1, "I8": 1, "F16": 2}


# ---- files -----------------------------------------------------------------------------------


def write_file(path: Path, tensors: dict[str, Tensor], lead: int = 0) -> None:
    """A safetensors file; `lead` blanks more in the header shift the data off its alignment."""
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        assert len(data) == WIDTH[dtype] * math.prod(shape), (name, len(data), shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8 + lead)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def read_file(path: Path) -> dict[str, Tensor]:
    raw = path.read_bytes()
    start = 8 + struct.unpack("<Q", raw[:8])[0]
    tensors = {}
    for name, entry in json.loads(raw[8:start]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            tensors[name] = (entry["dtype"], entry["shape"], raw[start + begin:start + end])
    return tensors


def bf16(values: list[float]) -> bytes:
    """Nearest even."""
    out = []
    for value in values:
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        out.append(0x7FFF if math.isnan(value) else (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)
    return struct.pack(f"<{len(out)}H", *out)


def from_bf16(data: bytes) -> list[float]:
    return [struct.unpack("<f", struct.pack("<I", bits << 16))[0] for bits in struct.unpack(f"<{len(data) // 2}H", data)]


def i64(values: list[int]) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def i32(values: list[int]) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def f32(values: list[float]) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def ints(tensor: Tensor) -> list[int]:
    return list(struct.unpack(f"<{len(tensor[2]) // 8}q", tensor[2]))


def floats(tensor: Tensor) -> list[float]:
    return list(struct.unpack(f"<{len(tensor[2]) // 4}f", tensor[2]))


# ---- checkpoints -----------------------------------------------------------------------------


def random_bytes(rng: random.Random, count: int, low: int, high: int) -> bytes:
    """Bytes in low..high."""
    span = high - low + 1
    return bytes(low + value % span for value in rng.randbytes(count))


def fp8_matrix(rng: random.Random, name: str, rows: int, cols: int) -> dict[str, Tensor]:
    """Codes of both signs below the NaN code, and F32 block scales."""
    codes = bytes((value & 0x80) | (value & 0x7F) % 0x7F for value in rng.randbytes(rows * cols))
    grid = [-(-rows // 128), -(-cols // 128)]
    scales = [rng.uniform(2e-4, 8e-4) for _ in range(math.prod(grid))]
    return {f"{name}.weight": ("F8_E4M3", [rows, cols], codes), f"{name}.scale": ("F32", grid, f32(scales))}


def nvfp4_matrix(rng: random.Random, name: str, rows: int, cols: int) -> dict[str, Tensor]:
    return {f"{name}.weight": ("U8", [rows, cols // 2], rng.randbytes(rows * cols // 2)),
            f"{name}.weight_scale": ("F8_E4M3", [rows, cols // 16], random_bytes(rng, rows * cols // 16, 0x50, 0x7E)),
            f"{name}.weight_scale_2": ("F32", [], f32([1.5e-4]))}


def mxfp4_matrix(rng: random.Random, name: str, rows: int, cols: int) -> dict[str, Tensor]:
    return {f"{name}.weight": ("I8", [rows, cols // 2], rng.randbytes(rows * cols // 2)),
            f"{name}.scale": ("F8_E8M0", [rows, cols // 32], random_bytes(rng, rows * cols // 32, 118, 123))}


MATRIX = {"fp8": fp8_matrix, "nvfp4": nvfp4_matrix, "mxfp4": mxfp4_matrix}


def expert_tensors(rng: random.Random, prefix: str, weights: str, hidden: int = HIDDEN, intermediate: int = INTERMEDIATE) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for matrix, rows, cols in (("w1", intermediate, hidden), ("w3", intermediate, hidden), ("w2", hidden, intermediate)):
        tensors.update(MATRIX[weights](rng, f"{prefix}.{matrix}", rows, cols))
    return tensors


def layer_tensors(weights: str, seed: int, layer: int = 0) -> dict[str, Tensor]:
    """Routed experts, gate with bias and a shared expert of another width; layer 1 routes by token id."""
    rng = random.Random(f"{seed}/{layer}")
    prefix = f"layers.{layer}.ffn"
    tensors: dict[str, Tensor] = {}
    for expert in range(EXPERTS):
        tensors.update(expert_tensors(rng, f"{prefix}.experts.{expert}", weights))
    tensors[f"{prefix}.gate.weight"] = ("BF16", [EXPERTS, HIDDEN], bf16([rng.gauss(0, 0.1) for _ in range(EXPERTS * HIDDEN)]))
    if layer == 1:
        table = [expert for _ in range(VOCABULARY) for expert in rng.sample(range(EXPERTS), TOPK)]
        tensors[f"{prefix}.gate.tid2eid"] = ("I64", [VOCABULARY, TOPK], i64(table))
    else:
        tensors[f"{prefix}.gate.bias"] = ("F32", [EXPERTS], f32([rng.uniform(-0.2, 0.2) for _ in range(EXPERTS)]))
    tensors.update(expert_tensors(rng, f"{prefix}.shared_experts", "fp8", intermediate=2 * INTERMEDIATE))
    return tensors


CONFIG = {"model_type": "deepseek_v4", "hidden_size": HIDDEN, "moe_intermediate_size": INTERMEDIATE, "n_routed_experts": EXPERTS,
          "num_experts_per_tok": TOPK, "n_shared_experts": 2, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc",
          "norm_topk_prob": True, "routed_scaling_factor": 1.5, "swiglu_limit": 7.0, "num_hidden_layers": 1, "num_hash_layers": 0}


def write_checkpoint(folder: Path, tensors: dict[str, Tensor], config: dict | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    write_file(folder / "model.safetensors", tensors)
    return folder


def token_tensors(seed: int = 5, tokens: int = TOKENS, ids: bool = True, hidden: int = HIDDEN) -> dict[str, Tensor]:
    rng = random.Random(seed)
    tensors: dict[str, Tensor] = {"x": ("BF16", [tokens, hidden], bf16([rng.gauss(0, 1) for _ in range(tokens * hidden)]))}
    if ids:
        table = [expert for _ in range(tokens) for expert in rng.sample(range(EXPERTS), TOPK)]
        tensors["topk_ids"] = ("I64", [tokens, TOPK], i64(table))
        tensors["topk_weights"] = ("F32", [tokens, TOPK], f32([rng.uniform(0.1, 1) for _ in range(tokens * TOPK)]))
    return tensors


# ---- runs ------------------------------------------------------------------------------------


class CliTest(unittest.TestCase):
    """A test with an empty folder of its own and the program."""

    def start(self, *arguments: object) -> subprocess.Popen:
        process = subprocess.Popen([CLI, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        return process

    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory(prefix="monomoe-cli-")
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def call(self, *arguments: object, stdout: object = subprocess.PIPE) -> subprocess.CompletedProcess:
        return subprocess.run([CLI, *map(str, arguments)], stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=600, check=False)

    def good(self, *arguments: object) -> str:
        result = self.call(*arguments)
        self.assertEqual(result.returncode, OK, result.stderr)
        self.assertEqual(result.stderr, "")
        return result.stdout

    def refused(self, code: int, *arguments: object, says: tuple[str, ...] = ()) -> str:
        """The program must stop with this code, an empty stdout and one sentence that holds all these words."""
        result = self.call(*arguments)
        self.assertEqual(result.returncode, code, f"{arguments}: {result.stdout}{result.stderr}")
        self.assertEqual(result.stdout, "")
        self.assertTrue(result.stderr.startswith("monomoe: "), result.stderr)
        for word in says:
            self.assertIn(word, result.stderr)
        return result.stderr

    def checkpoint(self, weights: str = "mxfp4", seed: int = 1, config: dict | None = CONFIG, layer: int = 0) -> Path:
        return write_checkpoint(self.folder / f"model-{weights}-{seed}-{layer}", layer_tensors(weights, seed, layer), config)

    def tokens(self, name: str = "in.safetensors", **options: object) -> Path:
        path = self.folder / name
        write_file(path, token_tensors(**options))
        return path

    def run_layer(self, checkpoint: Path, tokens: Path, *options: object, layer: int = 0) -> dict[str, Tensor]:
        output = self.folder / "out.safetensors"
        output.unlink(missing_ok=True)
        self.good("run", checkpoint, "--layer", layer, "--input", tokens, "--output", output, *options)
        self.assertEqual(list(self.folder.glob("*.partial-*")), [])
        return read_file(output)
