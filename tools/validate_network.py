#!/usr/bin/env python3
"""Writes results/validation/network.{csv,md}: predicted step times next to those measured over a real, shaped network.

For each combination: `isobar profile` of the workload, a platform file of the network as it is configured,
`isobar plan`, `isobar simulate --stamp`, then the network itself (network_bed.py) and `isobar run` with every rank in
its own namespace. Exit code 5 when the mean error is above 10 % or one above 20 %; 77, with the reason, where
namespaces are not available.
"""

import argparse
import collections
import csv
import json
import os
import pathlib
import platform
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

import network_bed
from network_bed import Host, Network, Trunk

ROOT = pathlib.Path(__file__).resolve().parent.parent
SLOWDOWNS = (6, 9, 12, 15)  # of the ranks: together they use 43 % of one of two processors
ACCESS_MBIT = 500
PORT = 29500
COMPUTE_LANE = 0  # of traces (docs/formats/trace.md)
LEFT_OUT = 2  # steps at the beginning, in which memory is allocated and TCP's windows open
MOST_MEAN_FRACTION, MOST_FRACTION = 0.10, 0.20
COLUMNS = ("ranks", "replicas", "schedule", "workload", "microbatches", "sites", "trunk_mbit_per_s", "delay_ms", "predicted_s",
           "measured_s", "error_fraction", "predicted_compute_s", "measured_compute_s", "measured_spread_fraction")


class Case(NamedTuple):
    """One row. `sites`: a letter for the site of each rank's host; every two sites have a trunk. `replicas`: of each
    stage; those of a stage are neighbouring ranks."""

    workload: str
    schedule: str
    sites: str
    mbit: float
    delay_ms: float
    microbatches: int
    replicas: int = 1

    def network(self):
        sites = sorted(set(self.sites))
        return Network(tuple(Host(site, ACCESS_MBIT) for site in self.sites),
                       {(a, b): Trunk(self.mbit, self.delay_ms) for a in sites for b in sites if a < b})


CASES = (
    Case("tiny_gpt", "sequential", "ab", 50, 20, 2),
    Case("tiny_gpt", "1f1b", "ab", 100, 60, 4),
    Case("tiny_bert", "sequential", "ab", 100, 100, 2),
    Case("tiny_bert", "1f1b", "ab", 200, 20, 4),
    Case("tiny_gpt", "1f1b", "aba", 50, 0, 4),
    Case("tiny_bert", "sequential", "aba", 200, 100, 2),
    Case("tiny_bert", "1f1b", "abc", 100, 20, 4),
    Case("tiny_gpt", "sequential", "abab", 500, 100, 2),
    Case("tiny_gpt", "1f1b", "abab", 50, 20, 4),
    Case("tiny_bert", "1f1b", "abab", 100, 20, 4),
    # Many messages in flight at once: their latencies overlap.
    Case("tiny_gpt", "gpipe", "ab", 100, 50, 32),
    Case("tiny_gpt", "gpipe", "ab", 100, 100, 32),
    Case("tiny_gpt", "1f1b", "ab", 100, 50, 32),
    Case("tiny_gpt", "1f1b", "ab", 100, 100, 32),
    # Two pipelines of two stages: activations, gradients and the sums of gradients share the trunk.
    Case("tiny_gpt", "1f1b", "abba", 100, 0, 8, replicas=2),
    Case("tiny_gpt", "1f1b", "abba", 100, 50, 8, replicas=2),
    Case("tiny_bert", "gpipe", "abba", 100, 0, 8, replicas=2),
    Case("tiny_bert", "gpipe", "abba", 100, 50, 8, replicas=2),
)

TABLE = """# Predicted and measured step times over a shaped network

Written by:

```text
{command}
```

Measured on {machine}. Method and limits: [docs/validation.md](../../docs/validation.md#over-a-network).

{rows}

Mean error {mean:.1f} %, largest {largest:.1f} %, {count} combinations; {steps} steps each, the median of all but the first {left_out}.
Error: predicted / measured − 1.

- `replicas` of each stage, which are neighbouring ranks.
- Ranks 0 to 3 are emulated {slowdowns} times slower than the machine.
- A letter is the site of a rank. Any two sites are joined by one trunk of the named rate in each direction, which all their
  transfers share, with the named delay one way. Access links have {access} Mbit/s.
- `compute` is the forwards, backwards and updates of all stages in a step. It is emulated: it takes what the profile says
  wherever the machine is fast enough.
- `spread` is (upper − lower quartile) / median of the measured steps.
"""


def parser():
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--isobar", default=str(ROOT / "build/release/bin/isobar"),
                        help="the program isobar (default: that of build/release)")
    result.add_argument("--relay", default=str(ROOT / "build/release/bin/tap_relay"),
                        help="the program tap_relay (default: that of build/release)")
    result.add_argument("--cases", help="numbers of the rows to measure, from 1, such as 1,5,12 (default: all)")
    result.add_argument("--steps", type=int, default=5,
                        help=f"steps of each run, at least {LEFT_OUT + 1} (default: 5)")
    result.add_argument("--repetitions", type=int, default=1,
                        help="repetitions of each row, profile included; the one with the median error counts "
                             "(default: 1)")
    result.add_argument("--keep", type=pathlib.Path,
                        help="folder in which platforms, plans, traces and reports are kept (default: none)")
    result.add_argument("-o", "--output", type=pathlib.Path, default=ROOT / "results/validation",
                        help="folder for network.csv and network.md (default: results/validation)")
    return result


class Validation:
    """Predicts and measures one row, in a folder for the files of the commands."""

    def __init__(self, options, folder):
        self.options = options
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def isobar(self, *arguments):
        result = subprocess.run([self.options.isobar, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True)
        if result.returncode != 0:
            sys.exit(f"validate_network.py: isobar {' '.join(map(str, arguments))}: {result.stderr.strip()}")

    def platform(self, case, profile):
        """Platform file of the network as it is configured, with devices slower than the profiled one by SLOWDOWNS."""
        measured = json.loads(profile.read_text())
        count = len(case.sites)
        speeds = [measured["speed_flops"] / SLOWDOWNS[rank] for rank in range(count)]
        hosts = [f'<host id="rank-{rank}" speed="{speed:.17g}f">'
                 f'<prop id="memory" value="{measured["memory_bytes"] / count:.0f} B"/></host>'
                 for rank, speed in enumerate(speeds)]
        file = self.folder / "network.xml"
        file.write_text(network_bed.platform_xml(case.network(), hosts))
        return file

    def predict(self, case, workload, plan):
        """Simulated seconds of a step. Writes the stamped plan to its file."""
        self.isobar("profile", workload, "-o", self.folder / "machine", "--repetitions", 25)
        profile = self.folder / "machine.profile.json"
        shared = (self.platform(case, profile), workload, "--profile", profile)
        # Both use every device, in the order of the ranks; chain-dp for the bottleneck.
        allocator = (["grid", "--pipeline", len(case.sites) // case.replicas, "--replicas", case.replicas]
                     if case.replicas > 1 else
                     ["chain-dp", "--objective", "bottleneck", "--communication", "none"])
        self.isobar("plan", *shared, "--allocator", *allocator, "--schedule", case.schedule, "--microbatches",
                    case.microbatches, "-o", plan)
        file = self.folder / "result.json"
        self.isobar("simulate", *shared, "--plan", plan, "--stamp", "--iterations", 3, "-o", file, "--trace",
                    self.folder / "simulated.json")
        result = json.loads(file.read_text())
        devices = list(dict.fromkeys(stage["device"] for stage in result["stages"]))
        if devices != [f"rank-{rank}" for rank in range(len(case.sites))]:
            sys.exit(f"validate_network.py: the plan uses {', '.join(devices)}, not every rank in its order")
        return result["step_time_s"]

    def measure(self, case, workload, plan):
        """Measured seconds of each step. Rank 0 writes them, and the trace of all ranks."""
        file = self.folder / "run.json"
        secret = self.folder / "secret"
        secret.write_text(os.urandom(32).hex())
        secret.chmod(0o600)
        with network_bed.bed(case.network(), self.options.relay) as bed:
            endpoints = ",".join(f"{address}:{PORT}" for address in bed.addresses)
            ranks = [bed.start(rank, [self.options.isobar, "run", workload, "--plan", plan, "--rank", rank, "--ranks",
                                      endpoints, "--secret-file", secret, "--plain-text", "--emulate",
                                      "--profile", self.folder / "machine.profile.json",
                                      "--steps", self.options.steps, "-o", file,
                                      "--trace", self.folder / "measured.json"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                     for rank in range(len(case.sites))]
            errors = [process.communicate()[1].strip() for process in ranks]
        if any(process.returncode != 0 for process in ranks):
            sys.exit("\n".join(f"validate_network.py: rank {rank}: {text}" for rank, text in enumerate(errors) if text))
        return json.loads(file.read_text())["step_times_s"]

    def compute_s(self, trace, first_step):
        """Seconds of all forwards, backwards and updates of a step: the median over the steps from `first_step` on."""
        times = collections.defaultdict(float)
        for event in json.loads((self.folder / trace).read_text())["traceEvents"]:
            if event["ph"] == "X" and event["tid"] == COMPUTE_LANE:
                times[event["args"]["step"]] += event["dur"] * 1e-6
        return statistics.median(time_s for step, time_s in times.items() if step >= first_step)

    def row(self, case):
        workload, plan = ROOT / f"examples/{case.workload}.yaml", self.folder / "plan.json"
        predicted = self.predict(case, workload, plan)
        times = self.measure(case, workload, plan)[LEFT_OUT:]
        measured = statistics.median(times)
        quartiles = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else [measured] * 3
        return {"ranks": len(case.sites), "replicas": case.replicas, "schedule": case.schedule, "workload": case.workload,
                "microbatches": case.microbatches, "sites": case.sites, "trunk_mbit_per_s": case.mbit,
                "delay_ms": case.delay_ms, "predicted_s": round(predicted, 4), "measured_s": round(measured, 4),
                "error_fraction": round(predicted / measured - 1, 4),
                "predicted_compute_s": round(self.compute_s("simulated.json", 0), 4),
                "measured_compute_s": round(self.compute_s("measured.json", LEFT_OUT), 4),
                "measured_spread_fraction": round((quartiles[2] - quartiles[0]) / measured, 4)}


def machine():
    models = re.findall(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    iproute = re.search(r"iproute2-[\d.]+\d", network_bed.run("ip", "-V")).group()
    return (f"{models[0] if models else 'an unknown processor'}, {os.cpu_count()} processors, "
            f"Linux {platform.release().split('-')[0]}, {iproute}")


def version(options):
    return subprocess.run([options.isobar, "--version"], capture_output=True, text=True, check=True).stdout.strip()


def write_tables(rows, options):
    options.output.mkdir(parents=True, exist_ok=True)
    with (options.output / "network.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    lines = ["| ranks | replicas | schedule, M | workload | sites | trunk | predicted s | measured s | error "
             "| compute: predicted s | measured s | spread |", "|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        lines.append("| {ranks} | {replicas} | {schedule}, {microbatches} | {workload} | {sites} | {trunk_mbit_per_s:g} Mbit/s, "
                     "{delay_ms:g} ms | {predicted_s:.3f} | {measured_s:.3f} | {percent:+.1f} % | "
                     "{predicted_compute_s:.3f} | {measured_compute_s:.3f} | {spread:.1f} % |".format(
                         percent=100 * row["error_fraction"], spread=100 * row["measured_spread_fraction"], **row))
    errors = [abs(row["error_fraction"]) for row in rows]
    (options.output / "network.md").write_text(TABLE.format(
        command=shlex.join(["tools/validate_network.py", *sys.argv[1:]]), machine=f"{machine()}, {version(options)}",
        rows="\n".join(lines), mean=100 * statistics.mean(errors), largest=100 * max(errors), count=len(rows),
        steps=options.steps, left_out=LEFT_OUT, slowdowns=", ".join(map(str, SLOWDOWNS)), access=ACCESS_MBIT))
    return statistics.mean(errors) <= MOST_MEAN_FRACTION and max(errors) <= MOST_FRACTION


def main():
    options = parser().parse_args()
    if options.steps <= LEFT_OUT:
        sys.exit(f"validate_network.py: --steps: at least {LEFT_OUT + 1}")
    if options.repetitions < 1:
        sys.exit("validate_network.py: --repetitions: at least 1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces are removed
    try:
        network_bed.check_available()
    except network_bed.Unavailable as reason:
        print(f"validate_network.py: skipped, no namespaces: {reason}", file=sys.stderr)
        sys.exit(77)
    chosen = [CASES[int(number) - 1] for number in options.cases.split(",")] if options.cases else CASES
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for case in chosen:
            folder = pathlib.Path(temporary)
            if options.keep:
                folder = options.keep / f"{case.workload}-{case.schedule}-{case.sites}-{case.delay_ms:g}"
            began = time.monotonic()
            tried = [Validation(options, folder).row(case) for _ in range(options.repetitions)]
            tried.sort(key=lambda row: row["error_fraction"])
            rows.append(tried[len(tried) // 2])
            print(*rows[-1].values(), [row["error_fraction"] for row in tried],
                  f"[{time.monotonic() - began:.0f} s]", file=sys.stderr)
    sys.exit(0 if write_tables(rows, options) else 5)


if __name__ == "__main__":
    main()
