#!/usr/bin/env python3
"""Draws the rows of `monomoe bench --json`: time against tokens on logarithmic axes, and dashed below it the bound (the roofline).

    build/monomoe bench --geometry flash --weights nvfp4,fp8 --tokens 1,4,16,64,256,1024 --json > bench.json
    tools/bench_plot.py bench.json bench.svg
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 460, 70, 190, 40, 50
COLOURS = ("#1f5fa8", "#c8501e", "#2b8a3e", "#7b3fa0", "#a8841f", "#1f8fa8", "#8a2b4c", "#4d4d4d")
# What tells rows apart besides their tokens; a label names those that differ.
KEYS = ("hidden", "intermediate", "format", "ranks", "capacity", "launch", "mode", "routing", "routing_value")


def series_of(rows: list[dict]) -> dict[str, list[dict]]:
    """Rows by label, in the order they came, sorted by tokens."""
    differing = [key for key in KEYS if len({row[key] for row in rows}) > 1]
    series: dict[str, list[dict]] = {}
    for row in rows:
        series.setdefault(" ".join(f"{row[key]:g}" if isinstance(row[key], float) else str(row[key]) for key in differing) or row["format"], []).append(row)
    return {label: sorted(found, key=lambda row: row["tokens"]) for label, found in series.items()}


class Axis:
    """A logarithmic axis from the largest power of its base below the values to the smallest above."""

    def __init__(self, values: list[float], base: int, begin: float, end: float):
        self.low = math.floor(math.log(min(values), base) + 1e-9)
        self.high = max(math.ceil(math.log(max(values), base) - 1e-9), self.low + 1)
        self.base, self.begin, self.end = base, begin, end

    def at(self, value: float) -> float:
        return self.begin + (math.log(value, self.base) - self.low) / (self.high - self.low) * (self.end - self.begin)

    def ticks(self, most: int) -> list[float]:
        step = -(-(self.high - self.low) // most)
        return [float(self.base) ** power for power in range(self.low, self.high + 1, step)]


def line(points: list[tuple[float, float]], colour: str, dashed: bool) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    style = ' stroke-dasharray="6 4" stroke-width="1.2"' if dashed else ' stroke-width="2"'
    dots = "" if dashed else "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points)
    return f'<polyline fill="none" stroke="{colour}"{style} points="{path}"/>{dots}'


def text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def plot(rows: list[dict], title: str) -> str:
    """An SVG. Rows without a bound have none drawn."""
    tokens = Axis([row["tokens"] for row in rows], 2, LEFT, WIDTH - RIGHT)
    times = [value * 1e6 for row in rows for value in (row["median"], row["bound"]) if value]
    time = Axis(times, 10, HEIGHT - BOTTOM, TOP)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', text((LEFT + WIDTH - RIGHT) / 2, 22, title)]
    for value in tokens.ticks(16):
        x = tokens.at(value)
        parts += [f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#dddddd"/>', text(x, HEIGHT - BOTTOM + 18, f"{value:g}")]
    for power in range(time.low, time.high):
        for digit in (1, 2, 5):
            y = time.at(digit * 10.0**power)
            parts += [f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#dddddd"/>', text(LEFT - 6, y + 4, f"{digit * 10.0**power:g}", "end")]
    parts += [text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, "tokens of each rank"), text(LEFT - 6, TOP - 8, "us", "end")]
    for index, (label, found) in enumerate(series_of(rows).items()):
        colour, y = COLOURS[index % len(COLOURS)], TOP + 14 + 18 * index
        parts.append(line([(tokens.at(row["tokens"]), time.at(row["median"] * 1e6)) for row in found], colour, False))
        if bounds := [(tokens.at(row["tokens"]), time.at(row["bound"] * 1e6)) for row in found if row["bound"]]:
            parts.append(line(bounds, colour, True))
        parts += [f'<line x1="{WIDTH - RIGHT + 12}" y1="{y - 4}" x2="{WIDTH - RIGHT + 32}" y2="{y - 4}" stroke="{colour}" stroke-width="2"/>',
                  text(WIDTH - RIGHT + 38, y, label, "start")]
    parts.append(text(WIDTH - RIGHT + 12, HEIGHT - BOTTOM, "dashed: bound", "start"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    rows = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")).get("rows", [])
    if not rows:
        print(f"bench_plot: {sys.argv[1]} holds no rows; wanted the output of monomoe bench --json", file=sys.stderr)
        return 1
    first = rows[0]
    Path(sys.argv[2]).write_text(plot(rows, f"{first['hidden']}/{first['intermediate']}, {first['experts']} experts, top-{first['topk']}, {first['device']}"),
                                 encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
