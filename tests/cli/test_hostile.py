"""Files and values nobody means well with: outputs, temporaries, pipes, limits, words of the command line."""

import json
import os
import resource
import signal
import subprocess
import threading
import time
import unittest

from support import BAD_INPUT, CLI, CONFIG, EXPERTS, OK, UNAVAILABLE, USAGE, CliTest, layer_tensors, read_file, write_checkpoint, write_file

SYNTH = ["--geometry", "qwen3-235b", "--experts", 1, "--tokens", 2, "--weights", "mxfp4", "--seed", 1]


class Outputs(CliTest):
    def command(self, output, *options, layer=0):
        return ["run", self.checkpoint(layer=layer), "--layer", layer, "--input", self.tokens(), "--output", output, *options]

    def limited(self, arguments, **limits):
        def limit():
            for name, value in limits.items():
                resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
        return subprocess.run([CLI, *map(str, arguments)], capture_output=True, text=True, timeout=600, check=False, preexec_fn=limit)

    def leftovers(self):
        return [path.name for path in self.folder.rglob("*") if ".partial-" in path.name]

    def test_what_is_named_like_a_temporary_stays(self):
        for name in ("out.partial", "model.partial"):
            (self.folder / name).mkdir()
            (self.folder / name / "mine").write_text("kept")
        self.good(*self.command(self.folder / "out"))
        self.good("synth", self.folder / "model", *SYNTH)
        for name in ("out.partial", "model.partial"):
            self.assertEqual((self.folder / name / "mine").read_text(), "kept")
        self.assertEqual(self.leftovers(), [])

    def test_two_runs_to_one_output(self):
        """Whoever is last, the file is one of the two whole outputs."""
        output, whole = self.folder / "out.safetensors", []
        commands = []
        for seed in (5, 6):
            arguments = self.command(output)
            arguments[5] = self.tokens(f"in{seed}.safetensors", seed=seed, tokens=200 * seed)
            self.good(*arguments)
            whole.append(output.read_bytes())
            commands.append([CLI, *map(str, arguments)])
        for _ in range(5):
            running = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]
            self.assertEqual([process.wait() for process in running], [OK, OK])
            self.assertIn(output.read_bytes(), whole)
        self.assertEqual(self.leftovers(), [])

    def test_the_checkpoint_is_no_output(self):
        model = self.checkpoint()
        shard, elsewhere = model / "model.safetensors", self.folder / "elsewhere.safetensors"
        shard.rename(elsewhere)
        shard.symlink_to(elsewhere)
        before = elsewhere.read_bytes()
        (self.folder / "link").symlink_to(model)
        hard = self.folder / "hard.safetensors"
        os.link(elsewhere, hard)
        for output in (shard, elsewhere, hard, model / "config.json", self.folder / "link" / "model.safetensors"):
            self.refused(USAGE, *self.command(output), says=("--output", "of the checkpoint"))
        for output in (model / "new.safetensors", self.folder / "link" / "new.safetensors", model / ".." / model.name / "new.safetensors"):
            self.refused(USAGE, *self.command(output), says=("--output", "would become a shard"))
        self.assertEqual(elsewhere.read_bytes(), before)
        self.assertEqual(sorted(path.name for path in model.iterdir()), ["config.json", "model.safetensors"])
        verify = ["verify", *self.command(model / "new.safetensors")[1:]]
        self.refused(USAGE, *verify, says=("would become a shard",))

    def test_the_placement_is_no_output(self):
        placement = self.folder / "placement"
        placement.write_text("".join(f"{expert} 0\n" for expert in range(EXPERTS)))
        before = placement.read_text()
        self.refused(USAGE, *self.command(placement, "--placement", placement), says=("is the placement file",))
        self.assertEqual(placement.read_text(), before)

    def test_file_size_limit(self):
        (self.folder / "out").write_text("older")
        commands = (self.command(self.folder / "out"), ["synth", self.folder / "a" / "b" / "model", *SYNTH])
        before = sorted(self.folder.rglob("*"))
        for arguments in commands:
            result = self.limited(arguments, FSIZE=4096)
            self.assertEqual(result.returncode, BAD_INPUT, result.stderr)
            self.assertIn("File too large", result.stderr)
        self.assertEqual(sorted(self.folder.rglob("*")), before)
        self.assertEqual((self.folder / "out").read_text(), "older")

    @unittest.skipIf(os.environ.get("MONOMOE_SANITIZE"), "a sanitizer cannot start in so little address space")
    def test_no_threads(self):
        result = self.limited(self.command(self.folder / "out", "--ranks", 8, "--threads", 64), AS=60 << 20)
        self.assertEqual(result.returncode, UNAVAILABLE, result.stderr)
        self.assertRegex(result.stderr, "threads.*--|--ranks|memory")

    def test_closed_pipe(self):
        """The exit code says that the report did not arrive; the output is there."""
        for arguments, words in ((["--help"], ""), (["doctor"], ""), (self.command(self.folder / "out"), "out was written and is whole"),
                                 (["synth", self.folder / "model", *SYNTH], "model was written and is whole")):
            reader, writer = os.pipe()
            os.close(reader)
            with os.fdopen(writer, "wb") as pipe:
                result = subprocess.run([CLI, *map(str, arguments)], stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=600, check=False,
                                        preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_DFL))
            self.assertEqual(result.returncode, BAD_INPUT, result.stderr)
            self.assertIn("standard output cannot be written: Broken pipe", result.stderr)
            self.assertIn(words, result.stderr)
        self.assertEqual(read_file(self.folder / "out")["expert_counts"][1], [EXPERTS])
        self.assertTrue((self.folder / "model" / "config.json").exists())

    def test_directories_that_take_nothing(self):
        """The same code whether the right or the place is missing (root is stopped by /proc alone)."""
        closed = self.folder / "closed"
        closed.mkdir(mode=0o555)
        for folder in ["/proc"] + ([closed] if os.getuid() else []):
            self.refused(BAD_INPUT, *self.command(f"{folder}/out"), says=(str(folder),))
            self.refused(BAD_INPUT, "synth", f"{folder}/model", *SYNTH, says=(str(folder),))

    def test_synth_onto_links(self):
        (self.folder / "dangling").symlink_to("nowhere")
        self.refused(USAGE, "synth", self.folder / "dangling", *SYNTH, says=("dangling", "link to nothing"))
        (self.folder / "real").mkdir()
        (self.folder / "link").symlink_to("real")
        self.good("synth", self.folder / "link", *SYNTH)
        self.assertTrue((self.folder / "link").is_symlink())
        self.assertTrue((self.folder / "real" / "config.json").exists())


class TextFiles(CliTest):
    def setUp(self):
        super().setUp()
        self.text = "".join(f"{expert} 0\n" for expert in range(EXPERTS))
        self.run_command = ["run", self.checkpoint(), "--layer", 0, "--input", self.tokens(), "--output", self.folder / "out"]

    def test_pipe_nobody_writes_to(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        for arguments in ([*self.run_command, "--placement", pipe], ["verify", "--cases", pipe]):
            self.refused(BAD_INPUT, *arguments, says=("pipe", "nothing was written"))

    def test_pipes_that_are_written_to(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)

        def write_slowly():
            time.sleep(0.3)
            with open(pipe, "w", encoding="ascii") as out:
                for line in self.text.splitlines(keepends=True):
                    time.sleep(0.05)
                    out.write(line)
                    out.flush()
        writer = threading.Thread(target=write_slowly)
        writer.start()
        self.good(*self.run_command, "--placement", pipe)
        writer.join()
        words = " ".join(f"'{word}'" for word in [CLI, *self.run_command])
        result = subprocess.run(["bash", "-c", f"{words} --placement <(sleep 0.3; printf '{self.text}')"], capture_output=True, text=True,
                                timeout=600, check=False)
        self.assertEqual(result.returncode, OK, result.stderr)

    def test_endless(self):
        self.refused(BAD_INPUT, *self.run_command, "--placement", "/dev/zero", says=("/dev/zero", "67108864 bytes"))
        self.refused(BAD_INPUT, "verify", "--cases", "/dev/zero", says=("/dev/zero", "67108864 bytes"))

    def test_many_lines(self):
        """Copies beyond the limit are refused at their line; the lines before it cost little."""
        placement = self.folder / "placement"
        placement.write_text(self.text + "3 0\n" * 4)
        self.refused(BAD_INPUT, *self.run_command, "--placement", placement, says=(f":{EXPERTS + 4}:", "expert 3", "4 copies"))
        placement.write_text(self.text * 4)
        self.good(*self.run_command, "--placement", placement)

    def test_zero_bytes(self):
        file = self.folder / "file"
        file.write_bytes(self.text.encode() + b"0 \x000\n")
        self.refused(BAD_INPUT, *self.run_command, "--placement", file, says=(f":{EXPERTS + 1}:", "0 \\x000", "zero byte"))
        file.write_bytes(b"# \x00 is fine here\nranks=1\x00 experts=2\n")
        self.refused(BAD_INPUT, "verify", "--cases", file, says=(":2:", "ranks=1\\x00 experts=2"))
        file.write_bytes(b"0 \x1b[31m1\n")
        self.assertNotIn("\x1b", self.refused(BAD_INPUT, *self.run_command, "--placement", file, says=("\\x1b[31m1",)))


class Values(CliTest):
    def test_empty_values(self):
        run = {"DIR": "dir", "--layer": "0", "--input": "in", "--output": "out", "--placement": "file", "--tokens-per-rank": "1",
               "--swiglu-limit": "1", "--ranks": "1", "--timeout": "1"}
        for name in run:
            values = run | {name: ""}
            arguments = [word for option, value in values.items() for word in ([value] if option == "DIR" else [option, value])]
            self.refused(USAGE, "run", *arguments, says=(name,))
        for command in ("verify", "inspect", "plan", "demo"):
            self.refused(USAGE, command, "", says=("DIR is empty",))
        self.refused(USAGE, "synth", "", *SYNTH, says=("OUT is empty",))
        self.refused(USAGE, "verify", "--cases", "", says=("--cases is empty",))
        self.refused(USAGE, "plan", "--hidden", "", says=("--hidden",))

    def test_integers_are_never_clipped(self):
        out = self.folder / "new"
        for seed in ("-1", "18446744073709551616", "1e3", "1.5", "0x10", "seven"):
            self.refused(USAGE, "synth", out, "--geometry", "qwen3-235b", "--experts", 1, "--weights", "fp8", "--seed", seed, says=("--seed", seed))
        for option in ("--layers", "--experts", "--tokens"):
            for value in ("-1", "99999999999999999999", "4294967297"):
                self.refused(USAGE, "synth", out, "--geometry", "qwen3-235b", "--weights", "fp8", "--seed", 1, option, value, says=(option, value))
        for value in ("99999999999999999999", "-99999999999999999999", "010x"):
            self.refused(USAGE, "plan", "--hidden", value, "--intermediate", 32, "--experts", 2, "--topk", 1, "--weights", "fp8", says=("--hidden", value))
        for option in ("--layer", "--ranks", "--threads", "--capacity", "--vector-bits"):
            self.refused(USAGE, "run", "dir", "--layer", 0, "--input", "in", "--output", "out", option, "99999999999999999999", says=(option,))
        self.assertFalse(out.exists())

    def test_numbers_with_a_point(self):
        run = ["run", self.checkpoint(), "--layer", 0, "--input", self.tokens(), "--output", self.folder / "out"]
        for value in ("nan", "-1", "inf", "1e400", "0"):
            self.refused(USAGE, *run, "--timeout", value, says=("--timeout",))
        for value in ("1e400", "1e-400", "nan", "-inf", "1e39"):
            self.refused(USAGE, *run, "--swiglu-limit", value, says=("--swiglu-limit", value))
        for value in ("inf", "0", "-0", "-0.0"):
            self.good(*run, "--swiglu-limit", value)

    def test_help_names_the_limits_of_the_library(self):
        self.assertIn("[1 - 1000]", self.good("synth", "--help"))
        self.assertIn("[1 - 16777216]", self.good("synth", "--help"))
        self.assertIn("[0 - 1048576]", self.good("run", "--help"))

    def test_layers_and_directories(self):
        checkpoint = self.checkpoint()
        self.refused(USAGE, "verify", checkpoint, "--layer", 9, says=("layer 9",))
        for command in ("verify", "inspect", "plan"):
            self.refused(BAD_INPUT, command, self.folder / "nowhere", says=("nowhere",))
        if os.getuid():
            checkpoint.chmod(0)
            for command in ("verify", "inspect", "plan"):
                self.refused(BAD_INPUT, command, checkpoint, says=("Permission denied",))
            checkpoint.chmod(0o755)

    def test_bf16_experts(self):
        """The message names the command that makes a checkpoint that runs."""
        tensors = {name: tensor for name, tensor in layer_tensors("fp8", 1).items() if ".experts." not in name and "shared" not in name}
        for expert in range(EXPERTS):
            for matrix, shape in (("w1", [192, 256]), ("w3", [192, 256]), ("w2", [256, 192])):
                tensors[f"layers.0.ffn.experts.{expert}.{matrix}.weight"] = ("BF16", shape, bytes(2 * 192 * 256))
        checkpoint = write_checkpoint(self.folder / "bf16", tensors)
        sentence = self.refused(BAD_INPUT, "run", checkpoint, "--layer", 0, "--input", self.tokens(), "--output", self.folder / "out")
        for text in (sentence, self.good("inspect", checkpoint)):
            self.assertIn("`monomoe pack --to nvfp4 --round` quantises the checkpoint", text)


class MissingParts(CliTest):
    def test_an_input_without_x_says_what_x_is(self):
        tensors = read_file(self.tokens())
        del tensors["x"]
        write_file(self.folder / "no-x.safetensors", tensors)
        self.refused(BAD_INPUT, "run", self.checkpoint(), "--layer", 0, "--input", self.folder / "no-x.safetensors", "--output",
                     self.folder / "out.safetensors", says=("no-x.safetensors", "no tensor 'x'", "BF16 [tokens, "))

    def test_a_dangling_shard_link_is_called_one(self):
        model = self.checkpoint()
        names = [name for name in read_file(model / "model.safetensors")]
        index = {"metadata": {}, "weight_map": {name: "model.safetensors" for name in names}}
        (model / "model.safetensors.index.json").write_text(json.dumps(index))
        (model / "model.safetensors").unlink()
        (model / "model.safetensors").symlink_to(self.folder / "nowhere")
        self.refused(BAD_INPUT, "inspect", model, says=("model.safetensors", "a link whose file is missing"))

    def test_quotes_of_config_json_stay_readable(self):
        config = dict(CONFIG, n_routed_experts="many")
        said = self.refused(BAD_INPUT, "inspect", self.checkpoint(config=config), says=('found "many"',))
        self.assertNotIn("x22", said)


if __name__ == "__main__":
    unittest.main()
