"""run and verify with a process for each rank: the same bits, and nothing left behind however a process ends."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

from support import BAD_INPUT, CLI, EXPERTS, HIDDEN, INTERNAL, OK, TOPK, USAGE, CliTest, i64, read_file, token_tensors, write_file


def children(process: int) -> dict[str, int]:
    """Number of the rank -> process, of the ranks that a process has started."""
    found = {}
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = int(Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[1])
            words = Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0") if parent == process else []
        except OSError:
            continue
        if b"--world" in words:
            found[words[words.index(b"--rank") + 1].decode()] = int(number)
    return found


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def left_sockets(name: str) -> list[str]:
    return [line for line in Path("/proc/net/unix").read_text().splitlines() if f"/{name}" in line]


class RanksTest(CliTest):
    """A layer to run, and processes that run it."""

    def arguments(self, *options: object, tokens: Path | None = None, weights: str = "mxfp4") -> list[str]:
        return ["run", str(self.checkpoint(weights)), "--layer", "0", "--input", str(tokens or self.tokens()), "--output", str(self.folder / "out.safetensors"),
                "--backend", "cpu", "--threads", "2", *map(str, options)]


class ProcessesTest(RanksTest):
    """Ranks that the command starts."""

    def stopped_rank(self, process: subprocess.Popen, rank: int) -> dict[str, int]:
        """Waits for all three ranks and stops one, so that the others wait for it."""
        for _ in range(20000):
            found = children(process.pid)
            if str(rank) in found:
                os.kill(found[str(rank)], signal.SIGSTOP)
            if len(found) == 3:
                return found
            self.assertIsNone(process.poll(), "it ended before it was stopped")
            time.sleep(0.0002)
        self.fail("the ranks did not start")

    def nothing_left(self, command: subprocess.Popen, processes: dict[str, int]) -> None:
        for _ in range(5000):
            if not any(map(is_running, processes.values())):
                break
            time.sleep(0.002)
        self.assertEqual([rank for rank, number in processes.items() if is_running(number)], [])
        self.assertEqual(list(self.folder.glob("out*")), [])
        numbers = [str(number) for number in (command.pid, *processes.values())]
        self.assertEqual([name for name in os.listdir("/dev/shm") if any(number in name for number in numbers)], [])
        self.assertEqual(left_sockets(f"cli-{command.pid}-"), [])

    def test_the_bits_of_one_process(self) -> None:
        tokens = self.tokens()
        routed = self.folder / "routed.safetensors"
        write_file(routed, token_tensors(ids=False))
        for weights, source, options in (("mxfp4", tokens, ()), ("nvfp4", routed, ("--shared-expert", "on")), ("fp8", tokens, ("--tokens-per-rank", "0,11,0"))):
            with self.subTest(weights=weights):
                checkpoint = self.checkpoint(weights)
                one = self.run_layer(checkpoint, source, "--backend", "cpu", *options[:2] if "--shared-expert" in options else ())
                for ranks in (1, 3):
                    if ranks == 1 and "--tokens-per-rank" in options:
                        continue
                    many = self.run_layer(checkpoint, source, "--backend", "cpu", "--ranks", ranks, "--processes", *options)
                    self.assertEqual(one, many)

    def test_placement_and_report(self) -> None:
        placement = self.folder / "placement.txt"
        placement.write_text("".join(f"{expert} {2 - expert % 2}\n" for expert in range(EXPERTS)))
        report = json.loads(self.good(*self.arguments("--ranks", 3, "--processes", "--placement", placement, "--json")))
        self.assertEqual(report["placement"]["experts_per_rank"], [0, 3, 3])
        self.assertEqual(report["processes"], {"memory": "an anonymous file of the host's memory"})
        self.assertEqual((report["ranks"], report["backend"]["taken"]), (3, "cpu"))
        self.assertEqual(report["backend"]["why"], "cpu was asked for; 3 processes")
        self.assertGreater(report["times"]["forward"]["thread_seconds"]["gemm1"], 0)

    def test_verify(self) -> None:
        checkpoint, tokens = self.checkpoint("nvfp4"), self.tokens()
        output = self.folder / "out.safetensors"
        report = json.loads(self.good("verify", checkpoint, "--layer", 0, "--input", tokens, "--ranks", 3, "--processes", "--backend", "cpu", "--output", output, "--json"))
        self.assertTrue(report["ok"])
        self.assertEqual((report["against_cpu"]["different"], report["against_cpu"]["elements"]), (0, 11 * HIDDEN))
        self.assertEqual(read_file(output), self.run_layer(checkpoint, tokens))
        cases = self.folder / "cases.txt"
        cases.write_text("ranks=3 experts=6 topk=3 rows=5+0+9 hidden=256 inter=96 w=nvfp4 seed=3 dist=masked placement=redundant\n"
                         "experts=4 topk=2 tokens=7 hidden=128 inter=64 w=fp8 seed=4\n")
        report = json.loads(self.good("verify", "--cases", cases, "--processes", "--backend", "cpu", "--json"))
        self.assertEqual([(case["line"], case["against_cpu"]["different"], case["bitwise"]["equal"]) for case in report["cases"]], [(1, 0, True), (2, 0, True)])

    def test_the_check_for_several_gpus_understands_the_report(self) -> None:
        sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
        import multi_gpu_check

        command = [CLI, "verify", str(multi_gpu_check.example("nvfp4")), "--layer", "0", "--input", str(multi_gpu_check.CAPTURE), "--ranks", "2", "--processes"]
        report = json.loads(subprocess.run([*command, "--backend", "cpu", "--json"], capture_output=True, text=True, check=True, timeout=120).stdout)
        self.assertEqual(multi_gpu_check.told(report), {"backend": "cpu", "memory": "an anonymous file of the host's memory", "differ": 0})

    def test_refusals_are_one_sentence(self) -> None:
        self.refused(USAGE, *self.arguments("--ranks", 3, "--rank", 1), says=("--world",))
        self.refused(USAGE, *self.arguments("--ranks", 3, "--rank", 3, "--world", "x"), says=("--rank 3 of --ranks 3: wanted 0 to 2",))
        self.refused(USAGE, "verify", self.checkpoint(), "--processes", says=("runs no ranks; leave out --processes",))
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        self.refused(USAGE, *self.arguments("--ranks", 3, "--processes", "--placement", pipe), says=("every rank's process reads it",))
        bad = token_tensors()
        bad["topk_ids"] = ("I64", bad["topk_ids"][1], i64([99] * 11 * TOPK))
        write_file(self.folder / "bad.safetensors", bad)
        said = self.refused(BAD_INPUT, *self.arguments("--ranks", 3, "--processes", tokens=self.folder / "bad.safetensors"), says=("99",))
        self.assertEqual(said.count("\n"), 1, said)
        said = self.refused(USAGE, *self.arguments("--ranks", 3, "--processes", "--capacity", 1), says=("--capacity is 1",))
        self.assertEqual(said.count("\n"), 1, said)
        self.assertEqual(list(self.folder.glob("out*")), [])
        cases = self.folder / "cases.txt"
        cases.write_text("experts=6\n")
        self.refused(BAD_INPUT, "verify", "--cases", cases, "--processes", says=(f"{cases}:1:",))

    def test_a_killed_rank_is_named_and_the_others_are_stopped(self) -> None:
        process = self.start(*self.arguments("--ranks", 3, "--processes"))
        ranks = self.stopped_rank(process, 1)
        os.kill(ranks["1"], signal.SIGKILL)
        out, error = process.communicate(timeout=60)
        self.assertEqual((process.returncode, out), (INTERNAL, ""), error)
        self.assertEqual(error, f"monomoe: rank 1 (process {ranks['1']}) was ended by signal 9 (Killed); the other ranks were stopped, no output was put in place\n")
        self.nothing_left(process, ranks)

    def test_nothing_outlives_the_command(self) -> None:
        process = self.start(*self.arguments("--ranks", 3, "--processes"))
        ranks = self.stopped_rank(process, 2)
        process.kill()
        process.wait(timeout=60)
        self.nothing_left(process, ranks)


class LauncherTest(RanksTest):
    """Ranks that something else starts: here, this test."""

    def setUp(self) -> None:
        super().setUp()
        self.world = f"test-{os.getpid()}-{random.getrandbits(48):x}"

    def rank(self, number: int, *options: object, ranks: int = 2) -> subprocess.Popen:
        return self.start(*self.arguments("--ranks", ranks, "--rank", number, "--world", self.world, *options))

    def ends(self, process: subprocess.Popen) -> tuple[int, str]:
        _, error = process.communicate(timeout=120)
        return process.returncode, error

    def test_ranks_that_start_late(self) -> None:
        first = self.rank(0)
        time.sleep(0.3)
        second = self.rank(1)
        self.assertEqual(self.ends(first), (OK, ""))
        self.assertEqual(self.ends(second), (OK, ""))
        self.assertEqual(read_file(self.folder / "out.safetensors"), self.run_layer(self.checkpoint(), self.tokens()))

    def test_a_rank_that_never_comes(self) -> None:
        code, error = self.ends(self.rank(0, "--timeout", 0.3))
        self.assertEqual(code, INTERNAL)
        self.assertIn(f"rank 1 did not join world '{self.world}' within 300 ms", error)
        self.assertEqual(left_sockets(self.world), [])

    def test_ranks_that_differ(self) -> None:
        ranks = [self.rank(0, "--capacity", 8), self.rank(1, "--capacity", 9)]
        codes, errors = zip(*map(self.ends, ranks))
        self.assertEqual(codes, (USAGE, USAGE), errors)
        self.assertIn("capacity is 8 on rank 0 and 9 on rank 1", errors[0])
        self.assertIn("capacity is 9 on rank 1 and 8 on rank 0", errors[1])
        self.assertEqual(list(self.folder.glob("out*")), [])

    def test_ranks_that_were_given_other_things(self) -> None:
        other = self.folder / "other.safetensors"
        other.write_bytes(Path(self.tokens()).read_bytes())
        base = self.arguments("--ranks", 2, "--world", self.world)
        changed = {"--input": other, "the checkpoint": self.checkpoint("fp8"), "--layer": 1}
        place = {"--input": base.index("--input") + 1, "the checkpoint": 1, "--layer": base.index("--layer") + 1}
        for name, value in changed.items():
            words = list(base)
            words[place[name]] = str(value)
            codes, errors = zip(*map(self.ends, [self.start(*base, "--rank", 0), self.start(*words, "--rank", 1)]))
            self.assertEqual(codes, (USAGE, USAGE), errors)
            for error in errors:
                self.assertRegex(error, f"{name} is .* on rank 0 and .* on rank 1; give every rank the same")
        codes, errors = zip(*map(self.ends, [self.rank(0, "--swiglu-limit", 1), self.rank(1, "--swiglu-limit", 2)]))
        self.assertEqual(codes, (USAGE, USAGE), errors)
        self.assertIn("--swiglu-limit is 1 on rank 0 and 2 on rank 1; give every rank the same", errors[0])
        self.assertEqual(list(self.folder.glob("out*")), [])

    def test_two_launchers_at_once(self) -> None:
        code, error = self.ends(self.rank(0, "--processes"))
        self.assertEqual(code, USAGE)
        self.assertIn("--processes starts the ranks itself, and --rank says that another launcher does; leave one of them out", error)

    def test_a_rank_started_twice(self) -> None:
        first = self.rank(1)
        while not left_sockets(self.world):
            time.sleep(0.001)
        code, error = self.ends(self.rank(1))
        self.assertEqual(code, USAGE, error)
        self.assertIn(f"rank 1 of world '{self.world}' is another process already", error)
        last = self.rank(0)
        self.assertEqual([self.ends(first)[0], self.ends(last)[0]], [OK, OK])

    def test_a_rank_that_is_killed_is_named_by_the_others(self) -> None:
        ranks = [self.rank(0, ranks=3), self.rank(1, ranks=3)]
        while len(left_sockets(self.world)) < 2:
            time.sleep(0.001)
        time.sleep(0.1)  # they have met, and wait for rank 2
        ranks[1].kill()
        code, error = self.ends(ranks[0])
        self.assertEqual(code, INTERNAL)
        self.assertIn(f"rank 1 will not come any more: its process (number {ranks[1].pid}) has ended", error)


if __name__ == "__main__":
    unittest.main()
