"""The checkpoint's router against the router classes of transformers, on random inputs, with config.json as transformers writes it.

Ours sums in double, theirs in float32, so experts whose choice values differ by less than the rounding may be chosen either way: tokens with
such a pair at the edge of the choice are left out, and there may only be few of them.
"""

import importlib
import json

import ml_dtypes
import numpy as np
import pytest
import torch
from transformers import AutoConfig

import layers
import monomoe

HIDDEN, INTER, TOKENS = 256, 32, 200
GROUPED = {"n_group": 8, "topk_group": 3}

# model type, router class, settings beside hidden size and experts, experts, top-k
ROUTERS = [
    ("deepseek_v2", "DeepseekV2TopkRouter", {"topk_method": "greedy"}, 64, 6),
    ("deepseek_v2", "DeepseekV2TopkRouter", {"topk_method": "group_limited_greedy", "routed_scaling_factor": 16.0} | GROUPED, 64, 6),
    ("deepseek_v3", "DeepseekV3TopkRouter", GROUPED, 64, 8),
    ("deepseek_v3", "DeepseekV3TopkRouter", GROUPED | {"norm_topk_prob": False}, 64, 8),
    ("deepseek_v3", "DeepseekV3TopkRouter", {"n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827}, 96, 8),  # Kimi-K2
    ("deepseek_v32", "DeepseekV32TopkRouter", GROUPED, 64, 8),
    ("deepseek_v4", "DeepseekV4TopKRouter", {}, 64, 6),
    ("glm4_moe", "Glm4MoeTopkRouter", {"routed_scaling_factor": 2.5}, 32, 8),
    ("glm_moe_dsa", "GlmMoeDsaTopkRouter", {}, 64, 8),
    ("mimo_v2_flash", "MiMoV2FlashTopkRouter", {}, 64, 8),
    ("qwen2_moe", "Qwen2MoeTopKRouter", {}, 60, 4),
    ("qwen3_moe", "Qwen3MoeTopKRouter", {"norm_topk_prob": False}, 64, 8),
    ("qwen3_moe", "Qwen3MoeTopKRouter", {"norm_topk_prob": True}, 64, 8),  # the same as a softmax over the chosen logits alone
    ("qwen3_next", "Qwen3NextTopKRouter", {}, 64, 10),
    ("qwen3_5_moe", "Qwen3_5MoeTopKRouter", {}, 64, 8),
]


def build(model_type, router_name, settings, experts, topk):
    """A router of transformers with random parameters, and its config."""
    names = {"num_experts": experts} if model_type.startswith("qwen") else {"n_routed_experts": experts}
    config = AutoConfig.for_model(model_type)
    text = config.get_text_config()
    for name, value in ({"hidden_size": HIDDEN, "moe_intermediate_size": INTER, "num_experts_per_tok": topk, "vocab_size": 500} | names | settings).items():
        setattr(text, name, value)
    module = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    router = getattr(module, router_name)(text)
    with torch.no_grad():
        router.weight.copy_(torch.randn(experts, HIDDEN).to(torch.bfloat16) * HIDDEN**-0.5 * 2)
        if hasattr(router, "e_score_correction_bias"):
            router.e_score_correction_bias.copy_(torch.randn(experts) * 0.3)  # large enough to change many choices, some below zero
    return router, config


def write_checkpoint(folder, router, config, experts):
    """The router's tensors in the checkpoint's names, beside experts that nobody reads."""
    folder.mkdir()
    settings = config.to_dict()
    settings.pop("torch_dtype", None)
    (folder / "config.json").write_text(json.dumps(settings, default=str))
    prefix = "model.layers.0.mlp."
    tensors = {prefix + "gate.weight": router.weight.detach().numpy().astype(ml_dtypes.bfloat16)}
    if hasattr(router, "e_score_correction_bias"):
        tensors[prefix + "gate.e_score_correction_bias"] = router.e_score_correction_bias.numpy()
    if hasattr(router, "tid2eid"):
        tensors[prefix + "gate.tid2eid"] = router.tid2eid.numpy()
    for expert in range(experts):
        for name, shape in (("gate_proj", (INTER, HIDDEN)), ("up_proj", (INTER, HIDDEN)), ("down_proj", (HIDDEN, INTER))):
            tensors[f"{prefix}experts.{expert}.{name}.weight"] = np.zeros(shape, ml_dtypes.bfloat16)
    layers.write_file(folder / "model.safetensors", tensors)
    return monomoe.Checkpoint(folder)


def choice_values(router, config, x):
    """What transformers ranks, float64 [tokens, experts]: to know which choices are close."""
    logits = x.double() @ router.weight.detach().double().T
    model_type = config.get_text_config().model_type
    if model_type.startswith(("qwen", "deepseek_v2")):
        return logits.softmax(dim=-1)
    scores = torch.nn.functional.softplus(logits).sqrt() if model_type == "deepseek_v4" else logits.sigmoid()
    return scores + router.e_score_correction_bias.double()


def is_clear(values, settings, topk):
    """Whether no rounding decides: of the best groups, and of the best experts among them."""
    groups, kept = settings.get("n_group", 1) or 1, settings.get("topk_group", 1) or 1
    values = values.reshape(groups, -1)
    if kept < groups:
        best = 1 if settings.get("topk_method") == "group_limited_greedy" else 2
        scores = values.topk(best, dim=-1).values.sum(dim=-1).sort(descending=True).values
        if scores[kept - 1] - scores[kept] < 1e-5:
            return False
        order = values.topk(best, dim=-1).values.sum(dim=-1).argsort(descending=True)
        values = values[order[:kept]]
    ranked = values.flatten().sort(descending=True).values
    return bool(ranked[topk - 1] - ranked[topk] > 1e-5)


@pytest.mark.parametrize("model_type, router_name, settings, experts, topk", ROUTERS, ids=lambda value: value if isinstance(value, str) else None)
def test_routers_choose_and_weigh_as_transformers(tmp_path, model_type, router_name, settings, experts, topk):
    torch.manual_seed(experts * 100 + topk)
    router, config = build(model_type, router_name, settings, experts, topk)
    checkpoint = write_checkpoint(tmp_path / "model", router, config, experts)
    x = torch.randn(TOKENS, HIDDEN).to(torch.bfloat16)
    _, wanted_weights, wanted_ids = router(x.float())
    ids, weights = checkpoint.route(0, x)
    assert ids.shape == weights.shape == (TOKENS, topk)
    values = choice_values(router, config, x)
    clear = [t for t in range(TOKENS) if is_clear(values[t], settings, topk)]
    assert len(clear) > 0.95 * TOKENS
    changed_by_bias = 0
    for t in clear:
        ours = dict(zip(ids[t].tolist(), weights[t].tolist()))
        theirs = dict(zip(wanted_ids[t].tolist(), wanted_weights[t].tolist()))
        assert set(ours) == set(theirs), t
        np.testing.assert_allclose([ours[e] for e in theirs], list(theirs.values()), rtol=2e-5)
        changed_by_bias += set(ours) != set(values[t].topk(topk).indices.tolist())
        # Ours are in the order of the choice, the best first.
        ranked = values[t][ids[t]].tolist()
        assert all(a >= b - 1e-6 for a, b in zip(ranked, ranked[1:]))
    if settings.get("topk_group", 1) < (settings.get("n_group", 1) or 1):
        assert changed_by_bias > TOKENS // 10  # the limit to groups decides something


def test_hash_layers_take_ids_from_the_table(tmp_path):
    torch.manual_seed(7)
    router, config = build("deepseek_v4", "DeepseekV4HashRouter", {}, 32, 6)
    router.tid2eid.copy_(torch.stack([torch.randperm(32)[:6] for _ in range(router.tid2eid.shape[0])]))
    checkpoint = write_checkpoint(tmp_path / "model", router, config, 32)
    x, tokens = torch.randn(TOKENS, HIDDEN).to(torch.bfloat16), torch.randint(0, router.tid2eid.shape[0], (TOKENS,))
    _, wanted_weights, wanted_ids = router(x.float(), tokens)
    assert checkpoint.layer_info(0).needs_token_ids
    ids, weights = checkpoint.route(0, x, tokens)
    assert torch.equal(ids, wanted_ids)  # in the table's order
    np.testing.assert_allclose(weights.numpy(), wanted_weights.detach().numpy(), rtol=2e-5)


def test_ties_go_to_the_lower_expert(tmp_path):
    """Of transformers no order is promised there; ours is written down."""
    router, config = build("qwen3_moe", "Qwen3MoeTopKRouter", {"norm_topk_prob": True}, 16, 4)
    with torch.no_grad():
        router.weight.copy_(router.weight[:4].repeat(4, 1))  # experts e, e + 4, e + 8 and e + 12 are equal
    checkpoint = write_checkpoint(tmp_path / "model", router, config, 16)
    ids, weights = checkpoint.route(0, torch.randn(50, HIDDEN).to(torch.bfloat16))
    for row in ids.tolist():
        assert row == [row[0] % 4, row[0] % 4 + 4, row[0] % 4 + 8, row[0] % 4 + 12]
    assert torch.equal(weights, torch.full((50, 4), 0.25))
