#!/usr/bin/env python3
"""How many runs a second a sweep makes on all cores, over cores x the rate of one process.

The rate of one process is that of `isobar compare` with the same runs one after another: each a process that loads the
platform, plans and simulates. `--jobs 1` is the sweep itself, one run at a time. On a busy machine both ratios say
little; run it on an idle one. Exits with 1 below the ratio asked for.

    tests/bench/sweep_bench.py build/release/bin/isobar [--runs 1000] [--at-least 0.9]
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
ALLOCATORS = ("even", "sky-dynamic", "sky-dynamic-fixed", "chain-dp")
SWEEP = """platform: platforms/sky64.xml
workload: workloads/bert160.yaml
allocator: [{}]
objective: sequential
seed: [{}]
"""


def seconds_of(*command):
    begin = time.monotonic()
    subprocess.run(list(map(str, command)), cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("isobar", type=lambda name: pathlib.Path(name).resolve())
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--at-least", type=float)
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    seeds = options.runs // len(ALLOCATORS)
    runs = seeds * len(ALLOCATORS)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "sweep.yaml").write_text(SWEEP.format(", ".join(ALLOCATORS), ", ".join(map(str, range(seeds)))))
        rate = {}
        for jobs in (cores, 1):
            rate[jobs] = runs / seconds_of(options.isobar, "sweep", folder / "sweep.yaml", "--jobs", jobs, "--database",
                                           folder / f"{jobs}.db")
        processes = 3 * len(ALLOCATORS)
        process_rate = processes / sum(
            seconds_of(options.isobar, "compare", "platforms/sky64.xml", "workloads/bert160.yaml", "--objective",
                       "sequential", "--allocators", allocator) for allocator in ALLOCATORS for _ in range(3))
    ratio = rate[cores] / (cores * process_rate)
    print(f"{runs} runs on {cores} cores: {rate[cores]:.1f} runs/s; one job {rate[1]:.1f}; one process each "
          f"{process_rate:.1f}")
    print(f"ratio to cores x one process: {ratio:.2f}; to cores x one job: {rate[cores] / (cores * rate[1]):.2f}")
    if options.at_least and ratio < options.at_least:
        sys.exit(f"less than {options.at_least}")


if __name__ == "__main__":
    main()
