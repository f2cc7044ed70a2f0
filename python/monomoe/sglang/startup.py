"""The launcher's part: server arguments that the plugin cannot serve are errors before anything is loaded."""

from __future__ import annotations

import functools
import logging
from typing import Any, Callable

import monomoe
from monomoe.errors import UnavailableError, UsageError
from monomoe.sglang import hooks, versions

logger = logging.getLogger(__name__)
_LEAVE = "leave --moe-a2a-backend megamoe away, or keep SGLang's own kernels with SGLANG_PLUGINS=none"
Step = Callable[[Any], None]
_registered = False


def register() -> None:
    """Once a process: the checks of the arguments, and the hook that finds the processes which run a model."""
    global _registered
    if _registered:
        return
    _registered = True
    problem = versions.problem()
    if problem is None:
        try:
            _register_steps()
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            problem = f"this sglang has not the plugin interface of 0.5.23 ({error}); {versions.REMEDY}"
    if problem is not None:
        _refuse_megamoe(problem)


def _register_steps() -> None:
    from sglang.srt.arg_groups.resolution_hooks import register_resolution_hook
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for step, wrapper in (("handle_mega_moe", check_machine), ("handle_a2a_moe", choose_runner),
                          ("validate_mega_moe_token_budget_for_model", check_arguments)):
        register_resolution_hook(step)(wrapper)
    for hook in hooks.EVERY_PROCESS:
        HookRegistry.register(hook.target, hook.function, HookType[hook.kind])  # SGLang applies them when all plugins are loaded


def _refuse_megamoe(problem: str) -> None:
    """For an SGLang that the plugin does not know: nothing changes unless megamoe is asked for."""
    from sglang.srt.server_args import ServerArgs

    name = "resolve_once" if hasattr(ServerArgs, "resolve_once") else "__post_init__"  # where arguments are checked, now and in older releases
    original = getattr(ServerArgs, name)

    @functools.wraps(original)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if "megamoe" in (getattr(self, "moe_a2a_backend", None), getattr(self, "moe_runner_backend", None)):
            raise UnavailableError(f"monomoe cannot serve --moe-a2a-backend megamoe: {problem}")
        return original(self, *args, **kwargs)

    setattr(ServerArgs, name, checked)


def _resolved(server_args: Any) -> Any:
    from sglang.srt.arg_groups.overrides import resolving_view

    return resolving_view(server_args)


def _asked(cfg: Any) -> bool:
    return "megamoe" in (cfg.moe_a2a_backend, cfg.speculative_moe_a2a_backend)


def check_machine(server_args: Any, previous: Step) -> None:
    """Before SGLang's own check, whose sentence speaks of other kernels."""
    cfg = _resolved(server_args)
    if _asked(cfg) or cfg.moe_runner_backend == "megamoe":  # an old name that SGLang resolves in this step
        from sglang.srt.runtime_context import get_platform

        platform = get_platform()
        if not (platform.is_cuda and platform.is_sm90):
            raise UnavailableError("--moe-a2a-backend megamoe with the monomoe plugin needs Hopper GPUs (compute capability 9.0: H100, H200, H20), "
                                   f"which this machine has not; {_LEAVE}")
        missing = [hook.target for hook in hooks.EVERY_PROCESS if not hooks.in_place(hook)]
        if missing:
            raise UnavailableError(f"monomoe's hook on {', '.join(missing)} did not take effect; the log above has the reason; {versions.REMEDY}")
    previous(server_args)


def choose_runner(server_args: Any, previous: Step) -> None:
    """NVFP4 checkpoints make SGLang choose a runner of Blackwell GPUs; under megamoe no runner computes, but that one asks for the GPU."""
    previous(server_args)
    cfg = _resolved(server_args)
    chosen = cfg.moe_runner_backend
    if _asked(cfg) and chosen in ("flashinfer_trtllm", "flashinfer_trtllm_routed"):
        from sglang.srt.arg_groups.overrides import declare_resolution

        declare_resolution(server_args, "monomoe", moe_runner_backend="auto")
        logger.info("monomoe: --moe-runner-backend is auto, as %s is for Blackwell GPUs", chosen)


def prefill_tokens(cfg: Any) -> int:
    """Most tokens that a chunk of the prefill brings to one rank. With DP attention the resolved chunk is one DP rank's already."""
    chunk = cfg.chunked_prefill_size or 0
    if chunk <= 0 or cfg.disaggregation_mode == "decode" or (cfg.pp_size > 1 and cfg.enable_dynamic_chunking):
        return 0
    if cfg.enable_prefill_cp:
        return -(-chunk // cfg.attn_cp_size)
    align = max(cfg.tp_size // cfg.attn_dp_size // cfg.attn_cp_size, 1)
    return -(-chunk // align) * align


def refusals(cfg: Any, capacity: int) -> list[str]:
    """One sentence for each argument that cannot be served. cfg: resolved arguments; capacity: tokens a rank may bring."""
    hosts, chunk = max(cfg.nnodes // cfg.pp_size, 1), prefill_tokens(cfg)
    found = [
        (hosts > 1, f"the {cfg.tp_size} ranks of --tp-size lie on {hosts} hosts, wanted one: ranks write each other's memory over NVLink; use "
                    "--tp-size of one host's GPUs, with --pp-size or replicas across hosts"),
        (cfg.elastic_ep_backend is not None or cfg.ep_join_mode is not None,
         "--elastic-ep-backend and --ep-join-mode change the ranks while serving, which monomoe's shared memory cannot; leave them away"),
        (cfg.enable_w4a4_mxfp4_megamoe or cfg.speculative_enable_w4a4_mxfp4_megamoe,
         "--enable-w4a4-mxfp4-megamoe wants 4-bit activations, which Hopper has not; leave it away"),
        (cfg.startup_weight_load_mode == "overlap",
         "--startup-weight-load-mode overlap captures graphs before the experts are packed; leave it away"),
        (capacity < chunk, f"SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK is {capacity}, and a chunk of the prefill brings {chunk} tokens to a "
                           f"rank; set it to {chunk} or more, or lower --chunked-prefill-size"),
        (cfg.dtype not in ("auto", "bfloat16"), f"--dtype is {cfg.dtype}, wanted bfloat16"),
    ]
    return [sentence for bad, sentence in found if bad]


def check_arguments(server_args: Any, previous: Step) -> None:
    """After all other arguments are resolved."""
    previous(server_args)
    cfg = _resolved(server_args)
    if not _asked(cfg):
        return
    from sglang.srt.environ import envs

    found = refusals(cfg, envs.SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK.get())
    if found:
        raise UsageError(f"--moe-a2a-backend megamoe with the monomoe plugin: {'; '.join(found)}")
    cuda = monomoe.doctor()["backends"]["cuda"]
    if not cuda["available"]:
        raise UnavailableError(f"--moe-a2a-backend megamoe with the monomoe plugin: {cuda['why_not']}; {_LEAVE}")
    from sglang.srt.arg_groups.mega_moe_hook import validate_mega_moe_token_budget
    from sglang.srt.arg_groups.overrides import model_config_of

    # SGLang asks this of some models only, as others may fall back to another path. Here none does.
    if cfg.moe_a2a_backend == "megamoe" and not cfg.encoder_only:
        validate_mega_moe_token_budget(server_args, model_config_of(server_args).hf_config.architectures[0])
