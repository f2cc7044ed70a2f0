"""Checkpoints that are broken, incomplete or contradict themselves, through verify, inspect, plan and run."""

import json
import os
import struct
import subprocess
import time
import unittest
from pathlib import Path

from support import (BAD_INPUT, CHECK_FAILED, CLI, CONFIG, EXPERTS, HIDDEN, INTERMEDIATE, USAGE, CliTest, f32, i64, layer_tensors, read_file,
                     write_checkpoint, write_file)


class Broken(CliTest):
    def model(self, name="m", weights="nvfp4", change=None, layers=(0,), **config):
        tensors = {}
        for layer in layers:
            tensors |= layer_tensors(weights, 1, layer) if layer != 1 else self.renamed(weights)
        if change:
            change(tensors)
        return write_checkpoint(self.folder / name, tensors, CONFIG | config)

    @staticmethod
    def renamed(weights):
        return {name.replace("layers.0.", "layers.1."): tensor for name, tensor in layer_tensors(weights, 1, 0).items()}

    def report(self, checkpoint, *options):
        result = self.call("verify", checkpoint, "--json", *options)
        self.assertEqual(result.stderr, "")
        report = json.loads(result.stdout)
        self.assertEqual(result.returncode, 0 if report["ok"] else CHECK_FAILED)
        return report

    def problem(self, checkpoint, *words, file=None, tensor=None):
        """The only problem verify finds; it holds all words."""
        problems = self.report(checkpoint)["problems"]
        self.assertEqual(len(problems), 1, problems)
        for word in words:
            self.assertIn(word, problems[0]["what"])
        if file is not None:
            self.assertEqual(problems[0]["file"], file)
        if tensor is not None:
            self.assertEqual(problems[0]["tensor"], tensor)
        return problems[0]

    def layer(self, checkpoint):
        return json.loads(self.good("inspect", checkpoint, "--costs", "--json"))["layers"][0]

    def notes(self, checkpoint):
        report = self.report(checkpoint)
        self.assertTrue(report["ok"], report["problems"])
        return "\n".join(report["notes"])

    def run_refused(self, checkpoint, *words, **tokens):
        path = self.tokens(**tokens)
        return self.refused(BAD_INPUT, "run", checkpoint, "--layer", 0, "--input", path, "--output", self.folder / "o.safetensors", says=words)


class Rules(Broken):
    def sized(self, hidden, intermediate, experts=1):
        tensors = {}
        for expert in range(experts):
            for matrix, rows, cols in (("w1", intermediate, hidden), ("w3", intermediate, hidden), ("w2", hidden, intermediate)):
                name = f"layers.0.ffn.experts.{expert}.{matrix}"
                grid = [-(-rows // 128), -(-cols // 128)]
                tensors[f"{name}.weight"] = ("F8_E4M3", [rows, cols], b"\x38" * (rows * cols))
                tensors[f"{name}.scale"] = ("F32", grid, f32([1.0] * (grid[0] * grid[1])))
        return write_checkpoint(self.folder / f"s-{hidden}-{intermediate}-{experts}", tensors)

    def test_sizes_that_run_refuses(self):
        for hidden, intermediate, experts, sentence in ((192, 32, 1, "hidden is 192; it must be a multiple of 128"),
                                                        (65664, 32, 1, "hidden is 65664"),
                                                        (128, 48, 1, "intermediate is 48; it must be a multiple of 32"),
                                                        (128, 32, 1025, "experts is 1025; it must be 1 to 1024")):
            checkpoint = self.sized(hidden, intermediate, experts)
            last = f"layers.0.ffn.experts.{experts - 1}.w1.weight"
            self.problem(checkpoint, sentence, file="model.safetensors", tensor=last)
            layer = self.layer(checkpoint)
            self.assertFalse(layer["usable"])
            self.assertIn(sentence, layer["why_not"])
            write_file(self.folder / "t.safetensors", {"x": ("BF16", [1, hidden], bytes(2 * hidden)), "topk_ids": ("I64", [1, 1], i64([0])),
                                                       "topk_weights": ("F32", [1, 1], f32([1.0]))})
            self.refused(BAD_INPUT, "run", checkpoint, "--layer", 0, "--input", self.folder / "t.safetensors", "--output",
                         self.folder / "o.safetensors", says=(sentence, str(checkpoint), "layer 0", last))

    def test_all_rules_at_once(self):
        self.assertEqual(len(self.report(self.sized(192, 48))["problems"]), 2)

    def test_widths_that_fill_no_group(self):
        def change(tensors):
            name = "layers.0.ffn.experts.2.w2"
            tensors[f"{name}.weight"] = ("U8", [HIDDEN, 44], bytes(HIDDEN * 44))
            tensors[f"{name}.weight_scale"] = ("F8_E4M3", [HIDDEN, 5], b"\x38" * (HIDDEN * 5))
        self.problem(self.model(change=change), "256 x 88", "multiple of 16 columns", tensor="layers.0.ffn.experts.2.w2.weight")


class Values(Broken):
    def put(self, tensors, name, at, data):
        dtype, shape, old = tensors[name]
        tensors[name] = (dtype, shape, old[:at] + data + old[at + len(data):])

    def test_inspect_calls_bad_values_unusable(self):
        bad = {"layers.0.ffn.experts.1.w1.weight_scale": b"\x7f", "layers.0.ffn.experts.1.w2.weight_scale_2": f32([-1.0]),
               "layers.0.ffn.shared_experts.w3.weight": b"\xff", "layers.0.ffn.gate.weight": b"\xc0\x7f"}
        for name, data in bad.items():
            layer = self.layer(self.model(change=lambda tensors: self.put(tensors, name, 0, data)))
            self.assertFalse(layer["usable"], name)
            self.assertIn(name, layer["why_not"])
            self.assertEqual(len(layer["matrices"]), 3 * EXPERTS + 3)
        self.assertTrue(self.layer(self.model())["usable"])

    def test_remedies_say_what_is_true(self):
        name = "layers.0.ffn.experts.1.w2.weight_scale_2"
        for value, nan in ((-1.0, False), (0.0, False), (float("nan"), True)):
            checkpoint = self.model(change=lambda tensors: self.put(tensors, name, 0, f32([value])))
            self.assertEqual("NaN:" in self.problem(checkpoint, tensor=name)["what"], nan)

    def test_a_block_scale_of_minus_zero_is_zero(self):
        name = "layers.0.ffn.experts.1.w1.weight_scale"
        tokens = self.tokens()
        out = []
        for scale in (b"\x80", b"\x00"):
            checkpoint = self.model(change=lambda tensors: self.put(tensors, name, 3, scale))
            out.append(self.run_layer(checkpoint, tokens))
            self.good("verify", checkpoint, "--layer", 0, "--input", tokens)
        self.assertEqual(out[0], out[1])

    def test_hash_tables_hold_experts(self):
        def change(tensors):
            self.put(tensors, "layers.0.ffn.gate.tid2eid", 8 * 3, i64([EXPERTS]))
        tensors = {name.replace("layers.1.", "layers.0."): tensor for name, tensor in layer_tensors("mxfp4", 1, 1).items()}
        change(tensors)
        checkpoint = write_checkpoint(self.folder / "hash", tensors, CONFIG | {"num_hash_layers": 1})
        self.problem(checkpoint, f"found expert {EXPERTS} at row 1, column 1, wanted 0 to {EXPERTS - 1}", file="model.safetensors",
                     tensor="layers.0.ffn.gate.tid2eid")


class Names(Broken):
    def test_odd_expert_numbers(self):
        for number in ("03", "-1", "99999999999999999999"):
            def change(tensors):
                tensors[f"layers.0.ffn.experts.{number}.w1.weight"] = tensors.pop("layers.0.ffn.experts.3.w1.weight")
            problem = self.problem(self.model(change=change), f'expert number "{number}"', file="model.safetensors",
                                   tensor=f"layers.0.ffn.experts.{number}.w1.weight")
            self.assertNotIn("fused", problem["what"])

    def test_odd_layer_numbers_are_noted(self):
        def change(tensors):
            tensors["layers.01.ffn.experts.3.w1.weight"] = ("U8", [1], b"x")
        self.assertIn('"01" is not written as', self.notes(self.model(change=change)))

    def test_a_layer_without_its_experts(self):
        def change(tensors):
            for name in [name for name in tensors if name.startswith("layers.1.ffn.experts.")]:
                del tensors[name]
        self.problem(self.model(layers=(0, 1), change=change, num_hidden_layers=2), "layer 1, of which no expert is here",
                     file="model.safetensors", tensor="layers.1.ffn.gate.weight")

    def test_missing_tensors_fill_the_fields(self):
        def change(tensors):
            del tensors["layers.0.ffn.experts.2.w3.weight_scale_2"]
        self.problem(self.model(change=change), "missing", file="model.safetensors", tensor="layers.0.ffn.experts.2.w3.weight_scale_2")


class Whole(Broken):
    def test_layers_that_config_counts(self):
        checkpoint = self.model(layers=(0, 1), num_hidden_layers=6)
        self.assertIn("num_hidden_layers 6; the experts of layers 2..5 are not here", self.notes(checkpoint))
        self.assertIn("num_hidden_layers 1, but layers 1 are here too", self.notes(self.model(layers=(0, 1), num_hidden_layers=1)))
        self.assertNotIn("num_hidden_layers", self.notes(self.model(layers=(0, 1), num_hidden_layers=2)))
        self.assertNotIn("num_hidden_layers", self.notes(self.model(layers=(0, 1), num_hidden_layers=1, num_nextn_predict_layers=1)))
        self.assertIn("first_k_dense_replace 1, but layers 0 have experts", self.notes(self.model(first_k_dense_replace=1)))

    def test_missing_shards(self):
        checkpoint = self.model()
        os.rename(checkpoint / "model.safetensors", checkpoint / "model-00002-of-00004.safetensors")
        self.problem(checkpoint, "model-...-of-00004.safetensors number 1, 3..4 is missing")
        index = {name: "model-00002-of-00004.safetensors" for name in read_file(checkpoint / "model-00002-of-00004.safetensors")}
        (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
        self.assertIn("1, 3..4 is missing", self.notes(checkpoint))

    def test_contradictions_are_noted(self):
        for config, words in (({"topk_method": "foo"}, 'topk_method "foo"'), ({"n_shared_experts": 0}, "states no shared expert"),
                              ({"n_shared_experts": 1}, f"1 shared expert(s) of {INTERMEDIATE} channels, the tensors hold {2 * INTERMEDIATE}"),
                              ({"quantization_config": {"quant_algo": "NVFP4", "group_size": 32}}, "group_size 32, the experts' tensors are NVFP4"),
                              ({"quantization_config": {"quant_method": "awq"}}, "quant_method awq, the experts' tensors are NVFP4")):
            self.assertIn(words, self.notes(self.model(**config)))
        self.assertEqual(self.notes(self.model()), "")

    def test_plan_does_not_pass_over_a_broken_layer(self):
        def change(tensors):
            del tensors["layers.0.ffn.experts.2.w3.weight_scale_2"]
        checkpoint = self.model(layers=(0, 1), change=change)
        self.refused(BAD_INPUT, "plan", checkpoint, says=("layer 0", "layers.0.ffn.experts.2.w3.weight_scale_2"))
        self.good("plan", checkpoint, "--layer", 1)
        self.refused(USAGE, "plan", checkpoint, "--layer", 2, says=("layer 2 has no experts",))

    def test_every_line_names_its_file_once(self):
        checkpoint = self.model()
        file = checkpoint / "model.safetensors"
        raw = file.read_bytes()
        size = struct.unpack("<Q", raw[:8])[0]
        header = json.loads(raw[8:8 + size])
        for name in list(header)[3:9:3]:
            header[name]["dtype"] = "I9"
        text = json.dumps(header).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + size:])
        problems = self.report(checkpoint)["problems"]
        self.assertEqual([(p["file"], p["tensor"]) for p in problems], [("model.safetensors", name) for name in list(header)[3:9:3]])
        for problem in problems:
            self.assertEqual(problem["what"].count("model.safetensors"), 1)
            self.assertTrue(problem["what"].startswith(f"{file}: "), problem["what"])


class Router(Broken):
    def test_numbers_that_do_not_fit(self):
        for config, key, found in (({"num_experts_per_tok": 0}, "num_experts_per_tok", "found 0, wanted 1 to 6"),
                                   ({"num_experts_per_tok": 33}, "num_experts_per_tok", "found 33, wanted 1 to 6"),
                                   ({"num_experts_per_tok": 7}, "num_experts_per_tok", "found 7, wanted 1 to 6"),
                                   ({"n_group": 4}, "n_group", "found 4, wanted a number that divides"),
                                   ({"n_group": 0}, "n_group", "found 0"), ({"n_group": 2, "topk_group": 3}, "topk_group", "found 3, wanted 1 to"),
                                   ({"n_group": 2, "topk_group": 0}, "topk_group", "found 0"),
                                   ({"n_group": 6, "topk_group": 1}, "topk_group", "found 1 (of 6 groups")):
            checkpoint = self.model(**config)
            self.problem(checkpoint, f'{checkpoint}/config.json: "{key}": {found}', file="config.json")
            router = self.layer(checkpoint)["router"]
            self.assertFalse(router["usable"])
            self.assertIn(found, router["why_not"])
            self.run_refused(checkpoint, "config.json", key, found, ids=False)
            self.run_layer(checkpoint, self.tokens())  # the input's own routing does not need them

    def test_a_wrong_number_is_told_once_for_all_layers(self):
        self.problem(self.model(layers=(0, 1), num_hidden_layers=2, n_group=4), "n_group")

    def test_values_that_are_refused(self):
        for key, value in (("routed_scaling_factor", 1e300), ("routed_scaling_factor", -1.0), ("routed_scaling_factor", float("nan")),
                           ("hidden_act", "gelu")):
            checkpoint = self.model(**{key: value})
            self.problem(checkpoint, f'{checkpoint}/config.json: "{key}": found', file="config.json")
            self.run_refused(checkpoint, "config.json", key)
        self.good("verify", self.model(hidden_act="silu"))


class FileFaults(Broken):
    def test_a_file_cut_while_it_is_read(self):
        """A sparse gigabyte of zeros is cut to its header between its mapping and its scan."""
        checkpoint, hidden, intermediate = self.folder / "sparse", 8192, 8192
        checkpoint.mkdir()
        header, offset = {}, 0
        for expert in range(6):
            for matrix in ("w1", "w2", "w3"):
                name = f"layers.0.ffn.experts.{expert}.{matrix}"
                for part, dtype, shape, size in (("weight", "F8_E4M3", [hidden, intermediate], hidden * intermediate),
                                                 ("scale", "F32", [hidden // 128, intermediate // 128], hidden * intermediate // 4096)):
                    header[f"{name}.{part}"] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
                    offset += size
        text = json.dumps(header).encode()
        file = checkpoint / "model.safetensors"
        file.write_bytes(struct.pack("<Q", len(text)) + text)
        os.truncate(file, 8 + len(text) + offset)
        with subprocess.Popen([CLI, "verify", str(checkpoint)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            while process.poll() is None and str(file) not in Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8"):
                time.sleep(0.0005)
            os.truncate(file, 8 + len(text))
            out, err = process.communicate(timeout=120)
        self.assertEqual((process.returncode, out), (BAD_INPUT, ""), err)
        self.assertTrue(err.startswith("monomoe: "), err)
        self.assertIn("became shorter", err)


if __name__ == "__main__":
    unittest.main()
