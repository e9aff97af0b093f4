#!/usr/bin/env python3
"""Regenerates results/fidelity: predicts every measured row, and writes rows, figures of sets, tables and figures.

    tools/fidelity_study.py [--isobar PROGRAM] [--approve]

The same build gives the same bytes. --approve also writes the limits of the gate from today's figures.
"""

import argparse
import csv
import html
import json
import math
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "results/fidelity"
TABLES = ("vtrain_multi", "mpt_a100_40", "mpt_h100_multi", "mist_aceso", "simumax_b200", "sailor_gh200_neo", "sailor_mixed",
          "megatron_sc21", "megatron_seqsel", "megatron_core_h100", "mpt_a100_80", "mpt_h100", "sailor_gh200_opt350", "fms_fsdp",
          "internevo", "vocab_parallel", "bridge_summary", "bridge_cards", "megatron_llama3_fp8", "vtrain_2gpu")
COLOURS = ("#4c72b0", "#c44e52", "#55a868", "#8172b3", "#dd8452", "#937860", "#da8bc3", "#64b5cd", "#2f4b7c", "#a05195", "#7a8b2a",
           "#b07d00", "#00706b", "#64707d", "#17becf", "#9467bd", "#e377c2", "#bcbd22", "#1b9e77", "#d95f02", "#7570b3", "#66a61e",
           "#e6ab02", "#a6761d", "#386cb0", "#f0027f", "#bf5b17", "#6a3d9a", "#b15928", "#33a02c", "#1f78b4")
TOLERANCE = 0.002
# Figures that the gate limits: whether they may only grow or only shrink.
LIMITS = {"rows": "least", "coverage_fraction": "least", "mean_error_fraction": "most", "memory_mean_error_fraction": "most",
          "spearman": "least", "ordered_pairs_fraction": "least", "regret_fraction": "most"}
# Of sets with so many rows or more, the part inside the 80 % intervals: the least and the most. A limit that a set does not
# keep is not written, but printed.
INTERVAL_ROWS = 12
INSIDE = {"inside_interval_fraction": 0.75, "most_inside_interval_fraction": 0.9}
SET_FIGURES = ("rows", "predicted_rows", "coverage_fraction", "mean_error_fraction", "median_error_fraction",
               "p95_error_fraction", "max_error_fraction", "signed_error_fraction", "spearman", "ordered_pairs_fraction",
               "regret_fraction", "max_regret_fraction", "memory_rows", "memory_mean_error_fraction",
               "memory_max_error_fraction", "interval_rows", "inside_interval_fraction")


def number(value):
    return "" if value is None else f"{value:.6g}"


def sets_csv(result):
    """A line for each role of each set: its figures, and the mean errors of the constant rate and the reference."""
    with (FOLDER / "sets.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["set", "role", *SET_FIGURES, "floor_mean_error_fraction", "reference_mean_error_fraction"])
        roles = [(one["set"], role, figures) for one in result["sets"] for role, figures in one["by_role"].items()]
        for name, role, figures in roles + [(one["set"], "derived", one) for one in result["derived"]]:
            others = [(figures[other] or {}).get("mean_error_fraction") for other in ("floor", "reference")]
            writer.writerow([name, role, *(number(figures[key]) for key in SET_FIGURES), *map(number, others)])


def rounded(value, kept):
    """A limit that the figure itself keeps: four digits, rounded away from it."""
    return (math.ceil if kept == "most" else math.floor)(value * 1e4 - (1e-6 if kept == "most" else -1e-6)) / 1e4


def limits_yaml(result):
    lines = ["# Limits of the gate: ctest -R results.fidelity_gate. tools/fidelity_study.py --approve writes them.",
             f"tolerance_fraction: {TOLERANCE}", "sets:"]
    for one in result["sets"]:
        lines.append(f"  {one['set']}:")
        lines += [f"    {key}: {rounded(one[key], kept):g}" for key, kept in LIMITS.items() if one[key] is not None]
        if one["interval_rows"] < INTERVAL_ROWS:
            continue
        inside = one["inside_interval_fraction"]
        least, most = INSIDE.values()
        for (key, limit), is_kept in zip(INSIDE.items(), (inside >= least, inside <= most)):
            if is_kept:
                lines.append(f"    {key}: {limit:g}")
            else:
                print(f"{one['set']}: {inside:.3g} of {one['interval_rows']} rows are inside their intervals; no limit {key} {limit:g}")
    return "\n".join(lines) + "\n"


def ticks(low, high):
    """1, 2 and 5 times powers of ten from `low` to `high`."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [value for exponent in exponents for value in (10.0 ** exponent, 2 * 10.0 ** exponent, 5 * 10.0 ** exponent)
            if low <= value <= high]


class Chart:
    """An SVG with two logarithmic axes. An axis is its name, its least and greatest value, and the values it shows."""

    SIZE, LEFT, TOP = 420, 64, 40

    def __init__(self, title, x_axis, y_axis):
        self.x_range, self.y_range = [[math.log10(value) for value in axis[1:3]] for axis in (x_axis, y_axis)]
        width, height = self.LEFT + self.SIZE + 190, self.TOP + self.SIZE + 50
        right, bottom = self.LEFT + self.SIZE, self.TOP + self.SIZE
        self.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
                      'font-size="12">', '<rect width="100%" height="100%" fill="white"/>',
                      f'<text x="{self.LEFT}" y="24" font-size="14">{title}</text>']
        for value in x_axis[3]:
            x = self.place(value, y_axis[1])[0]
            self.parts += [f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{self.TOP}" y2="{bottom}" stroke="#ddd"/>',
                           f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{value:g}</text>']
        for value in y_axis[3]:
            y = self.place(x_axis[1], value)[1]
            self.parts += [f'<line x1="{self.LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>',
                           f'<text x="{self.LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>']
        middle = self.TOP + self.SIZE / 2
        self.parts += [f'<rect x="{self.LEFT}" y="{self.TOP}" width="{self.SIZE}" height="{self.SIZE}" fill="none" stroke="#888"/>',
                       f'<text x="{self.LEFT + self.SIZE / 2:g}" y="{bottom + 36}" text-anchor="middle">{x_axis[0]}</text>',
                       f'<text x="16" y="{middle:g}" text-anchor="middle" transform="rotate(-90 16 {middle:g})">{y_axis[0]}</text>']

    def place(self, x, y):
        def part(value, limits):
            return (math.log10(value) - limits[0]) / (limits[1] - limits[0]) * self.SIZE
        return self.LEFT + part(x, self.x_range), self.TOP + self.SIZE - part(y, self.y_range)

    def path(self, points, colour, more=""):
        places = " ".join("{:.1f},{:.1f}".format(*self.place(*point)) for point in points)
        self.parts.append(f'<polyline fill="none" stroke="{colour}" points="{places}"{more}/>')

    def point(self, x, y, colour, title):
        cx, cy = self.place(x, y)
        self.parts.append(f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="2.5" fill="{colour}" fill-opacity="0.7">'
                          f'<title>{html.escape(title)}</title></circle>')

    def names(self, names):
        for i, (name, colour) in enumerate(names):
            x, y = self.LEFT + self.SIZE + 14, self.TOP + 6 + 20 * i
            self.parts.append(f'<rect x="{x}" y="{y}" width="10" height="10" fill="{colour}"/>'
                              f'<text x="{x + 15}" y="{y + 9}">{html.escape(name)}</text>')

    def text(self):
        return "\n".join([*self.parts, "</svg>"]) + "\n"


DASHED = ' stroke-dasharray="4 3"'


def scatter(result):
    """Predicted over measured time, of all rows that nothing is fitted on."""
    rows = [row for row in result["rows"]
            if row["role"] in ("development", "gate") and row["predicted_s"] and row["measured_s"]]
    ratios = [row["predicted_s"] / row["measured_s"] for row in rows]
    times = [row["measured_s"] for row in rows]
    left, right = 0.8 * min(times), 1.25 * max(times)
    low, high = min(0.79, 0.95 * min(ratios)), max(1.26, 1.05 * max(ratios))
    shown = [value for value in (0.1, 0.2, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 5, 10) if low <= value <= high]
    chart = Chart("Development rows: predicted over measured time", ("measured, s", left, right, ticks(left, right)),
                  ("predicted / measured", low, high, shown))
    for ratio, more in ((0.9, DASHED), (1, ""), (1.1, DASHED)):
        chart.path([(left, ratio), (right, ratio)], "#888", more)
    names = [(one["set"], colour) for one, colour in zip(result["sets"], COLOURS)]
    for row, ratio in zip(rows, ratios):
        chart.point(row["measured_s"], ratio, dict(names)[row["set"]], f"{row['row']}: {100 * (ratio - 1):+.1f} %")
    chart.names(names)
    return chart.text()


def ranking(result):
    """For each group, times over the group's least one: predicted over measured. A line that falls swaps two rows."""
    groups = {}
    for row in result["rows"]:
        if row["role"] in ("calibration", "development", "gate") and row["group"] and row["predicted_s"] and row["measured_s"]:
            groups.setdefault((row["set"], row["group"]), []).append(row)
    lines = {}
    for key, rows in groups.items():
        measured, predicted = (min(row[of] for row in rows) for of in ("measured_s", "predicted_s"))
        if len(rows) > 1:
            lines[key] = sorted((row["measured_s"] / measured, row["predicted_s"] / predicted, row["row"]) for row in rows)
    most = max((value for points in lines.values() for point in points for value in point[:2]), default=10)
    axis = (0.95, 1.1 * most, ticks(0.95, 1.1 * most))
    chart = Chart("Rows of a group, times over those of its fastest row", ("measured", *axis), ("predicted", *axis))
    chart.path([(axis[0], axis[0]), (axis[1], axis[1])], "#888", DASHED)
    names = [(one["set"], colour) for one, colour in zip(result["sets"], COLOURS)]
    for (name, group), points in lines.items():
        colour = dict(names)[name]
        chart.path([point[:2] for point in points], colour, ' stroke-opacity="0.6"')
        for x, y, row in points:
            chart.point(x, y, colour, f"{group}: {row}")
    chart.names([(name, colour) for name, colour in names if any(key[0] == name for key in lines)])
    return chart.text()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isobar", default="build/release/bin/isobar", help="the command isobar (default: %(default)s)")
    parser.add_argument("--approve", action="store_true", help="write results/fidelity/limits.yaml from today's figures")
    options = parser.parse_args()
    files = [f"results/fidelity/measured/{table}.csv" for table in TABLES]
    made = subprocess.run([options.isobar, "fidelity", *files, "--json", "--csv", "results/fidelity/rows.csv",
                           "--markdown", "results/fidelity/fidelity.md"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    result = json.loads(made.stdout)
    tables = FOLDER / "fidelity.md"
    tables.write_text("# Predicted and measured iteration times\n\nMade by `tools/fidelity_study.py`.\n\n" + tables.read_text())
    sets_csv(result)
    (FOLDER / "scatter.svg").write_text(scatter(result))
    (FOLDER / "ranking.svg").write_text(ranking(result))
    if options.approve:
        (FOLDER / "limits.yaml").write_text(limits_yaml(result))


if __name__ == "__main__":
    main()
