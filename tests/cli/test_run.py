"""monomoe run: what it computes and writes."""

import json
import math
import random
import struct
import unittest

from support import (BAD_INPUT, CONFIG, EXPERTS, HIDDEN, INTERMEDIATE, TOKENS, TOPK, VOCABULARY, CliTest, bf16, expert_tensors, f32, floats,
                     from_bf16, i32, i64, ints, layer_tensors, read_file, token_tensors, write_checkpoint, write_file)


class Output(CliTest):
    def test_tensors_of_the_output(self):
        out = self.run_layer(self.checkpoint(), self.tokens())
        self.assertEqual(sorted(out), ["expert_counts", "topk_ids", "topk_weights", "y"])
        self.assertEqual(out["y"][:2], ("BF16", [TOKENS, HIDDEN]))
        given = token_tensors()
        self.assertEqual(out["topk_ids"], given["topk_ids"])
        self.assertEqual(out["topk_weights"], given["topk_weights"])
        ids = ints(out["topk_ids"])
        self.assertEqual(out["expert_counts"][:2], ("I64", [EXPERTS]))
        self.assertEqual(ints(out["expert_counts"]), [ids.count(expert) for expert in range(EXPERTS)])
        self.assertTrue(any(value != 0 for value in from_bf16(out["y"][2])))

    def test_dropped_slots(self):
        checkpoint, tensors = self.checkpoint(), token_tensors()
        ids = [-1] * (TOKENS * TOPK)
        ids[3] = 5
        tensors["topk_ids"] = ("I64", [TOKENS, TOPK], i64(ids))
        tensors["topk_weights"] = ("F32", [TOKENS, TOPK], f32([math.nan if i < 0 else 1.0 for i in ids]))
        path = self.folder / "in.safetensors"
        write_file(path, tensors)
        out = self.run_layer(checkpoint, path, "--ranks", 3)
        self.assertEqual(ints(out["expert_counts"]), [0, 0, 0, 0, 0, 1])
        rows = [out["y"][2][row * HIDDEN * 2:(row + 1) * HIDDEN * 2] for row in range(TOKENS)]
        self.assertTrue(any(rows[1]))
        self.assertEqual([row for row in range(TOKENS) if any(rows[row])], [1])

    def test_weights_are_used_as_given(self):
        """Doubling every weight doubles every value exactly, so nothing was normalised or scaled."""
        checkpoint, tensors = self.checkpoint(), token_tensors()
        once = self.run_layer(checkpoint, self.tokens())
        tensors["topk_weights"] = ("F32", [TOKENS, TOPK], f32([2 * value for value in floats(tensors["topk_weights"])]))
        path = self.folder / "twice.safetensors"
        write_file(path, tensors)
        twice = self.run_layer(checkpoint, path)
        self.assertEqual([2 * value for value in from_bf16(once["y"][2])], from_bf16(twice["y"][2]))

    def test_i32_ids_and_unaligned_file(self):
        checkpoint, tensors = self.checkpoint(), token_tensors()
        want = self.run_layer(checkpoint, self.tokens())
        narrow = struct.unpack(f"<{TOKENS * TOPK}q", tensors["topk_ids"][2])
        tensors["topk_ids"] = ("I32", [TOKENS, TOPK], i32(list(narrow)))
        for lead in (0, 1, 3):
            path = self.folder / f"lead{lead}.safetensors"
            write_file(path, tensors, lead)
            self.assertEqual(self.run_layer(checkpoint, path), want)

    def test_no_tokens_at_all(self):
        checkpoint = self.checkpoint()
        for ranks in (1, 4):
            out = self.run_layer(checkpoint, self.tokens(tokens=0), "--ranks", ranks)
            self.assertEqual(out["y"], ("BF16", [0, HIDDEN], b""))
            self.assertEqual(ints(out["expert_counts"]), [0] * EXPERTS)

    def test_known_value(self):
        """gate 2 and up 0.5 give silu(2) * 0.5 = 0.8808; swapped it would be 0.6225."""
        tensors = {}
        for matrix, rows, cols, code in (("w1", 128, 128, 0x40), ("w3", 128, 128, 0x30), ("w2", 128, 128, 0x38)):
            # only column 0 is not zero: x is one-hot there, and all intermediate channels are equal
            tensors[f"layers.0.ffn.experts.0.{matrix}.weight"] = ("F8_E4M3", [rows, cols], (bytes([code]) + bytes(cols - 1)) * rows)
            tensors[f"layers.0.ffn.experts.0.{matrix}.scale"] = ("F32", [1, 1], f32([1.0]))
        checkpoint = write_checkpoint(self.folder / "constant", tensors)
        path = self.folder / "one.safetensors"
        write_file(path, {"x": ("BF16", [1, 128], bf16([1.0] + [0.0] * 127)), "topk_ids": ("I64", [1, 1], i64([0])),
                          "topk_weights": ("F32", [1, 1], f32([1.0]))})
        for value in from_bf16(self.run_layer(checkpoint, path)["y"][2]):
            self.assertAlmostEqual(value, 0.880797, delta=0.004)
        clamped = from_bf16(self.run_layer(checkpoint, path, "--swiglu-limit", "1")["y"][2])
        self.assertAlmostEqual(clamped[0], 0.5 / (1 + math.exp(-1)), delta=0.002)

    def test_nan_stays_in_its_row(self):
        checkpoint, tensors = self.checkpoint(), token_tensors()
        want = self.run_layer(checkpoint, self.tokens())["y"][2]
        x = bytearray(tensors["x"][2])
        x[4 * HIDDEN * 2:4 * HIDDEN * 2 + 2] = struct.pack("<H", 0x7FC0)
        tensors["x"] = ("BF16", [TOKENS, HIDDEN], bytes(x))
        path = self.folder / "nan.safetensors"
        write_file(path, tensors)
        got = self.run_layer(checkpoint, path, "--ranks", 2)["y"][2]
        row = HIDDEN * 2
        self.assertTrue(all(math.isnan(value) for value in from_bf16(got[4 * row:5 * row])))
        self.assertEqual(got[:4 * row] + got[5 * row:], want[:4 * row] + want[5 * row:])


class SameBits(CliTest):
    def test_ranks_threads_and_vectors(self):
        for weights in ("fp8", "nvfp4", "mxfp4"):
            checkpoint, tokens = self.checkpoint(weights), self.tokens()
            want = self.run_layer(checkpoint, tokens, "--threads", 1)
            for options in (["--ranks", 2], ["--ranks", 3], ["--ranks", 4, "--threads", 3], ["--ranks", 8], ["--vector-bits", 128],
                            ["--ranks", 2, "--capacity", 40], ["--ranks", 3, "--tokens-per-rank", "0,11,0"],
                            ["--ranks", 3, "--tokens-per-rank", "5,0,6"]):
                with self.subTest(weights=weights, options=options):
                    self.assertEqual(self.run_layer(checkpoint, tokens, *options), want)

    def test_placements(self):
        checkpoint, tokens = self.checkpoint(), self.tokens()
        want = self.run_layer(checkpoint, tokens)
        files = {"reversed": "".join(f"{expert} {(EXPERTS - 1 - expert) % 3}\n" for expert in range(EXPERTS)),
                 "all on the last": "# one rank holds all\n" + "".join(f"{expert} 2  # comment\n\n" for expert in range(EXPERTS)),
                 "copies": "".join(f"{expert} {rank} {expert}\n" for expert in range(EXPERTS) for rank in range(3))}
        for name, text in files.items():
            placement = self.folder / "placement.txt"
            placement.write_text(text)
            with self.subTest(name):
                self.assertEqual(self.run_layer(checkpoint, tokens, "--ranks", 3, "--placement", placement), want)

    def test_batch_position(self):
        checkpoint, tensors = self.checkpoint(), token_tensors()
        want = self.run_layer(checkpoint, self.tokens())["y"][2]
        alone = {name: (dtype, [1, shape[1]], data[-len(data) // TOKENS:]) for name, (dtype, shape, data) in tensors.items()}
        path = self.folder / "alone.safetensors"
        write_file(path, alone)
        self.assertEqual(self.run_layer(checkpoint, path, "--ranks", 2)["y"][2], want[-HIDDEN * 2:])


class Router(CliTest):
    def test_the_checkpoints_router_decides(self):
        checkpoint = self.checkpoint()
        routed = self.run_layer(checkpoint, self.tokens(ids=False), "--ranks", 2)
        self.assertEqual(routed["topk_ids"][:2], ("I64", [TOKENS, TOPK]))
        weights = floats(routed["topk_weights"])
        for token in range(TOKENS):  # normalised, then times routed_scaling_factor
            self.assertAlmostEqual(sum(weights[token * TOPK:(token + 1) * TOPK]), CONFIG["routed_scaling_factor"], places=5)
        again = token_tensors()
        again["topk_ids"], again["topk_weights"] = routed["topk_ids"], routed["topk_weights"]
        path = self.folder / "again.safetensors"
        write_file(path, again)
        self.assertEqual(self.run_layer(checkpoint, path), routed)

    def test_hash_layer(self):
        tensors = layer_tensors("mxfp4", 1, layer=1)
        checkpoint = write_checkpoint(self.folder / "hash", tensors, CONFIG | {"num_hidden_layers": 2, "num_hash_layers": 2})
        rng, given = random.Random(3), token_tensors(ids=False)
        token_ids = [rng.randrange(VOCABULARY) for _ in range(TOKENS)]
        given["token_ids"] = ("I64", [TOKENS], i64(token_ids))
        path = self.folder / "hash.safetensors"
        write_file(path, given)
        out = self.run_layer(checkpoint, path, layer=1)
        table = ints(tensors["layers.1.ffn.gate.tid2eid"])
        self.assertEqual(ints(out["topk_ids"]), [expert for token in token_ids for expert in table[token * TOPK:(token + 1) * TOPK]])
        self.refused(BAD_INPUT, "run", checkpoint, "--layer", 1, "--input", self.tokens("plain.safetensors", ids=False), "--output",
                     self.folder / "out", says=("plain.safetensors", "token_ids", "hash layer"))

    def test_experts_alone_are_enough_with_ids(self):
        tensors = {name: tensor for name, tensor in layer_tensors("nvfp4", 1).items() if ".experts." in name}
        bare = write_checkpoint(self.folder / "bare", tensors)
        # CONFIG's clamp is absent there, so it is given
        want = self.run_layer(self.checkpoint("nvfp4"), self.tokens())
        self.assertEqual(self.run_layer(bare, self.tokens(), "--swiglu-limit", "7"), want)
        self.refused(BAD_INPUT, "run", bare, "--layer", 0, "--input", self.tokens("x.safetensors", ids=False), "--output",
                     self.folder / "out", says=("x.safetensors", "topk_ids", "router"))


class SharedExpert(CliTest):
    def test_adds_bf16_rows(self):
        """The shared expert's rows come from a checkpoint that has it as its only routed expert."""
        tensors, given = layer_tensors("mxfp4", 1), token_tensors()
        checkpoint = self.checkpoint()
        prefix = "layers.0.ffn.shared_experts."
        single = {"layers.0.ffn.experts.0." + name[len(prefix):]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        alone = write_checkpoint(self.folder / "alone", single)
        path = self.folder / "ones.safetensors"
        write_file(path, {"x": given["x"], "topk_ids": ("I64", [TOKENS, 1], i64([0] * TOKENS)),
                          "topk_weights": ("F32", [TOKENS, 1], f32([1.0] * TOKENS))})
        shared = from_bf16(self.run_layer(alone, path, "--swiglu-limit", "7")["y"][2])
        routed = self.run_layer(checkpoint, self.tokens())
        both = self.run_layer(checkpoint, self.tokens(), "--shared-expert", "on", "--ranks", 3)
        self.assertEqual(both["y"][2], bf16([a + b for a, b in zip(from_bf16(routed["y"][2]), shared)]))
        self.assertNotEqual(both["y"][2], routed["y"][2])
        self.assertEqual(both["expert_counts"], routed["expert_counts"])

    def test_absent(self):
        bare = write_checkpoint(self.folder / "bare", expert_tensors(random.Random(1), "layers.0.ffn.experts.0", "fp8"))
        path = self.folder / "in.safetensors"
        write_file(path, {"x": token_tensors()["x"], "topk_ids": ("I64", [TOKENS, 1], i64([0] * TOKENS)),
                          "topk_weights": ("F32", [TOKENS, 1], f32([1.0] * TOKENS))})
        self.refused(BAD_INPUT, "run", bare, "--layer", 0, "--input", path, "--output", self.folder / "out", "--shared-expert", "on",
                     says=("no shared expert",))


class Report(CliTest):
    def report(self, *options):
        out = self.folder / "out.safetensors"
        return json.loads(self.good("run", self.checkpoint(), "--layer", 0, "--input", self.tokens(), "--output", out, "--json", *options))

    def test_json(self):
        report = self.report("--ranks", 4)
        self.assertEqual(report["tokens_per_rank"], [3, 3, 3, 2])
        self.assertEqual((report["ranks"], report["capacity"], report["format"], report["topk"]), (4, 3, "mxfp4", TOPK))
        self.assertEqual(report["backend"]["requested"], "auto")
        self.assertIn(report["backend"]["taken"], ("cpu", "cuda"))
        self.assertTrue(report["backend"]["why"])
        self.assertEqual(report["router"]["source"], "input")
        self.assertEqual(report["expert_counts"]["live_slots"], TOKENS * TOPK)
        self.assertEqual(set(report["times"]), {"load", "route", "pack", "forward", "write", "total"})
        self.assertGreater(report["times"]["forward"]["wall"], 0)
        self.assertEqual(set(report["times"]["forward"]["thread_seconds"]), {"dispatch", "routes", "gemm1", "gemm2", "combine", "wait"})
        self.assertEqual(set(report["bytes"]["per_rank"]), {"symmetric", "workspace", "weights", "total"})
        out_bytes = sum(len(data) for _, _, data in read_file(self.folder / "out.safetensors").values())
        self.assertEqual(report["bytes"]["output"], out_bytes)
        self.assertEqual((report["hidden"], report["intermediate"], report["experts"]), (HIDDEN, INTERMEDIATE, EXPERTS))

    def test_clamp_and_its_source(self):
        self.assertEqual(self.report()["clamp"], {"limit": 7.0, "source": "config.json"})
        self.assertEqual(self.report("--swiglu-limit", "2.5")["clamp"], {"limit": 2.5, "source": "option"})
        for none in ("0", "inf"):
            self.assertEqual(self.report("--swiglu-limit", none)["clamp"], {"limit": None, "source": "option"})

    def test_the_clamp_changes_the_result(self):
        checkpoint, tokens = self.checkpoint(), self.tokens()
        stated = self.run_layer(checkpoint, tokens)
        self.assertEqual(self.run_layer(checkpoint, tokens, "--swiglu-limit", "7"), stated)
        none = self.run_layer(checkpoint, tokens, "--swiglu-limit", "0")
        self.assertEqual(self.run_layer(checkpoint, tokens, "--swiglu-limit", "inf"), none)
        self.assertNotEqual(self.run_layer(checkpoint, tokens, "--swiglu-limit", "0.01"), none)

    def test_text(self):
        out = self.folder / "out.safetensors"
        text = self.good("run", self.checkpoint(), "--layer", 0, "--input", self.tokens(ids=False), "--output", out, "--ranks", 2)
        for word in ("mxfp4", "backend    ", "capacity 6", "clamp      7 (config.json)", "router", "6, 5"):
            self.assertIn(word, text)


if __name__ == "__main__":
    unittest.main()
