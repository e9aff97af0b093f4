#!/usr/bin/env python3
"""Imports public layouts, moves their cuts with the degrees as they are, and writes how much that saves.

Each row of results/layouts/layouts.csv is imported on its machine (isobar convert --from megatron), improved (isobar plan
--allocator local-search --start … --for megatron), and converted back into a layout. Steps are predicted; with --simulate
they are simulated, too, which takes a minute for each plan of hundreds of devices.
results/layouts/results.csv keeps what came out, and results/layouts/README.md shows it.
"""

import argparse
import csv
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "results/layouts"
MACHINE = ROOT / "results/fidelity/measured/machines/gb200_nvl72.yaml"
BEGIN, END = "<!-- begin of what tools/layouts_table.py writes -->\n", "<!-- end -->\n"
COLUMNS = ["name", "step_s", "order_bound_s", "placement_bound_s", "improved_step_s", "improved_order_bound_s", "improved_layout"]


def parser():
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    built = ROOT / "build/release/bin/isobar"
    result.add_argument("--isobar", default=os.environ.get("ISOBAR") or shutil.which("isobar") or built,
                        help="the command (default: $ISOBAR, the one on the path, or the release build's)")
    result.add_argument("--rows", help="names of rows to make, between commas (default: all)")
    result.add_argument("--budget", type=int, default=150, help="plays of each search (default: 150)")
    result.add_argument("--results", type=pathlib.Path, default=FOLDER / "results.csv", help="file to write (CSV)")
    result.add_argument("--page", type=pathlib.Path, default=FOLDER / "README.md", help="page to write the table into")
    result.add_argument("--simulate", action="store_true", help="fail where a simulated step differs by more than 1 %% from its prediction")
    result.add_argument("--keep", action="store_true", help="write the page of the results that are there")
    return result


def rows_of(file):
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def workload_of(row):
    own = FOLDER / "models" / f"{row['model']}.yaml"
    return own if own.exists() else ROOT / "workloads" / f"{row['model']}.yaml"


class Runner:
    """Runs the command in a folder of its own."""

    def __init__(self, options, folder):
        self.isobar = str(pathlib.Path(options.isobar).resolve())  # runs in another folder
        self.folder = folder
        self.budget = options.budget
        self.simulates = options.simulate

    def run(self, *arguments):
        command = [self.isobar, *map(str, arguments)]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"layouts_table.py: {' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")

    def plan_of(self, inputs, file):
        """A plan, once its simulated step is that of its prediction."""
        plan = json.loads((self.folder / file).read_text())
        if self.simulates:
            self.run("simulate", *inputs, "--plan", file, "-o", "result.json")
            simulated = json.loads((self.folder / "result.json").read_text())["step_time_s"]
            predicted = plan["predicted"]["step_time_s"]
            if abs(simulated - predicted) > 0.01 * predicted:
                raise SystemExit(f"layouts_table.py: {file}: simulated step {simulated} s, predicted {predicted} s")
        return plan

    def result_of(self, row):
        self.run("platform", "generate", "machine", MACHINE, "--set", f"nodes={row['domains']}", "-o", "cluster.xml")
        settings = {"compute": "operators", "unit": "operator", "framework": "megatron-core"}
        if row["predictions"] != "0":
            settings["mtp_layers"] = row["predictions"]
        inputs = ["cluster.xml", workload_of(row)]
        given = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        degrees = ["--virtual-stages", row["chunks"], "--tensor", row["tensor"], "--replicas", row["replicas"],
                   "--experts", row["experts"], "--microbatches", row["microbatches"]]
        if row["tensor"] != "1":
            degrees += ["--splits", "sequence"]
        if row["replicas"] != "1":
            degrees += ["--sharded", "optimizer"]
        self.run("convert", row["layout"], *inputs, *given, "--from", "megatron", *degrees, "--recompute", "all", "-o", "today.json")
        plan = self.plan_of(inputs, "today.json")
        self.run("plan", *inputs, "--allocator", "local-search", "--start", "today.json", "--for", "megatron", "--budget",
                 self.budget, "-o", "better.json")
        improved = self.plan_of(inputs, "better.json")
        self.run("convert", "better.json", "--to", "megatron", "-o", "megatron")
        arguments = (self.folder / "megatron/arguments.sh").read_text()
        return {"name": row["name"], "step_s": f"{plan['predicted']['step_time_s']:.6g}", "order_bound_s": f"{plan['step_bound_s']:.6g}",
                "placement_bound_s": f"{max(plan['objective_bound_s'], improved['objective_bound_s']):.6g}",
                "improved_step_s": f"{improved['predicted']['step_time_s']:.6g}", "improved_order_bound_s": f"{improved['step_bound_s']:.6g}",
                "improved_layout": re.search(r"-layout '([^']*)'", arguments).group(1)}


def cells_of(row, result):
    """What the page shows of a layout."""
    step, improved = float(result["step_s"]), float(result["improved_step_s"])
    bound = float(result["improved_order_bound_s"])
    saved = 100 * (step - improved) / step
    layout = result["improved_layout"].replace("|", "\\|") if saved > 0.05 else "–"
    given = row["layout"].replace("|", "\\|")
    mtp = ", MTP" if row["predictions"] != "0" else ""
    return [f"`{given}`", row["model"] + mtp, f"{row['pipeline']} × {row['chunks']}", f"{step:.4g}", f"{improved:.4g}", f"{saved:.1f}",
            f"{100 * (improved - bound) / improved:.1f}",
            f"{100 * (improved - float(result['placement_bound_s'])) / improved:.1f}", f"`{layout}`" if layout != "–" else layout]


def table(rows, results):
    by_name = {row["name"]: row for row in rows}
    header = ["layout", "model", "devices × stages of each", "step, s", "other cuts, s", "saved, %", "above its orders' bound, %",
              "above any placement's bound, %", "its layout"]
    lines = ["| " + " | ".join(header) + " |", "|---|---|---|" + "--:|" * 5 + "---|"]
    lines += ["| " + " | ".join(cells_of(by_name[result["name"]], result)) + " |" for result in results]
    sources = [f"- `{row['layout']}`, {row['model']}: {row['source']}" for row in rows]
    return "\n".join(lines) + "\n\nSources:\n\n" + "\n".join(sources) + "\n"


def main():
    options = parser().parse_args()
    rows = rows_of(FOLDER / "layouts.csv")
    if not options.keep:
        wanted = options.rows.split(",") if options.rows else [row["name"] for row in rows]
        unknown = set(wanted) - {row["name"] for row in rows}
        if unknown:
            raise SystemExit(f"layouts_table.py: --rows: {sorted(unknown)[0]} is no row of results/layouts/layouts.csv")
        results = []
        for row in rows:
            if row["name"] not in wanted:
                continue
            with tempfile.TemporaryDirectory() as folder:
                results.append(Runner(options, pathlib.Path(folder)).result_of(row))
            print(*results[-1].values(), flush=True)
            with options.results.open("w", newline="") as file:  # what there is if it is ended
                writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(results)
    results = rows_of(options.results)
    if len(results) < len(rows):
        return  # of some rows; the page shows all
    page = options.page.read_text()
    before, rest = page.split(BEGIN)
    options.page.write_text(before + BEGIN + table(rows, results) + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
