"""pack: conversions, the packed layout, what is kept, and what a killed run leaves."""

import json
import os
import pty
import random
import re
import resource
import signal
import subprocess
import sys
import unittest
from pathlib import Path

from support import (BAD_INPUT, CHECK_FAILED, CLI, CONFIG, EXAMPLES, EXPERTS, HIDDEN, INTERMEDIATE, OK, TOPK, USAGE, CliTest, bf16, f32, i64, layer_tensors,
                     read_file, write_checkpoint, write_file)


class PackTest(CliTest):
    def pack(self, source, to, *options, name="out"):
        """Packs and returns the directory and the report."""
        out = self.folder / name
        result = self.call("pack", source, out, "--to", to, "--json", *options)
        self.assertEqual(result.returncode, OK, result.stderr)
        self.assertFalse(Path(f"{out}.partial").exists())
        return out, json.loads(result.stdout)

    def tensors(self, directory):
        tensors = {}
        for shard in sorted(Path(directory).glob("*.safetensors")):
            tensors |= read_file(shard)
        return tensors

    def verified(self, directory):
        report = json.loads(self.good("verify", directory, "--json"))
        self.assertTrue(report["ok"])
        return report

    def checked(self, directory):
        """The names that checksums.xxh128 lists: all files but itself."""
        lines = (directory / "checksums.xxh128").read_text().splitlines()
        for line in lines:
            self.assertRegex(line, r"^[0-9a-f]{32}  \S+$")
        names = [line.split("  ")[1] for line in lines]
        self.assertEqual(sorted(names), sorted({path.name for path in directory.iterdir()} - {"checksums.xxh128"}))
        return names

    def y(self, checkpoint, tokens, *options, layer=0):
        return self.run_layer(checkpoint, tokens, *options, layer=layer)["y"]


class Conversions(PackTest):
    def test_mxfp4_and_nvfp4_are_one_checkpoint_where_that_is_exact(self):
        source, tokens = EXAMPLES / "tiny-moe-mxfp4", EXAMPLES / "tiny-moe-capture" / "layer0.safetensors"
        out, report = self.pack(source, "nvfp4")
        self.assertEqual(report["weights"]["changed"], 0)
        self.assertEqual(report["layers"], ["0", "1", "2", "3"])
        self.verified(out)
        self.assertEqual(json.loads((out / "config.json").read_text())["quantization_config"]["moe_quant_algo"], "NVFP4")
        self.assertEqual(self.y(out, tokens, "--ranks", 3), self.y(source, tokens))
        back, report = self.pack(out, "mxfp4", name="back")
        self.assertEqual(report["weights"]["changed"], 0)
        for name, tensor in self.tensors(source).items():
            self.assertEqual(self.tensors(back)[name], tensor, name)

    def test_what_is_not_exact_is_refused_with_count_and_place(self):
        source = self.checkpoint("nvfp4")
        out = self.folder / "out"
        sentence = self.refused(CHECK_FAILED, "pack", source, out, "--to", "mxfp4", says=(str(source), "layer 0", "give --round", "row", "column", "would become"))
        self.assertRegex(sentence, rf": [1-9][0-9]* of {EXPERTS * 3 * HIDDEN * INTERMEDIATE} weights")
        self.assertRegex(sentence, r'tensor "layers\.0\.ffn\.experts\.\d\.w\d\.weight"')
        self.assertEqual([path.name for path in self.folder.iterdir()], [source.name])
        converted, report = self.pack(source, "mxfp4", "--round")
        self.assertGreater(report["weights"]["changed"], 0)
        self.assertGreater(report["weights"]["worst_relative_error"], 0)
        self.assertIn("first_changed", report["weights"])
        self.verified(converted)
        self.assertEqual(json.loads(self.good("inspect", converted, "--json"))["layers"][0]["format"], "mxfp4")

    def test_bf16_is_quantised_on_request_to_every_format(self):
        rng = random.Random(4)
        tensors = {name: tensor for name, tensor in layer_tensors("mxfp4", 1).items() if ".experts." not in name}
        for expert in range(EXPERTS):
            for matrix, rows, cols in (("w1", INTERMEDIATE, HIDDEN), ("w3", INTERMEDIATE, HIDDEN), ("w2", HIDDEN, INTERMEDIATE)):
                values = bf16([rng.gauss(0, 0.06) for _ in range(rows * cols)])
                tensors[f"layers.0.ffn.experts.{expert}.{matrix}.weight"] = ("BF16", [rows, cols], values)
        source = write_checkpoint(self.folder / "bf16", tensors, CONFIG)
        self.refused(BAD_INPUT, "pack", source, self.folder / "out", "--to", "packed", says=("BF16", "--to fp8"))
        self.refused(CHECK_FAILED, "pack", source, self.folder / "out", "--to", "fp8", says=("give --round",))
        for to, worst in (("fp8", 0.05), ("nvfp4", 0.2), ("mxfp4", 0.3)):
            out, report = self.pack(source, to, "--round", name=to)
            self.verified(out)
            self.assertLess(report["weights"]["rms_relative_error"], 1)
            tokens = self.tokens(f"{to}.safetensors", seed=3)
            check = json.loads(self.good("verify", out, "--layer", 0, "--input", tokens, "--json"))
            self.assertTrue(check["ok"])
            self.assertGreater(check["cosine"], 1 - worst)

    def test_router_shared_expert_and_everything_else_stay(self):
        source = self.checkpoint("mxfp4")
        tensors = read_file(source / "model.safetensors") | {"layers.0.attn.wq.weight": ("BF16", [4, 2], bytes(range(16))), "embed.weight": ("F32", [1], f32([2.5]))}
        write_file(source / "model.safetensors", tensors)
        (source / "tokenizer.json").write_text("{}")
        (source / "hf_quant_config.json").write_text("{}")
        with (source / "pytorch_model.bin").open("wb") as large:
            large.truncate((64 << 20) + 1)
        out, report = self.pack(source, "nvfp4")
        self.assertTrue(report["whole"])
        self.assertEqual(report["notes"], ["pytorch_model.bin is larger than 64 MiB and was not copied"])
        have = self.tensors(out)
        for name, tensor in tensors.items():
            if ".experts." not in name:
                self.assertEqual(have[name], tensor, name)
        self.assertEqual({path.name for path in out.iterdir()},
                         {"config.json", "tokenizer.json", "model.safetensors.index.json", "checksums.xxh128", "model-00001-of-00002.safetensors",
                          "model-00002-of-00002.safetensors"})
        index = json.loads((out / "model.safetensors.index.json").read_text())["weight_map"]
        self.assertEqual(set(index), set(have))
        tokens = self.tokens()
        self.assertEqual(self.y(out, tokens, "--shared-expert", "on"), self.y(source, tokens, "--shared-expert", "on"))

    def test_what_is_not_copied_is_named(self):
        source = self.checkpoint("mxfp4")
        write_file(source / "model-00001-of-00001.safetensors", read_file(source / "model.safetensors"))
        (source / "model.safetensors").unlink()
        index = {"weight_map": dict.fromkeys(read_file(source / "model-00001-of-00001.safetensors"), "model-00001-of-00001.safetensors")}
        (source / "model.safetensors.index.json").write_text(json.dumps(index))
        write_file(source / "other.safetensors", {"x": ("F32", [1], f32([1.0]))})
        (source / "original").mkdir()
        os.mkfifo(source / "pipe")
        (source / "gone").symlink_to("nowhere")
        (source / "README.md").write_text("hello")
        (source / "linked.json").symlink_to("config.json")
        (source / ".hidden").write_text("")
        for name in ("pack.journal", "checksums.xxh128"):
            (source / name).write_text("of another pack")
        out, report = self.pack(source, "nvfp4")
        self.assertEqual(report["notes"], [f"{what} and was not copied" for what in (
            "gone is a link to nothing", "original is a directory", "other.safetensors is not among the checkpoint's shards", "pack.journal is of another pack",
            "pipe is not a regular file")])
        self.assertIn("README.md", self.checked(out))
        self.assertIn("linked.json", self.checked(out))

    def test_a_bad_value_stops_the_pack(self):
        source = self.checkpoint("nvfp4")
        tensors = read_file(source / "model.safetensors")
        name = "layers.0.ffn.experts.3.w2.weight_scale"
        tensors[name] = (tensors[name][0], tensors[name][1], b"\x7f" + tensors[name][2][1:])
        write_file(source / "model.safetensors", tensors)
        for to in ("nvfp4", "packed", "mxfp4", "fp8"):  # the last two are not exact here either; a NaN is the source's fault
            self.refused(BAD_INPUT, "pack", source, self.folder / "out", "--to", to, says=(name, "NaN"))
            self.assertFalse((self.folder / "out").exists())


class Sources(PackTest):
    """What other tools write, brought into a form that runs."""

    def test_fp8_blocks_of_32_run_after_pack(self):
        tensors = {}
        rng = random.Random(8)
        for expert in range(EXPERTS):
            for matrix, rows, cols in (("w1", INTERMEDIATE, HIDDEN), ("w3", INTERMEDIATE, HIDDEN), ("w2", HIDDEN, INTERMEDIATE)):
                name, grid = f"layers.0.ffn.experts.{expert}.{matrix}", [rows // 32, cols // 32]
                tensors[f"{name}.weight"] = ("F8_E4M3", [rows, cols], bytes(rng.choice((0x30, 0x38, 0xB4, 0x41)) for _ in range(rows * cols)))
                tensors[f"{name}.scale"] = ("F32", grid, f32([rng.choice((0.125, 0.25, 0.5)) for _ in range(grid[0] * grid[1])]))
        config = {"model_type": "deepseek_v4", "quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 32]}}
        source = write_checkpoint(self.folder / "small-blocks", tensors, config)
        problems = json.loads(self.call("verify", source, "--json").stdout)["problems"]
        self.assertEqual(len(problems), 1)
        self.assertIn("32 x 32", problems[0]["what"])
        self.refused(BAD_INPUT, "run", source, "--layer", 0, "--input", self.tokens(), "--output", self.folder / "y.safetensors",
                     says=("32 x 32", "monomoe pack DIR OUT --to fp8"))
        self.refused(BAD_INPUT, "pack", source, self.folder / "out", "--to", "packed", says=("32 x 32",))
        out, report = self.pack(source, "fp8")
        self.assertEqual(report["weights"]["changed"], 0)  # the scales are powers of two apart
        self.verified(out)
        self.assertEqual(self.tensors(out)["layers.0.ffn.experts.0.w1.scale"][1], [2, 2])
        self.assertEqual(json.loads((out / "config.json").read_text())["quantization_config"]["weight_block_size"], [128, 128])
        self.y(out, self.tokens())

    def test_fused_tensors_give_the_same_bits(self):
        plain, fused = {}, {}
        rng = random.Random(2)
        gates, ups, downs = ([bf16([rng.gauss(0, 0.06) for _ in range(HIDDEN * INTERMEDIATE)]) for _ in range(EXPERTS)] for _ in range(3))
        fused["model.layers.0.mlp.experts.gate_up_proj"] = ("BF16", [EXPERTS, 2 * INTERMEDIATE, HIDDEN], b"".join(g + u for g, u in zip(gates, ups)))
        fused["model.layers.0.mlp.experts.down_proj"] = ("BF16", [EXPERTS, HIDDEN, INTERMEDIATE], b"".join(downs))
        for expert in range(EXPERTS):
            base = f"model.layers.0.mlp.experts.{expert}."
            plain |= {f"{base}gate_proj.weight": ("BF16", [INTERMEDIATE, HIDDEN], gates[expert]), f"{base}up_proj.weight": ("BF16", [INTERMEDIATE, HIDDEN], ups[expert]),
                      f"{base}down_proj.weight": ("BF16", [HIDDEN, INTERMEDIATE], downs[expert])}
        config = {"model_type": "qwen3_moe"}
        one, _ = self.pack(write_checkpoint(self.folder / "fused", fused, config), "nvfp4", "--round", name="one")
        two, _ = self.pack(write_checkpoint(self.folder / "plain", plain, config), "nvfp4", "--round", name="two")
        self.assertEqual(self.tensors(one), self.tensors(two))
        self.y(one, self.tokens())
        problems = json.loads(self.call("verify", write_checkpoint(self.folder / "gpt", fused, {"model_type": "gpt_oss"}), "--json").stdout)["problems"]
        self.assertIn('that of "gpt_oss" is not known', problems[0]["what"])


class Subsets(PackTest):
    def test_experts_are_numbered_anew_and_the_router_keeps_their_rows(self):
        source = self.checkpoint("nvfp4")
        out, report = self.pack(source, "nvfp4", "--experts", "1,3..4")
        self.assertEqual(report["experts"], 3)
        self.assertFalse(report["whole"])
        have, was = self.tensors(out), read_file(source / "model.safetensors")
        for new, old in enumerate((1, 3, 4)):
            for part in ("w1.weight", "w2.weight_scale", "w3.weight_scale_2"):
                self.assertEqual(have[f"layers.0.ffn.experts.{new}.{part}"], was[f"layers.0.ffn.experts.{old}.{part}"])
        gate, old_gate = have["layers.0.ffn.gate.weight"], was["layers.0.ffn.gate.weight"]
        self.assertEqual(gate[1], [3, HIDDEN])
        self.assertEqual(gate[2], b"".join(old_gate[2][2 * HIDDEN * row:2 * HIDDEN * (row + 1)] for row in (1, 3, 4)))
        self.assertEqual(json.loads((out / "config.json").read_text())["n_routed_experts"], 3)
        self.verified(out)
        self.y(out, self.tokens(ids=False))

    def test_layers(self):
        source = EXAMPLES / "tiny-moe-fp8"
        out, report = self.pack(source, "packed", "--layers", "1..2")
        self.assertEqual(report["layers"], ["1", "2"])
        tokens = EXAMPLES / "tiny-moe-capture" / "layer2.safetensors"
        self.assertEqual(self.y(out, tokens, layer=2), self.y(source, tokens, layer=2))
        self.refused(USAGE, "pack", source, self.folder / "o", "--to", "packed", "--layers", "7", says=("layer 7",))

    def test_lists_that_mean_nothing(self):
        source = self.checkpoint("fp8")
        for option, word in (("--layers", "x"), ("--layers", "3..1"), ("--layers", "-1"), ("--experts", "1,,2"), ("--experts", "mtp.0")):
            self.refused(USAGE, "pack", source, self.folder / "o", "--to", "packed", f"{option}={word}", says=(option, word))
        self.refused(USAGE, "pack", source, self.folder / "o", "--to", "packed", "--experts", "0..6", says=("0 to 5", "names 6"))
        self.refused(USAGE, "pack", source, self.folder / "o", "--to", "packed", "--experts", "0", says=("keeps 1 experts", f"chooses {TOPK}"))
        hashed = self.checkpoint("fp8", layer=1, config=CONFIG | {"num_hash_layers": 2})
        self.refused(USAGE, "pack", hashed, self.folder / "o", "--to", "packed", "--experts", "0..2", says=("token ids", "--layers"))
        self.refused(USAGE, "pack", source, source / "o", "--to", "packed", says=("inside the checkpoint",))
        self.refused(USAGE, "pack", source, source, "--to", "packed")


class Packed(PackTest):
    def test_the_same_bits_from_the_packed_layout(self):
        for weights in ("fp8", "nvfp4", "mxfp4"):
            source, tokens = self.checkpoint(weights), self.tokens()
            out, _ = self.pack(source, "packed", name=f"packed-{weights}")
            self.verified(out)
            for options in (("--ranks", 4), ("--shared-expert", "on")):
                self.assertEqual(self.y(out, tokens, *options), self.y(source, tokens, *options))
            routed = self.tokens("routed.safetensors", ids=False)
            self.assertEqual(self.y(out, routed), self.y(source, routed))
            check = json.loads(self.good("verify", out, "--layer", 0, "--input", tokens, "--json"))
            self.assertTrue(check["ok"] and check["bitwise"]["equal"])
            layer = json.loads(self.good("inspect", out, "--json"))["layers"][0]
            self.assertTrue(layer["usable"] and layer["packed"])
            self.assertEqual(layer["format"], weights)
            for more in ((), ("--costs",)):  # nothing is left to convert, so nothing is told of it
                text = self.good("inspect", out, *more)
                self.assertIn("matrices       packed; what converting them cost", text)
                self.assertNotIn("worst relative error", text)
                self.assertNotIn("add --layer", text)
            self.assertIn(f"{weights} weights", self.good("plan", out, "--ranks", 2))
            self.refused(USAGE, "pack", out, self.folder / "again", "--to", "nvfp4", says=("packed already",))

    def test_damage_is_found(self):
        out, _ = self.pack(self.checkpoint("nvfp4"), "packed")
        shard = next(out.glob("*.safetensors"))
        raw = bytearray(shard.read_bytes())
        raw[-5000] ^= 4
        shard.write_bytes(raw)
        problems = json.loads(self.call("verify", out, "--json").stdout)["problems"]
        self.assertEqual(len(problems), 1)
        self.assertIn("checksum", problems[0]["what"])
        self.assertEqual(problems[0]["tensor"], f"layers.0.ffn.experts.{EXPERTS - 1}.packed")
        self.refused(BAD_INPUT, "run", out, "--layer", 0, "--input", self.tokens(), "--output", self.folder / "y.safetensors", says=("damaged",))

    def test_a_wrong_size_in_the_manifest_is_found(self):
        """192 and 160 are padded to the same size, so the tensors still fit."""
        source = self.checkpoint("nvfp4")
        out, _ = self.pack(source, "packed")
        manifest = out / "monomoe_packed.json"
        text = manifest.read_text()
        self.assertEqual(text.count(f'"intermediate": {INTERMEDIATE},'), 1)
        manifest.write_text(text.replace(f'"intermediate": {INTERMEDIATE},', f'"intermediate": {INTERMEDIATE - 32},'))
        self.refused(BAD_INPUT, "run", out, "--layer", 0, "--input", self.tokens(), "--output", self.folder / "y.safetensors",
                     says=("monomoe_packed.json", "layer 0", "checksum", "pack the checkpoint again"))
        self.assertEqual(json.loads(self.call("verify", out, "--json").stdout)["ok"], False)

    def test_another_version_is_refused(self):
        out, _ = self.pack(self.checkpoint("nvfp4"), "packed")
        manifest = out / "monomoe_packed.json"
        manifest.write_text(manifest.read_text().replace('"layout": 1', '"layout": 999'))
        self.refused(BAD_INPUT, "inspect", out, says=("layout 999", "pack the checkpoint again"))

    def test_checksums_cover_every_file(self):
        out, _ = self.pack(self.checkpoint("fp8"), "packed")
        self.assertIn("monomoe_packed.json", self.checked(out))
        again, _ = self.pack(EXAMPLES / "tiny-moe-mxfp4", "nvfp4", name="again")
        self.checked(self.pack(again, "mxfp4", name="back")[0])  # its source has a list of its own


class Interrupted(PackTest):
    """A checkpoint of several layers, large enough to be killed in the middle."""

    LAYERS = 6

    def synth(self, experts=8):
        source = self.folder / "source"
        self.good("synth", source, "--geometry", "qwen3-235b", "--weights", "nvfp4", "--layers", self.LAYERS, "--experts", experts, "--seed", 1)
        return source

    def kill_after(self, lines, *arguments):
        """Kills the program when it has told `lines` shards; returns what it has written to standard error."""
        process = subprocess.Popen([CLI, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        told = [process.stderr.readline() for _ in range(lines)]
        process.send_signal(signal.SIGKILL)
        told += process.stderr.readlines()
        process.wait()
        process.stderr.close()
        self.assertEqual(process.returncode, -signal.SIGKILL)
        return "".join(told)

    def test_kill_and_resume(self):
        source, out, whole = self.synth(), self.folder / "out", self.folder / "whole"
        self.pack(source, "packed", name="whole")
        told = self.kill_after(2, "pack", source, out, "--to", "packed", "--threads", 1)
        self.assertFalse(out.exists())
        partial = Path(f"{out}.partial")
        done = len(re.findall("shard", told))
        self.assertGreaterEqual(len(list(partial.glob("*-of-*.safetensors"))), done)
        # Other arguments do not touch it.
        self.refused(BAD_INPUT, "pack", source, out, "--to", "nvfp4", says=("another pack", str(partial)))
        # What a crash may leave beside it: a half written shard, and half a line of the journal.
        (partial / "model-00006-of-00006.safetensors.partial-abcdefgh").write_bytes(b"half")
        with (partial / "pack.journal").open("a") as journal:
            journal.write('{"shard": "model-00005')
        result = self.call("pack", source, out, "--to", "packed", "--json")
        self.assertEqual(result.returncode, OK, result.stderr)
        self.assertIn("are there from an earlier run", result.stderr)
        resumed = json.loads(result.stdout)["shards_resumed"]
        self.assertGreaterEqual(resumed, 2)
        self.assertLess(resumed, self.LAYERS)
        told = [int(number) for number in re.findall(r": shard (\d+) of", result.stderr)]
        self.assertEqual(told[:1], [resumed + 1])  # what was there is not told again
        self.assertFalse(partial.exists())
        self.assertEqual({path.name for path in out.iterdir()}, {path.name for path in whole.iterdir()})
        for path in whole.iterdir():
            self.assertEqual((out / path.name).read_bytes(), path.read_bytes(), path.name)

    def test_a_damaged_shard_is_written_again(self):
        source, out, whole = self.synth(), self.folder / "out", self.folder / "whole"
        self.pack(source, "packed", name="whole")
        self.kill_after(3, "pack", source, out, "--to", "packed", "--threads", 1)
        shards = sorted(Path(f"{out}.partial").glob("*-of-*.safetensors"))
        raw = bytearray(shards[0].read_bytes())
        raw[-5000] ^= 4  # of the same size
        shards[0].write_bytes(raw)
        shards[1].write_bytes(shards[1].read_bytes()[:-1])
        notes = json.loads(self.call("pack", source, out, "--to", "packed", "--json").stdout)["notes"]
        self.assertEqual(len(notes), 2)
        for shard, note in zip(shards, notes):
            self.assertIn(shard.name, note)
            self.assertIn("checksum", note)
            self.assertIn("written again", note)
        for path in whole.iterdir():
            self.assertEqual((out / path.name).read_bytes(), path.read_bytes(), path.name)

    def test_a_changed_source_is_not_resumed(self):
        source, out = self.synth(), self.folder / "out"
        self.kill_after(1, "pack", source, out, "--to", "packed", "--threads", 1)
        os.utime(next(source.glob("model-*.safetensors")), ns=(1, 1))
        self.refused(BAD_INPUT, "pack", source, out, "--to", "packed", says=("have changed", "remove it"))

    def test_a_foreign_partial_directory_stays(self):
        source, out = self.checkpoint("fp8"), self.folder / "out"
        partial = Path(f"{out}.partial")
        partial.mkdir()
        (partial / "mine").write_text("x")
        self.refused(BAD_INPUT, "pack", source, out, "--to", "packed", says=("no journal",))
        self.assertEqual((partial / "mine").read_text(), "x")

    @unittest.skipIf(os.environ.get("MONOMOE_SANITIZE"), "a sanitizer's own memory is counted too")
    def test_memory_is_bounded_by_a_layer(self):
        source = self.synth(experts=24)
        total = sum(path.stat().st_size for path in source.glob("model-*.safetensors"))
        layer = total / self.LAYERS
        script = ("import resource, subprocess, sys\n"
                  "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
                  "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)")
        for to in ("packed", "nvfp4"):
            peak = int(subprocess.run([sys.executable, "-c", script, CLI, "pack", str(source), str(self.folder / to), "--to", to, "--threads", "2"],
                                      check=True, capture_output=True, text=True).stdout)
            self.assertGreater(total, 4 * (layer + (64 << 20)), "the checkpoint is too small to tell")
            self.assertLess(peak, layer + (64 << 20))


class Progress(PackTest):
    def test_lines_without_a_terminal(self):
        result = self.call("pack", EXAMPLES / "tiny-moe-nvfp4", self.folder / "o", "--to", "packed")
        self.assertEqual(result.returncode, OK)
        lines = result.stderr.splitlines()
        self.assertEqual(len(lines), 4)
        for number, line in enumerate(lines):
            self.assertIn(f"shard {number + 1} of 4 (layer {number})", line)
        self.assertIn("32 experts each", result.stdout)

    def test_a_bar_on_a_terminal(self):
        leader, follower = pty.openpty()
        process = subprocess.Popen([CLI, "pack", str(EXAMPLES / "tiny-moe-nvfp4"), str(self.folder / "o"), "--to", "packed"], stdout=subprocess.DEVNULL,
                                   stderr=follower)
        os.close(follower)
        seen = b""
        while True:
            try:
                piece = os.read(leader, 4096)
            except OSError:  # the program has closed its end
                break
            if not piece:
                break
            seen += piece
        os.close(leader)
        self.assertEqual(process.wait(), OK)
        self.assertIn(b"\r[", seen)
        self.assertNotIn(b"\n", seen)
        self.assertTrue(seen.endswith(b"\r\x1b[K"))


if __name__ == "__main__":
    unittest.main()
