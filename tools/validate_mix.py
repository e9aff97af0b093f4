#!/usr/bin/env python3
"""Writes results/validation/mix.{csv,md}: jobs that take turns on two hosts of a shaped network, beside the simulation.

For each ratio m/c of communication to computation: two equal jobs with a replica on each of two hosts. The network
(network_bed.py) is shaped so that a job's gradient sync takes m. Each host computes at the speed of the profile, slowed
down (`--emulate`), so c is known too. `isobar simulate` gives a job's own step s = c + m; one job alone is measured, then
the mix, in strict rotation over links that are one job's at a time. A round of two steps should take
T = max(2c, 2m, c + m), which is what `isobar simulate --mix` predicts. Exit code 5 when a speed-up is below 0.95 of the
formula's, or a round more than 5 % off the simulated one; 77, with the reason, where namespaces are not available.

Also, on one machine: how soon the steps of a job are as short as alone once the other job is killed.
"""

import argparse
import collections
import csv
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import network_bed
from network_bed import Host, Network
from validate_network import ROOT, machine, version

RATIOS = (0.2, 0.5, 1.0)
PORT = 29600
LEFT_OUT = 2  # steps at the beginning, in which memory is allocated and TCP's windows open
COMPUTE_LANE = 0
LEAST_SPEEDUP, MOST_ERROR, MOST_ROUNDS = 0.95, 0.05, 2
COLUMNS = ("jobs", "m_over_c", "mbit_per_s", "compute_s", "sync_s", "solo_predicted_s", "solo_measured_s", "round_formula_s",
           "round_simulated_s", "round_measured_s", "round_error_fraction", "speedup_formula", "speedup_measured",
           "speedup_fraction")
TABLE = """# Mixes of jobs on a shaped network

Written by `tools/validate_mix.py` on {machine}. Two hosts, each with a link of the given rate; two equal jobs, each with
a replica on both hosts, in strict rotation. Computation is emulated. A round is a step of each job.

| m/c | link | c s | m s | a job alone: predicted s | measured s | round: formula s | simulated s | measured s | error | speed-up: formula | measured | ratio |
|---|---|---|---|---|---|---|---|---|---|---|---|---|
{rows}

When one of two jobs on this machine is killed (`--spawn --processes job`), {rounds} steps of the other later each takes
{ratio:.3f} of its time alone.
"""
MODEL = """model: gpt
layers: 4
hidden: 128
heads: 4
vocabulary: 512
sequence: 32
micro_batch: 2
optimizer: sgd
learning_rate: 0.01
"""


def parser():
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--isobar", default=str(ROOT / "build/release/bin/isobar"),
                        help="the program isobar (default: that of build/release)")
    result.add_argument("--steps", type=int, default=10, help="steps of each run (default: 10)")
    result.add_argument("--slowdown", type=float, default=15, help="of the emulated devices (default: 15)")
    result.add_argument("-o", "--output", type=pathlib.Path, default=ROOT / "results/validation",
                        help="folder for mix.csv and mix.md (default: results/validation)")
    return result


class Validation:
    def __init__(self, options, folder):
        self.options = options
        self.folder = folder
        self.workload = folder / "model.yaml"
        self.workload.write_text(MODEL)
        self.profile = folder / "machine.profile.json"
        self.secret = folder / "secret"
        self.secret.write_text(os.urandom(32).hex())
        self.secret.chmod(0o600)
        self.isobar("profile", self.workload, "-o", folder / "machine", "--repetitions", 25)

    def isobar(self, *arguments):
        result = subprocess.run([self.options.isobar, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True)
        if result.returncode != 0:
            sys.exit(f"validate_mix.py: isobar {' '.join(map(str, arguments))}: {result.stderr.strip()}")

    def predicted(self, mbit):
        """Plans and stamps a job for hosts with links of that rate. Its seconds of computation, and of a step."""
        measured = json.loads(self.profile.read_text())
        hosts = [f'<host id="rank-{rank}" speed="{measured["speed_flops"] / self.options.slowdown:.17g}f">'
                 f'<prop id="memory" value="4 GB"/></host>' for rank in (0, 1)]
        platform, trace, result = (self.folder / name for name in ("network.xml", "simulated.json", "result.json"))
        platform.write_text(network_bed.platform_xml(self.network(mbit), hosts))
        shared = (platform, self.workload, "--profile", self.profile)
        self.plan = self.folder / "plan.json"
        # One stage with all layers, whose gradients one collective adds up after the last backward pass.
        self.isobar("plan", *shared, "--allocator", "amp", "--pipeline", 1, "--replicas", 2, "--schedule", "gpipe",
                    "--microbatches", 2, "-o", self.plan)
        self.isobar("simulate", *shared, "--plan", self.plan, "--stamp", "--iterations", 3, "-o", result, "--trace", trace)
        times = collections.defaultdict(float)
        for event in json.loads(trace.read_text())["traceEvents"]:
            if event["ph"] == "X" and event["tid"] == COMPUTE_LANE and event["pid"] == 0:
                times[event["args"]["step"]] += event["dur"] * 1e-6
        return statistics.median(times.values()), json.loads(result.read_text())["step_time_s"]

    def network(self, mbit):
        return Network((Host("a", mbit), Host("a", mbit)), {})

    def rate_for(self, ratio):
        """The rate of the links, in Mbit/s, at which the sync takes `ratio` times the computation."""
        compute, step = self.predicted(1000)
        seconds = step - compute  # almost all of it is transfer
        return 1000 * seconds / (ratio * compute)

    def run(self, mbit, *arguments):
        """Runs a command on both hosts. Rank 0 writes the result."""
        file = self.folder / "run.json"
        with network_bed.bed(self.network(mbit), "") as bed:
            endpoints = ",".join(f"{address}:{PORT + 10 * rank}" for rank, address in enumerate(bed.addresses))
            ranks = [bed.start(rank, [self.options.isobar, "run", *map(str, arguments), "--rank", rank, "--ranks", endpoints,
                                      "--secret-file", self.secret, "--plain-text", "--emulate", "--profile",
                                      self.profile, "--steps", self.options.steps, *(("-o", file) if rank == 0 else ())],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for rank in (0, 1)]
            errors = [process.communicate()[1].strip() for process in ranks]
        if any(process.returncode != 0 for process in ranks):
            sys.exit("\n".join(f"validate_mix.py: rank {rank}: {text}" for rank, text in enumerate(errors) if text))
        return json.loads(file.read_text())

    def row(self, ratio):
        mbit = self.rate_for(ratio)
        compute, step = self.predicted(mbit)
        sync = step - compute
        solo = statistics.median(self.run(mbit, self.workload, "--plan", self.plan)["step_times_s"][LEFT_OUT:])
        mix = self.folder / "mix.json"
        mix.write_text(json.dumps({"schema": "isobar-mix/1", "jobs": [
            {"name": name, "plan": str(self.plan), "workload": str(self.workload)} for name in "ab"]}))
        result = self.folder / "mix_result.json"
        self.isobar("simulate", self.folder / "network.xml", "--mix", mix, "--profile", self.profile, "-o", result)
        simulated = json.loads(result.read_text())["round_time_s"]
        jobs = self.run(mbit, "--mix", mix)["jobs"]
        # The last step of the last job is alone.
        times = [time for job in jobs for time in job["result"]["step_times_s"][LEFT_OUT:-1]]
        measured, formula = statistics.median(times), max(2 * compute, 2 * sync, step)
        speedups = 2 * step / formula, 2 * solo / measured
        return dict(zip(COLUMNS, (2, round(sync / compute, 3), round(mbit, 2), *(round(value, 4) for value in (
            compute, sync, step, solo, formula, simulated, measured, measured / simulated - 1, *speedups,
            speedups[1] / speedups[0])))))

    def rounds_to_recover(self):
        """Kills a rank of one of two jobs. The steps of the other until they take the time that they take alone, and that
        time's ratio to the time alone."""
        self.predicted(10000)
        mix, log = self.folder / "mix.json", self.folder / "log.jsonl"
        command = [self.options.isobar, "run", "--emulate", "--profile", self.profile, "--steps", 30, "--spawn"]
        alone = self.folder / "alone.json"
        self.isobar(*command[1:], self.workload, "--plan", self.plan, "-o", alone)
        solo = statistics.median(json.loads(alone.read_text())["step_times_s"][LEFT_OUT:])
        process = subprocess.Popen([*map(str, command), "--mix", mix, "--processes", "job", "--log", log],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        logged = {name: self.folder / f"log.{name}.jsonl" for name in "ab"}
        steps = lambda name: logged[name].read_text().count("\n") if logged[name].exists() else 0
        while steps("b") < 5:
            time.sleep(0.01)
        # The ranks in the order of the devices: each has one of a, then one of b.
        ranks = sorted(map(int, pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()))
        os.kill(ranks[1], signal.SIGKILL)
        killed_at = steps("a")
        process.wait()
        times = [json.loads(line)["step_time_s"] for line in logged["a"].read_text().splitlines()][killed_at:]
        rounds = next(index for index, duration in enumerate(times) if duration <= (1 + MOST_ERROR) * solo)
        return rounds, statistics.median(times[rounds:]) / solo


def write_tables(rows, options, rounds, ratio):
    options.output.mkdir(parents=True, exist_ok=True)
    with (options.output / "mix.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    lines = ["| {m_over_c:.2f} | {mbit_per_s:g} Mbit/s | {compute_s:.3f} | {sync_s:.3f} | {solo_predicted_s:.3f} | "
             "{solo_measured_s:.3f} | {round_formula_s:.3f} | {round_simulated_s:.3f} | {round_measured_s:.3f} | "
             "{percent:+.1f} % | {speedup_formula:.3f} | {speedup_measured:.3f} | {speedup_fraction:.3f} |".format(
                 percent=100 * row["round_error_fraction"], **row) for row in rows]
    (options.output / "mix.md").write_text(TABLE.format(machine=f"{machine()}, {version(options)}", rows="\n".join(lines),
                                                        rounds=rounds, ratio=ratio))


def main():
    options = parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces are removed
    try:
        network_bed.check_available()
    except network_bed.Unavailable as reason:
        print(f"validate_mix.py: skipped, no namespaces: {reason}", file=sys.stderr)
        sys.exit(77)
    with tempfile.TemporaryDirectory() as temporary:
        validation = Validation(options, pathlib.Path(temporary))
        rows = []
        for ratio in RATIOS:
            rows.append(validation.row(ratio))
            print(*rows[-1].values(), file=sys.stderr)
        rounds, ratio = validation.rounds_to_recover()
        print(f"after a job's death: {rounds} steps until {ratio:.3f} of a step alone", file=sys.stderr)
    write_tables(rows, options, rounds, ratio)
    is_good = all(row["speedup_fraction"] >= LEAST_SPEEDUP and abs(row["round_error_fraction"]) <= MOST_ERROR for row in rows)
    is_good = is_good and rounds <= MOST_ROUNDS and ratio <= 1 + MOST_ERROR
    sys.exit(0 if is_good else 5)


if __name__ == "__main__":
    main()
