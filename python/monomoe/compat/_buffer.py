"""The symmetric buffer both packages have: one rank's staging tensors, and the workspace behind them."""

from __future__ import annotations

from typing import Any

import torch

from monomoe._arguments import int32, int64
from monomoe.errors import UsageError
from monomoe.layer import Context, Workspace
from monomoe.torch import shared
from monomoe.torch.layer import MoELayer

ALIGNMENT = 128  # capacities are rounded up to a multiple, as the other packages do


def context_of(group: Any) -> Context:
    """The context of a process group, of None (one rank), or of a Context given in place of the group. Collective for a group of several."""
    if isinstance(group, Context):
        if group.num_ranks != 1 or group.world is not None:
            raise UsageError(f"group is {group}, wanted a Context of one rank; give the process group of several ranks itself")
        return group
    return shared.context_of(group)


class StagingBuffer:
    """x e4m3 [capacity, hidden]; x_sf float32 [capacity, hidden/128]; topk_idx int64 and topk_weights float32 [capacity, topk].

    The caller writes the first rows; the calls read as many as they are told. Rows nobody wrote are dropped (id -1).
    """

    def __init__(self, group: Any, num_experts: int, num_max_tokens_per_rank: int, num_topk: int, hidden: int, intermediate_hidden: int):
        num_experts, num_max_tokens_per_rank = int32("num_experts", num_experts), int64("num_max_tokens_per_rank", num_max_tokens_per_rank)
        context = context_of(group)
        self.num_ranks, self.rank = (context.world.size, context.world.rank) if context.world else (1, 0)
        if num_experts % self.num_ranks != 0:
            raise UsageError(f"num_experts is {num_experts} on {self.num_ranks} ranks, wanted a multiple; each rank gives an equal share")
        self.num_local_experts = num_experts // self.num_ranks
        capacity = -(-num_max_tokens_per_rank // ALIGNMENT) * ALIGNMENT
        self.group, self.num_experts, self.num_topk = group, num_experts, num_topk
        self.num_max_tokens_per_rank, self.hidden, self.intermediate_hidden = capacity, hidden, intermediate_hidden
        self.workspace: Workspace | None = Workspace.sized(context, topk=num_topk, capacity=capacity, hidden=hidden,
                                                           max_intermediate=intermediate_hidden, max_experts=self.num_local_experts)
        self.device = torch.device("cuda", torch.cuda.current_device()) if context.backend == "cuda" else torch.device("cpu")
        self._allocate(capacity)

    def _allocate(self, capacity: int) -> None:
        self.x = torch.zeros((capacity, self.hidden), dtype=torch.uint8, device=self.device).view(torch.float8_e4m3fn)
        self.x_sf = torch.zeros((capacity, self.hidden // 128), dtype=torch.float32, device=self.device)
        self.topk_idx = torch.full((capacity, self.num_topk), -1, dtype=torch.int64, device=self.device)
        self.topk_weights = torch.zeros((capacity, self.num_topk), dtype=torch.float32, device=self.device)

    def destroy(self) -> None:
        """Gives the memory back. Calls that still run on a stream are waited for."""
        self.workspace = None
        self.x = self.x_sf = self.topk_idx = self.topk_weights = None  # type: ignore[assignment]

    def living_workspace(self) -> Workspace:
        if self.workspace is None:
            raise UsageError("the symmetric buffer was destroyed; make a new one")
        return self.workspace

    def check_layer(self, name: str, layer: MoELayer) -> None:
        weights = layer.weights
        found = (weights.num_experts, weights.hidden, weights.intermediate)
        wanted = (self.num_experts, self.hidden, self.intermediate_hidden)
        if found != wanted:
            raise UsageError(f"{name}: the weights have experts, hidden, intermediate {found}, the buffer was made for {wanted}; give those that "
                             "belong together")

    def run(self, name: str, layer: MoELayer, y: torch.Tensor, num_tokens: int, stats: torch.Tensor | None) -> None:
        """The first num_tokens staged rows through a layer into y's first rows."""
        self.check_layer(name, layer)
        if not 0 <= num_tokens <= self.num_max_tokens_per_rank:
            raise UsageError(f"{name}: {num_tokens} tokens, the buffer was made for at most {self.num_max_tokens_per_rank}; make it larger")
        if y.dtype is not torch.bfloat16 or y.dim() != 2 or y.shape[1] != self.hidden or not y.is_contiguous() or y.shape[0] < num_tokens:
            raise UsageError(f"{name}: y is {y.dtype} {tuple(y.shape)}, wanted contiguous torch.bfloat16 [{num_tokens} or more, {self.hidden}]")
        if stats is not None and (stats.dtype is not torch.int32 or tuple(stats.shape) != (self.num_local_experts,) or stats.device != self.device):
            raise UsageError(f"{name}: cumulative_local_expert_recv_stats is {stats.dtype} {tuple(stats.shape)} on {stats.device}, wanted "
                             f"torch.int32 ({self.num_local_experts},) on {self.device}")
        ids = self.topk_idx[:num_tokens]
        layer.run(self.x[:num_tokens], ids, self.topk_weights[:num_tokens], self.x_sf[:num_tokens], y[:num_tokens])
        if stats is not None:
            self._count(ids, stats)

    def _count(self, ids: torch.Tensor, stats: torch.Tensor) -> None:
        """Adds what this rank's experts received, from all ranks, to stats."""
        live = (ids >= 0) & (ids < self.num_experts)
        received = torch.zeros(self.num_experts, dtype=torch.int32, device=self.device)
        received.index_add_(0, ids.clamp(0, self.num_experts - 1).flatten(), live.flatten().to(torch.int32))
        if self.num_ranks > 1:
            torch.distributed.all_reduce(received, group=self.group)
        stats.add_(received[self.rank * self.num_local_experts:(self.rank + 1) * self.num_local_experts])
