"""The SGLang plugin in real, unmodified SGLang of a pinned version, on the CPU: it is found and loaded by SGLang, its hooks take effect, the hooked
path has the bits of the command line, and what cannot be served is refused before or while a model is loaded."""

import json
import pathlib
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import sglang_world as world
from layers import BF16, read_bytes, stacked, tokens, write_file

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -r tests/python/requirements-torch.txt")
KINDS = ["fp8", "nvfp4", "mxfp4"]
CAPACITY = "SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK"


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.inference_mode():
        yield


def layer_of(kind, seed=3, limit=10.0, **changes):
    """SGLang's expert layer with random experts in it, loaded by SGLang; and what a checkpoint would hold."""
    rng = np.random.default_rng(seed)
    arrays, _ = stacked(rng, kind, world.EXPERTS, world.HIDDEN, world.INTER)
    scales = ()
    if kind == "nvfp4":  # gate and up differ
        scales = rng.uniform(0.5, 1.5, (world.EXPERTS, 2)).astype(np.float32) / 64, rng.uniform(0.5, 1.5, world.EXPERTS).astype(np.float32) / 64
    tensors = world.checkpoint_tensors(kind, arrays, *scales)
    return world.load_experts(world.new_experts(kind, limit, **changes), tensors), tensors


def command_line(program, folder, tensors, x, ids, weights, limit):
    """The bits of `monomoe run` for the same experts."""
    checkpoint, given, out = folder / "checkpoint", folder / "in.safetensors", folder / "out.safetensors"
    checkpoint.mkdir(exist_ok=True)
    write_file(checkpoint / "model.safetensors", {f"layers.0.ffn.experts.{name}": np.ascontiguousarray(array) for name, array in tensors.items()})
    write_file(given, {"x": x, "topk_ids": ids, "topk_weights": weights})
    subprocess.run([program, "run", checkpoint, "--layer", "0", "--input", given, "--output", out, "--backend", "cpu", "--swiglu-limit", str(limit or 0)],
                   check=True, capture_output=True)
    return read_bytes(out, "y")


def run_experts(experts, x, ids, weights, **changes):
    from sglang.srt.layers.moe import mega_moe
    arguments = dict(hidden_size=world.HIDDEN, intermediate_size=world.INTER, top_k=world.TOPK, num_tokens=len(x), activation_clamp=10.0) | changes
    return mega_moe.run_mega_routed_experts(experts, x, ids, weights, **arguments)


def bits(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def test_sglang_loads_the_plugin_and_its_hooks_apply(sglang):
    from monomoe.sglang import hooks
    from sglang.srt.plugins import hook_registry
    assert sglang and all(hooks.in_place(hook) for hook in (*hooks.EVERY_PROCESS, *hooks.MODEL_PROCESS, *hooks.MODEL))
    sources = {hook.target: [source.plugin_name for _, _, source in hook_registry.HookRegistry._hooks[hook.target]] for hook in hooks.MODEL}
    assert set(map(tuple, sources.values())) == {("monomoe",)}
    from sglang.srt.layers.moe import mega_moe, mega_moe_sm90
    assert mega_moe.is_mega_moe_experts_ready.__wrapped__.__module__ == "sglang.srt.layers.moe.mega_moe"
    assert mega_moe_sm90.build_sm90_mega_moe_experts_weights.__wrapped__.__module__ == "sglang.srt.layers.moe.mega_moe_sm90"


def test_hooks_are_held_against_sglangs_signatures(sglang):
    import monomoe
    from monomoe.sglang import forward, hooks, versions
    target = "sglang.srt.layers.moe.mega_moe.run_mega_routed_experts"
    assert versions.mismatch(target, ("experts",)).startswith(f"{target} takes (experts, hidden_states, topk_ids, ")
    with pytest.raises(monomoe.UnavailableError, match=r"mega_moe.gone is not there .*; install sglang 0.5.23"):
        hooks.apply((hooks.Hook("sglang.srt.layers.moe.mega_moe.gone", forward.is_ready, "REPLACE", ("experts",)),))
    with pytest.raises(monomoe.UnavailableError, match="wanted \\(layer\\)"):
        hooks.apply((hooks.Hook("sglang.srt.layers.moe.mega_moe.is_mega_moe_experts_ready", forward.is_ready, "REPLACE", ("layer",)),))


def test_a_hook_that_did_not_take_is_told(sglang, monkeypatch):
    import monomoe
    from monomoe.sglang import forward, hooks
    from sglang.srt.plugins.hook_registry import HookRegistry
    monkeypatch.setattr(HookRegistry, "apply_hooks", classmethod(lambda cls: None))
    monkeypatch.setattr(HookRegistry, "_hooks", HookRegistry._hooks.copy())
    with pytest.raises(monomoe.UnavailableError, match="hooks on sglang.srt.layers.moe.mega_moe.check_mega_moe_shapes did not take effect"):
        hooks.apply((hooks.Hook("sglang.srt.layers.moe.mega_moe.check_mega_moe_shapes", forward.is_ready, "REPLACE", None),))


@pytest.mark.parametrize("limit", [10.0, None])
@pytest.mark.parametrize("kind", KINDS)
def test_bits_of_the_command_line(sglang, tmp_path, built_program, kind, limit):
    experts, tensors = layer_of(kind, limit=limit)
    x, ids, weights = tokens(np.random.default_rng(5), 9, world.HIDDEN, world.EXPERTS, world.TOPK)
    given = world.to_torch(x), world.to_torch(ids.astype(np.int32)), world.to_torch(weights)
    want = command_line(built_program("monomoe"), tmp_path, tensors, x, ids, weights, limit)
    assert bits(run_experts(experts, *given, activation_clamp=limit)) == want
    assert bits(run_experts(experts, given[0], given[1].long(), given[2], activation_clamp=limit)) == want
    scaled = command_line(built_program("monomoe"), tmp_path, tensors, x, ids, weights * np.float32(1.5), limit)
    assert scaled != want and bits(run_experts(experts, *given, activation_clamp=limit, routed_scaling_factor=1.5)) == scaled
    assert run_experts(experts, given[0][:0], None, None, num_tokens=0, activation_clamp=limit).shape == (0, world.HIDDEN)
    padding = torch.full_like(given[1], -1)
    assert not run_experts(experts, given[0], padding, given[2], activation_clamp=limit).any()
    assert bits(run_experts(experts, *given, activation_clamp=limit)) == want


def test_scales_of_mxfp4_experts_as_bytes(sglang, tmp_path, built_program):
    """The other class that SGLang has for MXFP4, with scales as they are in the checkpoint."""
    from sglang.srt.layers.quantization.mxfp4 import Mxfp4Config
    rng = np.random.default_rng(3)
    arrays, _ = stacked(rng, "mxfp4", world.EXPERTS, world.HIDDEN, world.INTER)
    experts = world.new_experts("mxfp4", quant_config=Mxfp4Config(is_checkpoint_mxfp4_serialized=True))
    for name, array in zip(("w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale"), arrays):
        getattr(experts, name).data.copy_(torch.from_numpy(array.view(np.uint8)))
    experts.quant_method.process_weights_after_loading(experts)
    x, ids, weights = tokens(rng, 5, world.HIDDEN, world.EXPERTS, world.TOPK)
    want = command_line(built_program("monomoe"), tmp_path, world.checkpoint_tensors("mxfp4", arrays), x, ids, weights, 10.0)
    assert bits(run_experts(experts, *map(world.to_torch, (x, ids, weights)))) == want


def loaded_block(kind):
    """DeepseekV2MoE with random weights, and the tensors of its experts."""
    moe, _ = world.deepseek_block(kind)
    rng = np.random.default_rng(4)
    arrays, _ = stacked(rng, kind, world.EXPERTS, world.HIDDEN, world.INTER)
    scales = (np.full((world.EXPERTS, 2), 1 / 64, np.float32), np.full(world.EXPERTS, 1 / 64, np.float32)) if kind == "nvfp4" else ()
    tensors = world.checkpoint_tensors(kind, arrays, *scales)
    return world.load_block(moe, rng, tensors), tensors


def rows_of(count, seed=5):
    return world.to_torch(np.random.default_rng(seed).standard_normal((count, world.HIDDEN)).astype(np.float32)).bfloat16()


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_block_of_deepseek(sglang, tmp_path, built_program, kind, folded):
    """SGLang's block around the hooked call. The routed scaling factor is applied once: by the call, or by top-k where SGLang folds it in there."""
    from sglang.srt.layers.moe import mega_moe
    moe, tensors = loaded_block(kind)
    assert not moe.routed_scaling_factor_fused_in_topk and not moe.topk.topk_config.apply_routed_scaling_factor_on_output
    moe.routed_scaling_factor_fused_in_topk = moe.topk.topk_config.apply_routed_scaling_factor_on_output = folded
    x = rows_of(7)
    assert mega_moe.should_use_mega_moe(moe, x)
    chosen = moe.topk(x, moe.gate(x))
    weights = chosen.topk_weights.float() * (1.0 if folded else 1.5)
    assert torch.allclose(weights.sum(dim=1), torch.tensor(1.5))
    rows = x.view(torch.uint16).numpy().view(BF16)
    routed = command_line(built_program("monomoe"), tmp_path, tensors, rows, chosen.topk_ids.to(torch.int64).numpy(), weights.numpy(), 10.0)
    y = torch.frombuffer(bytearray(routed), dtype=torch.bfloat16).reshape(7, world.HIDDEN)
    assert bits(moe(x)) == bits(y + x * 2)
    assert moe(x[:0]).shape == (0, world.HIDDEN)


def test_the_shared_expert_runs_beside_the_call(sglang, monkeypatch):
    """While a graph is captured SGLang puts the routed experts on another stream than the shared one: the call is made inside, and the streams join."""
    from contextlib import contextmanager

    from monomoe.sglang.experts import packed_of
    from sglang.srt.layers.moe import mega_moe
    moe, _ = loaded_block("fp8")
    x, events = rows_of(7), []
    want = bits(moe(x))
    streams = {name: SimpleNamespace(wait_stream=lambda other, name=name: events.append(f"{name} waits")) for name in ("alt", "current")}

    @contextmanager
    def on(stream):
        assert stream is streams["alt"]
        events.append("alt begins")
        yield
        events.append("alt ends")

    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: streams["current"])
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(mega_moe, "get_is_capture_mode", lambda: True)
    moe.alt_stream = streams["alt"]
    moe.shared_experts.register_forward_pre_hook(lambda *_: events.append("shared"))
    packed_of(moe.experts).layer.register_forward_pre_hook(lambda *_: events.append("routed"))
    assert bits(moe(x)) == want
    assert events == ["alt waits", "shared", "alt begins", "routed", "alt ends", "current waits"]


def test_layers_share_a_workspace_and_the_checkpoints_tensors_are_freed(sglang):
    import monomoe
    from monomoe.sglang.experts import packed_of
    first, _ = layer_of("nvfp4")
    draft, _ = layer_of("mxfp4", prefix="model.decoder.mlp.experts")  # a draft model's layer in another format
    assert packed_of(first).layer.workspace is packed_of(draft).layer.workspace
    assert packed_of(first).layer.workspace.capacity == 8192
    assert first._mega_moe_weights_built and first._mega_moe_nvfp4 and not draft._mega_moe_nvfp4
    for experts in (first, draft):
        assert [name for name, parameter in experts.named_parameters() if parameter.numel() > world.EXPERTS * 2] == []
        assert experts.w13_weight.numel() == experts.w2_weight.numel() == 0 and not list(experts.children())
        with pytest.raises(monomoe.UsageError, match="experts are packed and cannot be loaded again while serving; restart the server"):
            experts.w13_weight.weight_loader(experts.w13_weight, torch.zeros(4), "experts.0.w1.weight", shard_id="w1", expert_id=0)
        with pytest.raises(monomoe.UnavailableError, match="calls its experts past --moe-a2a-backend megamoe"):
            experts.forward(torch.zeros(1, world.HIDDEN), None)


@pytest.mark.parametrize("words, changes", [
    ("UnquantizedFusedMoEMethod, wanted FP8 in blocks of 128x128", {"quant_config": "none"}),
    ("Fp8MoEMethod with weight_block_size \\[64, 64\\]", {"quant_config": "small"}),
    ("its activation is gelu", {"activation": "gelu"}),
    ("wanted plain SwiGLU", {"gemm1_alpha": 1.7}),
    ("it weighs tokens before the experts", {"apply_router_weight_on_input": True}),
    ("its activations are torch.float16", {"params_dtype": torch.float16}),
    ("does not say how many experts a token has", {"top_k": None}),
])
def test_experts_that_cannot_be_served_are_told_before_they_are_loaded(sglang, words, changes):
    import monomoe
    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE
    world.as_on_hopper("fp8")
    quantised = changes.pop("quant_config", "usual")
    config = {"usual": world.quantisation("fp8"), "small": world.quantisation("fp8", weight_block_size=[64, 64]), "none": None}[quantised]
    arguments = dict(num_experts=6, hidden_size=256, intermediate_size=128, layer_id=3, top_k=2, params_dtype=torch.bfloat16, quant_config=config,
                     prefix="model.layers.3.mlp.experts") | changes
    with pytest.raises(monomoe.UnavailableError, match=f"model.layers.3.mlp.experts: .*{words}.*; serve this model with another --moe-a2a-backend"):
        FusedMoE(**arguments)


def test_a_draft_may_be_given_back(sglang):
    """With --speculative-moe-a2a-backend none the draft's layers are SGLang's own."""
    from monomoe.sglang.experts import packed_of
    from sglang.srt.layers.moe.utils import MoeA2ABackend
    from sglang.srt.runtime_context import get_flags
    moe = get_flags().moe
    before, moe.a2a_backend = moe.a2a_backend, MoeA2ABackend.NONE
    try:
        experts = world.new_experts("fp8", params_dtype=torch.float16)
    finally:
        moe.a2a_backend = before
    assert packed_of(experts) is None and experts.w13_weight.numel() > 0


def published(**changes):
    """SGLang's configuration with other values, for a while."""
    from sglang.srt.runtime_context import get_exec
    return get_exec().moe.override(**changes)


@pytest.fixture
def draft():
    """What SGLang builds now is of a draft model."""
    from sglang.srt.runtime_context import get_flags
    moe = get_flags().moe
    moe.in_speculative_scope = True
    yield
    moe.in_speculative_scope = False


@pytest.mark.parametrize("kind", KINDS)
def test_redundant_experts_of_a_draft(sglang, tmp_path, built_program, kind, draft, monkeypatch):
    """SGLang gives them memory, and loads and sends nothing there: what is in it must not matter. Its torch.empty is as bad as it can be here."""
    import monomoe
    from monomoe.sglang import experts as plugin
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    rng = np.random.default_rng(6)
    arrays, _ = stacked(rng, kind, world.EXPERTS, world.HIDDEN, world.INTER)
    tensors = world.checkpoint_tensors(kind, arrays, *((np.full((world.EXPERTS, 2), 1 / 64, np.float32), np.full(world.EXPERTS, 1 / 64, np.float32))
                                                       if kind == "nvfp4" else ()))
    x, ids, weights = tokens(rng, 9, world.HIDDEN, world.EXPERTS, world.TOPK)
    torch.use_deterministic_algorithms(True)
    try:
        with published(ep_num_redundant_experts=2, enable_eplb=True):
            experts = world.load_experts(world.new_experts(kind, num_experts=world.EXPERTS + 2), tensors)
            assert not hasattr(experts, plugin.MOVED)  # SGLang moves no draft's experts
            want = command_line(built_program("monomoe"), tmp_path, tensors, x, ids, weights, 10.0)
            assert bits(run_experts(experts, *map(world.to_torch, (x, ids, weights)))) == want
            if kind == "mxfp4":  # any code is legal, and SGLang sets the scales to 1
                return
            monkeypatch.setattr(plugin, "_fill_what_is_not_loaded", lambda experts: None)
            with pytest.raises(monomoe.Error, match="expert [67] "):
                world.load_experts(world.new_experts(kind, num_experts=world.EXPERTS + 2), tensors)
    finally:
        torch.use_deterministic_algorithms(False)


class Model(torch.nn.Module):
    """A model that tells SGLang's balancer which experts there are."""

    def __init__(self, *layers, moved=None):
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)
        if moved is not None:
            self.routed_experts_weights_of_layer = moved


def test_the_balancer_gets_the_packed_experts(sglang):
    """The parameters that SGLang moves are the packed experts alone; a model in which it would not find them all is refused when it is loaded."""
    import monomoe
    from monomoe.sglang import experts as plugin
    moe, _ = loaded_block("nvfp4")
    assert moe.get_moe_weights() == []
    with published(enable_eplb=True):
        moe, _ = loaded_block("nvfp4")
        (rows,) = moe.get_moe_weights()
        assert rows.data_ptr() == plugin.packed_of(moe.experts).layer.packed_experts().data_ptr() and rows.shape[0] == world.EXPERTS

        def load(model, draft=False):
            plugin.after_loading(None, SimpleNamespace(model=model, is_draft_worker=draft))

        load(Model(moe, moved={1: [rows]}))
        load(Model(moe), draft=True)
        for model, words in ((Model(moe), "routed_experts_weights_of_layer is not there; leave --enable-eplb away"),
                             (Model(moe, moved={0: [rows]}), "routed_experts_weights_of_layer has no such layers"),
                             (Model(moe, moved={1: [rows.clone()]}), "would not move these experts of Model")):
            with pytest.raises(monomoe.UnavailableError, match=f"model.layers.1.mlp.experts: .*{words}"):
                load(model)
        other, _ = layer_of("fp8")
        moved = {1: [rows], 3: [getattr(other, plugin.MOVED)]}
        with pytest.raises(monomoe.UnavailableError, match=r"one buffer for all layers.*\d+ bytes an expert in model.layers.3.*\d+ bytes an expert in model.layers.1"):
            load(Model(moe, other, moved=moved))


def test_no_layer_is_left_to_another_path(sglang):
    import monomoe
    from monomoe.sglang import experts as plugin
    from sglang.srt.layers.moe import mega_moe
    packed, _ = layer_of("fp8")
    runner = SimpleNamespace(model=torch.nn.ModuleList([packed]), is_draft_worker=False)
    plugin.after_loading(None, runner)
    left = world.new_experts("fp8", prefix="model.layers.9.mlp.experts")
    with pytest.raises(monomoe.UnavailableError, match="model.layers.9.mlp.experts: the experts were not packed by monomoe"):
        plugin.after_loading(None, SimpleNamespace(model=torch.nn.ModuleList([packed, left]), is_draft_worker=False))
    with pytest.raises(monomoe.UnavailableError, match="model.layers.9.mlp.experts: called .* before its experts were packed"):
        mega_moe.should_use_mega_moe(SimpleNamespace(experts=left), torch.zeros(1, world.HIDDEN))


def test_ranks_admit_a_batch_together(sglang, monkeypatch):
    """What counts is the largest rank's batch, as SGLang tells it; while a graph is captured, the bucket alone."""
    import monomoe
    from sglang.srt.layers.moe import mega_moe
    experts, _ = layer_of("fp8")
    moe, few = SimpleNamespace(experts=experts), torch.zeros(1, world.HIDDEN, dtype=torch.bfloat16)
    for others, admitted in (([1, 8192], True), ([8193, 1], False), ([1, 0], True)):
        monkeypatch.setattr(mega_moe, "get_dp_global_num_tokens", lambda others=others: others)
        if admitted:
            assert mega_moe.should_use_mega_moe(moe, few)
            continue
        with pytest.raises(monomoe.UsageError, match=f"a rank brings more tokens than its capacity of 8192 \\(1 on this one\\); raise {CAPACITY}"):
            mega_moe.should_use_mega_moe(moe, few)
    monkeypatch.setattr(mega_moe, "get_dp_global_num_tokens", lambda: [8193, 1])
    monkeypatch.setattr(mega_moe, "get_is_capture_mode", lambda: True)
    assert mega_moe.should_use_mega_moe(moe, few)


def test_more_tokens_than_the_capacity(sglang):
    import monomoe
    from sglang.srt.layers.moe import mega_moe
    experts, _ = layer_of("fp8")
    many = torch.zeros(8193, world.HIDDEN, dtype=torch.bfloat16)
    with pytest.raises(monomoe.UsageError, match=f"capacity of 8192 \\(8193 on this one\\); raise {CAPACITY}"):
        mega_moe.should_use_mega_moe(SimpleNamespace(experts=experts), many)
    with pytest.raises(monomoe.UsageError, match="8193 tokens on this rank, wanted at most 8192"):
        run_experts(experts, many, torch.zeros(8193, 2, dtype=torch.int32), torch.zeros(8193, 2))


@pytest.mark.parametrize("changes", [{"activation_clamp": 7.0}, {"activation_clamp": None}, {"top_k": 3}, {"intermediate_size": 256}])
def test_a_call_that_the_experts_were_not_packed_for(sglang, changes):
    import monomoe
    experts, _ = layer_of("fp8")
    with pytest.raises(monomoe.UsageError, match=r"packed for \(256, 128, 2, 10.0\)"):
        run_experts(experts, torch.zeros(1, world.HIDDEN, dtype=torch.bfloat16), torch.zeros(1, 2, dtype=torch.int32), torch.zeros(1, 2), **changes)


def test_bad_weights_name_the_layer(sglang):
    import monomoe
    rng = np.random.default_rng(3)
    arrays, _ = stacked(rng, "fp8", world.EXPERTS, world.HIDDEN, world.INTER)
    arrays[0].view(np.uint8)[2, 3, 4] = 0x7F
    with pytest.raises(monomoe.BadInputError, match="model.layers.3.mlp.experts: "):
        world.load_experts(world.new_experts("fp8"), world.checkpoint_tensors("fp8", arrays))
    arrays, _ = stacked(rng, "mxfp4", world.EXPERTS, world.HIDDEN, world.INTER)
    experts = world.new_experts("mxfp4")
    experts.w2_weight_scale_inv.data.fill_(0.75)
    with pytest.raises(monomoe.UsageError, match="model.layers.3.mlp.experts: w2_weight_scale_inv holds a float32 scale that is no positive power of two"):
        experts.quant_method.process_weights_after_loading(experts)


def run_processes(tmp_path, build_dir, size, mode):
    script = pathlib.Path(__file__).with_name("sglang_rank.py")
    outs = [tmp_path / f"rank{rank}.json" for rank in range(size)]
    logs, ranks = [tmp_path / f"rank{rank}.log" for rank in range(size)], []
    for rank, (log, out) in enumerate(zip(logs, outs)):
        with open(log, "w") as file:
            ranks.append(subprocess.Popen([sys.executable, script, mode, str(rank), str(size), str(tmp_path), str(build_dir), str(out)], stdout=file,
                                          stderr=subprocess.STDOUT))
    while any(process.poll() is None for process in ranks) and all(process.poll() in (None, 0) for process in ranks):
        time.sleep(0.1)
    for process in ranks:  # those that wait for one that failed
        if process.poll() is None:
            process.kill()
    texts = [log.read_text() for log in logs]
    assert [process.returncode for process in ranks] == [0] * size, "\n".join(texts)
    return [json.loads(out.read_text()) for out in outs], texts


def test_two_ranks_with_different_tokens(sglang, tmp_path, build_dir):
    """SGLang's own expert-parallel group over two processes: each packs its half of the experts; one brings no tokens."""
    found, texts = run_processes(tmp_path, build_dir, 2, "serve")
    assert [rank["same"] for rank in found] == [{"target": True, "draft": True, "idle": True, "buckets": True, "again": True}] * 2
    assert [rank["local"] for rank in found] == [3, 3] and [rank["shared"] for rank in found] == [True, True]
    line = "monomoe 0.1.0 serves --moe-a2a-backend megamoe: its hooks are in place; 6 nvfp4 experts a layer, top-2; backend cpu"
    assert [text.count(line) for text in texts] == [1, 0]


def test_sglang_moves_experts_between_ranks(sglang, tmp_path, build_dir):
    """Its EPLB manager over two processes, 6 experts and 2 redundant ones: it records, rebalances, moves, maps, and the bits stay."""
    found, texts = run_processes(tmp_path, build_dir, 2, "eplb")
    for rank, other in (found, found[::-1]):
        assert rank["maps"] == other["maps"] and rank["maps"][0] != rank["maps"][1], "\n".join(texts)
        assert rank["changed"] == rank["expected_changes"] and sum(rank["changed"]) > 0
        assert rank["rows"] == [True] * 4 and rank["same"] == [True] * 8
        assert rank["stale"] is False  # the new map with the old rows gives other bits: the test can fail


def test_without_megamoe_nothing_changes(sglang, tmp_path, build_dir):
    (found,), _ = run_processes(tmp_path, build_dir, 1, "other")
    assert found == {"patched": ["sglang.srt.runtime_context.publish"], "original": True, "imported": ["monomoe.sglang"]}
