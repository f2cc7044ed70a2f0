"""The layer as a torch module, with registered ops, so that eager calls, torch.compile and CUDA graphs give the same bits.

    layer = monomoe.torch.MoELayer.from_checkpoint("DIR", layer=3, max_tokens=8192)
    y = layer(x, topk_ids, topk_weights)
"""

from __future__ import annotations

from monomoe.torch.layer import MoELayer, default_context

__all__ = ["MoELayer", "default_context"]
