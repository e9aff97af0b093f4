#!/usr/bin/env python3
"""Writes the table of results/hybrid/README.md: allocator `hybrid` beside its rivals.

Steps and bounds are those of results/hybrid/quality.csv, which `isobar check results/hybrid/quality.csv --approve` makes.
The search time of each plan is measured: `isobar plan` runs alone, several times, and the least time counts. Run this on
an idle machine.
"""

import argparse
import csv
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "results/hybrid"
BEGIN, END = "<!-- begin of what tools/hybrid_table.py writes -->\n", "<!-- end -->\n"
NAME = "hybrid"
EQUAL = 1e-9  # relative; steps that differ by less are equal


def parser():
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    built = ROOT / "build/release/bin/isobar"
    result.add_argument("--isobar", default=os.environ.get("ISOBAR") or shutil.which("isobar") or built,
                        help="the command (default: $ISOBAR, else isobar on the PATH, else build/release/bin/isobar)")
    result.add_argument("--runs", type=int, default=3, help="runs of each search, of which the fastest counts (default: 3)")
    result.add_argument("--keep-times", action="store_true", help="keep the search times that the page has; run nothing")
    result.add_argument("--page", type=pathlib.Path, default=FOLDER / "README.md",
                        help="the page to change (default: results/hybrid/README.md)")
    return result


def read_pairs():
    """The rows of each (platform, workload), by allocator."""
    pairs = {}
    with (FOLDER / "quality.csv").open() as file:
        for row in csv.DictReader(file):
            pairs.setdefault((row["platform"], row["workload"]), {})[row["allocator"]] = row
    return pairs


def step_of(row):
    """The simulated step in s, or None where there is no plan."""
    return float(row["step_time_s"]) if row and row["step_time_s"] else None


def loss_of(rows, rival):
    """How much longer the rival's step is than that of `hybrid`, in %; None without a plan."""
    step = step_of(rows.get(rival))
    return None if step is None else 100 * (step / step_of(rows[NAME]) - 1)


def label_of(pair):
    return " × ".join(pathlib.Path(name).stem for name in pair)


def measured_search(options, row):
    """Seconds of the fastest of several searches."""
    times = []
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "plan.json"
        command = [options.isobar, "plan", row["platform"], row["workload"], "--allocator", NAME, "--objective",
                   row["objective"], "--schedule", row["schedule"], "--microbatches", row["microbatches"],
                   "--seed", row["seed"], "-o", file]
        for _ in range(options.runs):
            done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True)
            if done.returncode != 0:
                raise SystemExit(f"hybrid_table.py: {' '.join(map(str, command))}: exit code {done.returncode}\n"
                                 f"{done.stderr}")
            times.append(json.loads(file.read_text())["wall"]["search_s"])
    return f"{min(times):.2f}"


def machine():
    models = re.findall(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{models[0] if models else 'unknown processor'}, {os.cpu_count()} cores"


def row_of(rows, rivals):
    """Step, gap and losses of a pair. A bound that `exact` shares is one of single pipelines."""
    own = rows[NAME]
    step, bound = step_of(own), float(own["objective_bound_s"])
    mark = " *" if rows["exact"]["objective_bound_s"] == own["objective_bound_s"] else ""
    losses = []
    for rival in rivals:
        loss = loss_of(rows, rival)
        losses.append("–" if rival not in rows else "no plan" if loss is None else f"{loss:.1f}")
    return [f"{step:.4f}", f"{100 * (step - bound) / step:.1f}{mark}"], losses


def table(cells):
    """A Markdown table; its first row is the header, its first column text."""
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([lines[0], "|---|" + "--:|" * (len(cells[0]) - 1), *lines[1:]])


def text_of(pairs, times, where):
    """What the page shows between its marks."""
    rivals = sorted({name for rows in pairs.values() for name in rows} - {NAME})
    planned = {pair: rows for pair, rows in pairs.items() if step_of(rows[NAME]) is not None}
    unplanned = [pair for pair, rows in pairs.items() if all(step_of(row) is None for row in rows.values())]
    least = {pair: min((loss_of(rows, rival) for rival in rivals if step_of(rows.get(rival))), default=0)
             for pair, rows in planned.items()}
    worse = len(pairs) - len(unplanned) - sum(loss >= -100 * EQUAL for loss in least.values())
    cells = [["platform × workload", "step, s", "gap, %", "search, s", *rivals]]
    for pair, rows in planned.items():
        own, losses = row_of(rows, rivals)
        cells.append([label_of(pair), *own, times.get(label_of(pair), "–"), *losses])
    summary = [["", "pairs with a plan", "median loss, %", "largest loss, %"]]
    for rival in rivals:
        losses = [loss_of(rows, rival) for rows in planned.values() if step_of(rows.get(rival))]
        summary.append([f"`{rival}`", str(len(losses)), f"{statistics.median(losses):.1f}", f"{max(losses):.1f}"])
    faster = sum(loss > 0.1 for loss in least.values())
    return (f"At least one allocator has a plan on {len(pairs) - len(unplanned)} of {len(pairs)} pairs. `{NAME}` is worse "
            f"than a rival on {worse} of them, and on {faster} its step is over 0.1 % shorter than that of every rival.\n\n"
            f"{table(summary)}\n\n{table(cells)}\n\n"
            f"No allocator has a plan for {', '.join(map(label_of, unplanned)) or 'no pair'}.\n\n"
            f"Search times: {where}.\n")


def times_in(text):
    """The search times that a page has, by pair, and where they were measured."""
    times = dict(re.findall(r"^\| (\S+ × \S+) \| [^|]+ \| [^|]+ \| ([\d.]+) \|", text, re.MULTILINE))
    where = re.search(r"^Search times: (.*)\.$", text, re.MULTILINE)
    return times, where[1] if where else "not measured"


def main():
    options = parser().parse_args()
    page = options.page.read_text()
    before, begin, rest = page.partition(BEGIN)
    old, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"hybrid_table.py: {options.page}: has no lines {BEGIN.strip()} and {END.strip()}; "
                         "copy them from results/hybrid/README.md")
    pairs = read_pairs()
    if options.keep_times:
        times, where = times_in(old)
    else:
        where = machine()
        times = {label_of(pair): measured_search(options, rows[NAME]) for pair, rows in pairs.items()
                 if step_of(rows[NAME]) is not None}
    options.page.write_text(before + begin + text_of(pairs, times, where) + end + after)


if __name__ == "__main__":
    main()
