"""The layer as a kernel of flashinfer.moe_ep: importing this module registers it.

    import monomoe.flashinfer
    from flashinfer.moe_ep import BootstrapConfig, FleetParams, MegaConfig, MoEEpLayer, MoEEpTensors, MoEWeightPack

    kernel = monomoe.flashinfer.MonomoeMegaMoeConfig("nvfp4", intermediate_size=2048, top_k=6, gate_up_clamp=10.0)
    layer = MoEEpLayer(bootstrap, fleet_params, MoEWeightPack(w13, w2, w13_scale, w2_scale), backend=MegaConfig(kernel))
    y = layer(MoEEpTensors(hidden_states, topk_ids, topk_weights))

Kernel names: sm90_fp8_fp8_bf16_monomoe, sm90_fp8_nvfp4_bf16_monomoe, sm90_fp8_mxfp4_bf16_monomoe. docs/flashinfer.md has the rest.
"""

from __future__ import annotations

from monomoe.errors import UnavailableError

KNOWN_VERSION = "0.7.4"  # of flashinfer-python, whose interfaces the tests hold this package against


def _require_contract() -> None:
    """Raises where flashinfer is missing, or its kernels are made of other methods than the ones given here."""
    try:
        import flashinfer
        from flashinfer.moe_ep.core.kernel.base import MegaKernelBackend
        from flashinfer.moe_ep.core.kernel.registry import register_mega_kernel  # noqa: F401
    except ImportError as error:
        raise UnavailableError(f"flashinfer.moe_ep and its register_mega_kernel cannot be imported ({error}); install flashinfer-python {KNOWN_VERSION}") from error
    needed = {"kernel_name", "_allocate_workspace", "compute"}
    if MegaKernelBackend.__abstractmethods__ != needed or not hasattr(MegaKernelBackend, "_forget_local_workspace_state"):
        raise UnavailableError(f"flashinfer-python {flashinfer.__version__} asks its kernels for {sorted(MegaKernelBackend.__abstractmethods__)}, monomoe knows "
                               f"{sorted(needed)}; install flashinfer-python {KNOWN_VERSION}, or a monomoe made for yours")


_require_contract()

from monomoe.flashinfer.backend import MonomoeMegaKernel, MonomoeMegaMoeConfig  # noqa: E402

__all__ = ["KNOWN_VERSION", "MonomoeMegaKernel", "MonomoeMegaMoeConfig"]
