"""tools/gen_wgmma.py writes the header that is in the tree."""

import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import gen_wgmma  # noqa: E402


class GenWgmma(unittest.TestCase):
    def test_the_header_is_what_the_tool_writes(self):
        self.assertEqual((ROOT / "src" / "cuda" / "ptx" / "wgmma.cuh").read_text(), gen_wgmma.header())

    def test_operands_are_numbered_after_the_sums(self):
        text = gen_wgmma.instruction(8)
        self.assertIn("m64n8k32.f32.e4m3.e4m3 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, p, 1, 1;", text)
        self.assertIn("setp.ne.b32 p, %6, 0; ", text)


if __name__ == "__main__":
    unittest.main()
