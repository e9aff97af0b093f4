#!/usr/bin/env python3
"""Writes results/validation/rounds.{csv,md}: predicted rounds next to those measured over a real, shaped network.

Two sites of a namespace each, joined by one trunk (network_bed.py). Each has a worker of two ranks, which are processes,
emulated slower than the machine. For each row: `isobar profile` of the workload, `isobar plan --outer`, `isobar
simulate`, and `isobar run` of both workers. Exit code 5 when an error is above 5 %; 77, with the reason, where namespaces
are not available.
"""

import argparse
import csv
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import network_bed
from network_bed import Host, Network, Trunk

ROOT = pathlib.Path(__file__).resolve().parent.parent
SLOWDOWN = 8  # of each of the four ranks: together they use half of one processor
TRUNK_MBIT, DELAY_MS, ACCESS_MBIT = 50, 25, 500  # the delay one way
STEPS, ROUNDS, LEFT_OUT = 20, 5, 1
PORT = 29600
MOST_FRACTION = 0.05
# Options of `isobar plan`. The codec is int8.
CASES = {"blocking": [], "delay 2": ["--delay", "2"], "2 fragments, delay 2": ["--fragments", "2", "--delay", "2"]}
WORKLOAD = """model: gpt
layers: 4
hidden: 128
heads: 4
vocabulary: 2000
sequence: 32
micro_batch: 2
optimizer: adamw
"""
COLUMNS = ("case", "predicted_s", "simulated_s", "measured_s", "error_fraction", "steps_alone_s", "measured_spread_fraction")
ROUND = re.compile(r"^round (\d+): ([\d.e+-]+) s", re.MULTILINE)
TABLE = """# Predicted and measured rounds over a shaped network

Written by `tools/validate_rounds.py` on {machine}.

Two sites, joined by {mbit} Mbit/s with {delay} ms one way. Each has a worker of two ranks, processes {slowdown} times slower than the
machine. {steps} steps of a round, {rounds} rounds, of which the first is left out; the median of both workers. Each sends the
other {sent} bytes a round, as int8.

{rows}

Error: predicted / measured − 1.
"""


def platform(profile):
    """The network as it is configured. Ranks of a site meet on the loopback interface."""
    speed = profile["speed_flops"] / SLOWDOWN
    rate = TRUNK_MBIT * 1e6 / 8 * network_bed.PAYLOAD
    hosts = "".join(f'<host id="{site}.{i}" speed="{speed:.17g}f"><prop id="site" value="{site}"/>'
                    f'<prop id="memory" value="{profile["memory_bytes"] / 4:.0f} B"/></host>\n'
                    for site in "ab" for i in range(2))
    links = "".join(f'<link id="{name}" bandwidth="{bandwidth:.17g}Bps" latency="{latency}s"/>\n' for name, bandwidth, latency in (
        ("loopback.a", 1e9, 5e-5), ("loopback.b", 1e9, 5e-5), ("wan.a.b", rate, DELAY_MS / 1e3), ("wan.b.a", rate, DELAY_MS / 1e3)))
    devices = [(site, i) for site in "ab" for i in range(2)]
    routes = "".join(f'<route src="{a}.{i}" dst="{b}.{j}" symmetrical="NO"><link_ctn id='
                     f'"{f"loopback.{a}" if a == b else f"wan.{a}.{b}"}"/></route>\n'
                     for a, i in devices for b, j in devices if (a, i) != (b, j))
    return ('<?xml version="1.0"?>\n<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">\n<platform version="4.1">\n'
            f'<zone id="world" routing="Full">\n{hosts}{links}{routes}</zone>\n</platform>\n')


class Validation:
    def __init__(self, options, folder):
        self.options = options
        self.folder = folder
        self.workload = folder / "workload.yaml"
        self.workload.write_text(WORKLOAD)

    def isobar(self, *arguments):
        result = subprocess.run([self.options.isobar, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True)
        if result.returncode != 0:
            sys.exit(f"validate_rounds.py: isobar {' '.join(map(str, arguments))}: {result.stderr.strip()}")
        return result.stdout

    def row(self, case, choice):
        self.isobar("profile", self.workload, "-o", self.folder / "machine", "--repetitions", 25)
        profile = self.folder / "machine.profile.json"
        file = self.folder / "network.xml"
        file.write_text(platform(json.loads(profile.read_text())))
        shared = (file, self.workload, "--profile", profile)
        plan = self.folder / "rounds.json"
        self.isobar("plan", *shared, "--allocator", "even", "--microbatches", 4, "--outer", STEPS, "--outer-codec", "int8",
                    "--outer-sync", "direct", *choice, "-o", plan)
        simulated = json.loads(self.isobar("simulate", *shared, "--plan", plan, "--json"))["round_time_s"]
        made = json.loads(plan.read_text())
        predicted = made["predicted"]["round_time_s"]
        self.sent = made["predicted"]["traffic"][0]["bytes"]
        measured = self.measure(made, plan, profile)
        quartiles = statistics.quantiles(measured, n=4, method="inclusive")
        median = statistics.median(measured)
        return {"case": case, "predicted_s": round(predicted, 4), "simulated_s": round(simulated, 4),
                "measured_s": round(median, 4), "error_fraction": round(predicted / median - 1, 4),
                "steps_alone_s": round(made["predicted"]["slowest_steps_s"], 4),
                "measured_spread_fraction": round((quartiles[2] - quartiles[0]) / median, 4)}

    def measure(self, made, plan, profile):
        """Seconds of each round but the first, of both workers."""
        secret = self.folder / "secret"
        secret.write_text(os.urandom(32).hex())
        secret.chmod(0o600)
        network = Network((Host("a", ACCESS_MBIT), Host("b", ACCESS_MBIT)), {("a", "b"): Trunk(TRUNK_MBIT, DELAY_MS)})
        names = [worker["name"] for worker in made["workers"]]
        with network_bed.bed(network, self.options.relay) as bed:
            places = {"a": 0, "b": 1}
            addresses = ",".join(f"{bed.addresses[places[name]]}:{PORT}" for name in names)
            workers = [bed.start(places[name], [self.options.isobar, "run", self.workload, "--plan", plan, "--worker", name,
                                                "--workers", addresses, "--rounds", ROUNDS, "--spawn", "--secret-file", secret,
                                                "--tls", "--emulate", "--profile", profile],
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for name in names]
            outputs = [worker.communicate()[0] for worker in workers]
        if any(worker.returncode != 0 for worker in workers):
            sys.exit("validate_rounds.py: " + "\n".join(outputs))
        return [float(time) for output in outputs for number, time in ROUND.findall(output) if int(number) > LEFT_OUT]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isobar", default=str(ROOT / "build/release/bin/isobar"),
                        help="the program isobar (default: that of build/release)")
    parser.add_argument("--relay", default=str(ROOT / "build/release/bin/tap_relay"),
                        help="the program tap_relay (default: that of build/release)")
    parser.add_argument("-o", "--output", type=pathlib.Path, default=ROOT / "results/validation",
                        help="folder for rounds.csv and rounds.md (default: results/validation)")
    options = parser.parse_args()
    try:
        network_bed.check_available()
    except network_bed.Unavailable as reason:
        print(f"validate_rounds.py: {reason}", file=sys.stderr)
        return 77
    with tempfile.TemporaryDirectory() as folder:
        validation = Validation(options, pathlib.Path(folder))
        rows = [validation.row(case, choice) for case, choice in CASES.items()]
    options.output.mkdir(parents=True, exist_ok=True)
    with (options.output / "rounds.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    lines = ["| rounds | predicted s | simulated s | measured s | error | spread | steps alone s |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        lines.append("| {case} | {predicted_s:.3f} | {simulated_s:.3f} | {measured_s:.3f} | {percent:+.1f} % | {spread:.1f} % | "
                     "{steps_alone_s:.3f} |".format(percent=100 * row["error_fraction"],
                                                    spread=100 * row["measured_spread_fraction"], **row))
    (options.output / "rounds.md").write_text(TABLE.format(
        machine=machine(), mbit=TRUNK_MBIT, delay=DELAY_MS, slowdown=SLOWDOWN, steps=STEPS, rounds=ROUNDS, sent=f"{validation.sent:,.0f}",
        rows="\n".join(lines)))
    return 0 if all(abs(row["error_fraction"]) <= MOST_FRACTION for row in rows) else 5


def machine():
    models = re.findall(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{models[0] if models else 'an unknown processor'}, {os.cpu_count()} processors"


if __name__ == "__main__":
    sys.exit(main())
