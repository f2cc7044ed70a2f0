#!/usr/bin/env python3
"""Writes docs/benchmarks.md from a result of tools/gpu_check.sh: every figure with its device, commit and command.

    tools/benchmarks.py results/h200.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHAPES = {
    "flash": "4096 / 2048, 32 local experts, top-6",
    "pro": "7168 / 3072, 48 local experts, top-6",
    "mimo": "6144 / 2048, 48 local experts, top-8",
}


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---:|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def figures(rows: list[dict], shape: str, launch: str) -> dict[tuple[int, str], float]:
    """Median us by (tokens, format); of the runs with the most tokens, so that few tokens are measured in a large workspace."""
    most = max((row["capacity"] for row in rows if row["shape"] == shape and row["launch"] == launch and row["capacity"] <= 4096), default=0)
    return {(row["tokens"], row["format"]): row["median_us"] for row in rows
            if row["shape"] == shape and row["launch"] == launch and row["capacity"] == most}


def shape_section(report: dict, shape: str) -> str:
    bench = report["steps"]["bench"]
    found = figures(bench["rows"], shape, "one")
    if not found:
        return ""
    reads = {read["format"]: read for read in bench["reads"] if read["shape"] == shape}
    formats = sorted({kind for _, kind in found}, reverse=True)
    rows = [[str(tokens)] + [cell for kind in formats for cell in cells(found.get((tokens, kind)), reads[kind]["us"])]
            for tokens in sorted({tokens for tokens, _ in found})]
    head = ["tokens"] + [word for kind in formats for word in (f"{kind} us", "of a read")]
    sizes = "; ".join(f"{kind}: {reads[kind]['megabytes']} MB in {reads[kind]['us']:.0f} us" for kind in formats)
    return f"## {SHAPES[shape]}\n\nA plain read of all weights of the rank, {sizes}.\n\n" + table(head, rows) + "\n"


def cells(us: float | None, read_us: float) -> list[str]:
    return ["", ""] if us is None else [f"{us:.0f}", f"{us / read_us:.2f}"]


def launch_section(report: dict) -> str:
    rows = report["steps"]["bench"]["rows"]
    found = {launch: figures(rows, "flash", launch) for launch in ("one", "split", "unfused")}
    if not all(found.values()):
        return ""
    lines = [[str(tokens)] + [f"{found[launch][tokens, kind]:.0f}" for kind in ("nvfp4", "fp8") for launch in found]
             for tokens in sorted({tokens for tokens, _ in found["one"]})]
    head = ["tokens"] + [f"{kind} {launch}" for kind in ("nvfp4", "fp8") for launch in found]
    return "## Launches\n\n" + SHAPES["flash"] + ", us: the fused kernel as one launch and as two, and the simple kernels one a step.\n\n" + table(head, lines) + "\n"


def capacity_section(report: dict) -> str:
    rows = [row for row in report["steps"]["bench"]["rows"] if row["tokens"] == 4 and row["format"] == "nvfp4" and row["capacity"] in (256, 8192)]
    if len(rows) != 2:
        return ""
    return ("## Capacity\n\nFour tokens, NVFP4: " + ", ".join(f"{row['median_us']:.1f} us in a workspace for {row['capacity']} tokens" for row in rows) + ".\n")


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    path = Path(sys.argv[1])
    report = json.loads(path.read_text(encoding="utf-8"))
    gpu = report["machine"]["gpus"][0]
    text = (f"# Benchmarks\n\nWritten by `tools/benchmarks.py {path.relative_to(ROOT) if path.is_absolute() else path}`. {gpu['name']}, driver {gpu['driver']}, "
            f"commit {report['commit'][:7]}, {report['date'][:10]}.\n\n"
            "The work of one rank of an 8-rank group on one GPU: all of its experts are local, tokens are routed uniformly among them, no other rank takes part. L2 cold (emptied by reading), median\n"
            "of 12 launches, whole layer. *Of a read*: the time divided by that of a plain read of all of the rank's weights in the same process; at few\n"
            "tokens not all experts are touched. Command: `gpu_layer flash`, `gpu_layer pro mimo`, and `gpu_layer flash one split unfused` for the launches\n"
            "(`ninja -C build gpu_layer`, then `build/bench/gpu_layer`).\n\n")
    text += "".join(shape_section(report, shape) for shape in SHAPES) + launch_section(report) + capacity_section(report)
    (ROOT / "docs" / "benchmarks.md").write_text(text.rstrip() + "\n", encoding="utf-8")
    print("written: docs/benchmarks.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
