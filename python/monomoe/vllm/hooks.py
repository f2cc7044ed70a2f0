"""Puts the plugin's two hooks into vLLM's classes, and checks a loaded model."""

from __future__ import annotations

import functools
from typing import Any

import monomoe
import torch
from monomoe.errors import UnavailableError
from monomoe.vllm import asked_for, hooks_in_place
from monomoe.vllm.experts import MonomoeMethod, MonomoeRoutedExperts
from vllm.logger import init_logger
from vllm.model_executor.custom_op import PluggableLayer, op_registry_oot
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

_logger = init_logger("vllm.plugins.monomoe")  # vLLM shows what is logged below its own name


def install() -> None:
    """Once in a process."""
    taken = op_registry_oot.setdefault(RoutedExperts.__name__, MonomoeRoutedExperts)
    if taken is not MonomoeRoutedExperts:
        raise UnavailableError(f"another plugin replaces vLLM's RoutedExperts with {taken.__module__}.{taken.__qualname__}; remove one of the two")
    if not issubclass(RoutedExperts, PluggableLayer):
        raise UnavailableError("RoutedExperts is no PluggableLayer")
    if not hasattr(BaseModelLoader.load_model, "_monomoe"):
        BaseModelLoader.load_model = _checked(BaseModelLoader.load_model)  # type: ignore[method-assign]


def _checked(load_model: Any) -> Any:
    @functools.wraps(load_model)
    def checked(self: Any, vllm_config: Any, model_config: Any, *arguments: Any, **keywords: Any) -> Any:
        if asked_for(vllm_config):
            hooks_in_place()
        model = load_model(self, vllm_config, model_config, *arguments, **keywords)
        if asked_for(vllm_config):
            stages = vllm_config.parallel_config.pipeline_parallel_size  # one of several may hold dense layers only
            check_model(model, needed=stages == 1 and not _is_draft(vllm_config.speculative_config, model_config),
                        balanced=vllm_config.parallel_config.enable_eplb)
        return model

    checked._monomoe = True  # type: ignore[attr-defined]
    return checked


def _is_draft(speculative: Any, model_config: Any) -> bool:
    """Whether a model is loaded that only drafts tokens: it may be without experts."""
    return speculative is not None and model_config is speculative.draft_model_config and model_config is not speculative.target_model_config


def check_model(model: torch.nn.Module, needed: bool, balanced: bool = False) -> None:
    """Says in one line what runs here, or raises if experts of the model, or of one that must have some, do not. balanced: vLLM will move them."""
    ours, others = [], []
    for name, module in model.named_modules():
        if isinstance(module, RoutedExperts):
            (ours if isinstance(module.quant_method, MonomoeMethod) and module.quant_method.layer is not None else others).append((name, module))
        elif type(module).__name__.endswith("MegaMoEExperts"):
            others.append((name, module))
    if others or (needed and not ours):
        found = f"{len(others)} of its layers do not run there, the first {others[0][0]} ({type(others[0][1]).__name__})" if others else "it has no RoutedExperts"
        raise UnavailableError(f"additional_config asks for moe_backend monomoe, and {type(model).__name__} does not use it: {found}; leave moe_backend away "
                               "for this model")
    if not ours:
        return
    sizes = {module.quant_method.layer.packed_experts().shape[1]: name for name, module in reversed(ours)} if balanced else {}
    if len(sizes) > 1:
        raise UnavailableError(f"additional_config asks for moe_backend monomoe, and --enable-eplb moves experts through one buffer for all layers of "
                               f"{type(model).__name__}, which are of different formats or sizes: "
                               f"{', '.join(f'{size} bytes an expert in {name}' for size, name in sizes.items())}; leave --enable-eplb away")
    first: MonomoeMethod = ours[0][1].quant_method
    formats = sorted({module.quant_method.format for _, module in ours})
    weights, workspace = first.layer.weights, first.share.workspace  # type: ignore[union-attr]
    _logger.info("monomoe %s runs the experts of %d layers (%s; %d experts, top-%d, hidden %d, intermediate %d) on %s, %d expert-parallel ranks, at most %d "
                 "tokens a rank and call%s", monomoe.__version__, len(ours), ", ".join(formats), weights.num_experts, workspace.topk, weights.hidden,
                 weights.intermediate, first.share.context.backend, first.share.ranks, workspace.capacity,
                 f", 1/{first.share.slices} of a batch on each" if first.share.slices > 1 else "")
