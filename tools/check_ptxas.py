"""Holds what the compiler made of the kernels against a committed table, and looks for the tensor-core instructions meant.

Usage: check_ptxas.py --nvcc-version V [--cuobjdump PROGRAM] OBJECT...      (OBJECT.log holds what `ptxas -v` printed)
       check_ptxas.py ... --write    writes the table from what is there

Registers, spilled bytes, stack and static shared memory may shrink, never grow; a C75xx note (ptxas serialised the tensor-core pipeline) is an
error in any case. The numbers belong to the compiler's version: under another one only notes and instructions are checked, and it says so.
Instructions are read with cuobjdump; without one the rest is checked, and it says so. Exit codes: 0 fine, 1 not, 77 skipped (no object).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

TABLE = Path(__file__).resolve().parent / "ptxas_table.json"
ENTRY = re.compile(r"Compiling entry function '([^']+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
NOTE = re.compile(r"\bC75\d\d\b")
# The FP4 kernel expands weights into registers, so its QGMMA takes A from registers: `QGMMA.64x64x32.F32.E4M3.E4M3 R24, R88, gdesc[UR8]`.
QGMMA = re.compile(r"\bQGMMA\.\S+\s+(?:gsb\d+\s+)?R\d+,\s*(R\d+|gdesc\S*)")


def kernel_name(mangled: str) -> str:
    """`moe_kernel_fp4` from the template argument, `unfused_combine_kernel` from the name; others keep their mangled name."""
    if match := re.search(r"moe_kernelINS0_6ConfigILb([01])E", mangled):
        return f"moe_kernel_fp{8 if match[1] == '1' else 4}"
    if match := re.search(r"7unfused.*?\d((?:[a-z]+_)+kernel)(?:ILb([01])E|E)", mangled):
        return f"unfused_{match[1]}" + ("" if match[2] is None else f"_fp{8 if match[2] == '1' else 4}")
    return mangled


def read_log(text: str) -> dict[str, dict[str, int]]:
    """Numbers of each entry function."""
    found: dict[str, dict[str, int]] = {}
    name = ""
    for line in text.splitlines():
        if match := ENTRY.search(line):
            name = kernel_name(match[1])
            found[name] = {"registers": 0, "stack": 0, "spill_stores": 0, "spill_loads": 0, "static_shared": 0}
        elif name and (match := STACK.search(line)):
            found[name]["stack"], found[name]["spill_stores"], found[name]["spill_loads"] = (int(g) for g in match.groups())
        elif name and (match := USED.search(line)):
            found[name]["registers"] = int(match[1])
            if shared := SHARED.search(line):
                found[name]["static_shared"] = int(shared[1])
    return found


def read_sass(text: str) -> dict[str, dict[str, int]]:
    """Tensor-core instructions of each function: A from registers, A from shared memory."""
    found: dict[str, dict[str, int]] = {}
    name = ""
    for line in text.splitlines():
        if "Function :" in line:
            name = kernel_name(line.split("Function :")[1].strip())
            found[name] = {"register_a": 0, "shared_a": 0}
        elif name and (match := QGMMA.search(line)):
            found[name]["register_a" if match[1].startswith("R") else "shared_a"] += 1
    return found


def compare(found: dict[str, dict[str, int]], table: dict[str, dict[str, int]]) -> list[str]:
    faults = [f"{name}: in the table but not compiled" for name in sorted(set(table) - set(found))]
    faults += [f"{name}: compiled but not in the table; run with --write" for name in sorted(set(found) - set(table))]
    for name in sorted(set(found) & set(table)):
        for key, value in found[name].items():
            if value > table[name].get(key, 0):
                faults.append(f"{name}: {key} is {value}, the table allows {table[name].get(key, 0)}")
    return faults


def check_instructions(sass: dict[str, dict[str, int]]) -> list[str]:
    faults = []
    for name in ("moe_kernel_fp4", "moe_kernel_fp8", "unfused_gemm_kernel_fp4", "unfused_gemm_kernel_fp8"):
        counts = sass.get(name)
        if counts is None:
            faults.append(f"{name}: no machine code found")
        elif counts["register_a"] + counts["shared_a"] == 0:
            faults.append(f"{name}: no QGMMA, so the tensor cores are not used")
        elif name == "moe_kernel_fp4" and counts["register_a"] == 0:
            faults.append(f"{name}: no QGMMA takes its A operand from registers")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nvcc-version", required=True)
    parser.add_argument("--cuobjdump", default="cuobjdump")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("objects", nargs="*", type=Path)
    arguments = parser.parse_args()
    if not arguments.objects:
        print("SKIPPED: no object files")
        return 77
    has_listing = Path(arguments.cuobjdump).exists()
    faults: list[str] = []
    found: dict[str, dict[str, int]] = {}
    sass: dict[str, dict[str, int]] = {}
    for item in arguments.objects:
        log = Path(f"{item}.log").read_text(encoding="utf-8", errors="replace")
        faults += [f"{item.name}: {line.strip()}" for line in log.splitlines() if NOTE.search(line)]
        found |= read_log(log)
        if has_listing:
            listing = subprocess.run([arguments.cuobjdump, "-sass", str(item)], check=True, capture_output=True, text=True).stdout
            sass |= read_sass(listing)
    if has_listing:
        faults += check_instructions(sass)
    else:
        print(f"NOT CHECKED: instructions, since there is no cuobjdump ({arguments.cuobjdump})")
    for name in sorted(found):
        print(f"{name}: {found[name]} QGMMA {sass.get(name, 'not read')}")
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
