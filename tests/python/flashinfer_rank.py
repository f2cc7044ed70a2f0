"""One process of test_flashinfer.py: python flashinfer_rank.py RANK STORE PACKAGE OUT. Writes what it found as JSON."""

import json
import pathlib
import sys

rank, store, package, out = int(sys.argv[1]), *sys.argv[2:]
sys.path.insert(0, package)

import flashinfer.moe_ep as moe_ep  # noqa: E402
import monomoe.flashinfer  # noqa: E402
import monomoe.torch  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
generator = torch.Generator().manual_seed(8)
codes13 = (torch.randn((6, 256, 256), generator=generator) * 60).to(torch.float8_e4m3fn)
codes2 = (torch.randn((6, 256, 128), generator=generator) * 60).to(torch.float8_e4m3fn)
scale13, scale2 = torch.full((6, 2, 2), 0.001), torch.full((6, 2, 1), 0.001)
share = slice(rank * 3, rank * 3 + 3)
layer = moe_ep.MoEEpLayer(moe_ep.BootstrapConfig(world_size=2, rank=rank, process_group=dist.group.WORLD), moe_ep.FleetParams(6, 16, 256),
                          moe_ep.MoEWeightPack(codes13[share], codes2[share], scale13[share], scale2[share]),
                          backend=moe_ep.MegaConfig(monomoe.flashinfer.MonomoeMegaMoeConfig("fp8", 128, 2, gate_up_clamp=10.0, backend="cpu")))
alone = monomoe.torch.MoELayer.from_tensors("fp8", codes13, scale13, codes2, scale2, topk=2, max_tokens=16, swiglu_limit=10.0, context=monomoe.Context("cpu"))
found = []
for counts in ([9, 0], [0, 16], [3, 3]):
    x = torch.randn((16, 256), generator=generator).bfloat16()[:counts[rank]]
    ids = torch.randint(-1, 6, (16, 2), generator=generator)[:counts[rank]].int()
    weights = torch.rand((16, 2), generator=generator)[:counts[rank]]
    y = layer(moe_ep.MoEEpTensors(x, ids, weights))
    found.append(torch.equal(y.view(torch.int16), alone(x, ids, weights).view(torch.int16)))
pathlib.Path(out).write_text(json.dumps(found))
layer.destroy()
dist.barrier()
dist.destroy_process_group()
