"""The vLLM plugin against the real vLLM: loaded by its loader, its own DeepSeek-V4 block built, loaded and run with the bits of the command line,
what is refused, and the interfaces it relies on. No GPU: the CPU backend computes."""

import copy
import importlib.metadata
import inspect
import json
import pathlib
import subprocess
import sys
import types

import monomoe
import numpy as np
import pytest
from layers import BF16, read_bytes, write_file

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -r tests/python/requirements-torch.txt")
pytest.importorskip("vllm", reason="vLLM's sources are not installed: see tests/python/requirements-vllm.txt")
if torch.cuda.is_available():
    pytest.skip("this machine has a GPU, where vLLM's own operations are the GPU's: tests/e2e/vllm_e2e.py is the test here", allow_module_level=True)

import vllm_layers as stand  # noqa: E402
import monomoe.vllm as plugin  # noqa: E402
from vllm.config import KernelConfig, ParallelConfig, VllmConfig  # noqa: E402
from vllm.distributed import cleanup_dist_env_and_memory, init_distributed_environment, initialize_model_parallel  # noqa: E402
from vllm.model_executor.custom_op import PluggableLayer, op_registry_oot  # noqa: E402
from vllm.model_executor.layers.fused_moe import FusedMoEFactory  # noqa: E402
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts  # noqa: E402
from vllm.model_executor.layers.quantization.fp8 import Fp8Config  # noqa: E402
from vllm.model_executor.layers.quantization.modelopt import ModelOptMixedPrecisionConfig, ModelOptNvFp4Config  # noqa: E402
from vllm.model_executor.layers.quantization.mxfp4 import GptOssMxfp4Config, Mxfp4Config  # noqa: E402
from vllm.model_executor.model_loader.base_loader import BaseModelLoader  # noqa: E402


def bits(tensor):
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()


@pytest.fixture(scope="module", autouse=True)
def loaded(tmp_path_factory):
    """vLLM's loader with our entry point, and its distributed state for one process."""
    assert plugin._missing is None and "RoutedExperts" not in op_registry_oot
    stand.install_entry_points(tmp_path_factory.mktemp("site"))
    import vllm.plugins
    vllm.plugins.plugins_loaded = False
    vllm.plugins.load_general_plugins()
    config = VllmConfig(device_config=stand.DeviceConfig(device="cpu"))
    with stand.set_current_vllm_config(config):
        init_distributed_environment(1, 0, f"file://{tmp_path_factory.mktemp('store')}/store", 0, "gloo")
        initialize_model_parallel()
    yield
    cleanup_dist_env_and_memory()


def test_the_loader_put_the_hooks_in_place():
    from monomoe.vllm.experts import MonomoeRoutedExperts
    plugin.hooks_in_place()
    assert op_registry_oot["RoutedExperts"] is MonomoeRoutedExperts
    assert BaseModelLoader.load_model._monomoe and VllmConfig.__post_init__._monomoe
    before = BaseModelLoader.load_model, VllmConfig.__post_init__
    plugin.register()  # vLLM calls it in every process, sometimes twice
    assert before == (BaseModelLoader.load_model, VllmConfig.__post_init__)


def test_the_version_the_tests_know():
    assert importlib.metadata.version("vllm") == plugin.KNOWN_VERSION


@pytest.mark.parametrize("kind", ["fp8", "nvfp4", "mxfp4"])
@pytest.mark.parametrize("layer", [0, 3])
def test_deepseek_v4_block_has_the_bits_of_the_command_line(kind, layer, examples, built_program, tmp_path, caplog_vllm):
    """vLLM's configuration, block, weight names, loader, routing, runner and custom operation; our experts."""
    folder = examples / f"tiny-moe-{kind}"
    config = stand.config_of(folder)
    model = stand.load(folder, layer, config)
    assert type(model.ffn.experts.routed_experts.quant_method).__name__ == "MonomoeMethod"
    held = {name: p.numel() for name, p in model.ffn.experts.routed_experts.named_parameters() if name.startswith("w")}
    assert len(held) == (8 if kind == "nvfp4" else 4) and not any(held.values())  # vLLM's copies are freed
    assert f"runs the experts of 1 layers ({kind}; 32 experts, top-4, hidden 256, intermediate 64) on cpu" in caplog_vllm.text
    x = torch.randn((33, 256), generator=torch.Generator().manual_seed(layer)).bfloat16()
    x[5:7] = float("nan")  # rows of padding: the stand-in router drops them
    y, ids, weights = stand.forward(model, config, x)
    assert (ids[5:7] == -1).all() and not y[5:7].any() and not y.isnan().any()
    assert torch.allclose(weights[:5].sum(-1), torch.full((5,), 1.5))  # the scaling factor is in the weights, once
    write_file(tmp_path / "in.safetensors", {"x": x.nan_to_num().view(torch.uint16).numpy().view(BF16), "topk_ids": ids.long().numpy(), "topk_weights": weights.numpy()})
    subprocess.run([built_program("monomoe"), "run", folder, "--layer", str(layer), "--input", tmp_path / "in.safetensors", "--output",
                    tmp_path / "out.safetensors", "--backend", "cpu", "--ranks", "2"], check=True, capture_output=True)
    assert bits(y) == read_bytes(tmp_path / "out.safetensors", "y")
    for rows in (0, 1):
        part, _, _ = stand.forward(model, config, x[:rows])
        assert part.shape == (rows, 256) and bits(part) == bits(y[:rows])


@pytest.mark.parametrize("kind", ["fp8", "nvfp4", "mxfp4"])
def test_dummy_weights_load(kind, examples, monkeypatch):
    """vllm serve --load-format dummy."""
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader
    monkeypatch.setattr(stand.Loader, "load_weights", DummyModelLoader.load_weights)
    config = stand.config_of(examples / f"tiny-moe-{kind}")
    model = stand.load(examples / f"tiny-moe-{kind}", 0, config)
    y, _, _ = stand.forward(model, config, torch.randn(3, 256).bfloat16())
    assert y.any() and y.isfinite().all()


def test_torch_compile_sees_vllms_operation(examples):
    folder = examples / "tiny-moe-fp8"
    config = stand.config_of(folder)
    model = stand.load(folder, 0, config)
    x = torch.randn((9, 256), generator=torch.Generator().manual_seed(1)).bfloat16()
    want, _, _ = stand.forward(model, config, x)
    model.ffn = torch.compile(model.ffn, backend="aot_eager", fullgraph=True)
    found, _, _ = stand.forward(model, config, x)
    assert bits(found) == bits(want)
    torch._dynamo.reset()


@pytest.fixture
def caplog_vllm(caplog):
    """vLLM's loggers do not hand their records on."""
    import logging
    logger = logging.getLogger("vllm.plugins.monomoe")
    logger.addHandler(caplog.handler)
    logger.setLevel(logging.INFO)
    yield caplog
    logger.removeHandler(caplog.handler)


class Layer(torch.nn.Module):
    """Any layer of vLLM's fused MoE path, with a router that gives what it is told."""

    def __init__(self, quant_config, route, config, **more):
        super().__init__()
        with stand.set_current_vllm_config(config):
            self.experts = FusedMoEFactory(num_experts=8, top_k=2, hidden_size=256, intermediate_size=128, quant_config=quant_config,
                                           prefix=f"model.layers.{config.additional_config['n']}.mlp.experts", params_dtype=torch.bfloat16,
                                           custom_routing_function=route, **more)


_count = iter(range(1000))


def config_for(**parts):
    extra = {"n": next(_count), **stand.ASKED, **parts.pop("additional_config", {})}
    return VllmConfig(device_config=stand.DeviceConfig(device="cpu"), additional_config=extra, **parts)


def random_nvfp4(limit, factor=None, **more):
    """A ModelOpt NVFP4 layer with random experts whose gate and up have different global scales, and MoELayer's on the same tensors."""
    from layers import stacked, tokens
    rng = np.random.default_rng(4)
    (w13, s13, w2, s2), _ = stacked(rng, "nvfp4", 8, 256, 128)
    globals13, globals2 = rng.uniform(0.5, 2, (8, 2)).astype(np.float32), rng.uniform(0.5, 2, 8).astype(np.float32)
    x, ids, weights = (torch.from_numpy(a.view(np.uint16)).view(torch.bfloat16) if a.dtype == BF16 else torch.from_numpy(a) for a in tokens(rng, 9, 256, 8, 2))
    config = config_for()
    quant = ModelOptNvFp4Config(is_checkpoint_nvfp4_serialized=True)
    layer = Layer(quant, lambda hidden_states, **_: (weights[:len(hidden_states)], ids[:len(hidden_states)]), config, swiglu_limit=limit, **more)
    names = {"gate_proj": (w13[:, :128], s13[:, :128], globals13[:, 0]), "up_proj": (w13[:, 128:], s13[:, 128:], globals13[:, 1]), "down_proj": (w2, s2, globals2)}
    given = []
    for e in range(8):
        for name, (codes, scales, factors) in names.items():
            given += [(f"{e}.{name}.weight", torch.from_numpy(codes[e])), (f"{e}.{name}.weight_scale_2", torch.tensor(factors[e])),
                      (f"{e}.{name}.weight_scale", torch.from_numpy(scales[e].view(np.uint8)).view(torch.float8_e4m3fn)),
                      (f"{e}.{name}.input_scale", torch.tensor(0.25))]
    list(layer.experts.load_weights(given))
    layer.experts.routed_experts.quant_method.process_weights_after_loading(layer.experts.routed_experts)
    ours = monomoe.torch.MoELayer.from_tensors("nvfp4", *(torch.from_numpy(a if a.dtype == np.uint8 else a.view(np.uint8)) for a in (w13, s13, w2, s2)), topk=2,
                                               max_tokens=9, w13_global=torch.from_numpy(globals13), w2_global=torch.from_numpy(globals2),
                                               swiglu_limit=limit, context=monomoe.Context("cpu"))
    with torch.inference_mode(), stand.set_current_vllm_config(config), stand.set_forward_context(None, config, num_tokens=9):
        found = layer.experts(x.clone(), torch.zeros(9, 8))
    return found, ours(x, ids, weights), layer, x


@pytest.mark.parametrize("limit", [None, 7.0])
def test_modelopt_layer_keeps_both_global_scales(limit):
    found, want, _, _ = random_nvfp4(limit)
    assert bits(found) == bits(want)


def test_a_factor_on_the_output_is_the_runners():
    found, want, _, _ = random_nvfp4(None, routed_scaling_factor=2.5, apply_routed_scale_to_output=True)
    assert bits(found) == bits(want * 2.5)


def test_without_being_asked_it_does_nothing(monkeypatch, examples):
    def theirs(self, prefix, quant_config, moe_config):
        raise LookupError(f"vLLM's own method of {prefix}")  # which one it takes depends on the machine

    monkeypatch.setattr(RoutedExperts, "_get_quant_method", theirs)
    for additional in ({}, {"moe_backend": "another"}):
        config = VllmConfig(device_config=stand.DeviceConfig(device="cpu"), additional_config={"n": next(_count), **additional})
        with pytest.raises(LookupError, match="vLLM's own method of model.layers"):
            Layer(Fp8Config(), lambda **_: None, config)
    other = stand.config_of(examples / "tiny-moe-fp8", additional={}, kernel_config=KernelConfig(moe_backend="triton"))
    monkeypatch.setattr(stand.Loader, "load_weights", lambda *_: None)
    assert isinstance(stand.load(examples / "tiny-moe-fp8", 0, other, block=Plain), Plain)


class Plain(stand.Block):
    """A model without routed experts."""

    def __init__(self, config, layer):
        torch.nn.Module.__init__(self)
        self.ffn = torch.nn.Linear(2, 2)


def test_a_model_that_does_not_use_it_is_refused(examples, monkeypatch):
    folder = examples / "tiny-moe-fp8"
    monkeypatch.setattr(stand.Loader, "load_weights", lambda *_: None)
    with pytest.raises(monomoe.UnavailableError, match="Plain does not use it: it has no RoutedExperts"):
        stand.load(folder, 0, stand.config_of(folder), block=Plain)
    config = stand.config_of(folder)  # a draft model may have none
    config.speculative_config = types.SimpleNamespace(target_model_config=config.model_config, draft_model_config=copy.copy(config.model_config))
    with stand.set_current_vllm_config(config):
        stand.Loader(folder, 0, Plain).load_model(config, config.speculative_config.draft_model_config)
        with pytest.raises(monomoe.UnavailableError, match="it has no RoutedExperts"):
            stand.Loader(folder, 0, Plain).load_model(config, config.model_config)


def test_a_vllm_that_does_not_fit_is_refused_when_asked(monkeypatch, examples):
    monkeypatch.setitem(op_registry_oot, "RoutedExperts", type("Other", (RoutedExperts,), {}))
    plugin.register()
    try:
        VllmConfig(device_config=stand.DeviceConfig(device="cpu"))
        with pytest.raises(monomoe.UnavailableError, match="does not fit vLLM 0.33.0 .*another plugin replaces vLLM's RoutedExperts"):
            config_for()
    finally:
        monkeypatch.undo()
        plugin.register()
    config_for()


@pytest.mark.parametrize("sentence,parts", [
    ("--moe-backend is 'marlin'; leave it at 'auto'", lambda: {"kernel_config": KernelConfig(moe_backend="marlin")}),
    ("--all2all-backend is 'deepep_low_latency'; leave it away", lambda: {"parallel_config": ParallelConfig(all2all_backend="deepep_low_latency")}),
    ("--expert-placement-strategy is 'round_robin'; use linear", lambda: {"parallel_config": ParallelConfig(expert_placement_strategy="round_robin")}),
    ("without --enable-expert-parallel every expert is cut over all ranks; add it", lambda: {"parallel_config": ParallelConfig(tensor_parallel_size=2)}),
])
def test_deployments_that_are_refused(sentence, parts):
    with pytest.raises(ValueError, match=sentence):
        config_for(**parts())


def test_experts_may_be_balanced(examples):
    """What vLLM's balancer is given, and what is refused. Set in a configuration that is there: one that is being made wants a GPU for it."""
    from monomoe.vllm import checks, hooks
    config = config_for()
    config.parallel_config.enable_eplb = True
    checks.deployment(config)
    config.parallel_config.enable_elastic_ep = True
    with pytest.raises(monomoe.UsageError, match="--enable-elastic-ep changes the ranks while serving"):
        checks.deployment(config)
    model = torch.nn.ModuleList(stand.load(examples / f"tiny-moe-{kind}", 0, stand.config_of(examples / f"tiny-moe-{kind}")) for kind in ("fp8", "nvfp4"))
    (rows,) = model[0].ffn.experts.get_expert_weights()
    assert rows.data_ptr() == model[0].ffn.experts.routed_experts.quant_method.layer.packed_experts().data_ptr() and rows.shape[0] == 32
    hooks.check_model(model, needed=True)
    hooks.check_model(model[0], needed=True, balanced=True)
    with pytest.raises(monomoe.UnavailableError, match=r"--enable-eplb moves experts through one buffer .* bytes an expert in 1\.ffn.* bytes an expert in 0\.ffn"):
        hooks.check_model(model, needed=True, balanced=True)


def test_each_deployment_check_looks_at_something_that_vllm_has():
    from monomoe.vllm import checks
    config = stand.config_of(stand.REPOSITORY / "examples/tiny-moe-fp8")
    for path, _, _ in checks._DEPLOYMENT:
        value = config
        for name in path.split("."):
            value = getattr(value, name)


@pytest.mark.parametrize("sentence,quant,more", [
    ("have the quantisation none, wanted FP8 in 128x128 blocks", lambda: None, {}),
    ("have the quantisation fp8, wanted", lambda: Fp8Config(), {}),
    ("have the quantisation fp8, wanted", lambda: Fp8Config(weight_block_size=[32, 32]), {}),
    ("have the quantisation fp8, wanted", lambda: Fp8Config(weight_block_size=[128, 128], ignored_layers=["mlp.experts"]), {}),
    ("have the quantisation gpt_oss_mxfp4, wanted", lambda: GptOssMxfp4Config(), {}),
    ("its activation is gelu, wanted silu", lambda: Mxfp4Config(), {"activation": "gelu"}),
    ("its experts have biases", lambda: Mxfp4Config(), {"has_bias": True}),
    ("its SwiGLU has an alpha or beta", lambda: Mxfp4Config(), {"swiglu_alpha": 1.7}),
    ("it applies router weights to the input", lambda: Mxfp4Config(), {"apply_router_weight_on_input": True}),
    ("its activations are torch.float16", lambda: Mxfp4Config(), {"params_dtype": torch.float16}),
    ("hidden is 200; it must be a multiple of 128", lambda: Mxfp4Config(), {"hidden_size": 200}),
])
def test_layers_that_are_refused(sentence, quant, more):
    config = config_for()
    arguments = {"num_experts": 8, "top_k": 2, "hidden_size": 256, "intermediate_size": 128, "params_dtype": torch.bfloat16, **more}
    with stand.set_current_vllm_config(config), pytest.raises(monomoe.UsageError, match=sentence):
        quant_config = quant()
        if isinstance(quant_config, Fp8Config) and quant_config.ignored_layers:
            quant_config.ignored_layers = ["model.layers.0.mlp.experts"]
        FusedMoEFactory(quant_config=quant_config, prefix="model.layers.0.mlp.experts", custom_routing_function=lambda **_: None, **arguments)


def test_formats_of_quantisations():
    from monomoe.vllm.formats import format_of
    name = "model.layers.0.mlp.experts"
    mixed = ModelOptMixedPrecisionConfig.from_config({"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": {
        f"{name}.0.gate_proj": {"quant_algo": "NVFP4", "group_size": 16}, "model.layers.1.mlp.experts": {"quant_algo": "FP8_PB_WO", "group_size": 128},
        "model.layers.2.mlp.experts": {"quant_algo": "MXFP8"}}}})
    assert [format_of(mixed, f"model.layers.{n}.mlp.experts") for n in range(2)] == ["nvfp4", "fp8"]
    with pytest.raises(monomoe.UsageError, match="have the quantisation modelopt_mixed"):
        format_of(mixed, "model.layers.2.mlp.experts")
    assert format_of(Fp8Config(weight_block_size=[128, 128]), name) == "fp8"
    assert format_of(Mxfp4Config(), name) == "mxfp4"
    excluded = ModelOptNvFp4Config(is_checkpoint_nvfp4_serialized=True, exclude_modules=["model.layers.0*"])
    with pytest.raises(monomoe.UsageError, match="have the quantisation modelopt_fp4"):
        format_of(excluded, name)
    assert format_of(excluded, "model.layers.1.mlp.experts") == "nvfp4"


def test_bad_weights_name_the_expert(examples, monkeypatch):
    folder = examples / "tiny-moe-fp8"
    config = stand.config_of(folder)
    tensors = stand.tensors_of

    def broken(where):
        for name, tensor in tensors(where):
            if name == "layers.0.ffn.experts.7.w3.weight":
                tensor.view(torch.uint8)[3, 5] = 0x7F
            yield name, tensor

    monkeypatch.setattr(stand, "tensors_of", broken)
    with pytest.raises(monomoe.BadInputError, match="expert 7.*NaN"):
        stand.load(folder, 0, config)


def test_interfaces_that_the_plugin_relies_on():
    assert issubclass(RoutedExperts, PluggableLayer)
    assert list(inspect.signature(RoutedExperts._get_quant_method).parameters) == ["self", "prefix", "quant_config", "moe_config"]
    assert list(inspect.signature(BaseModelLoader.load_model).parameters)[:3] == ["self", "vllm_config", "model_config"]
    from monomoe.vllm.experts import MonomoeMethod
    from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
    for name in ("create_weights", "apply"):
        theirs, ours = (list(inspect.signature(getattr(cls, name)).parameters) for cls in (FusedMoEMethodBase, MonomoeMethod))
        assert ours == theirs, name


def run_ranks(mode, tmp_path, build_dir, examples):
    """What two processes of vllm_rank.py found."""
    script = pathlib.Path(__file__).with_name("vllm_rank.py")
    outs = [tmp_path / f"rank{rank}.json" for rank in range(2)]
    ranks = [subprocess.Popen([sys.executable, script, mode, str(rank), str(tmp_path), str(build_dir / "python"), str(examples), str(out)],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank, out in enumerate(outs)]
    texts = [process.communicate(timeout=400)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], "\n".join(texts)
    return [json.loads(out.read_text()) for out in outs]


@pytest.mark.parametrize("mode", ["tp", "dp"])
def test_ranks_have_the_bits_of_one(mode, tmp_path, build_dir, examples):
    """Two processes: one batch on both (tensor parallel: each takes a slice of the rows), or each its own batch, one of them empty (data parallel)."""
    for found in run_ranks(mode, tmp_path, build_dir, examples):
        assert found["same"] == [True] * len(found["same"]) and found["experts"] == 16 and found["capacity"] == (32 if mode == "tp" else 64), found


@pytest.mark.parametrize("mode", ["eplb", "eplb-async"])
def test_vllm_moves_experts_between_ranks(mode, tmp_path, build_dir, examples):
    """vLLM's EPLB state over two processes, with its worker thread too: the bits stay while experts move, and each rank's rows are those its map names."""
    found = run_ranks(mode, tmp_path, build_dir, examples)
    assert found[0]["maps"] == found[1]["maps"]
    for rank in found:
        old, new = rank["maps"]
        assert old == [[*range(32), *range(4)]] * 2 and all(a != b for a, b in zip(old, new)) and all(sorted(set(row)) == list(range(32)) for row in new)
        assert rank["rows"] == [True] * 4 and rank["same"] == [True] * 2 * (rank["passes"] + 1)
        assert rank["stale"] is False  # the new map with the old rows gives other bits: the test can fail


def test_the_end_to_end_test_says_what_is_missing():
    script = stand.REPOSITORY / "tests/e2e/vllm_e2e.py"
    found = subprocess.run([sys.executable, script, "MODEL"], capture_output=True, text=True, env={"PATH": "/nonexistent"})
    assert found.returncode == 77 and found.stdout.startswith("SKIPPED: no vllm command"), found
