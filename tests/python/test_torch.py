"""monomoe.torch on CPU tensors: eager, the registered op and torch.compile give the bits of the package; refusals."""

import copy
import gc
import threading

import monomoe
import numpy as np
import pytest
from layers import BF16, stacked, tokens

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -r tests/python/requirements-torch.txt")
import monomoe.torch  # noqa: E402


def to_torch(array):
    return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16) if array.dtype == BF16 else torch.from_numpy(array)


def to_torch_any(array):
    """Also scales and codes, as bytes where torch needs them so."""
    return torch.from_numpy(array if array.dtype in (np.float32, np.uint8) else array.view(np.uint8))


def bits(tensor):
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()


@pytest.fixture(scope="module")
def layer(examples):
    return monomoe.torch.MoELayer.from_checkpoint(examples / "tiny-moe-nvfp4", 0, max_tokens=64, context=monomoe.Context("cpu"))


@pytest.fixture(scope="module")
def call(layer, examples):
    """x, ids and weights, and the package's bits for them."""
    x = np.random.default_rng(1).standard_normal((9, 256)).astype(BF16)
    ids, weights = monomoe.Checkpoint(examples / "tiny-moe-nvfp4").route(0, x)
    want = monomoe.forward(layer.weights, layer.workspace, x, ids, weights)
    return to_torch(x), to_torch(ids), to_torch(weights), want.tobytes()


class Block(torch.nn.Module):
    def __init__(self, moe):
        super().__init__()
        self.moe = moe

    def forward(self, x, ids, weights):
        return x + self.moe(x * 2, ids, weights)


def test_eager_op_and_out(layer, call):
    x, ids, weights, want = call
    assert bits(layer(x, ids, weights)) == want
    assert bits(layer(x, ids.int(), weights)) == want
    assert bits(torch.ops.monomoe.moe_forward(x, ids, weights, None, layer.key)) == want
    out = torch.zeros_like(x)
    assert layer(x, ids, weights, out=out) is out and bits(out) == want
    assert bits(monomoe.forward(layer.weights, layer.workspace, x, ids, weights)) == want
    assert layer(x[:0], ids[:0], weights[:0]).shape == (0, 256)


def test_op_is_well_formed(layer, call):
    x, ids, weights, _ = call
    torch.library.opcheck(torch.ops.monomoe.moe_forward, (x, ids, weights, None, layer.key))
    torch.library.opcheck(torch.ops.monomoe.moe_forward_out, (x, ids, weights, None, torch.empty_like(x), layer.key))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(layer, call, dynamic):
    x, ids, weights, want = call
    alone = torch.compile(layer, fullgraph=True, dynamic=dynamic)  # inductor; nothing around the op that it would have to compile in C++
    assert bits(alone(x, ids, weights)) == want
    block = Block(layer)
    compiled = torch.compile(block, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows in (9, 4):
        part = (x[:rows].clone(), ids[:rows].clone(), weights[:rows].clone())
        assert bits(compiled(*part)) == bits(block(*part))
    torch._dynamo.reset()


def test_compile_with_out(layer, call):
    x, ids, weights, want = call
    out = torch.zeros_like(x)
    compiled = torch.compile(lambda *a: layer(*a, out=out), fullgraph=True, backend="aot_eager")
    assert bits(compiled(x, ids, weights)) == want and bits(out) == want
    torch._dynamo.reset()


@pytest.mark.parametrize("kind", ["fp8", "nvfp4", "mxfp4"])
def test_from_tensors_update_and_quantised_rows(kind):
    rng = np.random.default_rng(8)
    arrays, _ = stacked(rng, kind, 6, 256, 128)
    context = monomoe.Context("cpu")
    w13, s13, w2, s2 = (torch.from_numpy(a.view(np.uint8)) if a.dtype.itemsize == 1 else torch.from_numpy(a) for a in arrays)
    own_dtypes = {"fp8": (torch.float8_e4m3fn, None), "nvfp4": (None, torch.float8_e4m3fn), "mxfp4": (None, torch.float8_e8m0fnu)}[kind]
    layer = monomoe.torch.MoELayer.from_tensors(kind, *(t if d is None else t.view(d) for t, d in zip((w13, s13, w2, s2), own_dtypes * 2)), topk=2,
                                                max_tokens=12, swiglu_limit=10.0, context=context)
    x, ids, weights = (to_torch(a) for a in tokens(rng, 12, 256, 6, 2))
    package = monomoe.Weights(context, monomoe.StackedExperts(kind, *arrays), swiglu_limit=10.0)
    want = monomoe.forward(package, layer.workspace, x, ids, weights)
    assert bits(layer(x, ids, weights)) == bits(want)
    if kind != "fp8" and hasattr(torch, "float4_e2m1fn_x2"):
        packed = monomoe.StackedExperts(kind, w13.view(torch.float4_e2m1fn_x2), s13, w2.view(torch.float4_e2m1fn_x2), s2)
        again = monomoe.Weights(context, packed, swiglu_limit=10.0)
        assert bits(monomoe.forward(again, layer.workspace, x, ids, weights)) == bits(want)

    def matrix(codes, scales):
        return monomoe.Matrix(kind, codes, scales.view(own_dtypes[1]) if own_dtypes[1] else scales)

    half = s13.shape[1] // 2
    layer.update_expert(5, monomoe.Expert(matrix(w13[0, :128], s13[0, :half]), matrix(w13[0, 128:], s13[0, half:]), matrix(w2[0], s2[0])))
    assert bits(layer(x, ids, weights)) == bits(monomoe.forward(package, layer.workspace, x, torch.where(ids == 5, 0, ids), weights))


@pytest.mark.parametrize("kind", ["fp8", "nvfp4", "mxfp4"])
def test_packed_experts_may_be_moved(kind):
    """Rows of one layer in another are its experts, global factors included; a layer with rows in other places is the one with the experts there."""
    rng = np.random.default_rng(11)
    context = monomoe.Context("cpu")

    def random_layer(factor):
        arrays = [to_torch_any(a) for a in stacked(rng, kind, 5, 256, 128)[0]]
        factors = dict(w13_global=torch.linspace(factor, 2 * factor, 10).reshape(5, 2), w2_global=torch.full((5,), factor)) if kind == "nvfp4" else {}
        return monomoe.torch.MoELayer.from_tensors(kind, *arrays, topk=3, max_tokens=12, swiglu_limit=7.0, context=context, **factors)

    first, second = random_layer(1 / 64), random_layer(1 / 16)
    x, ids, weights = (to_torch(a) for a in tokens(rng, 12, 256, 5, 3))
    before, other = bits(first(x, ids, weights)), bits(second(x, ids, weights))
    rows = first.packed_experts()
    assert rows.shape[0] == 5 and rows.dtype is torch.uint8 and rows.is_contiguous()
    kept = rows.clone()
    rows.copy_(second.packed_experts())
    assert bits(first(x, ids, weights)) == other != before
    place = torch.tensor([3, 4, 1, 0, 2])  # of each expert
    rows[place] = kept
    assert bits(first(x, torch.where(ids < 0, ids, place[ids.clamp(min=0)]), weights)) == before
    assert bits(first(x, ids, weights)) != before
    kept = rows.clone()
    del first
    gc.collect()
    assert torch.equal(rows, kept)  # the tensor keeps the memory


def test_packed_experts_may_be_written_wherever_they_were_made():
    arrays = [to_torch_any(a) for a in stacked(np.random.default_rng(13), "fp8", 2, 256, 128)[0]]
    layer = monomoe.torch.MoELayer.from_tensors("fp8", *arrays, topk=1, max_tokens=1, context=monomoe.Context("cpu"))
    with torch.inference_mode():
        rows = layer.packed_experts()
        rows[0] = rows[1]
    rows[1] = 0
    assert torch.equal(rows, layer.packed_experts()) and rows[0].any() and not rows[1].any()


def test_packed_experts_take_a_rank_that_fits():
    arrays, _ = stacked(np.random.default_rng(14), "fp8", 2, 256, 128)
    weights = monomoe.Weights(monomoe.Context("cpu"), monomoe.StackedExperts("fp8", *arrays))
    for rank, sentence in ((1 << 32, "rank is 4294967296, wanted"), ("0", "rank is a builtins.str"), (None, "rank is a builtins.NoneType"), (1, "rank is 1, the context")):
        with pytest.raises(monomoe.UsageError, match=sentence):
            monomoe.layer.PackedExperts(weights, rank)
    with pytest.raises(monomoe.UsageError, match="weights is a builtins.NoneType, wanted a Weights"):
        monomoe.layer.PackedExperts(None, 0)


def test_packed_experts_of_a_placement():
    """Two ranks of one process: each has its own rows, in the order of its slots; an expert with copies is refused."""
    arrays, _ = stacked(np.random.default_rng(12), "fp8", 4, 256, 128)
    context, experts = monomoe.Context("cpu", ranks=2), monomoe.StackedExperts("fp8", *arrays)
    plain = [np.asarray(monomoe.Weights(context, experts).packed_experts(rank)) for rank in range(2)]
    placed = monomoe.Weights(context, experts, placement=[(3, 0, 0), (0, 1, 0), (2, 1, 2), (1, 1, 1)])
    assert [placed.packed_experts(rank).num_experts for rank in range(2)] == [1, 3]
    assert np.array_equal(np.asarray(placed.packed_experts(0)), plain[1][1:])
    assert np.array_equal(np.asarray(placed.packed_experts(1)), np.stack([plain[0][0], plain[0][1], plain[1][0]]))
    with pytest.raises(monomoe.UsageError, match="rank is not given"):
        placed.packed_experts()
    copies = monomoe.Weights(context, experts, placement=[(e, 0, e) for e in range(4)] + [(2, 1, 0)])
    with pytest.raises(monomoe.UsageError, match="expert 2 of rank 1 has 2 copies"):
        copies.packed_experts(1)


def test_layers_share_a_workspace(layer, call, examples):
    x, ids, weights, want = call
    second = monomoe.torch.MoELayer.from_checkpoint(examples / "tiny-moe-nvfp4", 1, context=layer.weights.context, workspace=layer.workspace)
    assert bits(second(x, ids, weights)) != want
    assert bits(layer(x, ids, weights)) == want


def test_ranks_on_threads(examples, call):
    x, ids, weights, want = call
    context = monomoe.Context("cpu", ranks=2, threads=2)
    packed = monomoe.Checkpoint(examples / "tiny-moe-nvfp4").weights(context, 0)
    workspace = monomoe.Workspace(packed, topk=4, capacity=9)
    cuts, out = [(0, 7), (7, 9)], [None, None]

    def run(rank):
        a, b = cuts[rank]
        out[rank] = monomoe.torch.MoELayer(packed, workspace=workspace, rank=rank)(x[a:b], ids[a:b], weights[a:b])

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert bits(torch.cat(out)) == want


def test_refusals(layer, call):
    x, ids, weights, _ = call
    with pytest.raises(monomoe.UsageError, match="requires a gradient and MoELayer computes none"):
        layer(x.clone().requires_grad_(), ids, weights)
    with torch.no_grad():
        layer(x.clone().requires_grad_(), ids, weights)
    with pytest.raises(monomoe.UsageError, match=r"x of shape \(9, 256\) has strides \(1, 9\)"):
        layer(x.t().contiguous().t(), ids, weights)
    with pytest.raises(monomoe.UsageError, match="x is float32"):
        layer(x.float(), ids, weights)
    with pytest.raises(monomoe.UsageError, match=r"topk_weights is bfloat16, wanted float32"):
        layer(x, ids, weights.bfloat16())
    with pytest.raises(monomoe.UsageError, match="65 tokens|capacity"):
        layer(x.repeat(8, 1), ids.repeat(8, 1), weights.repeat(8, 1))
    with pytest.raises(monomoe.UsageError, match="x is on meta, wanted a tensor on a CPU or CUDA device"):
        monomoe.forward(layer.weights, layer.workspace, x.to("meta"), ids, weights, out=torch.empty_like(x))
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copy.deepcopy(layer)


@pytest.mark.parametrize("gradients", [False, True])
def test_wrong_types_are_usage_errors(layer, call, examples, gradients):
    x, ids, weights, want = call
    MoELayer = monomoe.torch.MoELayer
    two = monomoe.Context("cpu", ranks=2)
    packed = monomoe.Checkpoint(examples / "tiny-moe-nvfp4").weights(two, 0)
    calls = {
        "x is a builtins.NoneType, wanted a tensor": lambda: layer(None, ids, weights),
        "topk_ids is a builtins.list, wanted a tensor": lambda: layer(x, ids.tolist(), weights),
        "topk_weights is a builtins.NoneType, wanted a tensor": lambda: layer(x, ids, None),
        "out is a builtins.int, wanted a tensor": lambda: layer(x, ids, weights, out=3),
        "weights is a builtins.NoneType, wanted a Weights": lambda: MoELayer(None, topk=4, max_tokens=1),
        "workspace is a builtins.int, wanted a Workspace": lambda: MoELayer(layer.weights, workspace=1),
        "max_tokens is a builtins.str, wanted an integer": lambda: MoELayer(layer.weights, topk=4, max_tokens="1"),
        "rank is 4294967296, wanted": lambda: MoELayer(layer.weights, workspace=layer.workspace, rank=1 << 32),
        "rank is not given and the context has 2 ranks": lambda: MoELayer(packed, topk=4, max_tokens=1),
        "rank is 5, the context has ranks 0..1": lambda: MoELayer(packed, topk=4, max_tokens=1, rank=5),
        "rank is -1, the context has ranks 0..1": lambda: MoELayer(packed, topk=4, max_tokens=1, rank=-1),
        "layer is a builtins.str, wanted an integer": lambda: MoELayer.from_checkpoint(examples / "tiny-moe-nvfp4", "0", max_tokens=1),
        "directory is a builtins.NoneType, wanted a path": lambda: MoELayer.from_checkpoint(None, 0, max_tokens=1),
        r"backend is \[\], wanted one of": lambda: monomoe.torch.default_context([]),
    }
    with torch.set_grad_enabled(gradients):
        for sentence, wrong in calls.items():
            with pytest.raises(monomoe.UsageError, match=sentence):
                wrong()
        assert layer(x.view(torch.uint16).numpy(), ids, weights).tobytes() == want  # other frameworks' tensors are read as in monomoe.forward


def test_a_layer_that_is_gone(examples, call):
    x, ids, weights, _ = call
    layer = monomoe.torch.MoELayer.from_checkpoint(examples / "tiny-moe-nvfp4", 2, max_tokens=9, context=monomoe.Context("cpu"))
    key = layer.key
    del layer
    gc.collect()
    with pytest.raises(monomoe.UsageError, match="which is gone"):
        torch.ops.monomoe.moe_forward(x, ids, weights, None, key)


def test_dlpack_of_torch(layer, call):
    """A torch tensor behind an object that only speaks DLPack, bfloat16 included."""
    x, ids, weights, want = call

    class Producer:
        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack__(self, **arguments):
            return self.tensor.__dlpack__(**arguments)

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

    out = torch.zeros_like(x)
    monomoe.forward(layer.weights, layer.workspace, Producer(x), Producer(ids), Producer(weights), out=Producer(out))
    assert bits(out) == want
