"""Number formats, safetensors files and checkpoint folders of the example model; NumPy only.

The encoders are written out here on purpose: they are a second, independent statement of the
formats the product reads.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable

import numpy as np

FORMATS = ("fp8", "nvfp4", "mxfp4")
FP8_BLOCK = 128
FP8_MAX = 448.0
FP4_MAX = 6.0
NVFP4_GROUP = 16
MXFP4_GROUP = 32

STORAGE = {"F32": np.float32, "BF16": np.uint16, "I32": np.int32, "I64": np.int64, "I8": np.int8,
           "U8": np.uint8, "F8_E4M3": np.uint8, "F8_E8M0": np.uint8}


@dataclass(frozen=True)
class Tensor:
    """A tensor as it lies in a safetensors file: a dtype name and the raw storage array."""

    dtype: str
    data: np.ndarray


@dataclass(frozen=True)
class LayerWeights:
    """One MoE layer before quantisation; all values fit BF16, the bias is FP32."""

    gate_weight: np.ndarray  # [E, H]
    gate_bias: np.ndarray  # [E]
    experts: dict[str, np.ndarray]  # w1, w3 [E, I, H]; w2 [E, H, I]
    shared: dict[str, np.ndarray]  # w1, w3 [I, H]; w2 [H, I]
    input_amax: float  # largest |x| seen in calibration
    hidden_amax: np.ndarray  # [E], largest |silu(gate) * up| seen in calibration


# ---------------------------------------------------------------------------------------------
# number formats


def _round_magnitude(a: np.ndarray, min_exponent: int, fraction_bits: int, largest: float) -> np.ndarray:
    """Round non-negative float64 values half to even onto a small float grid, saturating."""
    exponent = np.maximum(np.frexp(a)[1] - 1, min_exponent)
    step = np.ldexp(1.0, exponent - fraction_bits)
    return np.minimum(np.rint(a / step) * step, largest)


def _positive_values(codes: int, min_exponent: int, fraction_bits: int) -> np.ndarray:
    """Values of the non-negative codes 0..codes-1 of a small float, in code order."""
    code = np.arange(codes)
    field, fraction = code >> fraction_bits, code & ((1 << fraction_bits) - 1)
    significand = fraction + np.where(field > 0, 1 << fraction_bits, 0)
    return np.ldexp(significand.astype(np.float64), np.maximum(field, 1) - 1 + min_exponent - fraction_bits)


E4M3_VALUES = _positive_values(127, -6, 3)
E2M1_VALUES = _positive_values(8, 0, 1)


def _encode(x: np.ndarray, values: np.ndarray, min_exponent: int, fraction_bits: int, sign_bit: int) -> np.ndarray:
    x = np.asarray(x, np.float64)
    rounded = _round_magnitude(np.abs(x), min_exponent, fraction_bits, values[-1])
    return (np.searchsorted(values, rounded) | np.where(np.signbit(x), sign_bit, 0)).astype(np.uint8)


def encode_e4m3(x: np.ndarray) -> np.ndarray:
    """E4M3 codes of finite values, nearest even, saturating at 448."""
    return _encode(x, E4M3_VALUES, -6, 3, 0x80)


def decode_e4m3(code: np.ndarray) -> np.ndarray:
    """Float64 values of E4M3 codes; 0x7F and 0xFF are NaN."""
    values = np.append(E4M3_VALUES, np.nan)[code & 0x7F]
    return np.where(code & 0x80, -values, values)


def encode_e2m1(x: np.ndarray) -> np.ndarray:
    """E2M1 codes (0..15) of finite values, nearest even, saturating at 6."""
    return _encode(x, E2M1_VALUES, 0, 1, 8)


def decode_e2m1(code: np.ndarray) -> np.ndarray:
    """Float64 values of E2M1 codes."""
    values = E2M1_VALUES[code & 7]
    return np.where(code & 8, -values, values)


def decode_e8m0(code: np.ndarray) -> np.ndarray:
    """Powers of two 2^(code - 127); 255 is NaN."""
    return np.where(code == 255, np.nan, np.ldexp(1.0, code.astype(np.int32) - 127))


def to_bf16(x: np.ndarray) -> np.ndarray:
    """BF16 bits (uint16) of finite float32 values, nearest even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    """Float32 values of BF16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def pack_nibbles(codes: np.ndarray) -> np.ndarray:
    """Two codes a byte along the last axis, the even element in the low nibble."""
    return (codes[..., 0::2] | (codes[..., 1::2] << 4)).astype(np.uint8)


def unpack_nibbles(packed: np.ndarray) -> np.ndarray:
    """Inverse of pack_nibbles."""
    packed = packed.view(np.uint8)
    return np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)


# ---------------------------------------------------------------------------------------------
# matrices


def _block_amax(w: np.ndarray) -> np.ndarray:
    """Largest magnitude of each 128 x 128 block of [out, in], ragged edges included."""
    rows, cols = range(0, w.shape[0], FP8_BLOCK), range(0, w.shape[1], FP8_BLOCK)
    return np.array([[np.abs(w[r:r + FP8_BLOCK, c:c + FP8_BLOCK]).max() for c in cols] for r in rows])


def _expand_blocks(scale: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    full = np.repeat(np.repeat(scale, FP8_BLOCK, 0), FP8_BLOCK, 1)
    return full[:shape[0], :shape[1]].astype(np.float64)


def quantise_fp8(w: np.ndarray) -> dict[str, Tensor]:
    """E4M3 with one F32 scale per 128 x 128 block: amax / 448."""
    scale = np.maximum(_block_amax(w) / FP8_MAX, 1e-30).astype(np.float32)
    return {"weight": Tensor("F8_E4M3", encode_e4m3(w / _expand_blocks(scale, w.shape))),
            "scale": Tensor("F32", scale)}


def quantise_fp8_power_of_two(w: np.ndarray) -> dict[str, Tensor]:
    """E4M3 with one E8M0 scale per 128 x 128 block: the power of two at or above amax / 448."""
    exponent = np.ceil(np.log2(np.maximum(_block_amax(w) / FP8_MAX, 2.0**-127)))
    code = (exponent + 127).astype(np.uint8)
    return {"weight": Tensor("F8_E4M3", encode_e4m3(w / _expand_blocks(decode_e8m0(code), w.shape))),
            "scale": Tensor("F8_E8M0", code)}


def quantise_nvfp4(w: np.ndarray, input_amax: float) -> dict[str, Tensor]:
    """E2M1 with one E4M3 scale per 16 of K and one F32 scale per matrix."""
    groups = w.astype(np.float64).reshape(w.shape[0], -1, NVFP4_GROUP)
    scale_2 = np.float32(np.abs(groups).max() / (FP4_MAX * FP8_MAX))
    block = encode_e4m3(np.abs(groups).max(-1) / FP4_MAX / np.float64(scale_2))
    step = decode_e4m3(block)[..., None] * np.float64(scale_2)
    codes = encode_e2m1(np.divide(groups, step, out=np.zeros_like(groups), where=step > 0))
    return {"weight": Tensor("U8", pack_nibbles(codes.reshape(w.shape))),
            "weight_scale": Tensor("F8_E4M3", block),
            "weight_scale_2": Tensor("F32", np.array(scale_2)),
            "input_scale": Tensor("F32", np.array(input_amax / (FP4_MAX * FP8_MAX), np.float32))}


def quantise_mxfp4(w: np.ndarray) -> dict[str, Tensor]:
    """E2M1 with one E8M0 scale per 32 of K; of the two exponents that can be best, the one with less error."""
    groups = w.astype(np.float64).reshape(w.shape[0], -1, MXFP4_GROUP)
    low = np.clip(np.frexp(np.abs(groups).max(-1))[1] - 1 - 2, -127, 126)
    candidates = []
    for exponent in (low, low + 1):
        step = np.ldexp(1.0, exponent)[..., None]
        codes = encode_e2m1(groups / step)
        candidates.append((exponent, codes, ((decode_e2m1(codes) * step - groups) ** 2).sum(-1)))
    (e0, c0, error0), (e1, c1, error1) = candidates
    higher = error1 < error0
    exponent = np.where(higher, e1, e0)
    codes = np.where(higher[..., None], c1, c0)
    return {"weight": Tensor("I8", pack_nibbles(codes.reshape(w.shape)).view(np.int8)),
            "scale": Tensor("F8_E8M0", (exponent + 127).astype(np.uint8))}


def dequantise(parts: dict[str, Tensor]) -> np.ndarray:
    """Float64 matrix from the tensors of any of the formats above."""
    weight = parts["weight"]
    if weight.dtype == "F8_E4M3":
        scale = parts["scale"]
        values = decode_e8m0(scale.data) if scale.dtype == "F8_E8M0" else scale.data
        return decode_e4m3(weight.data) * _expand_blocks(values, weight.data.shape)
    codes = decode_e2m1(unpack_nibbles(weight.data))
    if "weight_scale_2" in parts:
        step = np.repeat(decode_e4m3(parts["weight_scale"].data), NVFP4_GROUP, -1)
        return codes * step * float(parts["weight_scale_2"].data)
    return codes * np.repeat(decode_e8m0(parts["scale"].data), MXFP4_GROUP, -1)


# ---------------------------------------------------------------------------------------------
# files


def write_safetensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write one safetensors file: header length, JSON header, tensors back to back."""
    header: dict[str, object] = {}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.data.nbytes
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.data.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor.data).astype(STORAGE[tensor.dtype], copy=False).tobytes())


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read every tensor of one safetensors file."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    tensors = {}
    for name, entry in json.loads(raw[8:start]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            data = np.frombuffer(raw[start + begin:start + end], STORAGE[entry["dtype"]])
            tensors[name] = Tensor(entry["dtype"], data.reshape(entry["shape"]))
    return tensors


def read_checkpoint(folder: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint folder, through its index if it has one."""
    index = folder / "model.safetensors.index.json"
    names: Iterable[str] = ["model.safetensors"]
    if index.exists():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    tensors: dict[str, Tensor] = {}
    for name in names:
        tensors.update(read_safetensors(folder / name))
    return tensors


def _write_shards(folder: Path, shards: list[dict[str, Tensor]]) -> None:
    """One file, or several with the index that names the file of each tensor."""
    if len(shards) == 1:
        write_safetensors(folder / "model.safetensors", shards[0])
        return
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        file_name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_safetensors(folder / file_name, shard)
        weight_map.update({name: file_name for name in shard})
    size = sum(tensor.data.nbytes for shard in shards for tensor in shard.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


# ---------------------------------------------------------------------------------------------
# checkpoints


def _expert_tensors(layer: LayerWeights, expert: int, expert_format: str) -> dict[str, Tensor]:
    tensors = {}
    for matrix in ("w1", "w2", "w3"):
        w = layer.experts[matrix][expert]
        if expert_format == "nvfp4":
            amax = layer.hidden_amax[expert] if matrix == "w2" else layer.input_amax
            parts = quantise_nvfp4(w, float(amax))
        else:
            parts = {"fp8": quantise_fp8, "mxfp4": quantise_mxfp4}[expert_format](w)
        tensors.update({f"{matrix}.{key}": tensor for key, tensor in parts.items()})
    return tensors


def layer_tensors(layer: LayerWeights, number: int, expert_format: str) -> dict[str, Tensor]:
    """The tensors of one MoE layer under their names in a DeepSeek-V4 checkpoint."""
    prefix = f"layers.{number}.ffn"
    tensors = {f"{prefix}.gate.weight": Tensor("BF16", to_bf16(layer.gate_weight)),
               f"{prefix}.gate.bias": Tensor("F32", layer.gate_bias.astype(np.float32))}
    for expert in range(len(layer.gate_bias)):
        for key, tensor in _expert_tensors(layer, expert, expert_format).items():
            tensors[f"{prefix}.experts.{expert}.{key}"] = tensor
    for matrix in ("w1", "w2", "w3"):
        for key, tensor in quantise_fp8_power_of_two(layer.shared[matrix]).items():
            tensors[f"{prefix}.shared_experts.{matrix}.{key}"] = tensor
    return tensors


def quantisation_config(expert_format: str, layers: int) -> dict[str, object]:
    """The quantization_config of config.json for each expert format."""
    config: dict[str, object] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [FP8_BLOCK, FP8_BLOCK],
                                 "activation_scheme": "dynamic"}
    if expert_format == "fp8":
        return config
    config["scale_fmt"] = "ue8m0"
    if expert_format == "nvfp4":
        entry = {"quant_algo": "NVFP4", "group_size": NVFP4_GROUP}
        config.update({"moe_quant_algo": "NVFP4", "quant_algo": "MIXED_PRECISION", "group_size": NVFP4_GROUP,
                       "ignore": ["*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"],
                       "quantized_layers": {f"layers.{n}.ffn.experts": entry for n in range(layers)}})
    return config


def write_checkpoint(folder: Path, layers: list[LayerWeights], expert_format: str, base_config: dict[str, object],
                     shards: int) -> None:
    """Quantise all layers and write config.json and the weight files."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {**base_config, "expert_dtype": "fp8" if expert_format == "fp8" else "fp4",
              "quantization_config": quantisation_config(expert_format, len(layers))}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    per_shard = -(-len(layers) // shards)
    parts: list[dict[str, Tensor]] = [{} for _ in range(shards)]
    for number, layer in enumerate(layers):
        parts[number // per_shard].update(layer_tensors(layer, number, expert_format))
    _write_shards(folder, parts)


def matrix_of(tensors: dict[str, Tensor], name: str) -> np.ndarray:
    """Dequantise the matrix called `name` (without its `.weight`)."""
    keys = ("weight", "scale", "weight_scale", "weight_scale_2")
    return dequantise({key: tensors[f"{name}.{key}"] for key in keys if f"{name}.{key}" in tensors})
