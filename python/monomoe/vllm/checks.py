"""What this backend needs of a vLLM configuration and of each layer, as errors that say what to do."""

from __future__ import annotations

from typing import Any

import monomoe
import torch
from monomoe.errors import UsageError

_PREFIX = "additional_config asks for moe_backend monomoe"
# (where it stands in the configuration, is it a problem, what is said)
_DEPLOYMENT = [
    ("kernel_config.moe_backend", lambda v: v != "auto", "--moe-backend is {v!r}; leave it at 'auto', one of the two chooses the experts' kernel"),
    ("parallel_config.all2all_backend", lambda v: v != "allgather_reducescatter",
     "--all2all-backend is {v!r}; leave it away, the layer dispatches and combines itself"),
    ("parallel_config.enable_elastic_ep", bool, "--enable-elastic-ep changes the ranks while serving, which memory that they share cannot; leave it away"),
    ("parallel_config.use_ubatching", bool, "dual batch overlap runs two batches at once on one workspace; leave --enable-dbo away"),
    ("parallel_config.prefill_context_parallel_size", lambda v: v > 1, "prefill context parallelism of {v} is not supported; set it to 1"),
    ("parallel_config.expert_placement_strategy", lambda v: v != "linear", "--expert-placement-strategy is {v!r}; use linear"),
    ("lora_config", lambda v: v is not None, "LoRA adapters of experts are not supported; leave --enable-lora away"),
    ("weight_transfer_config", lambda v: v is not None, "weights that are replaced while serving are not supported; leave weight_transfer_config away"),
    ("model_config.enable_sleep_mode", bool, "sleep mode cannot give packed experts back; leave --enable-sleep-mode away"),
]


def deployment(vllm_config: Any) -> None:
    """Refuses a configuration that cannot work, with all of its problems."""
    problems = []
    for path, wrong, sentence in _DEPLOYMENT:
        value: Any = vllm_config
        for name in path.split("."):
            value = getattr(value, name) if value is not None else None
        if value is not None and wrong(value):
            problems.append(sentence.format(v=value))
    parallel = vllm_config.parallel_config
    if parallel.tensor_parallel_size * parallel.data_parallel_size > 1 and not parallel.enable_expert_parallel:
        problems.append("without --enable-expert-parallel every expert is cut over all ranks; add it")
    if problems:
        raise UsageError(f"{_PREFIX}, and {'; and '.join(problems)}")


def layer(experts: Any, format_name: str) -> None:
    """Refuses a layer that this backend would not compute as vLLM means it. experts: the RoutedExperts that is being made."""
    moe = experts.moe_config
    silu = type(moe.activation)["SILU"]
    problems = [sentence for wrong, sentence in (
        (moe.activation is not silu, f"its activation is {moe.activation.value}, wanted silu"),
        (moe.swiglu_alpha is not None or moe.swiglu_beta is not None, "its SwiGLU has an alpha or beta"),
        (moe.has_bias, "its experts have biases"),
        (experts.apply_router_weight_on_input, "it applies router weights to the input"),
        (experts.expert_map_manager.num_fused_shared_experts > 0, "shared experts are fused into it; turn their fusion off"),
        (moe.in_dtype is not torch.bfloat16, f"its activations are {moe.in_dtype}, wanted torch.bfloat16; use --dtype bfloat16"),
        (moe.tp_shard_with_padding or moe.intermediate_size_per_partition != moe.intermediate_size, "its experts are cut over ranks"),
    ) if wrong]
    if not problems:
        planned = monomoe.plan(format_name, hidden=moe.hidden_dim, intermediate=moe.intermediate_size_per_partition,  # type: ignore[arg-type]
                               experts=moe.num_experts, topk=moe.experts_per_token, ranks=moe.ep_size, capacity=moe.max_num_tokens)
        if not planned["legal"]:
            problems.append(planned["rule"])
    if problems:
        raise UsageError(f"{_PREFIX}, and {experts.layer_name} cannot run there: {'; '.join(problems)}")


def one_machine(group: Any) -> None:
    """Refuses ranks that do not share one machine: their memory is written directly. Collective."""
    from monomoe.torch.distributed import require_one_machine
    require_one_machine(group, "the expert-parallel ranks write each other's GPU memory over NVLink; serve with as many GPUs as one machine has, and "
                               "data-parallel replicas for more")
