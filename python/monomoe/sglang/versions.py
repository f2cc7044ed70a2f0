"""Which SGLang the plugin knows, and whether the functions it replaces are the ones it was written for."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import itertools
import re
from typing import Any, Sequence

OLDEST, BELOW = (0, 5, 23), (0, 6)
REMEDY = "install sglang 0.5.23, or uninstall monomoe, or leave --moe-a2a-backend megamoe away"


def _text(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def problem() -> str | None:
    """Why the installed SGLang is not one the plugin knows, or None."""
    try:
        found = importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return f"sglang is imported but not installed, so its version is unknown; {REMEDY}"
    numbers = tuple(int(part) for part in re.match(r"\d*(?:\.\d+)*", found).group().split(".") if part)  # type: ignore[union-attr]
    if not OLDEST <= numbers < BELOW:
        return f"sglang is {found}, wanted {_text(OLDEST)} or newer below {_text(BELOW)}; {REMEDY}"
    return None


def resolve(target: str) -> Any:
    """What a dotted path names now, as the class or module holds it."""
    *owner, name = target.split(".")
    module = list(itertools.takewhile(str.islower, owner))
    found = importlib.import_module(".".join(module))
    for part in (*owner[len(module):], name):
        found = getattr(found, part)
    return found


def mismatch(target: str, parameters: Sequence[str] | None) -> str | None:
    """Why a function of SGLang is not the one a hook was written for, or None. parameters: None = any."""
    try:
        function = resolve(target)
    except (ImportError, AttributeError) as error:
        return f"{target} is not there ({error})"
    if parameters is None:
        return None
    found = list(inspect.signature(function).parameters)
    if found != list(parameters):
        return f"{target} takes ({', '.join(found)}), wanted ({', '.join(parameters)})"
    return None
