"""Routed experts of vLLM's fused MoE path on MoELayer: which parameters they have, how they are packed once loaded, and the call.

vLLM's router gives global expert ids and weights with the scaling factor in them, or its runner multiplies the output; the layer adds neither.
All ranks of the expert-parallel group take part in every call, also with no tokens.
"""

from __future__ import annotations

import zlib
from typing import Any, Iterable

import torch
import vllm.model_executor.layers.fused_moe.modular_kernel as mk
from monomoe.layer import FormatName, Weights
from monomoe.torch.layer import MoELayer
from monomoe.torch.shared import context_of, workspace_of
from monomoe.vllm import asked_for, checks, formats
from vllm.config import get_current_vllm_config
from vllm.distributed import get_ep_group, get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.model_executor.layers.fused_moe.config import FUSED_MOE_UNQUANTIZED_CONFIG, FusedMoEConfig
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.fused_moe.prepare_finalize.passthrough import PassThroughPrepareAndFinalize
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import TopKWeightAndReduceNoOP
from vllm.model_executor.utils import set_weight_attrs


class Share:
    """One rank's part: its context, the workspace its layers share, and which rows of a batch are its own."""

    def __init__(self, moe: FusedMoEConfig):
        group = get_ep_group() if moe.ep_size > 1 else None
        if group is not None:
            checks.one_machine(group.device_group)
        self.context = context_of(None if group is None else group.device_group, "cpu" if torch.device(moe.device).type == "cpu" else "cuda")
        # Without sequence parallelism all ranks of a tensor-parallel group hold the same rows: each takes its slice of them, and the sum over the
        # group, which vLLM makes for shared experts anyway, puts them together.
        self.slices = 1 if moe.is_sequence_parallel or group is None else get_tensor_model_parallel_world_size()
        self.slice = get_tensor_model_parallel_rank() if self.slices > 1 else 0
        each, more = divmod(moe.num_experts, moe.ep_size)  # vLLM's linear placement: the first ranks hold one more
        firsts = [rank * each + min(rank, more) for rank in range(moe.ep_size + 1)]
        self.ranks, self.ids = moe.ep_size, range(firsts[moe.ep_rank], firsts[moe.ep_rank + 1])
        self.placement = [(e, rank, e - firsts[rank]) for rank in range(moe.ep_size) for e in range(firsts[rank], firsts[rank + 1])] if more else None
        self.workspace = workspace_of(self.context, topk=moe.experts_per_token, capacity=-(-moe.max_num_tokens // (self.slices * moe.sp_size)),
                                      hidden=moe.hidden_dim, max_intermediate=moe.intermediate_size_per_partition,
                                      max_experts=-(-moe.num_experts // moe.ep_size))

    def rows(self, count: int) -> slice:
        """This rank's rows of a batch that all ranks of a tensor-parallel group hold."""
        size = -(-count // self.slices)
        return slice(min(self.slice * size, count), min((self.slice + 1) * size, count))


class PrepareAndFinalize(PassThroughPrepareAndFinalize):
    """Nothing to prepare or finalize. The output is whole on each rank, but for sliced batches."""

    def __init__(self, sliced: bool):
        super().__init__()
        self._sliced = sliced

    def output_is_reduced(self) -> bool:
        return not self._sliced


class MonomoeExperts(mk.FusedMoEExpertsModular):
    """One packed layer as vLLM's modular kernels know experts."""

    def __init__(self, moe: FusedMoEConfig, layer: MoELayer, share: Share):
        super().__init__(moe, FUSED_MOE_UNQUANTIZED_CONFIG)
        self.layer, self.share = layer, share

    def run(self, x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor) -> torch.Tensor:
        """The call, collective over the ranks."""
        x, topk_ids, topk_weights = x.contiguous(), topk_ids.contiguous(), topk_weights.to(torch.float32).contiguous()
        if self.share.slices == 1:
            return self.layer(x, topk_ids, topk_weights)
        out, rows = torch.zeros_like(x), self.share.rows(x.shape[0])
        out[rows] = self.layer(x[rows], topk_ids[rows], topk_weights[rows])
        return out

    def apply(self, output: torch.Tensor, hidden_states: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, topk_weights: torch.Tensor,
              topk_ids: torch.Tensor, *others: Any, **more: Any) -> None:
        output.copy_(self.run(hidden_states, topk_ids, topk_weights))

    @staticmethod
    def activation_format() -> mk.FusedMoEActivationFormat:
        return mk.FusedMoEActivationFormat.Standard

    @property
    def expects_unquantized_inputs(self) -> bool:
        return True

    def finalize_weight_and_reduce_impl(self) -> mk.TopKWeightAndReduce:
        return TopKWeightAndReduceNoOP()

    def workspace_shapes(self, M: int, N: int, K: int, *others: Any, **more: Any) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        return (0,), (0,), (M, K)

    # What vLLM asks a class that it chooses among; this one is not chosen, it is asked for, and checks.layer has the questions.
    _supports_current_device = staticmethod(lambda: True)
    _supports_no_act_and_mul = staticmethod(lambda: False)
    _supports_quant_scheme = staticmethod(lambda weight_key, activation_key: True)
    _supports_activation = staticmethod(lambda activation: activation.value == "silu")
    _supports_parallel_config = staticmethod(lambda config: True)


class MonomoeMethod(FusedMoEMethodBase):
    """The quantisation method of a layer of routed experts: vLLM loads into the parameters it makes, then it packs and frees them."""

    def __init__(self, moe: FusedMoEConfig, format_name: FormatName, swiglu_limit: float | None):
        super().__init__(moe)
        self.format, self.swiglu_limit, self.share = format_name, swiglu_limit, Share(moe)
        self.moe_quant_config = FUSED_MOE_UNQUANTIZED_CONFIG
        self.layer: MoELayer | None = None

    def maybe_roundup_sizes(self, hidden_size: int, intermediate_size_per_partition: int, *others: Any) -> tuple[int, int]:
        return hidden_size, intermediate_size_per_partition

    def get_fused_moe_quant_config(self, layer: RoutedExperts) -> Any:
        return FUSED_MOE_UNQUANTIZED_CONFIG

    @property
    def supports_eplb(self) -> bool:
        return True

    def uses_weight_scale_2_pattern(self) -> bool:
        return self.format == "nvfp4"

    def create_weights(self, layer: RoutedExperts, num_experts: int, hidden_size: int, intermediate_size_per_partition: int, params_dtype: torch.dtype,
                       **extra_weight_attrs: Any) -> None:
        loader = extra_weight_attrs.pop("weight_loader")
        for name, made in formats.parameters(self.format, num_experts, hidden_size, intermediate_size_per_partition).items():
            parameter = torch.nn.Parameter(torch.zeros(made.shape, dtype=made.dtype), requires_grad=False)
            layer.register_parameter(name, parameter)
            set_weight_attrs(parameter, {**extra_weight_attrs, "weight_loader": formats.loader_of(self.format, name, loader)})
            if made.scale is not None:
                parameter.quant_method = made.scale.value
            if made.dummy is not None:
                parameter.dummy_weight_value = made.dummy

    def process_weights_after_loading(self, layer: RoutedExperts) -> None:
        """Packs the loaded experts and frees vLLM's copies. Not collective, so a rank whose weights are bad says so by itself."""
        weights = Weights(self.share.context, formats.experts_of(self.format, layer), swiglu_limit=self.swiglu_limit, num_experts=self.moe.num_experts,
                          ids=self.share.ids, placement=self.share.placement, tag=zlib.crc32(layer.layer_name.encode()))
        self.layer = MoELayer(weights, workspace=self.share.workspace)
        for name in formats.parameters(self.format, 1, 1, 1):
            parameter = getattr(layer, name)
            parameter.data = parameter.data.new_empty(0)
        self.moe_kernel = mk.FusedMoEKernel(PrepareAndFinalize(self.share.slices > 1), MonomoeExperts(self.moe, self.layer, self.share))

    def apply(self, layer: RoutedExperts, x: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor, shared_experts: Any,
              shared_experts_input: torch.Tensor | None) -> torch.Tensor:
        """Straight to the experts: the modular kernel around them leaves a call without tokens out, and other ranks would wait for it."""
        assert self.moe_kernel is not None, f"{layer.layer_name} was called before its weights were loaded"
        return self.moe_kernel.fused_experts.run(x, topk_ids, topk_weights)


class MonomoeRoutedExperts(RoutedExperts):
    """vLLM's routed experts; where the configuration asks for it, with our method."""

    def get_expert_weights(self) -> Iterable[torch.Tensor]:
        """What vLLM's balancer (--enable-eplb) moves between ranks, a row for each of this rank's experts: the packed ones, in place."""
        if not isinstance(self.quant_method, MonomoeMethod):
            return super().get_expert_weights()
        assert self.quant_method.layer is not None, f"{self.layer_name} is balanced before its weights were loaded"
        return [self.quant_method.layer.packed_experts()]

    def _get_quant_method(self, prefix: str, quant_config: Any, moe_config: FusedMoEConfig) -> FusedMoEMethodBase:
        if not asked_for(get_current_vllm_config()):
            return super()._get_quant_method(prefix, quant_config, moe_config)
        format_name = formats.format_of(quant_config, prefix)
        checks.layer(self, format_name)
        return MonomoeMethod(moe_config, format_name, self.swiglu_limit)
