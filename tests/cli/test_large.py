"""A checkpoint of the size of a published one: 46 shards, 166 GB of holes. What needs headers alone must cost little."""

import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from support import CHECK_FAILED, CLI, OK, CliTest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "sparse_checkpoint.py"
MEASURE = ("import resource, subprocess, sys\n"
           "done = subprocess.run(sys.argv[1:], stderr=subprocess.DEVNULL)\n"
           "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024, file=sys.stderr)\n"
           "sys.exit(done.returncode)")


@unittest.skipIf(os.environ.get("MONOMOE_SANITIZE"), "a sanitizer's own memory is counted too")
class Large(CliTest):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.model = Path(cls.scratch.name) / "flash"
        made = subprocess.run([sys.executable, "-B", str(TOOL), str(cls.model), "--filled", "1"], capture_output=True, text=True, check=False)
        if made.returncode:
            cls.scratch.cleanup()
            raise unittest.SkipTest(f"no sparse files of 4 GB here: {made.stderr[-200:]}")

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def measured(self, code, *arguments):
        result = subprocess.run([sys.executable, "-c", MEASURE, CLI, *map(str, arguments)], capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, code, result.stdout[-2000:])
        peak = int(result.stderr)
        self.assertLess(peak, 400 << 20, arguments)
        return json.loads(result.stdout)

    def test_inspect_reads_headers_alone(self):
        report = self.measured(OK, "inspect", self.model, "--json")
        self.assertEqual((report["files"], report["tensors"], len(report["layers"])), (46, 134426, 44))
        for number, layer in enumerate(report["layers"]):
            self.assertEqual(layer["layer"], str(number) if number < 43 else "mtp.0")
            self.assertEqual((layer["usable"], layer["experts"], layer["hidden"], layer["intermediate"]), (True, 256, 4096, 2048))
            self.assertEqual(layer["format"], "nvfp4" if number < 43 else "mxfp4")
            self.assertEqual(layer["router"]["hash"], number < 3)
            self.assertEqual(layer["num_matrices"], 3 * 256 + 3)

    def test_verify_of_the_structure(self):
        report = self.measured(OK, "verify", self.model, "--structure", "--json")
        self.assertEqual((report["ok"], report["problems"], len(report["layers"])), (True, [], 44))

    def test_values_of_one_layer_in_bounded_memory(self):
        """The filled layer is sound; in the next, global scales are zero."""
        report = self.measured(OK, "verify", self.model, "--layer", 0, "--json")
        self.assertTrue(report["ok"])
        problems = self.measured(CHECK_FAILED, "verify", self.model, "--layer", 3, "--json")["problems"]
        self.assertEqual(len(problems), 3 * 256)

    def test_plan_takes_its_first_layer(self):
        report = self.measured(OK, "plan", self.model, "--ranks", 8, "--json")
        self.assertEqual((report["layer"], report["problem"]["experts"], report["problem"]["weights"]), (0, 256, "nvfp4"))

    def test_all_faults_of_a_structure_are_listed_at_once(self):
        broken = Path(self.scratch.name) / "broken"
        broken.mkdir()
        for file in self.model.iterdir():
            if file.name != "model-00020-of-00046.safetensors":  # a missing shard
                (broken / file.name).symlink_to(file)
        cut = broken / "model-00030-of-00046.safetensors"
        with cut.open("rb") as file:
            length = file.read(8)
            header = length + file.read(struct.unpack("<Q", length)[0])
        cut.unlink()
        cut.write_bytes(header)  # a shard cut behind its header
        config = json.loads((broken / "config.json").read_text())
        (broken / "config.json").unlink()
        (broken / "config.json").write_text(json.dumps(config | {"num_experts_per_tok": 300}))
        report = self.measured(CHECK_FAILED, "verify", broken, "--structure", "--json")
        what = [problem["what"] for problem in report["problems"]]
        self.assertTrue(any("model-00020-of-00046.safetensors: the file is missing" in sentence for sentence in what))
        self.assertTrue(any("model-00030-of-00046.safetensors" in sentence and "cut short" in sentence for sentence in what))
        self.assertTrue(any('"num_experts_per_tok": found 300' in sentence for sentence in what))
        names = json.loads((broken / "model.safetensors.index.json").read_text())["weight_map"]
        lost = [name for name, shard in names.items() if shard[6:11] in ("00020", "00030")]
        listed = {problem["tensor"] for problem in report["problems"]}
        self.assertEqual(set(lost) - listed, set())
        self.assertTrue(any("were not looked into" in note for note in report["notes"]))


if __name__ == "__main__":
    unittest.main()
