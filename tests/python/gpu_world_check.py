"""Ranks in several processes on GPUs: python tests/python/gpu_world_check.py [--ranks N]. Needs torch, an installed monomoe wheel and 2 or more
Hopper GPUs that reach each other.

Starts a process for each GPU: with all GPUs visible to each, over the library's own exchange and over torch symmetric memory, and with one GPU each as
device 0, over the library's exchange by file descriptors and by CUDA IPC (torch symmetric memory refuses such processes). Every rank brings another number of tokens
(one none) and compares eager calls, CUDA graphs and the DeepGEMM entry points with the bits of the CPU backend, and measures 200 calls in a row.
Prints one line a rank; exit code 0, 1 (a check failed) or 77 (skipped).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

EXPERTS, HIDDEN, INTER, TOPK = 16, 1024, 512, 4


# Whether each rank sees one GPU, and where its memory comes from.
WAYS = ((False, "own"), (False, "torch"), (True, "own"), (True, "ipc"))


def rank_main(rank, size, store, isolated, way):
    import monomoe
    import monomoe.torch
    import torch
    import torch.distributed as dist
    from monomoe.compat import deep_gemm
    from monomoe.torch import distributed
    torch.cuda.set_device(0 if isolated else rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=size, device_id=torch.device("cuda", torch.cuda.current_device()))
    generator = torch.Generator().manual_seed(3)
    rows = [(13 + 29 * r) if r != 1 else 0 for r in range(size)]
    w13 = (torch.randn((EXPERTS, 2 * INTER, HIDDEN), generator=generator) * 100).clamp(-440, 440).to(torch.float8_e4m3fn)
    w2 = (torch.randn((EXPERTS, HIDDEN, INTER), generator=generator) * 100).clamp(-440, 440).to(torch.float8_e4m3fn)
    s13, s2 = torch.full((EXPERTS, 2 * INTER // 128, HIDDEN // 128), 3e-4), torch.full((EXPERTS, HIDDEN // 128, INTER // 128), 4e-4)
    x = torch.randn((sum(rows), HIDDEN), generator=generator).bfloat16()
    weights, ids = torch.randn((sum(rows), EXPERTS), generator=generator).topk(TOPK)
    mine = slice(sum(rows[:rank]), sum(rows[:rank + 1]))
    share = slice(rank * EXPERTS // size, (rank + 1) * EXPERTS // size)
    cpu = monomoe.torch.MoELayer.from_tensors("fp8", w13, s13, w2, s2, topk=TOPK, max_tokens=sum(rows), swiglu_limit=10.0,
                                              context=monomoe.Context("cpu"))
    want = cpu(x, ids, weights)[mine]
    same = lambda y: torch.equal(y.cpu().view(torch.int16), want.view(torch.int16))  # noqa: E731
    found = {"rank": rank, "isolated": isolated, "way": way}

    memory = {"own": lambda: None, "torch": lambda: distributed.TorchMemory(dist.group.WORLD),
              "ipc": lambda: distributed.WorldMemory(dist.group.WORLD, "cuda", sharing="ipc")}[way]()
    context = distributed.join(backend="cuda", memory=memory)
    part = w13[share], s13[share], w2[share], s2[share]
    layer = monomoe.torch.MoELayer.from_tensors("fp8", *part, topk=TOPK, max_tokens=max(rows), swiglu_limit=10.0, context=context,
                                                num_experts=EXPERTS, tag=1)
    call = x[mine].cuda(), ids[mine].cuda(), weights[mine].cuda()
    found["memory"] = getattr(context.world.memory, "how", type(context.world.memory).__name__)
    found["eager"] = all(same(layer(*call)) for _ in range(3))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        y = layer(*call)
    graph.replay()
    found["graph"] = same(y)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    dist.barrier()
    begin.record()
    for _ in range(200):
        graph.replay()
    end.record()
    end.synchronize()
    found["us_per_call"] = round(begin.elapsed_time(end) * 5, 1)
    found["after_200"] = same(y)
    layer.check()

    buffer = deep_gemm.get_symm_buffer_for_mega_moe(dist.group.WORLD, EXPERTS, max(rows), TOPK, HIDDEN, INTER)
    l1, l2 = deep_gemm.transform_weights_for_mega_moe_sm90(part[:2], part[2:])
    deep_gemm.mega_moe_pre_dispatch_sm90(*call, buffer.x, buffer.x_sf, buffer.topk_idx, buffer.topk_weights, rows[rank])
    y, stats = torch.empty((rows[rank], HIDDEN), dtype=torch.bfloat16, device="cuda"), torch.zeros(EXPERTS // size, dtype=torch.int32, device="cuda")
    deep_gemm.fp8_mega_moe(y, l1, l2, buffer, cumulative_local_expert_recv_stats=stats, activation_clamp=10.0)
    found["deep_gemm"] = same(y)
    found["stats"] = torch.equal(stats.cpu(), torch.bincount(ids.flatten(), minlength=EXPERTS).int()[share])
    print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    return 0 if all(value is not False for key, value in found.items() if key != "isolated") else 1


def start(rank, size, store, isolated, way):
    environment = dict(os.environ)
    if isolated:
        visible = environment.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(size)))).split(",")
        environment["CUDA_VISIBLE_DEVICES"] = visible[rank]
    return subprocess.Popen([sys.executable, __file__, "--rank", str(rank), "--ranks", str(size), "--store", store, "--way", way,
                             *["--isolated"] * isolated],
                            env=environment)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=0, help="processes; all GPUs if not given")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    parser.add_argument("--isolated", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--way", default="own", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        return rank_main(options.rank, options.ranks, options.store, options.isolated, options.way)
    import torch
    size = options.ranks or torch.cuda.device_count()
    if size < 2 or torch.cuda.device_count() < size or torch.cuda.get_device_capability()[0] != 9:
        print(f"SKIPPED: {torch.cuda.device_count()} GPUs here, wanted {max(size, 2)} Hopper GPUs")
        return 77
    worst = 0
    for isolated, way in WAYS:
        with tempfile.TemporaryDirectory() as folder:
            processes = [start(rank, size, f"{folder}/store", isolated, way) for rank in range(size)]
            codes = [process.wait(timeout=300) for process in processes]
        print(f"{'one GPU visible to each' if isolated else 'all GPUs visible'}, memory {way}: exit codes {codes}", flush=True)
        worst = max(worst, *(1 if code else 0 for code in codes))
    return worst


if __name__ == "__main__":
    sys.exit(main())
