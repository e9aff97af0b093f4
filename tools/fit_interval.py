#!/usr/bin/env python3
"""Fits the widths of the 80 % interval of predictions on the development rows of results/fidelity/measured.

    tools/fit_interval.py [--isobar PROGRAM] [--write]

Prints the fitted widths beside those of results/fidelity/interval.csv; --write puts them there. Build again afterwards:
the file is built into the commands. A width is half of an interval's, in the logarithm of the time:

run      least for which 80 % of the development rows of each set of fitted pairs with 12 rows or more are inside
between  1.6 times the mean error of played collectives between nodes, or what 80 % of the development rows of several
         nodes need beside `run`
system   what 80 % of the development rows of each set need beside the others when they are predicted with the constants
         of another version of their software. Rows of a set share their software, so sets are the cases: of four, the
         largest is the quantile
ranking  what 80 % of the pairs of a development row with another row of its group need for the ratio of their times, of
         each set with 12 pairs or more
"""

import argparse
import csv
import itertools
import json
import math
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILE = ROOT / "results/fidelity/interval.csv"
MEASURED = ROOT / "results/fidelity/measured"
FITTED = ("megatron_sc21", "megatron_seqsel", "mpt_a100_80", "mpt_h100", "sailor_gh200_opt350")  # sets of fitted pairs
COMPARED = ("megatron_core_h100",)
OTHER_VERSION = {"megatron_sc21": "megatron-lm-2022", "megatron_seqsel": "megatron-lm-2021",
                 "megatron_core_h100": "megatron-lm-2022", "sailor_gh200_opt350": "megatron-deepspeed-2023"}
BETWEEN_NODES = 1.6 * 0.103  # docs/fidelity.md: collectives over 2 to 16 nodes
INSIDE = 0.8  # of the rows
LEAST_ROWS = 12  # of a set that has a width of its own


def predicted(isobar, files):
    made = subprocess.run([isobar, "fidelity", *map(str, files), "--json"], check=True, stdout=subprocess.PIPE, text=True)
    rows = [row for row in json.loads(made.stdout)["rows"] if row["predicted_s"] and row["measured_s"]]
    for row in rows:
        row["error"] = math.log(row["measured_s"] / row["predicted_s"])
    return rows


def with_other_versions(folder):
    """Copies of the tables, in which each run has the other version of its software."""
    files = []
    for name, framework in OTHER_VERSION.items():
        with (MEASURED / f"{name}.csv").open(newline="") as table:
            rows = list(csv.DictReader(table))
        for row in rows:
            row["framework"] = framework
            for column in ("platform", "workload", "plan"):
                row[column] = row[column] and str(MEASURED / row[column])
            row["profiles"] = ";".join(str(MEASURED / each) for each in row["profiles"].split(";") if each)
        files.append(pathlib.Path(folder) / f"{name}.csv")
        with files[-1].open("w", newline="") as table:
            writer = csv.DictWriter(table, rows[0].keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return files


def width_for(needs):
    """The least width with 80 % of the needs inside."""
    return sorted(needs)[math.ceil(INSIDE * len(needs) - 1e-9) - 1]


def beside(error, *widths):
    """What an error needs beside independent widths."""
    return math.sqrt(max(0.0, error ** 2 - sum(width ** 2 for width in widths)))


def rounded_up(width):
    return math.ceil(1e3 * width - 1e-9) / 1e3


def fit(isobar, widths):
    """The fitted widths by cause; the others stay as they are in `widths`."""
    fitted = dict(widths)
    rows = predicted(isobar, [MEASURED / f"{name}.csv" for name in FITTED + COMPARED])
    development = [row for row in rows if row["role"] == "development"]

    def network(row):
        return fitted["between" if row["spans_nodes"] else "inside"] * row["exposed_fraction"]

    for _ in range(10):  # each of both widths counts in the other one's rows
        of_sets = {name: [beside(row["error"], network(row)) for row in development if row["set"] == name] for name in FITTED}
        fitted["run"] = rounded_up(max(width_for(needs) for needs in of_sets.values() if len(needs) >= LEAST_ROWS))
        needs = [beside(row["error"], fitted["run"]) / max(row["exposed_fraction"], 1e-9)
                 for row in development if row["spans_nodes"] and row["exposed_fraction"] > 0.02]
        fitted["between"] = rounded_up(max(BETWEEN_NODES, width_for(needs)))
    with tempfile.TemporaryDirectory() as folder:
        swapped = [row for row in predicted(isobar, with_other_versions(folder)) if row["role"] == "development"]
    fitted["system"] = rounded_up(max(
        width_for([beside(row["error"], fitted["run"], network(row)) for row in swapped if row["set"] == name])
        for name in OTHER_VERSION))
    pairs = [(a, b) for a, b in itertools.combinations(rows, 2) if a["group"] and (a["set"], a["group"]) == (b["set"], b["group"])
             and "development" in (a["role"], b["role"])]
    of_sets = {}
    for a, b in pairs:
        error = beside(a["error"] - b["error"], network(a) - network(b))
        of_sets.setdefault(a["set"], []).append(error)
    fitted["ranking"] = rounded_up(max(width_for(needs) for needs in of_sets.values() if len(needs) >= LEAST_ROWS))
    return fitted


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isobar", default=str(ROOT / "build/release/bin/isobar"), help="the command isobar (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help="write the widths to results/fidelity/interval.csv")
    options = parser.parse_args()
    with FILE.open(newline="") as file:
        causes = list(csv.DictReader(file))
    widths = {cause["cause"]: float(cause["half_width"]) for cause in causes}
    fitted = fit(options.isobar, widths)
    for cause, width in fitted.items():
        print(f"{cause}: {width:g}" + ("" if width == widths[cause] else f"; the file has {widths[cause]:g}"))
    if not options.write:
        return
    lines = ["cause,half_width,reason"] + [f'{each["cause"]},{fitted[each["cause"]]:g},"{each["reason"]}"' for each in causes]
    FILE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
