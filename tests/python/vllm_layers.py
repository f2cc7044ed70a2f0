"""vLLM's own DeepSeek-V4 MoE block on a machine without a GPU, for test_vllm.py and its ranks: configuration, loading and forward are vLLM's. What is
compiled in its wheel is not there; the one compiled operation the block calls, the router's top-k, is torch here."""

import importlib.metadata
import json
import pathlib
import struct
import sys
import tomllib
from types import SimpleNamespace

import torch
import vllm._custom_ops
from vllm.config import CacheConfig, DeviceConfig, LoadConfig, ParallelConfig, SchedulerConfig, VllmConfig, set_current_vllm_config
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.fused_moe.router import base_router
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.models.deepseek_v4.nvidia.model import DeepseekV4MoE, _make_deepseek_v4_weights_mapper
from vllm.models.deepseek_v4.quant_config import DeepseekV4FP8Config

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
ASKED = {"moe_backend": "monomoe"}
_DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "I8": torch.int8, "U8": torch.uint8, "F8_E4M3": torch.float8_e4m3fn,
           "F8_E8M0": torch.float8_e8m0fnu, "I64": torch.int64}
routed = []  # (ids, weights) of each routing, as the block's experts got them


def topk_hash_softplus_sqrt(topk_weights, topk_indices, token_expert_indices, gating_output, renormalize, routed_scaling_factor, bias, *others, **more):
    scores = torch.nn.functional.softplus(gating_output.float()).sqrt()
    ids = (scores + bias).topk(topk_indices.shape[1], dim=-1).indices
    weights = scores.gather(1, ids)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    ids[gating_output.isnan().any(dim=-1)] = -1  # how the test marks rows of padding
    topk_indices.copy_(ids)
    topk_weights.copy_(weights.nan_to_num() * routed_scaling_factor)
    routed.append((topk_indices.clone(), topk_weights.clone()))


def map_to_physical_and_record(topk_ids, expert_load_view, logical_to_physical_map, logical_replica_count, record_enabled, num_unpadded_tokens=None):
    """What vLLM's Triton kernel does where there is a GPU: the copy of each expert by the token's number, and how often each is used."""
    used = topk_ids >= 0
    ids = topk_ids.clamp(min=0).long()
    token = torch.arange(len(ids))[:, None]
    physical = torch.where(used, logical_to_physical_map[ids, (token * 2654435769 & 0xFFFFFFFF) % logical_replica_count[ids]], -1)
    if record_enabled:
        counted = used & (token < num_unpadded_tokens)
        expert_load_view.scatter_add_(0, physical[counted], torch.ones_like(physical[counted], dtype=expert_load_view.dtype))
    return physical.to(topk_ids.dtype)


vllm._custom_ops.topk_hash_softplus_sqrt = topk_hash_softplus_sqrt
base_router.eplb_map_to_physical_and_record = map_to_physical_and_record


def install_entry_points(folder):
    """What an installed wheel would tell importlib.metadata, from pyproject.toml, for vLLM's plugin loader to find."""
    groups = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["entry-points"]
    info = folder / "monomoe-0.0.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: monomoe\nVersion: 0.0\n")
    info.joinpath("entry_points.txt").write_text("".join(f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for group, points in groups.items()))
    sys.path.insert(0, str(folder))
    assert [point.value for point in importlib.metadata.entry_points(group="vllm.general_plugins") if point.name == "monomoe"] == ["monomoe.vllm:register"]


def tensors_of(folder):
    """(name, tensor) of a checkpoint."""
    for path in sorted(folder.glob("*.safetensors")):
        raw = path.read_bytes()
        start = 8 + struct.unpack("<Q", raw[:8])[0]
        for name, entry in json.loads(raw[8:start]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                data = torch.frombuffer(bytearray(raw[start + begin:start + end]), dtype=torch.uint8)
                yield name, data.view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])


def config_of(folder, additional=ASKED, parallel=None, max_tokens=64, **more):
    """vLLM's configuration for one of the examples' checkpoints, and the part of a Hugging Face configuration that the block reads."""
    hf = json.loads((folder / "config.json").read_text())
    config = VllmConfig(device_config=DeviceConfig(device="cpu"), load_config=LoadConfig(), cache_config=CacheConfig(),
                        scheduler_config=SchedulerConfig(max_num_batched_tokens=max_tokens, max_model_len=max_tokens, max_num_seqs=4, is_encoder_decoder=False),
                        parallel_config=parallel or ParallelConfig(), additional_config=additional, **more)
    hf = SimpleNamespace(**{**hf, "n_shared_experts": None})
    config.model_config = SimpleNamespace(hf_config=hf, hf_text_config=hf, dtype=torch.bfloat16, enable_sleep_mode=False, is_moe=True,
                                          word_embeddings_untied_by_checkpoint=True, quantization=None)
    config.quant_config = DeepseekV4FP8Config.from_config(hf.quantization_config)
    return config


class Block(torch.nn.Module):
    """One MoE block under the names of the model."""

    def __init__(self, config, layer):
        super().__init__()
        self.ffn = DeepseekV4MoE(config, prefix=f"model.layers.{layer}.ffn", num_hash_layers=0)


class Loader(BaseModelLoader):
    """vLLM's loader around a checkpoint's block: its own load_model does the rest."""

    def __init__(self, folder, layer, block=Block):
        super().__init__(LoadConfig())
        self.folder, self.layer, self.block = folder, layer, block

    def download_model(self, model_config):
        pass

    def create_model(self, vllm_config, model_config, prefix=""):
        return self.block(vllm_config, self.layer)

    def load_weights(self, model, model_config):
        mapper = _make_deepseek_v4_weights_mapper(model_config.hf_config.expert_dtype)
        start = f"model.layers.{self.layer}.ffn."
        found = {name[len(start):]: tensor for name, tensor in mapper.apply(tensors_of(self.folder)) if name.startswith(start)}
        for name in ("gate.weight", "gate.e_score_correction_bias"):
            model.get_parameter(f"ffn.{name}").data.copy_(found[name])
        experts = [(name.removeprefix("experts."), tensor) for name, tensor in found.items() if name.startswith("experts.")]
        loaded = list(model.ffn.experts.load_weights(experts))
        assert loaded, "vLLM's loader took no expert tensor"


def load(folder, layer, config, block=Block):
    with set_current_vllm_config(config):
        return Loader(folder, layer, block).load_model(config, config.model_config)


@torch.inference_mode()
def forward(model, config, x):
    """The block's output, and the ids and weights its router gave."""
    with set_current_vllm_config(config), set_forward_context(None, config, num_tokens=len(x)):
        y = model.ffn(x)
    return y, *routed.pop()
