"""tools/bench_plot.py and tools/benchmarks.py on rows as `monomoe bench --json` writes them."""

import json
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
import bench_plot  # noqa: E402
import benchmarks  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


def row(tokens: int, median_us: float, bound_us: float | None, **others: object) -> dict:
    return {"format": "nvfp4", "hidden": 4096, "intermediate": 2048, "experts": 32, "topk": 6, "ranks": 1, "capacity": 4096, "launch": "one", "mode": "cold",
            "routing": "uniform", "routing_value": 0.0, "device": "a GPU", "tokens": tokens, "median": median_us * 1e-6,
            "bound": None if bound_us is None else bound_us * 1e-6, "bound_by": "read", "ratio": None if bound_us is None else median_us / bound_us,
            "read": {"bytes": 453_000_000, "median": 105e-6}, "touched_experts": 32, "gemm": {"flops_per_second": 1.4e15, "library": "libcublasLt.so.13"}, "steps": []} | others


class Plot(unittest.TestCase):
    def lines(self, rows: list[dict]) -> list[ElementTree.Element]:
        return ElementTree.fromstring(bench_plot.plot(rows, "a < b")).findall(f"{SVG}polyline")

    def test_axes(self):
        axis = bench_plot.Axis([1, 4096], 2, 0, 120)
        self.assertEqual([axis.at(1), axis.at(64), axis.at(4096)], [0, 60, 120])
        self.assertEqual(axis.ticks(16), [2.0**power for power in range(13)])
        times = bench_plot.Axis([95, 1932], 10, 300, 0)
        self.assertEqual((times.low, times.high), (1, 4))
        self.assertAlmostEqual(times.at(100), 200)
        self.assertEqual((bench_plot.Axis([8], 2, 0, 1).low, bench_plot.Axis([8], 2, 0, 1).high), (3, 4))

    def test_a_line_and_a_bound_for_each_series(self):
        lines = self.lines([row(1, 95, 40), row(4, 129, 60), row(1, 94, 50, format="fp8"), row(4, 148, None, format="fp8")])
        self.assertEqual(["stroke-dasharray" in found.attrib for found in lines], [False, True, False, True])
        self.assertEqual([len(found.attrib["points"].split()) for found in lines], [2, 2, 2, 1])
        solid, dashed = ([float(pair.split(",")[1]) for pair in found.attrib["points"].split()] for found in lines[:2])
        self.assertTrue(all(time < bound for time, bound in zip(solid, dashed)))  # y points down

    def test_no_bound_no_dashes(self):
        self.assertEqual(["stroke-dasharray" in found.attrib for found in self.lines([row(1, 95, None)])], [False])

    def test_labels_name_what_differs(self):
        self.assertEqual(list(bench_plot.series_of([row(1, 1, 1), row(1, 1, 1, launch="split"), row(2, 1, 1)])), ["one", "split"])
        self.assertEqual(list(bench_plot.series_of([row(1, 1, 1), row(1, 1, 1, routing="zipf", routing_value=1.0)])), ["uniform 0", "zipf 1"])
        self.assertEqual(list(bench_plot.series_of([row(4, 1, 1), row(1, 1, 1)])), ["nvfp4"])
        self.assertEqual([found["tokens"] for found in bench_plot.series_of([row(4, 1, 1), row(1, 1, 1)])["nvfp4"]], [1, 4])

    def test_program(self):
        with tempfile.TemporaryDirectory() as folder:
            report, out = Path(folder, "bench.json"), Path(folder, "bench.svg")
            call = [sys.executable, "-B", str(TOOLS / "bench_plot.py"), str(report), str(out)]
            report.write_text(json.dumps({"rows": []}))
            failed = subprocess.run(call, capture_output=True, text=True, check=False)
            self.assertEqual(failed.returncode, 1)
            self.assertIn("holds no rows", failed.stderr)
            self.assertFalse(out.exists())
            report.write_text(json.dumps({"rows": [row(1, 95, 40)]}))
            subprocess.run(call, check=True)
            self.assertIn("4096/2048, 32 experts, top-6, a GPU", out.read_text())


class Page(unittest.TestCase):
    REPORT = {"commit": "0123456789", "date": "2026-01-02T03:04:05", "machine": {"gpus": [{"name": "a GPU", "driver": "1.2"}]},
              "steps": {"bench": {"rows": [
                  row(tokens, us * (1 + 0.1 * (kind == "fp8")), us / 2, format=kind, launch=launch, command="monomoe bench --geometry flash",
                      steps=[{"step": "gemm1", "median": 5e-6}] if launch == "unfused" else [])
                  for kind in ("nvfp4", "fp8") for launch, us in (("one", 100), ("split", 110), ("unfused", 400)) for tokens in (1, 4)]}}}

    def test_tables(self):
        page, plots = benchmarks.page(self.REPORT, "results/x.json")
        self.assertIn("| 4 | 100 | 2.00 | 110 | 2.20 |", page)
        self.assertIn("| 4 | 100 | 110 | 400 | 110 | 121 | 440 |", page)
        self.assertIn("| 4 | 5.0 |", page)
        self.assertIn("`monomoe bench --geometry flash`", page)
        self.assertIn("![", page)
        self.assertEqual(list(plots), ["benchmarks-flash.svg"])
        ElementTree.fromstring(plots["benchmarks-flash.svg"])


if __name__ == "__main__":
    unittest.main()
