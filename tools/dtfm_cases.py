#!/usr/bin/env python3
"""Plans the six cases that DT-FM was published with: its genetic search beside the exact one.

Each row has the cost that allocator `dtfm` finds, the one that `dtfm-exact` finds, the bound that it proves, the seconds
until it has found its cost, and until it has proven the bound. `isobar verify` checks every bound.
"""

import argparse
import csv
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "platforms/data"
WORKLOAD = ROOT / "workloads/dtfm_gpt3_1.3b.yaml"
CASES = range(6)
GOAL = ["--objective", "dtfm", "--pipeline", "8", "--replicas", "8", "--microbatches", "160"]
DEVICE = "V100-SXM2-16GB"  # DT-FM's


def parser():
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    built = ROOT / "build/release/bin/isobar"
    result.add_argument("--isobar", default=os.environ.get("ISOBAR") or shutil.which("isobar") or built,
                        help="the command (default: $ISOBAR, else isobar on the PATH, else build/release/bin/isobar)")
    result.add_argument("--cases", default=",".join(map(str, CASES)), help="which cases, N,… (default: all)")
    result.add_argument("--trials", help="trials of the genetic search (default: as published, 4900)")
    result.add_argument("--seed", default="1", help="of both searches (default: 1)")
    result.add_argument("--time-limit", help="of the exact search, such as 30s (default: 300s)")
    result.add_argument("--platforms", type=pathlib.Path, metavar="FOLDER",
                        help="keep the platform files there, dtfm_0.xml to dtfm_5.xml (default: not kept)")
    result.add_argument("--json", action="store_true", help="print one JSON object a line instead of a table")
    return result


def rows_of(name, case):
    """The rows of one case in a file of platforms/data."""
    with (DATA / name).open() as file:
        lines = [line for line in file if not line.startswith("#")]
    return [row for row in csv.DictReader(lines) if row["case"] == str(case)]


def write_platform(command, case, folder, xml):
    """Imports a case: its delays are one way, and a site's own link is that between two of its devices."""
    matrix = ["from,to,bandwidth_gbit_s,rtt_ms"]
    inside = {}
    for link in rows_of("dtfm_case_links.csv", case):
        numbers = f"{link['gbit_s']},{2 * float(link['delay_ms']):.17g}"
        if link["a"] == link["b"]:
            inside[link["a"]] = numbers
        else:
            matrix.append(f"{link['a']},{link['b']},{numbers}")
    sites = ["site,devices,lan_bandwidth_gbit_s,lan_rtt_ms"]
    for site in rows_of("dtfm_case_sites.csv", case):
        sites.append(f"{site['site']},{site['devices']}x{DEVICE},{inside[site['site']]}")
    if len(matrix) == 1:  # a matrix names each site
        matrix.append(f"{sites[1].split(',')[0]},unused,1,1000")
    for name, lines in (("matrix.csv", matrix), ("sites.csv", sites)):
        (folder / name).write_text("\n".join(lines) + "\n")
    run([command, "platform", "import", folder / "matrix.csv", "--sites", folder / "sites.csv", "--undirected",
         "-o", xml])


def run(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"dtfm_cases.py: {' '.join(map(str, command))}: exit code {done.returncode}\n"
                         f"{done.stderr or done.stdout}")


def plan(options, xml, allocator, file, *limits):
    run([options.isobar, "plan", xml, WORKLOAD, "--allocator", allocator, "--seed", options.seed, *GOAL, *limits,
         "-o", file])
    return json.loads(file.read_text())


def row_of(options, case, folder):
    xml = (options.platforms or folder) / f"dtfm_{case}.xml"
    write_platform(options.isobar, case, folder, xml)
    trials = ["--budget", options.trials] if options.trials else []
    genetic = plan(options, xml, "dtfm", folder / "genetic.json", *trials)
    start = plan(options, xml, "dtfm-exact", folder / "start.json", "--budget", "1")
    limit = ["--time-limit", options.time_limit] if options.time_limit else []
    file = folder / "exact.json"
    exact = plan(options, xml, "dtfm-exact", file, *limit)
    run([options.isobar, "verify", xml, WORKLOAD, file])
    found_at_once = start["objective_s"] <= exact["objective_s"] * (1 + 1e-9)
    return {"case": case,
            "dtfm_cost": genetic["objective_s"],
            "exact_cost": exact["objective_s"],
            "bound": exact["objective_bound_s"],
            "search_s": (start if found_at_once else exact)["wall"]["search_s"],
            "proof_s": exact["wall"]["search_s"]}


def main():
    options = parser().parse_args()
    try:
        cases = [int(word) for word in options.cases.split(",")]
    except ValueError:
        cases = []
    if not cases or any(case not in CASES for case in cases):
        raise SystemExit(f"dtfm_cases.py: --cases: \"{options.cases}\" is no list of cases; write numbers from 0 to 5")
    if options.platforms:
        options.platforms.mkdir(parents=True, exist_ok=True)
    if not options.json:
        print("case  dtfm       exact      bound      search s  proof s")
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            row = row_of(options, case, pathlib.Path(folder))
        if options.json:
            print(json.dumps(row))
        else:
            print("{case:<4}  {dtfm_cost:<9.6f}  {exact_cost:<9.6f}  {bound:<9.6f}  {search_s:<8.2f}  {proof_s:.2f}"
                  .format(**row))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
