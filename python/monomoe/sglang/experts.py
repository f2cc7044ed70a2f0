"""SGLang's expert tensors of one MoE layer, packed into a layer of monomoe; the tensors are freed then.

With --enable-eplb SGLang moves experts between ranks while it serves: rows of every parameter of a FusedMoE whose first dimension is its local experts.
The packed experts are such a parameter then, the only one, so its moves carry them as they are.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

import torch

from monomoe.errors import UnavailableError, UsageError
from monomoe.layer import StackedExperts, Weights
from monomoe.sglang.ranks import ranks_of
from monomoe.torch.formats import exponent_bytes
from monomoe.torch.layer import MoELayer

_PACKED = "_monomoe_packed"  # on a FusedMoE: its Packed
_WANTED = "_monomoe_wanted"  # on a FusedMoE that was built while the backend was megamoe
MOVED = "packed_experts"  # the parameter that SGLang moves


class Packed(NamedTuple):
    """A FusedMoE's experts as the library holds them."""

    layer: MoELayer
    swiglu_limit: float | None
    name: str


def packed_of(experts: Any) -> Packed | None:
    return getattr(experts, _PACKED, None)


def name_of(experts: Any) -> str:
    return getattr(experts, "layer_name", "") or f"layer {getattr(experts, 'layer_id', '?')}"


def after_construction(result: Any, experts: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER FusedMoE.__init__: experts that cannot be served are told before the checkpoint is read."""
    from sglang.srt.layers.moe.utils import get_moe_a2a_backend

    if get_moe_a2a_backend().is_megamoe():
        object.__setattr__(experts, _WANTED, True)
        problems = _problems(experts)
        if problems:
            draft = ("; for the experts of a draft model --speculative-moe-a2a-backend none gives them back to SGLang"
                     if getattr(experts, "is_draft", False) else "")
            raise UnavailableError(f"{name_of(experts)}: {'; '.join(problems)}; serve this model with another --moe-a2a-backend{draft}")
        _fill_what_is_not_loaded(experts)


def _fill_what_is_not_loaded(experts: Any) -> None:
    """A draft may have redundant experts and no placement: SGLang sends no tokens to them and loads nothing into them. Any legal values will do."""
    from sglang.srt.runtime_context import get_exec

    redundant = get_exec().moe.ep_num_redundant_experts
    if not experts.is_draft or not redundant:
        return
    first = max(experts.num_experts - redundant - experts.moe_ep_rank * experts.num_local_experts, 0)  # of those on this rank
    for name, parameter in experts.named_parameters(recurse=False):
        if name.startswith(("w13_", "w2_")):
            parameter.data[first:].view(torch.uint8).zero_()
            if "scale" in name and parameter.dtype is torch.float32:
                parameter.data[first:] = 1


def _problems(experts: Any) -> list[str]:
    """What the layer does not compute, one sentence each."""
    config, method = experts.moe_runner_config, experts.quant_method
    found = [
        (not _known_format(method), f"its experts are of {_described(method)}, wanted FP8 in blocks of 128x128, ModelOpt NVFP4 or MXFP4"),
        (not config.is_gated or config.activation != "silu" or config.gemm1_alpha is not None or config.gemm1_clamp_limit is not None,
         f"its activation is {config.activation}{'' if config.is_gated else ' without a gate'}, wanted plain SwiGLU"),
        (config.apply_router_weight_on_input, "it weighs tokens before the experts, wanted behind them"),
        (experts.with_bias, "its experts have biases, wanted none"),
        (experts.moe_tp_size != 1, f"its experts are cut into {experts.moe_tp_size} parts, wanted whole ones: --ep-size equal to --tp-size"),
        (experts.num_local_experts * experts.moe_ep_size != experts.num_experts,
         f"its {experts.num_experts} experts are not {experts.num_local_experts} on each of {experts.moe_ep_size} ranks"),
        (experts.params_dtype != torch.bfloat16, f"its activations are {experts.params_dtype}, wanted bfloat16"),
        (not experts.top_k, "it does not say how many experts a token has"),
    ]
    return [sentence for bad, sentence in found if bad]


def _known_format(method: Any) -> bool:
    from sglang.srt.layers.quantization.fp8 import Fp8MoEMethod
    from sglang.srt.layers.quantization.modelopt_quant import ModelOptNvFp4FusedMoEMethod
    from sglang.srt.layers.quantization.mxfp4 import Mxfp4MoEMethod

    inner = getattr(method, "_fp8", method)  # wrappers for other runners leave the work to it
    if type(inner) is Fp8MoEMethod:
        fp8 = inner.block_quant and not inner.use_mxfp8 and list(inner.weight_block_size or ()) == [128, 128]
        return bool(inner.is_fp4_expert or fp8)
    if type(inner) is ModelOptNvFp4FusedMoEMethod:
        return inner.quant_config.is_checkpoint_nvfp4_serialized and inner.quant_config.group_size == 16
    return type(inner) is Mxfp4MoEMethod


def _described(method: Any) -> str:
    block = getattr(method, "weight_block_size", None)
    return type(method).__name__ + (f" with weight_block_size {block}" if block else "")


def build_fp8(experts: Any) -> None:
    """REPLACE build_sm90_mega_moe_experts_weights."""
    _build(experts, lambda: StackedExperts("fp8", experts.w13_weight.data, experts.w13_weight_scale_inv.data, experts.w2_weight.data,
                                           experts.w2_weight_scale_inv.data))


def build_mxfp4(experts: Any) -> None:
    """REPLACE build_mega_moe_experts_weights: MXFP4 experts of an FP8 checkpoint, their scales brought to float32 when they were loaded."""
    _build(experts, lambda: _mxfp4(experts, "weight_scale_inv"))


def build_bytes_mxfp4(original: Callable[..., Any], method: Any, layer: Any) -> Any:
    """AROUND Mxfp4MoEMethod.process_weights_after_loading: scales are E8M0 bytes."""
    from sglang.srt.layers.moe.utils import get_moe_a2a_backend

    if not get_moe_a2a_backend().is_megamoe():
        return original(method, layer)
    _build(layer, lambda: _mxfp4(layer, "weight_scale"))
    return None


def build_nvfp4(method: Any, layer: Any) -> None:
    """REPLACE ModelOptNvFp4FusedMoEMethod._build_mega_moe_weights. Activations are quantised as they come: input scales have no use."""
    _build(layer, lambda: StackedExperts("nvfp4", layer.w13_weight.data, layer.w13_weight_scale.data, layer.w2_weight.data, layer.w2_weight_scale.data,
                                         _floats(layer.w13_weight_scale_2), _floats(layer.w2_weight_scale_2)))
    layer._mega_moe_nvfp4 = True


def _mxfp4(experts: Any, scale: str) -> StackedExperts:
    name = name_of(experts)
    return StackedExperts("mxfp4", experts.w13_weight.data, exponent_bytes(f"{name}: w13_{scale}", getattr(experts, f"w13_{scale}").data),
                          experts.w2_weight.data, exponent_bytes(f"{name}: w2_{scale}", getattr(experts, f"w2_{scale}").data))


def _floats(scales: torch.Tensor) -> torch.Tensor:
    return scales.data.to(torch.float32).contiguous()


def _build(experts: Any, source: Callable[[], StackedExperts]) -> None:
    """Packs this rank's experts. Collective over the ranks for the first layer."""
    if packed_of(experts) is not None:
        return
    from sglang.srt.environ import envs

    name, limit, device = name_of(experts), experts.moe_runner_config.swiglu_limit, experts.w13_weight.device
    problems = _problems(experts)
    if problems:
        raise UnavailableError(f"{name}: {'; '.join(problems)}; serve this model with another --moe-a2a-backend")
    ranks = ranks_of(device)
    stacked = source()
    try:
        weights = Weights(ranks.context, stacked, swiglu_limit=limit, num_experts=experts.num_experts,
                          ids=range(ranks.rank * experts.num_local_experts, (ranks.rank + 1) * experts.num_local_experts), tag=ranks.next_tag())
    except ValueError as error:
        raise type(error)(f"{name}: {error}") from error
    capacity = envs.SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK.get()
    workspace = ranks.workspace(weights, experts.top_k, capacity, f"{experts.num_experts} {stacked.format} experts a layer, top-{experts.top_k}")
    del stacked
    object.__setattr__(experts, _PACKED, Packed(MoELayer(weights, workspace=workspace), limit, name))  # no submodule: it has no Parameters
    experts._mega_moe_weights_built = True
    _free(experts, name)
    if _are_moved(experts):
        experts.register_parameter(MOVED, torch.nn.Parameter(packed_of(experts).layer.packed_experts(), requires_grad=False))
    if device.type == "cuda":
        torch.cuda.empty_cache()  # the next layer is packed into memory that torch would keep for itself


def _are_moved(experts: Any) -> bool:
    from sglang.srt.runtime_context import get_exec

    return bool(get_exec().moe.enable_eplb) and not experts.is_draft


def _free(experts: Any, name: str) -> None:
    """The checkpoint's tensors become empty ones, whose loader says why they cannot be filled again."""
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise UsageError(f"{name}: its experts are packed and cannot be loaded again while serving; restart the server with the new checkpoint, or "
                         "without --moe-a2a-backend megamoe")

    for key, parameter in list(experts.named_parameters(recurse=False)):
        if key.startswith(("w13_", "w2_")):
            empty = torch.nn.Parameter(torch.empty(0, dtype=parameter.dtype, device=parameter.device), requires_grad=False)
            empty.weight_loader = refuse  # type: ignore[attr-defined]
            delattr(experts, key)
            experts.register_parameter(key, empty)


def after_loading(result: Any, runner: Any) -> None:
    """AFTER ModelRunner.load_model: no layer may be left to another path."""
    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE

    left = [name_of(module) for module in runner.model.modules()
            if isinstance(module, FusedMoE) and getattr(module, _WANTED, False) and packed_of(module) is None]
    if left:
        raise UnavailableError(f"{', '.join(left)}: the experts were not packed by monomoe, as this --moe-runner-backend, --load-format or weight cache "
                               "goes around it; leave --moe-runner-backend at auto, or leave --moe-a2a-backend megamoe away")
    if not runner.is_draft_worker:
        _check_moves(runner.model)


def _check_moves(model: Any) -> None:
    """With --enable-eplb: SGLang must find the packed experts of each layer to move, and in rows of one size, or it would go wrong much later."""
    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE

    layers = [module for module in model.modules() if isinstance(module, FusedMoE) and packed_of(module) is not None and _are_moved(module)]
    if not layers:
        return
    moved = getattr(model, "routed_experts_weights_of_layer", None)
    tensors = {} if moved is None else {layer: [tensor.data_ptr() for tensor in moved[layer]] for layer in moved.keys()}
    left = [name_of(layer) for layer in layers if getattr(layer, MOVED).data_ptr() not in tensors.get(layer.layer_id, ())]
    if left:
        raise UnavailableError(f"{', '.join(left)}: --enable-eplb would not move these experts of {type(model).__name__}, whose "
                               f"routed_experts_weights_of_layer {'has no such layers' if tensors else 'is not there'}; leave --enable-eplb away")
    sizes = {getattr(layer, MOVED).shape[1]: name_of(layer) for layer in reversed(layers)}
    if len(sizes) > 1:
        raise UnavailableError("--enable-eplb moves experts through one buffer for all layers, and theirs are of different formats or sizes: "
                               f"{', '.join(f'{size} bytes an expert in {name}' for size, name in sizes.items())}; leave --enable-eplb away")
