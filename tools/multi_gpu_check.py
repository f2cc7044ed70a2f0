"""Runs the programs of a build that need several GPUs, a process a GPU, and writes what they found as one JSON; tools/multi_gpu_check.sh builds them.

Exit codes: 0 everything passed, 1 something failed, 4 fewer than two Hopper GPUs here.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpu_check import ROOT, find, run, tail_if_failed, write_report

FORMATS = ("nvfp4", "mxfp4", "fp8")
CAPTURE = ROOT / "examples" / "tiny-moe-capture" / "layer0.safetensors"
KILLED = -9
TOKENS = (8, 64, 256, 1024, 4096, 8192)  # of a rank
BENCH_LIMIT_S = 400


def example(word: str) -> Path:
    return ROOT / "examples" / f"tiny-moe-{word}"


class Ranks:
    """R processes of one program, each a rank of a world of its own."""

    def __init__(self, ranks: int, uuids: list[str]):
        self.ranks, self.uuids = ranks, uuids

    def visible(self, rank: int) -> dict[str, str]:
        """One GPU for the rank, which it then calls device 0."""
        gpus = len(self.uuids)
        return {"CUDA_VISIBLE_DEVICES": self.uuids[rank if gpus >= self.ranks else rank * gpus // self.ranks]}

    def run(self, command, limit_s: int, isolated: bool = True) -> dict:
        """command(world, rank) -> words. Exit codes, rank 0's output, everyone's errors, seconds."""
        world, begin = f"check-{secrets.token_hex(8)}", time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            outs = [(open(Path(folder) / f"{rank}.out", "w+"), open(Path(folder) / f"{rank}.err", "w+")) for rank in range(self.ranks)]
            processes = [subprocess.Popen(list(map(str, command(world, rank))), stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                          env=os.environ | (self.visible(rank) if isolated else {})) for rank, (out, err) in enumerate(outs)]
            late = False
            for process in processes:
                try:
                    process.wait(timeout=max(1.0, begin + limit_s - time.monotonic()))
                except subprocess.TimeoutExpired:
                    late = True
                    process.kill()
                    process.wait()
            texts = []
            for out, err in outs:
                texts.append([])
                for file in (out, err):
                    file.seek(0)
                    texts[-1].append(file.read())
                    file.close()
        return {"codes": [process.returncode for process in processes], "out": texts[0][0], "errors": "".join(err for _, err in texts), "late": late,
                "seconds": round(time.monotonic() - begin, 2)}


def contract(program: Path) -> dict:
    """Every case of the contract over as many processes as it has ranks: the bits of the CPU backend."""
    cases = ROOT / "tests" / "cases" / "contract.txt"
    code, output, seconds = run([str(program), "verify", "--cases", str(cases), "--processes", "--backend", "cuda", "--timeout", "60"], 420)
    lines = output.splitlines()
    passed = sum(line.startswith("ok ") for line in lines)
    failed = [line for line in lines if line.startswith("FAILED")]
    return {"ok": code == 0, "exit": code, "seconds": round(seconds, 2), "passed": passed, "failed": failed} | tail_if_failed(code == 0, output)


def told(report: dict) -> dict:
    """What is kept of a report of `verify --input` over processes."""
    return {"backend": report["backend"], "memory": report["processes"]["memory"], "differ": report["against_cpu"]["different"]}


def examples(program: Path, ranks: int) -> dict:
    """The trained example's first layer, started by the command itself: all GPUs visible to every rank."""
    reports = {}
    for word in FORMATS:
        command = [str(program), "verify", str(example(word)), "--layer", "0", "--input", str(CAPTURE), "--ranks", str(ranks), "--processes", "--backend", "cuda",
                   "--timeout", "60", "--json"]
        code, output, seconds = run(command, 120)
        reports[word] = {"ok": code == 0, "exit": code, "seconds": round(seconds, 2)} | tail_if_failed(code == 0, output)
        if code == 0:
            reports[word] |= told(json.loads(output))
    return {"ok": all(report["ok"] for report in reports.values()), "formats": reports}


def isolated(program: Path, ranks: Ranks) -> dict:
    """The same with one GPU visible to each rank, started from here, GPUs by UUID."""
    done = ranks.run(lambda world, rank: [program, "verify", example("nvfp4"), "--layer", 0, "--input", CAPTURE, "--ranks", ranks.ranks, "--rank", rank, "--world",
                                          world, "--backend", "cuda", "--timeout", 60, "--json"], 120)
    ok = done["codes"] == [0] * ranks.ranks
    result = {"ok": ok, "codes": done["codes"], "seconds": done["seconds"]} | tail_if_failed(ok, done["out"] + done["errors"])
    if ok:
        result |= told(json.loads(done["out"]))
    return result


def faults(program: Path, ranks: Ranks) -> dict:
    """Rank 1 is killed in mid-call; the others name it and go on without it."""
    done = ranks.run(lambda world, rank: [program, world, ranks.ranks, rank], 180)
    ok = done["codes"] == [KILLED if rank == 1 else 0 for rank in range(ranks.ranks)]
    return {"ok": ok, "codes": done["codes"], "seconds": done["seconds"]} | (json.loads(done["out"]) if ok else tail_if_failed(ok, done["out"] + done["errors"]))


def peer_rows(program: Path, ranks: Ranks, way: str, apart: bool) -> dict:
    """Rows over the links, in memory shared this way."""
    done = ranks.run(lambda world, rank: [program, world, ranks.ranks, rank, way], 180, apart)
    ok = done["codes"] == [0] * ranks.ranks
    result = {"ok": ok, "codes": done["codes"], "seconds": done["seconds"], "command": f"{program.name} WORLD {ranks.ranks} RANK {way}",
              "one_gpu_visible_to_each": apart}
    return result | (json.loads(done["out"]) if ok else tail_if_failed(ok, done["out"] + done["errors"]))


def uneven_tokens(each: int, ranks: int) -> list[str]:
    """Entries of --tokens: half as many, as many, none, twice as many ..; and as many but for an idle rank."""
    halves = [min(each * (1, 2, 0, 4)[rank % 4] // 2, max(TOKENS)) for rank in range(ranks)]
    return ["+".join(map(str, counts)) for counts in (halves, [0 if rank == 1 else each for rank in range(ranks)])]


def bench_words(ranks: int, uneven: bool) -> list[str]:
    """Arguments of `monomoe bench`, but for what makes it a process a rank."""
    tokens = [entry for each in TOKENS for entry in uneven_tokens(each, ranks)] if uneven else list(map(str, TOKENS))
    return ["--geometry", "flash", "--weights", "nvfp4,fp8", "--ranks", str(ranks), "--tokens", ",".join(tokens), "--capacity", str(max(TOKENS)),
            "--routing", "uniform" if uneven else "uniform,zipf:1", "--mode", "graph,back-to-back"]


def bench(program: Path, ranks: Ranks, uneven: bool, apart: bool) -> dict:
    """The layer's time. apart: started from here, one GPU visible to each rank; else by the command itself, all visible to all."""
    words = bench_words(ranks.ranks, uneven)
    how = ["--backend", "cuda", "--timeout", "60", "--json"]
    if apart:
        done = ranks.run(lambda world, rank: [program, "bench", *words, "--rank", rank, "--world", world, *how], BENCH_LIMIT_S, apart)
        ok, out, errors, seconds = done["codes"] == [0] * ranks.ranks, done["out"], done["errors"], done["seconds"]
    else:
        code, out, seconds = run([str(program), "bench", *words, "--processes", *how], BENCH_LIMIT_S)
        ok, errors = code == 0, ""
    result = {"ok": ok, "seconds": round(seconds, 2), "command": " ".join(["monomoe bench", *words, *(["--rank R", "--world W"] if apart else ["--processes"])]),
              "one_gpu_visible_to_each": apart}
    return result | ({"rows": json.loads(out)["rows"]} if ok else tail_if_failed(ok, out + errors))


def both(steps: dict[str, dict]) -> dict:
    return {"ok": all(step["ok"] for step in steps.values())} | steps


def python_ranks(build: Path, ranks: int) -> dict:
    variables = {"PYTHONPATH": f"{build / 'python'}:{os.environ.get('PYTHONPATH', '')}"} if (build / "python" / "monomoe").is_dir() else {}
    code, output, _ = run([sys.executable, "-c", "import torch, monomoe"], 120, **variables)
    if code != 0:
        return {"ok": True, "skipped": f"{sys.executable} has no torch or no monomoe: {output.strip().splitlines()[-1] if output.strip() else code}"}
    code, output, seconds = run([sys.executable, str(ROOT / "tests" / "python" / "gpu_world_check.py"), "--ranks", str(ranks)], 400, **variables)
    found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {"ok": code == 0, "exit": code, "seconds": round(seconds, 2), "ranks": found} | tail_if_failed(code == 0, output)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=0, help="processes; as many as Hopper GPUs, at most 8, if not given")
    parser.add_argument("--steps", default="", help="only these, a,b,..")
    parser.add_argument("--shared-gpu", action="store_true", help="try the steps with several ranks on one GPU; times then mean nothing")
    arguments = parser.parse_args()
    programs = {"monomoe": find(arguments.build, "monomoe")}
    code, output, _ = run([str(programs["monomoe"]), "doctor", "--json"], 60)
    cuda = json.loads(output)["backends"]["cuda"] if code == 0 else {"available": False, "why_not": output, "devices": []}
    uuids = [device["uuid"] for device in cuda["devices"] if device["compute_capability"] == "9.0"]
    if not cuda["available"] or (len(uuids) < 2 and not arguments.shared_gpu):
        print(f"multi_gpu_check: SKIPPED, wanted two Hopper GPUs of one machine, found {len(uuids)}{': ' + cuda['why_not'] if 'why_not' in cuda else ''}")
        return 4
    programs |= {name: find(arguments.build, name) for name in ("peer_rows", "world_faults")}
    number = arguments.ranks or max(2, min(len(uuids), 8))
    ranks = Ranks(number, uuids)
    steps = {
        "examples": lambda: examples(programs["monomoe"], number),
        "isolated": lambda: isolated(programs["monomoe"], ranks),
        "peer_rows": lambda: both({"file": peer_rows(programs["peer_rows"], ranks, "file", True), "ipc": peer_rows(programs["peer_rows"], ranks, "ipc", True),
                                   "all_visible": peer_rows(programs["peer_rows"], ranks, "file", False)}),
        "faults": lambda: faults(programs["world_faults"], ranks),
        "bench": lambda: both({"even": bench(programs["monomoe"], ranks, False, True), "uneven": bench(programs["monomoe"], ranks, True, False)}),
        "python": lambda: python_ranks(arguments.build, number),
        "contract": lambda: contract(programs["monomoe"]),
    }
    if arguments.steps:
        steps = {name: steps[name] for name in arguments.steps.split(",")}
    return write_report(steps, arguments.output, cuda["driver"]["version"], ranks=number)


if __name__ == "__main__":
    sys.exit(main())
