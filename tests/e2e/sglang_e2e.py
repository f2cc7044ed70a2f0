"""SGLang with the plugin on 8 Hopper GPUs, end to end: the server of docs/sglang.md, GSM8K through sgl-eval as a gate, and bench_serving beside
other backends.

    python tests/e2e/sglang_e2e.py MODEL [--backends monomoe,none] [--out DIR] [--gate 0.975]

MODEL: a checkpoint's folder or name, as of nvidia/DeepSeek-V4-Flash-NVFP4. Needs sglang 0.5.23, monomoe, sgl-eval and 8 Hopper GPUs in one host; without
them it says what is missing and exits 77. Exits 1 if the gate or a server fails. DIR gets each server's log, sgl-eval's files, bench_serving's lines
and summary.json, summary.md.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pathlib
import shlex
import shutil
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

PORT = 30000
SKIPPED = 77
LOADED_WITHIN_S, STOPPED_WITHIN_S = 3600, 120
SERVER = ["--tp-size", "8", "--attn-dp-size", "8", "--enable-dp-lm-head", "--chunked-prefill-size", "32768", "--mem-fraction-static", "0.75",
          "--max-running-requests", "256", "--load-balance-method", "round_robin"]
# What is put behind SERVER, and the environment. sglang-megamoe and deepep take FP8 checkpoints only.
BACKENDS = {
    "monomoe": (["--moe-a2a-backend", "megamoe"], {}),
    "sglang-megamoe": (["--moe-a2a-backend", "megamoe"], {"SGLANG_PLUGINS": "none"}),
    "deepep": (["--moe-a2a-backend", "deepep", "--moe-runner-backend", "deep_gemm"], {}),
    "none": ([], {}),
}
HOOKED = "serves --moe-a2a-backend megamoe: its hooks are in place"
GSM8K = ["run", "gsm8k", "--num-examples", "200", "--num-threads", "128", "--n-repeats", "3", "--no-thinking"]
# input tokens, output tokens, requests at once; all requests of one length. One output token measures the prefill alone.
LOADS = [(256, 512, 8), (256, 512, 32), (256, 512, 128), (256, 512, 256), (1024, 1, 8), (8192, 1, 8), (1024, 256, 64), (4096, 128, 64)]
REPEATS = 3
KEPT = ["request_throughput", "output_throughput", "total_throughput", "median_ttft_ms", "median_tpot_ms", "median_itl_ms", "p99_itl_ms"]


def launch_line(model: str, backend: str) -> list[str]:
    return ["python", "-m", "sglang.launch_server", "--model-path", model, *SERVER, *BACKENDS[backend][0], "--port", str(PORT)]


def missing() -> list[str]:
    """What this machine lacks, in words."""
    found = []
    if importlib.util.find_spec("torch") is None:
        found.append("PyTorch")
    else:
        import torch
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()) if torch.cuda.get_device_capability(i) == (9, 0)]
        if len(names) < 8:
            found.append(f"8 Hopper GPUs (found {len(names)})")
    found += [name for name in ("sglang", "monomoe") if importlib.util.find_spec(name) is None]
    return found + (["sgl-eval (pip install sgl-eval==0.1.3, in an environment of its own)"] if shutil.which("sgl-eval") is None else [])


class Server:
    """A server that runs while its block does. Its log tells why if it does not start."""

    def __init__(self, model: str, backend: str, log: pathlib.Path):
        self.log, self.backend = log, backend
        self._command, self._environment = [sys.executable, *launch_line(model, backend)[1:]], os.environ | BACKENDS[backend][1]

    def __enter__(self) -> "Server":
        self._file = open(self.log, "w")
        self._process = subprocess.Popen(self._command, stdout=self._file, stderr=subprocess.STDOUT, env=self._environment, start_new_session=True)
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait(self) -> None:
        for _ in range(LOADED_WITHIN_S):
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.backend}: the server ended with {self._process.returncode}; the end of {self.log}:\n{self._tail()}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health_generate", timeout=60):
                    break
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(1)
        else:
            raise RuntimeError(f"{self.backend}: no answer after {LOADED_WITHIN_S} s; the end of {self.log}:\n{self._tail()}")
        if (HOOKED in self.log.read_text(errors="replace")) != (self.backend == "monomoe"):
            raise RuntimeError(f"{self.backend}: '{HOOKED}' is {'not ' if self.backend == 'monomoe' else ''}in {self.log}")

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])

    def __exit__(self, *error: object) -> None:
        import signal
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, number)
                self._process.wait(STOPPED_WITHIN_S)
                break
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        self._file.close()


def gsm8k(out: pathlib.Path) -> float:
    """The mean score of the repeats, 0..1."""
    subprocess.run(["sgl-eval", *GSM8K, "--base-url", f"http://127.0.0.1:{PORT}/v1", "--out-dir", out], check=True)
    (metrics,) = out.glob("sgl_eval_gsm8k_*/metrics.json")
    aggregate = json.loads(metrics.read_text())["aggregate"]
    if aggregate.get("error_rate"):
        raise RuntimeError(f"{aggregate['error_rate']:.1%} of the requests failed; {metrics}")
    return float(aggregate["score"])


def bench(model: str, backend: str, load: tuple[int, int, int], out: pathlib.Path) -> dict[str, object]:
    """One row: medians over the repeats."""
    prompt, answer, clients = load
    lines = out / f"{backend}-{prompt}-{answer}-{clients}.jsonl"
    for _ in range(REPEATS):
        subprocess.run([sys.executable, "-m", "sglang.bench_serving", "--backend", "sglang", "--port", str(PORT), "--model", model,
                        "--dataset-name", "random-ids", "--tokenize-prompt", "--random-input-len", str(prompt), "--random-output-len", str(answer), "--random-range-ratio", "1",
                        "--num-prompts", str(4 * clients), "--max-concurrency", str(clients), "--warmup-requests", str(clients), "--seed", "20260811",
                        "--flush-cache", "--disable-tqdm", "--output-file", lines], check=True)
    runs = [json.loads(line) for line in lines.read_text().splitlines()]
    if any(run["completed"] != 4 * clients for run in runs):
        raise RuntimeError(f"{lines}: {[run['completed'] for run in runs]} requests were completed of {4 * clients}")
    return {"backend": backend, "input": prompt, "output": answer, "clients": clients} | {key: statistics.median(run[key] for run in runs) for key in KEPT}


def table(rows: list[dict[str, object]], scores: dict[str, float]) -> str:
    heads = list(rows[0])
    text = [f"GSM8K: {', '.join(f'{name} {score:.3f}' for name, score in scores.items())}", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    return "\n".join(text + [f"| {' | '.join(f'{value:.2f}' if isinstance(value, float) else str(value) for value in row.values())} |" for row in rows]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model")
    parser.add_argument("--backends", default="monomoe,none", help=f"some of {', '.join(BACKENDS)}, the first is held against the gate")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("sglang-e2e"))
    parser.add_argument("--gate", type=float, default=0.975, help="least mean score of GSM8K")
    parser.add_argument("--print-command", action="store_true", help="print the servers' command lines and exit")
    options = parser.parse_args()
    backends = options.backends.split(",")
    if unknown := [name for name in backends if name not in BACKENDS]:
        parser.error(f"--backends has {', '.join(unknown)}, wanted some of {', '.join(BACKENDS)}")
    if options.print_command:
        print("\n".join(shlex.join(launch_line(options.model, backend)) for backend in backends))
        return 0
    if lacking := missing():
        print(f"SKIPPED: this test needs {'; '.join(lacking)}", file=sys.stderr)
        return SKIPPED
    options.out.mkdir(parents=True, exist_ok=False)
    rows: list[dict[str, object]] = []
    scores: dict[str, float] = {}
    for backend in backends:
        with Server(options.model, backend, options.out / f"{backend}.log"):
            scores[backend] = gsm8k(options.out / backend)
            rows += [bench(options.model, backend, load, options.out) for load in LOADS]
        (options.out / "summary.json").write_text(json.dumps({"scores": scores, "rows": rows}, indent=1))
        (options.out / "summary.md").write_text(table(rows, scores))
    print(table(rows, scores))
    if scores[backends[0]] < options.gate:
        print(f"FAILED: {backends[0]} scores {scores[backends[0]]:.4f} on GSM8K, wanted {options.gate} or more", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
