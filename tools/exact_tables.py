#!/usr/bin/env python3
"""Writes results/exact/*.csv: what the allocator `exact` proves, its times, and what other allocators reach.

Every row is one `isobar plan`; run this on an idle machine. CPU seconds are those of the whole command with its child
processes; search_s is the plan's own wall time. Sizes, limits and columns are explained in results/exact/README.md,
which this script writes too.
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
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent
SKY_NODES = (4, 8, 16, 32, 64)
ENCODERS = (10, 24, 80, 160)
SPREADS = (2, 4, 7)
STEP_PLATFORMS = ("sky4", "sky16", "sky32", "sky64", "geo_2regions", "geo_8cities", "geo_12regions")
FILLS = (0, 0.6, 0.8, 0.95)  # fraction of all memory; 0: no limit
LARGE = ((256, 640), (1024, 2560))  # nodes, encoders
TYPES = ("T4", "P100-PCIE-16GB", "V100-SXM2-16GB", "A100-SXM4-40GB", "L4", "A10", "RTX-3090", "RTX-4090")
MICROBATCHES = (1, 4, 16, 64, 512)
PLENTY_MIB = 1e6

README = """# Tables of the exact allocator

    cmake --preset release && cmake --build --preset release --target isobar_cli && tools/exact_tables.py

regenerates all of these files ({options}). Machine: {machine}. Commands ran one at a time. Times differ between machines, and so do the results of `timed_out` rows; those of `optimal` rows do not.

Platforms `skyN` are `isobar platform generate sky --nodes N --speed-spread S`, one data server and N−1 workers. Memory is unlimited, or scaled by one factor on every worker so that the model fills the given fraction of the total by Sky's estimator. `bertE` is `workloads/bert160.yaml` with E encoders (3 E + 3 units).
`types8xN` are N devices of each of the {types} types on a star, with their real memory.

| column | meaning |
|---|---|
| `platform`, `devices`, `workload`, `layers`, `speed_spread`, `memory_filled_fraction` | the instance; the last is empty when memory is unlimited |
| `objective`, `communication`, `microbatches`, `allocator` | the goal and the allocator, where they vary |
| `outcome` | of the plan: `optimal` is proven; `failed`: the command ended without a plan |
| `objective_s`, `objective_bound_s`, `gap_fraction`, `certificate` | as in the plan file (docs/formats/plan.md) |
| `verified` | {verified} |
| `cpu_s` | CPU seconds of the whole command `isobar plan`, including reading the platform and the checker |
| `search_s` | wall seconds of the search only |
| `limit_s` | `--time-limit` of the row |

- `bottleneck.csv`: objective `bottleneck` without communication. `sky_optimal_*` (spread 2, no memory limit) is the published formulation solved by CBC, stopped at a gap of 20 % as published or after {sky} s; `sky_optimal_gap_fraction` is (its bottleneck − the bound of `exact`) / its bottleneck.
- `pipeline.csv`: objective `pipeline` without communication on sky64 with spread 4 and bert160. `minmax_objective_s` is the cost of the plan of `exact` for `bottleneck` by the pipeline formula; `minmax_ratio` is its ratio to `objective_s`.
- `step.csv`: objective `step`, 1F1B, M = 8, on the shipped platforms and BERTs, with played transfers and without communication. `devices_used` is of the plan; `reason` explains a missing plan. Made by `tools/exact_tables.py --tables step --verify-limit 240`, with 60 s for each row.
- `communication.csv`: every allocator on three platforms with bert160, each objective with its default communication.

`tools/solver_figures.py` measures how general MILP solvers decide whether a limit on the bottleneck is feasible (`solvers.csv`); run it by hand.
"""


def parser():
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--isobar", default=str(ROOT / "build/release/bin/isobar"),
                        help="the command isobar (default: build/release/bin/isobar)")
    result.add_argument("--tables", default="step,bottleneck,pipeline,communication",
                        help="tables to write (default: %(default)s)")
    result.add_argument("--time-limit", type=float, default=60, help="seconds per plan (default: 60)")
    result.add_argument("--sky-time-limit", type=float, default=20, help="seconds for sky-optimal (default: 20)")
    result.add_argument("--verify-limit", type=float, default=120, help="seconds for isobar verify; 0: do not verify (default: 120)")
    result.add_argument("--nodes", default=",".join(map(str, SKY_NODES)),
                        help="numbers of nodes in bottleneck.csv (default: %(default)s)")
    result.add_argument("--encoders", default=",".join(map(str, ENCODERS)),
                        help="numbers of encoders in bottleneck.csv (default: %(default)s)")
    result.add_argument("--no-large", action="store_true", help="leave out 256 and 1,024 nodes and 1,024 typed devices")
    result.add_argument("-o", "--output", type=pathlib.Path, default=ROOT / "results/exact",
                        help="folder to write to (default: results/exact)")
    return result


class Isobar:
    """Runs the command, with its files in a folder."""

    def __init__(self, options, folder):
        self.options = options
        self.binary = str(pathlib.Path(options.isobar).resolve())
        self.folder = folder
        self.needs = {}

    def output_of(self, *arguments):
        return subprocess.run([self.binary, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True,
                              check=True).stdout

    def plan(self, platform, workload, allocator, limit, *options):
        """The plan, or None if the command made none, and the command's CPU seconds."""
        file = self.folder / "plan.json"
        file.unlink(missing_ok=True)
        process = subprocess.Popen([self.binary, "plan", platform, workload, "--allocator", allocator, "--time-limit",
                                    f"{limit}s", "-o", file, *map(str, options)], cwd=ROOT,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        killer = threading.Timer(3 * limit + 300, process.kill)
        killer.start()
        _, status, usage = os.wait4(process.pid, 0)
        killer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        cpu = usage.ru_utime + usage.ru_stime
        return (json.loads(file.read_text()) if file.exists() else None), cpu

    def verdict(self, platform, workload):
        """The verdict of `isobar verify` on the last plan: yes, no, or gave up."""
        if self.options.verify_limit == 0:
            return ""
        try:
            code = subprocess.run([self.binary, "verify", platform, workload, self.folder / "plan.json"], cwd=ROOT,
                                  timeout=self.options.verify_limit, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            return "gave up"
        return "yes" if code.returncode == 0 else "no"

    def bert(self, encoders):
        file = self.folder / f"bert{encoders}.yaml"
        text = (ROOT / "workloads/bert160.yaml").read_text()
        file.write_text(re.sub(r"^encoders: .*$", f"encoders: {encoders}", text, flags=re.MULTILINE))
        return file

    def sky(self, nodes, spread, fill, workload):
        """Sky's cluster with memory that the workload fills to the fraction `fill`; 0: without a limit."""
        file = self.folder / f"sky{nodes}.xml"

        def generate(memory_mib):
            self.output_of("platform", "generate", "sky", "--nodes", nodes, "--speed-spread", spread, "--memory",
                           f"{memory_mib:.9f} MiB", "-o", file)

        generate(PLENTY_MIB)
        if fill:
            generate(PLENTY_MIB * self.need_of(workload, file) / fill / self.memory_of(file))
        return file

    def memory_of(self, platform):
        cluster = json.loads(self.output_of("platform", "show", platform, "--json"))
        return sum(device["memory_bytes"] for device in cluster["devices"])

    def need_of(self, workload, roomy):
        """Bytes of all layers by Sky's estimator, which ignores schedule and micro-batches."""
        if workload.name not in self.needs:
            plan = json.loads(self.output_of("plan", roomy, workload, "--allocator", "even", "--json"))
            self.needs[workload.name] = sum(plan["predicted"]["peak_memory_bytes"].values())
        return self.needs[workload.name]

    def reprice(self, platform, workload, stages, *options):
        """The objective of given stages under other options, by an external allocator that returns them."""
        program = self.folder / "answer"
        program.write_text(f"#!/bin/sh\ncat >/dev/null\ncat <<'END'\n{json.dumps({'stages': stages})}\nEND\n")
        program.chmod(0o755)
        return self.plan(platform, workload, f"exec:{program}", 60, *options)[0]["objective_s"]


def figures(plan, cpu):
    if plan is None:
        return {"outcome": "failed", "cpu_s": f"{cpu:.2f}"}
    gap = plan["gap_fraction"]
    return {"outcome": plan["outcome"], "objective_s": plan["objective_s"],
            "objective_bound_s": plan["objective_bound_s"], "gap_fraction": "" if gap is None else f"{gap:.6g}",
            "certificate": plan["certificate"]["kind"], "cpu_s": f"{cpu:.2f}", "search_s": f"{plan['wall']['search_s']:.3f}"}


class Table:
    """A CSV file, flushed after every row."""

    def __init__(self, file, columns):
        self.stream = file.open("w", newline="")
        self.writer = csv.DictWriter(self.stream, columns, restval="", lineterminator="\n")
        self.writer.writeheader()

    def add(self, row):
        self.writer.writerow({key: "" if value is None else value for key, value in row.items()})
        self.stream.flush()
        print(*(value for value in row.values() if value not in ("", None)), file=sys.stderr)


def instance(name, devices, encoders, spread, fill):
    return {"platform": name, "devices": devices, "workload": f"bert{encoders}", "layers": 3 * encoders + 3,
            "speed_spread": spread, "memory_filled_fraction": fill or ""}


def step_table(isobar, options):
    table = Table(options.output / "step.csv",
                  ("platform", "workload", "communication", "outcome", "objective_s", "objective_bound_s",
                   "gap_fraction", "certificate", "verified", "cpu_s", "search_s", "limit_s", "devices_used", "reason"))
    for name in STEP_PLATFORMS:
        platform = ROOT / f"platforms/{name}.xml"
        for encoders in ENCODERS:
            workload = ROOT / f"workloads/bert{encoders}.yaml"
            for communication in ("played", "none"):
                plan, cpu = isobar.plan(platform, workload, "exact", options.time_limit, "--objective", "step",
                                        "--communication", communication)
                row = {"platform": name, "workload": workload.stem, "communication": communication}
                row |= figures(plan, cpu) | {"limit_s": options.time_limit}
                if plan:
                    row |= {"verified": isobar.verdict(platform, workload), "devices_used": len(plan["stages"]) or "",
                            "reason": plan.get("reason", "")}
                table.add(row)


def bottleneck_table(isobar, options):
    table = Table(options.output / "bottleneck.csv",
                  ("platform", "devices", "workload", "layers", "speed_spread", "memory_filled_fraction", "outcome",
                   "objective_s", "objective_bound_s", "gap_fraction", "certificate", "verified", "cpu_s", "search_s",
                   "limit_s", "sky_optimal_outcome", "sky_optimal_objective_s", "sky_optimal_gap_fraction",
                   "sky_optimal_cpu_s", "sky_optimal_limit_s"))
    goal = ("--objective", "bottleneck", "--communication", "none")

    def add(row, platform, workload, with_sky_optimal=False):
        plan, cpu = isobar.plan(platform, workload, "exact", options.time_limit, *goal)
        row |= figures(plan, cpu) | {"limit_s": options.time_limit,
                                     "verified": isobar.verdict(platform, workload) if plan else ""}
        if with_sky_optimal and plan:
            bound = plan["objective_bound_s"]
            other, cpu = isobar.plan(platform, workload, "sky-optimal", options.sky_time_limit, *goal)
            objective = other["objective_s"] if other else None  # a build without CBC has no sky-optimal
            gap = "" if objective is None else f"{(objective - bound) / objective:.6g}"
            row |= {"sky_optimal_outcome": other["outcome"] if other else "failed",
                    "sky_optimal_objective_s": objective,
                    "sky_optimal_gap_fraction": gap, "sky_optimal_cpu_s": f"{cpu:.2f}",
                    "sky_optimal_limit_s": options.sky_time_limit}
        table.add(row)

    for nodes in map(int, options.nodes.split(",")):
        for encoders in map(int, options.encoders.split(",")):
            workload = isobar.bert(encoders)
            for spread in SPREADS:
                for fill in FILLS:
                    platform = isobar.sky(nodes, spread, fill, workload)
                    add(instance(platform.stem, nodes - 1, encoders, spread, fill), platform, workload,
                        with_sky_optimal=spread == 2 and fill == 0)
    for nodes, encoders in () if options.no_large else LARGE:
        workload = isobar.bert(encoders)
        for spread in SPREADS:
            for fill in FILLS:
                platform = isobar.sky(nodes, spread, fill, workload)
                add(instance(platform.stem, nodes - 1, encoders, spread, fill), platform, workload)
    for each, encoders in ((8, 160),) if options.no_large else ((8, 160), (128, 2560)):
        platform = isobar.folder / f"types8x{each}.xml"
        isobar.output_of("platform", "generate", "star", "--devices",
                         "+".join(f"{each}x{name}" for name in TYPES), "-o", platform)
        add(instance(platform.stem, 8 * each, encoders, "", ""), platform, isobar.bert(encoders))


def pipeline_table(isobar, options):
    table = Table(options.output / "pipeline.csv",
                  ("platform", "devices", "workload", "layers", "speed_spread", "memory_filled_fraction",
                   "microbatches", "outcome", "objective_s", "objective_bound_s", "gap_fraction", "certificate",
                   "verified", "cpu_s", "search_s", "limit_s", "devices_used", "minmax_objective_s", "minmax_ratio"))
    workload = isobar.bert(160)
    for fill in (0, 0.8, 0.95):
        platform = isobar.sky(64, 4, fill, workload)
        minmax, _ = isobar.plan(platform, workload, "exact", options.time_limit, "--objective", "bottleneck",
                                "--communication", "none")
        for microbatches in MICROBATCHES:
            goal = ("--objective", "pipeline", "--communication", "none", "--microbatches", microbatches)
            plan, cpu = isobar.plan(platform, workload, "exact", options.time_limit, *goal)
            row = instance(platform.stem, 63, 160, 4, fill) | {"microbatches": microbatches} | figures(plan, cpu)
            row |= {"limit_s": options.time_limit}
            if plan:
                row |= {"verified": isobar.verdict(platform, workload), "devices_used": len(plan["stages"])}
            if minmax and plan and minmax["stages"] and plan["stages"]:
                cost = isobar.reprice(platform, workload, minmax["stages"], *goal)
                row |= {"minmax_objective_s": cost, "minmax_ratio": f"{cost / plan['objective_s']:.6g}"}
            table.add(row)


def communication_table(isobar, options):
    table = Table(options.output / "communication.csv",
                  ("platform", "workload", "objective", "communication", "allocator", "outcome", "objective_s",
                   "objective_bound_s", "gap_fraction", "certificate", "verified", "cpu_s", "search_s", "limit_s"))
    allocators = [each["name"] for each in json.loads(isobar.output_of("list", "allocators", "--json"))]
    workload = ROOT / "workloads/bert160.yaml"
    for name in ("sky64", "geo_8cities", "geo_12regions"):
        platform = ROOT / f"platforms/{name}.xml"
        for objective in ("sequential", "bottleneck", "pipeline"):
            for allocator in allocators:
                plan, cpu = isobar.plan(platform, workload, allocator, options.time_limit, "--objective", objective)
                row = {"platform": name, "workload": workload.stem, "objective": objective,
                       "communication": plan["communication"] if plan else "", "allocator": allocator}
                table.add(row | figures(plan, cpu) | {"limit_s": options.time_limit,
                                                      "verified": isobar.verdict(platform, workload) if plan else ""})


def machine():
    models = re.findall(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{models[0] if models else 'an unknown processor'}, {os.cpu_count()} cores, Linux"


def options_text(options):
    """The given options that change the tables."""
    defaults = vars(parser().parse_args([]))
    changed = {key: value for key, value in vars(options).items()
               if key not in ("isobar", "output") and value != defaults[key]}
    given = [f"--{key.replace('_', '-')}" + ("" if value is True else f" {value:g}" if isinstance(value, float)
                                             else f" {value}") for key, value in changed.items()]
    return f"here with `{' '.join(given)}`" if given else "without options"


def main():
    options = parser().parse_args()
    tables = {"step": step_table, "bottleneck": bottleneck_table, "pipeline": pipeline_table, "communication": communication_table}
    chosen = options.tables.split(",")
    if unknown := [name for name in chosen if name not in tables]:
        sys.exit(f"exact_tables.py: --tables: {unknown[0]} is not one of {', '.join(tables)}")
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        isobar = Isobar(options, pathlib.Path(folder))
        for name in chosen:
            tables[name](isobar, options)
    verified = "empty: not verified here"
    if options.verify_limit:
        verified = f"`isobar verify` recomputed every claim: `yes`, `no`, or `gave up` after {options.verify_limit:g} s"
    (options.output / "README.md").write_text(README.format(
        options=options_text(options), machine=machine(), types=len(TYPES), verified=verified,
        sky=f"{options.sky_time_limit:g}"))


if __name__ == "__main__":
    main()
