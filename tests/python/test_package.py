"""The package on NumPy arrays: the bits of the command line, zero-copy views, refusals by name."""

import copy
import gc
import subprocess
import time

import ml_dtypes
import monomoe
import numpy as np
import pytest
from layers import BF16, E4M3, E8M0, calc_diff, read_bytes, reference, stacked, tokens, write_file
from monomoe.layer import World


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


def foreign(array):
    """The same numbers in the other byte order."""
    return array.astype(array.dtype.newbyteorder())


def test_foreign_byte_order_is_refused(layer, context, examples):
    weights, workspace, x, ids, w = layer
    x_bits = x.view(np.uint16)
    order = "has the byte order of another machine"
    for name, call in {
        "x": (foreign(x_bits), ids, w), "topk_ids": (x, foreign(ids), w), "topk_weights": (x, ids, foreign(w)),
        "out": (x, ids, w, None, foreign(x_bits)), "x_scales": (x.view(np.uint8)[:, :256].copy(), ids, w, foreign(w[:, :2].copy()), x.copy()),
    }.items():
        with pytest.raises(monomoe.UsageError, match=f"^{name} {order}"):
            monomoe.forward_ranks(weights, workspace, [monomoe.Tokens(*call)])
    with pytest.raises(monomoe.UsageError, match=f"^x {order}"):  # bfloat16 itself: NumPy tells its order although it converts nothing
        monomoe.forward(weights, workspace, x.view(BF16.newbyteorder()), ids, w)
    checkpoint = monomoe.Checkpoint(examples / "tiny-moe-nvfp4")
    with pytest.raises(monomoe.UsageError, match=f"^x {order}"):
        checkpoint.route(0, foreign(x_bits))
    with pytest.raises(monomoe.UsageError, match=f"^token_ids {order}"):
        checkpoint.route(0, x, foreign(ids[:, 0].copy()))
    arrays, _ = stacked(np.random.default_rng(8), "fp8", 2, 128, 128)
    with pytest.raises(monomoe.UsageError, match=f"^w2_scale {order}"):
        monomoe.Weights(context, monomoe.StackedExperts("fp8", *arrays[:3], foreign(arrays[3])))
    arrays, _ = stacked(np.random.default_rng(8), "nvfp4", 2, 128, 128)
    with pytest.raises(monomoe.UsageError, match=f"^w13_global {order}"):
        monomoe.Weights(context, monomoe.StackedExperts("nvfp4", *arrays, foreign(np.ones(2, np.float32))))

    class OfInterface:
        __cuda_array_interface__ = {"shape": (9, 4), "typestr": ">i8", "data": (1, False), "version": 3}

    with pytest.raises(monomoe.UsageError, match=f"^topk_ids {order}"):
        monomoe.forward(weights, workspace, x, OfInterface(), w)


@pytest.mark.parametrize("wrong, sentence", [
    (1 << 64, "is 18446744073709551616, wanted"), (1 << 6000, "is an integer of 6001 bits, wanted"), (-1 << 63, "is -9223372036854775808, wanted"),
    ("0", "is a builtins.str, wanted an integer"), (1.0, "is a builtins.float, wanted an integer"), (None, "is a builtins.NoneType"),
    (True, "is a builtins.bool"), ([], "is a builtins.list"), (np.ones(3, int), "is a numpy.ndarray"),
], ids=range(9))
def test_integers_that_do_not_fit_are_refused(layer, examples, wrong, sentence):
    weights, workspace, x, ids, w = layer
    context, checkpoint = weights.context, monomoe.Checkpoint(examples / "tiny-moe-nvfp4")
    arrays, _ = stacked(np.random.default_rng(8), "fp8", 2, 128, 128)
    experts, one = monomoe.StackedExperts("fp8", *arrays), World(1, 0, None)
    sizes = {"topk": 4, "capacity": 4, "hidden": 256, "max_intermediate": 128, "max_experts": 4}
    plan = {"hidden": 256, "intermediate": 128, "experts": 4, "topk": 1, "ranks": 1, "capacity": 1}
    calls = [(name, lambda name=name: monomoe.Context("cpu", **{name: wrong})) for name in ("ranks", "threads", "vector_bits", "timeout_ms")]
    calls += [(f"world.{name}", lambda name=name: monomoe.Context("cpu", world=one._replace(**{name: wrong})))
              for name in ("size", "rank", "gpu", "ranks_per_gpu") if name != "gpu" or wrong is not None]
    calls += [("layer", lambda: checkpoint.layer_info(wrong)), ("layer", lambda: checkpoint.weights(context, wrong)),
              ("layer", lambda: checkpoint.shared_weights(context, wrong)), ("layer", lambda: checkpoint.route(wrong, x)),
              ("layer", lambda: monomoe.inspect(examples / "tiny-moe-nvfp4", wrong)), ("layer", lambda: monomoe.verify(examples / "tiny-moe-nvfp4", wrong)),
              ("index", lambda: weights.update_expert(wrong, None)), ("ids", lambda: monomoe.Weights(context, experts, ids=[0, wrong])),
              ("tag", lambda: monomoe.Weights(context, experts, tag=wrong))]
    calls += [(f"placement: {name}", lambda entry=entry: monomoe.Weights(context, experts, placement=[(0, 0, 0), entry]))
              for name, entry in {"expert": (wrong, 0, 1), "rank": (1, wrong, 1), "slot": (1, 0, wrong)}.items()]
    if wrong is not None:
        calls += [("rank", lambda: monomoe.forward(weights, workspace, x, ids, w, rank=wrong)),
                  ("stream", lambda: monomoe.forward(weights, workspace, x, ids, w, stream=wrong)),
                  ("num_experts", lambda: monomoe.Weights(context, experts, num_experts=wrong, ids=[0, 1]))]
    huge = isinstance(wrong, int) and wrong == -1 << 63  # fits an int64, so the library has the words for it
    calls += [(name, lambda name=name: monomoe.Workspace.sized(context, **sizes | {name: wrong})) for name in sizes
              if not huge or name in ("topk", "max_experts")]
    calls += [] if huge else [(name, lambda name=name: monomoe.plan("fp8", **plan | {name: wrong})) for name in plan]
    for name, call in calls:
        words = "wanted 'current'" if name == "stream" and isinstance(wrong, str) else sentence
        with pytest.raises(monomoe.UsageError, match=f"^{name} .*{words}"):
            call()


def test_numbers_of_numpy_are_integers(layer):
    weights, workspace, x, ids, w = layer
    want = monomoe.forward(weights, workspace, x, ids, w).tobytes()
    assert monomoe.forward(weights, workspace, x, ids, w, rank=np.uint8(0)).tobytes() == want
    assert monomoe.Workspace(weights, topk=np.int64(4), capacity=np.array(3)).capacity == 3


def test_wrong_types_are_usage_errors(layer, context, examples):
    weights, workspace, x, ids, w = layer
    arrays, _ = stacked(np.random.default_rng(8), "fp8", 1, 128, 128)
    matrix = monomoe.Matrix("fp8", np.zeros((128, 128), np.uint8), np.ones((1, 1), np.float32))
    stack = monomoe.StackedExperts("fp8", *arrays)
    calls = {
        "weights is a builtins.NoneType, wanted a Weights": lambda: monomoe.forward(None, workspace, x, ids, w),
        "workspace is a monomoe.layer.Weights, wanted a Workspace": lambda: monomoe.forward(weights, weights, x, ids, w),
        "x is a builtins.NoneType, wanted a tensor": lambda: monomoe.forward(weights, workspace, None, ids, w),
        "x: its __dlpack__ refused": lambda: monomoe.forward(weights, workspace, np.ndarray, ids, w),
        "ranks is a builtins.tuple, wanted a Tokens": lambda: monomoe.forward_ranks(weights, workspace, [(x, ids, w)]),
        "ranks is a builtins.NoneType, wanted a sequence of Tokens": lambda: monomoe.forward_ranks(weights, workspace, None),
        "stream is 'currant', wanted 'current'": lambda: monomoe.forward(weights, workspace, x, ids, w, stream="currant"),
        "backend is \\[\\], wanted one of": lambda: monomoe.Context([]),
        "world is a builtins.tuple, wanted a World": lambda: monomoe.Context(world=(1, 0, None)),
        "format is \\[\\], wanted one of": lambda: monomoe.plan([], hidden=1, intermediate=1, experts=1, topk=1),
        "format is {}, wanted one of": lambda: monomoe.Weights(context, monomoe.StackedExperts({}, *arrays)),
        "context is a builtins.NoneType, wanted a Context": lambda: monomoe.Weights(None, stack),
        "experts is a builtins.NoneType, wanted a sequence of Expert": lambda: monomoe.Weights(context, None),
        "expert 0 is a builtins.NoneType, wanted a sequence of gate, up and down": lambda: monomoe.Weights(context, [None]),
        "expert 0 has 2 matrices": lambda: monomoe.Weights(context, [(matrix, matrix)]),
        "expert 0 up is a builtins.int, wanted a Matrix": lambda: monomoe.Weights(context, [(matrix, 1, matrix)]),
        "expert 0 down.global_scale is a builtins.str, wanted a real number": lambda: monomoe.Weights(
            context, [(matrix, matrix, monomoe.Matrix("fp8", matrix.codes, matrix.scales, "1"))]),
        "swiglu_limit is a builtins.float, wanted a real number that fits": lambda: monomoe.Weights(context, stack, swiglu_limit=1e39),
        "world.memory is a builtins.NoneType": lambda: monomoe.Workspace.sized(
            monomoe.Context("cpu", world=World(1, 0, None)), topk=1, capacity=1, hidden=128, max_intermediate=128, max_experts=1),
        "swiglu_limit is a builtins.list, wanted a real number": lambda: monomoe.Weights(context, stack, swiglu_limit=[]),
        "ids is a builtins.int, wanted a sequence of expert numbers": lambda: monomoe.Weights(context, stack, ids=0),
        "placement is a builtins.int, wanted a sequence": lambda: monomoe.Weights(context, stack, placement=[0]),
        "placement holds no": lambda: monomoe.Weights(context, stack, placement=[(0, 0, 0), (0, 0)]),
        "layers is a builtins.NoneType, wanted a sequence of Weights": lambda: monomoe.Workspace(None, topk=1, capacity=1),
        "layers is a builtins.int, wanted a Weights": lambda: monomoe.Workspace([1], topk=1, capacity=1),
        "directory is a builtins.NoneType, wanted a path": lambda: monomoe.Checkpoint(None),
        "directory is a builtins.int, wanted a path": lambda: monomoe.verify(3),
        "directory is .*, which holds a NUL character": lambda: monomoe.Checkpoint(f"{examples / 'tiny-moe-fp8'}\0/elsewhere"),
        "^directory is b.*, which holds a NUL character": lambda: monomoe.inspect(b"a\0b"),
    }
    for sentence, call in calls.items():
        with pytest.raises(monomoe.UsageError, match=sentence):
            call()


def test_e8m0_scales_of_fp8_as_bytes(context):
    rng = np.random.default_rng(8)
    (w13, _, w2, _), _ = stacked(rng, "fp8", 2, 128, 128)
    s13, s2 = (rng.integers(114, 120, shape).astype(np.uint8) for shape in ((2, 2, 1), (2, 1, 1)))
    x, ids, w = tokens(rng, 5, 128, 2, 1)

    def run(*scales):
        weights = monomoe.Weights(context, monomoe.StackedExperts("fp8", w13, scales[0], w2, scales[1]))
        return monomoe.forward(weights, monomoe.Workspace(weights, topk=1, capacity=5), x, ids, w)

    want = run(*(np.exp2(scale.astype(np.float32) - 127) for scale in (s13, s2)))
    assert want.astype(np.float32).any() and run(s13, s2).tobytes() == want.tobytes() == run(s13.view(E8M0), s2.view(E8M0)).tobytes()


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


def test_a_world_has_its_own_rank_alone():
    world = monomoe.Context("cpu", world=World(1, 0, None))
    assert world.rank_of_call(None) == world.rank_of_call(0) == 0
    with pytest.raises(monomoe.UsageError, match="rank is 1, but this context is rank 0 of 1"):
        world.rank_of_call(1)


def test_a_rank_that_never_comes_times_out():
    context = monomoe.Context("cpu", ranks=2, timeout_ms=100)
    arrays, _ = stacked(np.random.default_rng(6), "fp8", 2, 128, 128)
    weights = monomoe.Weights(context, monomoe.StackedExperts("fp8", *arrays))
    workspace = monomoe.Workspace(weights, topk=1, capacity=4)
    x, ids, w = tokens(np.random.default_rng(6), 2, 128, 2, 1)
    start = time.monotonic()
    with pytest.raises(monomoe.UsageError, match="rank is not given and the context has 2 ranks"):
        monomoe.forward(weights, workspace, x, ids, w)
    assert time.monotonic() - start < 0.1
    workspace.check()  # nothing was begun
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
    assert monomoe.verify(examples / "tiny-moe-nvfp4", values=False)["values_read"] is False
    (layer,) = monomoe.inspect(examples / "tiny-moe-nvfp4", 0)["layers"]
    assert layer["format"] == "nvfp4" and "conversion" not in layer["matrices"][0]
    (layer,) = monomoe.inspect(examples / "tiny-moe-nvfp4", 0, costs=True)["layers"]
    assert layer["matrices"][0]["conversion"] in ("exact", "rounded")
    with pytest.raises(monomoe.UsageError, match="costs is a builtins.int, wanted a bool"):
        monomoe.inspect(examples / "tiny-moe-nvfp4", costs=1)
    report = monomoe.plan("fp8", hidden=4096, intermediate=2048, experts=256, topk=6, ranks=8, capacity=8192)
    assert report["legal"] is True and report["bytes_per_rank"]["weights"] > 0
    assert monomoe.plan("fp8", hidden=100, intermediate=2048, experts=256, topk=6)["legal"] is False
    assert monomoe.doctor()["backends"]["cpu"]
