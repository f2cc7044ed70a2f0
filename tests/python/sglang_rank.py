"""One process of test_sglang.py: python sglang_rank.py serve|other RANK SIZE SCRATCH BUILD_DIR OUT. Writes what it found as JSON."""

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

        def call(part):
            given = [world.to_torch(array[part]) for array in (x, ids, weights)]
            count = part.stop - part.start
            y = mega_moe.run_mega_routed_experts(experts, given[0], given[1] if count else None, given[2] if count else None, hidden_size=world.HIDDEN,
                                                 intermediate_size=world.INTER, top_k=world.TOPK, num_tokens=count, activation_clamp=10.0)
            return y.view(torch.int16).numpy().tobytes() == want[part].tobytes()

        same[name] = call(mine)
    same["idle"] = call([slice(0, 0), slice(4, 11)][rank])
    same["again"] = call(mine)
    return {"same": same, "local": packed[0][1].num_local_experts, "shared": packed[0][0].layer.workspace is packed[1][0].layer.workspace}


import torch  # noqa: E402

with torch.inference_mode():
    world.load_plugins()
    found = serve() if mode == "serve" else other()
out.write_text(json.dumps(found))
