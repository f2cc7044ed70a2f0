"""One process of test_vllm.py: python vllm_rank.py tp|dp|eplb|eplb-async RANK FOLDER PACKAGE EXAMPLES OUT. Writes what it found as JSON."""

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
from vllm.config.parallel import EPLBConfig  # noqa: E402
from vllm.distributed import init_distributed_environment, initialize_model_parallel  # noqa: E402

monomoe.vllm.register()
parallel = ParallelConfig(tensor_parallel_size=2 if mode == "tp" else 1, enable_expert_parallel=True, distributed_executor_backend="mp")
if mode != "tp":
    parallel.data_parallel_size, parallel.data_parallel_rank = 2, rank
checkpoint = pathlib.Path(examples) / "tiny-moe-nvfp4"
config = stand.config_of(checkpoint, parallel=parallel)
parallel = config.parallel_config
if mode.startswith("eplb"):  # only now, as a configuration that is being made wants a GPU for it
    parallel.enable_eplb = True
    parallel.eplb_config = EPLBConfig(window_size=2, step_interval=4, num_redundant_experts=4, use_async=False, communicator="torch_nccl")
    parallel.eplb_config.use_async = mode == "eplb-async"  # torch_nccl is gloo on the CPU, which async mode may use
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
with stand.set_current_vllm_config(config):
    init_distributed_environment(2, rank, "env://", rank, "gloo")
    initialize_model_parallel(parallel.tensor_parallel_size)


def alone(layer):
    return monomoe.torch.MoELayer.from_checkpoint(checkpoint, layer, max_tokens=64, context=monomoe.Context("cpu"))


def bits(y):
    return (y + 0.0).view(torch.int16)  # a sum over ranks has no -0


def slices():
    """One layer: batches of different sizes on the ranks, against all experts in this process."""
    model, one = stand.load(checkpoint, 2, config), alone(2)
    method = model.ffn.experts.routed_experts.quant_method
    generator, same = torch.Generator().manual_seed(3), []
    for counts in ([17, 17], [1, 1], [2, 2]) if mode == "tp" else ([17, 0], [0, 9], [3, 4]):
        x = torch.randn((max(counts), 256), generator=generator).bfloat16()[:counts[rank]]
        y, ids, weights = stand.forward(model, config, x)
        same.append(torch.equal(bits(y), bits(one(x, ids, weights))))
    return {"same": same, "experts": len(method.share.ids), "capacity": method.share.workspace.capacity}


def eplb():
    """vLLM's balancer over two of its blocks, 32 experts and 4 redundant ones: it records, rearranges, moves and maps."""
    import contextlib
    import threading
    from types import SimpleNamespace

    from vllm.distributed.eplb import async_worker, eplb_communicator, eplb_state, rebalance_execute
    from vllm.models.deepseek_v4.nvidia.model import DeepseekV4MixtureOfExperts

    # What vLLM's balancer has a driver for: times and streams, and pinned memory.
    torch.Event = lambda **_: SimpleNamespace(record=lambda *_: None, wait=lambda *_: None, synchronize=lambda: None, elapsed_time=lambda other: 0.0)
    eplb_state.PIN_MEMORY = False
    for module in (async_worker, eplb_communicator, rebalance_execute):
        module.device_stream = lambda stream: contextlib.nullcontext()
    numbers = (1, 2)
    blocks, ones = [stand.load(checkpoint, number, config) for number in numbers], [alone(number) for number in numbers]

    class Model(DeepseekV4MixtureOfExperts):
        def __init__(self):
            self.moe_mlp_layers, self.moe_layers = [block.ffn for block in blocks], [block.ffn.experts for block in blocks]
            self.num_moe_layers, self.num_expert_groups = len(blocks), 1
            self.extract_moe_parameters(blocks[0].ffn)

    model, described = Model(), SimpleNamespace(compute_hash=lambda: "tiny", model="tiny")
    balancer = eplb_state.EplbState(parallel, torch.device("cpu"))
    with stand.set_current_vllm_config(config):
        balancer.add_model(model, described)
    state = balancer.model_states["tiny"]
    if balancer.is_async:
        stream = SimpleNamespace(synchronize=lambda: None)
        threading.Thread(target=async_worker.transfer_run_periodically, args=(balancer, stream), daemon=True).start()
    generator, same = torch.Generator().manual_seed(4), []

    def forward_pass(counts):
        x = torch.randn((max(counts), 256), generator=generator).bfloat16()[:counts[rank]]
        balancer.prepare_forward(described, len(x))
        found = []
        for block, one in zip(blocks, ones):
            y, ids, weights = stand.forward(block, config, x)
            found.append(torch.equal(bits(y), bits(one(x, ids, weights))))
        return found

    def rows_fit():
        held = slice(18 * rank, 18 * rank + 18)
        return [torch.equal(block.ffn.experts.routed_experts.quant_method.layer.packed_experts(), one.packed_experts()[mapping[held]])
                for block, one, mapping in zip(blocks, ones, state.physical_to_logical_map)]

    maps, rows = [state.physical_to_logical_map.tolist()], rows_fit()
    before = [weights[0].clone() for weights in model.expert_weights]
    passes = 0
    # The same on both ranks. In async mode a layer moves after a pass, when its rows are there on both.
    while state.physical_to_logical_map.tolist() == maps[0] or state.rebalanced:
        same += forward_pass([[17, 5], [9, 0], [0, 33]][passes % 3])
        balancer.step()
        passes += 1
    same += forward_pass([17, 5])
    maps.append(state.physical_to_logical_map.tolist())
    rows += rows_fit()
    for weights, old in zip(model.expert_weights, before):
        weights[0].copy_(old)
    return {"maps": maps, "rows": rows, "same": same, "passes": passes, "stale": all(forward_pass([17, 33]))}


pathlib.Path(out).write_text(json.dumps(eplb() if mode.startswith("eplb") else slices()))
dist.barrier()
