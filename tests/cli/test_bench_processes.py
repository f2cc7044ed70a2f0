"""bench with a process for each rank, on the CPU backend: what a rank counts is what one process counts. No test depends on how long anything took."""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
import unittest
from pathlib import Path

from support import BAD_INPUT, CLI, INTERNAL, OK, UNAVAILABLE, USAGE, CliTest
from test_processes import children, is_running, left_sockets

SMALL = ("bench", "--backend", "cpu", "--hidden", 256, "--intermediate", 128, "--experts", 8, "--topk", 2, "--repeats", 3, "--threads", 2)
CASE = "ranks=2 experts=8 topk=2 tokens=8 hidden=256 inter=128 w=nvfp4 seed=4 limit=10"
MANY_ROWS = ("--routing", "uniform,zipf:1,zipf:2", "--tokens", ",".join(map(str, range(1, 500))))
# Of a row, what does not depend on the clock nor on where the ranks are.
COUNTED = ("backend", "format", "hidden", "intermediate", "experts", "topk", "ranks", "capacity", "tokens", "tokens_per_rank", "launch", "mode", "routing", "routing_value",
           "seed", "routes", "touched_experts", "largest_expert", "repeats", "calls_per_sample", "flops", "checked")


class RanksTest(CliTest):
    def rows(self, *arguments: object) -> list[dict]:
        return json.loads(self.good(*arguments, "--json"))["rows"]

    def await_row(self, process: subprocess.Popen) -> None:
        """Until rank 0 has printed the first of many rows: the ranks have met, and go on calling."""
        for line in process.stdout:
            if "medians of the ranks" in line:
                return
        self.fail("it ended before its first row")


class ProcessesTest(RanksTest):
    """Ranks that the command starts."""

    def test_the_rows_of_one_process(self):
        words = (*SMALL, "--weights", "nvfp4,fp8", "--ranks", 3, "--tokens", "2,5+0+3", "--mode", "cold,back-to-back", "--routing", "uniform,zipf:1.5,hot:0.5")
        one, many = self.rows(*words), self.rows(*words, "--processes")
        self.assertEqual(len(many), 2 * 2 * 3 * 2)
        self.assertEqual([[row[key] for key in COUNTED] for row in many], [[row[key] for key in COUNTED] for row in one])
        for row in many:
            self.assertEqual(set(row["processes"]), {"memory", "medians", "why"})
            self.assertEqual(row["processes"]["memory"], "an anonymous file of the host's memory")
            self.assertEqual(row["processes"]["why"], "cpu was asked for; 3 processes")
            self.assertEqual(len(row["processes"]["medians"]), 3)
            self.assertEqual(row["median"], max(row["processes"]["medians"]))
            self.assertEqual(row["median"], statistics.median(row["samples"]))
            self.assertEqual((row["min"], row["p90"]), (min(row["samples"]), max(row["samples"])))
            self.assertGreater(min(row["processes"]["medians"]), 0)
            self.assertGreater(row["read"]["bytes"], 0)

    def test_the_table_is_printed_once(self):
        lines = self.good(*SMALL, "--tokens", "1,4+0", "--ranks", 2, "--processes").splitlines()
        self.assertTrue(lines[0].startswith("nvfp4 256/128, 8 experts, top-2, 2 ranks, capacity 4; "), lines)
        self.assertEqual(lines[1], "  each rank is a process (cpu was asked for; 2 processes); they share an anonymous file of the host's memory")
        self.assertEqual(lines[3].split()[:5], ["tokens", "launch", "mode", "routing", "median"])
        self.assertEqual([lines[4].split()[:4], lines[6].split()[:4]], [["1", "one", "cold", "uniform"], ["4+0", "one", "cold", "uniform"]])
        for line in (lines[5], lines[7]):
            self.assertRegex(line, r"^ +medians of the ranks [\d.]+ us, [\d.]+ us$")
        self.assertEqual(len(lines), 8)

    def test_lines_of_cases_take_as_many_processes_as_they_have_ranks(self):
        cases = self.folder / "cases.txt"
        cases.write_text(f"{CASE}\n{CASE.replace('ranks=2', 'ranks=4').replace('nvfp4', 'fp8')} dist=zipf\n{CASE.replace('ranks=2', 'ranks=1')}\n")
        words = ("bench", "--cases", cases, "--backend", "cpu", "--repeats", 1)
        one, many = self.rows(*words), self.rows(*words, "--processes")
        self.assertEqual([[row[key] for key in COUNTED] for row in many], [[row[key] for key in COUNTED] for row in one])
        self.assertEqual([len(row["processes"]["medians"]) for row in many], [2, 4, 1])

    def test_a_killed_rank_is_named_and_the_others_are_stopped(self):
        process = self.start(*SMALL, *MANY_ROWS, "--ranks", 3, "--processes")
        self.await_row(process)
        ranks = children(process.pid)
        self.assertEqual(sorted(ranks), ["0", "1", "2"])
        os.kill(ranks["1"], signal.SIGKILL)
        _, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, INTERNAL, error)
        self.assertEqual(error, f"monomoe: rank 1 (process {ranks['1']}) was ended by signal 9 (Killed); the other ranks were stopped, no output was put in place\n")
        for _ in range(5000):
            if not any(map(is_running, ranks.values())):
                break
            time.sleep(0.002)
        self.assertEqual([number for number in ranks.values() if is_running(number)], [])
        self.assertEqual(left_sockets(f"cli-{process.pid}-"), [])

    def test_closed_standard_streams(self):
        """Their numbers must not become those of pipes, sockets or shared memory: the table would land there, and the end look like success."""
        for closed in ((1,), (0, 1)):
            with self.subTest(closed=closed):
                words = " ".join(f"{stream}>&-" for stream in closed)
                command = ["sh", "-c", f'exec "$@" {words}', "sh", CLI, *map(str, SMALL), "--tokens", "1", "--ranks", "2", "--processes"]
                ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=120)
                self.assertEqual((ended.returncode, ended.stderr), (BAD_INPUT, "monomoe: standard output cannot be written: Bad file descriptor\n"))

    @unittest.skipIf(os.environ.get("MONOMOE_SANITIZE"), "a sanitizer opens files of its own to look at memory")
    def test_too_few_open_files(self):
        # Of the process that starts the ranks; and of a rank, which has one open for each of the others.
        for limit, ranks in ((20, 16), (40, 32)):
            with self.subTest(limit=limit):
                command = ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", CLI, *map(str, SMALL), "--tokens", "1", "--ranks", str(ranks), "--processes"]
                ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
                self.assertEqual((ended.returncode, ended.stdout), (UNAVAILABLE, ""), ended.stderr)
                self.assertIn("raise the limit of open files (ulimit -n)", ended.stderr)
                self.assertEqual(ended.stderr.count("\n"), 1, ended.stderr)

    def test_more_tokens_than_memory(self):
        self.refused(UNAVAILABLE, "bench", "--backend", "cpu", "--hidden", 65536, "--intermediate", 32, "--experts", 8, "--topk", 1, "--tokens", 1 << 20, "--ranks", 8,
                     "--processes", says=("the rows of 8388608 tokens need 3299 GB of host memory, ", " available; give fewer tokens or ranks"))

    def test_a_folder_of_cases(self):
        self.refused(BAD_INPUT, "bench", "--cases", self.folder, "--processes", says=(str(self.folder),))

    def test_refusals_are_one_sentence(self):
        ranks = (*SMALL, "--ranks", 2)
        trace = self.folder / "trace.json"
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        for words, sentence in (((*ranks, "--processes", "--trace", trace), "--trace shows the ranks of one process, and --processes makes each a process of its own"),
                                ((*ranks, "--rank", 1, "--world", "x", "--trace", trace), "--trace shows the ranks of one process, and --rank makes each"),
                                ((*ranks, "--rank", 2, "--world", "x"), "--rank 2 of 2 ranks: wanted 0 to 1"),
                                ((*ranks, "--rank", 1), "--world"),
                                ((*ranks, "--rank", 1, "--world", "x", "--processes"), "--processes starts the ranks itself, and --rank says that another launcher does"),
                                (("bench", "--cases", pipe, "--processes"), "every rank's process reads it, so it cannot be a pipe"),
                                ((*ranks, "--processes", "--mode", "graph"), "--mode has graph, which backend cuda alone has (cpu was asked for; 2 processes)"),
                                ((*ranks, "--processes", "--launch", "split"), "--launch has split, which backend cuda alone has"),
                                ((*ranks, "--processes", "--check"), "--check compares another backend with cpu"),
                                ((*ranks, "--processes", "--tokens", "1+2+3"), "'1+2+3' has 3 numbers, --ranks is 2"),
                                ((*ranks, "--processes", "--routing", "hot:2"), "--routing hot:2: wanted uniform"),
                                (("bench", "--backend", "cpu", "--hidden", 200, "--intermediate", 128, "--experts", 8, "--topk", 2, "--ranks", 2, "--processes"), "hidden is 200")):
            with self.subTest(sentence=sentence):
                said = self.refused(USAGE, *words, says=(sentence,))
                self.assertEqual(said.strip().count("\n"), 0, said)
        self.assertFalse(trace.exists())

    def test_the_check_for_several_gpus_asks_for_what_there_is(self):
        sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
        import multi_gpu_check

        for uneven in (False, True):
            # Everything else was understood when the mode is refused.
            self.refused(USAGE, "bench", *multi_gpu_check.bench_words(4, uneven), "--processes", "--backend", "cpu", "--timeout", 60, "--json", says=("--mode has graph",))


class LauncherTest(RanksTest):
    """Ranks that something else starts: here, this test."""

    def setUp(self) -> None:
        super().setUp()
        self.world = f"bench-{os.getpid()}-{random.getrandbits(48):x}"

    def rank(self, number: int, *options: object, ranks: int = 2) -> subprocess.Popen:
        return self.start(*SMALL, "--ranks", ranks, "--rank", number, "--world", self.world, *options)

    def ends(self, process: subprocess.Popen) -> tuple[int, str, str]:
        out, error = process.communicate(timeout=60)
        return process.returncode, out, error

    def test_rank_0_reports(self):
        ranks = [self.rank(number, "--tokens", "4+2", "--weights", "fp8,mxfp4", "--json") for number in range(2)]
        (code, out, error), other = map(self.ends, ranks)
        self.assertEqual((code, error, other), (OK, "", (OK, "", "")))
        self.assertEqual([(row["format"], row["tokens_per_rank"], row["routes"]) for row in json.loads(out)["rows"]], [("fp8", [4, 2], 12), ("mxfp4", [4, 2], 12)])

    def test_ranks_that_were_given_other_things(self):
        for option, first, second in (("--seed", 1, 2), ("--tokens", "2,4", "2,8"), ("--routing", "uniform", "zipf:1"), ("--weights", "fp8", "nvfp4"), ("--capacity", 300, 400)):
            with self.subTest(option=option):
                ends = list(map(self.ends, [self.rank(0, option, first), self.rank(1, option, second)]))
                for code, out, error in ends:
                    self.assertEqual((code, out), (USAGE, ""), error)
                    self.assertIn(f"{option} is {first} on rank 0 and {second} on rank 1; give every rank the same", error)

    def test_options_of_any_length_are_compared(self):
        many = ",".join(map(str, range(1, 2000)))
        ends = list(map(self.ends, [self.rank(0, "--tokens", f"{many},3"), self.rank(1, "--tokens", f"{many},30")]))
        for code, out, error in ends:
            self.assertEqual((code, out), (USAGE, ""), error[:500])
            self.assertRegex(error, r"^monomoe: --tokens is \.\.[0-9,]+,1999,3 on rank 0 and \.\.[0-9,]+,1999,30 on rank 1; give every rank the same\n$")

    def test_the_name_of_a_world_that_is_too_long_for_its_parts(self):
        cases = self.folder / "cases.txt"
        cases.write_text(f"{CASE}\n" * 10)
        for command, most in (((*SMALL, "--ranks", 2), 62), ((*SMALL, "--ranks", 2, "--weights", "fp8," * 10 + "fp8"), 61), (("verify", "--cases", cases), 61)):
            name = "a" * (most + 1)
            self.refused(USAGE, *command, "--rank", 0, "--world", name, "--timeout", 0.2, says=(f"--world {name} has {most + 1} characters", f"give a name of at most {most}"))
            self.refused(INTERNAL, *command, "--rank", 0, "--world", name[1:], "--timeout", 0.2, says=("rank 1 did not join",))

    def test_a_rank_that_is_killed_is_named_by_the_others(self):
        ranks = [self.rank(number, *MANY_ROWS, "--timeout", 5, ranks=3) for number in range(3)]
        self.await_row(ranks[0])
        ranks[1].kill()
        for number in (0, 2):
            code, _, error = self.ends(ranks[number])
            self.assertEqual(code, INTERNAL, error)
            self.assertIn("rank 1", error)


if __name__ == "__main__":
    unittest.main()
