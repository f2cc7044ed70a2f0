"""One process of test_vllm.py: python vllm_rank.py tp|dp RANK FOLDER PACKAGE EXAMPLES OUT. Writes what it found as JSON."""

import json
import pathlib
import sys

mode, rank, folder, package, examples, out = sys.argv[1], int(sys.argv[2]), *sys.argv[3:]
sys.path.insert(0, package)

import monomoe.torch  # noqa: E402
import monomoe.vllm  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import vllm_layers as stand  # noqa: E402
from vllm.config import ParallelConfig  # noqa: E402
from vllm.distributed import init_distributed_environment, initialize_model_parallel  # noqa: E402

monomoe.vllm.register()
parallel = ParallelConfig(tensor_parallel_size=2 if mode == "tp" else 1, enable_expert_parallel=True, distributed_executor_backend="mp")
if mode == "dp":
    parallel.data_parallel_size, parallel.data_parallel_rank = 2, rank
checkpoint = pathlib.Path(examples) / "tiny-moe-nvfp4"
config = stand.config_of(checkpoint, parallel=parallel)
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
with stand.set_current_vllm_config(config):
    init_distributed_environment(2, rank, "env://", rank, "gloo")
    initialize_model_parallel(parallel.tensor_parallel_size)
model = stand.load(checkpoint, 2, config)
method = model.ffn.experts.routed_experts.quant_method
alone = monomoe.torch.MoELayer.from_checkpoint(checkpoint, 2, max_tokens=64, context=monomoe.Context("cpu"))
generator = torch.Generator().manual_seed(3)
same = []
for counts in ([17, 17], [1, 1], [2, 2]) if mode == "tp" else ([17, 0], [0, 9], [3, 4]):
    x = torch.randn((max(counts), 256), generator=generator).bfloat16()[:counts[rank]]
    y, ids, weights = stand.forward(model, config, x)
    same.append(torch.equal((y + 0.0).view(torch.int16), (alone(x, ids, weights) + 0.0).view(torch.int16)))  # a sum over ranks has no -0
pathlib.Path(out).write_text(json.dumps({"same": same, "experts": len(method.share.ids), "capacity": method.share.workspace.capacity}))
dist.barrier()
