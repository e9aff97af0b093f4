#!/usr/bin/env python3
"""Measures how long general MILP solvers take for the question that `exact` answers by its own dynamic programme.

The question (allocators/exact/phase_flow.hpp): is there a placement whose largest stage cost, counting only compute, is
within a limit? It is asked at the optimum (yes) and a millionth below it (no). The integer program is the same: at most
one arc per device, balance at each node (a cut, or a phase of the repeating encoders), all layers covered. Subsets of
phases that a solution leaves detached are cut off and the solver is called again; all calls share the limit. "Yes" is
the program's answer; the plan of `exact` shows that a placement exists.

Writes results/exact/solvers.csv. CBC is the command `cbc` (Debian: coinor-cbc). HiGHS is the Python package highspy in
an interpreter of your choice: --highs-python /tmp/venv/bin/python. The columns of a missing solver stay empty.
"""

import argparse
import bisect
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from exact_tables import ROOT, Isobar, Table, instance

PREFIX, PERIOD = 1, 3  # layers before the encoders, and layers of an encoder, as Sky splits BERT
ENCODERS = {16: 160, 32: 160, 64: 160, 256: 640, 1024: 2560}  # by nodes
INSTANCES = tuple((nodes, spread, fill) for nodes in ENCODERS for spread in (2, 4) for fill in (0, 0.8, 0.95))
BELOW = 1 - 1e-6

HIGHS = """
import sys, time, highspy
begin = time.monotonic()
solver = highspy.Highs()
solver.setOptionValue("output_flag", False)
solver.setOptionValue("threads", 1)
solver.setOptionValue("time_limit", float(sys.argv[2]))
solver.readModel(sys.argv[1])
solver.run()
print(time.monotonic() - begin)
print(solver.modelStatusToString(solver.getModelStatus()))
values = solver.getSolution().col_value
for index, name in enumerate(solver.getLp().col_names_):
    if index < len(values) and values[index] > 0.5:
        print(name)
"""


class Question:
    """The integer program for one limit."""

    def __init__(self, problem, limit):
        layers = problem["workload"]["layers"]
        self.devices = problem["cluster"]["devices"]
        work, memory = [0.0], [0.0]
        for layer in layers:
            work.append(work[-1] + layer["forward_flops"] + layer["backward_flops"])
            memory.append(memory[-1] + layer["sky_memory_bytes"])
        self.layers = len(layers)
        self.end = PREFIX + PERIOD * sum("attention" in layer["name"] for layer in layers)
        self.sink = self.node_of(self.layers)
        self.arcs = []  # (device, from, to, covers)
        for index, device in enumerate(self.devices):
            longest = {}
            most = limit * device["speed_flops_per_s"] * (1 + 1e-12)
            for first in range(self.layers):
                by_work = bisect.bisect_right(work, work[first] + most) - 1
                by_memory = bisect.bisect_right(memory, memory[first] + device["memory_bytes"]) - 1
                last = min(by_work, by_memory)
                if last > first:
                    key = self.node_of(first), self.node_of(last)
                    longest[key] = max(longest.get(key, 0), last - first)
            self.arcs += [(index, *nodes, covers) for nodes, covers in longest.items()]
        self.cuts = []  # sets of phases

    def node_of(self, position):
        if position < PREFIX:
            return position
        if position <= self.end:  # a cut after the last encoder is also one of its phases
            return PREFIX + (position - PREFIX) % PERIOD
        return PREFIX + PERIOD + position - self.end - 1

    def lp(self):
        def total(terms):
            lines = [" ".join(terms[i:i + 20]) for i in range(0, len(terms), 20)]
            return "\n ".join(lines)

        rows = []
        for device in range(len(self.devices)):
            mine = [f"+ x{i}" for i, arc in enumerate(self.arcs) if arc[0] == device]
            if mine:
                rows.append(f" once{device}: {total(mine)} <= 1")
        for node in range(self.sink + 1):
            terms = [f"{'+' if arc[1] == node else '-'} x{i}" for i, arc in enumerate(self.arcs)
                     if (arc[1] == node) != (arc[2] == node)]
            rows.append(f" balance{node}: {total(terms)} = {(node == 0) - (node == self.sink)}")
        covers = [f"+ {arc[3]} x{i}" for i, arc in enumerate(self.arcs)]
        rows.append(f" cover: {total(covers)} >= {self.layers}")
        for number, subset in enumerate(self.cuts):
            inside = [f"+ x{i}" for i, arc in enumerate(self.arcs) if arc[1] in subset and arc[2] in subset]
            into = [f"- {len(self.devices)} x{i}" for i, arc in enumerate(self.arcs)
                    if arc[1] not in subset and arc[2] in subset]
            rows.append(f" cut{number}: {total(inside + into)} <= 0")
        self.rows = len(rows)
        names = total([f"x{i}" for i in range(len(self.arcs))])
        return "Minimize\n cost: 0 x0\nSubject To\n" + "\n".join(rows) + f"\nBinaries\n {names}\nEnd\n"

    def detached(self, chosen):
        """Nodes of chosen arcs that are not connected with the first node."""
        reached = {0}
        for _ in range(self.sink + 1):
            for i in chosen:
                if self.arcs[i][1] in reached or self.arcs[i][2] in reached:
                    reached |= set(self.arcs[i][1:3])
        return {node for i in chosen for node in self.arcs[i][1:3]} - reached


def ask_cbc(file, seconds):
    """The answer (yes, no or none), the chosen arcs, and wall seconds."""
    begin = time.monotonic()
    answer = file.with_suffix(".sol")
    answer.unlink(missing_ok=True)
    subprocess.run(["cbc", file, "-seconds", str(seconds), "-timeMode", "elapsed", "-solve", "-solution", answer],
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    took = time.monotonic() - begin
    lines = answer.read_text().splitlines() if answer.exists() else [""]
    if lines[0].startswith("Optimal"):
        columns = [line.split() for line in lines[1:]]
        return "yes", [int(column[1][1:]) for column in columns if float(column[2]) > 0.5], took
    return ("no" if "nfeasible" in lines[0] else "none"), [], took


def ask_highs(python):
    def ask(file, seconds):
        result = subprocess.run([python, "-c", HIGHS, str(file), str(seconds)], capture_output=True, text=True)
        took, status, *chosen = result.stdout.splitlines()
        if status == "Optimal":
            return "yes", [int(name[1:]) for name in chosen], float(took)
        return ("no" if status == "Infeasible" else "none"), [], float(took)

    return ask


def answer_of(question, ask, folder, limit_s):
    """The solver's answer ("none" after the limit), wall seconds (HiGHS: without starting Python), and number of calls."""
    file = folder / "question.lp"
    spent = 0.0
    calls = 0
    while spent < limit_s:
        file.write_text(question.lp())
        calls += 1
        answer, chosen, took = ask(file, limit_s - spent)
        spent += took
        detached = question.detached(chosen) if answer == "yes" else set()
        if not detached:
            return answer, spent, calls
        question.cuts.append(detached)
    return "none", spent, calls


def problem_of(isobar, platform, workload):
    """The input of an allocator, recorded by an external one."""
    program, asked = isobar.folder / "ask", isobar.folder / "problem.json"
    answer = json.dumps({"stages": [], "outcome": "infeasible", "reason": "only asked"})
    program.write_text(f"#!/bin/sh\ncat >'{asked}'\necho '{answer}'\n")
    program.chmod(0o755)
    isobar.plan(platform, workload, f"exec:{program}", 60, "--objective", "bottleneck", "--communication", "none")
    return json.loads(asked.read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isobar", default=str(ROOT / "build/release/bin/isobar"),
                        help="the command isobar (default: build/release/bin/isobar)")
    parser.add_argument("--time-limit", type=float, default=60, help="seconds per question (default: 60)")
    parser.add_argument("--highs-python", help="a Python interpreter with highspy (default: no HiGHS)")
    parser.add_argument("--nodes", default=",".join(map(str, ENCODERS)),
                        help="numbers of nodes (default: %(default)s)")
    parser.add_argument("-o", "--output", type=pathlib.Path, default=ROOT / "results/exact",
                        help="folder to write to (default: results/exact)")
    options = parser.parse_args()
    solvers = {"cbc": ask_cbc} if shutil.which("cbc") else {}
    if options.highs_python:
        solvers["highs"] = ask_highs(options.highs_python)
    options.output.mkdir(parents=True, exist_ok=True)
    table = Table(options.output / "solvers.csv",
                  ("platform", "devices", "workload", "layers", "speed_spread", "memory_filled_fraction", "limit",
                   "limit_s", "binaries", "rows", "exact_outcome", "exact_search_s", "cbc_answer", "cbc_s", "cbc_calls",
                   "highs_answer", "highs_s", "highs_calls", "time_limit_s"))
    with tempfile.TemporaryDirectory() as folder:
        isobar = Isobar(options, pathlib.Path(folder))
        for nodes, spread, fill in INSTANCES:
            if str(nodes) not in options.nodes.split(","):
                continue
            workload = isobar.bert(ENCODERS[nodes])
            platform = isobar.sky(nodes, spread, fill, workload)
            problem = problem_of(isobar, platform, workload)
            plan, _ = isobar.plan(platform, workload, "exact", options.time_limit, "--objective", "bottleneck",
                                  "--communication", "none")
            if plan is None or plan["objective_s"] is None:
                print(platform.stem, spread, fill, "no plan", file=sys.stderr)
                continue
            for name, factor in (("optimum", 1), ("below", BELOW)):
                limit = plan["objective_s"] * factor
                row = instance(platform.stem, nodes - 1, ENCODERS[nodes], spread, fill)
                row |= {"limit": name, "limit_s": limit, "exact_outcome": plan["outcome"],
                        "exact_search_s": f"{plan['wall']['search_s']:.3f}", "time_limit_s": options.time_limit}
                question = Question(problem, limit)
                for solver, ask in solvers.items():
                    question.cuts = []
                    answer, seconds, calls = answer_of(question, ask, isobar.folder, options.time_limit)
                    row |= {"binaries": len(question.arcs), "rows": question.rows, f"{solver}_answer": answer,
                            f"{solver}_s": f"{seconds:.2f}", f"{solver}_calls": calls}
                table.add(row)


if __name__ == "__main__":
    main()
