"""The configuration and the kernel class that flashinfer.moe_ep finds by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import monomoe
import torch
from flashinfer.moe_ep.core.kernel.base import MegaKernelBackend
from flashinfer.moe_ep.core.kernel.registry import register_mega_kernel
from flashinfer.moe_ep.core.validation.common import validate_mega_forward_inputs
from monomoe.errors import UsageError
from monomoe.layer import FormatName, StackedExperts, Weights, Workspace, _FORMATS, choice
from monomoe.torch.layer import MoELayer
from monomoe.torch.shared import context_of, next_tag

_NAMES: dict[FormatName, str] = {"fp8": "sm90_fp8_fp8_bf16_monomoe", "nvfp4": "sm90_fp8_nvfp4_bf16_monomoe", "mxfp4": "sm90_fp8_mxfp4_bf16_monomoe"}


@dataclass
class MonomoeMegaMoeConfig:
    """format: of the expert weights. intermediate_size: of an expert. gate_up_clamp: SwiGLU's limit, None = none. backend: "cuda", or "cpu", which has the
    same bits and takes CPU tensors."""

    format: FormatName
    intermediate_size: int
    top_k: int
    gate_up_clamp: float | None = None
    backend: str = "cuda"
    kernel_name: str = field(init=False)

    def __post_init__(self) -> None:
        choice("format", self.format, _FORMATS)
        choice("backend", self.backend, {"cuda": 0, "cpu": 0})
        self.kernel_name = _NAMES[self.format]


class SharedWorkspace:
    """What flashinfer pools for layers of the same sizes."""

    def __init__(self, workspace: Workspace):
        self._workspace: Workspace | None = workspace

    def living(self) -> Workspace:
        if self._workspace is None:
            raise UsageError("the workspace was destroyed; make a new layer")
        return self._workspace

    def destroy(self) -> None:
        self._workspace = None


@register_mega_kernel(_NAMES["fp8"])
@register_mega_kernel(_NAMES["nvfp4"])
@register_mega_kernel(_NAMES["mxfp4"])
class MonomoeMegaKernel(MegaKernelBackend):
    """Dispatch, experts and combine in one launch. Any token count per rank, also none; ids below 0 drop their slot. bfloat16 rows are quantised inside
    the launch: staging only remembers where they are, so a captured graph reads the tensors of the capture."""

    def __init__(self, config: MonomoeMegaMoeConfig):
        if not isinstance(config, MonomoeMegaMoeConfig):
            raise UsageError(f"the kernel config is a {type(config).__name__}, wanted monomoe.flashinfer.MonomoeMegaMoeConfig")
        super().__init__(config)
        self._settings = config
        self._staged: tuple[torch.Tensor, ...] | None = None
        self._layers: dict[int, MoELayer] = {}

    @classmethod
    def kernel_name(cls) -> str:
        return _NAMES["nvfp4"]

    def validate_init(self, bootstrap: Any, fleet_params: Any) -> None:
        settings = self._settings
        planned = monomoe.plan(settings.format, hidden=fleet_params.token_hidden_size, intermediate=settings.intermediate_size,
                               experts=fleet_params.num_experts, topk=settings.top_k, ranks=bootstrap.world_size, capacity=fleet_params.max_tokens_per_rank)
        if not planned["legal"]:
            raise UsageError(f"{settings.kernel_name}: {planned['rule']}")
        if fleet_params.num_experts % bootstrap.world_size != 0:
            raise UsageError(f"{settings.kernel_name}: {fleet_params.num_experts} experts on {bootstrap.world_size} ranks, wanted a multiple")
        if bootstrap.stream != 0:
            raise UsageError(f"{settings.kernel_name}: BootstrapConfig.stream is {bootstrap.stream}, wanted 0: calls go to torch's current stream")

    def _context(self) -> Any:
        return context_of(self.ep_comm_group if self.ep_world_size > 1 else None, self._settings.backend)  # type: ignore[arg-type]

    def preprocess_weights(self, weights: Any, fleet_params: Any) -> Weights:
        """Packs this rank's experts. A pack with w13_global_scale and w2_global_scale (flashinfer's Nvfp4WeightPack) has them used; the
        first may also be [experts, 2], gate and up."""
        settings = self._settings
        if weights.w13_scale is None:
            raise UsageError(f"{settings.kernel_name}: the weights have no scales, wanted {settings.format} with w13_scale and w2_scale; quantise them first")
        local = fleet_params.num_experts // self.ep_world_size
        factors = [_per_expert(getattr(weights, name, None), local) for name in ("w13_global_scale", "w2_global_scale")]
        source = StackedExperts(settings.format, weights.w13, weights.w13_scale, weights.w2, weights.w2_scale, *factors)
        context = self._context()
        share = {} if context.world is None else {"num_experts": fleet_params.num_experts, "tag": next_tag(context)}
        return Weights(context, source, swiglu_limit=settings.gate_up_clamp, **share)

    def validate_transformed_weights(self, transformed_weights: Any, bootstrap: Any, fleet_params: Any) -> None:
        if not isinstance(transformed_weights, Weights):
            raise UsageError(f"transformed_weights is a {type(transformed_weights).__name__}, wanted what this kernel's preprocess_weights gave")

    def _allocate_workspace(self, fleet_params: Any) -> SharedWorkspace:
        return SharedWorkspace(Workspace.sized(self._context(), topk=self._settings.top_k, capacity=fleet_params.max_tokens_per_rank,
                                               hidden=fleet_params.token_hidden_size, max_intermediate=self._settings.intermediate_size,
                                               max_experts=fleet_params.num_experts // self.ep_world_size))

    def _workspace_pool_key(self, fleet_params: Any) -> Any:
        return ("monomoe", id(self._context()), self._settings.top_k, fleet_params.max_tokens_per_rank, fleet_params.token_hidden_size,
                self._settings.intermediate_size, fleet_params.num_experts)

    def validate_forward(self, t: Any, fleet_params: Any, *, quantize_input: bool) -> None:
        validate_mega_forward_inputs(t.hidden_states, t.topk_ids, t.topk_weights, fleet_params, top_k=self._settings.top_k, quantize_input=quantize_input,
                                     scales=t.scales)
        for name in ("fc1_alpha", "fc2_alpha", "fc1_norm_const", "fc1_activation_per_token_scale"):
            if getattr(t, name, None) is not None:
                raise UsageError(f"{self._settings.kernel_name}: MoEEpTensors.{name} is given and would change nothing; global scales of the weights belong in "
                                 "the weight pack")

    def stage_inputs(self, t: Any, workspace: SharedWorkspace, *, quantize_input: bool) -> None:
        self._staged = (t.hidden_states, t.topk_ids, t.topk_weights, None if quantize_input else t.scales)

    def compute(self, workspace: SharedWorkspace, transformed_weights: Weights, *, output: torch.Tensor | None) -> torch.Tensor:
        if self._staged is None or output is None:
            raise UsageError(f"{self._settings.kernel_name}: compute wants staged inputs and an output")
        (x, ids, weights, scales), self._staged = self._staged, None
        layer = self._layers.get(id(workspace))
        if layer is None or layer.weights is not transformed_weights:
            layer = self._layers[id(workspace)] = MoELayer(transformed_weights, workspace=workspace.living())
        layer.run(x, ids, weights, scales, output[:len(x)])
        return output

    def _forget_local_workspace_state(self, workspace: SharedWorkspace) -> None:
        self._layers.pop(id(workspace), None)


def _per_expert(factor: torch.Tensor | None, experts: int) -> torch.Tensor | None:
    """A global scale as the layer takes it: one an expert; flashinfer also has one for all."""
    if factor is None or factor.dim() > 1 or factor.numel() != 1:
        return factor
    return factor.detach().reshape(1).expand(experts).contiguous()
