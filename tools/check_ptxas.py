"""Holds what the compiler says about the kernels against a committed table.

Usage: check_ptxas.py --nvcc-version V OBJECT...      (OBJECT.log holds what `ptxas -v` printed)
       check_ptxas.py ... --write    writes the table from what is there

Registers, spilled bytes, stack and static shared memory may shrink, never grow; a C75xx note (ptxas serialised the tensor-core pipeline) is an
error in any case. The numbers belong to the compiler's version: under another one only notes are checked, and it says so. Machine code is read
by check_sass.py. Exit codes: 0 fine, 1 not, 77 skipped (no object).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

from kernel_table import kernel_name

TABLE = Path(__file__).resolve().parent / "ptxas_table.json"
ENTRY = re.compile(r"Compiling entry function '([^']+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
FUNCTION = re.compile(r"Function properties for (\S+)")
NOTE = re.compile(r"\bC75\d\d\b")


def read_log(text: str) -> dict[str, dict[str, int]]:
    """Numbers of each entry function."""
    found: dict[str, dict[str, int]] = {}
    name = function = ""
    for line in text.splitlines():
        if match := ENTRY.search(line):
            name = kernel_name(match[1])
            found[name] = {"registers": 0, "stack": 0, "spill_stores": 0, "spill_loads": 0, "static_shared": 0}
        elif match := FUNCTION.search(line):
            function = kernel_name(match[1])  # the entry itself, or a function it calls
        elif name and (match := STACK.search(line)) and function in (name, ""):
            found[name]["stack"], found[name]["spill_stores"], found[name]["spill_loads"] = (int(g) for g in match.groups())
        elif name and (match := USED.search(line)):
            found[name]["registers"] = int(match[1])
            if shared := SHARED.search(line):
                found[name]["static_shared"] = int(shared[1])
    return found


def notes(name: str, text: str) -> list[str]:
    return [f"{name}: {line.strip()}" for line in text.splitlines() if NOTE.search(line)]


def compare(found: dict[str, dict[str, int]], table: dict[str, dict[str, int]]) -> list[str]:
    faults = [f"{name}: in the table but not compiled" for name in sorted(set(table) - set(found))]
    faults += [f"{name}: compiled but not in the table; run with --write" for name in sorted(set(found) - set(table))]
    for name in sorted(set(found) & set(table)):
        for key, value in found[name].items():
            if value > table[name].get(key, 0):
                faults.append(f"{name}: {key} is {value}, the table allows {table[name].get(key, 0)}")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nvcc-version", required=True)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("objects", nargs="*", type=Path)
    arguments = parser.parse_args()
    if not arguments.objects:
        print("SKIPPED: no object files")
        return 77
    faults: list[str] = []
    found: dict[str, dict[str, int]] = {}
    for item in arguments.objects:
        log = Path(f"{item}.log").read_text(encoding="utf-8", errors="replace")
        faults += notes(item.name, log)
        found |= read_log(log)
    for name in sorted(found):
        print(f"{name}: {found[name]}")
    if arguments.write:
        TABLE.write_text(json.dumps({"nvcc": arguments.nvcc_version, "kernels": dict(sorted(found.items()))}, indent=1) + "\n", encoding="utf-8")
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    if table["nvcc"] == arguments.nvcc_version:
        faults += compare(found, table["kernels"])
    else:
        print(f"the table is nvcc {table['nvcc']}'s, this is {arguments.nvcc_version}: numbers are not compared")
    print("\n".join(faults), end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
