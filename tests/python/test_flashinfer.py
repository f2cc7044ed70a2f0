"""The FlashInfer kernel against the real flashinfer-python: registered, built and called by its MoEEpLayer, with the bits of the command line and of
MoELayer; ranks in processes; what is refused. No GPU: the CPU backend computes."""

import dataclasses
import importlib.metadata
import inspect
import json
import pathlib
import struct
import subprocess
import sys

import monomoe
import numpy as np
import pytest
from layers import BF16, read_bytes, stacked, tokens, write_file

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -r tests/python/requirements-torch.txt")
moe_ep = pytest.importorskip("flashinfer.moe_ep", exc_type=ImportError,
                             reason="flashinfer cannot be imported: pip install --no-deps -r tests/python/requirements-peers.txt -r tests/python/requirements-vllm.txt")
import monomoe.flashinfer as ours  # noqa: E402
import monomoe.torch  # noqa: E402
from flashinfer.moe_ep.core.kernel import base, registry, workspace_pool  # noqa: E402

EXPERTS, HIDDEN, INTER, TOPK, ROWS = 8, 256, 128, 2, 33
NAMES = {"fp8": "sm90_fp8_fp8_bf16_monomoe", "nvfp4": "sm90_fp8_nvfp4_bf16_monomoe", "mxfp4": "sm90_fp8_mxfp4_bf16_monomoe"}


def to_torch(array):
    if array.dtype == BF16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array.view(np.uint8) if array.dtype.itemsize == 1 else array)


def same(a, b):
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


class Problem:
    def __init__(self, kind, clamp=None, capacity=64):
        rng = np.random.default_rng(6)
        arrays, _ = stacked(rng, kind, EXPERTS, HIDDEN, INTER)
        self.kind, self.weights = kind, [to_torch(a) for a in arrays]
        self.x, self.ids, self.topk_weights = (to_torch(a) for a in tokens(rng, ROWS, HIDDEN, EXPERTS, TOPK))
        self.config = ours.MonomoeMegaMoeConfig(kind, INTER, TOPK, gate_up_clamp=clamp, backend="cpu")
        self.bootstrap = moe_ep.BootstrapConfig(world_size=1, rank=0)
        self.fleet = moe_ep.FleetParams(num_experts=EXPERTS, max_tokens_per_rank=capacity, token_hidden_size=HIDDEN)
        self.clamp = clamp

    def layer(self, pack=None, config=None, **mega):
        w13, s13, w2, s2 = self.weights
        pack = pack or moe_ep.MoEWeightPack(w13, w2, s13, s2)
        return moe_ep.MoEEpLayer(self.bootstrap, self.fleet, pack, backend=moe_ep.MegaConfig(config or self.config, **mega))

    def tensors(self, rows=slice(None), **more):
        return moe_ep.MoEEpTensors(self.x[rows], self.ids[rows].int(), self.topk_weights[rows], **more)

    def want(self, **factors):
        layer = monomoe.torch.MoELayer.from_tensors(self.kind, *self.weights, topk=TOPK, max_tokens=ROWS, swiglu_limit=self.clamp,
                                                    context=monomoe.Context("cpu"), **factors)
        return layer(self.x, self.ids, self.topk_weights)


def test_the_version_the_tests_know():
    assert importlib.metadata.version("flashinfer-python") == ours.KNOWN_VERSION


def test_it_is_registered():
    for kind, name in NAMES.items():
        config = ours.MonomoeMegaMoeConfig(kind, INTER, TOPK)
        assert config.kernel_name == name and registry.is_mega_kernel_config(config) and registry._MEGA_KERNEL_REGISTRY[name] is ours.MonomoeMegaKernel
        assert isinstance(registry.create_mega_kernel(config), ours.MonomoeMegaKernel)


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("clamp", [None, 1.0])
def test_moe_ep_layer_has_the_bits_of_moelayer(kind, clamp):
    p = Problem(kind, clamp)
    layer, want = p.layer(), p.want()
    assert same(layer(p.tensors()), want)
    for rows in (slice(0, 0), slice(0, 1), slice(2, 4)):  # none, one, and a token without any expert
        assert same(layer(p.tensors(rows)), want[rows])
    out = torch.full((ROWS + 3, HIDDEN), 7.0, dtype=torch.bfloat16)
    assert layer(p.tensors(output=out)) is out and same(out[:ROWS], want) and bool((out[ROWS:] == 7).all())
    layer.destroy()
    assert workspace_pool.pooled_workspace_count() == 0


@pytest.mark.parametrize("kind", NAMES)
def test_bits_of_the_command_line(kind, examples, built_program, tmp_path):
    """A layer of a checkpoint: its tensors in a weight pack."""
    folder = examples / f"tiny-moe-{kind}"
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        raw = path.read_bytes()
        start = 8 + struct.unpack("<Q", raw[:8])[0]
        for name, entry in json.loads(raw[8:start]).items():
            if name.startswith("layers.2.ffn.experts."):
                a, b = entry["data_offsets"]
                data = torch.frombuffer(bytearray(raw[start + a:start + b]), dtype=torch.uint8)
                found[name] = (data.view(torch.float32) if entry["dtype"] == "F32" else data).reshape(entry["shape"])

    def stack(*names):
        return torch.stack([torch.cat([found[f"layers.2.ffn.experts.{e}.{name}"] for name in names]) for e in range(32)])

    scale = "weight_scale" if kind == "nvfp4" else "scale"
    pack = moe_ep.MoEWeightPack(stack("w1.weight", "w3.weight"), stack("w2.weight"), stack(f"w1.{scale}", f"w3.{scale}"), stack(f"w2.{scale}"))
    if kind == "nvfp4":
        factors = [torch.tensor([float(found[f"layers.2.ffn.experts.{e}.{w}.weight_scale_2"]) for e in range(32)]) for w in ("w1", "w3", "w2")]
        assert not torch.equal(factors[0], factors[1])  # gate and up have their own, which this kernel takes as [experts, 2]
        pack = moe_ep.Nvfp4WeightPack(pack.w13, pack.w2, pack.w13_scale, pack.w2_scale, torch.stack(factors[:2], dim=1), factors[2])
    x = np.random.default_rng(2).standard_normal((20, 256)).astype(BF16)
    ids, weights = monomoe.Checkpoint(folder).route(2, x)
    layer = moe_ep.MoEEpLayer(moe_ep.BootstrapConfig(1, 0), moe_ep.FleetParams(32, 64, 256), pack,
                              backend=moe_ep.MegaConfig(ours.MonomoeMegaMoeConfig(kind, 64, 4, gate_up_clamp=10.0, backend="cpu")))
    y = layer(moe_ep.MoEEpTensors(to_torch(x), torch.from_numpy(ids).int(), torch.from_numpy(weights)))
    write_file(tmp_path / "in.safetensors", {"x": x, "topk_ids": ids, "topk_weights": weights})
    subprocess.run([built_program("monomoe"), "run", folder, "--layer", "2", "--input", tmp_path / "in.safetensors", "--output", tmp_path / "out.safetensors",
                    "--backend", "cpu"], check=True, capture_output=True)
    assert y.view(torch.uint8).numpy().tobytes() == read_bytes(tmp_path / "out.safetensors", "y")
    layer.destroy()


def test_global_scales_of_a_pack():
    p = Problem("nvfp4")
    w13, s13, w2, s2 = p.weights
    each, one = torch.linspace(0.5, 1.5, EXPERTS), torch.tensor(0.75)
    layer = p.layer(moe_ep.Nvfp4WeightPack(w13, w2, s13, s2, each, one))
    assert same(layer(p.tensors()), p.want(w13_global=each, w2_global=one.expand(EXPERTS).contiguous()))
    layer.destroy()


def test_quantised_rows():
    p = Problem("mxfp4")
    rows, scales = torch.zeros((ROWS, HIDDEN), dtype=torch.uint8).view(torch.float8_e4m3fn), torch.zeros((ROWS, HIDDEN // 128))
    from monomoe.compat import deep_gemm
    deep_gemm.mega_moe_pre_dispatch_sm90(p.x, p.ids.int(), p.topk_weights, rows, scales, torch.zeros((ROWS, TOPK), dtype=torch.int64), torch.zeros((ROWS, TOPK)), ROWS)
    layer = p.layer(quantize_input=False)
    assert same(layer(moe_ep.MoEEpTensors(rows, p.ids.int(), p.topk_weights, scales=scales)), p.want())
    layer.destroy()


def test_layers_share_a_workspace_and_capacities_are_profiles():
    p = Problem("fp8")
    first, second = p.layer(), p.layer()
    want = p.want()
    assert same(first(p.tensors()), want) and same(second(p.tensors()), want)
    assert workspace_pool.pooled_workspace_count() == 1
    small = first.create_workspace(4)
    assert same(first(p.tensors(slice(0, 4)), workspace=small), want[:4])
    with pytest.raises(ValueError, match="exceed max_tokens_per_rank=4"):
        first(p.tensors(slice(0, 5)), workspace=small)
    first.destroy()
    assert same(second(p.tensors()), want)
    second.destroy()
    assert workspace_pool.pooled_workspace_count() == 0


def test_prepared_weights():
    p = Problem("mxfp4")
    kernel = registry.create_mega_kernel(p.config)
    kernel.bind_ep_bootstrap(p.bootstrap)
    w13, s13, w2, s2 = p.weights
    packed = kernel.preprocess_weights(moe_ep.MoEWeightPack(w13, w2, s13, s2), p.fleet)
    layer = p.layer(preprocess_weights=False, transformed_weights=packed)
    assert same(layer(p.tensors()), p.want())
    layer.destroy()
    with pytest.raises(monomoe.UsageError, match="transformed_weights is a tuple, wanted what this kernel's preprocess_weights gave"):
        p.layer(preprocess_weights=False, transformed_weights=(1, 2))


def test_refusals():
    p = Problem("fp8")
    w13, s13, w2, s2 = p.weights
    with pytest.raises(monomoe.UsageError, match="the weights have no scales, wanted fp8 with w13_scale and w2_scale"):
        p.layer(moe_ep.MoEWeightPack(torch.zeros(EXPERTS, 2 * INTER, HIDDEN), torch.zeros(EXPERTS, HIDDEN, INTER)))
    with pytest.raises(monomoe.UsageError, match="sm90_fp8_fp8_bf16_monomoe: intermediate is 100; it must be"):
        p.layer(config=dataclasses.replace(p.config, intermediate_size=100))
    with pytest.raises(monomoe.UsageError, match="format is 'int8', wanted one of"):
        ours.MonomoeMegaMoeConfig("int8", INTER, TOPK)
    with pytest.raises(monomoe.UsageError, match="BootstrapConfig.stream is 5, wanted 0"):
        p.bootstrap = moe_ep.BootstrapConfig(world_size=1, rank=0, stream=5)
        p.layer()
    p.bootstrap = moe_ep.BootstrapConfig(world_size=1, rank=0)
    with pytest.raises(monomoe.UsageError, match="w13_scale has shape|w13_scale"):
        p.layer(moe_ep.MoEWeightPack(w13, w2, s13[:, :1].contiguous(), s2))
    layer = p.layer()
    with pytest.raises(monomoe.UsageError, match="MoEEpTensors.fc1_alpha is given and would change nothing"):
        layer(p.tensors(fc1_alpha=torch.ones(EXPERTS)))
    with pytest.raises(monomoe.UsageError, match="topk_weights is bfloat16, wanted float32"):
        layer(moe_ep.MoEEpTensors(p.x, p.ids.int(), p.topk_weights.bfloat16()))
    layer.destroy()
    if not torch.cuda.is_available():
        with pytest.raises(monomoe.UnavailableError):  # cuda is asked for by default, and nothing else is taken
            p.layer(config=ours.MonomoeMegaMoeConfig("fp8", INTER, TOPK))


def test_another_contract_is_refused(monkeypatch):
    monkeypatch.setattr(base.MegaKernelBackend, "__abstractmethods__", frozenset({"kernel_name", "launch"}))
    with pytest.raises(monomoe.UnavailableError, match=r"asks its kernels for \['kernel_name', 'launch'\], monomoe knows"):
        ours._require_contract()
    monkeypatch.undo()
    ours._require_contract()


def test_signatures_of_the_contract():
    for name in ("validate_init", "preprocess_weights", "validate_transformed_weights", "_allocate_workspace", "_workspace_pool_key", "validate_forward",
                 "stage_inputs", "compute", "_forget_local_workspace_state"):
        theirs, mine = (list(inspect.signature(getattr(cls, name)).parameters) for cls in (base.MegaKernelBackend, ours.MonomoeMegaKernel))
        assert mine == theirs, name


def test_ranks_have_the_bits_of_one(tmp_path, build_dir):
    script = pathlib.Path(__file__).with_name("flashinfer_rank.py")
    outs = [tmp_path / f"rank{rank}.json" for rank in range(2)]
    ranks = [subprocess.Popen([sys.executable, script, str(rank), str(tmp_path / "store"), str(build_dir / "python"), str(out)],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank, out in enumerate(outs)]
    texts = [process.communicate(timeout=300)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], "\n".join(texts)
    assert [json.loads(out.read_text()) for out in outs] == [[True] * 3] * 2
