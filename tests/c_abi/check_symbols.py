"""The shared library exports the functions that the public headers declare, and nothing else; its soname is the headers' ABI version.

Usage: check_symbols.py NM READELF LIBRARY HEADER...
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


def check_soname(readelf: str, library: str, headers: list[str]) -> bool:
    """libmonomoe.so.N, where N is MONOMOE_ABI_VERSION: a program built with other structs does not load it."""
    version = re.search(r"^#define MONOMOE_ABI_VERSION (\d+)$", "\n".join(Path(header).read_text(encoding="utf-8") for header in headers), re.MULTILINE)
    listing = subprocess.run([readelf, "-d", library], check=True, capture_output=True, text=True).stdout
    soname = re.search(r"\(SONAME\).*\[(.*)\]", listing)
    want = f"libmonomoe.so.{version.group(1)}" if version else "a version in the headers"
    if soname and soname.group(1) == want:
        return True
    print(f"the soname is {soname.group(1) if soname else 'missing'}, wanted {want}")
    return False


def main() -> int:
    nm, readelf, library, *headers = sys.argv[1:]
    have, want = exported(nm, library), declared(headers)
    if len(want) < 30:
        print(f"only {len(want)} declarations found in {headers}: the pattern no longer fits the headers")
        return 1
    for name in sorted(have - want):
        print(f"exported but in no header: {name}")
    for name in sorted(want - have):
        print(f"declared but not exported: {name}")
    return 0 if check_soname(readelf, library, headers) and have == want else 1


if __name__ == "__main__":
    sys.exit(main())
