"""Recompute the example checkpoints' layers from the shipped files and compare; NumPy only.

Runs on any machine (`train_example.py --check`): the routing must reproduce exactly, the outputs
within the error of the weight format, and the first fault stops with a sentence.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Callable

import numpy as np

from example_quantise import FORMATS, Tensor, from_bf16, matrix_of, read_checkpoint, read_safetensors

# Only weights are rounded here. Rounding a matrix to e4m3, NVFP4 and MXFP4 leaves a relative error of about
# 0.027, 0.095 and 0.11; three matrices in a chain give sqrt(3) times that, and the limits stand a quarter above.
ERROR_LIMIT = {"fp8": 0.06, "nvfp4": 0.21, "mxfp4": 0.24}
SHARED_ERROR_LIMIT = 0.06


def route(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, top_k: int, factor: float) -> tuple[np.ndarray, np.ndarray]:
    """The DeepSeek-V4 gate in float32: ids by sqrt(softplus) plus bias, weights without the bias."""
    logits = x.astype(np.float32) @ weight.astype(np.float32).T
    scores = np.sqrt(np.logaddexp(np.float32(0), logits))
    ids = np.argsort(-(scores + bias), axis=1, kind="stable")[:, :top_k]
    picked = np.take_along_axis(scores, ids, 1)
    return ids, picked / picked.sum(1, keepdims=True) * np.float32(factor)


def expert_forward(x: np.ndarray, w1: np.ndarray, w2: np.ndarray, w3: np.ndarray, limit: float) -> np.ndarray:
    """One expert in float64: silu of the gate clamped from above, times the up clamped on both sides."""
    gate, up = np.minimum(x @ w1.T, limit), np.clip(x @ w3.T, -limit, limit)
    return (gate / (1 + np.exp(-gate)) * up) @ w2.T


def routed_sum(x: np.ndarray, ids: np.ndarray, weights: np.ndarray, matrix: Callable[[int, str], np.ndarray],
               limit: float) -> np.ndarray:
    """Sum of the routed experts in float64; `matrix(expert, name)` gives the weights."""
    y = np.zeros(x.shape)
    for expert in np.unique(ids):
        token, slot = np.nonzero(ids == expert)
        out = expert_forward(x[token], *(matrix(int(expert), name) for name in ("w1", "w2", "w3")), limit)
        y[token] += weights[token, slot, None] * out
    return y


def relative_rms(got: np.ndarray, want: np.ndarray) -> float:
    """|got - want| / |want| over all elements."""
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def check_layer(tensors: dict[str, Tensor], capture: dict[str, Tensor], number: int, config: dict) -> dict[str, float]:
    """Routing and outputs of one layer of a checkpoint against what the trained model gave."""
    prefix, limit = f"layers.{number}.ffn", float(config["swiglu_limit"])
    x = from_bf16(capture["x"].data)
    ids, weights = route(x, from_bf16(tensors[f"{prefix}.gate.weight"].data), tensors[f"{prefix}.gate.bias"].data,
                         config["num_experts_per_tok"], config["routed_scaling_factor"])
    x = x.astype(np.float64)
    y = routed_sum(x, capture["topk_ids"].data, capture["topk_weights"].data.astype(np.float64),
                   lambda expert, name: matrix_of(tensors, f"{prefix}.experts.{expert}.{name}"), limit)
    shared_matrices = [matrix_of(tensors, f"{prefix}.shared_experts.{name}") for name in ("w1", "w2", "w3")]
    shared = expert_forward(x, *shared_matrices, limit)
    return {"ids_differing": float((ids != capture["topk_ids"].data).sum()),
            "weights_max_difference": float(np.abs(weights - capture["topk_weights"].data).max()),
            "routed_relative_rms": relative_rms(y, from_bf16(capture["y_bf16"].data)),
            "shared_relative_rms": relative_rms(shared, from_bf16(capture["y_shared_bf16"].data))}


def check_examples(folder: Path) -> dict[str, list[dict[str, float]]]:
    """Check every shipped checkpoint against the captures; raises ValueError at the first fault."""
    report: dict[str, list[dict[str, float]]] = {}
    for expert_format in FORMATS:
        checkpoint = folder / f"tiny-moe-{expert_format}"
        config = json.loads((checkpoint / "config.json").read_text())
        tensors = read_checkpoint(checkpoint)
        report[expert_format] = []
        for number in range(config["num_hidden_layers"]):
            capture = read_safetensors(folder / "tiny-moe-capture" / f"layer{number}.safetensors")
            result = check_layer(tensors, capture, number, config)
            report[expert_format].append(result)
            sound = (result["ids_differing"] == 0 and result["weights_max_difference"] < 1e-5
                     and result["routed_relative_rms"] < ERROR_LIMIT[expert_format]
                     and result["shared_relative_rms"] < SHARED_ERROR_LIMIT)
            print(f"{expert_format:6} layer {number}: routed {result['routed_relative_rms']:.4f} shared "
                  f"{result['shared_relative_rms']:.4f} ids differing {result['ids_differing']:.0f} "
                  f"weights off by {result['weights_max_difference']:.1e} {'ok' if sound else 'FAULT'}")
            if not sound:
                raise ValueError(f"{checkpoint}: layer {number} does not reproduce the captured outputs: {result}")
    return report
