"""The shared library exports the functions that the public headers declare, and nothing else.

Usage: check_symbols.py NM LIBRARY HEADER...
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def exported(nm: str, library: str) -> set[str]:
    """Defined dynamic symbols, without linker marks."""
    listing = subprocess.run([nm, "-D", "--defined-only", "--format=posix", library], check=True, capture_output=True, text=True).stdout
    return {line.split()[0].split("@")[0] for line in listing.splitlines() if line.split()[1] not in {"A", "a"}}


def declared(headers: list[str]) -> set[str]:
    """Names of the functions marked MONOMOE_API."""
    text = "\n".join(Path(header).read_text(encoding="utf-8") for header in headers)
    return set(re.findall(r"^MONOMOE_API\b[^;(]*?\b(monomoe_\w+)\(", text, re.MULTILINE))


def main() -> int:
    nm, library, *headers = sys.argv[1:]
    have, want = exported(nm, library), declared(headers)
    if len(want) < 30:
        print(f"only {len(want)} declarations found in {headers}: the pattern no longer fits the headers")
        return 1
    for name in sorted(have - want):
        print(f"exported but in no header: {name}")
    for name in sorted(want - have):
        print(f"declared but not exported: {name}")
    return 0 if have == want else 1


if __name__ == "__main__":
    sys.exit(main())
