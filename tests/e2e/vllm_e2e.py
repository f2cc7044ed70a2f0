"""DeepSeek-V4 served by vLLM on 8 Hopper GPUs with its experts here: GSM8K, then `vllm bench serve` beside vLLM's own backends.

    python tests/e2e/vllm_e2e.py MODEL [--out results.json] [--backends monomoe auto] [--examples 200] [--serve-arguments ...]

MODEL: a checkpoint with FP8, NVFP4 or MXFP4 experts, a folder or a name. Needs vLLM 0.33.0 with `pip install vllm[bench]`, this package, and 8 Hopper GPUs
of one machine; says SKIPPED and exits 77 elsewhere. Each backend's server is started, asked, measured and stopped in turn. Exits 1 if monomoe answers
fewer than --gate of the questions, if its server does not say that it runs the experts, or if any server or benchmark fails.
"""

import argparse
import concurrent.futures
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

GPUS, PORT, STARTUP_S = 8, 8157, 3600
COMMON = ["--trust-remote-code", "--kv-cache-dtype", "fp8", "--block-size", "256", "--data-parallel-size", str(GPUS), "--enable-expert-parallel",
          "--max-num-batched-tokens", "8192", "--gpu-memory-utilization", "0.85"]
BACKENDS = {"monomoe": ["--additional-config", json.dumps({"moe_backend": "monomoe"})], "auto": [], "marlin": ["--moe-backend", "marlin"],
            "humming": ["--moe-backend", "humming"]}
WORKLOADS = [(256, 512, 64), (1024, 256, 128), (8192, 1, 16)]  # input and output tokens, concurrent requests
ROWS = ["request_throughput", "output_throughput", "median_ttft_ms", "median_tpot_ms", "median_itl_ms"]


def why_not():
    """What this machine lacks, or None."""
    if shutil.which("vllm") is None:
        return "no vllm command; pip install 'vllm[bench]==0.33.0'"
    if shutil.which("nvidia-smi") is None:
        return f"no GPU, wanted {GPUS} Hopper GPUs"
    names = subprocess.run(["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"], capture_output=True, text=True).stdout.splitlines()
    hopper = [name for name in names if name.rstrip().endswith("9.0")]
    if len(hopper) < GPUS:
        return f"{len(hopper)} Hopper GPUs, wanted {GPUS}"
    if not any(point.name == "monomoe" for point in importlib.metadata.entry_points(group="vllm.general_plugins")):
        return "monomoe is not installed as a package, so vLLM does not find its plugin; pip install ."
    return None


class Server:
    """vllm serve in a process group of its own, with its log in a file."""

    def __init__(self, model, name, arguments, folder):
        self.name, self.log = name, folder / f"{name}.log"
        command = ["vllm", "serve", model, "--port", str(PORT), *COMMON, *BACKENDS[name], *arguments]
        print("$", " ".join(command), flush=True)
        self.process = subprocess.Popen(command, stdout=self.log.open("w"), stderr=subprocess.STDOUT, start_new_session=True)

    def __enter__(self):
        deadline = time.monotonic() + STARTUP_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise SystemExit(f"FAILED: {self.name}: the server ended with {self.process.returncode}:\n{self.log.read_text()[-4000:]}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=5):
                    return self
            except (urllib.error.URLError, OSError):
                time.sleep(5)
        raise SystemExit(f"FAILED: {self.name}: the server was not ready after {STARTUP_S} s:\n{self.log.read_text()[-4000:]}")

    def __exit__(self, *_):
        for wanted in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, wanted)
                self.process.wait(60)
                break
            except subprocess.TimeoutExpired:
                continue
            except ProcessLookupError:
                break


def questions(count):
    from datasets import load_dataset
    data = load_dataset("openai/gsm8k", "main", split="test")
    return [(row["question"], row["answer"].rsplit("####", 1)[1].strip().replace(",", "")) for row in data.select(range(min(count, len(data))))]


def ask(model, question):
    body = {"model": model, "temperature": 0.0, "max_tokens": 4096, "messages": [
        {"role": "user", "content": f"{question}\nReason step by step. End with a line 'Answer: N', N the number alone."}]}
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=1800) as answer:
        text = json.load(answer)["choices"][0]["message"]["content"] or ""
    numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text.rsplit("Answer:", 1)[-1])
    return numbers[0].replace(",", "").rstrip(".") if numbers else ""


def right(found, wanted):
    try:
        return abs(float(found) - float(wanted)) < 1e-6
    except ValueError:
        return False


def gsm8k(model, count):
    asked = questions(count)
    with concurrent.futures.ThreadPoolExecutor(128) as pool:
        answers = list(pool.map(lambda pair: ask(model, pair[0]), asked))
    return sum(right(found, wanted) for found, (_, wanted) in zip(answers, asked)) / len(asked)


def bench(model, workload, folder, name):
    """The median of three runs, each field by itself."""
    inputs, outputs, concurrent_requests = workload
    runs = []
    for run in range(3):
        file = f"{name}-{inputs}-{outputs}-{concurrent_requests}-{run}.json"
        subprocess.run(["vllm", "bench", "serve", "--model", model, "--port", str(PORT), "--dataset-name", "random", "--random-input-len", str(inputs),
                        "--random-output-len", str(outputs), "--random-range-ratio", "0", "--ignore-eos", "--seed", str(20261129 + run), "--max-concurrency",
                        str(concurrent_requests), "--num-prompts", str(4 * concurrent_requests), "--save-result", "--result-dir", folder,
                        "--result-filename", file], check=True, stdout=subprocess.DEVNULL)
        runs.append(json.loads((folder / file).read_text()))
        if runs[-1]["completed"] != 4 * concurrent_requests:
            raise SystemExit(f"FAILED: {name}: {runs[-1]['completed']} of {4 * concurrent_requests} requests came back; {folder / file}")
    return {row: sorted(run[row] for run in runs)[1] for row in ROWS}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--out", type=pathlib.Path, help="where the figures go, as JSON")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=["monomoe", "auto", "marlin"])
    parser.add_argument("--examples", type=int, default=200)
    parser.add_argument("--gate", type=float, default=0.95, help="share of GSM8K that monomoe must answer; single runs of 200 questions differ by 0.015")
    parser.add_argument("--serve-arguments", nargs=argparse.REMAINDER, default=[], help="further arguments of vllm serve, for all backends")
    options = parser.parse_args()
    reason = why_not()
    if reason:
        print(f"SKIPPED: {reason}")
        return 77
    folder, found, failed = pathlib.Path(tempfile.mkdtemp(prefix="vllm_e2e-")), {}, False
    for name in options.backends:
        with Server(options.model, name, options.serve_arguments, folder) as server:
            said = re.search(r"monomoe \S+ runs the experts of .*", server.log.read_text())
            if (name == "monomoe") != bool(said):
                raise SystemExit(f"FAILED: {name}: the server's log {'does not say' if name == 'monomoe' else 'says'} that monomoe runs the experts; {server.log}")
            result = found[name] = {"line": said and said.group(0), "gsm8k": gsm8k(options.model, options.examples)}
            result["bench"] = {" ".join(map(str, workload)): bench(options.model, workload, folder, name) for workload in WORKLOADS}
        print(f"{name}: GSM8K {result['gsm8k']:.3f} of {options.examples}", flush=True)
        for workload, row in result["bench"].items():
            print(f"  {workload}: " + ", ".join(f"{key} {value:.2f}" for key, value in row.items()), flush=True)
        failed |= name == "monomoe" and result["gsm8k"] < options.gate
    if options.out:
        partial = options.out.with_suffix(".partial")
        partial.write_text(json.dumps({"model": options.model, "vllm": importlib.metadata.version("vllm"), "backends": found}, indent=1))
        partial.replace(options.out)
    if failed:
        print(f"FAILED: monomoe answers {found['monomoe']['gsm8k']:.3f} of GSM8K, wanted {options.gate}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
