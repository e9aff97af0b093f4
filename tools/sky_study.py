#!/usr/bin/env python3
"""Regenerates results/sky_study: runs its sweep, or continues it, and writes rows, table and figure.

    tools/sky_study.py [--isobar PROGRAM] [--database FILE.db]
"""

import argparse
import csv
import pathlib
import subprocess
import tempfile

STUDY = pathlib.Path(__file__).resolve().parents[1] / "results/sky_study"
ALLOCATORS = {"sky-dynamic": "#c44e52", "sky-dynamic-fixed": "#dd8452", "sky-optimal": "#8172b3", "chain-dp": "#4c72b0"}
MEASURES = {"sequential": "sum over the workers", "bottleneck": "maximum over the workers"}
SIZES = [(nodes, encoders) for nodes in ("4", "16", "32", "64") for encoders in ("10", "24", "80", "160")]
SPREADS = ["2", "4", "7", "15", "76"]


def cuts(rows):
    """(objective, nodes, encoders, spread, allocator) -> relative reduction of the objective against `even`, where both have
    a plan."""
    values = {tuple(row[key] for key in ("objective", "platform_nodes", "workload_encoders", "platform_speed_spread",
                                         "allocator")): float(row["objective_s"])
              for row in rows if row["outcome"] in ("optimal", "feasible")}
    return {key: 1 - value / values[(*key[:4], "even")] for key, value in values.items()
            if key[4] != "even" and (*key[:4], "even") in values}


def table(cut):
    lines = ["| objective | nodes | encoders | allocator | " + " | ".join(f"spread {spread}" for spread in SPREADS) + " |",
             "|---|---|---|---|" + "---|" * len(SPREADS)]
    for objective in MEASURES:
        for size in SIZES:
            for allocator in ALLOCATORS:
                found = [cut.get((objective, *size, spread, allocator)) for spread in SPREADS]
                if any(value is not None for value in found):
                    cells = ("–" if value is None else f"{100 * value:.1f} %" for value in found)
                    lines.append(f"| {objective} | {size[0]} | {size[1]} | {allocator} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def figure(cut):
    """An SVG of the reduction by speed spread: 64 nodes, 24 encoders and more, a panel per objective and model."""
    panels = [(objective, encoders) for objective in MEASURES for encoders in ("24", "80", "160")]
    width, height, left, top = 220, 170, 50, 30
    low, high = -0.5, 1.0
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{3 * (width + left) + 20}" '
             f'height="{2 * (height + 60) + 40}" font-family="sans-serif" font-size="11">',
             '<rect width="100%" height="100%" fill="white"/>']
    for i, (objective, encoders) in enumerate(panels):
        x0, y0 = left + i % 3 * (width + left), top + i // 3 * (height + 60)

        def place(index, value, x0=x0, y0=y0):
            inside = min(max(value, low), high)
            return x0 + 15 + index * (width - 30) / (len(SPREADS) - 1), y0 + (high - inside) / (high - low) * height

        parts.append(f'<text x="{x0}" y="{y0 - 8}">{MEASURES[objective]}, {encoders} encoders</text>')
        parts.append(f'<rect x="{x0}" y="{y0}" width="{width}" height="{height}" fill="none" stroke="#888"/>')
        for percent in (-50, 0, 50, 100):
            y = place(0, percent / 100)[1]
            parts.append(f'<line x1="{x0}" x2="{x0 + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
                         f'<text x="{x0 - 4}" y="{y + 4:.1f}" text-anchor="end">{percent} %</text>')
        y = place(0, 0.55)[1]
        parts.append(f'<line x1="{x0}" x2="{x0 + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="black" '
                     'stroke-dasharray="4 3"/>')
        for index, spread in enumerate(SPREADS):
            parts.append(f'<text x="{place(index, 0)[0]:.1f}" y="{y0 + height + 14}" text-anchor="middle">{spread}</text>')
        for allocator, colour in ALLOCATORS.items():
            points = [place(index, cut[key]) for index, spread in enumerate(SPREADS)
                      if (key := (objective, "64", encoders, spread, allocator)) in cut]
            parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.8" points="'
                         + " ".join(f"{x:.1f},{y:.1f}" for x, y in points) + '"/>')
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in points]
    y = 2 * (height + 60) + 15
    for i, (allocator, colour) in enumerate(ALLOCATORS.items()):
        parts.append(f'<rect x="{left + 150 * i}" y="{y - 9}" width="10" height="10" fill="{colour}"/>'
                     f'<text x="{left + 150 * i + 15}" y="{y}">{allocator}</text>')
    parts.append(f'<text x="{left}" y="{y + 18}">64 nodes; reduction of the objective against even by speed spread; '
                 'dashed: the claimed 55 %</text></svg>')
    return "\n".join(parts) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isobar", default="build/release/bin/isobar",
                        help="the command isobar (default: %(default)s)")
    parser.add_argument("--database", help="continue this sweep's database and keep it (default: a temporary one)")
    options = parser.parse_args()
    root = STUDY.parents[1]
    with tempfile.TemporaryDirectory() as folder:
        database = options.database or pathlib.Path(folder) / "sky_study.db"
        subprocess.run([options.isobar, "sweep", "results/sky_study/sweep.yaml", "--database", database,
                        "--row-time-limit", "15s", "--csv", "results/sky_study/runs.csv"], cwd=root, check=True)
    with (STUDY / "runs.csv").open(newline="") as file:
        cut = cuts(list(csv.DictReader(file)))
    (STUDY / "cuts.md").write_text("# Reduction of the even split's objective by each allocator\n\n" + table(cut))
    (STUDY / "cuts.svg").write_text(figure(cut))


if __name__ == "__main__":
    main()
