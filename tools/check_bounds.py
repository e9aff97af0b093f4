#!/usr/bin/env python3
"""Plans and simulates every shipped platform x workload x allocator x schedule; exits with 5 when a predicted or
simulated step is below its bound.

Rows are those of `isobar compare` with objective step. Rows that are infeasible or run out of time are not compared.
Takes long; --platforms and --workloads select fewer.
"""

import argparse
import csv
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Schedules, and the allocators that place under them.
COMPARED = (
    ("sequential,gpipe,1f1b", "chain-dp,even,exact,local-search,sky-dynamic,sky-dynamic-fixed"),
    ("1f1b(warm_up=auto),interleaved,zero-bubble-h1,zero-bubble-h2,zero-bubble-v,dualpipe-v,v-half,v-min,greedy",
     "chain-dp,even"),
)
TOLERANCE = 1e-6  # relative, for simulated times (SimGrid's precision); predictions have only rounding errors


def parser():
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--isobar", default=str(ROOT / "build/release/bin/isobar"),
                        help="the command isobar (default: build/release/bin/isobar)")
    result.add_argument("--platforms", default="*", help="pattern of names, such as geo_* (default: all)")
    result.add_argument("--workloads", default="*", help="pattern of names, such as bert* (default: all)")
    result.add_argument("--time-limit", type=float, default=0.3, help="seconds per search (default: 0.3)")
    return result


def faults_of(row):
    """The violated bounds of a row of a comparison."""
    def number(key):
        return float(row[key]) if row[key] else None

    predicted, bound = number("objective_s"), number("objective_bound_s")
    simulated, step_bound = number("step_time_s"), number("step_bound_s")
    if predicted is not None and bound is not None and predicted < bound * (1 - 1e-9):
        yield f"predicted {predicted} s, no plan below {bound} s"
    if predicted is not None and step_bound is not None and predicted < step_bound * (1 - 1e-9):
        yield f"predicted {predicted} s, no order of its passes below {step_bound} s"
    if simulated is not None and step_bound is not None and simulated < step_bound * (1 - TOLERANCE):
        yield f"simulated {simulated} s, no order of its passes below {step_bound} s"
    if simulated is not None and bound is not None and simulated < bound * (1 - TOLERANCE):
        yield f"simulated {simulated} s, no plan below {bound} s"


def main():
    options = parser().parse_args()
    rows, faults = 0, []
    with tempfile.TemporaryDirectory() as folder:
        table = pathlib.Path(folder) / "rows.csv"
        for platform in sorted((ROOT / "platforms").glob(f"{options.platforms}.xml")):
            for workload in sorted((ROOT / "workloads").glob(f"{options.workloads}.yaml")):
                for schedules, allocators in COMPARED:
                    result = subprocess.run(
                        [options.isobar, "compare", platform, workload, "--objective", "step", "--schedule", schedules,
                         "--allocators", allocators, "--time-limit", f"{options.time_limit}s", "-o", table],
                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                    if not table.exists():
                        sys.exit(f"check_bounds.py: {platform.name} {workload.name} {schedules}: {result.stderr.strip()}")
                    for row in csv.DictReader(table.open()):
                        rows += 1
                        place = f"{platform.name} {workload.name} {row['allocator']} {row['schedule']}"
                        faults += [f"{place}: {fault}" for fault in faults_of(row)]
                    table.unlink()
            print(f"{platform.name}: {rows} rows so far, {len(faults)} below a bound", file=sys.stderr)
    for fault in faults:
        print(fault)
    print(f"{rows} rows, {len(faults)} below a bound")
    sys.exit(5 if faults else 0)


if __name__ == "__main__":
    main()
