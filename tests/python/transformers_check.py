"""A DeepSeek-V4 model of transformers, small and with random weights, whose routed experts run here: python transformers_check.py [--device cuda]

Each format: the BF16 experts are quantised, every layer's experts become a MoELayer, the model generates 16 tokens, and the logits over prompt and
generated tokens are compared with the BF16 model's. Prints a line each and exits 1 if a bound does not hold.

The bound on the relative RMS error of the logits. A code with m mantissa bits rounds with a relative RMS error of about 2^-(m+1) / sqrt(3) / 1.39
(uniform in half a step; 1.39 is the RMS-mean mantissa): 0.026 for E4M3, 0.10 for E2M1, where scales of their own round too: 0.11 for NVFP4 and 0.12 for
MXFP4, whose power of two leaves up to half of the range unused. In a product of many terms such errors add as squares. Weights w, activations a = 0.026:
gate and up each have e1 = sqrt(w^2 + a^2), their product sqrt(2) e1, and the block e = sqrt(2 e1^2 + a^2 + w^2): 0.064, 0.20, 0.21. The logits have it in the
share of them that the experts make, which is the error of the model without its experts. A token that changes an expert because of it costs more: a factor
2. BF16 itself is not exact: its own error against float32 comes on top. bound = 2 e share + own.
"""

import argparse
import copy
import sys

import monomoe
import torch
from monomoe.torch import MoELayer
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

ROUNDING = {"fp8": 0.026, "nvfp4": 0.11, "mxfp4": 0.12}
ACTIVATIONS, FLIPS = 0.026, 2.0
NEW_TOKENS = 16
GAIN, ROUTER = 0.5, 4.0  # of an expert, and of the logits that choose experts


def bound(kind, share, own):
    w, a = ROUNDING[kind], ACTIVATIONS
    return FLIPS * (2 * (w * w + a * a) + a * a + w * w) ** 0.5 * share + own


def model_of(seed, device):
    torch.manual_seed(seed)
    config = DeepseekV4Config(vocab_size=512, hidden_size=256, moe_intermediate_size=128, num_hidden_layers=4, num_attention_heads=4, head_dim=64,
                              q_lora_rank=64, n_routed_experts=16, num_experts_per_tok=4, o_groups=2, o_lora_rank=64, index_n_heads=2, index_head_dim=32,
                              index_topk=16, sliding_window=16, num_hash_layers=1, max_position_embeddings=256, eos_token_id=None)
    model = DeepseekV4ForCausalLM(config).to(torch.bfloat16).to(device).eval()
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_(0, 1)
        for layer in model.model.layers:
            layer.mlp.experts.gate_up_proj.normal_(0, 256**-0.5)
            layer.mlp.experts.down_proj.normal_(0, GAIN * 128**-0.5)
            layer.mlp.gate.weight.normal_(0, ROUTER * 256**-0.5)
    return model


def e2m1(values):
    """Codes of values / scale that lie within [-6, 6], nearest, two a byte, the even column low."""
    magnitude = values.abs()
    codes = torch.bucketize(magnitude, torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], device=values.device)).to(torch.uint8)
    codes |= (values < 0).to(torch.uint8) << 3
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def quantise(kind, weights):
    """codes, scales of [E, rows, cols] BF16 weights, and float32 [E] global scales for NVFP4."""
    values = weights.float()
    if kind == "fp8":
        experts, rows, cols = values.shape
        blocks = values.reshape(experts, rows // 128, 128, cols // 128, 128)
        scales = blocks.abs().amax(dim=(2, 4)) / 448
        codes = (blocks / scales[:, :, None, :, None]).to(torch.float8_e4m3fn).reshape(values.shape)
        return codes, scales, None
    group = 16 if kind == "nvfp4" else 32
    groups = values.unflatten(-1, (-1, group))
    largest = groups.abs().amax(dim=-1)
    if kind == "mxfp4":
        exponents = torch.floor(torch.log2(largest)) - 2
        codes = e2m1((groups / torch.exp2(exponents).unsqueeze(-1)).clamp(-6, 6).flatten(-2))
        return codes, (exponents + 127).to(torch.uint8), None
    factors = largest.amax(dim=(1, 2)) / (6 * 448)
    scales = (largest / 6 / factors[:, None, None]).to(torch.float8_e4m3fn)
    codes = e2m1((groups / (scales.float() * factors[:, None, None]).unsqueeze(-1)).clamp(-6, 6).flatten(-2))
    return codes, scales, factors


class Experts(torch.nn.Module):
    """In the place of transformers' experts: the same arguments."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, hidden_states, top_k_index, top_k_weights):
        return self.layer(hidden_states, top_k_index, top_k_weights.float())


def replace_experts(model, kind, context):
    workspace = None
    for layer in model.model.layers:
        experts = layer.mlp.experts
        (w13, s13, g13), (w2, s2, g2) = (quantise(kind, p.detach()) for p in (experts.gate_up_proj, experts.down_proj))
        ours = MoELayer.from_tensors(kind, w13, s13, w2, s2, topk=0 if workspace else model.config.num_experts_per_tok, max_tokens=0 if workspace else 64,
                                     w13_global=g13, w2_global=g2, swiglu_limit=model.config.swiglu_limit, context=context, workspace=workspace)
        workspace = ours.workspace
        layer.mlp.experts = Experts(ours)


def error(found, want):
    return ((found - want).float().square().mean() / want.float().square().mean()).sqrt().item()


@torch.inference_mode()
def check(kind, device, seed=0):
    """The relative errors of the logits: ours, the share of the experts (what is wrong without them), BF16's own."""
    model = model_of(seed, device)
    prompt = torch.randint(0, 512, (2, 12), device=device)
    text = model.generate(prompt, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0)
    want = model(text).logits
    own = error(want, copy.deepcopy(model).float()(text).logits)
    replace_experts(model, kind, monomoe.Context(device if device == "cpu" else "cuda"))
    generated = model.generate(prompt, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0)
    assert generated.shape == (2, 12 + NEW_TOKENS)
    found = error(model(text).logits, want)
    for layer in model.model.layers:
        layer.mlp.experts = Experts(lambda x, *_: torch.zeros_like(x))
    return found, error(model(text).logits, want), own


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    device = parser.parse_args().device
    failed = False
    for kind in ROUNDING:
        found, share, own = check(kind, device)
        held = found <= bound(kind, share, own)
        failed |= not held
        print(f"{kind} on {device}: relative RMS error of the logits {found:.3f}, bound {bound(kind, share, own):.3f} (the experts' share {share:.2f}, BF16's own "
              f"error {own:.3f}){'' if held else '  FAILED'}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
