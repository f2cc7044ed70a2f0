"""The package on NumPy arrays: the bits of the command line, zero-copy views, refusals by name."""

import copy
import gc
import subprocess

import ml_dtypes
import monomoe
import numpy as np
import pytest
from layers import BF16, E4M3, calc_diff, read_bytes, reference, stacked, tokens, write_file


@pytest.fixture(scope="module")
def context():
    return monomoe.Context("cpu")


@pytest.fixture(scope="module")
def layer(context, examples):
    """The trained example's first layer: weights, workspace and tokens with the checkpoint's routing."""
    checkpoint = monomoe.Checkpoint(examples / "tiny-moe-nvfp4")
    weights = checkpoint.weights(context, 0)
    workspace = monomoe.Workspace(weights, topk=4, capacity=64)
    x = np.random.default_rng(1).standard_normal((9, 256)).astype(BF16)
    return weights, workspace, x, *checkpoint.route(0, x)


def test_bits_of_the_command_line(layer, tmp_path, built_program, examples):
    weights, workspace, x, ids, route_weights = layer
    write_file(tmp_path / "in.safetensors", {"x": x, "topk_ids": ids, "topk_weights": route_weights})
    subprocess.run([built_program("monomoe"), "run", examples / "tiny-moe-nvfp4", "--layer", "0", "--input", tmp_path / "in.safetensors",
                    "--output", tmp_path / "out.safetensors", "--ranks", "3", "--backend", "cpu"], check=True, capture_output=True)
    y = monomoe.forward(weights, workspace, x, ids, route_weights)
    assert y.dtype == BF16 and y.tobytes() == read_bytes(tmp_path / "out.safetensors", "y")


def test_other_ways_in_give_the_same_bits(layer):
    weights, workspace, x, ids, route_weights = layer
    want = monomoe.forward(weights, workspace, x, ids, route_weights).tobytes()
    bits = monomoe.forward(weights, workspace, x.view(np.uint16), ids.astype(np.int32), route_weights)
    assert bits.dtype == np.uint16 and bits.tobytes() == want
    out = np.zeros((9, 256), BF16)
    assert monomoe.forward(weights, workspace, x, ids, route_weights, out=out) is out and out.tobytes() == want
    parts = [monomoe.forward(weights, workspace, x[i:i + 1], ids[i:i + 1], route_weights[i:i + 1]).tobytes() for i in range(9)]
    assert b"".join(parts) == want


def test_ranks_with_different_counts(examples):
    context = monomoe.Context("cpu", ranks=3, threads=3)
    weights = monomoe.Checkpoint(examples / "tiny-moe-fp8").weights(context, 1)
    workspace = monomoe.Workspace(weights, topk=4, capacity=8)
    x, ids, route_weights = tokens(np.random.default_rng(2), 11, 256, 32, 4)
    cuts = [(0, 8), (8, 8), (8, 11)]  # the second rank is idle
    parts = monomoe.forward_ranks(weights, workspace, [monomoe.Tokens(x[a:b], ids[a:b], route_weights[a:b]) for a, b in cuts])
    one = monomoe.Context("cpu")
    alone = monomoe.Checkpoint(examples / "tiny-moe-fp8").weights(one, 1)
    want = monomoe.forward(alone, monomoe.Workspace(alone, topk=4, capacity=11), x, ids, route_weights)
    assert b"".join(part.tobytes() for part in parts) == want.tobytes()
    assert not want[2].astype(np.float32).any()  # all slots dropped


@pytest.mark.parametrize("kind", ["fp8", "nvfp4", "mxfp4"])
def test_stacked_experts_and_update(context, kind):
    rng = np.random.default_rng(3)
    arrays, values = stacked(rng, kind, 5, 256, 192)
    w13, s13, w2, s2 = arrays
    globals13 = np.array([[1.0, 0.5]] * 5, np.float32) if kind == "nvfp4" else None
    weights = monomoe.Weights(context, monomoe.StackedExperts(kind, w13, s13, w2, s2, globals13), swiglu_limit=7.0)
    workspace = monomoe.Workspace(weights, topk=3, capacity=40)
    x, ids, route_weights = tokens(rng, 40, 256, 5, 3)
    y = monomoe.forward(weights, workspace, x, ids, route_weights)
    scaled = values[0].copy()
    if kind == "nvfp4":
        scaled[:, 192:] *= 0.5
    assert calc_diff(y, reference(x, ids, route_weights, (scaled, values[1]), limit=7.0)) < 0.01

    def expert(e):
        half = s13.shape[1] // 2
        up_global = 0.5 if kind == "nvfp4" else 1.0
        return monomoe.Expert(monomoe.Matrix(kind, w13[e, :192], s13[e, :half]), monomoe.Matrix(kind, w13[e, 192:], s13[e, half:], up_global),
                              monomoe.Matrix(kind, w2[e], s2[e]))

    listed = monomoe.Weights(context, [expert(e) for e in range(5)], swiglu_limit=7.0)
    assert monomoe.forward(listed, workspace, x, ids, route_weights).tobytes() == y.tobytes()
    listed.update_expert(4, expert(1))
    rerouted = np.where(ids == 4, 1, ids)
    assert (monomoe.forward(listed, workspace, x, ids, route_weights).tobytes()
            == monomoe.forward(weights, workspace, x, rerouted, route_weights).tobytes())


def test_rows_already_quantised(context):
    rng = np.random.default_rng(4)
    arrays, _ = stacked(rng, "fp8", 4, 256, 128)
    weights = monomoe.Weights(context, monomoe.StackedExperts("fp8", *arrays))
    workspace = monomoe.Workspace(weights, topk=2, capacity=16)
    x, ids, route_weights = tokens(rng, 16, 256, 4, 2)
    rows = x.astype(np.float32).reshape(16, 2, 128)
    most = np.abs(rows).max(-1, keepdims=True)
    codes = (rows * (np.float32(448) / most)).astype(E4M3).reshape(16, 256)
    scales = (most / np.float32(448))[..., 0]
    want = monomoe.forward(weights, workspace, x, ids, route_weights)
    out = np.empty((16, 256), BF16)
    monomoe.forward(weights, workspace, codes, ids, route_weights, x_scales=scales, out=out)
    assert out.tobytes() == want.tobytes()
    monomoe.forward(weights, workspace, codes.view(np.uint8), ids, route_weights, x_scales=scales, out=out)
    assert out.tobytes() == want.tobytes()


def test_zero_tokens(layer):
    weights, workspace, x, ids, route_weights = layer
    assert monomoe.forward(weights, workspace, x[:0], ids[:0], route_weights[:0]).shape == (0, 256)


class Producer:
    """An object that offers its memory through DLPack only, as float32 or integers."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **arguments):
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class OldProducer(Producer):
    """As before DLPack 1.0: no max_version, an unversioned capsule."""

    def __dlpack__(self, *, stream=None):
        return self.array.__dlpack__()


@pytest.mark.parametrize("producer", [Producer, OldProducer])
def test_dlpack_is_zero_copy(layer, producer):
    weights, workspace, x, ids, route_weights = layer
    want = monomoe.forward(weights, workspace, x, ids, route_weights).tobytes()
    out = np.zeros((9, 256), np.uint16)
    monomoe.forward(weights, workspace, producer(x.view(np.uint16)), producer(ids), producer(route_weights), out=producer(out))
    assert out.tobytes() == want
    gc.collect()
    with pytest.raises(monomoe.UsageError, match=r"topk_weights of shape \(9, 4\) has strides \(8, 2\), wanted row-major contiguous memory"):
        monomoe.forward(weights, workspace, x, ids, producer(np.zeros((9, 8), np.float32)[:, ::2]))
    with pytest.raises(monomoe.UsageError, match="x: it has DLPack type code 2 of 64 bits"):
        monomoe.forward(weights, workspace, producer(np.zeros((9, 256))), ids, route_weights, out=out)


def refusals(layer):
    weights, workspace, x, ids, w = layer
    read_only = np.zeros((9, 256), BF16)
    read_only.flags.writeable = False
    forward = monomoe.forward
    return {
        "x is float32, wanted bfloat16": lambda: forward(weights, workspace, x.astype(np.float32), ids, w),
        r"x has shape \(9, 128\), wanted \[num_tokens, 256\]": lambda: forward(weights, workspace, np.ascontiguousarray(x[:, :128]), ids, w),
        r"x of shape \(9, 256\) has strides \(512, 2\), wanted row-major": lambda: forward(weights, workspace, np.zeros((9, 512), BF16)[:, ::2], ids, w),
        r"topk_ids has shape \(8, 4\), wanted \(9, 4\)": lambda: forward(weights, workspace, x, ids[:8], w),
        "topk_ids is int16": lambda: forward(weights, workspace, x, ids.astype(np.int16), w),
        "out is a read-only array": lambda: forward(weights, workspace, x, ids, w, out=read_only),
        "x is a builtins.list, wanted a tensor": lambda: forward(weights, workspace, [[1.0]], ids, w),
        "x is float8_e4m3fn and x_scales is not given": lambda: forward(weights, workspace, x.astype(E4M3), ids, w),
        "expert id 32 of token 0, slot 0": lambda: forward(weights, workspace, x, np.full_like(ids, 32), w),
        "stream is given and the context's backend is cpu": lambda: forward(weights, workspace, x, ids, w, stream=7),
        "ranks holds the tokens of 2 ranks, the context has 1": lambda: monomoe.forward_ranks(weights, workspace, [monomoe.Tokens(x, ids, w)] * 2),
        "backend is 'gpu', wanted one of 'auto', 'cpu', 'cuda'": lambda: monomoe.Context("gpu"),
        r"float4_e2m1fn, which holds one code a byte": lambda: monomoe.Weights(weights.context, monomoe.StackedExperts(
            "nvfp4", np.zeros((1, 4, 4), ml_dtypes.float4_e2m1fn), w, w, w)),
        r"w13 has shape \(1, 256, 128\), wanted \(1, 512, 128\)": lambda: monomoe.Weights(weights.context, monomoe.StackedExperts(
            "fp8", np.zeros((1, 256, 128), np.uint8), np.ones((1, 2, 1), np.float32), np.zeros((1, 128, 256), np.uint8),
            np.ones((1, 1, 2), np.float32))),
    }


@pytest.mark.parametrize("number", range(14))
def test_refusals_name_what_is_wrong(layer, number):
    cases = refusals(layer)
    assert len(cases) == 14
    sentence, call = list(cases.items())[number]
    with pytest.raises(monomoe.UsageError, match=sentence):
        call()


def test_bad_weights_name_their_place(context):
    arrays, _ = stacked(np.random.default_rng(5), "fp8", 3, 128, 128)
    arrays[2].view(np.uint8)[1, 4, 7] = 0x7F
    with pytest.raises(monomoe.BadInputError, match="expert 1 down"):
        monomoe.Weights(context, monomoe.StackedExperts("fp8", *arrays))


def test_errors_of_the_library(examples):
    with pytest.raises(monomoe.BadInputError, match="/nowhere is not a directory"):
        monomoe.Checkpoint("/nowhere")
    with pytest.raises(monomoe.UsageError, match="layer"):
        monomoe.Checkpoint(examples / "tiny-moe-fp8").layer_info(99)
    if "available" in str(monomoe.doctor()["backends"]["cuda"]) and monomoe.Context().backend == "cpu":
        with pytest.raises(monomoe.UnavailableError, match="backend cuda"):
            monomoe.Context("cuda")


def test_a_rank_that_never_comes_times_out():
    context = monomoe.Context("cpu", ranks=2, timeout_ms=100)
    arrays, _ = stacked(np.random.default_rng(6), "fp8", 2, 128, 128)
    weights = monomoe.Weights(context, monomoe.StackedExperts("fp8", *arrays))
    workspace = monomoe.Workspace(weights, topk=1, capacity=4)
    x, ids, w = tokens(np.random.default_rng(6), 2, 128, 2, 1)
    with pytest.raises(monomoe.RankTimeoutError):
        monomoe.forward(weights, workspace, x, ids, w, rank=0)
    with pytest.raises(monomoe.PoisonedError):
        workspace.check()


def test_handles_outlive_their_parents_and_cannot_be_copied(examples):
    checkpoint = monomoe.Checkpoint(examples / "tiny-moe-mxfp4")
    weights = checkpoint.weights(monomoe.Context("cpu"), 0)
    workspace = monomoe.Workspace(weights, topk=4, capacity=3)
    del checkpoint
    gc.collect()
    x, ids, w = tokens(np.random.default_rng(7), 3, 256, 32, 4)
    assert monomoe.forward(weights, workspace, x, ids, w).shape == (3, 256)
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copy.deepcopy(workspace)


def test_reports(examples):
    info = monomoe.Checkpoint(examples / "tiny-moe-nvfp4").layer_info(0)
    assert (info.format, info.hidden, info.num_experts, info.topk, info.has_router) == ("nvfp4", 256, 32, 4, True)
    assert monomoe.verify(examples / "tiny-moe-nvfp4")["ok"] is True
    assert monomoe.inspect(examples / "tiny-moe-nvfp4", 0)["layers"][0]["format"] == "nvfp4"
    report = monomoe.plan("fp8", hidden=4096, intermediate=2048, experts=256, topk=6, ranks=8, capacity=8192)
    assert report["legal"] is True and report["bytes_per_rank"]["weights"] > 0
    assert monomoe.plan("fp8", hidden=100, intermediate=2048, experts=256, topk=6)["legal"] is False
    assert monomoe.doctor()["backends"]["cpu"]
