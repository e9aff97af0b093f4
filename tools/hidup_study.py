#!/usr/bin/env python3
"""Regenerates the studies of results/hidup: runs their sweeps, or continues them, and writes rows, tables and figures.

    tools/hidup_study.py [--isobar PROGRAM] [--bench PROGRAM] [--database FILE.db] [STUDY...]

Sweeps have no wall times. The study "search" takes them from a benchmark (-DISOBAR_BUILD_BENCH=ON).
"""

import argparse
import csv
import json
import math
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "results/hidup"
COLOURS = {"spmd": "#4c72b0", "ddp": "#c44e52", "horovod": "#dd8452", "deepspeed-moe": "#8172b3", "fastmoe": "#55a868",
           "even": "#c44e52", "speed": "#dd8452", "best": "#4c72b0"}


def devices_of(row):
    """The number of devices of a generated platform: "2*1xA+6*1xB" has 8."""
    return sum(math.prod(int(count) for count in group.split("x")[0].split("*")) for group in row["platform_nodes"].split("+"))


def node_count(row):
    return int(row["platform_nodes"].split("*")[0])


def gigabits(row):
    return float(row["platform_lan_bandwidth"].split()[0])


def samples(row):
    return int(row["microbatches"]) * int(row["workload_micro_batch"])


def least(rows, *keys):
    """The least step of the rows with the same values of `keys`, functions of a row: the better number of micro-batches."""
    found = {}
    for row in rows:
        if row["step_time_s"]:
            key = tuple(each(row) for each in keys)
            found[key] = min(found.get(key, math.inf), float(row["step_time_s"]))
    return found


def allocator(row):
    return row["allocator"]


def milliseconds(value):
    return "–" if value is None else f"{1e3 * value:.1f}"


def table(title, columns, lines):
    return "\n".join([f"## {title}", "", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
                     + ["| " + " | ".join(line) + " |" for line in lines]) + "\n"


def by_allocator(rows, name, value, title):
    """A table of the least step of each allocator for each value of a parameter."""
    steps = least(rows, value, allocator)
    names = list(dict.fromkeys(row["allocator"] for row in rows))
    values = list(dict.fromkeys(value(row) for row in rows))
    lines = []
    for each in values:
        found = [steps.get((each, one)) for one in names]
        # FastMoE has no products with masks: less work than the others.
        others = [step for one, step in zip(names, found) if one not in ("spmd", "fastmoe") and step is not None]
        gain = f"{100 * (min(others) / found[0] - 1):.1f} %" if others and found[0] else "–"
        lines.append([str(each)] + [milliseconds(step) for step in found] + [gain])
    return table(title, [name] + [f"{one}, ms" for one in names] + ["spmd faster than ddp, horovod and deepspeed-moe"], lines)


def devices_study(rows):
    def where(row):
        count = devices_of(row)
        return f"{count} in {node_count(row)} node{'s' if node_count(row) > 1 else ''}"
    return by_allocator(rows, "devices", where, "Devices")


def bandwidth_study(rows):
    return by_allocator(rows, "Gbit/s between nodes", lambda row: f"{gigabits(row):g}", "Bandwidth between two nodes")


def batch_study(rows):
    return by_allocator(rows, "samples for each device", lambda row: samples(row) // 8, "Batch: BERT-SGMoE on 2x4")


def dtype_study(rows):
    return by_allocator(rows, "dtype, devices", lambda row: f"{row['workload_dtype']}, {devices_of(row)}",
                        "float32 and fp16, at peak rates")


def noise_study(rows):
    lines = []
    for platform in dict.fromkeys(row["platform"] for row in rows):
        mine = [row for row in rows if row["platform"] == platform]
        exact = [float(row["step_time_s"]) for row in mine if float(row["believed_layer_noise"]) == 0]
        for noise in dict.fromkeys(row["believed_layer_noise"] for row in mine):
            steps = sorted(float(row["step_time_s"]) for row in mine if row["believed_layer_noise"] == noise)
            slower = [100 * (step / exact[0] - 1) for step in (steps[0], sum(steps) / len(steps), steps[-1])]
            lines.append([pathlib.Path(platform).stem, f"{100 * float(noise):.0f} %", str(len(steps))]
                         + [f"{value:+.2f} %" for value in slower])
    return table("Errors of the profile", ["platform", "errors up to", "draws", "least", "mean", "most"], lines)


def rates_study(rows):
    lines = []
    factors = list(dict.fromkeys(row["believed_bandwidth"] for row in rows))
    for bandwidth in dict.fromkeys(gigabits(row) for row in rows):
        steps = {row["believed_bandwidth"]: float(row["step_time_s"]) for row in rows if gigabits(row) == bandwidth}
        right = next(step for factor, step in steps.items() if float(factor) == 1)
        lines.append([f"{bandwidth:g}"] + [f"{100 * (steps[factor] / right - 1):+.2f} %" for factor in factors])
    return table("Wrong rates of the network", ["Gbit/s between nodes"] + [f"× {factor}" for factor in factors], lines)


def shares_study(rows):
    def key(row):
        return pathlib.Path(row["workload"]).stem, gigabits(row), devices_of(row)
    steps = {(*key(row), row["allocator"], row["shares"], int(row["microbatches"])): float(row["step_time_s"])
             for row in rows if row["step_time_s"]}
    lines = []
    for each in dict.fromkeys(key(row) for row in rows):
        def step(*which, each=each):
            return steps.get((*each, *which))
        whole = [step("spmd", rule, 1) for rule in ("even", "speed", "best")]
        halves = step("spmd", "best", 2)
        gain = f"{100 * (whole[2] / halves - 1):.1f} %" if whole[2] and halves else "–"
        lines.append([each[0], f"{each[1]:g}", str(each[2])]
                     + [milliseconds(value) for value in (step("dp-ev", "best", 1), step("dp-cp", "best", 1), *whole, halves)]
                     + [gain])
    return table("Shares of unequal devices", ["workload", "Gbit/s", "devices", "dp-ev, ms", "dp-cp, ms", "spmd even, ms",
                                               "spmd by speed, ms", "spmd best, ms", "best in halves, ms",
                                               "faster by halves"], lines)


SEARCHES = {"search/bert_code": "published graph, code", "search_with_our_costs/bert_whole": "ours, one micro-batch",
            "search_with_our_costs/bert_halves": "ours, two micro-batches"}


def search_rows(bench):
    """The times of searches for BERT-SGMoE: the least of five, on one core."""
    names = "|".join(name + "/" for name in SEARCHES)
    made = subprocess.run([bench, f"--benchmark_filter={names}", "--benchmark_format=json", "--benchmark_repetitions=5", "--benchmark_min_time=0.1"],
                          check=True, capture_output=True, text=True).stdout
    least_time = {}
    for run in json.loads(made)["benchmarks"]:
        if run["run_type"] != "iteration":
            continue
        name, layers, devices = run["run_name"].rsplit("/", 2)
        key = (name, int(layers.split(":")[1]), int(devices.split(":")[1]), int(run["labels"]))
        least_time[key] = min(least_time.get(key, math.inf), run["cpu_time"])
    return [{"search": name, "layers": layers, "devices": devices, "labels": labels, "ms": f"{time:.3f}"}
            for (name, layers, devices, labels), time in least_time.items()]


def search_study(rows):
    found = {(row["search"], int(row["layers"]), int(row["devices"])): row for row in rows}
    lines = []
    for layers, devices in dict.fromkeys((layers, devices) for _, layers, devices in found):
        cells = [found[name, layers, devices] for name in SEARCHES]
        lines.append([str(layers), str(devices)] + [f"{float(cell['ms']):.1f}" for cell in cells]
                     + [cell["labels"] for cell in cells])
    return table("Search time: BERT-SGMoE", ["layers", "devices"] + [f"{title}, ms" for title in SEARCHES.values()]
                 + [f"{title}, labels" for title in SEARCHES.values()], lines)


def chart(rows, value, name, title):
    """An SVG of the least step of each allocator, both axes logarithmic."""
    steps = least(rows, value, allocator)
    values = sorted({key[0] for key in steps})
    names = list(dict.fromkeys(row["allocator"] for row in rows))
    width, height, left, top = 520, 300, 60, 40
    low, high = math.log10(min(steps.values())), math.log10(max(steps.values()))
    low, high = low - 0.05 * (high - low), high + 0.05 * (high - low)

    def place(x, step):
        part = (math.log(x) - math.log(values[0])) / (math.log(values[-1]) - math.log(values[0]))
        return left + 20 + part * (width - 40), top + (high - math.log10(step)) / (high - low) * height

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 20}" height="{top + height + 80}" '
             'font-family="sans-serif" font-size="12">', '<rect width="100%" height="100%" fill="white"/>',
             f'<text x="{left}" y="{top - 14}" font-size="14">{title}</text>',
             f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#888"/>']
    for exponent in range(math.floor(low), math.ceil(high) + 1):
        for digit in (1, 2, 5):
            step = digit * 10.0 ** exponent
            if low <= math.log10(step) <= high:
                y = place(values[0], step)[1]
                parts.append(f'<line x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
                             f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{1e3 * step:g} ms</text>')
    for each in values:
        x = place(each, 10 ** low)[0]
        parts.append(f'<text x="{x:.1f}" y="{top + height + 16}" text-anchor="middle">{each:g}</text>')
    parts.append(f'<text x="{left + width / 2}" y="{top + height + 34}" text-anchor="middle">{name}</text>')
    for i, each in enumerate(names):
        points = [place(x, steps[x, each]) for x in values if (x, each) in steps]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline fill="none" stroke="{COLOURS[each]}" stroke-width="1.8" points="{path}"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{COLOURS[each]}"/>' for x, y in points]
        parts.append(f'<rect x="{left + 105 * i}" y="{top + height + 52}" width="10" height="10" fill="{COLOURS[each]}"/>'
                     f'<text x="{left + 105 * i + 15}" y="{top + height + 61}">{each}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


STUDIES = {"devices": devices_study, "bandwidth": bandwidth_study, "batch": batch_study, "dtype": dtype_study,
           "noise": noise_study, "rates": rates_study, "shares": shares_study, "search": search_study}
CHARTS = {"bandwidth": (gigabits, "Gbit/s between two nodes of 4 V100", "Step of T-MoE by bandwidth"),
          "batch": (lambda row: samples(row) // 8, "samples for each of 8 V100", "Step of BERT-SGMoE by batch")}


def rows_of(study):
    with (FOLDER / f"{study}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isobar", default="build/release/bin/isobar",
                        help="the command isobar (default: %(default)s)")
    parser.add_argument("--bench", default="build/release/bin/isobar_spmd_bench",
                        help="the benchmark of searches (default: %(default)s)")
    parser.add_argument("--database", help="continue this database of sweeps and keep it (default: a temporary one)")
    parser.add_argument("studies", nargs="*", metavar="STUDY", default=[],
                        help=f"the studies to run: {', '.join(STUDIES)} (default: all)")
    options = parser.parse_args()
    unknown = [name for name in options.studies if name not in STUDIES]
    if unknown:
        parser.error(f"{unknown[0]} is none of {', '.join(STUDIES)}")
    with tempfile.TemporaryDirectory() as folder:
        database = options.database or pathlib.Path(folder) / "hidup.db"
        for study in options.studies or STUDIES:
            if study == "search":
                with (FOLDER / "search.csv").open("w", newline="") as file:
                    writer = csv.DictWriter(file, ["search", "layers", "devices", "labels", "ms"], lineterminator="\n")
                    writer.writeheader()
                    writer.writerows(search_rows(ROOT / options.bench))
                continue
            subprocess.run([options.isobar, "sweep", f"results/hidup/{study}.yaml", "--database", database,
                            "--csv", f"results/hidup/{study}.csv"], cwd=ROOT, check=True)
    text = "\n".join(make(rows_of(study)) for study, make in STUDIES.items())
    (FOLDER / "studies.md").write_text("# Studies of divided operators\n\nMade by `tools/hidup_study.py`.\n\n" + text)
    for study, (value, name, title) in CHARTS.items():
        (FOLDER / f"{study}.svg").write_text(chart(rows_of(study), value, name, title))


if __name__ == "__main__":
    main()
