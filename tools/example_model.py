"""The example's byte-level language model: attention plus DeepSeek-V4-style MoE layers (PyTorch).

The experts are few and small, so training computes all of them as one wide layer and lets the
routing weights, zero for experts that were not chosen, do the selection: no gather, no scatter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from example_quantise import LayerWeights


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the model; the defaults are what examples/ ships."""

    hidden: int = 256
    layers: int = 4
    heads: int = 8
    experts: int = 32
    top_k: int = 4
    intermediate: int = 64
    context: int = 512
    vocabulary: int = 256
    routed_scale: float = 1.5
    clamp: float = 10.0
    dropout: float = 0.1


@dataclass(frozen=True)
class MoeOutput:
    """What one MoE layer gives for rounded inputs, in float32."""

    ids: Tensor  # [T, K], best first
    weights: Tensor  # [T, K], final
    routed: Tensor  # [T, H]
    shared: Tensor  # [T, H]
    margin: Tensor  # [T], smallest gap between neighbours among the best K + 1 selection scores
    hidden_amax: Tensor  # [E]
    clamped: int  # gate or up values of chosen experts beyond the clamp


def _normal(*shape: int, std: float) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) * std)


def clamped_swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """silu(min(gate, limit)) * clamp(up, -limit, limit): asymmetric on purpose."""
    return F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)


class Moe(nn.Module):
    """Routed experts behind a sqrt(softplus) gate with selection bias, and one shared expert."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        h, e, i = config.hidden, config.experts, config.intermediate
        out_std = (2 * config.layers * i) ** -0.5
        self.gate = _normal(e, h, std=h**-0.5)
        self.w1, self.w3 = _normal(e, i, h, std=h**-0.5), _normal(e, i, h, std=h**-0.5)
        self.w2 = _normal(h, e, i, std=out_std)
        self.shared_w1, self.shared_w3 = _normal(i, h, std=h**-0.5), _normal(i, h, std=h**-0.5)
        self.shared_w2 = _normal(h, i, std=out_std)
        self.register_buffer("bias", torch.zeros(e))
        self.register_buffer("load", torch.zeros(e), persistent=False)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores [T, E], selection scores [T, E] and ids [T, K] of float32 rows."""
        scores = F.softplus(x @ self.gate.t()).sqrt()
        selection = scores + self.bias
        return scores, selection, selection.topk(self.config.top_k, dim=-1).indices

    def combine_weights(self, scores: Tensor, ids: Tensor) -> Tensor:
        """Dense [T, E] routing weights: unbiased scores of the chosen, renormalised, scaled."""
        chosen = scores * torch.zeros_like(scores).scatter_(1, ids, 1.0)
        return chosen / chosen.sum(-1, keepdim=True) * self.config.routed_scale

    def forward(self, x: Tensor) -> Tensor:
        """Training path on [B, S, H]; the caller's autocast decides the matrix precision."""
        shape, x = x.shape, x.flatten(0, 1).bfloat16()
        with torch.autocast(x.device.type, enabled=False):
            scores, _, ids = self.route(x.float())
            dense = self.combine_weights(scores, ids)
        if self.training:
            self.load = (dense > 0).sum(0).float()
        limit = self.config.clamp
        h = clamped_swiglu(F.linear(x, self.w1.flatten(0, 1)), F.linear(x, self.w3.flatten(0, 1)), limit)
        h = h.unflatten(-1, (self.config.experts, -1)) * dense.to(h.dtype).unsqueeze(-1)
        y = F.linear(h.flatten(1), self.w2.flatten(1))
        h = clamped_swiglu(F.linear(x, self.shared_w1), F.linear(x, self.shared_w3), limit)
        return (y + F.linear(h, self.shared_w2)).view(shape)

    @torch.no_grad()
    def update_bias(self, rate: float) -> None:
        """Auxiliary-loss-free balancing: raise the bias of idle experts, lower that of busy ones."""
        self.bias += rate * (self.load.mean() - self.load).sign()

    @torch.no_grad()
    def exact(self, x: Tensor) -> MoeOutput:
        """The layer on BF16 rows [T, H], everything else in float32."""
        config, x = self.config, x.float()
        scores, selection, ids = self.route(x)
        dense = self.combine_weights(scores, ids)
        gate, up = (torch.einsum("th,eih->tei", x, w) for w in (self.w1, self.w3))
        h = clamped_swiglu(gate, up, config.clamp)
        live = (dense > 0).unsqueeze(-1)
        best = selection.topk(config.top_k + 1, dim=-1).values
        beyond = ((gate > config.clamp) | (up.abs() > config.clamp)) & live
        shared = clamped_swiglu(x @ self.shared_w1.t(), x @ self.shared_w3.t(), config.clamp) @ self.shared_w2.t()
        return MoeOutput(ids, dense.gather(1, ids), torch.einsum("tei,hei->th", h * dense.unsqueeze(-1), self.w2),
                         shared, (best[:, :-1] - best[:, 1:]).amin(-1), (h.abs() * live).amax((0, 2)), int(beyond.sum()))

    def export(self, input_amax: float, hidden_amax: Tensor) -> LayerWeights:
        """The layer's weights as NumPy arrays in the checkpoint's orientation."""
        def array(tensor: Tensor) -> np.ndarray:
            return tensor.detach().float().cpu().numpy()

        return LayerWeights(array(self.gate), array(self.bias),
                            {"w1": array(self.w1), "w2": array(self.w2.permute(1, 0, 2)), "w3": array(self.w3)},
                            {"w1": array(self.shared_w1), "w2": array(self.shared_w2), "w3": array(self.shared_w3)},
                            input_amax, array(hidden_amax))

    @torch.no_grad()
    def load_experts(self, experts: dict[str, np.ndarray], shared: dict[str, np.ndarray]) -> None:
        """Replace the expert weights, for example by dequantised ones."""
        def put(parameter: Tensor, array: np.ndarray) -> None:
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(array, np.float32)))

        put(self.w1, experts["w1"])
        put(self.w3, experts["w3"])
        put(self.w2, experts["w2"].transpose(1, 0, 2))
        for name in ("w1", "w2", "w3"):
            put(getattr(self, f"shared_{name}"), shared[name])


class Attention(nn.Module):
    """Causal multi-head attention with rotary positions."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        size = config.hidden // config.heads
        self.qkv = _normal(3 * config.hidden, config.hidden, std=config.hidden**-0.5)
        self.out = _normal(config.hidden, config.hidden, std=(2 * config.layers * config.hidden) ** -0.5)
        angle = torch.arange(config.context)[:, None] * 10000.0 ** (-torch.arange(0, size, 2) / size)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def rotate(self, x: Tensor) -> Tensor:
        """Rotary position embedding of [B, heads, S, size]."""
        cos, sin = self.cos[:x.shape[-2]], self.sin[:x.shape[-2]]
        a, b = x.float().chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, H] to [B, S, H]."""
        qkv = F.linear(x, self.qkv).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)
        return F.linear(y.transpose(1, 2).flatten(2), self.out)


class Block(nn.Module):
    """Pre-norm attention and MoE, each with dropout on its way into the residual."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm, self.moe_norm = nn.RMSNorm(config.hidden, eps=1e-6), nn.RMSNorm(config.hidden, eps=1e-6)
        self.attention, self.moe = Attention(config), Moe(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, H] to [B, S, H]."""
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.moe(self.moe_norm(x)))


class ByteModel(nn.Module):
    """Bytes in, logits of the next byte out."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.hidden)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden, eps=1e-6)
        self.head = _normal(config.vocabulary, config.hidden, std=config.hidden**-0.5)
        self.dropout = nn.Dropout(config.dropout)

    @property
    def moes(self) -> list[Moe]:
        """The MoE layers in order."""
        return [block.moe for block in self.blocks]

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, S] to [B, S, vocabulary]."""
        x = self.dropout(self.embedding(tokens))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.head)

    @torch.no_grad()
    def round_to_bf16(self) -> None:
        """Make every parameter a BF16 value, still stored as float32; the selection bias stays FP32."""
        for parameter in self.parameters():
            parameter.copy_(parameter.bfloat16().float())

    @torch.no_grad()
    def moe_inputs(self, tokens: Tensor) -> list[Tensor]:
        """The BF16 rows [B * S, H] that enter each MoE layer."""
        rows: list[Tensor] = []
        hooks = [moe.register_forward_pre_hook(lambda _, args: rows.append(args[0].flatten(0, 1).bfloat16()))
                 for moe in self.moes]
        with torch.autocast(tokens.device.type, dtype=torch.bfloat16):
            self(tokens)
        for hook in hooks:
            hook.remove()
        return rows
