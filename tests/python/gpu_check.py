"""The Python package on a Hopper GPU: python tests/python/gpu_check.py [--quick]. Needs torch and an installed monomoe wheel, nothing else.

Eager calls, the registered op, torch.compile and CUDA graphs on CUDA tensors give the bits of the CPU backend; so do the entry points of
monomoe.compat, which also lie within calc_diff 0.01 of a reference without quantised activations. Prints one line a check, then a JSON object;
exit code 0, 1 (a check failed) or 77 (skipped: no Hopper GPU).
"""

import argparse
import json
import sys
import time

E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
passed, failed, figures = [], [], {}


def check(name, held):
    (passed if held else failed).append(name)
    print(("ok     " if held else "FAILED ") + name, flush=True)


def same(a, b):
    return torch.equal(a.cpu().view(torch.int16), b.cpu().view(torch.int16))


class Problem:
    """Random weights of about unit gain on the GPU, their exact values, and tokens."""

    def __init__(self, kind, experts, hidden, inter, topk, seed=1):
        self.kind, self.experts, self.hidden, self.inter, self.topk = kind, experts, hidden, inter, topk
        self.rng = torch.Generator(device="cuda").manual_seed(seed)
        gate, up = self.matrix(inter, hidden), self.matrix(inter, hidden)
        self.w13, self.s13, self.f13 = (torch.cat(parts, dim=1) for parts in zip(gate, up))
        self.w2, self.s2, self.f2 = self.matrix(hidden, inter)

    def normal(self, *shape):
        return torch.randn(shape, generator=self.rng, device="cuda")

    def matrix(self, rows, cols):
        """Codes, scales and exact values of normal weights of deviation 0.05 in bfloat16, quantised as the other packages' tests do it."""
        w = (self.normal(self.experts, rows, cols) * 0.05).bfloat16().float()
        if self.kind == "fp8":
            blocks = w.reshape(self.experts, rows // 128, 128, cols // 128, 128)
            scales = blocks.abs().amax((2, 4), keepdim=True).clamp(min=1e-4) / 448
            codes = (blocks / scales).to(torch.float8_e4m3fn)
            return codes.reshape(w.shape).view(torch.uint8), scales[:, :, 0, :, 0].contiguous(), (codes.float() * scales).reshape(w.shape)
        group = 16 if self.kind == "nvfp4" else 32
        groups = w.reshape(self.experts, rows, cols // group, group)
        largest = groups.abs().amax(-1, keepdim=True).clamp(min=1e-4)
        if self.kind == "nvfp4":
            scales = (largest / 6).to(torch.float8_e4m3fn)
            factor, stored = scales.float().clamp(min=2.0**-9), scales.view(torch.uint8)[..., 0].contiguous()
            stored = stored.clamp(min=1)
        else:
            exponents = torch.ceil(torch.log2(largest / 6))
            factor, stored = torch.exp2(exponents), (exponents + 127).to(torch.uint8)[..., 0].contiguous()
        table = torch.tensor(E2M1[:8], device="cuda")
        ratio = groups / factor
        edges = (table[1:] + table[:-1]) / 2
        codes = torch.bucketize(ratio.abs(), edges).to(torch.uint8) | (torch.signbit(ratio).to(torch.uint8) << 3)
        values = torch.tensor(E2M1, device="cuda")[codes.int()] * factor
        codes = codes.reshape(w.shape)
        return codes[..., 0::2] | (codes[..., 1::2] << 4), stored, values.reshape(w.shape)

    def weights(self):
        codes = (lambda t: t.view(torch.float8_e4m3fn)) if self.kind == "fp8" else (lambda t: t)
        return codes(self.w13), self.s13, codes(self.w2), self.s2

    def layer(self, context, max_tokens, limit=10.0):
        return monomoe.torch.MoELayer.from_tensors(self.kind, *self.weights(), topk=self.topk, max_tokens=max_tokens, swiglu_limit=limit,
                                                   context=context)

    def tokens(self, rows):
        x = self.normal(rows, self.hidden).bfloat16()
        weights, ids = self.normal(rows, self.experts).topk(self.topk)
        if rows > 3:
            ids[2], ids[3, 0] = -1, -1
        return x, ids, weights

    def reference(self, x, ids, weights, limit=10.0):
        out = torch.zeros((len(x), self.hidden), device="cuda", dtype=torch.float64)
        for e in range(self.experts):
            rows, slots = (ids == e).nonzero(as_tuple=True)
            if len(rows) == 0:
                continue
            both = x[rows].float() @ self.f13[e].t()
            gate, up = both[:, :self.inter].clamp(max=limit), both[:, self.inter:].clamp(-limit, limit)
            out.index_add_(0, rows, ((torch.nn.functional.silu(gate) * up) @ self.f2[e].t()).double() * weights[rows, slots, None].double())
        return out


def calc_diff(a, b):
    a, b = a.double(), b.double()
    return float(1 - 2 * (a * b).sum() / (a * a + b * b).sum())


def make_block(moe):
    def block(x, ids, weights):
        return x + moe(x * 2, ids, weights)
    return block


def check_graph(name, layer, problem, rows):
    """Captured at the first call on these tensors, replayed with other values in them."""
    static = problem.tokens(rows)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer(*static)
    for turn in range(3):
        fresh = problem.tokens(rows)
        for target, source in zip(static, fresh):
            target.copy_(source)
        graph.replay()
        check(f"{name}: CUDA graph, replay {turn}", same(y, layer(*fresh)))
    torch.cuda.synchronize()
    layer.check()


def check_layer(kind, shape, row_counts):
    name = f"{kind} {'/'.join(map(str, shape))}"
    problem = Problem(kind, *shape)
    gpu, cpu = problem.layer(GPU, max(row_counts)), problem.layer(CPU, max(row_counts))
    for rows in row_counts:
        call = problem.tokens(rows)
        want = cpu(*(t.cpu() for t in call))
        check(f"{name}: {rows} tokens, eager", same(gpu(*call), want))
        check(f"{name}: {rows} tokens, int32 ids, op", same(torch.ops.monomoe.moe_forward(call[0], call[1].int(), call[2], None, gpu.key), want))
        if rows > 0:
            check(f"{name}: {rows} tokens, calc_diff < 0.01", calc_diff(gpu(*call), problem.reference(*call)) < 0.01)
    rows = max(row_counts)
    call = problem.tokens(rows)
    want = cpu(*(t.cpu() for t in call))
    check(f"{name}: host tensors on the GPU backend", same(gpu(*(t.cpu() for t in call)), want))
    late = torch.zeros_like(call[0])
    torch.cuda._sleep(20_000_000)  # x is still being written when a call that blocks is made
    late.copy_(call[0])
    mixed = monomoe.forward(gpu.weights, gpu.workspace, late, call[1].cpu(), call[2])
    check(f"{name}: ids on the host, the rest on the GPU", same(mixed, want))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = gpu(*call)
    side.synchronize()
    check(f"{name}: another stream", same(y, want))
    check_graph(name, gpu, problem, rows)
    torch.cuda.synchronize()
    gpu.check()


def check_moved_experts(kind, shape, rows):
    """Packed experts as rows of GPU memory, moved on the stream of the calls, also between replays of a graph; their bytes are the CPU backend's."""
    name = f"{kind}: packed experts"
    problem = Problem(kind, *shape)
    gpu, cpu = problem.layer(GPU, rows), problem.layer(CPU, rows)
    packed = gpu.packed_experts()
    check(f"{name} are the CPU backend's", packed.is_cuda and torch.equal(packed.cpu(), cpu.packed_experts()))
    x, ids, weights = problem.tokens(rows)
    want = gpu(x, ids, weights)
    place = torch.roll(torch.arange(problem.experts, device="cuda"), 3)  # of each expert
    moved = torch.where(ids < 0, ids, place[ids.clamp(min=0)])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = gpu(x, moved, weights)
    packed[place] = packed.clone()
    check(f"{name}: moved, eager", same(gpu(x, moved, weights), want))
    graph.replay()
    check(f"{name}: moved, CUDA graph captured before", same(y, want))
    torch.cuda.synchronize()
    gpu.check()


def check_compile(kind, shape, rows):
    problem = Problem(kind, *shape)
    layer = problem.layer(GPU, rows)
    block = make_block(layer)
    for mode in (None, "reduce-overhead"):
        name = f"{kind}: torch.compile, mode {mode}"
        try:
            fast = torch.compile(block, fullgraph=True, mode=mode)
            check(name, all(same(fast(*c), block(*c)) for c in (problem.tokens(rows) for _ in range(4))))
        except Exception as error:  # a compiler that is missing here, as a rule: the other checks go on
            check(f"{name} ({type(error).__name__}: {str(error)[:300]})", False)
        torch._dynamo.reset()
    torch.cuda.synchronize()
    layer.check()


def word_order(packed):
    words = packed.reshape(*packed.shape[:-1], -1, 4)
    columns = torch.stack((words & 15, words >> 4), dim=-1).flatten(-2)
    return (columns[..., 4:] | (columns[..., :4] << 4)).reshape(packed.shape).contiguous()


def transformed(module, problem, kind):
    w13, s13, w2, s2 = problem.weights()
    if module is deep_gemm and kind == "fp8":
        return deep_gemm.transform_weights_for_mega_moe_sm90((w13, s13), (w2, s2)), deep_gemm.fp8_mega_moe
    if module is deep_gemm and kind == "mxfp4":
        return deep_gemm.transform_weights_for_mega_moe_sm90_fp4((w13.view(torch.int8), s13), (w2.view(torch.int8), s2)), deep_gemm.fp8_fp4_mega_moe
    pairs = (word_order(w13), s13), (word_order(w2), s2)
    if module is deep_gemm:
        return deep_gemm.transform_nvfp4_weights_for_mega_moe_sm90(*pairs), deep_gemm.nvfp4_mega_moe
    return getattr(module, f"transform_{kind}_weights_for_mega_moe")(*pairs), getattr(module, f"{kind}_mega_moe")


def check_compat(module, kind, shape, rows):
    name = f"{module.__name__.split('.')[-1]} {kind}"
    problem = Problem(kind, *shape, seed=7)
    call = problem.tokens(rows)
    want = problem.layer(CPU, rows)(*(t.cpu() for t in call))
    arguments = (None, problem.experts, rows, problem.topk, problem.hidden, problem.inter)
    buffer = module.get_symm_buffer_for_mega_moe(*arguments) if module is deep_gemm else module.MegaMoESymmBuffer(*arguments)
    x, ids, weights = call
    deep_gemm.mega_moe_pre_dispatch_sm90(x, ids.int(), weights, buffer.x, buffer.x_sf, buffer.topk_idx, buffer.topk_weights, rows)
    if module is not deep_gemm:
        buffer.commit_staged(rows)
    (l1, l2), entry = transformed(module, problem, kind)
    clamp = {"activation_clamp": 10.0} if module is deep_gemm else {}
    y = torch.empty((rows, problem.hidden), dtype=torch.bfloat16, device="cuda")
    stats = torch.zeros(problem.experts, dtype=torch.int32, device="cuda")
    entry(y, l1, l2, buffer, cumulative_local_expert_recv_stats=stats, **clamp)
    check(f"{name}: bits of the CPU backend", same(y, want))
    check(f"{name}: calc_diff < 0.01", calc_diff(y, problem.reference(*call)) < 0.01)
    check(f"{name}: received tokens counted", torch.equal(stats.cpu(), torch.bincount(ids[ids >= 0], minlength=problem.experts).int().cpu()))
    y.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        entry(y, l1, l2, buffer, cumulative_local_expert_recv_stats=stats, **clamp)
    graph.replay()
    check(f"{name}: CUDA graph", same(y, want))
    buffer.destroy()


def check_refusals():
    problem = Problem("fp8", 8, 512, 256, 4)
    x, ids, weights = problem.tokens(9)
    for name, sentence, call in (
            ("GPU tensors on the CPU backend", "backend is cpu", lambda: problem.layer(CPU, 9)(x, ids, weights)),
            ("one tensor on the host, stream asked for", "host memory", lambda: monomoe.forward(
                problem.layer(GPU, 9).weights, problem.layer(GPU, 9).workspace, x, ids.cpu(), weights, stream=1))):
        try:
            call()
            check(f"refused: {name}", False)
        except monomoe.UsageError as error:
            check(f"refused: {name}", sentence in str(error))
    layer = problem.layer(GPU, 9)
    layer(x, torch.full_like(ids, 99), weights)
    torch.cuda.synchronize()
    try:
        layer.check()
        check("a bad id in GPU memory poisons the workspace", False)
    except monomoe.PoisonedError as error:
        check("a bad id in GPU memory poisons the workspace", "99" in str(error))
    fresh = problem.layer(GPU, 9)
    check("a new workspace works after that", same(fresh(x, ids, weights), problem.layer(CPU, 9)(x.cpu(), ids.cpu(), weights.cpu())))


def check_cupy():
    try:
        import cupy
    except ImportError:
        print("skipped: CuPy is not installed")
        return
    problem = Problem("fp8", 8, 512, 256, 4)
    layer = problem.layer(GPU, 9)
    x, ids, weights = problem.tokens(9)
    out = cupy.zeros((9, 512), cupy.uint16)
    monomoe.forward(layer.weights, layer.workspace, cupy.from_dlpack(x.view(torch.uint16)), cupy.from_dlpack(ids), cupy.from_dlpack(weights), out=out)
    cupy.cuda.get_current_stream().synchronize()
    check("CuPy arrays", same(torch.from_dlpack(out).view(torch.bfloat16), layer(x, ids, weights)))


def measure_call():
    """Host time of an eager call that is enqueued and does nothing but launch, against torch's cheapest kernel."""
    problem = Problem("nvfp4", 8, 512, 256, 4)
    layer = problem.layer(GPU, 1)
    x, ids, weights = problem.tokens(1)
    out = torch.empty_like(x)
    for name, call in (("layer", lambda: layer(x, ids, weights)), ("run_into_out", lambda: layer.run(x, ids, weights, None, out)),
                       ("torch_add", lambda: torch.add(x, 1, out=out))):
        best = 1e9
        for _ in range(20):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(100):
                call()
            best = min(best, (time.perf_counter() - begin) / 100 * 1e6)
        figures[f"host_us_{name}"] = round(best, 2)


def main():
    quick = parser.parse_args().quick
    small = (8, 512, 256, 4)
    for kind in ("fp8", "nvfp4", "mxfp4"):
        check_layer(kind, small, (0, 1, 33, 129))
    if not quick:
        for kind in ("fp8", "nvfp4"):
            check_layer(kind, (32, 4096, 2048, 6), (64,))
    for kind in ("fp8", "nvfp4", "mxfp4"):
        check_compat(deep_gemm, kind, small, 65)
    for kind in ("nvfp4", "mxfp4"):
        check_compat(flashinfer_megamoe, kind, small, 65)
    for kind in ("fp8", "nvfp4", "mxfp4"):
        check_moved_experts(kind, small, 65)
    check_cupy()
    measure_call()
    for kind in () if quick else ("fp8", "nvfp4"):
        check_compile(kind, small, 33)
    check_refusals()
    print(json.dumps({"monomoe": monomoe.__version__, "torch": torch.__version__, "device": torch.cuda.get_device_name(),
                      "passed": len(passed), "failed": failed, **figures}))
    return 1 if failed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small shapes only, without torch.compile")
    parser.parse_args()
    import torch
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        print("SKIPPED: no Hopper GPU here (torch sees " + (torch.cuda.get_device_name() if torch.cuda.is_available() else "none") + ")")
        sys.exit(77)
    import monomoe
    import monomoe.torch
    from monomoe.compat import deep_gemm, flashinfer_megamoe
    try:
        GPU, CPU = monomoe.Context("cuda"), monomoe.Context("cpu")
    except monomoe.UnavailableError as error:
        sys.exit(f"FAILED: {error}")
    sys.exit(main())
