"""Transformed weights: what the other packages' transforms return and their calls take.

The packed experts belong to the library. What a transform returns are placeholders: tensors with the shape, dtype and device of the other
package's result and one element of memory, which lead to the weights. They are packed at the first call, when clamp and global scales are
known, and the host copy is freed then.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any, Callable

import torch

from monomoe.compat import _formats
from monomoe.errors import UsageError
from monomoe.layer import StackedExperts, Weights, Workspace
from monomoe.torch.layer import MoELayer
from monomoe.torch.shared import next_tag

_MARK = "_monomoe_weights"


class Transformed:
    """One layer's experts before and after packing."""

    def __init__(self, source: Callable[[], StackedExperts], watched: tuple[torch.Tensor, ...] = ()):
        self._source: Callable[[], StackedExperts] | None = source
        self._watched = [weakref.ref(tensor) for tensor in watched]  # the caller's own: packed again when they were written to
        self._layer: MoELayer | None = None
        self._made_for: tuple[Any, ...] | None = None

    def watches(self, tensors: tuple[torch.Tensor, ...]) -> bool:
        """Whether these very tensors are the caller's own that it was made from."""
        return len(tensors) == len(self._watched) and all(known() is given for known, given in zip(self._watched, tensors))

    def layer(self, workspace: Workspace, clamp: float | None, l1_globals: torch.Tensor | None = None,
              l2_globals: torch.Tensor | None = None) -> MoELayer:
        """The packed layer on a workspace; packs at the first call."""
        made_for = (clamp, _identity(l1_globals), _identity(l2_globals), *(_identity(tensor()) for tensor in self._watched))
        if self._layer is None or self._made_for != made_for:
            self._pack(workspace, clamp, l1_globals, l2_globals, made_for)
        assert self._layer is not None
        if self._layer.workspace is not workspace:
            if self._layer.weights.context is not workspace.context:
                raise UsageError("the weights were packed for another buffer's context; transform them again for this one")
            self._layer = MoELayer(self._layer.weights, workspace=workspace)
        return self._layer

    def _pack(self, workspace: Workspace, clamp: float | None, l1_globals: Any, l2_globals: Any, made_for: tuple[Any, ...]) -> None:
        if self._source is None:
            was = self._made_for[0] if self._made_for else None
            raise UsageError(f"the weights were packed for activation_clamp {was} and the global scales of that call, this call has clamp {clamp} "
                             "and maybe other scales; transform the weights again for other values")
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise UsageError("the first call with new weights packs them, which a CUDA graph cannot capture; make one call before, or call "
                             "pack_weights")
        if clamp is not None and not clamp > 0:
            raise UsageError(f"activation_clamp is {clamp}, wanted a positive number, or None for no clamp")
        source = self._source()
        if l1_globals is not None or l2_globals is not None:
            source = _with_globals(source, l1_globals, l2_globals)
        context = workspace.context
        if context.world is None:
            weights = Weights(context, source, swiglu_limit=clamp)
        else:  # this rank's share; ranks pack their layers in the same order, so that a layer's number is the same on all
            count = source.w2.shape[0] * context.world.size
            weights = Weights(context, source, swiglu_limit=clamp, num_experts=count, tag=next_tag(context))
        self._layer, self._made_for = MoELayer(weights, workspace=workspace), made_for
        if not self._watched:
            self._source = None


def _with_globals(source: StackedExperts, l1_globals: Any, l2_globals: Any) -> StackedExperts:
    if source.format == "nvfp4":
        return dataclasses.replace(source, w13_global=l1_globals, w2_global=l2_globals)
    return dataclasses.replace(source, w13_scale=_formats.fold_power("l1_global_scales", source.w13_scale, l1_globals),
                               w2_scale=_formats.fold_power("l2_global_scales", source.w2_scale, l2_globals))


def _identity(tensor: torch.Tensor | None) -> Any:
    if tensor is None:
        return None
    return tensor.data_ptr(), tuple(tensor.shape), 0 if tensor.is_inference() else tensor._version  # inference tensors count no writes


def placeholder(like: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, weights: Transformed) -> torch.Tensor:
    """A tensor of a shape without its memory that leads to the weights."""
    width = torch.empty(0, dtype=dtype).element_size()
    bare = torch.full((width,), 0xFF, dtype=torch.uint8, device=like.device)  # NaN in every format: a copy of it is refused, never used
    tensor = bare.view(dtype).as_strided(shape, (0,) * len(shape))
    setattr(tensor, _MARK, weights)
    return tensor


def transformed(name: str, maker: str, l1: torch.Tensor, l2: torch.Tensor) -> Transformed:
    """The weights that the placeholders of one transform lead to."""
    first, second = getattr(l1, _MARK, None), getattr(l2, _MARK, None)
    if first is None or second is None:
        which = "l1_weights" if first is None else "l2_weights"
        raise UsageError(f"{name}: {which} did not come from {maker}, or is a copy of what did; give the transform's own result, which a copy "
                         "(clone, to, contiguous) does not replace")
    if first is not second:
        raise UsageError(f"{name}: l1_weights and l2_weights come from two calls of {maker}, wanted one; transform a layer's weights together")
    return first


def is_placeholder(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, _MARK) and 0 in tensor.stride()


def adopt(l1: tuple[torch.Tensor, ...], l2: tuple[torch.Tensor, ...], source: Callable[[], StackedExperts]) -> None:
    """Lets plain tensors in another package's kernel layout lead to weights made from them; once is enough for the same tensors."""
    made = getattr(l1[0], _MARK, None)
    if made is None or not made.watches((*l1, *l2)):
        made = Transformed(source, (*l1, *l2))
        setattr(l1[0], _MARK, made)
        setattr(l2[0], _MARK, made)
