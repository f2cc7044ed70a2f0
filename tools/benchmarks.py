#!/usr/bin/env python3
"""Writes docs/benchmarks.md and its plots from a result of tools/gpu_check.sh: every figure with its device, commit and command.

    tools/benchmarks.py results/h200.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench_plot import plot

ROOT = Path(__file__).resolve().parent.parent
SHAPES = {"flash": (4096, 2048), "pro": (7168, 3072), "mimo": (6144, 2048)}
FORMATS = ("nvfp4", "mxfp4", "fp8")
LAUNCHES = ("one", "split", "unfused")
# The rows of a table unless it is about one of these.
USUAL = {"ranks": 1, "launch": "one", "mode": "cold", "routing": "uniform"}


def pick(rows: list[dict], **wanted: object) -> list[dict]:
    """Rows that have these values, and the usual ones of what is not named."""
    return [row for row in rows if all(row[key] == value for key, value in (USUAL | wanted).items() if value is not None)]


def of_shape(rows: list[dict], shape: str) -> list[dict]:
    return [row for row in rows if (row["hidden"], row["intermediate"]) == SHAPES[shape]]


def largest_capacity(rows: list[dict]) -> list[dict]:
    """Few tokens are measured in a large workspace too; those in a still larger one stand elsewhere."""
    most = max((row["capacity"] for row in rows if row["capacity"] <= 4096), default=0)
    return [row for row in rows if row["capacity"] == most]


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---:|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def us(row: dict | None) -> str:
    return "" if row is None else f"{row['median'] * 1e6:.0f}"


def ratio(row: dict | None) -> str:
    return "" if row is None or row["ratio"] is None else f"{row['ratio']:.2f}"


def commands(rows: list[dict]) -> str:
    return "Command: " + ", ".join(f"`{command}`" for command in dict.fromkeys(row["command"] for row in rows)) + ".\n\n"


def by_tokens(rows: list[dict], columns: dict[str, dict[str, object]], with_ratio: bool) -> str:
    """A table of us, and of the ratio to the bound, for each column: what its rows have."""
    head = ["tokens"] + [word for name in columns for word in ([f"{name} us", "ratio"] if with_ratio else [f"{name} us"])]
    lines = []
    for tokens in sorted({row["tokens"] for row in rows}):
        line = [str(tokens)]
        for wanted in columns.values():
            row = next((row for row in rows if row["tokens"] == tokens and all(row[key] == value for key, value in wanted.items())), None)
            line += [us(row), ratio(row)] if with_ratio else [us(row)]
        lines.append(line)
    return table(head, lines)


def shape_section(rows: list[dict], shape: str) -> tuple[str, dict[str, str]]:
    found = largest_capacity(pick(of_shape(rows, shape)))
    if not found:
        return "", {}
    first = found[0]
    title = f"{first['hidden']} / {first['intermediate']}, {first['experts']} local experts, top-{first['topk']}"
    formats = [kind for kind in FORMATS if any(row["format"] == kind for row in found)]
    reads = []
    for kind in formats:
        full = max((row for row in found if row["format"] == kind), key=lambda row: row["touched_experts"])
        reads.append(f"{kind} {full['read']['bytes'] / 1e6:.0f} MB in {full['read']['median'] * 1e6:.0f} us")
    gemm = next((row["gemm"] for row in found if row["gemm"]["flops_per_second"]), None)
    rate = f"FP8 product of 8192^3: {gemm['flops_per_second'] / 1e12:.0f} TFLOPS" if gemm else "no cuBLASLt there, so no ratio"
    name = f"benchmarks-{shape}.svg"
    text = (f"## {title}\n\nA plain read of {first['experts']} experts: {'; '.join(reads)}. {rate}.\n\n![time against tokens, and the bound]({name})\n\n"
            + by_tokens(found, {kind: {"format": kind} for kind in formats}, True) + "\n" + commands(found))
    return text, {name: plot(found, f"{title}, {first['device']}")}


def variant_section(rows: list[dict], head: str, words: str, key: str, values: dict[str, object]) -> str:
    """Rows of the Flash shape that differ in one key."""
    found = [row for row in largest_capacity(pick(of_shape(rows, "flash"), **{key: None})) if row[key] in values.values()]
    formats = [kind for kind in FORMATS if {row[key] for row in found if row["format"] == kind} == set(values.values())]
    tokens = {row["tokens"] for row in found if row[key] != USUAL[key]}
    shown = [row for row in found if row["tokens"] in tokens]
    if not formats or not shown:
        return ""
    columns = {f"{kind} {name}": {"format": kind, key: value} for kind in formats for name, value in values.items()}
    return f"## {head}\n\n{words}\n\n" + by_tokens(shown, columns, key == "routing") + "\n" + commands(shown)


def steps_section(rows: list[dict]) -> str:
    found = sorted((row for row in largest_capacity(pick(of_shape(rows, "flash"), launch="unfused")) if row["format"] == "nvfp4" and row["steps"]),
                   key=lambda row: row["tokens"])
    if not found:
        return ""
    head = ["tokens", *(step["step"] for step in found[0]["steps"])]
    lines = [[str(row["tokens"]), *(f"{step['median'] * 1e6:.1f}" for step in row["steps"])] for row in found]
    return "### The unfused launch, kernel by kernel\n\nNVFP4, us.\n\n" + table(head, lines) + "\n"


def ranks_section(rows: list[dict]) -> str:
    found = [row for row in pick(of_shape(rows, "flash"), ranks=None) if row["ranks"] > 1]
    if not found:
        return ""
    lines = [[str(row["ranks"]), row["format"], str(row["tokens"]), us(row), ratio(row)] for row in found]
    return ("## Ranks that share the GPU\n\nEach with its own experts and its share of the multiprocessors: what flags, dispatch and combine cost, no NVLink.\n\n"
            + table(["ranks", "format", "tokens of each", "us", "ratio"], lines) + "\n" + commands(found))


def capacity_section(rows: list[dict]) -> str:
    found = [row for row in pick(of_shape(rows, "flash")) if row["tokens"] == 4 and row["format"] == "nvfp4" and row["capacity"] in (256, 8192)]
    if len(found) != 2:
        return ""
    return ("## Capacity\n\nFour tokens, NVFP4: " + ", ".join(f"{row['median'] * 1e6:.1f} us in a workspace for {row['capacity']} tokens" for row in found)
            + ". " + commands(found))


def page(report: dict, source: str) -> tuple[str, dict[str, str]]:
    """The page, and its plots by file name."""
    gpu, rows = report["machine"]["gpus"][0], report["steps"]["bench"]["rows"]
    text = (f"# Benchmarks\n\nWritten by `tools/benchmarks.py {source}`. {gpu['name']}, driver {gpu['driver']}, commit {report['commit'][:7]}, {report['date'][:10]}.\n\n"
            "The work of one rank of an 8-rank group on one GPU: all of its experts are local, tokens are routed uniformly among them unless said otherwise, no\n"
            "other rank takes part. Whole layer, L2 emptied before each call, median us. *Ratio*: the time divided by the larger of a plain read of the touched\n"
            "weights and the products at cuBLASLt's rate, both measured in the same process ([command-line.md](command-line.md#bench)); 1 is the roofline.\n\n")
    plots: dict[str, str] = {}
    for shape in SHAPES:
        section, drawn = shape_section(rows, shape)
        text += section
        plots |= drawn
    text += variant_section(rows, "Launches", "The fused kernel as one launch and as two, and the simple kernels one a step.", "launch", {name: name for name in LAUNCHES})
    text += steps_section(rows)
    text += variant_section(rows, "From a graph, and back to back", "Replayed from a CUDA graph with the L2 emptied before; and ten calls in a row.", "mode",
                            {name: name for name in ("cold", "graph", "back-to-back")})
    text += variant_section(rows, "Skewed routing", "Zipf with exponent 1, and one expert that half of the tokens have.", "routing",
                            {name: name for name in ("uniform", "zipf", "hot")})
    text += ranks_section(rows) + capacity_section(rows)
    return text.rstrip() + "\n", plots


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    path = Path(sys.argv[1])
    text, plots = page(json.loads(path.read_text(encoding="utf-8")), str(path.relative_to(ROOT) if path.is_absolute() else path))
    for name, content in {"benchmarks.md": text, **plots}.items():
        (ROOT / "docs" / name).write_text(content, encoding="utf-8")
        print(f"written: docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
