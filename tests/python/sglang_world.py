"""Real, unmodified SGLang on the CPU with the plugin in it, for test_sglang.py and its processes. The machine's facts are what is pretended:
SGLang's own override_platform says Hopper, and its flags name the runner that a Hopper GPU would take."""

import functools
import pathlib
import sys
import tomllib

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
HIDDEN, INTER, EXPERTS, TOPK = 256, 128, 6, 2


def add_paths(build_dir, scratch):
    """The built package with the entry points that pyproject.toml gives its wheel, and SGLang's packages behind everything else."""
    with open(REPOSITORY / "pyproject.toml", "rb") as file:
        groups = tomllib.load(file)["project"]["entry-points"]
    info = pathlib.Path(scratch) / "installed" / "monomoe-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: monomoe\nVersion: 0\n")
    text = "\n".join(f"[{group}]\n" + "\n".join(f"{name} = {value}" for name, value in points.items()) for group, points in groups.items())
    (info / "entry_points.txt").write_text(text + "\n")
    package = str(pathlib.Path(build_dir) / "python")
    sys.path[:0] = [path for path in (str(info.parent), package) if path not in sys.path]
    sys.path.append(str(pathlib.Path(build_dir) / "sglang-packages"))


def load_plugins():
    from sglang.srt.plugins import load_plugins as load
    load()


def serve(store, rank=0, size=1, **arguments):
    """What a scheduler process does up to building the model, for `--moe-a2a-backend megamoe`."""
    import sglang.srt.layers.moe as moe
    import sglang.srt.runtime_context as runtime
    from sglang.srt.distributed import parallel_state
    from sglang.srt.server_args import ServerArgs

    hopper = runtime.override_platform(is_cuda=True, is_sm90=True)
    given = dict(model_path="dummy", moe_a2a_backend="megamoe", device="cpu", tp_size=size, ep_size=size) | arguments
    server_args = ServerArgs(**given)
    with hopper:
        server_args.resolve_once()
        runtime.publish(server_args, role="test", ranks=runtime.SpawnRanks(world_rank=rank, dp_rank=None, gpu_id=rank))
        moe.initialize_moe_config()
    parallel_state.init_distributed_environment(backend="gloo", world_size=size, rank=rank, local_rank=rank, distributed_init_method=f"file://{store}")
    parallel_state.init_model_parallel_group = functools.partial(parallel_state.init_model_parallel_group, use_pynccl=False, use_custom_allreduce=False)
    parallel_state.initialize_model_parallel(backend="gloo")  # its groups, without the communicators that need GPUs
    hopper.install()


def quantisation(kind, **changes):
    """The configuration that SGLang makes of a DeepSeek-V4 checkpoint with experts of a format."""
    from sglang.srt.layers.quantization.fp8 import Fp8Config
    from sglang.srt.layers.quantization.modelopt_quant import HybridFp8NvFp4Config, ModelOptFp4Config

    fp8 = Fp8Config(**dict(is_checkpoint_fp8_serialized=True, activation_scheme="dynamic", weight_block_size=[128, 128]) | changes)
    fp8.is_fp4_experts = kind != "fp8"
    if kind != "nvfp4":
        return fp8
    nvfp4 = ModelOptFp4Config(is_checkpoint_nvfp4_serialized=True, group_size=16, exclude_modules=["mtp.*", "model.decoder.*"])
    return HybridFp8NvFp4Config(fp8_config=fp8, nvfp4_config=nvfp4)


def as_on_hopper(kind):
    """Under runner auto SGLang asks the GPU before it takes NVFP4 experts; marlin takes the same branch without asking."""
    from sglang.srt.layers.moe.utils import MoeRunnerBackend
    from sglang.srt.runtime_context import get_flags
    get_flags().moe.runner_backend = MoeRunnerBackend.MARLIN if kind == "nvfp4" else MoeRunnerBackend.AUTO


def new_experts(kind, limit=10.0, prefix="model.layers.3.mlp.experts", quant_config=None, **changes):
    import torch
    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE

    as_on_hopper(kind)
    arguments = dict(num_experts=EXPERTS, hidden_size=HIDDEN, intermediate_size=INTER, layer_id=3, top_k=TOPK, params_dtype=torch.bfloat16,
                     prefix=prefix, swiglu_limit=limit, routed_scaling_factor=1.5) | changes
    return FusedMoE(quant_config=quantisation(kind) if quant_config is None else quant_config, **arguments)


def deepseek_block(kind, layer_id=1, **changes):
    """DeepseekV2MoE, which DeepSeek-V3 and V4 use: gate, top-k, scaling factor and shared expert around the hooked call. And its configuration."""
    from types import SimpleNamespace

    import torch
    from sglang.srt.models.deepseek_v2 import DeepseekV2MoE

    given = dict(routed_scaling_factor=1.5, n_shared_experts=1, n_routed_experts=EXPERTS, num_experts_per_tok=TOPK, hidden_size=HIDDEN,
                 moe_intermediate_size=INTER, hidden_act="silu", norm_topk_prob=True, n_group=1, topk_group=1, scoring_func="sigmoid",
                 topk_method="noaux_tc", swiglu_limit=10.0, model_type="deepseek_v3", quantization_config=None, num_hidden_layers=2)
    config = SimpleNamespace(**given | changes)
    as_on_hopper(kind)
    torch.set_default_dtype(torch.bfloat16)
    try:
        return DeepseekV2MoE(config, layer_id=layer_id, quant_config=quantisation(kind), prefix=f"model.layers.{layer_id}.mlp"), config
    finally:
        torch.set_default_dtype(torch.float32)


def load_block(moe, rng, tensors):
    moe.gate.weight.copy_(to_torch(rng.standard_normal((EXPERTS, HIDDEN)).astype("float32")).bfloat16())
    moe.gate.e_score_correction_bias.zero_()
    moe.shared_experts = doubled()
    load_experts(moe.experts, tensors)
    return moe


def doubled():
    """In place of the shared expert's dense kernels, which need a GPU."""
    import torch

    class Doubled(torch.nn.Module):
        def forward(self, x, *args, **kwargs):
            return x * 2

    return Doubled()


def checkpoint_tensors(kind, arrays, globals13=None, globals2=None):
    """One layer's expert tensors by their names in a checkpoint: NumPy arrays of stacked()."""
    import numpy as np
    w13, s13, w2, s2 = arrays
    scale = "weight_scale" if kind == "nvfp4" else "scale"
    found = {}
    for expert in range(len(w2)):
        rows = s13.shape[1] // 2
        for half, name in enumerate(("w1", "w3")):
            found[f"{expert}.{name}.weight"] = w13[expert, half * INTER:(half + 1) * INTER]
            found[f"{expert}.{name}.{scale}"] = s13[expert, half * rows:(half + 1) * rows]
            if globals13 is not None:
                found[f"{expert}.{name}.weight_scale_2"] = np.float32(globals13[expert, half]).reshape(())
        found[f"{expert}.w2.weight"], found[f"{expert}.w2.{scale}"] = w2[expert], s2[expert]
        if globals2 is not None:
            found[f"{expert}.w2.weight_scale_2"] = np.float32(globals2[expert]).reshape(())
    return found


def to_torch(array):
    import numpy as np
    import torch
    names = {"bfloat16": torch.bfloat16, "float8_e4m3fn": torch.float8_e4m3fn, "float8_e8m0fnu": torch.float8_e8m0fnu}
    if array.dtype.name in names:
        bits = np.ascontiguousarray(array).view(np.uint16 if array.dtype.itemsize == 2 else np.uint8)
        return torch.from_numpy(bits.copy()).view(names[array.dtype.name])
    return torch.from_numpy(np.ascontiguousarray(array).copy())


def load_experts(experts, tensors):
    """As the models' load_weights do it, then what the loader does afterwards."""
    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE

    parameters = dict(experts.named_parameters())
    mapping = FusedMoE.make_expert_params_mapping(ckpt_gate_proj_name="w1", ckpt_down_proj_name="w2", ckpt_up_proj_name="w3", num_experts=EXPERTS)
    loaded = 0
    for name, array in tensors.items():
        name = f"experts.{name}"
        for parameter, weight, expert, shard in mapping:
            if weight in name:
                target = name.replace(weight, parameter).removeprefix("experts.")
                target = target.replace("_scale", "_weight_scale_inv") if target.endswith("_scale") and target not in parameters else target
                parameters[target].weight_loader(parameters[target], to_torch(array), name, shard_id=shard, expert_id=expert)
                loaded += 1
    assert loaded == len(tensors)
    experts.quant_method.process_weights_after_loading(experts)
    return experts
