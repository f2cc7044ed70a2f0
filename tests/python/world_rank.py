"""One process of test_distributed.py: python world_rank.py RANK SIZE STORE PACKAGE EXAMPLES OUT. Writes what it found as JSON."""

import json
import pathlib
import sys

rank, size, store, package, examples, out = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
sys.path.insert(0, package)

import monomoe  # noqa: E402
import monomoe.torch  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from monomoe.compat import deep_gemm  # noqa: E402
from monomoe.torch import distributed  # noqa: E402

dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
generator = torch.Generator().manual_seed(5)
ROWS = [7, 0, 11][:size]
x = torch.randn((sum(ROWS), 256), generator=generator).bfloat16()
ids = torch.randint(-1, 32, (sum(ROWS), 4), generator=generator)
weights = torch.rand((sum(ROWS), 4), generator=generator)
mine = slice(sum(ROWS[:rank]), sum(ROWS[:rank + 1]))
found = {}


def same(a, b):
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


# A checkpoint's layers on one workspace, against all experts in this process.
context = distributed.join(backend="cpu", threads=1)
alone = monomoe.torch.MoELayer.from_checkpoint(f"{examples}/tiny-moe-nvfp4", 0, max_tokens=sum(ROWS), context=monomoe.Context("cpu"))
layer = monomoe.torch.MoELayer.from_checkpoint(f"{examples}/tiny-moe-nvfp4", 0, max_tokens=11, context=context)
second = monomoe.torch.MoELayer.from_checkpoint(f"{examples}/tiny-moe-nvfp4", 1, context=context, workspace=layer.workspace)
want = alone(x, ids, weights)[mine]
found["checkpoint"] = all(same(layer(x[mine], ids[mine], weights[mine]), want) for _ in range(3))
second(x[mine], ids[mine], weights[mine])
compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
found["compiled"] = same(compiled(x[mine], ids[mine], weights[mine]), want)

# Stacked tensors of this rank's experts, directly and through an entry point of another package.
experts, hidden, inter = 6, 256, 128
codes13 = (torch.randn((experts, 2 * inter, hidden), generator=generator) * 60).to(torch.float8_e4m3fn)
codes2 = (torch.randn((experts, hidden, inter), generator=generator) * 60).to(torch.float8_e4m3fn)
scale13, scale2 = torch.full((experts, 2, 2), 0.001), torch.full((experts, 2, 1), 0.001)
routed = torch.where(ids >= 0, ids % experts, ids)
whole = monomoe.torch.MoELayer.from_tensors("fp8", codes13, scale13, codes2, scale2, topk=4, max_tokens=sum(ROWS), swiglu_limit=10.0,
                                            context=monomoe.Context("cpu"))
want = whole(x, routed, weights)[mine]
share = slice(rank * experts // size, (rank + 1) * experts // size)
part = codes13[share], scale13[share], codes2[share], scale2[share]
local = monomoe.torch.MoELayer.from_tensors("fp8", *part, topk=4, max_tokens=11, swiglu_limit=10.0, context=context, num_experts=experts, tag=7)
found["stacked"] = same(local(x[mine], routed[mine], weights[mine]), want)

buffer = deep_gemm.get_symm_buffer_for_mega_moe(dist.group.WORLD, experts, 11, 4, hidden, inter)
l1, l2 = deep_gemm.transform_weights_for_mega_moe_sm90(part[:2], part[2:])
deep_gemm.mega_moe_pre_dispatch_sm90(x[mine], routed[mine].int(), weights[mine], buffer.x, buffer.x_sf, buffer.topk_idx, buffer.topk_weights, ROWS[rank])
y, stats = torch.empty((ROWS[rank], hidden), dtype=torch.bfloat16), torch.zeros(experts // size, dtype=torch.int32)
deep_gemm.fp8_mega_moe(y, l1, l2, buffer, cumulative_local_expert_recv_stats=stats, activation_clamp=10.0)
found["deep_gemm"] = same(y, want)
found["stats"] = torch.equal(stats, torch.bincount(routed[routed >= 0], minlength=experts).int()[share])

# A rank that is refused does not leave the others waiting.
try:
    layer(x[mine], torch.full_like(ids[mine], 99) if rank == 0 else ids[mine], weights[mine])
    found["refusal"] = "none"
except monomoe.Error as error:
    found["refusal"] = type(error).__name__
found["after"] = same(layer(x[mine], ids[mine], weights[mine]), alone(x, ids, weights)[mine])

# Different capacities are found while the workspace is made.
try:
    monomoe.Workspace(layer.weights, topk=4, capacity=11 + 64 * rank)
    found["capacity"] = "none"
except monomoe.Error as error:
    found["capacity"] = str(error)
found["how"] = context.world.memory.how
found["files"] = [str(p) for p in pathlib.Path("/dev/shm").glob(f"*{__import__('os').getpid()}*")]
pathlib.Path(out).write_text(json.dumps(found))
dist.barrier()
dist.destroy_process_group()
