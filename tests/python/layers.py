"""Random layers for the Python tests, and safetensors files for the command line. NumPy with ml_dtypes only."""

import json
import struct

import ml_dtypes
import numpy as np

BF16, E4M3, E8M0 = np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e8m0fnu)
_NAMES = {BF16: "BF16", np.dtype(np.float32): "F32", np.dtype(np.int64): "I64", np.dtype(np.int32): "I32", np.dtype(np.uint8): "U8",
          E4M3: "F8_E4M3", E8M0: "F8_E8M0"}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)


def write_file(path, tensors):
    header, offset = {}, 0
    for name, array in tensors.items():
        header[name] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(array.tobytes() for array in tensors.values()))


def read_bytes(path, name):
    raw = path.read_bytes()
    start = 8 + struct.unpack("<Q", raw[:8])[0]
    begin, end = json.loads(raw[8:start])[name]["data_offsets"]
    return raw[start + begin:start + end]


def tokens(rng, rows, hidden, experts, topk):
    """x, ids and weights; a few slots are dropped, one whole token."""
    x = rng.standard_normal((rows, hidden)).astype(BF16)
    ids = np.stack([rng.permutation(experts)[:topk] for _ in range(rows)]).astype(np.int64) if rows else np.zeros((0, topk), np.int64)
    if rows > 3:
        ids[2], ids[3, 0] = -1, -7
    return x, ids, rng.standard_normal((rows, topk)).astype(np.float32)


def stacked(rng, kind, experts, hidden, inter):
    """w13, its scale, w2, its scale: codes and scales of random weights of about unit gain, and their exact float32 values."""
    def one(rows, cols):
        if kind == "fp8":
            codes = (rng.standard_normal((experts, rows, cols)) * 100).clip(-440, 440).astype(np.float32).astype(E4M3)
            scales = (rng.uniform(0.5, 1.5, (experts, -(-rows // 128), -(-cols // 128))) / (100 * cols**0.5)).astype(np.float32)
            grown = np.repeat(np.repeat(scales, 128, 1)[:, :rows], 128, 2)[:, :, :cols]
            return codes, scales, codes.astype(np.float32) * grown
        packed = rng.integers(0, 256, (experts, rows, cols // 2), dtype=np.uint8)
        values = np.stack((E2M1[packed & 15], E2M1[packed >> 4]), axis=-1).reshape(experts, rows, cols)
        group = 16 if kind == "nvfp4" else 32
        if kind == "nvfp4":
            scales = rng.uniform(0.25, 1.0, (experts, rows, cols // group)).astype(np.float32).astype(E4M3)
            factor = scales.astype(np.float32)
        else:
            scales = rng.integers(-6, -2, (experts, rows, cols // group)).astype(np.int32)
            factor = np.exp2(scales.astype(np.float32))
            scales = (scales + 127).astype(np.uint8).view(E8M0)
        return packed, scales, values * np.repeat(factor, group, 2)

    gate, up = one(inter, hidden), one(inter, hidden)
    w13, s13, f13 = (np.concatenate(parts, axis=1) for parts in zip(gate, up))
    w2, s2, f2 = one(hidden, inter)
    return (w13, s13, w2, s2), (f13, f2)


def reference(x, ids, weights, values, limit=None, globals13=None, globals2=None):
    """The layer without any quantisation of activations, in float64."""
    f13, f2 = (v.astype(np.float64) for v in values)
    out = np.zeros(x.shape)
    inter = f2.shape[2]
    for t, row in enumerate(x.astype(np.float64)):
        for k, e in enumerate(ids[t]):
            if e < 0:
                continue
            both = f13[e] @ row * (1.0 if globals13 is None else globals13[e])
            gate, up = both[:inter], both[inter:]
            if limit is not None:
                gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
            out[t] += float(weights[t, k]) * (1.0 if globals2 is None else globals2[e]) * (f2[e] @ (gate / (1 + np.exp(-gate)) * up))
    return out


def calc_diff(a, b):
    """1 - 2 sum(ab) / sum(a^2 + b^2): what the other packages' tests compare."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return 1 - 2 * (a * b).sum() / (a * a + b * b).sum()
