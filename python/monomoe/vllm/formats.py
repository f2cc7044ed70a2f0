"""Which of our formats a vLLM quantisation gives a layer of routed experts, the parameters that its checkpoint loads into, and the experts in them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from monomoe.errors import UsageError
from monomoe.layer import FormatName, StackedExperts
from vllm.model_executor.layers.fused_moe.routed_experts import FusedMoeWeightScaleSupported
from vllm.model_executor.layers.quantization.fp8 import Fp8Config
from vllm.model_executor.layers.quantization.modelopt import ModelOptMixedPrecisionConfig, ModelOptNvFp4Config
from vllm.model_executor.layers.quantization.mxfp4 import GptOssMxfp4Config, Mxfp4Config, Mxfp4MoEMethod
from vllm.model_executor.layers.quantization.utils.quant_utils import is_layer_skipped
from vllm.models.deepseek_v4.quant_config import DeepseekV4FP8Config

_NVFP4_ALGOS = ("NVFP4", "W4A16_NVFP4")  # the weights are the same; activations are quantised to FP8 either way
_FP8_BLOCK_ALGOS = ("FP8_PB_WO", "FP8_BLOCK_SCALES")


def format_of(quant_config: Any, layer_name: str) -> FormatName:
    """The format of a layer's checkpoint tensors, decided as the quantisation's own get_quant_method does."""
    found = _format_of(quant_config, layer_name)
    if found is not None and quant_config.online_quantization_config is None:
        return found
    name = "none" if quant_config is None else quant_config.get_name()
    if quant_config is not None and quant_config.online_quantization_config is not None:
        name += " with online quantisation"
    raise UsageError(f"additional_config asks for moe_backend monomoe, and the experts of {layer_name} have the quantisation {name}, wanted FP8 in 128x128 "
                     "blocks, ModelOpt NVFP4 or MXFP4; serve a checkpoint in one of these, leave a draft model of another format away, or leave "
                     "moe_backend away")


def _format_of(config: Any, name: str) -> FormatName | None:
    if isinstance(config, Fp8Config):
        if is_layer_skipped(prefix=name, ignored_layers=config.ignored_layers, fused_mapping=config.packed_modules_mapping,
                            match_mode=config.ignored_layers_match_mode):
            return None
        if isinstance(config, DeepseekV4FP8Config) and config.expert_dtype == "fp4":
            return "nvfp4" if config.moe_quant_algo == "NVFP4" else "mxfp4"
        if config.store_dtype == "mxfp4":
            return "mxfp4"
        return "fp8" if list(config.weight_block_size or ()) == [128, 128] else None
    if isinstance(config, ModelOptNvFp4Config):
        return None if config.is_layer_excluded(name) or config.group_size != 16 else "nvfp4"
    if isinstance(config, ModelOptMixedPrecisionConfig):
        return None if config.is_layer_excluded(name) else _format_of_algo(config, config._resolve_quant_algo(name))
    if isinstance(config, Mxfp4Config) and not isinstance(config, GptOssMxfp4Config):
        return "mxfp4"
    return None


def _format_of_algo(config: Any, algo: str | None) -> FormatName | None:
    if algo in _NVFP4_ALGOS and config.nvfp4_config.group_size == 16:
        return "nvfp4"
    if algo in _FP8_BLOCK_ALGOS and list(config.fp8_block_config.weight_block_size) == [128, 128]:
        return "fp8"
    return None


class Parameter(NamedTuple):
    """One parameter of a layer: its shape for num_experts, hidden, intermediate; how its checkpoint tensors are placed; a value for dummy weights."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    scale: FusedMoeWeightScaleSupported | None = None
    dummy: float | None = None


def parameters(format_name: FormatName, experts: int, hidden: int, inter: int) -> dict[str, Parameter]:
    """The parameters by vLLM's names, so that its loaders and weight mappers work as ever."""
    block, tensor = FusedMoeWeightScaleSupported.BLOCK, FusedMoeWeightScaleSupported.TENSOR
    if format_name == "fp8":
        up, across = -(-inter // 128), -(-hidden // 128)
        return {
            "w13_weight": Parameter((experts, 2 * inter, hidden), torch.float8_e4m3fn),
            "w2_weight": Parameter((experts, hidden, inter), torch.float8_e4m3fn),
            "w13_weight_scale_inv": Parameter((experts, 2 * up, across), torch.float32, block, 0.01),
            "w2_weight_scale_inv": Parameter((experts, across, up), torch.float32, block, 0.01),
        }
    group, scale, dummy = (16, torch.float8_e4m3fn, 1.0) if format_name == "nvfp4" else (32, torch.uint8, None)  # vLLM has a dummy for E8M0 bytes
    found = {
        "w13_weight": Parameter((experts, 2 * inter, hidden // 2), torch.uint8),
        "w2_weight": Parameter((experts, hidden, inter // 2), torch.uint8),
        "w13_weight_scale": Parameter((experts, 2 * inter, hidden // group), scale, block, dummy),
        "w2_weight_scale": Parameter((experts, hidden, inter // group), scale, block, dummy),
    }
    if format_name == "nvfp4":  # input_scale is for 4-bit activations: loaded, since checkpoints have it, and not used
        for name, value in (("weight_scale_2", 1e-3), ("input_scale", 1.0)):
            found[f"w13_{name}"] = Parameter((experts, 2), torch.float32, tensor, value)
            found[f"w2_{name}"] = Parameter((experts,), torch.float32, tensor, value)
    return found


def loader_of(format_name: FormatName, name: str, loader: Any) -> Any:
    """vLLM's weight loader for a parameter. MXFP4 scales may come as bytes, E8M0 or float."""
    return Mxfp4MoEMethod.get_scale_weight_loader(loader) if format_name == "mxfp4" and "scale" in name else loader


def experts_of(format_name: FormatName, layer: Any) -> StackedExperts:
    """The loaded parameters of a layer."""
    suffix = "weight_scale_inv" if format_name == "fp8" else "weight_scale"
    tensors = [getattr(layer, name).data for name in ("w13_weight", f"w13_{suffix}", "w2_weight", f"w2_{suffix}")]
    factors = (layer.w13_weight_scale_2.data, layer.w2_weight_scale_2.data) if format_name == "nvfp4" else (None, None)
    return StackedExperts(format_name, *tensors, *factors)
