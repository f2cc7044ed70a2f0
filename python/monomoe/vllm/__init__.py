"""The layer in vLLM: `pip install monomoe`, then `vllm serve MODEL --additional-config '{"moe_backend": "monomoe"}'`. docs/vllm.md has the rest.

vLLM calls register() in each of its processes (entry point group vllm.general_plugins). It puts three hooks in place that do nothing unless the
configuration asks: routed experts are made by MonomoeRoutedExperts, a configuration is checked when it is made, and a loaded model is checked
to have its experts here. A vLLM in which the hooks find no place is refused when monomoe is asked for, not before.
"""

from __future__ import annotations

import functools
from typing import Any

from monomoe.errors import Error, UnavailableError

KNOWN_VERSION = "0.33.0"  # of vLLM, whose interfaces the tests hold this package against
_missing: str | None = None  # why the hooks are not in place


def asked_for(vllm_config: Any) -> bool:
    """Whether a vLLM configuration wants its routed experts here."""
    extra = getattr(vllm_config, "additional_config", None)
    return isinstance(extra, dict) and extra.get("moe_backend") == "monomoe"


def register() -> None:
    """The entry point. May be called any number of times; never raises, so that a vLLM that does not ask for monomoe goes on as without it."""
    global _missing
    try:
        from vllm.config import VllmConfig
    except ImportError as error:
        _missing = f"vllm.config.VllmConfig cannot be imported ({error})"
        return
    if not hasattr(VllmConfig.__post_init__, "_monomoe"):
        VllmConfig.__post_init__ = _checked(VllmConfig.__post_init__)  # type: ignore[method-assign]
    try:
        from monomoe.vllm import hooks
        hooks.install()
        _missing = None
    except Exception as error:  # noqa: BLE001 - told when monomoe is asked for
        _missing = f"{type(error).__name__}: {error}"


def hooks_in_place() -> None:
    """Raises if this vLLM's layers would not come here."""
    if _missing is None:
        return
    import vllm
    raise UnavailableError(f"monomoe does not fit vLLM {getattr(vllm, '__version__', '?')} ({_missing}); install vLLM {KNOWN_VERSION}, or a monomoe made "
                           "for yours")


def _checked(post_init: Any) -> Any:
    """VllmConfig.__post_init__, then our checks: a configuration that cannot work is refused before any process starts."""
    @functools.wraps(post_init)
    def checked(self: Any, *arguments: Any, **keywords: Any) -> None:
        post_init(self, *arguments, **keywords)
        if asked_for(self):
            hooks_in_place()
            from monomoe.vllm import checks
            checks.deployment(self)

    checked._monomoe = True  # type: ignore[attr-defined]
    return checked


__all__ = ["Error", "KNOWN_VERSION", "asked_for", "hooks_in_place", "register"]
