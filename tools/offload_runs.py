#!/usr/bin/env python3
"""Trains a model that is larger than its device with several allocators, and writes what each step takes beside its
plan and its bound: measures the machine (isobar profile --machine), then plan -> simulate -> run for each allocator.

Exits with 0 when all checks pass, 1 when one fails, 77 without the device. By default GPT with 32 layers of width 2048
(workloads/stronghold.yaml) on a GPU of which 12 GiB may be used: ten minutes, results in results/offload_gpu.
"""

import argparse
import csv
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
ISOBAR = pathlib.Path(os.environ.get("ISOBAR", ROOT / "build/release/bin/isobar"))
# Relative: losses of plans that update on the device beside those that update on the machine's processor.
LARGEST_LOSS_DIFFERENCE = 1e-4
LARGEST_EXCESS = 0.01  # of the measured peak beyond the plan's
LEAST_OF_BOUND = 0.95  # bound / measured step of the best window with several micro-batches
NO_DEVICE = 77
COLUMNS = ("allocator", "window", "microbatches", "outcome", "predicted_step_time_s", "bound_s", "measured_step_time_s",
           "bound_fraction", "planned_peak_memory_bytes", "measured_peak_memory_bytes", "planned_host_memory_bytes",
           "measured_host_memory_bytes", "loss_difference_fraction")
README = """# Training a model that is larger than its device

    {command}

regenerates this. Written on: {machine}.

The device's memory is limited to {memory} by the platform. `resident` is planned without that limit, as the reference.
Losses are compared with those of `zero-offload` with as many micro-batches: `zero-infinity` updates all parameters on
the machine's processor too, so its losses are the same bits; other plans update what stays on the device there.

| column | meaning |
|---|---|
| `allocator`, `window`, `microbatches` | of the plan; `window`: layers that stay, where it is given |
| `outcome` | of the plan; an infeasible one has no run |
| `predicted_step_time_s`, `bound_s` | of the plan, from the measured machine |
| `measured_step_time_s` | median of {steps} steps without the first |
| `bound_fraction` | bound / measured step |
| `planned_…`, `measured_peak_memory_bytes` | of the device; at most {excess:.0%} above the plan's |
| `planned_…`, `measured_host_memory_bytes` | of the machine |
| `loss_difference_fraction` | largest relative difference from the losses of `zero-offload` |
"""


def isobar(*arguments, allowed=(0,)):
    result = subprocess.run([ISOBAR, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True)
    if result.returncode not in allowed:
        raise SystemExit(f"isobar {' '.join(map(str, arguments))}: exit {result.returncode}\n{result.stderr}")
    return result


class Experiment:
    def __init__(self, options, folder):
        self.options = options
        self.folder = folder
        self.settings = [part for setting in options.set for part in ("--set", setting)]
        self.reference = {}  # losses of zero-offload by micro-batches

    def measure(self):
        """Measures the device and its machine; false without the device."""
        options = self.options
        result = isobar("profile", options.workload, *self.settings, "--device", options.device, "--machine",
                        "--threads", options.threads, "--repetitions", options.repetitions, "-o", self.folder / "live",
                        allowed=(0, 3))
        if result.returncode == 3:
            print(f"skipped: {result.stderr.strip()}")
            return False
        unlimited = (self.folder / "live.xml").read_text()
        limited, count = re.subn(r'(<host id="rank-0".*?<prop id="memory" value=")[^"]*', rf"\g<1>{options.memory}",
                                 unlimited, count=1, flags=re.DOTALL)
        if count != 1:
            raise SystemExit("live.xml: no memory of host rank-0")
        (self.folder / "limited.xml").write_text(limited)
        return True

    def row(self, allocator, window, microbatches):
        """Plans, simulates and runs once; the row, and the losses or none if there is no plan."""
        options = self.options
        platform = self.folder / ("live.xml" if allocator == "resident" else "limited.xml")
        plan_file = self.folder / "plan.json"
        inputs = (platform, options.workload, *self.settings, "--profile", self.folder / "live.profile.json")
        isobar("plan", *inputs, "--allocator", allocator, *(("--window", window) if window else ()), "--microbatches",
               microbatches, "-o", plan_file, allowed=(0, 4))
        plan = json.loads(plan_file.read_text())
        row = dict.fromkeys(COLUMNS, "")
        row.update(allocator=allocator, window=window or "", microbatches=microbatches, outcome=plan["outcome"])
        if not plan["stages"]:
            return row, None
        isobar("simulate", *inputs, "--plan", plan_file, "--stamp")
        run = isobar("run", options.workload, *self.settings, "--plan", plan_file, "--in-process", "--device",
                     options.device, "--threads", options.threads, "--steps", options.steps, "--json")
        result = json.loads(run.stdout)
        stage = result["stages"][0]  # all are of one rank
        planned = plan["predicted"]["peak_memory_bytes"]
        step = result["step_time_s"]
        row.update(predicted_step_time_s=plan["predicted"]["step_time_s"], bound_s=plan["objective_bound_s"],
                   measured_step_time_s=step, bound_fraction=plan["objective_bound_s"] / step,
                   planned_peak_memory_bytes=planned["rank-0"], measured_peak_memory_bytes=stage["peak_memory_bytes"],
                   planned_host_memory_bytes=planned.get("machine-0", 0),
                   measured_host_memory_bytes=stage.get("host_peak_memory_bytes", 0))
        return row, result["losses"]

    def faults_of(self, row, losses):
        """Compares a run with its plan and with zero-offload's."""
        if row["allocator"] == "zero-offload":
            self.reference[row["microbatches"]] = losses
        reference = self.reference.get(row["microbatches"])
        if reference:
            row["loss_difference_fraction"] = max(abs(a / b - 1) for a, b in zip(losses, reference, strict=True))
        name = f"{row['allocator']} {row['window']} with {row['microbatches']} micro-batches"
        limit = 0 if row["allocator"] == "zero-infinity" else LARGEST_LOSS_DIFFERENCE
        if reference and row["loss_difference_fraction"] > limit:
            yield f"{name}: losses differ from zero-offload's by {row['loss_difference_fraction']}"
        if row["measured_peak_memory_bytes"] > row["planned_peak_memory_bytes"] * (1 + LARGEST_EXCESS):
            yield (f"{name}: peak {row['measured_peak_memory_bytes']} B, planned "
                   f"{row['planned_peak_memory_bytes']:.0f} B")
        if row["allocator"] == "window" and row["microbatches"] > 1 and row["bound_fraction"] < LEAST_OF_BOUND:
            yield f"{name}: the step is {row['measured_step_time_s']} s, and its bound {row['bound_s']} s"


def machine_of(options, folder):
    profile = json.loads((folder / "live.profile.json").read_text())
    return (f"{profile['device']}; {profile['machine']['processor']}, "
            f"{profile['machine']['memory_bytes'] / 2**30:.1f} GiB; {os.cpu_count()} cores; threads {options.threads}")


def write_results(rows, options, folder):
    options.output.mkdir(parents=True, exist_ok=True)
    with (options.output / "runs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()}
                         for row in rows)
    command = " ".join(["tools/offload_runs.py", *sys.argv[1:]])
    (options.output / "README.md").write_text(README.format(
        command=command, machine=machine_of(options, folder), memory=options.memory, steps=options.steps,
        excess=LARGEST_EXCESS))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workload", default="workloads/stronghold.yaml", help="default: workloads/stronghold.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as isobar plan takes it")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu (default: cuda)")
    parser.add_argument("--memory", default="12 GiB", help="of the device that plans may use (default: 12 GiB)")
    parser.add_argument("--windows", default="3,6,12", help="layers that stay with stronghold (default: 3,6,12)")
    parser.add_argument("--microbatches", default="1,4", help="of a step (default: 1,4)")
    parser.add_argument("--threads", type=int, default=max(1, (os.cpu_count() or 2) - 2),
                        help="that update on the machine's processor (default: all but two)")
    parser.add_argument("--steps", type=int, default=6, help="of each run (default: 6)")
    parser.add_argument("--repetitions", type=int, default=5, help="of each measurement (default: 5)")
    parser.add_argument("--budget", type=float, default=540, help="seconds after which no run begins (default: 540)")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "results/offload_gpu",
                        help="folder (default: results/offload_gpu)")
    options = parser.parse_args()
    began = time.monotonic()
    windows = [int(window) for window in options.windows.split(",")]
    plans = [("zero-offload", None), ("zero-infinity", None), ("window", None), ("resident", None),
             *(("stronghold", window) for window in windows)]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        experiment = Experiment(options, folder)
        if not experiment.measure():
            return NO_DEVICE
        rows, faults = [], []
        for microbatches in map(int, options.microbatches.split(",")):
            for allocator, window in plans:
                if time.monotonic() - began > options.budget:
                    faults.append(f"left out for lack of time: {allocator} with {microbatches} micro-batches")
                    continue
                row, losses = experiment.row(allocator, window, microbatches)
                if losses:
                    faults.extend(experiment.faults_of(row, losses))
                rows.append(row)
                write_results(rows, options, folder)
                print(", ".join(f"{key} {row[key]}" for key in COLUMNS if row[key] != ""), flush=True)
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
