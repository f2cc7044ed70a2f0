"""monomoe verify: files and values, a layer against the float64 reference, and files of cases."""

import json
import re
import unittest

from support import (BAD_INPUT, CHECK_FAILED, CONFIG, OK, TOKENS, UNAVAILABLE, USAGE, CliTest, f32, layer_tensors, read_file, token_tensors, write_checkpoint,
                     write_file)


class Files(CliTest):
    def broken(self, change):
        tensors = layer_tensors("nvfp4", 1)
        change(tensors)
        return write_checkpoint(self.folder / "broken", tensors, CONFIG)

    def problems(self, checkpoint):
        result = self.call("verify", checkpoint)
        self.assertEqual((result.returncode, result.stderr), (CHECK_FAILED, ""))
        lines = [line for line in result.stdout.splitlines() if line.startswith("problem: ")]
        report = self.call("verify", checkpoint, "--json")
        self.assertEqual(report.returncode, CHECK_FAILED)
        self.assertFalse(json.loads(report.stdout)["ok"])
        more = sum(int(count) for count in re.findall(r"and (\d+) more problems of this file", result.stdout))
        self.assertEqual(len(json.loads(report.stdout)["problems"]), len([line for line in lines if "more problems of this file" not in line]) + more)
        return lines

    def test_sound(self):
        for weights in ("fp8", "nvfp4", "mxfp4"):
            self.assertIn("no problems", self.good("verify", self.checkpoint(weights)))
            self.assertTrue(json.loads(self.good("verify", self.checkpoint(weights), "--layer", 0, "--json"))["ok"])

    def test_missing_tensors_are_all_listed(self):
        def change(tensors):
            del tensors["layers.0.ffn.experts.2.w3.weight_scale_2"]
            del tensors["layers.0.ffn.experts.5.w1.weight"]
        text = "\n".join(self.problems(self.broken(change)))
        self.assertIn("experts.2.w3", text)
        self.assertIn("experts.5.w1", text)

    def test_bad_scales_are_all_listed(self):
        def change(tensors):
            for expert, value in ((0, float("nan")), (3, float("inf")), (4, -1.0)):
                tensors[f"layers.0.ffn.experts.{expert}.w2.weight_scale_2"] = ("F32", [], f32([value]))
        text = "\n".join(self.problems(self.broken(change)))
        for expert in (0, 3, 4):
            self.assertIn(f"experts.{expert}.w2", text)

    def test_wrong_shape(self):
        def change(tensors):
            name = "layers.0.ffn.experts.1.w1.weight_scale"
            dtype, shape, data = tensors[name]
            tensors[name] = (dtype, [shape[0] // 2, shape[1] * 2], data)
        self.assertIn("experts.1.w1", "\n".join(self.problems(self.broken(change))))

    def test_cut_file(self):
        checkpoint = self.checkpoint()
        file = checkpoint / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1])
        self.assertIn("model.safetensors", "\n".join(self.problems(checkpoint)))
        report = json.loads(self.call("verify", checkpoint, "--json").stdout)
        self.assertTrue(any("no layer was looked into" in note for note in report["notes"]), report["notes"])

    def test_index_that_names_an_absent_shard(self):
        checkpoint = self.checkpoint()
        names = read_file(checkpoint / "model.safetensors")
        index = {name: "model.safetensors" for name in names} | {"layers.0.ffn.gate.weight": "gone.safetensors"}
        (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
        self.assertIn("gone.safetensors", "\n".join(self.problems(checkpoint)))

    def test_what_is_beyond_the_list_is_counted(self):
        checkpoint = self.checkpoint()
        index = {f"layers.{n}.x": "gone.safetensors" for n in range(10100)}
        (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
        lines = self.problems(checkpoint)
        self.assertEqual(len(lines), 20 + 1 + 1)  # the file and the first of its tensors; those of the file in JSON; those in neither
        self.assertIn("gone.safetensors: and 9980 more problems of this file; --json lists them", lines[-1])
        listed = json.loads(self.call("verify", checkpoint, "--json").stdout)["problems"]
        self.assertEqual(len(listed), 10001)
        self.assertIn("and 101 more problems", listed[-1]["what"])

    def test_directory_that_is_none(self):
        self.refused(BAD_INPUT, "verify", self.folder / "nowhere", says=("nowhere",))
        self.refused(BAD_INPUT, "verify", self.tokens(), says=("directory",))


class Structure(CliTest):
    def test_values_are_not_read(self):
        checkpoint = self.checkpoint("nvfp4")
        tensors = read_file(checkpoint / "model.safetensors")
        name = "layers.0.ffn.experts.2.w1.weight_scale"
        dtype, shape, _ = tensors[name]
        tensors[name] = (dtype, shape, b"\x7f" * (shape[0] * shape[1]))
        write_file(checkpoint / "model.safetensors", tensors)
        self.assertIn("(structure, no values): no problems", self.good("verify", checkpoint, "--structure"))
        self.assertEqual(self.call("verify", checkpoint).returncode, CHECK_FAILED)
        tensors[name] = (dtype, [shape[0], 3], b"\x38" * (shape[0] * 3))
        del tensors["layers.0.ffn.experts.4.w2.weight_scale_2"]
        write_file(checkpoint / "model.safetensors", tensors)
        problems = json.loads(self.call("verify", checkpoint, "--structure", "--json").stdout)["problems"]
        self.assertEqual([problem["tensor"] for problem in problems], [name, "layers.0.ffn.experts.4.w2.weight_scale_2"])


class Layer(CliTest):
    def test_inside_the_bound(self):
        for weights in ("fp8", "nvfp4", "mxfp4"):
            report = json.loads(self.good("verify", self.checkpoint(weights), "--layer", 0, "--input", self.tokens(), "--ranks", 3, "--json"))
            self.assertTrue(report["ok"])
            self.assertGreater(report["cosine"], 0.99)
            self.assertLess(report["calc_diff"], 0.01)
            self.assertIsNone(report["first_diverging_stage"])
            self.assertTrue(report["stages"])
            self.assertTrue(all(stage["outside_bound"] == 0 for stage in report["stages"]))
            self.assertEqual(report["tokens_per_rank"], [4, 4, 3])

    def test_text_and_output(self):
        checkpoint, tokens = self.checkpoint(), self.tokens(ids=False)
        ran = self.run_layer(checkpoint, tokens)
        output = self.folder / "verified.safetensors"
        text = self.good("verify", checkpoint, "--layer", 0, "--input", tokens, "--output", output)
        for word in ("stage", "worst element", "cosine", "calc_diff", "first diverging stage none", "exact dequantisation", "inside the derived bound"):
            self.assertIn(word, text)
        self.assertEqual(read_file(output), ran)

    def test_what_has_no_bound_is_told(self):
        tensors = token_tensors()
        kind, shape, values = tensors["x"]
        tokens = self.folder / "huge.safetensors"
        write_file(tokens, tensors | {"x": (kind, shape, b"\x7f\x7f" * (len(values) // 2))})
        arguments = ("verify", self.checkpoint(), "--layer", 0, "--input", tokens)
        report = json.loads(self.good(*arguments, "--json"))
        elements = next(stage["elements"] for stage in report["stages"] if stage["stage"] == "output")
        self.assertEqual((report["unjudged"], report["cosine"], report["calc_diff"]), (elements, None, None))
        self.assertIn(f"inside the derived bound; {elements} elements of the output have none", self.good(*arguments))

    def test_refusals(self):
        checkpoint, tokens = self.checkpoint(), self.tokens()
        self.refused(USAGE, "verify", checkpoint, "--input", tokens, says=("--layer",))
        self.refused(USAGE, "verify", checkpoint, "--ranks", 2, says=("--input",))
        self.refused(USAGE, "verify", says=("--cases",))
        for option, value in (("--backend", "cpu"), ("--launch", "split"), ("--threads", 2), ("--vector-bits", 128), ("--timeout", 5)):
            self.refused(USAGE, "verify", checkpoint, option, value, says=(option, "--input"))
        self.refused(USAGE, "verify", checkpoint, "--structure", "--layer", 0, "--input", tokens, says=("--structure", "--input"))
        self.refused(USAGE, "verify", checkpoint, "--layer", 0, "--input", tokens, "--shared-expert", "on", says=("--shared-expert",))
        self.assertNotIn("--shared-expert", self.good("verify", "--help"))
        self.refused(USAGE, "verify", checkpoint, "--layer", 0, "--input", tokens, "--capacity", TOKENS - 1, says=("--capacity",))
        tensors = token_tensors()
        del tensors["topk_weights"]
        bad = self.folder / "bad.safetensors"
        write_file(bad, tensors)
        self.refused(BAD_INPUT, "verify", checkpoint, "--layer", 0, "--input", bad, says=("bad.safetensors", "topk_weights"))


class Cases(CliTest):
    GOOD = "ranks=2 experts=4 topk=2 tokens=9 hidden=256 inter=128 w={} seed=3"

    def cases(self, text):
        path = self.folder / "cases.txt"
        path.write_text(text)
        return path

    def test_good_cases(self):
        path = self.cases("# formats\n\n" + "".join(self.GOOD.format(w) + f"   # {w}\n" for w in ("fp8", "nvfp4", "mxfp4")))
        lines = self.good("verify", "--cases", path).splitlines()
        self.assertEqual(lines[-1], "3 passed, 0 failed")
        self.assertEqual([line.split()[0] for line in lines[:-1]], ["ok"] * 3)
        report = json.loads(self.good("verify", "--cases", path, "--json"))
        self.assertEqual((report["passed"], report["failed"], len(report["cases"])), (3, 0, 3))
        self.assertEqual([case["line"] for case in report["cases"]], [3, 4, 5])

    def test_malformed_lines(self):
        for line, word in (("nonsense", "nonsense"), (self.GOOD.format("fp7"), "fp7"), (self.GOOD.format("fp8") + " experts=x", "experts")):
            result = self.call("verify", "--cases", self.cases(self.GOOD.format("fp8") + "\n" + line + "\n"))
            self.assertEqual(result.returncode, BAD_INPUT, result.stderr)
            self.assertIn("cases.txt:2:", result.stderr)
            self.assertIn(word, result.stderr)

    def test_files(self):
        self.refused(BAD_INPUT, "verify", "--cases", self.folder / "none.txt", says=("--cases", "none.txt"))
        huge = self.cases("experts=1024 topk=1 tokens=3 hidden=65536 inter=65536 w=fp8\n")
        self.refused(UNAVAILABLE, "verify", "--cases", huge, says=("GB of host memory", "fewer or smaller experts"))
        self.refused(BAD_INPUT, "verify", "--cases", self.cases("# nothing\n"), says=("cases.txt", "no case"))
        self.refused(USAGE, "verify", self.checkpoint(), "--cases", self.cases(self.GOOD.format("fp8")), says=("--cases",))


if __name__ == "__main__":
    unittest.main()
