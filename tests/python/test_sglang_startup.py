"""The launcher's part of the SGLang plugin, with the whole of SGLang's own resolution of the arguments, for a small model on a machine that SGLang
takes for 8 Hopper GPUs: one flag is enough, and what cannot be served is refused before anything is loaded."""

import argparse
import json
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import sglang_world as world

pytest.importorskip("torch", reason="torch is not installed: pip install -r tests/python/requirements-torch.txt")
CAPACITY = "SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK"


@pytest.fixture
def model_folder(examples, tmp_path):
    """A configuration as of nvidia/DeepSeek-V4-Flash-NVFP4, small."""
    config = json.loads((examples / "tiny-moe-nvfp4" / "config.json").read_text())
    config |= dict(num_attention_heads=8, num_key_value_heads=1, head_dim=64, max_position_embeddings=4096, rms_norm_eps=1e-6, q_lora_rank=64, o_lora_rank=64,
                   qk_rope_head_dim=32, index_topk=64, compress_ratios=[0, 0, 0, 0], sliding_window=128, index_n_heads=8, index_head_dim=64, o_groups=1,
                   num_nextn_predict_layers=1, rope_scaling=None, rope_theta=10000.0, bos_token_id=0, eos_token_id=1)
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def resolve(folder, **changes):
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.server_args import ServerArgs
    arguments = dict(model_path=str(folder), moe_a2a_backend="megamoe", device="cuda", skip_tokenizer_init=True, tp_size=8, attn_dp_size=8,
                     chunked_prefill_size=8192, mem_fraction_static=0.7, max_running_requests=64) | changes
    server_args = ServerArgs(**arguments)
    server_args.resolve_once()
    return resolving_view(server_args)


@pytest.fixture
def hopper(sglang, monkeypatch):
    """A machine on which monomoe has its CUDA backend."""
    import monomoe
    monkeypatch.setattr(monomoe, "doctor", lambda: {"backends": {"cuda": {"available": True}}})


def test_the_documented_launch_line(sglang):
    """It is the end-to-end test's, and SGLang's parser knows all of it."""
    script, page = world.REPOSITORY / "tests" / "e2e" / "sglang_e2e.py", (world.REPOSITORY / "docs" / "sglang.md").read_text()
    lines = subprocess.run([sys.executable, script, "nvidia/DeepSeek-V4-Flash-NVFP4", "--print-command", "--backends", "monomoe,sglang-megamoe,deepep,none"],
                           check=True, capture_output=True, text=True).stdout.splitlines()
    assert lines[0] in page and lines[0] == lines[1] and len(lines) == 4
    from sglang.srt.server_args import ServerArgs
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    for line in lines:
        given = parser.parse_args(line.split()[3:])
        assert (given.tp_size, given.attn_dp_size, given.chunked_prefill_size) == (8, 8, 32768)


def test_one_flag_is_enough(hopper, model_folder):
    found = resolve(model_folder)
    assert (found.moe_a2a_backend, found.ep_size) == ("megamoe", 8)
    assert (found.moe_runner_backend, found.speculative_moe_runner_backend) == ("auto", "auto")


@pytest.mark.parametrize("words, changes", [
    ("the 8 ranks of --tp-size lie on 2 hosts, wanted one", {"nnodes": 2, "node_rank": 0, "dist_init_addr": "127.0.0.1:5000"}),
    ("--elastic-ep-backend and --ep-join-mode change the ranks while serving", {"enable_eplb": True, "elastic_ep_backend": "nixl"}),
    ("--enable-w4a4-mxfp4-megamoe wants 4-bit activations", {"enable_w4a4_mxfp4_megamoe": True}),
])
def test_arguments_that_cannot_be_served(hopper, model_folder, words, changes):
    import monomoe
    with pytest.raises(monomoe.UsageError, match=words):
        resolve(model_folder, **changes)


def test_experts_may_be_balanced(hopper, model_folder):
    """SGLang resolves its balancer's arguments for megamoe as for other backends."""
    found = resolve(model_folder, enable_eplb=True, ep_num_redundant_experts=16)
    assert (found.moe_a2a_backend, found.enable_eplb, found.ep_num_redundant_experts) == ("megamoe", True, 16)
    assert (found.ep_dispatch_algorithm, found.expert_distribution_recorder_mode) == ("static", "stat")


def test_each_refusal_has_its_words(sglang):
    from monomoe.sglang.startup import refusals
    usual = dict(nnodes=1, pp_size=1, tp_size=8, elastic_ep_backend=None, ep_join_mode=None, enable_w4a4_mxfp4_megamoe=False,
                 speculative_enable_w4a4_mxfp4_megamoe=None, startup_weight_load_mode="serial", dtype="auto", chunked_prefill_size=8192, attn_dp_size=1,
                 attn_cp_size=1, enable_prefill_cp=False, enable_dynamic_chunking=False, disaggregation_mode="null")
    for change in ({}, {"nnodes": 2, "pp_size": 2}, {"chunked_prefill_size": 65536, "disaggregation_mode": "decode"},
                   {"chunked_prefill_size": 65536, "enable_prefill_cp": True, "attn_cp_size": 8}):
        assert refusals(SimpleNamespace(**usual | change), 8192) == []
    for change, words in (({"elastic_ep_backend": "nixl"}, "--elastic-ep-backend"), ({"startup_weight_load_mode": "overlap"}, "overlap captures graphs"),
                          ({"dtype": "float16"}, "--dtype is float16, wanted bfloat16"), ({"nnodes": 2}, "lie on 2 hosts"),
                          ({"chunked_prefill_size": 8193}, "brings 8200 tokens to a rank; set it to 8200 or more")):
        (sentence,) = refusals(SimpleNamespace(**usual | change), 8192)
        assert words in sentence


def test_the_capacity_covers_prefill_and_decode(hopper, model_folder):
    """SGLang's own check divides the chunk of one DP rank by the DP ranks once more."""
    import monomoe
    from sglang.srt.environ import envs
    with envs.SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK.override(1023):
        with pytest.raises(monomoe.UsageError, match=f"{CAPACITY} is 1023, and a chunk of the prefill brings 1024 tokens to a rank"):
            resolve(model_folder)
    with envs.SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK.override(1024):
        assert resolve(model_folder).chunked_prefill_size == 1024
    with envs.SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK.override(7):
        with pytest.raises(ValueError, match="to cover the largest decode / verify forward on one rank"):
            resolve(model_folder)
    with pytest.raises(ValueError, match="requires chunked prefill to be enabled"):
        resolve(model_folder, chunked_prefill_size=-1)


def test_machines_without_hopper_or_without_the_backend(sglang, model_folder):
    import monomoe
    from sglang.srt.runtime_context import override_platform
    with override_platform(is_sm90=False, is_sm100=True):
        with pytest.raises(monomoe.UnavailableError, match="needs Hopper GPUs .* which this machine has not; leave --moe-a2a-backend megamoe away"):
            resolve(model_folder)
    cuda = monomoe.doctor()["backends"]["cuda"]
    if not cuda["available"]:
        with pytest.raises(monomoe.UnavailableError, match=re.escape(f"monomoe plugin: {cuda['why_not']}; leave --moe-a2a-backend megamoe away")):
            resolve(model_folder)


def test_other_versions_of_sglang(sglang, monkeypatch):
    import importlib.metadata

    import monomoe
    from monomoe.sglang import startup, versions
    from sglang.srt.server_args import ServerArgs
    assert versions.problem() is None
    for found, bad in (("0.5.22", True), ("0.5.23", False), ("0.5.24.post1", False), ("0.6.0", True)):
        monkeypatch.setattr(importlib.metadata, "version", lambda name, found=found: found)
        assert (versions.problem() is not None) is bad
    monkeypatch.setattr(ServerArgs, "resolve_once", ServerArgs.resolve_once)
    startup._refuse_megamoe(versions.problem())
    ServerArgs(model_path="dummy").resolve_once()
    with pytest.raises(monomoe.UnavailableError, match="sglang is 0.6.0, wanted 0.5.23 or newer below 0.6; install sglang 0.5.23"):
        ServerArgs(model_path="dummy", moe_a2a_backend="megamoe").resolve_once()
