"""Checks the arrows between folders: every #include under src/, cli/ and bench/ against one table, and the Python package's imports.

Prints each line that breaks a rule and exits 1; exits 0 and prints nothing if all hold. The table is ARCHITECTURE.md's.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

# Folder -> folders of this project it may include (itself always).
MAY_INCLUDE: dict[str, set[str]] = {
    "src/base": set(),
    "src/numerics": {"base"},
    "src/plan": {"base", "numerics"},
    "src/reference": {"base", "numerics", "plan"},
    "src/weights": {"base", "numerics", "plan"},
    "src/comm": {"base", "plan"},
    "src/cpu": {"base", "numerics", "plan", "comm"},
    "src/cuda": {"base", "numerics", "plan", "comm"},
    "src/layer": {"base", "numerics", "plan", "reference", "weights", "comm", "cpu", "cuda", "monomoe"},
    "cli": {"monomoe"},
    "bench": {"base", "numerics", "plan", "reference", "weights", "comm", "cpu", "cuda", "monomoe"},  # measures any part
    "include/monomoe": set(),
    "examples/cpp": {"monomoe"},
}
# Device code includes these: no STL beyond the small headers, and of base only the host/device marks.
DEVICE_FOLDERS = {"src/numerics", "src/plan"}
DEVICE_SYSTEM = {"cstdint", "cstddef", "array", "type_traits"}
DEVICE_PROJECT = {"base/host_device.h"}

# Python folder -> what it may import at a module's top besides the standard library. Other frameworks are looked for where they are needed.
MAY_IMPORT: dict[str, set[str]] = {
    "python/monomoe": {"monomoe"},
    "python/monomoe/torch": {"monomoe", "monomoe.torch", "torch"},
    "python/monomoe/compat": {"monomoe", "monomoe.torch", "monomoe.compat", "torch"},
    "python/monomoe/sglang": {"monomoe", "monomoe.torch", "monomoe.sglang", "torch"},
    "python/monomoe/vllm": {"monomoe", "monomoe.torch", "monomoe.vllm", "torch", "vllm"},
    "python/monomoe/flashinfer": {"monomoe", "monomoe.torch", "monomoe.flashinfer", "torch", "flashinfer"},
}
IMPORT = re.compile(r"^(?:from|import) +([\w.]+)")

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
SUFFIXES = {".h", ".hpp", ".cpp", ".c", ".cc", ".cu", ".cuh"}


def folder_of(path: Path) -> str | None:
    """The longest table entry that holds path."""
    matches = [folder for folder in MAY_INCLUDE if path.as_posix().startswith(folder + "/")]
    return max(matches, key=len, default=None)


def breach(path: Path, folder: str, quoted: str | None, system: str | None) -> str | None:
    """Why this include is not allowed, or None."""
    own = Path(folder).name
    if system is not None:
        if folder in DEVICE_FOLDERS and path.suffix == ".h" and system not in DEVICE_SYSTEM:
            return f"<{system}>: device code may include only {', '.join(f'<{name}>' for name in sorted(DEVICE_SYSTEM))}"
        return None
    assert quoted is not None
    if "/" not in quoted:
        # Inside one folder of headers or sources a plain name means a neighbour; in src/ paths are relative to src/.
        return None if not folder.startswith("src/") else f'"{quoted}": write the path from src/, e.g. "{own}/{quoted}"'
    if ".." in quoted.split("/"):
        return f'"{quoted}": no way up; write the path from src/ or include/'
    target = quoted.split("/")[0]
    if target == own:
        return None
    if target not in MAY_INCLUDE[folder]:
        allowed = ", ".join(sorted(MAY_INCLUDE[folder] | {own}))
        return f'"{quoted}": {folder} may include only {allowed}'
    if folder in DEVICE_FOLDERS and path.suffix == ".h" and target == "base" and quoted not in DEVICE_PROJECT:
        return f'"{quoted}": device code may include only {", ".join(sorted(DEVICE_PROJECT))} of base'
    if path.suffix in {".h", ".cuh"} and quoted.endswith(".hpp"):
        return f'"{quoted}": a .h file compiles for the device too and cannot include a host-only .hpp'
    return None


def check(root: Path) -> list[str]:
    """All breaches under root, one line each."""
    lines = []
    files = [f for top in ("src", "cli", "bench", "include", "examples/cpp") for f in sorted((root / top).rglob("*")) if f.suffix in SUFFIXES]
    for file in files:
        relative = file.relative_to(root)
        folder = folder_of(relative)
        if folder is None:
            lines.append(f"{relative}: its folder is not in the table of tools/check_layers.py; add it with what it may include")
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if (found := INCLUDE.match(line)) and (reason := breach(relative, folder, found[1], found[2])):
                lines.append(f"{relative}:{number}: {reason}")
    return lines


def package_of(module: str) -> str:
    """The entry of MAY_IMPORT's values that stands for a module: the folder of this package, or the framework's name."""
    parts = module.split(".")
    if parts[0] == "monomoe" and len(parts) > 1 and parts[1] in ("torch", "compat", "sglang"):
        return ".".join(parts[:2])
    return parts[0]


def check_python(root: Path) -> list[str]:
    lines = []
    for file in sorted((root / "python").rglob("*.py")):
        relative = file.relative_to(root)
        folder = relative.parent.as_posix()
        allowed = MAY_IMPORT.get(folder)
        if allowed is None:
            lines.append(f"{relative}: its folder is not in the table of tools/check_layers.py; add it with what it may import")
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            found = IMPORT.match(line)
            if found and (package := package_of(found[1])) not in allowed and package not in sys.stdlib_module_names and package != "__future__":
                lines.append(f"{relative}:{number}: import of {found[1]}: {folder} may import only {', '.join(sorted(allowed))} at the top of a file")
    return lines


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    breaches = check(root) + check_python(root)
    print("\n".join(breaches), end="\n" if breaches else "")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
