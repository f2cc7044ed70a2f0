"""The plugin for SGLang: `--moe-a2a-backend megamoe` runs its routed experts through monomoe on Hopper GPUs.

SGLang finds `load` through the entry point group sglang.srt.plugins. Without that option the plugin changes nothing. docs/sglang.md has the use;
startup.py the checks of the arguments, hooks.py what is replaced, experts.py the weights, ranks.py memory, forward.py the call.
"""

from __future__ import annotations


def load() -> None:
    """Called by SGLang early in each of its processes."""
    from monomoe.sglang import startup

    startup.register()
