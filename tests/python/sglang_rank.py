"""One process of test_sglang.py: python sglang_rank.py serve|eplb|other RANK SIZE SCRATCH BUILD_DIR OUT. Writes what it found as JSON."""

import json
import logging
import pathlib
import sys

import sglang_world as world

mode, rank, size, scratch, build_dir, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *map(pathlib.Path, sys.argv[4:])
world.add_paths(build_dir, scratch / f"rank{rank}")
logging.basicConfig(level=logging.INFO)


def other():
    """What the plugin did in a process that serves with another backend."""
    import sglang.srt.layers.moe as moe
    import sglang.srt.runtime_context as runtime
    from sglang.srt.plugins.hook_registry import HookRegistry
    from sglang.srt.server_args import ServerArgs
    server_args = ServerArgs(model_path="dummy", device="cpu")
    server_args.resolve_once()
    runtime.publish(server_args, role="scheduler", ranks=runtime.SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0))
    moe.initialize_moe_config()
    from sglang.srt.layers.moe import mega_moe
    return {"patched": sorted(HookRegistry._patched), "original": not hasattr(mega_moe.run_mega_routed_experts, "__wrapped__"),
            "imported": sorted(name for name in sys.modules if name == "monomoe.sglang")}


def serve():
    """This rank's share of two layers, against all experts in this process."""
    import monomoe
    import numpy as np
    import torch
    from layers import stacked, tokens
    from monomoe.sglang.experts import packed_of
    from sglang.srt.layers.moe import mega_moe

    world.serve(scratch / "store", rank, size)
    rng = np.random.default_rng(7)
    same, packed = {}, []
    mine = [slice(0, 11), slice(11, 11)][rank]
    for name, kind in (("target", "nvfp4"), ("draft", "mxfp4")):
        arrays, _ = stacked(rng, kind, world.EXPERTS, world.HIDDEN, world.INTER)
        scales = (np.full((world.EXPERTS, 2), 1 / 64, np.float32), np.full(world.EXPERTS, 1 / 64, np.float32)) if kind == "nvfp4" else (None, None)
        experts = world.load_experts(world.new_experts(kind, prefix=f"{name}.experts"), world.checkpoint_tensors(kind, arrays, *scales))
        packed.append((packed_of(experts), experts))
        x, ids, weights = tokens(rng, 11, world.HIDDEN, world.EXPERTS, world.TOPK)
        alone = monomoe.Weights(monomoe.Context("cpu"), monomoe.StackedExperts(kind, *arrays, *scales), swiglu_limit=10.0)
        want = monomoe.forward(alone, monomoe.Workspace(alone, topk=world.TOPK, capacity=11), x, ids, weights)

        def call(part, bucket=0):
            """bucket: rows of a graph's buffers, more than tokens; what is behind those is anything, and its ids are -1."""
            given = [world.to_torch(array[part]) for array in (x, ids, weights)]
            used = part.stop - part.start
            count = max(used, bucket)
            for i, filler in enumerate((float("nan"), -1, float("nan"))):
                given[i] = torch.cat((given[i], torch.full((count - used, given[i].shape[1]), filler, dtype=given[i].dtype)))
            y = mega_moe.run_mega_routed_experts(experts, given[0], given[1] if count else None, given[2] if count else None, hidden_size=world.HIDDEN,
                                                 intermediate_size=world.INTER, top_k=world.TOPK, num_tokens=count, activation_clamp=10.0)
            return y[:used].view(torch.int16).numpy().tobytes() == want[part].tobytes() and not y[used:].any()

        same[name] = call(mine)
    same["idle"] = call([slice(0, 0), slice(4, 11)][rank])
    same["buckets"] = all((call([slice(0, 11), slice(3, 5)][rank], [16, 8][rank]), call([slice(2, 3), slice(4, 4)][rank], [2, 64][rank])))
    same["again"] = call(mine)
    return {"same": same, "local": packed[0][1].num_local_experts, "shared": packed[0][0].layer.workspace is packed[1][0].layer.workspace}


def eplb():
    """SGLang's own balancer around two of its DeepSeek blocks, this rank's share of them."""
    from types import SimpleNamespace

    import monomoe
    import numpy as np
    import torch
    from layers import stacked
    from monomoe.sglang import experts as plugin
    from sglang.srt.eplb import expert_distribution, expert_location
    from sglang.srt.eplb.eplb_manager import EPLBManager
    from sglang.srt.eplb.expert_location_updater import ExpertLocationUpdater
    from sglang.srt.models.deepseek_v2 import DeepseekV2ForCausalLM
    from sglang.srt.utils.common import LazyValue

    world.serve(scratch / "store", rank, size, enable_eplb=True, ep_num_redundant_experts=2, eplb_rebalance_num_iterations=2,
                # what SGLang makes of these for a model that it finds
                expert_distribution_recorder_mode="stat", expert_distribution_recorder_buffer_size=2, ep_dispatch_algorithm="static")
    expert_location.ModelConfigForExpertLocation.from_model_config = staticmethod(
        lambda model_config: DeepseekV2ForCausalLM.get_model_config_for_expert_location(model_config.hf_config))
    expert_distribution.get_device, torch.cpu.empty_cache = lambda: "cpu", lambda: None  # SGLang's balancer knows accelerators only
    blocks = [world.deepseek_block("nvfp4", layer) for layer in range(2)]
    model_config = SimpleNamespace(hf_config=blocks[0][1])
    metadata = expert_location.compute_initial_expert_location_metadata(model_config, moe_ep_rank=rank)
    expert_location.set_global_expert_location_metadata(metadata)
    recorder = expert_distribution.ExpertDistributionRecorder.init_new(metadata, rank)
    expert_distribution.set_global_expert_distribution_recorder(recorder)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(moe for moe, _ in blocks)
            self._moved = LazyValue(lambda: {layer: moe.get_moe_weights() for layer, moe in enumerate(self.layers)})

        @property
        def routed_experts_weights_of_layer(self):  # as in DeepseekV2ForCausalLM
            return self._moved.value

    model, rng, alone = Model(), np.random.default_rng(9), []
    for moe in model.layers:
        arrays, _ = stacked(rng, "nvfp4", world.EXPERTS, world.HIDDEN, world.INTER)
        scales = (rng.uniform(1 / 96, 1 / 32, (world.EXPERTS, 2)).astype(np.float32), rng.uniform(1 / 96, 1 / 32, world.EXPERTS).astype(np.float32))
        world.load_block(moe, rng, world.checkpoint_tensors("nvfp4", arrays, *scales))
        weights = monomoe.Weights(monomoe.Context("cpu"), monomoe.StackedExperts("nvfp4", *arrays, *scales), swiglu_limit=10.0)
        alone.append((weights, monomoe.Workspace(weights, topk=world.TOPK, capacity=11), torch.from_numpy(np.asarray(weights.packed_experts()))))
    plugin.after_loading(None, SimpleNamespace(model=model, is_draft_worker=False))
    updater = ExpertLocationUpdater()
    manager = EPLBManager(model_config=model_config, get_model=lambda: model, get_expert_location_updater=lambda: updater,
                          get_expert_backup_client=lambda: None, get_weight_updater=lambda: SimpleNamespace(update_weights_from_disk=None))
    chosen = []
    for moe in model.layers:
        moe.topk.register_forward_hook(lambda module, given, out: chosen.append(out))
    same, step = [], iter(range(100))

    def forward_pass(counts):
        """Both layers on this rank's tokens, each against all experts in this process under their logical numbers."""
        x = world.to_torch(rng.standard_normal((max(counts), world.HIDDEN)).astype(np.float32)).bfloat16()[:counts[rank]]
        found = []
        with recorder.with_forward_pass(next(step), None):
            for layer, moe in enumerate(model.layers):
                chosen.clear()
                with recorder.with_current_layer(layer):
                    y = moe(x)
                if len(x) == 0:
                    found.append(y.shape == x.shape)
                    continue
                ids = metadata.physical_to_logical_map[layer][chosen[0].topk_ids.long()]
                routed = monomoe.forward(*alone[layer][:2], x, ids, chosen[0].topk_weights.float() * 1.5)
                found.append(torch.equal((routed + x * 2).view(torch.int16), y.view(torch.int16)))
        return found

    def rows_fit():
        held = slice(4 * rank, 4 * rank + 4)
        return [torch.equal(plugin.packed_of(moe.experts).layer.packed_experts(), rows[metadata.physical_to_logical_map[layer][held]])
                for layer, (moe, (_, _, rows)) in enumerate(zip(model.layers, alone))]

    maps, rows = [metadata.physical_to_logical_map.tolist()], rows_fit()
    before = [getattr(moe.experts, plugin.MOVED).clone() for moe in model.layers]
    for counts in ((11, 7), (5, 0), (11, 7)):  # the third one is rebalanced before
        same += forward_pass(counts)
        manager.on_forward_pass_end()
    maps.append(metadata.physical_to_logical_map.tolist())
    rows += rows_fit()
    changed = [int((getattr(moe.experts, plugin.MOVED) != old).any(dim=1).sum()) for moe, old in zip(model.layers, before)]
    expected = [sum(a != b for a, b in zip(*(m[layer][4 * rank:4 * rank + 4] for m in maps))) for layer in range(2)]
    same += forward_pass((9, 11))
    for moe, old in zip(model.layers, before):
        getattr(moe.experts, plugin.MOVED).copy_(old)
    stale = all(forward_pass((9, 11)))
    return {"maps": maps, "rows": rows, "same": same, "changed": changed, "expected_changes": expected, "stale": stale}


import torch  # noqa: E402

with torch.inference_mode():
    world.load_plugins()
    found = {"serve": serve, "eplb": eplb, "other": other}[mode]()
out.write_text(json.dumps(found))
