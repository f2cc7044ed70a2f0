"""monomoe run: every kind of refusal, its exit code and its sentence; an older output stays as it was."""

import json
import os
import unittest
from pathlib import Path

from support import (BAD_INPUT, CONFIG, EXPERTS, HIDDEN, TOKENS, TOPK, UNAVAILABLE, USAGE, CliTest, f32, i64, ints, layer_tensors, read_file,
                     token_tensors, write_checkpoint, write_file)


class RunErrors(CliTest):
    def setUp(self):
        super().setUp()
        self.output = self.folder / "out.safetensors"
        self.output.write_bytes(b"older")

    def tearDown(self):
        self.assertEqual(self.output.read_bytes(), b"older")
        self.assertEqual([path.name for path in self.folder.iterdir() if "partial" in path.name], [])

    def run_refused(self, code, *options, checkpoint=None, tokens=None, says=()):
        checkpoint = checkpoint or self.checkpoint()
        tokens = tokens or self.tokens()
        return self.refused(code, "run", checkpoint, "--layer", 0, "--input", tokens, "--output", self.output, *options, says=says)

    def with_tensors(self, name="bad.safetensors", **changes) -> Path:
        tensors = token_tensors() | changes
        path = self.folder / name
        write_file(path, {key: tensor for key, tensor in tensors.items() if tensor is not None})
        return path


class Usage(RunErrors):
    def test_numbers(self):
        for options in (["--ranks", "0"], ["--ranks", "65"], ["--ranks", "two"], ["--threads", "0"], ["--vector-bits", "64"],
                        ["--backend", "tpu"], ["--capacity", "-1"], ["--shared-expert", "yes"], ["--no-such-option"]):
            with self.subTest(options):
                self.run_refused(USAGE, *options, says=(options[0],))

    def test_clamp(self):
        for limit in ("-1", "nan", "seven", "1e400", "1e-60", "1e60"):
            with self.subTest(limit):
                self.run_refused(USAGE, "--swiglu-limit", limit, says=("--swiglu-limit", limit))

    def test_tokens_per_rank(self):
        self.run_refused(USAGE, "--ranks", 3, "--tokens-per-rank", "5,6", says=("2 entries", "--ranks is 3"))
        self.run_refused(USAGE, "--ranks", 2, "--tokens-per-rank", "5,5", says=("deals 10", "has 11"))
        self.run_refused(USAGE, "--ranks", 2, "--tokens-per-rank", "-1,12", says=("'-1'",))
        self.run_refused(USAGE, "--ranks", 2, "--tokens-per-rank", "11,", says=("''",))
        self.run_refused(USAGE, "--ranks", 2, "--tokens-per-rank", "99999999999999999999,0", says=("99999999999999999999",))

    def test_capacity(self):
        self.run_refused(USAGE, "--ranks", 2, "--capacity", 5, says=("rank 0", "6 tokens", "--capacity is 5", "at least 6"))
        self.run_refused(USAGE, "--ranks", 2, "--tokens-per-rank", "2,9", "--capacity", 8, says=("rank 1", "9 tokens"))

    def test_output_paths(self):
        checkpoint, tokens = self.checkpoint(), self.tokens()
        before = tokens.read_bytes()
        link = self.folder / "link"
        link.symlink_to(tokens)
        for output in (tokens, link, self.folder / "." / "in.safetensors"):
            self.refused(USAGE, "run", checkpoint, "--layer", 0, "--input", tokens, "--output", output, says=("is the input file",))
        self.assertEqual(tokens.read_bytes(), before)
        self.refused(USAGE, "run", checkpoint, "--layer", 0, "--input", tokens, "--output", self.folder / "no" / "out",
                     says=("does not exist",))
        self.refused(USAGE, "run", checkpoint, "--layer", 0, "--input", tokens, "--output", self.folder, says=("no regular file",))

    def test_output_through_links(self):
        checkpoint, tokens = self.checkpoint(), self.tokens()
        (self.folder / "data").mkdir()
        real, link = self.folder / "data" / "real.safetensors", self.folder / "link.safetensors"
        real.write_bytes(b"old")
        link.symlink_to("data/real.safetensors")
        self.good("run", checkpoint, "--layer", 0, "--input", tokens, "--output", link)
        self.assertTrue(link.is_symlink())
        self.assertGreater(real.stat().st_size, 100)
        for name, target in (("dangling", "nowhere"), ("loop", "loop"), ("other", "dangling")):
            (self.folder / name).symlink_to(target)
            self.refused(USAGE, "run", checkpoint, "--layer", 0, "--input", tokens, "--output", self.folder / name, says=(name, "link to nothing"))
            self.assertTrue((self.folder / name).is_symlink())
        (self.folder / "system").symlink_to("/dev/stdout")
        for output in ("/dev/stdout", self.folder / "system", "/proc/self/fd/1"):
            with self.subTest(output):
                self.refused(USAGE, "run", checkpoint, "--layer", 0, "--input", tokens, "--output", output, says=("--output", "name a file"))
        self.assertTrue(Path("/dev/stdout").is_symlink())

    def test_whole_numbers(self):
        for word in ("1.5", "abc", "0x4", "+4", "", "4,4"):
            with self.subTest(word):
                self.run_refused(USAGE, "--ranks", word, says=("--ranks",))
        self.run_refused(USAGE, "--ranks", "1.5", says=("'1.5' is no whole number, wanted 1 to 64",))
        self.run_refused(USAGE, "--ranks", 99, says=("99 not in range 1 to 64",))

    def test_missing_arguments(self):
        self.refused(USAGE, "run", says=("run --help",))
        self.refused(USAGE, "run", self.checkpoint(), "--input", self.tokens(), "--output", self.output, says=("--layer",))
        self.refused(USAGE, "run", self.checkpoint(), "--layer", 9, "--input", self.tokens(), "--output", self.output, says=("layer 9",))
        self.refused(USAGE)
        self.refused(USAGE, "fly", says=("'fly'",))


class BadInput(RunErrors):
    def test_input_file(self):
        self.run_refused(BAD_INPUT, tokens=self.folder / "absent", says=("absent",))
        empty = self.folder / "empty"
        empty.write_bytes(b"")
        self.run_refused(BAD_INPUT, tokens=empty, says=("empty",))
        cut = self.folder / "cut"
        cut.write_bytes(self.tokens().read_bytes()[:-1])
        self.run_refused(BAD_INPUT, tokens=cut, says=("cut",))

    def test_one_of_ids_and_weights(self):
        for absent, present in (("topk_ids", "topk_weights"), ("topk_weights", "topk_ids")):
            self.run_refused(BAD_INPUT, tokens=self.with_tensors(**{absent: None}), says=("bad.safetensors", absent, present, "missing"))

    def test_shapes_and_types(self):
        data = token_tensors()
        cases = {
            "no x": ({"x": None}, ("x",)),
            "x type": ({"x": ("F16", [TOKENS, HIDDEN], data["x"][2])}, ("'x'", "F16", "BF16")),
            "x width": ({"x": ("BF16", [TOKENS * 2, HIDDEN // 2], data["x"][2])}, ("'x'", "[22, 128]", "256")),
            "x rank": ({"x": ("BF16", [TOKENS * HIDDEN], data["x"][2])}, ("'x'", "[2816]")),
            "ids rows": ({"topk_ids": ("I64", [TOKENS * TOPK, 1], data["topk_ids"][2])}, ("'topk_ids'", "[22, 1]", "[11, K]")),
            "ids type": ({"topk_ids": ("F32", [TOKENS, TOPK], f32([0.0] * TOKENS * TOPK))}, ("'topk_ids'", "F32", "I32 or I64")),
            "no slots": ({"topk_ids": ("I64", [TOKENS, 0], b""), "topk_weights": ("F32", [TOKENS, 0], b"")}, ("'topk_ids'", "1..32")),
            "slots": ({"topk_ids": ("I64", [TOKENS, 33], i64([0] * TOKENS * 33)),
                       "topk_weights": ("F32", [TOKENS, 33], f32([0.0] * TOKENS * 33))}, ("'topk_ids'", "1..32")),
            "weights": ({"topk_weights": ("F32", [TOKENS, 1], f32([1.0] * TOKENS))}, ("'topk_weights'", "[11, 1]", "[11, 2]")),
            "weights type": ({"topk_weights": ("BF16", [TOKENS, TOPK], bytes(2 * TOKENS * TOPK))}, ("'topk_weights'", "BF16", "F32")),
        }
        for name, (changes, words) in cases.items():
            with self.subTest(name):
                self.run_refused(BAD_INPUT, tokens=self.with_tensors(**changes), says=("bad.safetensors", *words))

    def test_id_too_large(self):
        ids = ints(token_tensors()["topk_ids"])
        for value in (EXPERTS, 2**31, 2**40):
            ids[7] = value
            self.run_refused(BAD_INPUT, tokens=self.with_tensors(topk_ids=("I64", [TOKENS, TOPK], i64(ids))),
                             says=("bad.safetensors", "topk_ids", str(value), "token 3, slot 1", f"0..{EXPERTS - 1}"))

    def test_checkpoint(self):
        self.run_refused(BAD_INPUT, checkpoint=self.folder / "nowhere", says=("nowhere",))
        (self.folder / "hollow").mkdir()
        self.run_refused(BAD_INPUT, checkpoint=self.folder / "hollow", says=("hollow",))
        wrong = write_checkpoint(self.folder / "wrong", layer_tensors("fp8", 1), CONFIG | {"swiglu_limit": -1})
        self.run_refused(BAD_INPUT, checkpoint=wrong, says=("swiglu_limit",))

    def test_a_bad_tensor_no_token_uses(self):
        tensors = layer_tensors("fp8", 1)
        name = "layers.0.ffn.experts.5.w2.weight"
        dtype, shape, data = tensors[name]
        tensors[name] = (dtype, shape, data[:70] + b"\x7f" + data[71:])
        broken = write_checkpoint(self.folder / "broken", tensors, CONFIG)
        tokens = self.with_tensors(topk_ids=("I64", [TOKENS, TOPK], i64([0, 1] * TOKENS)))
        self.run_refused(BAD_INPUT, checkpoint=broken, tokens=tokens, says=("experts.5.w2",))

    def test_every_bad_tensor_is_listed(self):
        tensors = layer_tensors("nvfp4", 1)
        del tensors["layers.0.ffn.experts.1.w3.weight_scale_2"]
        del tensors["layers.0.ffn.experts.4.w1.weight_scale"]
        broken = write_checkpoint(self.folder / "broken", tensors, CONFIG)
        self.run_refused(BAD_INPUT, checkpoint=broken, says=("experts.1.w3", "experts.4.w1"))

    def test_placements(self):
        complete = "".join(f"{expert} 0\n" for expert in range(EXPERTS))
        cases = {"0 0\n": (":", "expert 1 has no line"), complete + "6 0\n": (":7", "expert '6'"), complete + "0 2\n": (":7", "rank '2'"),
                 complete + "0\n": (":7", "1 numbers"), complete + "0 0 0 0\n": (":7", "4 numbers"), complete + "0 x\n": (":7", "'x'"),
                 "0 0 1\n1 0 1\n": (":2", "slot 1 of rank 0 is taken"), "# c\n\n0 0 -1\n": (":3", "slot '-1'"),
                 complete + "0 1 3\n": ("rank 1", "slot 3")}
        for text, words in cases.items():
            placement = self.folder / "placement.txt"
            placement.write_text(text)
            with self.subTest(text):
                self.run_refused(BAD_INPUT, "--ranks", 2, "--placement", placement, says=("placement.txt", *words))
        self.run_refused(BAD_INPUT, "--placement", self.folder / "none.txt", says=("none.txt",))
        self.run_refused(BAD_INPUT, "--placement", self.folder, says=("directory",))


class Machine(RunErrors):
    def test_cuda_backend(self):
        """Either it is there, or the refusal says why not."""
        result = self.call("run", self.checkpoint(), "--layer", 0, "--input", self.tokens(), "--output", self.folder / "cuda.safetensors",
                           "--backend", "cuda")
        if result.returncode != 0:
            self.assertEqual(result.returncode, UNAVAILABLE, result.stderr)
            self.assertTrue(result.stderr.startswith("monomoe: "))
            self.assertIn("cuda", result.stderr.lower())

    def test_launches_of_the_cpu_backend(self):
        for launch in ("split", "unfused"):
            self.run_refused(USAGE, "--backend", "cpu", "--launch", launch, says=(f"--launch is {launch}", "backend cuda", "cpu was asked for"))
        self.run_refused(USAGE, "--backend", "cpu", "--launch", "both", says=("--launch", "both"))
        cases = self.folder / "cases.txt"
        cases.write_text("ranks=1 experts=2 topk=1 tokens=1 hidden=128 inter=32 w=fp8 seed=1\n", encoding="ascii")
        self.refused(USAGE, "verify", "--cases", cases, "--backend", "cpu", "--launch", "split", says=("launch is split",))
        for launch in ("auto", "one"):
            self.assertIn("1 passed, 0 failed", self.good("verify", "--cases", cases, "--backend", "cpu", "--launch", launch))

    def test_launches_of_a_machine_without_gpu(self):
        """auto took the CPU, which is the machine's doing and not the option's."""
        result = self.call("run", self.checkpoint(), "--layer", 0, "--input", self.tokens(), "--output", self.folder / "split.safetensors",
                           "--launch", "split", "--json")
        if result.returncode == 0:
            self.assertEqual(json.loads(result.stdout)["backend"]["launch"], "split")
        else:
            self.assertEqual(result.returncode, UNAVAILABLE, result.stderr)
            self.assertIn("auto takes cpu", result.stderr)

    def test_output_that_cannot_be_written(self):
        """The name fits, the temporary name beside it does not."""
        long_name = self.folder / ("n" * 250)
        long_name.write_bytes(b"older")
        self.refused(BAD_INPUT, "run", self.checkpoint(), "--layer", 0, "--input", self.tokens(), "--output", long_name,
                     says=("File name too long",))
        self.assertEqual(long_name.read_bytes(), b"older")

    def test_standard_output_that_is_full(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full here")
        for arguments in (["--help"], ["--version"], ["doctor", "--json"], ["plan", self.checkpoint()]):
            with open("/dev/full", "w", encoding="ascii") as full:
                result = self.call(*arguments, stdout=full)
            self.assertEqual(result.returncode, BAD_INPUT, arguments)
            self.assertIn("standard output cannot be written", result.stderr)

    def test_a_good_run_replaces_the_older_file(self):
        other = self.folder / "other.safetensors"
        other.write_bytes(b"older")
        self.good("run", self.checkpoint(), "--layer", 0, "--input", self.tokens(), "--output", other)
        self.assertEqual(read_file(other)["y"][1], [TOKENS, HIDDEN])


if __name__ == "__main__":
    unittest.main()
