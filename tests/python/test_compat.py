"""monomoe.compat after the other packages' own recipe: their data and calc_diff < 0.01 against a reference without quantised activations, and
the bits of MoELayer; their signatures, from the packages themselves where they are installed; refusals."""

import ast
import importlib.metadata
import inspect

import monomoe
import numpy as np
import pytest
from layers import BF16, calc_diff, reference, stacked, tokens

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -r tests/python/requirements-torch.txt")
import monomoe.torch  # noqa: E402
from monomoe.compat import deep_gemm, flashinfer_megamoe  # noqa: E402

EXPERTS, HIDDEN, INTER, TOPK, ROWS = 8, 512, 256, 4, 33


def to_torch(array):
    if array.dtype == BF16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array.view(np.uint8) if array.dtype.itemsize == 1 else array)


def same(a, b):
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


def word_order(packed):
    """From two neighbouring columns a byte to words of eight: byte b holds column b high and b + 4 low."""
    words = packed.reshape(*packed.shape[:-1], -1, 4)
    columns = torch.stack((words & 15, words >> 4), dim=-1).flatten(-2)
    return (columns[..., 4:] | (columns[..., :4] << 4)).reshape(packed.shape).contiguous()


def in_turn(tensor):
    """Gate and up rows in turn, eight each."""
    order = [row for start in range(0, tensor.shape[1] // 2, 8) for half in (0, tensor.shape[1] // 2) for row in range(half + start, half + start + 8)]
    return tensor[:, order].contiguous()


class Problem:
    """Weights of a kind, a buffer with staged tokens, and MoELayer's answer."""

    def __init__(self, kind, clamp, module=deep_gemm, globals13=None, globals2=None):
        rng = np.random.default_rng(11)
        self.context = monomoe.Context("cpu")
        self.arrays, self.values = stacked(rng, kind, EXPERTS, HIDDEN, INTER)
        self.w13, self.s13, self.w2, self.s2 = (to_torch(a) for a in self.arrays)
        if kind == "fp8":
            self.w13, self.w2 = self.w13.view(torch.float8_e4m3fn), self.w2.view(torch.float8_e4m3fn)
        x, ids, weights = tokens(rng, ROWS, HIDDEN, EXPERTS, TOPK)
        self.raw = x, ids, weights
        self.x, self.ids, self.weights = (to_torch(a) for a in (x, ids, weights))
        self.exact = reference(x, ids, weights, self.values, limit=clamp, globals13=globals13, globals2=globals2)
        make = module.get_symm_buffer_for_mega_moe if module is deep_gemm else module.MegaMoESymmBuffer
        extra = {} if module is deep_gemm else {"activation_clamp": clamp}
        self.buffer = make(self.context, EXPERTS, ROWS, TOPK, HIDDEN, INTER, **extra)
        staging = self.buffer.x, self.buffer.x_sf, self.buffer.topk_idx, self.buffer.topk_weights
        deep_gemm.mega_moe_pre_dispatch_sm90(self.x, self.ids.int(), self.weights, *staging, ROWS)
        layer = monomoe.torch.MoELayer.from_tensors(kind, self.w13, self.s13, self.w2, self.s2, topk=TOPK, max_tokens=ROWS, swiglu_limit=clamp,
                                                    context=self.context, w13_global=None if globals13 is None else torch.from_numpy(globals13),
                                                    w2_global=None if globals2 is None else torch.from_numpy(globals2))
        self.want = layer(self.x, self.ids, self.weights)
        self.y = torch.full((ROWS, HIDDEN), 7.0, dtype=torch.bfloat16)

    def check(self):
        assert same(self.y, self.want)
        assert calc_diff(self.y.float().numpy(), self.exact) < 0.01


@pytest.mark.parametrize("clamp", [None, 1.0, 10.0])
def test_fp8(clamp):
    p = Problem("fp8", clamp)
    l1, l2 = deep_gemm.transform_weights_for_mega_moe_sm90((p.w13, p.s13), (p.w2, p.s2))
    assert (l1[0].shape, l1[0].dtype, l2[1].shape) == (p.w13.shape, torch.float8_e4m3fn, p.s2.shape)
    stats = torch.ones(EXPERTS, dtype=torch.int32)
    assert deep_gemm.fp8_mega_moe(p.y, l1, l2, p.buffer, cumulative_local_expert_recv_stats=stats, activation_clamp=clamp) is None
    p.check()
    assert torch.equal(stats - 1, torch.bincount(p.ids[p.ids >= 0], minlength=EXPERTS).int())


def test_fp8_tensors_in_the_kernel_layout_of_the_other_package():
    p = Problem("fp8", 10.0)
    l1 = (in_turn(p.w13.view(torch.uint8)).view(torch.float8_e4m3fn), p.s13)
    deep_gemm.fp8_mega_moe(p.y, l1, (p.w2, p.s2), p.buffer, activation_clamp=10.0)
    p.check()
    p.s2.mul_(2.0)  # written to in place, as a mover of experts does: packed again
    twice = torch.empty_like(p.y)
    deep_gemm.fp8_mega_moe(twice, l1, (p.w2, p.s2), p.buffer, activation_clamp=10.0)
    assert same(twice, p.want * 2)


def test_nvfp4_with_global_scales():
    globals13, globals2 = np.linspace(0.73, 1.37, EXPERTS, dtype=np.float32), np.linspace(1.31, 0.67, EXPERTS, dtype=np.float32)
    p = Problem("nvfp4", 10.0, globals13=globals13, globals2=globals2)
    pairs = (word_order(p.w13), p.s13), (word_order(p.w2), p.s2)
    block_n = deep_gemm.choose_nvfp4_block_n_for_mega_moe_sm90(ROWS, TOPK, EXPERTS, INTER)
    l1, l2 = deep_gemm.transform_nvfp4_weights_for_mega_moe_sm90(*pairs, block_n=block_n)
    assert l1[0].shape == (EXPERTS, 2 * INTER, HIDDEN // 128 * 80) and l1[1].shape == (EXPERTS, 2 * INTER // 256, HIDDEN // 128, 256, 8)
    deep_gemm.nvfp4_mega_moe(p.y, l1, l2, p.buffer, l1_global_scales=torch.from_numpy(globals13), l2_global_scales=torch.from_numpy(globals2),
                             activation_clamp=10.0)
    p.check()


@pytest.mark.parametrize("scales", ["bytes", "e8m0", "float32"])
def test_mxfp4(scales):
    p = Problem("mxfp4", 10.0)

    def given(sf):
        return {"bytes": lambda: sf, "e8m0": lambda: sf.view(torch.float8_e8m0fnu), "float32": lambda: torch.exp2(sf.float() - 127)}[scales]()

    l1, l2 = deep_gemm.transform_weights_for_mega_moe_sm90_fp4((p.w13.view(torch.int8), given(p.s13)), (p.w2.view(torch.int8), given(p.s2)))
    assert l1[1].shape == (EXPERTS, 2 * INTER, HIDDEN // 128) and l1[1].dtype is torch.int32
    deep_gemm.fp8_fp4_mega_moe(p.y, l1, l2, p.buffer, recipe=(1, 1, 32), activation_clamp=10.0)
    p.check()
    factor = torch.full((EXPERTS,), 2.0)
    t1, t2 = deep_gemm.transform_weights_for_fp8_mxfp4_fused_mega_moe_sm90((p.w13, given(p.s13 - 1 if scales == "bytes" else p.s13)),
                                                                          (p.w2, given(p.s2)), factor if scales == "bytes" else None,
                                                                          torch.ones(EXPERTS) if scales == "bytes" else None)
    assert len(t1) == len(t2) == 3
    p.y.zero_()
    deep_gemm.fp8_mxfp4_mega_moe(p.y, t1, t2, p.buffer, activation_clamp=10.0)
    p.check()


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp4"])
def test_flashinfer(kind):
    globals13 = np.exp2(np.arange(EXPERTS) % 3 - 1).astype(np.float32)
    p = Problem(kind, 10.0, flashinfer_megamoe, *([globals13, globals13] if kind == "nvfp4" else []))
    transform = getattr(flashinfer_megamoe, f"transform_{kind}_weights_for_mega_moe")
    w1, w2 = transform((word_order(p.w13), p.s13), (word_order(p.w2), p.s2))
    width = (2 * INTER, HIDDEN // 128 * 80) if kind == "nvfp4" else (2 * INTER // 128 * (HIDDEN // 128), 128 * 68)
    assert w1.shape == (EXPERTS, *width)
    b = p.buffer
    staged = tuple(t[:ROWS].clone() for t in (b.x, b.x_sf, b.topk_idx, b.topk_weights))
    b.topk_idx.fill_(-1)
    b.stage(*staged)
    assert b.prewarm() == 0
    scales = torch.from_numpy(globals13) if kind == "nvfp4" else None
    call = getattr(flashinfer_megamoe, f"{kind}_mega_moe")
    assert call(p.y, w1, w2, b, l1_global_scales=scales, l2_global_scales=scales) is p.y
    p.check()
    larger = torch.full((ROWS + 3, HIDDEN), 7.0, dtype=torch.bfloat16)
    call(larger, w1, w2, b, num_tokens=5, l1_global_scales=scales, l2_global_scales=scales)
    assert same(larger[:5], p.want[:5]) and bool((larger[5:] == 7.0).all())
    b.stage(*(t[:0] for t in staged))  # no tokens
    call(p.y, w1, w2, b, num_tokens=0, l1_global_scales=scales, l2_global_scales=scales)
    with pytest.raises(monomoe.UsageError, match="1 tokens, but 0 are staged"):
        call(p.y, w1, w2, b, num_tokens=1, l1_global_scales=scales, l2_global_scales=scales)


def test_pre_dispatch_scales_once_and_drops_the_rest():
    p = Problem("fp8", 10.0)
    b = p.buffer
    deep_gemm.mega_moe_pre_dispatch_sm90(p.x, p.ids.int(), p.weights, b.x, b.x_sf, b.topk_idx, b.topk_weights, 7, routed_scaling_factor=1.5)
    assert torch.equal(b.topk_weights[:7], p.weights[:7] * 1.5) and torch.equal(b.topk_idx[:7], p.ids[:7].clamp(min=-7))
    assert bool((b.topk_idx[7:] == -1).all()) and bool((b.topk_weights[7:] == 0).all()) and len(b.topk_idx) == 128
    empty = torch.empty((1, HIDDEN), dtype=torch.bfloat16)  # an idle rank gives one row, and its id is -1
    deep_gemm.mega_moe_pre_dispatch_sm90(p.x[:0], p.ids[:0].int(), p.weights[:0], b.x, b.x_sf, b.topk_idx, b.topk_weights, 0)
    l1, l2 = deep_gemm.transform_weights_for_mega_moe_sm90((p.w13, p.s13), (p.w2, p.s2))
    deep_gemm.fp8_mega_moe(empty, l1, l2, b)
    assert not bool(empty.any())
    deep_gemm.fp8_mega_moe(empty[:0], l1, l2, b)
    x = p.x.clone()
    x[0, 3], x[1, 200] = float("nan"), float("inf")
    x[2] = 0
    deep_gemm.mega_moe_pre_dispatch_sm90(x, p.ids.int(), p.weights, b.x, b.x_sf, b.topk_idx, b.topk_weights, ROWS)
    layer = monomoe.torch.MoELayer.from_tensors("fp8", p.w13, p.s13, p.w2, p.s2, topk=TOPK, max_tokens=ROWS, context=p.context)
    deep_gemm.fp8_mega_moe(p.y, l1, l2, b)
    assert same(p.y, layer(x, p.ids, p.weights)) and bool(p.y[:2].isnan().all())


def test_refusals():
    p = Problem("fp8", 10.0)
    l1, l2 = deep_gemm.transform_weights_for_mega_moe_sm90((p.w13, p.s13), (p.w2, p.s2))
    deep_gemm.fp8_mega_moe(p.y, l1, l2, p.buffer, activation_clamp=10.0)
    other, _ = deep_gemm.transform_weights_for_mega_moe_sm90((p.w13, p.s13), (p.w2, p.s2))

    class Group:
        def size(self):
            return 8

    pair = deep_gemm.fp8_mega_moe
    cases = [
        ("was packed for|were packed for activation_clamp 10.0", lambda: pair(p.y, l1, l2, p.buffer, activation_clamp=7.0)),
        ("come from two calls", lambda: pair(p.y, other, l2, p.buffer)),
        ("is a copy of what did", lambda: pair(p.y, (l1[0].clone(), l1[1]), l2, p.buffer)),
        ("did not come from transform_nvfp4", lambda: deep_gemm.nvfp4_mega_moe(p.y, (p.w13, p.s13), (p.w2, p.s2), p.buffer)),
        ("recipe is", lambda: pair(p.y, l1, l2, p.buffer, recipe=(1, 1, 32))),
        ("activation is 'gelu'", lambda: pair(p.y, l1, l2, p.buffer, activation="gelu")),
        ("activation_clamp is 0", lambda: pair(p.y, *deep_gemm.transform_weights_for_mega_moe_sm90((p.w13, p.s13), (p.w2, p.s2)), p.buffer,
                                               activation_clamp=0.0)),
        ("129 tokens, the buffer was made for at most 128", lambda: pair(torch.empty((129, HIDDEN), dtype=torch.bfloat16), l1, l2, p.buffer,
                                                                         activation_clamp=10.0)),
        ("y is torch.float32", lambda: pair(p.y.float(), l1, l2, p.buffer, activation_clamp=10.0)),
        ("mma_type is 'bf16xbf16'", lambda: deep_gemm.get_symm_buffer_for_mega_moe(p.context, 8, 8, 2, 256, 128, mma_type="bf16xbf16")),
        ("num_shared_experts is 1", lambda: deep_gemm.get_symm_buffer_for_mega_moe(p.context, 8, 8, 2, 256, 128, num_shared_experts=1)),
        ("torch.distributed is not initialised", lambda: deep_gemm.get_symm_buffer_for_mega_moe(Group(), 8, 8, 2, 256, 128)),
        ("no positive power of two", lambda: deep_gemm.transform_weights_for_fp8_mxfp4_fused_mega_moe_sm90(
            (p.w13.view(torch.uint8), torch.full((EXPERTS, 2 * INTER, HIDDEN // 32), 3.0)), (p.w2.view(torch.uint8), p.s2))),
    ]
    for sentence, call in cases:
        with pytest.raises(monomoe.Error, match=sentence):
            call()
    with pytest.raises(monomoe.BadInputError, match="NaN"):  # copies of both placeholders hold NaN codes, never zeros
        pair(p.y, (l1[0].clone(), p.s13), (l2[0].clone(), p.s2), p.buffer)
    with pytest.raises(AttributeError, match="no FusedPlan"):
        flashinfer_megamoe.FusedPlan
    p.buffer.destroy()
    with pytest.raises(monomoe.UsageError, match="was destroyed"):
        pair(p.y, l1, l2, p.buffer, activation_clamp=10.0)


# ---- the signatures of the real packages, read from their sources without importing them --------------------------------------------------

PEERS = {
    "sgl-deep-gemm": (deep_gemm, "deep_gemm/mega/__init__.py", ["get_symm_buffer_for_mega_moe", "mega_moe_pre_dispatch_sm90"]),
    "flashinfer-python": (flashinfer_megamoe, "flashinfer/megamoe/__init__.py", [
        "MegaMoESymmBuffer.__init__", "MegaMoESymmBuffer.stage", "MegaMoESymmBuffer.commit_staged", "MegaMoESymmBuffer.prewarm",
        "MegaMoESymmBuffer.destroy", "nvfp4_mega_moe", "mxfp4_mega_moe"]),
    "flashinfer-python weights": (flashinfer_megamoe, "flashinfer/megamoe/weights.py", [
        "transform_nvfp4_weights_for_mega_moe", "transform_mxfp4_weights_for_mega_moe"]),
}


def parameters(tree, name):
    """[(name, default)] of a function or method in a syntax tree."""
    body = tree.body
    for part in name.split("."):
        node = next(n for n in body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.name == part)
        body = node.body
    defaults = [inspect.Parameter.empty] * (len(node.args.args) - len(node.args.defaults)) + [ast.literal_eval(d) for d in node.args.defaults]
    return list(zip([a.arg for a in node.args.args], defaults))


@pytest.mark.parametrize("peer", PEERS)
def test_signatures_of_the_real_package(peer):
    module, path, names = PEERS[peer]
    try:
        distribution = importlib.metadata.distribution(peer.split()[0])
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{peer} is not installed: pip install --no-deps -r tests/python/requirements-peers.txt")
    tree = ast.parse(distribution.locate_file(path).read_text())
    for name in names:
        ours = module
        for part in name.split("."):
            ours = getattr(ours, part)
        mine = [(p.name, p.default) for p in inspect.signature(ours).parameters.values()]
        assert mine == parameters(tree, name), name
