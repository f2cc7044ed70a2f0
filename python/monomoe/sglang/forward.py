"""The call: whether a batch is admitted, and the routed experts of one layer."""

from __future__ import annotations

from typing import Any, Callable

import torch

from monomoe.errors import UnavailableError, UsageError
from monomoe.sglang.experts import Packed, name_of, packed_of

_CAPACITY = "SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK"


def is_ready(experts: Any) -> bool:
    """REPLACE is_mega_moe_experts_ready: what SGLang asks of a GPU's architecture and of DeepGEMM has no part in it."""
    return packed_of(experts) is not None


def _packed(experts: Any) -> Packed:
    packed = packed_of(experts)
    if packed is None:
        raise UnavailableError(f"{name_of(experts)}: called through --moe-a2a-backend megamoe before its experts were packed")
    return packed


def admit(original: Callable[..., bool], moe: Any, hidden_states: torch.Tensor) -> bool:
    """AROUND should_use_mega_moe. SGLang compares the largest rank's tokens with the capacity, so all ranks agree; the path that it would
    take for too many has no weights."""
    from sglang.srt.layers.moe.utils import get_moe_a2a_backend

    if not get_moe_a2a_backend().is_megamoe():
        return original(moe, hidden_states)
    packed = _packed(moe.experts)
    if original(moe, hidden_states):
        return True
    raise UsageError(f"{packed.name}: a rank brings more tokens than its capacity of {packed.layer.workspace.capacity} ({len(hidden_states)} on this "
                     f"one); raise {_CAPACITY}, or lower --chunked-prefill-size, --cuda-graph-max-bs-decode or --max-running-requests")


def run_routed_experts(experts: Any, hidden_states: torch.Tensor, topk_ids: torch.Tensor | None, topk_weights: torch.Tensor | None, *,
                       hidden_size: int, intermediate_size: int, top_k: int, num_tokens: int, activation_clamp: float | None = None,
                       routed_scaling_factor: float = 1.0, activation: str = "swiglu", num_shared_experts: int = 0, shared_l1_weights: Any = None,
                       shared_l2_weights: Any = None, routing_in_buffer: bool = False) -> torch.Tensor:
    """REPLACE run_mega_routed_experts: this rank's rows in, their combined outputs out, without a sync or allocation beyond torch's tensors.

    All ranks call it, also with no tokens. Ids are physical experts; those below 0, as of padding, are dropped.
    """
    packed = _packed(experts)
    layer = packed.layer
    if num_shared_experts or shared_l1_weights is not None or shared_l2_weights is not None or routing_in_buffer or activation != "swiglu":
        raise UnavailableError(f"{packed.name}: SGLang asks for activation {activation} with {num_shared_experts} shared experts inside the call and "
                               f"routing_in_buffer {routing_in_buffer}, wanted swiglu, none and False")
    found = hidden_size, intermediate_size, top_k, activation_clamp
    wanted = layer.hidden, layer.weights.intermediate, layer.topk, packed.swiglu_limit
    if found != wanted:
        raise UsageError(f"{packed.name}: called with (hidden, intermediate, top-k, clamp) {found}, packed for {wanted}")
    if num_tokens > layer.workspace.capacity:
        raise UsageError(f"{packed.name}: {num_tokens} tokens on this rank, wanted at most {layer.workspace.capacity}; raise {_CAPACITY}, or lower "
                         "--chunked-prefill-size, --cuda-graph-max-bs-decode or --max-running-requests")
    if num_tokens == 0:
        topk_ids = hidden_states.new_empty((0, top_k), dtype=torch.int32)
        topk_weights = hidden_states.new_empty((0, top_k), dtype=torch.float32)
    assert topk_ids is not None and topk_weights is not None
    ids = topk_ids if topk_ids.dtype in (torch.int32, torch.int64) else topk_ids.to(torch.int32)
    weights = topk_weights.to(torch.float32)
    if routed_scaling_factor != 1.0:
        weights = weights * routed_scaling_factor
    return layer(hidden_states.contiguous(), ids.contiguous(), weights.contiguous())


def refuse_other_path(experts: Any, *args: Any, **kwargs: Any) -> None:
    """BEFORE FusedMoE.forward."""
    packed = packed_of(experts)
    if packed is not None:
        raise UnavailableError(f"{packed.name}: this model calls its experts past --moe-a2a-backend megamoe, where they have no weights; serve it with "
                               "another --moe-a2a-backend")
