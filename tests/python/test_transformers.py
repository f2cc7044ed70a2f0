"""A transformers model with its experts replaced by ours generates, and its logits stay within the stated bound (transformers_check.py)."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -r tests/python/requirements-torch.txt")
pytest.importorskip("transformers", reason="transformers is not installed: pip install -r tests/python/requirements-vllm.txt")
import transformers_check  # noqa: E402


@pytest.mark.parametrize("kind", transformers_check.ROUNDING)
def test_logits_within_the_bound(kind):
    found, share, own = transformers_check.check(kind, "cpu")
    assert own < found <= transformers_check.bound(kind, share, own)
    assert share > 0.3 and found < share / 2  # the experts matter, and are those


def test_a_wrong_factor_breaks_the_bound(monkeypatch):
    def twice(self, hidden_states, top_k_index, top_k_weights):
        return self.layer(hidden_states, top_k_index, 2.0 * top_k_weights.float())

    monkeypatch.setattr(transformers_check.Experts, "forward", twice)
    found, share, own = transformers_check.check("mxfp4", "cpu")
    assert found > transformers_check.bound("mxfp4", share, own)
