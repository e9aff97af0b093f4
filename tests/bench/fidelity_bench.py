#!/usr/bin/env python3
"""How many measured runs a second `isobar fidelity` predicts, over cores x the rate of one run at a time, and how many times
longer it takes to simulate every rank.

The rows are those of results/fidelity/measured, each as often as --times says. The rate of one run at a time is that of
`--explain` on every tenth of them: a process that reads the file and predicts one row. Every rank is simulated of Sailor's
rows. On a busy machine the ratios say little; run it on an idle one. Exits with 1 below the ratio
asked for.

    tests/bench/fidelity_bench.py build/release/bin/isobar [--times 3] [--at-least 0.8]
"""

import argparse
import csv
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

MEASURED = pathlib.Path(__file__).resolve().parents[2] / "results/fidelity/measured"


def seconds_of(*command):
    begin = time.monotonic()
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - begin


def rows_of(table):
    with table.open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["role"] != "excluded"]


def repeated(table, times):
    """Writes the rows of a table so often, with names of their own."""
    rows = rows_of(table)
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(row | {"row": f"{row['row']}.{i}"} for i in range(times) for row in rows)
    return times * len(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("isobar", type=lambda name: pathlib.Path(name).resolve())
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--at-least", type=float)
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    tables = sorted(MEASURED.glob("*.csv"))
    alone = [(table, row["row"]) for table in tables for row in rows_of(table)][::10]
    one_rate = len(alone) / sum(seconds_of(options.isobar, "fidelity", table, "--explain", row) for table, row in alone)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "fidelity"
        shutil.copytree(MEASURED.parent, folder)
        copies = [folder / "measured" / table.name for table in tables]
        rows = sum(repeated(copy, options.times) for copy in copies)
        rate = rows / seconds_of(options.isobar, "fidelity", *copies)
    sailor = MEASURED / "sailor_gh200_opt350.csv"
    folded = seconds_of(options.isobar, "fidelity", sailor)
    unfolded = seconds_of(options.isobar, "fidelity", sailor, "--unfolded")
    ratio = rate / (cores * one_rate)
    print(f"{rows} rows on {cores} cores: {rate:.1f} rows/s; one at a time {one_rate:.1f}")
    print(f"ratio to cores x one at a time: {ratio:.2f}; every rank of Sailor's rows takes {unfolded / folded:.1f} times as long")
    if options.at_least and ratio < options.at_least:
        sys.exit(f"less than {options.at_least}")


if __name__ == "__main__":
    main()
