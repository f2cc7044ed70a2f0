"""What the plugin replaces in SGLang, through SGLang's own hook registry, and the check that each hook is in place."""

from __future__ import annotations

from typing import Any, Callable, Iterator, NamedTuple

from monomoe.errors import UnavailableError
from monomoe.sglang import experts, forward, versions

_MOE = "sglang.srt.layers.moe"
_QUANTIZATION = "sglang.srt.layers.quantization"


class Hook(NamedTuple):
    """target: dotted path. kind: BEFORE, AFTER, AROUND or REPLACE. parameters: what the target takes, None = any."""

    target: str
    function: Callable[..., Any]
    kind: str
    parameters: tuple[str, ...] | None


_RUN = ("experts", "hidden_states", "topk_ids", "topk_weights", "hidden_size", "intermediate_size", "top_k", "num_tokens", "activation_clamp",
        "routed_scaling_factor", "activation", "num_shared_experts", "shared_l1_weights", "shared_l2_weights", "routing_in_buffer")

# In the process that runs the model. SGLang's own forward_mega_moe stays: gate, top-k, shared expert, streams and graphs are its business.
MODEL = (
    Hook(f"{_MOE}.fused_moe_triton.layer.FusedMoE.__init__", experts.after_construction, "AFTER", None),
    Hook(f"{_MOE}.fused_moe_triton.layer.FusedMoE.forward", forward.refuse_other_path, "BEFORE", None),
    Hook(f"{_MOE}.mega_moe.build_mega_moe_experts_weights", experts.build_mxfp4, "REPLACE", ("experts",)),
    Hook(f"{_MOE}.mega_moe_sm90.build_sm90_mega_moe_experts_weights", experts.build_fp8, "REPLACE", ("experts",)),
    Hook(f"{_QUANTIZATION}.modelopt_quant.ModelOptNvFp4FusedMoEMethod._build_mega_moe_weights", experts.build_nvfp4, "REPLACE", ("self", "layer")),
    Hook(f"{_QUANTIZATION}.mxfp4.Mxfp4MoEMethod.process_weights_after_loading", experts.build_bytes_mxfp4, "AROUND", ("self", "layer")),
    Hook(f"{_MOE}.mega_moe.is_mega_moe_experts_ready", forward.is_ready, "REPLACE", ("experts",)),
    Hook(f"{_MOE}.mega_moe.should_use_mega_moe", forward.admit, "AROUND", ("moe", "hidden_states")),
    Hook(f"{_MOE}.mega_moe.run_mega_routed_experts", forward.run_routed_experts, "REPLACE", _RUN),
    Hook("sglang.srt.model_executor.model_runner.ModelRunner.load_model", experts.after_loading, "AFTER", ("self",)),
)


def _chain(function: Any) -> Iterator[Any]:
    """A function and what it wraps, outermost first."""
    seen: set[int] = set()
    while function is not None and id(function) not in seen:
        seen.add(id(function))
        yield function
        function = getattr(function, "__wrapped__", None)


def in_place(hook: Hook) -> bool:
    """Whether the target, as it is now, calls the hook."""
    for function in _chain(versions.resolve(hook.target)):
        if any(_content(cell) is hook.function for cell in getattr(function, "__closure__", None) or ()):
            return True
    return False


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return None


def apply(hooks: tuple[Hook, ...]) -> None:
    """Applies hooks that are not in place, and raises unless all are afterwards."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookSource, HookType

    problems = [problem for hook in hooks if (problem := versions.mismatch(hook.target, hook.parameters))]
    if problems:
        raise UnavailableError(f"monomoe cannot hook into this sglang: {'; '.join(problems)}; {versions.REMEDY}")
    for hook in hooks:
        if not in_place(hook):
            HookRegistry.register(hook.target, hook.function, HookType[hook.kind], source=HookSource("monomoe", "monomoe"))
    HookRegistry.apply_hooks()
    missing = [hook.target for hook in hooks if not in_place(hook)]
    if missing:
        raise UnavailableError(f"monomoe's hooks on {', '.join(missing)} did not take effect; the log above has the reason; another plugin may have "
                               f"replaced the same functions: name only monomoe in SGLANG_PLUGINS, or {versions.REMEDY}")


def after_moe_config(result: Any) -> None:
    """AFTER initialize_moe_config, which SGLang calls in each process that runs a model, before the model is built."""
    from sglang.srt.layers.moe.utils import get_moe_a2a_backend, get_speculative_moe_a2a_backend

    if get_moe_a2a_backend().is_megamoe() or get_speculative_moe_a2a_backend().is_megamoe():
        apply(MODEL)


MODEL_PROCESS = (Hook(f"{_MOE}.utils.initialize_moe_config", after_moe_config, "AFTER", ()),)


def after_publish(result: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER publish, the moment at which a process knows its role and the resolved arguments. "test" is the role of processes that build layers alone."""
    from sglang.srt.runtime_context import get_exec, get_spec, publish_role

    if publish_role() in ("scheduler", "test") and "megamoe" in (get_exec().moe.moe_a2a_backend, get_spec().speculative_moe_a2a_backend):
        apply(MODEL_PROCESS)


EVERY_PROCESS = (Hook("sglang.srt.runtime_context.publish", after_publish, "AFTER", ("server_args", "role", "hf_config", "ranks")),)
