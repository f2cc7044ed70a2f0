"""The ranks of an expert-parallel group: one context, and one workspace that all their layers share."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import torch

import monomoe
import monomoe.torch.distributed as distributed
from monomoe.errors import UnavailableError
from monomoe.layer import Context, Weights, Workspace

logger = logging.getLogger(__name__)
# In their first forward ranks compile SGLang's other kernels, minutes apart. A rank that waits for another one must outlast that.
_TIMEOUT_MS = 600_000
_known: dict[tuple[int, str], "Ranks"] = {}


class _Key(NamedTuple):
    topk: int
    hidden: int


class Ranks:
    """A group's context, and its workspaces by (topk, hidden): a model has one, a draft model of the same sizes takes part in it."""

    def __init__(self, group: Any, device: torch.device):
        self.group, self.size, self.rank = group, group.size(), group.rank()
        if device.type == "cuda":
            distributed.require_one_machine(group)
            _require_peer_access(group, device)
        self.context: Context = distributed.join(group, backend="cuda" if device.type == "cuda" else "cpu", gpu=device.index, timeout_ms=_TIMEOUT_MS)
        self._workspaces: dict[_Key, tuple[Workspace, int, int]] = {}
        self._layers = 0

    def next_tag(self) -> int:
        """A number for a layer: ranks pack their layers in the same order."""
        self._layers += 1
        return self._layers

    def workspace(self, weights: Weights, topk: int, capacity: int, what: str) -> Workspace:
        """The shared workspace if the layer fits in, else a new one. Collective, while weights are loaded: before memory is counted for the KV
        cache, and before any graph is captured."""
        key = _Key(topk, weights.hidden)
        known = self._workspaces.get(key)
        if known is not None and weights.intermediate <= known[1] and weights.max_local_experts <= known[2]:
            return known[0]
        workspace = Workspace(weights, topk=topk, capacity=capacity)
        self._workspaces[key] = workspace, weights.intermediate, weights.max_local_experts
        if self.rank == 0:
            logger.info("monomoe %s serves --moe-a2a-backend megamoe: its hooks are in place; %s; backend %s (%s), ranks: %d, up to %d tokens a rank",
                        monomoe.__version__, what, self.context.backend, self.context.why, self.size, capacity)
        return workspace


def ranks_of(device: torch.device) -> Ranks:
    """Those of SGLang's expert-parallel group. Collective at the first call."""
    from sglang.srt.runtime_context import get_parallel

    group = get_parallel().moe_ep_group.device_group
    key = id(group), device.type
    if key not in _known:
        _known[key] = Ranks(group, device)  # keeps the group, so its id stays its own
    return _known[key]


def _require_peer_access(group: Any, device: torch.device) -> None:
    """GPUs that this process can see must be able to write each other's memory. Processes that see one GPU each learn it when memory is mapped."""
    own = torch.cuda.current_device() if device.index is None else device.index
    seen = distributed.gather(group, (own, str(torch.cuda.get_device_properties(own).uuid)))
    for rank, (index, uuid) in enumerate(seen):
        if index == own or index >= torch.cuda.device_count() or str(torch.cuda.get_device_properties(index).uuid) != uuid:
            continue
        if not torch.cuda.can_device_access_peer(own, index):
            raise UnavailableError(f"GPU {own} cannot write the memory of GPU {index}, which rank {rank} uses; --moe-a2a-backend megamoe needs GPUs of "
                                   "one NVLink domain: choose others with CUDA_VISIBLE_DEVICES")
