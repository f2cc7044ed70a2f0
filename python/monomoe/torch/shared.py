"""What the layers of one process share when a framework builds them one by one: a context for each process group, and workspaces."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

from monomoe.layer import BackendName, Context, Workspace
from monomoe.torch import distributed
from monomoe.torch.layer import default_context

# Ranks load, pack, compile and capture at different speeds, minutes apart; whoever waits for another one must outlast that.
_TIMEOUT_MS = 600_000
_joined: list[tuple[Any, str, Context]] = []  # groups live as long as their process, as a rule
_tags: "weakref.WeakKeyDictionary[Context, itertools.count[int]]" = weakref.WeakKeyDictionary()
_workspaces: "weakref.WeakValueDictionary[tuple[Any, ...], Workspace]" = weakref.WeakValueDictionary()


def context_of(group: Any, backend: BackendName = "auto") -> Context:
    """The one context of a process group, or of one rank where group is None or has one member. Collective the first time a group of several comes."""
    if group is None or group.size() == 1:
        return default_context(backend)
    for known, asked, context in _joined:
        if known is group and asked == backend:
            return context
    context = distributed.join(group, backend=backend, timeout_ms=_TIMEOUT_MS)
    _joined.append((group, backend, context))
    return context


def workspace_of(context: Context, *, topk: int, capacity: int, hidden: int, max_intermediate: int, max_experts: int) -> Workspace:
    """The one workspace of these sizes, for layers that run one after the other. It goes when its last user goes. Making it is collective over the
    context's ranks, which therefore ask in the same order."""
    key = (id(context), topk, capacity, hidden, max_intermediate, max_experts)
    workspace = _workspaces.get(key)
    if workspace is None:
        workspace = Workspace.sized(context, topk=topk, capacity=capacity, hidden=hidden, max_intermediate=max_intermediate, max_experts=max_experts)
        _workspaces[key] = workspace
    return workspace


def next_tag(context: Context) -> int:
    """A tag for weights whose layers have no numbers: ranks that make their layers in the same order get the same one for a layer."""
    return next(_tags.setdefault(context, itertools.count(1)))
