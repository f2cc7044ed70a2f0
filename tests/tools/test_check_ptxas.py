"""check_ptxas.py on a recorded log of ptxas -v: what it reads, and what makes it fail."""

import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "tools"))

from check_ptxas import compare, notes, read_log  # noqa: E402

LOG = (HERE / "recorded" / "moe_kernel_fp4.log").read_text(encoding="utf-8")
NUMBERS = {"registers": 168, "stack": 136, "spill_stores": 224, "spill_loads": 1148, "static_shared": 0}


class Log(unittest.TestCase):
    def test_numbers(self):
        (numbers,) = read_log(LOG).values()
        self.assertEqual(numbers, NUMBERS)

    def test_static_shared_memory(self):
        (numbers,) = read_log(LOG.replace("used 3 barriers", "used 3 barriers, 1024 bytes smem")).values()
        self.assertEqual(numbers["static_shared"], 1024)

    def test_notes(self):
        self.assertEqual(notes("a.o", LOG), [])
        note = "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized"
        self.assertEqual(notes("a.o", LOG + note), [f"a.o: {note}"])


class Comparison(unittest.TestCase):
    def test_equal_or_less_passes(self):
        self.assertEqual(compare({"k": NUMBERS}, {"k": NUMBERS}), [])
        self.assertEqual(compare({"k": NUMBERS | {"spill_loads": 0}}, {"k": NUMBERS}), [])

    def test_each_number_that_grows_fails(self):
        for key in NUMBERS:
            self.assertEqual(
                compare({"k": NUMBERS | {key: NUMBERS[key] + 1}}, {"k": NUMBERS}), [f"k: {key} is {NUMBERS[key] + 1}, the table allows {NUMBERS[key]}"]
            )

    def test_missing_and_unknown_kernels(self):
        self.assertEqual(
            compare({"a": NUMBERS}, {"b": NUMBERS}), ["b: in the table but not compiled", "a: compiled but not in the table; run with --write"]
        )


if __name__ == "__main__":
    unittest.main()
