"""The C++ numerics against ml_dtypes, numpy and exact rational arithmetic: nothing here shares code with src/numerics."""

import math
import subprocess
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

GROUP = 128


def as_bits(values):
    return np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)


def all_values(dtype, bits, count):
    return np.arange(count, dtype=bits).view(dtype).astype(np.float32)


def edge_floats(rng):
    """Random bit patterns, a dense window around FP8 and FP4, and every midpoint of two codes with its neighbours."""
    pieces = [rng.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)]
    exponents = rng.uniform(-13, 11, 200_000)
    pieces.append((np.exp2(exponents) * rng.choice([-1.0, 1.0], exponents.size)).astype(np.float32))
    for dtype, count in ((ml_dtypes.float8_e4m3fn, 127), (ml_dtypes.float4_e2m1fn, 8)):
        codes = np.arange(count, dtype=np.uint8).view(dtype).astype(np.float32)
        middle = ((codes[1:].astype(np.float64) + codes[:-1]) / 2).astype(np.float32)
        for values in (codes, middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(np.inf))):
            pieces += [values, -values]
    upper = np.arange(65536, dtype=np.uint32) << 16
    pieces += [(upper | low).view(np.float32) for low in (0x7FFF, 0x8000, 0x8001)]
    pieces.append(np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 464, 465, 480, 1e30, 2**-149], dtype=np.float32))
    return np.concatenate(pieces).astype(np.float32)


def groups(rng):
    x = rng.standard_normal((3000, GROUP)) * np.exp2(rng.uniform(-40, 40, (3000, 1)))
    x = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    x[0] = 0
    x[1] *= np.float32(2.0**-60)
    x[2, 5], x[3, 127], x[4, 0] = np.nan, np.inf, -np.inf
    return x


@pytest.fixture(scope="module")
def dump(built_program, tmp_path_factory):
    """Inputs and the program's outputs, by file name."""
    folder = tmp_path_factory.mktemp("numerics")
    rng = np.random.default_rng(20240607)
    codes = rng.integers(0, 256, (2, 600 * GROUP), dtype=np.uint8)
    codes[:, 300 * GROUP:] = (codes[:, 300 * GROUP:] & 0x87) | 0x30  # a narrow range, where sums keep more terms
    codes[(codes & 0x7F) == 0x7F] = 0x7E
    codes[0, 17] = 0xFF  # one NaN, in the first block
    gate, up = (rng.standard_normal((2, 100_000)) * 12).astype(np.float32)
    inputs = {"floats.f32": edge_floats(rng), "groups.f32": groups(rng), "a.u8": codes[0], "b.u8": codes[1], "gate.f32": gate, "up.f32": up}
    for name, values in inputs.items():
        values.tofile(folder / name)
    subprocess.run([built_program("dump_numerics"), folder], check=True, timeout=60)
    types = {".f32": np.float32, ".u8": np.uint8, ".u16": np.uint16}
    return {path.name: np.fromfile(path, types[path.suffix]) for path in folder.iterdir()}


@pytest.mark.parametrize("name, dtype, bits, count", [
    ("e4m3", ml_dtypes.float8_e4m3fn, np.uint8, 256),
    ("e2m1", ml_dtypes.float4_e2m1fn, np.uint8, 16),
    ("e8m0", ml_dtypes.float8_e8m0fnu, np.uint8, 256),
    ("bf16", ml_dtypes.bfloat16, np.uint16, 65536),
])
def test_decode_all_codes(dump, name, dtype, bits, count):
    got, want = dump[f"{name}_decode.f32"], all_values(dtype, bits, count)
    assert got.size == count
    nan = np.isnan(want)
    assert np.array_equal(np.isnan(got), nan)
    assert np.array_equal(as_bits(got)[~nan], as_bits(want)[~nan])


def test_e4m3_encode(dump):
    x, got = dump["floats.f32"], dump["e4m3_encode.u8"]
    nan = np.isnan(x)
    assert np.all(got[nan] == 0x7F)
    # ml_dtypes gives NaN above 464 where the contract saturates, so that part is checked on its own.
    inside = ~nan & (np.abs(x) <= 448)
    assert np.array_equal(got[inside], x[inside].astype(ml_dtypes.float8_e4m3fn).view(np.uint8))
    beyond = ~nan & (np.abs(x) > 448)
    assert inside.sum() > 100_000 and beyond.sum() > 50_000
    assert np.array_equal(got[beyond], np.where(np.signbit(x[beyond]), 0xFE, 0x7E))


def test_e2m1_encode(dump):
    x, got = dump["floats.f32"], dump["e2m1_encode.u8"]
    assert np.all(got[np.isnan(x)] == 7)
    real = ~np.isnan(x)
    want = np.clip(x[real], -6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 0xF
    assert np.array_equal(got[real], want)


def test_bf16_encode(dump):
    x, got = dump["floats.f32"], dump["bf16_encode.u16"]
    real = ~np.isnan(x)
    assert np.all(got[~real] == 0x7FFF) and (~real).any()
    with np.errstate(over="ignore"):
        want = x[real].astype(ml_dtypes.bfloat16).view(np.uint16)
    assert np.array_equal(got[real], want)


def test_group_quantisation(dump):
    x = dump["groups.f32"].reshape(-1, GROUP)
    codes, scales = dump["group_codes.u8"].reshape(x.shape), dump["group_scales.f32"]
    finite = np.isfinite(x).all(axis=1)
    assert (~finite).sum() == 3
    assert np.all(codes[~finite] == 0) and np.all(as_bits(scales[~finite]) == 0x7FFFFFFF)
    x, codes, scales = x[finite], codes[finite], scales[finite]
    m = np.maximum(np.abs(x).max(axis=1), np.float32(1e-10))
    assert np.array_equal(as_bits(scales), as_bits(m / np.float32(448)))
    scaled = x * (np.float32(448) / m)[:, None]
    assert scaled.dtype == np.float32
    want = np.clip(scaled, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    assert np.array_equal(codes, want)


def toward_zero(value, unit):
    return Fraction(math.trunc(value / unit)) * unit


def model_block(a, b):
    """The documented rule in rational arithmetic, four steps from zero."""
    exponent = lambda code: max((int(code) >> 3 & 15) - 7, -6)
    value = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    if np.isnan(value[a]).any() or np.isnan(value[b]).any():
        return math.nan
    acc = Fraction(0)
    for step in range(4):
        terms = [(acc, math.frexp(float(acc))[1] - 1)] if acc else []
        for p, q in zip(a[32 * step:32 * step + 32], b[32 * step:32 * step + 32]):
            product = Fraction(value[p]) * Fraction(value[q])
            if product:
                terms.append((product, exponent(p) + exponent(q)))
        largest = max((e for _, e in terms), default=0)
        acc = sum((toward_zero(v, Fraction(2) ** (largest - 13)) for v, _ in terms), Fraction(0))
        if acc:
            acc = toward_zero(acc, Fraction(2) ** (math.frexp(float(acc))[1] - 1 - 13))
    return float(acc)


def test_tensor_core_blocks(dump):
    a, b = dump["a.u8"].reshape(-1, GROUP), dump["b.u8"].reshape(-1, GROUP)
    got = dump["blocks.f32"]
    assert as_bits(got[:1])[0] == 0x7FFFFFFF, "the first block holds a NaN"
    want = np.array([model_block(p, q) for p, q in zip(a[1:], b[1:])], dtype=np.float32)
    assert np.array_equal(as_bits(got[1:]), as_bits(want))


def test_swiglu_against_double(dump):
    gate, up = dump["gate.f32"].astype(np.float64), dump["up.f32"].astype(np.float64)
    g, u = np.minimum(gate, 10), np.clip(up, -10, 10)
    want = g / (1 + np.exp(-g)) * u
    assert (gate > 10).any() and (gate < -10).any() and (np.abs(up) > 10).any()
    assert np.allclose(dump["swiglu.f32"], want, rtol=4e-7, atol=0)
