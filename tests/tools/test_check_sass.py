"""check_sass.py on recorded listings: what it reads, and that each thing it is for makes it fail."""

import subprocess
import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOOLS = HERE.parent.parent / "tools"
sys.path.insert(0, str(TOOLS))

from check_sass import check, read_sass  # noqa: E402
from kernel_table import KERNELS, NONE, SOME, Kernel  # noqa: E402

FP4 = (HERE / "recorded" / "moe_kernel_fp4.sass").read_text(encoding="utf-8")
FP8 = (HERE / "recorded" / "moe_kernel_fp8.sass").read_text(encoding="utf-8")
BLOCK = (4, None)
# Rows of the recorded kernels, so that these tests do not change with the kernels.
ROWS = (
    Kernel("fp4", "ConfigILb0E", {"QGMMA 64x8x32 register A": BLOCK, "QGMMA * shared A": NONE, "UBLKCP": SOME, "BPT": NONE}),
    Kernel("fp8", "ConfigILb1E", {"QGMMA 64x64x32 shared A": BLOCK, "QGMMA * register A": NONE, "UBLKCP": SOME, "BPT": NONE}),
)
FP4_SYMBOL = "_ZN7monomoe4cuda10moe_kernelINS0_6ConfigILb0EEEEEvNS0_6ParamsE"
FP8_SYMBOL = "_ZN7monomoe4cuda10moe_kernelINS0_6ConfigILb1EEEEEvNS0_6ParamsE"


def rows_by_symbol() -> tuple[Kernel, ...]:
    """The rows under the names that read_sass gives, whatever the project's table calls the kernels."""
    names = {"fp4": next(iter(read_sass(FP4))), "fp8": next(iter(read_sass(FP8)))}
    return tuple(Kernel(names[row.name], row.symbol, row.instructions) for row in ROWS)


def faults(listing: str) -> list[str]:
    return check(read_sass(listing), rows_by_symbol())


class Reading(unittest.TestCase):
    def test_counts_shapes_and_operands(self):
        (counts,) = read_sass(FP4).values()
        for tokens in (8, 16, 32, 64):
            self.assertEqual(counts[f"QGMMA 64x{tokens}x32 register A"], 4)
        self.assertEqual(counts["UBLKCP"], 1)
        self.assertEqual(sum(number for key, number in counts.items() if "shared A" in key), 0)
        (counts,) = read_sass(FP8).values()
        self.assertEqual(counts["QGMMA 64x16x32 shared A"], 4)

    def test_predicated_instructions_count(self):
        text = f"\t\tFunction : {FP4_SYMBOL}\n        /*0010*/    @!P0 BPT.TRAP 0x1 ;    /* 0x00 */\n        /*0020*/    @UP1 UBLKCP.S.G [UR4], [UR8], UR7 ;\n"
        (counts,) = read_sass(text).values()
        self.assertEqual(counts, {"BPT": 1, "UBLKCP": 1})


class Faults(unittest.TestCase):
    def test_recorded_kernels_pass(self):
        self.assertEqual(faults(FP4 + FP8), [])

    def test_no_tensor_core(self):
        found = faults(FP4 + FP8.replace("QGMMA.", "FFMA."))
        self.assertTrue(any("no QGMMA, so the tensor cores are not used" in fault for fault in found), found)
        self.assertTrue(any("0 of 'QGMMA 64x64x32 shared A', wanted at least 4" in fault for fault in found), found)
        self.assertTrue(all("ConfigILb1E" in fault or "fp8" in fault for fault in found), found)

    def test_no_tensor_core_whatever_the_table_says(self):
        listing = FP8.replace("QGMMA.", "FFMA.")
        (name,) = read_sass(listing)
        self.assertEqual(check(read_sass(listing), [Kernel(name, "")]), [f"{name}: no QGMMA, so the tensor cores are not used"])

    def test_operand_from_shared_memory(self):
        found = faults(FP4.replace("R24, R72, gdesc[UR12], RZ", "R24, gdesc[UR8], RZ") + FP8)
        self.assertEqual(len(found), 1, found)
        self.assertIn("of 'QGMMA * shared A', wanted at most 0", found[0])

    def test_one_shape_lost(self):
        lines = [line for line in FP4.splitlines() if "QGMMA.64x8x32" not in line]
        found = faults("\n".join(lines) + "\n" + FP8)
        self.assertEqual(len(found), 1, found)
        self.assertIn("0 of 'QGMMA 64x8x32 register A', wanted at least 4", found[0])

    def test_trap(self):
        found = faults(FP4 + "        /*4c630*/                   BPT.TRAP 0x1 ;                        /* 0x000000040000795c */\n" + FP8)
        self.assertEqual(len(found), 1, found)
        self.assertIn("1 of 'BPT', wanted at most 0", found[0])

    def test_missing_and_unknown_kernels(self):
        (fp8,) = read_sass(FP8)
        self.assertEqual(faults(FP4), [f"{fp8}: in tools/kernel_table.py but not compiled"])
        found = faults(FP4 + FP8 + FP8.replace(FP8_SYMBOL, "_Z7unknownv"))
        self.assertEqual(found, ["_Z7unknownv: compiled but without a row in tools/kernel_table.py"])

    def test_a_function_without_instructions(self):
        found = check(read_sass("\t\tFunction : _Z5emptyv\n"), [Kernel("_Z5emptyv", "empty")])
        self.assertEqual(found, ["_Z5emptyv: no instruction was read; is this a listing of cuobjdump -sass?"])


class Table(unittest.TestCase):
    def test_names_are_distinct_and_every_moe_kernel_wants_its_tensor_core_instruction(self):
        names = [kernel.name for kernel in KERNELS]
        self.assertEqual(len(set(names)), len(names))
        for kernel in KERNELS:
            if "moe_kernel" in kernel.name:
                wanted = [key for key, (least, _) in kernel.instructions.items() if key.startswith("QGMMA") and least > 0]
                self.assertTrue(wanted, kernel.name)


class Program(unittest.TestCase):
    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-B", str(TOOLS / "check_sass.py"), *arguments], capture_output=True, text=True, check=False)

    def test_says_when_nothing_is_checked(self):
        result = self.call("--cuobjdump", "/nowhere/cuobjdump", "a.o")
        self.assertEqual(result.returncode, 77)
        self.assertIn("SKIPPED: no cuobjdump", result.stdout)
        self.assertEqual(self.call("--cuobjdump", "/bin/true").returncode, 77)

    def test_a_disassembler_that_fails(self):
        result = self.call("--cuobjdump", "/bin/false", "a.o")
        self.assertEqual(result.returncode, 1)
        self.assertIn("a.o: /bin/false -sass fails", result.stdout)

    def test_no_kernel_at_all_fails(self):
        result = self.call("--cuobjdump", "/bin/true", "a.o")
        self.assertEqual(result.returncode, 1)
        self.assertIn("in tools/kernel_table.py but not compiled", result.stdout)


if __name__ == "__main__":
    unittest.main()
