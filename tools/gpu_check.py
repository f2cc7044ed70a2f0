"""Runs the programs of a build that need a GPU and writes what they found as one JSON; tools/gpu_check.sh builds them first.

Exit codes: 0 everything passed, 1 something failed, 4 no usable GPU here.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CASES = sorted((ROOT / "tests" / "cases").glob("*.txt"))
MEMCHECK_TESTS = "*Graphs.OneGraphForEachOfThreeRanks/*:*Faults.TooMany*:*Faults.Pointers*"
LAUNCHES = ("one", "split", "unfused")
GTEST = re.compile(r"\[\s+(OK|FAILED|SKIPPED)\s+\] ([\w/.]+) \((\d+) ms\)")
CASE = re.compile(r"^(ok|FAILED) launch=(\w+) (.*) \((\d+) differ, ([\d.]+) us\)$", re.MULTILINE)


def run(command: list[str], limit_s: int, **variables: str) -> tuple[int, str, float]:
    """Exit status (124: out of time, 127: no such program), output, seconds."""
    begin = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, env=os.environ | variables, check=False)
        return done.returncode, done.stdout + done.stderr, time.monotonic() - begin
    except FileNotFoundError as absent:
        return 127, str(absent), 0.0
    except subprocess.TimeoutExpired as late:
        output = late.stdout or b""
        return 124, output.decode(errors="replace") if isinstance(output, bytes) else output, time.monotonic() - begin


def tail_if_failed(ok: bool, output: str) -> dict:
    # Sources by their place in the project, not in the folder it was built in.
    return {} if ok else {"output_tail": re.sub(r"/[\w./-]*/((?:tests|src|bench)/)", r"\1", output[-4000:])}


def googletest(program: Path, limit_s: int, arguments: list[str] | None = None, **variables: str) -> dict:
    code, output, seconds = run([str(program), "--gtest_color=no", *(arguments or [])], limit_s, **variables)
    tests = {name: {"result": result.lower(), "ms": int(ms)} for result, name, ms in GTEST.findall(output)}
    ok = code == 0 and bool(tests) and all(test["result"] == "ok" for test in tests.values())
    return {"ok": ok, "exit": code, "seconds": round(seconds, 2), "tests": tests} | tail_if_failed(ok, output)


def contract(program: Path, backend: str) -> dict:
    # Packed experts of this backend lie on the GPU, where that suite does not reach: the Python check moves and compares them.
    return googletest(program, 300, ["--gtest_filter=-PackedExperts.*"], MONOMOE_CONTRACT_BACKEND=backend)


def python_check(build: Path) -> dict:
    package = build / "python"
    if not (package / "monomoe").is_dir() or run([sys.executable, "-c", "import torch"], 100)[0] != 0:
        return {"ok": True, "skipped": "needs torch and the package in the build (python/monomoe)"}
    path = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")]))
    code, output, seconds = run([sys.executable, str(ROOT / "tests" / "python" / "gpu_check.py")], 300, PYTHONPATH=path)
    figures = next((json.loads(line) for line in reversed(output.splitlines()) if line.startswith("{")), {})
    ok = code == 0 and figures.get("passed", 0) > 0
    return {"ok": ok, "exit": code, "seconds": round(seconds, 2)} | figures | tail_if_failed(ok, output)


def kernel_check(program: Path) -> dict:
    code, output, seconds = run([str(program), *map(str, CASES)], 500)
    cases = [{"case": line, "launch": launch, "differ": int(differ), "best_us": float(us)} for _, launch, line, differ, us in CASE.findall(output)]
    ok = code == 0 and bool(cases)
    return {"ok": ok, "exit": code, "seconds": round(seconds, 2), "cases": cases} | tail_if_failed(ok, output)


def verify_cases(program: Path) -> dict:
    """The stages of every case, by several processes: the scalar oracle, not the GPU, takes the time."""
    shards = max(1, min(8, (os.cpu_count() or 1) // 2))
    reports = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(shards) as pool:
        for file in CASES:
            cases = [line for line in file.read_text().splitlines() if line.strip() and not line.startswith("#")]
            parts = [Path(folder) / f"{file.stem}-{shard}.txt" for shard in range(min(shards, len(cases)))]
            for shard, part in enumerate(parts):
                part.write_text("\n".join(cases[shard::len(parts)]) + "\n")
            done = list(pool.map(lambda part: run([str(program), "verify", "--cases", str(part), "--backend", "cuda", "--json"], 300), parts))
            code, output = next(((code, output) for code, output, _ in done if code != 0), (0, ""))
            reports[file.name] = {"ok": code == 0, "exit": code, "cases": len(cases), "seconds": round(max(seconds for _, _, seconds in done), 2)}
            reports[file.name] |= tail_if_failed(code == 0, output)
    return {"ok": all(report["ok"] for report in reports.values()), "files": reports}


def verify_examples(program: Path) -> dict:
    """The trained example's layers, each against the CPU backend and float64."""
    reports = {}
    for model in sorted((ROOT / "examples").glob("tiny-moe-*/config.json")):
        for tokens in sorted((ROOT / "examples" / "tiny-moe-capture").glob("layer*.safetensors")):
            layer = tokens.stem.removeprefix("layer")
            command = [str(program), "verify", str(model.parent), "--layer", layer, "--input", str(tokens), "--backend", "cuda", "--ranks", "4", "--json"]
            code, output, seconds = run(command, 120)
            reports[f"{model.parent.name} layer {layer}"] = {"ok": code == 0, "exit": code, "seconds": round(seconds, 2)} | tail_if_failed(code == 0, output)
    return {"ok": bool(reports) and all(report["ok"] for report in reports.values()), "layers": reports}


def memcheck(program: Path) -> dict:
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(tool).exists():
        return {"ok": True, "skipped": "no compute-sanitizer on this machine"}
    command = [tool, "--tool", "memcheck", "--error-exitcode", "9", str(program), f"--gtest_filter={MEMCHECK_TESTS}"]
    code, output, seconds = run(command, 240)
    if "Device not supported" in output:
        return {"ok": True, "skipped": "compute-sanitizer does not support this device here"}
    summary = re.findall(r"ERROR SUMMARY: (\d+) error", output)
    ok = code == 0 and summary == ["0"]
    return {"ok": ok, "exit": code, "errors": summary, "seconds": round(seconds, 2)} | tail_if_failed(ok, output)


# Every launch at one shape, the fused one at all; few tokens where the workspace is small and large; modes, skewed routing, ranks on one GPU.
FLASH = ["--geometry", "flash", "--weights", "nvfp4"]
BENCHES = (
    ["--geometry", "flash", "--weights", "nvfp4,fp8", "--tokens", "1,2,4,8,16,32,64,128,256,512,1024,2048,4096", "--launch", ",".join(LAUNCHES)],
    ["--geometry", "pro,mimo", "--weights", "nvfp4,fp8", "--tokens", "1,4,16,64,128,256,1024,4096"],
    ["--geometry", "flash", "--weights", "mxfp4", "--tokens", "1,16,64,256,1024,4096"],
    [*FLASH, "--tokens", "4", "--capacity", "256"],
    [*FLASH, "--tokens", "4", "--capacity", "8192"],
    [*FLASH, "--tokens", "1,16,64,256,1024,4096", "--mode", "graph,back-to-back"],
    [*FLASH, "--tokens", "64,1024", "--capacity", "4096", "--routing", "zipf:1,hot:0.5"],
    [*FLASH, "--tokens", "8,64,512", "--ranks", "8"],
)


def bench(program: Path) -> dict:
    result: dict = {"ok": True, "rows": []}
    for words in BENCHES:
        code, output, _ = run([str(program), "bench", *words, "--backend", "cuda", "--timeout", "20", "--json"], 300)
        if code == 0:
            result["rows"] += [row | {"command": " ".join(["monomoe bench", *words])} for row in json.loads(output)["rows"]]
        else:
            result |= {"ok": False, "exit": code, "output_tail": output[-4000:]}
    return result


def trace(program: Path) -> dict:
    """Where the launches' time goes, and whether the file is a trace with slices of every rank."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        words = ["--geometry", "flash", "--weights", "nvfp4,fp8", "--tokens", "4,1024", "--launch", "one,split", "--repeats", "5"]
        code, output, _ = run([str(program), "bench", *words, "--backend", "cuda", "--timeout", "20", "--trace", str(file), "--json"], 200)
        if code != 0:
            return {"ok": False, "exit": code} | tail_if_failed(False, output)
        slices = sum(event["ph"] == "X" for event in json.loads(file.read_text())["traceEvents"])
    rows = [{key: row[key] for key in ("format", "tokens", "launch", "median", "trace")} for row in json.loads(output)["rows"]]
    return {"ok": len(rows) == 8 and slices > 8 * 132 and all(row["trace"]["complete"] for row in rows), "slices": slices, "rows": rows}


def machine() -> dict:
    code, output, _ = run(["nvidia-smi", "--query-gpu=name,driver_version,clocks.max.sm,memory.total", "--format=csv,noheader"], 30)
    gpus = [dict(zip(("name", "driver", "max_clock", "memory"), (f.strip() for f in line.split(",")))) for line in output.splitlines()] if code == 0 else []
    return {"gpus": gpus, "host": os.uname().machine, "cores": os.cpu_count()}


def commit() -> dict:
    if given := os.environ.get("MONOMOE_COMMIT"):  # of programs that were built elsewhere
        return {"commit": given, "changed": None}
    code, output, _ = run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], 10)
    if code != 0:
        return {"commit": "unknown", "changed": None}
    _, changed, _ = run(["git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"], 10)
    return {"commit": output.strip(), "changed": bool(changed.strip())}


def find(build: Path, name: str) -> Path:
    """A program of the build: where CMake puts it, or side by side."""
    places = [build / name, build / "tests" / name, build / "tests" / "cuda" / name, build / "bench" / name]
    for place in places:
        if place.is_file():
            return place.resolve()
    sys.exit(f"gpu_check: {name} is in none of {', '.join(map(str, places))}; build it first")


def attempt(step) -> dict:
    """A step that this program itself cannot finish has failed; the others go on."""
    try:
        return step()
    except Exception as error:  # noqa: BLE001
        return {"ok": False, "output_tail": f"{type(error).__name__}: {error}"}


def write_report(steps: dict, output: Path, driver: str, **more: object) -> int:
    """Makes the steps and writes one JSON of them. Returns the exit code."""
    report = commit() | {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "machine": machine(),
                         "driver_cuda": driver, **more, "steps": {}}
    output.parent.mkdir(parents=True, exist_ok=True)
    for name, step in steps.items():
        result = report["steps"][name] = attempt(step)
        print(f"{name}: {'ok' if result['ok'] else 'FAILED'}{', skipped: ' + result['skipped'] if 'skipped' in result else ''}", flush=True)
        # After each step, so that a run that is cut short leaves what it saw; it is ok only when all steps were made and passed.
        report["ok"] = all(step["ok"] for step in report["steps"].values()) and len(report["steps"]) == len(steps)
        output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"written: {output}")
    return 0 if report["ok"] else 1


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    programs = {name: find(arguments.build, name) for name in ("monomoe", "contract", "cuda_calls", "kernel_check")}
    code, output, _ = run([str(programs["monomoe"]), "doctor", "--json"], 60)
    cuda = json.loads(output)["backends"]["cuda"] if code == 0 else {"available": False, "why_not": output}
    if not cuda["available"]:
        print(f"gpu_check: SKIPPED, {cuda['why_not']}")
        return 4
    steps = {
        "contract": lambda: contract(programs["contract"], "cuda"),
        "contract_split": lambda: contract(programs["contract"], "cuda:split"),
        "contract_unfused": lambda: contract(programs["contract"], "cuda:unfused"),
        "calls": lambda: googletest(programs["cuda_calls"], 400),
        "kernel_check": lambda: kernel_check(programs["kernel_check"]),
        "bench": lambda: bench(programs["monomoe"]),
        "trace": lambda: trace(programs["monomoe"]),
        "verify_examples": lambda: verify_examples(programs["monomoe"]),
        "memcheck": lambda: memcheck(programs["cuda_calls"]),
        "verify_cases": lambda: verify_cases(programs["monomoe"]),
        "python": lambda: python_check(arguments.build),
    }
    return write_report(steps, arguments.output, cuda["driver"]["version"])


if __name__ == "__main__":
    sys.exit(main())
