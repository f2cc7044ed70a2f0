"""bench on the CPU backend: rows, modes, routing, lines of cases, JSON, and what it refuses. No test depends on how long anything took."""

import json
import unittest

from support import BAD_INPUT, UNAVAILABLE, USAGE, CliTest

SMALL = ("bench", "--backend", "cpu", "--hidden", 256, "--intermediate", 128, "--experts", 8, "--topk", 2, "--repeats", 3)
CASE = "ranks=2 experts=8 topk=2 tokens=8 hidden=256 inter=128 w=nvfp4 seed=4 limit=10"
ROW = {"backend", "device", "format", "hidden", "intermediate", "experts", "topk", "ranks", "capacity", "tokens", "tokens_per_rank", "launch", "mode", "routing",
       "routing_value", "seed", "routes", "touched_experts", "largest_expert", "repeats", "calls_per_sample", "median", "min", "p10", "p90", "samples",
       "steps", "flops", "read", "gemm", "bound", "bound_by", "ratio", "checked", "processes"}


class Bench(CliTest):
    def rows(self, *arguments: object) -> list[dict]:
        report = json.loads(self.good(*arguments, "--json"))
        self.assertEqual(set(report), {"command", "version", "rows"})
        self.assertEqual(report["command"], "bench")
        return report["rows"]

    def test_rows_hold_what_the_documentation_says(self):
        rows = self.rows(*SMALL, "--weights", "fp8", "--tokens", "1,3")
        self.assertEqual([row["tokens"] for row in rows], [1, 3])
        for row in rows:
            self.assertEqual(set(row), ROW)
            self.assertEqual((row["backend"], row["format"], row["capacity"], row["ranks"]), ("cpu", "fp8", 3, 1))
            self.assertEqual(row["routes"], row["tokens"] * 2)
            self.assertEqual(row["flops"], 2 * 3 * 256 * 128 * row["routes"])
            self.assertEqual(len(row["samples"]), 3)
            self.assertEqual(row["median"], sorted(row["samples"])[1])
            self.assertEqual((row["min"], row["p90"]), (min(row["samples"]), max(row["samples"])))
            self.assertGreater(row["min"], 0)
            self.assertEqual(row["read"]["bytes"] % row["touched_experts"], 0)
            self.assertGreater(row["read"]["median"], 0)
            self.assertIsNone(row["ratio"])
            self.assertIn("backend cpu", row["gemm"]["why_not"])
            self.assertEqual(row["checked"], {"runs_equal": True, "cpu": False})
            self.assertEqual((row["tokens_per_rank"], row["processes"]), ([row["tokens"]], None))
        self.assertEqual(rows[0]["touched_experts"], 2)
        self.assertEqual(rows[0]["largest_expert"], 1)

    def test_every_layer_with_every_mode_routing_and_number_of_tokens(self):
        rows = self.rows(*SMALL, "--weights", "nvfp4,mxfp4", "--tokens", "2,4", "--mode", "cold,back-to-back", "--routing", "uniform,zipf:1.5,hot:0.5",
                         "--ranks", 2, "--capacity", 6)
        found = [(row["format"], row["mode"], row["routing"], row["routing_value"], row["tokens"]) for row in rows]
        self.assertEqual(found, [(weights, mode, routing, value, tokens) for weights in ("nvfp4", "mxfp4") for mode in ("cold", "back-to-back")
                                 for routing, value in (("uniform", 0), ("zipf", 1.5), ("hot", 0.5)) for tokens in (2, 4)])
        for row in rows:
            self.assertEqual((row["ranks"], row["capacity"], row["routes"]), (2, 6, 2 * 2 * row["tokens"]))
            self.assertEqual(row["calls_per_sample"], 10 if row["mode"] == "back-to-back" else 1)
            if row["routing"] == "hot":
                self.assertGreaterEqual(row["largest_expert"], row["tokens"])  # half of the tokens of each of two ranks

    def test_ranks_with_different_numbers_of_tokens(self):
        rows = self.rows(*SMALL, "--ranks", 3, "--tokens", "2,4+0+1,0+0+7")
        self.assertEqual([(row["tokens"], row["tokens_per_rank"], row["routes"], row["capacity"]) for row in rows],
                         [(2, [2, 2, 2], 12, 7), (4, [4, 0, 1], 10, 7), (7, [0, 0, 7], 14, 7)])
        self.assertIn("\n   4+0+1 one ", self.good(*SMALL, "--ranks", 3, "--tokens", "4+0+1"))
        self.refused(USAGE, *SMALL, "--ranks", 3, "--tokens", "2,4+1", says=("--tokens 2,4+1: '4+1' has 2 numbers, --ranks is 3",))
        self.refused(USAGE, *SMALL, "--ranks", 2, "--tokens", "0+0", says=("'0+0' is 0 on all ranks",))
        self.refused(USAGE, *SMALL, "--ranks", 2, "--tokens", "4+x", says=("'x' must be a number of tokens of a rank, 0..1048576",))
        self.refused(USAGE, *SMALL, "--ranks", 2, "--tokens", "4+9", "--capacity", 8, says=("--capacity is 8, but --tokens has 9",))

    def test_the_table(self):
        text = self.good(*SMALL, "--weights", "nvfp4", "--tokens", "1,2")
        lines = text.splitlines()
        self.assertTrue(lines[0].startswith("nvfp4 256/128, 8 experts, top-2, 1 rank, capacity 2; "), text)
        self.assertIn("no rate of a product to compare with", lines[1])
        self.assertEqual(lines[2].split(), ["tokens", "launch", "mode", "routing", "median", "min", "p10", "p90", "GFLOP/s", "read", "bound", "ratio", "bits"])
        self.assertEqual([line.split()[0] for line in lines[3:]], ["1", "2"])

    def test_lines_of_cases(self):
        cases = self.folder / "cases.txt"
        cases.write_text(f"# two layers\n{CASE}\n\n{CASE.replace('nvfp4', 'fp8')} dist=zipf  # skewed\n")
        rows = self.rows("bench", "--cases", cases, "--backend", "cpu", "--repeats", 1)
        self.assertEqual([(row["format"], row["routing"], row["ranks"], row["tokens"], row["seed"]) for row in rows],
                         [("nvfp4", "uniform", 2, 4, 4), ("fp8", "zipf", 2, 4, 4)])

    def test_bad_lines_of_cases(self):
        cases = self.folder / "cases.txt"
        for line, word in ((CASE + " dist=masked", "uniform and zipf"), (CASE + " placement=random", "placement"), (CASE.replace("tokens=8", "tokens=9"), "same number"),
                           ("experts=4", "missing")):
            cases.write_text(f"{CASE}\n{line}\n")
            self.refused(BAD_INPUT, "bench", "--cases", cases, "--backend", "cpu", says=(f"{cases}:2: ", word))
        cases.write_text("# nothing\n")
        self.refused(BAD_INPUT, "bench", "--cases", cases, says=("holds no case",))
        self.refused(USAGE, "bench", "--cases", cases, "--tokens", 4, says=("--cases excludes --tokens",))

    def test_seed_decides_the_routes(self):
        rows = [self.rows(*SMALL, "--tokens", 8, "--routing", "zipf:1", "--seed", seed)[0] for seed in (1, 1, 2, 3, 4, 5)]
        counts = [(row["touched_experts"], row["largest_expert"]) for row in rows]
        self.assertEqual(counts[0], counts[1])
        self.assertGreater(len(set(counts)), 1)

    def test_refusals_come_before_anything_is_measured(self):
        self.refused(USAGE, *SMALL, "--mode", "cold,graph", says=("--mode has graph, which backend cuda alone has (cpu was asked for)",))
        self.refused(USAGE, *SMALL, "--launch", "one,unfused", says=("--launch has unfused, which backend cuda alone has",))
        self.refused(USAGE, *SMALL, "--check", says=("--check compares another backend with cpu",))
        self.refused(USAGE, *SMALL, "--trace", self.folder / "trace.json", says=("--trace shows the launches of the kernel",))
        self.assertEqual(list(self.folder.iterdir()), [])
        self.refused(USAGE, *SMALL, "--trace", self.folder / "no" / "trace.json", says=("--trace", "does not exist"))
        self.refused(USAGE, *SMALL, "--trace", self.folder / "trace.json", "--launch", "split,unfused", says=("--launch has unfused",))

    def test_bad_values(self):
        for routing in ("zipf", "zipf:x", "zipf:-1", "zipf:inf", "hot:1.5", "hot:", "uniform:1", "flat"):
            self.refused(USAGE, *SMALL, "--routing", routing, says=(f"--routing {routing}: wanted uniform, zipf:S",))
        for tokens in ("0", "4,", "x", "1, 2", "2000000"):
            self.refused(USAGE, *SMALL, "--tokens", tokens, says=(f"--tokens {tokens}: ", "1..1048576"))
        self.refused(USAGE, *SMALL, "--tokens", "4,9", "--capacity", 8, says=("--capacity is 8, but --tokens has 9",))
        self.refused(USAGE, "bench", "--hidden", 256, "--topk", 2, says=("--intermediate, --experts",))
        self.refused(USAGE, "bench", "--geometry", "flash", "--hidden", 256, says=("--geometry excludes --hidden",))
        self.refused(USAGE, "bench", "--geometry", "flash,huge", says=("huge not in {flash,pro,mimo}",))
        self.refused(USAGE, "bench", "--backend", "cpu", "--hidden", 200, "--intermediate", 128, "--experts", 8, "--topk", 2, says=("hidden is 200", "multiple of 128"))
        self.refused(USAGE, *SMALL, "--repeats", 0, says=("--repeats",))

    def test_layers_and_routes_that_cannot_be(self):
        sizes = ["bench", "--hidden", 256, "--intermediate", 128, "--weights", "fp8", "--backend", "cpu", "--tokens", 4]
        self.refused(USAGE, *sizes, "--experts", 8, "--topk", 9, says=("topk is 9", "experts 8", "give at least as many"))
        self.refused(USAGE, *sizes, "--experts", 4, "--topk", 4, "--routing", "hot:0", says=("hot routing", "4 experts and top-4", "give more experts"))
        self.refused(USAGE, *sizes, "--experts", 8, "--topk", 2, "--swiglu-limit", "1e300", says=("--swiglu-limit 1e300: no such number in fp32",))
        self.refused(USAGE, *sizes, "--experts", 8, "--topk", 2, "--swiglu-limit", "0x1p3", says=("--swiglu-limit 0x1p3: wanted a decimal number",))
        large = ["bench", "--hidden", 65536, "--intermediate", 32768, "--experts", 1024, "--topk", 2, "--weights", "fp8", "--backend", "cpu", "--tokens", 1]
        self.refused(UNAVAILABLE, *large, says=("GB of host memory", "give fewer or smaller experts"))

    def test_cuda_without_a_gpu(self):
        doctor = json.loads(self.good("doctor", "--json"))
        if doctor["backends"]["cuda"]["available"]:
            self.skipTest("there is a Hopper GPU here")
        self.refused(UNAVAILABLE, "bench", "--backend", "cuda", says=("backend cuda: ",))
        # auto fell back to the CPU, which is no fault of the arguments.
        self.refused(UNAVAILABLE, "bench", "--mode", "graph", says=("--mode has graph, which backend cuda alone has (auto takes cpu: ",))


if __name__ == "__main__":
    unittest.main()
