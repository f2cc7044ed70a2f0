"""The processes of tools/multi_gpu_check.py, with programs that need no GPU."""

import contextlib
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import gpu_check  # noqa: E402
import multi_gpu_check  # noqa: E402


class RanksTest(unittest.TestCase):
    def test_each_rank_sees_its_share_of_the_gpus(self):
        seen = lambda ranks, gpus: [multi_gpu_check.Ranks(ranks, gpus).visible(rank)["CUDA_VISIBLE_DEVICES"] for rank in range(ranks)]  # noqa: E731
        self.assertEqual(seen(2, ["GPU-a", "GPU-b", "GPU-c"]), ["GPU-a", "GPU-b"])
        self.assertEqual(seen(4, ["GPU-a", "GPU-b"]), ["GPU-a", "GPU-a", "GPU-b", "GPU-b"])

    def test_codes_output_and_errors(self):
        ranks = multi_gpu_check.Ranks(3, ["GPU-a"])
        done = ranks.run(lambda world, rank: ["sh", "-c", f"echo out {rank} $CUDA_VISIBLE_DEVICES; echo err {rank} >&2; [ {rank} = 1 ] && kill -9 $$; exit {rank}"], 60)
        self.assertEqual(done["codes"], [0, multi_gpu_check.KILLED, 2])
        self.assertEqual(done["out"], "out 0 GPU-a\n")
        self.assertEqual(done["errors"], "err 0\nerr 1\nerr 2\n")
        self.assertFalse(done["late"])

    def test_a_process_that_does_not_end_is_ended(self):
        done = multi_gpu_check.Ranks(2, ["GPU-a"]).run(lambda world, rank: ["sh", "-c", f"[ {rank} = 0 ] || exec sleep 600"], 2)
        self.assertEqual(done["codes"], [0, multi_gpu_check.KILLED])
        self.assertTrue(done["late"])

    def test_a_skipped_step_is_told_with_its_reason(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as told:
            output = Path(folder) / "report.json"
            self.assertEqual(gpu_check.write_report({"python": lambda: gpu_check.python_check(Path(folder))}, output, "13.0"), 0)
            report = json.loads(output.read_text())
        self.assertIn("python: ok, skipped: needs torch and the package", told.getvalue())
        self.assertTrue(report["ok"])

    def test_a_step_that_breaks_is_told_and_the_others_are_made(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            output = Path(folder) / "report.json"
            steps = {"broken": lambda: {}["no such key"], "fine": lambda: {"ok": True, "us": 3}}
            self.assertEqual(multi_gpu_check.write_report(steps, output, "13.0", ranks=2), 1)
            report = json.loads(output.read_text())
        self.assertEqual(report["steps"], {"broken": {"ok": False, "output_tail": "KeyError: 'no such key'"}, "fine": {"ok": True, "us": 3}})
        self.assertEqual((report["ok"], report["ranks"], report["driver_cuda"]), (False, 2, "13.0"))


class BenchTest(unittest.TestCase):
    """`monomoe bench` as the check calls it, with a program that prints its arguments."""

    def bench(self, script: str, uneven: bool, apart: bool) -> dict:
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "monomoe"
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)
            return multi_gpu_check.bench(program, multi_gpu_check.Ranks(2, ["GPU-a", "GPU-b"]), uneven, apart)

    def test_tokens_that_differ(self):
        self.assertEqual(multi_gpu_check.uneven_tokens(64, 2), ["32+64", "64+0"])
        self.assertEqual(multi_gpu_check.uneven_tokens(8192, 5), ["4096+8192+0+8192+4096", "8192+0+8192+8192+8192"])

    def test_started_apart_and_by_the_command(self):
        script = """echo '{"rows": [{"arguments": "'$*'", "gpu": "'$CUDA_VISIBLE_DEVICES'"}]}'"""
        apart = self.bench(script, False, True)
        self.assertTrue(apart["ok"])
        self.assertEqual(apart["rows"][0]["gpu"], "GPU-a")
        self.assertRegex(apart["rows"][0]["arguments"], r"^bench --geometry flash .* --tokens 8,64,256,1024,4096,8192 .* --rank 0 --world check-\w+ --backend cuda --timeout 60 --json$")
        self.assertTrue(apart["command"].endswith("--rank R --world W"))
        together = self.bench(script, True, False)
        self.assertTrue(together["ok"])
        self.assertIn("--tokens 4+8,8+0,32+64,64+0,", together["rows"][0]["arguments"])
        self.assertIn(" --processes --backend cuda ", together["rows"][0]["arguments"])

    def test_a_rank_that_fails_fails_the_step(self):
        apart = self.bench("echo oops >&2; exit 5", False, True)
        self.assertEqual((apart["ok"], apart["output_tail"]), (False, "oops\noops\n"))
        self.assertNotIn("rows", apart)
        self.assertEqual(self.bench("echo oops; exit 5", False, False)["output_tail"], "oops\n")


if __name__ == "__main__":
    unittest.main()
