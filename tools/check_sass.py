"""Reads the machine code of compiled kernels and holds its instructions against tools/kernel_table.py.

Usage: check_sass.py --cuobjdump PROGRAM [--print] OBJECT...      (--print: also every instruction counted)

So a kernel that no longer uses the tensor cores, or reads an operand from elsewhere than meant, fails without a GPU. Whatever the table says,
a kernel of the whole layer ("moe_kernel" in its name) must have a QGMMA; a kernel without a row and a row without a kernel are faults. Exit codes: 0 fine, 1 not, 77 skipped (no object, or no disassembler).
"""

from __future__ import annotations

import argparse
import fnmatch
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from kernel_table import KERNELS, Kernel, kernel_name

FUNCTION = re.compile(r"^\s*Function : (\S+)")
# `        /*17a00*/              @!P0 QGMMA.64x64x32.F32.E4M3.E4M3 R24, R72, gdesc[UR12], RZ, !UPT ;   /* 0x00e0... */`
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)((?:\.\w+)*)\s*([^;]*);")
SHAPE = re.compile(r"\d+x\d+x\d+")


def instruction_key(opcode: str, suffixes: str, operands: str) -> str:
    """The opcode; of a QGMMA also its shape and whether A, the first operand after the sums, is a register or a shared-memory descriptor."""
    if opcode != "QGMMA":
        return opcode
    shape = SHAPE.search(suffixes)
    places = [part.strip() for part in operands.split(",")]
    a = places[1] if len(places) > 1 else ""
    kind = "register A" if re.match(r"R\d+", a) else "shared A" if a.startswith("gdesc") else "A unknown"
    return f"QGMMA {shape[0] if shape else '?'} {kind}"


def read_sass(text: str) -> dict[str, Counter[str]]:
    """How often each instruction stands in each function of a listing of `cuobjdump -sass`."""
    found: dict[str, Counter[str]] = {}
    counts: Counter[str] = Counter()
    for line in text.splitlines():
        if match := FUNCTION.match(line):
            counts = found.setdefault(kernel_name(match[1]), Counter())
        elif match := INSTRUCTION.match(line):
            counts[instruction_key(*match.groups())] += 1
    return found


def check(found: dict[str, Counter[str]], kernels: Iterable[Kernel]) -> list[str]:
    """Faults, a line each."""
    rows = {kernel.name: kernel for kernel in kernels}
    faults = [f"{name}: in tools/kernel_table.py but not compiled" for name in sorted(set(rows) - set(found))]
    faults += [f"{name}: compiled but without a row in tools/kernel_table.py" for name in sorted(set(found) - set(rows))]
    for name in sorted(set(found) & set(rows)):
        if not found[name]:
            faults.append(f"{name}: no instruction was read; is this a listing of cuobjdump -sass?")
            continue
        if "moe_kernel" in name and not any(key.startswith("QGMMA") for key in found[name]):
            faults.append(f"{name}: no QGMMA, so the tensor cores are not used")
        for pattern, (least, most) in rows[name].instructions.items():
            count = sum(number for key, number in found[name].items() if fnmatch.fnmatchcase(key, pattern))
            if count < least:
                faults.append(f"{name}: {count} of '{pattern}', wanted at least {least}")
            if most is not None and count > most:
                faults.append(f"{name}: {count} of '{pattern}', wanted at most {most}")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cuobjdump", required=True)
    parser.add_argument("--print", action="store_true", dest="print_all")
    parser.add_argument("objects", nargs="*", type=Path)
    arguments = parser.parse_args()
    if not arguments.objects:
        print("SKIPPED: no object files")
        return 77
    if not Path(arguments.cuobjdump).exists():
        print(f"SKIPPED: no cuobjdump ({arguments.cuobjdump}); './run test-fast' installs one")
        return 77
    found: dict[str, Counter[str]] = {}
    for item in arguments.objects:
        done = subprocess.run([arguments.cuobjdump, "-sass", str(item)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"{item}: {arguments.cuobjdump} -sass fails: {done.stdout[-300:]}{done.stderr[-300:]}")
            return 1
        for name, counts in read_sass(done.stdout).items():
            found.setdefault(name, Counter()).update(counts)
    for name, counts in sorted(found.items()):
        shown = {key: counts[key] for key in sorted(counts) if arguments.print_all or key.startswith("QGMMA")}
        print(f"{name}: {sum(counts.values())} instructions, " + (", ".join(f"{number} {key}" for key, number in shown.items()) or "no QGMMA"))
    faults = check(found, KERNELS)
    print("\n".join(faults), end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
