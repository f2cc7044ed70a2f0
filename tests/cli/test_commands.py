"""The other commands: help and version, plan, inspect, synth, doctor, demo."""

import json
import os
import pty
import re
import shutil
import subprocess
import unittest

from support import BAD_INPUT, CHECK_FAILED, CONFIG, EXAMPLES, EXPERTS, HIDDEN, USAGE, CliTest, layer_tensors, read_file, write_checkpoint

COMMANDS = ("run", "verify", "inspect", "plan", "bench", "pack", "synth", "doctor", "demo", "completion", "manual")
PLAN = ["plan", "--hidden", 4096, "--intermediate", 2048, "--experts", 256, "--topk", 6, "--ranks", 8, "--capacity", 512, "--weights"]


class Help(CliTest):
    def test_every_command_has_help_with_an_example(self):
        top = self.good("--help")
        for command in COMMANDS:
            self.assertIn(command, top)
            text = self.good(command, "--help")
            self.assertIn(f"monomoe {command}", text)
            self.assertIn("Example:", text)

    def test_version(self):
        self.assertRegex(self.good("--version"), r"^monomoe \d+\.\d+\.\d+\n$")


class Plan(CliTest):
    def test_memory(self):
        for weights in ("fp8", "nvfp4", "mxfp4"):
            report = json.loads(self.good(*PLAN, weights, "--json"))
            self.assertTrue(report["legal"])
            sizes = report["bytes_per_rank"]
            self.assertEqual(sizes["total"], sizes["symmetric"] + sizes["workspace"] + sizes["weights"])
            values = 256 // 8 * 3 * 4096 * 2048
            self.assertGreater(sizes["weights"], values // 2 if weights != "fp8" else values)
            self.assertLess(sizes["weights"], values * 0.6 if weights != "fp8" else values * 1.01)
            text = self.good(*PLAN, weights)
            for word in ("legal", "symmetric", "workspace", "weights", "total", "tiles"):
                self.assertIn(word, text)

    def test_illegal(self):
        for option, value in (("--hidden", 4100), ("--hidden", -128), ("--intermediate", 2040), ("--experts", 0), ("--experts", 1025),
                              ("--topk", 33), ("--ranks", 65), ("--capacity", -1)):
            arguments = [*PLAN, "fp8"]
            arguments[arguments.index(option) + 1] = value
            result = self.call(*arguments)
            self.assertEqual(result.returncode, CHECK_FAILED, (option, value, result.stderr))
            self.assertIn("NOT LEGAL", result.stdout)
            self.assertIn(str(value), re.sub(".*NOT LEGAL", "", result.stdout))
            report = self.call(*arguments, "--json")
            self.assertEqual(report.returncode, CHECK_FAILED)
            self.assertFalse(json.loads(report.stdout)["legal"])

    def test_directory(self):
        report = json.loads(self.good("plan", self.checkpoint("nvfp4"), "--ranks", 3, "--capacity", 16, "--json"))
        self.assertEqual(report["problem"], report["problem"] | {"hidden": HIDDEN, "experts": EXPERTS, "ranks": 3, "capacity": 16, "weights": "nvfp4"})
        wider = json.loads(self.good("plan", self.checkpoint("nvfp4"), "--topk", 5, "--json"))
        self.assertEqual(wider["problem"]["topk"], 5)

    def test_first_moe_layer(self):
        tensors = {name.replace("layers.0.", "layers.2."): tensor for name, tensor in layer_tensors("mxfp4", 1).items()}
        later = write_checkpoint(self.folder / "later", tensors, CONFIG | {"num_hidden_layers": 3})
        self.assertEqual(json.loads(self.good("plan", later, "--json"))["layer"], 2)

    def test_least_time(self):
        geometry = ("--hidden", 4096, "--intermediate", 2048, "--experts", 256, "--topk", 6, "--weights", "nvfp4", "--ranks", 8)
        report = json.loads(self.good("plan", *geometry, "--tokens", "0,64,1024", "--json"))
        self.assertEqual(report["launch"], "one")
        self.assertEqual([time["tokens"] for time in report["times"]], [0, 64, 1024])
        by_gpu = {gpu["gpu"]: gpu for gpu in report["times"][2]["gpus"]}
        self.assertEqual(list(by_gpu), ["H100", "H200", "H20"])
        self.assertLess(by_gpu["H200"]["bound_seconds"], by_gpu["H20"]["bound_seconds"])
        text = self.good("plan", *geometry, "--tokens", "64")
        for word in ("time of a layer", "H20 (predicted)", "launch", "persistent"):
            self.assertIn(word, text)
        for gpu in by_gpu.values():
            self.assertGreater(gpu["expected_seconds"], gpu["bound_seconds"])
        # Small times keep their digits.
        small = self.good("plan", "--hidden", 256, "--intermediate", 128, "--experts", 4, "--topk", 1, "--weights", "mxfp4", "--tokens", "1")
        self.assertRegex(small, r"\(0\.\d\d us read\)")
        self.assertNotIn("(0 us", small)
        self.assertEqual([time["tokens"] for time in json.loads(self.good("plan", *geometry, "--capacity", 100, "--json"))["times"]], [1, 8, 64, 100])
        for tokens in ("5,x", " 1", "1 ", "1, 2", "1,"):
            self.refused(USAGE, "plan", *geometry, "--tokens", tokens, says=(f"--tokens {tokens}: ", "must be a number"))
        self.refused(USAGE, "plan", *geometry, "--tokens", "2000", says=("--tokens", "0..1024"))

    def test_missing(self):
        self.refused(USAGE, "plan", says=("--hidden", "--weights", "DIR"))
        self.refused(USAGE, "plan", "--hidden", 4096, says=("--intermediate",))
        self.refused(BAD_INPUT, "plan", self.folder / "nowhere", says=("nowhere",))


class Inspect(CliTest):
    def test_costs(self):
        report = json.loads(self.good("inspect", self.checkpoint("nvfp4"), "--costs", "--json"))
        (layer,) = report["layers"]
        self.assertEqual((layer["format"], layer["hidden"], layer["experts"]), ("nvfp4", HIDDEN, EXPERTS))
        experts = [matrix for matrix in layer["matrices"] if ".experts." in matrix["tensor"]]
        self.assertEqual(len(experts), 3 * EXPERTS)
        self.assertTrue(all(matrix["conversion"] in ("exact", "rounded") for matrix in experts))

    def test_weights_are_read_on_request_only(self):
        checkpoint = self.checkpoint("nvfp4")
        report = json.loads(self.good("inspect", checkpoint, "--json"))
        self.assertFalse(report["values_read"])
        (layer,) = report["layers"]
        self.assertEqual((layer["format"], layer["hidden"], layer["experts"], layer["num_matrices"]), ("nvfp4", HIDDEN, EXPERTS, 3 * EXPERTS + 3))
        self.assertNotIn("matrices", layer)
        (layer,) = json.loads(self.good("inspect", checkpoint, "--layer", 0, "--json"))["layers"]
        self.assertEqual(len(layer["matrices"]), layer["num_matrices"])
        self.assertEqual({key for matrix in layer["matrices"] for key in matrix}, {"tensor", "format", "rows", "cols"})
        self.assertIn("weights were not read", self.good("inspect", checkpoint))
        self.assertNotIn("weights were not read", self.good("inspect", checkpoint, "--costs"))

    def test_text(self):
        checkpoint = self.checkpoint("fp8")
        self.assertNotIn("experts.5.w2", self.good("inspect", checkpoint))
        for options in ((), ("--costs",)):
            self.assertIn("experts.5.w2", self.good("inspect", checkpoint, "--layer", 0, *options))
            self.assertIn("fp8", self.good("inspect", checkpoint, *options))
        self.assertIn("worst relative error", self.good("inspect", checkpoint, "--costs"))

    def test_refusals(self):
        self.refused(USAGE, "inspect")
        self.refused(BAD_INPUT, "inspect", self.folder / "nowhere", says=("nowhere",))
        self.refused(USAGE, "inspect", self.checkpoint(), "--layer", 9, says=("layer 9",))
        self.refused(USAGE, "plan", self.checkpoint(), "--layer", 9, says=("layer 9",))


class Synth(CliTest):
    def synth(self, name, *options):
        folder = self.folder / name
        self.good("synth", folder, "--geometry", "qwen3-235b", "--experts", 2, "--weights", "mxfp4", *options)
        return folder

    def test_a_lower_top_k_is_said(self):
        arguments = ("--geometry", "qwen3-235b", "--weights", "mxfp4", "--seed", 1, "--tokens", 1)
        text = self.good("synth", self.folder / "two", "--experts", 2, *arguments)
        for words in ("1 layer, top-2", "1 token in", "top-2 instead of the model's top-8", "--experts 8"):
            self.assertIn(words, text)
        self.assertNotIn("note", self.good("synth", self.folder / "eight", "--experts", 8, *arguments))
        report = json.loads(self.good("synth", self.folder / "json", "--experts", 2, *arguments, "--json"))
        self.assertEqual((report["topk"], report["model_topk"]), (2, 8))

    def test_runs_and_repeats(self):
        first, second = (self.synth(name, "--seed", 7, "--tokens", 3) for name in ("first", "second"))
        for file in ("config.json", "input.safetensors"):
            self.assertEqual((first / file).read_bytes(), (second / file).read_bytes())
        self.assertEqual(read_file(first / "input.safetensors")["x"][1], [3, 4096])
        self.assertNotEqual((self.synth("third", "--seed", 8, "--tokens", 3) / "input.safetensors").read_bytes(),
                            (first / "input.safetensors").read_bytes())
        output = self.folder / "y.safetensors"
        self.good("run", first, "--layer", 0, "--input", first / "input.safetensors", "--output", output, "--ranks", 2)
        self.assertEqual(read_file(output)["y"][1], [3, 4096])

    def test_refusals(self):
        used = self.folder / "used"
        used.mkdir()
        (used / "note").write_text("mine")
        result = self.call("synth", used, "--geometry", "qwen3-235b", "--experts", 2, "--weights", "fp8", "--seed", 1)
        self.assertIn(result.returncode, (USAGE, BAD_INPUT))
        self.assertIn("used", result.stderr)
        self.assertEqual([path.name for path in used.iterdir()], ["note"])
        self.refused(USAGE, "synth", self.folder / "new", "--geometry", "gpt-0", "--weights", "fp8", "--seed", 1, says=("gpt-0",))
        self.refused(USAGE, "synth", self.folder / "new", "--geometry", "qwen3-235b", "--weights", "fp4", "--seed", 1, says=("fp4",))
        self.assertFalse((self.folder / "new").exists())


class Documented(CliTest):
    def options(self, command):
        return set(re.findall(r"^  (?:-\w,)?(--[a-z-]+)", self.good(command, "--help"), re.MULTILINE))

    def test_every_option_is_in_the_docs_and_the_other_way_round(self):
        docs = (EXAMPLES.parent / "docs" / "command-line.md").read_text()
        for command in COMMANDS[:-2]:
            section = re.search(rf"^## {command}$(.*?)(?=^## |\Z)", docs, re.MULTILINE | re.DOTALL).group(1)
            documented = set(re.findall(r"--[a-z][a-z-]+", section))
            options = self.options(command) - {"--help"}
            if command == "verify":  # "[options of run]"
                options -= self.options("run")
                documented -= self.options("run")
            self.assertEqual(options - documented, set(), command)
            self.assertEqual(documented - options - {"--help", "--input", "--json", "--shared-expert"}, set(), command)

    def test_completion(self):
        script = self.folder / "completion.bash"
        script.write_text(self.good("completion"))

        def complete(*words):
            line = " ".join(f"'{word}'" for word in words)
            command = f'source {script}; COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _monomoe; printf "%s\n" "${{COMPREPLY[@]}}"'
            return subprocess.run(["bash", "-c", command], check=True, capture_output=True, text=True).stdout.split()

        self.assertEqual(complete("monomoe", "pl"), ["plan"])
        self.assertEqual(complete("monomoe", "pack", "a", "b", "--t"), ["--to", "--threads"])
        self.assertEqual(set(complete("monomoe", "pack", "a", "b", "--to", "")), {"nvfp4", "mxfp4", "fp8", "packed"})
        self.assertEqual(complete("monomoe", "run", "--backend", "cu"), ["cuda"])
        self.assertEqual(complete("monomoe", "run", "--backend", "=", "cu"), ["cuda"])  # how bash splits --backend=cu
        self.assertEqual(set(complete("monomoe", "pack", "a", "b", "--to", "=")), {"nvfp4", "mxfp4", "fp8", "packed"})
        self.assertEqual(complete("monomoe", "inspect", "some"), [])  # files are the shell's own business

    @unittest.skipUnless(shutil.which("bash"), "needs bash")
    def test_completion_of_odd_file_names(self):
        """In an interactive shell: what is completed arrives as one word, whatever is in it."""
        script = self.folder / "completion.bash"
        script.write_text(self.good("completion"))
        for name in ("two words", "it's", 'a "quote"', "dollar$HOME", "semi;colon", "caf\u00e9", "-dash", "star*"):
            folder = self.folder / "names"
            folder.mkdir()
            (folder / name).mkdir()
            begin = "./-d" if name == "-dash" else name[:1]
            said = self.interactive(folder, f"source {script}", 'monomoe() { printf "<%s>" "$@" > ../said; }', f"monomoe inspect {begin}\t")
            self.assertIn(said, (f"<inspect><{name}/>", f"<inspect><./{name}/>"), name)
            shutil.rmtree(folder)

    def interactive(self, folder, *lines):
        """What ../said holds after bash was typed these lines in a terminal, each when it was ready for it."""
        (folder.parent / "said").write_text("")
        leader, follower = pty.openpty()
        environment = {"PATH": os.environ["PATH"], "TERM": "dumb", "HOME": str(folder.parent), "LC_ALL": "C.UTF-8", "PS1": "READY>"}
        with subprocess.Popen(["bash", "--norc", "--noprofile", "-i"], stdin=follower, stdout=follower, stderr=follower, cwd=folder, start_new_session=True,
                              env=environment) as shell:
            os.close(follower)
            seen = b""
            for number, line in enumerate((*lines, "exit")):
                while seen.count(b"READY>") <= number:
                    seen += os.read(leader, 4096)
                os.write(leader, line.encode() + b"\n")
            try:
                while os.read(leader, 4096):
                    pass
            except OSError:  # the shell has closed its end
                pass
            shell.wait(timeout=60)
        os.close(leader)
        return (folder.parent / "said").read_text()

    def test_the_manual_says_what_help_says(self):
        page = self.good("manual")
        plain = re.sub(r"\\(.)", lambda found: {"e": "\\", "&": "", ":": ""}.get(found.group(1), found.group(1)), page)
        self.assertTrue(re.search(r"^\.TH MONOMOE 1 ", page, re.MULTILINE))
        for command in COMMANDS:
            section = re.search(rf"^\.SH {command}$(.*?)(?=^\.SH )", plain, re.MULTILINE | re.DOTALL).group(1)
            text = self.good(command, "--help")
            for option in self.options(command):
                self.assertRegex(section, rf"\.TP\n\.B (-h,)?{option}\b", command)
            said = set(re.findall(r"[A-Za-z]{4,}", section))
            helped = set(re.findall(r"[A-Za-z]{4,}", text)) - {"Usage", "Options", "OPTIONS", "Positionals", "REQUIRED", "Needs", "Excludes", "TEXT", "FLOAT", "UINT"}
            self.assertEqual(helped - said, set(), command)
        self.assertIn("Exit codes: 0 ok", plain)

    @unittest.skipUnless(shutil.which("groff"), "needs groff")
    def test_the_manual_is_sound_roff(self):
        result = subprocess.run(["groff", "-man", "-Tutf8", "-ww"], input=self.good("manual"), capture_output=True, text=True, check=True)
        self.assertEqual(result.stderr, "")
        self.assertIn("--swiglu-limit", re.sub("\x1b\\[[0-9;]*m|.\b", "", result.stdout))


class Doctor(CliTest):
    def test_backends(self):
        report = json.loads(self.good("doctor", "--json"))
        self.assertTrue(report["backends"]["cpu"]["available"])
        cuda = report["backends"]["cuda"]
        self.assertTrue(cuda["available"] or cuda["why_not"])
        self.assertIn("cpu", self.good("doctor"))


class Demo(CliTest):
    def test_examples(self):
        text = self.good("demo", EXAMPLES)
        verdict = text.splitlines()[-1]
        self.assertRegex(text.splitlines()[0], r"^backend (cpu: auto takes cpu: .*(no CUDA backend|wanted a Hopper GPU|driver)|cuda: auto takes cuda: )")
        self.assertTrue(verdict.startswith("demo: 12 layers in 3 formats on 4 ranks"), verdict)
        self.assertTrue(verdict.endswith(": OK"), verdict)
        self.assertNotIn("FAILED", text)

    def examples(self, capture):
        """A copy of the examples with one captured layer."""
        copy = self.folder / "examples"
        (copy / "tiny-moe-capture").mkdir(parents=True)
        for name in ("tiny-moe-fp8", "tiny-moe-nvfp4", "tiny-moe-mxfp4"):
            (copy / name).symlink_to((EXAMPLES / name).resolve())
        shutil.copy(EXAMPLES / "tiny-moe-capture" / capture, copy / "tiny-moe-capture" / "layer0.safetensors")
        return copy

    def test_json(self):
        report = json.loads(self.good("demo", self.examples("layer0.safetensors"), "--json"))
        self.assertEqual([layer["format"] for layer in report["layers"]], ["nvfp4", "mxfp4", "fp8"])
        for layer in report["layers"]:
            self.assertTrue(layer["ok"])
            self.assertEqual(layer["backend"]["requested"], "auto")
            self.assertTrue(layer["backend"]["why"].startswith(f"auto takes {layer['backend']['taken']}: "))
            self.assertEqual(sum(layer["tokens_per_expert"]), layer["tokens"] * layer["topk"])
            self.assertGreater(layer["against_bf16_model"]["cosine"], layer["against_bf16_model"]["cosine_wanted"])

    def test_other_outputs_fail(self):
        """With the captured outputs of another layer nothing is close any more."""
        result = self.call("demo", self.examples("layer1.safetensors"))
        self.assertEqual(result.returncode, CHECK_FAILED, result.stderr)
        self.assertTrue(result.stdout.splitlines()[-1].endswith(": FAILED"))

    def test_no_examples(self):
        self.refused(BAD_INPUT, "demo", self.folder, says=("tiny-moe-capture",))


if __name__ == "__main__":
    unittest.main()
