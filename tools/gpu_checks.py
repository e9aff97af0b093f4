#!/usr/bin/env python3
"""Checks the executor of build/release on this machine's GPU and writes results/gpu: runs the tests labelled `gpu`, then
for each model and dtype profile -> plan -> simulate -> run with 1, 2 and 4 stages in one process.

Exits with 0 when all checks pass, 1 when one fails, 77 without a GPU. Rows that do not fit into --budget are left out
and named; call it again for them with --models and --dtypes. Existing rows are kept.
"""

import argparse
import csv
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build/release"
ISOBAR = BUILD / "bin/isobar"
RESULTS = ROOT / "results/gpu"
MODELS = ("gpt2_124m", "gpt2_350m", "bert_large", "gpt2_774m", "gpt2_1.5b")
DTYPES = ("float32", "bf16")
STAGES = (1, 2, 4)
MICROBATCHES = 4
STEPS = 6
LARGEST_ERROR = 0.05
LARGEST_LOSS_DIFFERENCE = {"float32": 1e-5, "bf16": 1e-2}
COLUMNS = ("workload", "dtype", "stages", "microbatches", "simulated_step_time_s", "predicted_step_time_s",
           "measured_step_time_s", "error_fraction", "loss_difference_fraction", "idle_fraction",
           "simulated_peak_memory_bytes", "measured_peak_memory_bytes")
README = """# The executor on one GPU

    tools/gpu_checks.py

regenerates this. Written on: {machine}.

N stages share one GPU, so the schedule is `sequential`: one micro-batch is in flight and one stage computes at a time. N devices like this one, with links that take no time, would be as fast except for their updates, which overlap with other
stages' work; here they do not. The prediction for one GPU is therefore the simulated step plus the measured updates of all stages but the first. Other schedules are checked only by their losses (`ctest -L gpu`): their stages contend for the GPU, which
no plan for N devices predicts. These results do not cover several GPUs or links between them.

| column | meaning |
|---|---|
| `workload`, `dtype` | `workloads/NAME.yaml` with this dtype |
| `stages`, `microbatches` | of the plan: evenly split layers, schedule `sequential` |
| `simulated_step_time_s` | from the plan's stamp, by the measured profile |
| `predicted_step_time_s` | the same plus the updates of the stages after the first |
| `measured_step_time_s` | median of {steps} steps without the first |
| `error_fraction` | predicted / measured − 1; at most ±{error} |
| `loss_difference_fraction` | largest relative difference from the losses of one stage; at most {float32} in float32, {bf16} in bf16 |
| `idle_fraction` | 1 − compute time of the stages / step: the fraction for which the GPU waits for the host |
| `simulated_peak_memory_bytes`, `measured_peak_memory_bytes` | of the fullest stage |

The host waits for the GPU in no step: torch's sync debug mode, which is on, would have ended the run.
"""


def isobar(*arguments):
    result = subprocess.run([ISOBAR, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True)
    if result.returncode != 0:
        raise SystemExit(f"isobar {' '.join(map(str, arguments))}: exit {result.returncode}\n{result.stderr}")
    return result.stdout


def platform_of(profile, devices):
    """A platform of `devices` devices like the measured one; transfers take no time."""
    names = [f"gpu-{i}" for i in range(devices)]
    hosts = "".join(f'    <host id="{name}" speed="{profile["speed_flops"]!r}f">'
                    f'<prop id="memory" value="{profile["memory_bytes"] / devices:.0f} B"/>'
                    f'<prop id="device" value="{profile["device"]}"/></host>\n' for name in names)
    link = '    <link id="in-process" bandwidth="1e15Bps" latency="0s" sharing_policy="FATPIPE"/>\n'
    routes = "".join(f'    <route src="{a}" dst="{b}"><link_ctn id="in-process"/></route>\n'
                     for i, a in enumerate(names) for b in names[i + 1:])
    return ('<?xml version="1.0"?>\n<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">\n'
            f'<platform version="4.1">\n  <zone id="world" routing="Full">\n{hosts}{link}{routes}  </zone>\n</platform>\n')


def updates_after_the_first_stage(profile, plan):
    return sum(profile["layers"][layer]["update_s"] for stage in plan["stages"][1:]
               for layer in range(stage["first_layer"], stage["last_layer"] + 1))


def checked_row(name, workload, dtype, profile_file, folder, stages, losses_of_one):
    profile = json.loads(profile_file.read_text())
    platform, plan = folder / f"{stages}.xml", folder / f"{stages}.json"
    platform.write_text(platform_of(profile, stages))
    from_profile = ("--profile", profile_file)
    isobar("plan", platform, workload, *from_profile, "--allocator", "even", "--objective", "sequential",
           "--microbatches", MICROBATCHES, "-o", plan)
    isobar("simulate", platform, workload, *from_profile, "--plan", plan, "--stamp")
    result = json.loads(isobar("run", workload, "--plan", plan, "--in-process", "--device", "cuda", "--steps", STEPS,
                               "--json"))
    losses = result["losses"]
    reference = losses_of_one or losses
    measured = result["step_time_s"]
    predicted = result["simulated_step_time_s"] + updates_after_the_first_stage(profile, json.loads(plan.read_text()))
    row = dict(zip(COLUMNS, (
        name, dtype, stages, MICROBATCHES, result["simulated_step_time_s"], predicted, measured,
        predicted / measured - 1, max(abs(a / b - 1) for a, b in zip(losses, reference)),
        1 - sum(stage["compute_s"] for stage in result["stages"]) / measured,
        max(stage["simulated_peak_memory_bytes"] for stage in result["stages"]),
        max(stage["peak_memory_bytes"] for stage in result["stages"]))))
    return {key: f"{value:.6g}" if isinstance(value, float) else str(value) for key, value in row.items()}, losses


def faults_of(row):
    where = f"{row['workload']} {row['dtype']} on {row['stages']} stages"
    if not abs(float(row["error_fraction"])) <= LARGEST_ERROR:
        yield f"{where}: predicted {row['predicted_step_time_s']} s, measured {row['measured_step_time_s']} s"
    if not float(row["loss_difference_fraction"]) <= LARGEST_LOSS_DIFFERENCE[row["dtype"]]:
        yield f"{where}: losses differ from those of one stage by {row['loss_difference_fraction']}"


def over_nccl(workload, plan, *options):
    """Starts two ranks on the GPU, which NCCL treats as ranks of two machines; returns the processes."""
    secret = os.urandom(32).hex()
    ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    ranks = ",".join(f"127.0.0.1:{port.getsockname()[1]}" for port in ports)
    for port in ports:
        port.close()
    command = [ISOBAR, "run", workload, "--plan", plan, "--ranks", ranks, "--transport", "nccl", "--device", "cuda",
               "--json", *map(str, options)]
    return [subprocess.Popen([*command, "--rank", str(rank)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True, env={**os.environ, "NCCL_HOSTID": str(rank), "NCCL_SOCKET_IFNAME": "lo",
                                             "ISOBAR_SECRET": secret})
            for rank in range(2)]


def nccl_faults(workload, plan, losses_of_one):
    """Compares losses over NCCL with those of one process, and checks that a rank ends after its peer is killed."""
    ranks = over_nccl(workload, plan, "--steps", STEPS)
    outputs = [rank.communicate(timeout=300) for rank in ranks]
    if any(rank.returncode != 0 for rank in ranks):
        yield f"over NCCL: {outputs[0][1].strip()}; {outputs[1][1].strip()}"
        return
    difference = max(abs(a / b - 1) for a, b in zip(json.loads(outputs[0][0])["losses"], losses_of_one))
    if not difference <= LARGEST_LOSS_DIFFERENCE["float32"]:
        yield f"over NCCL, losses differ from those of one process by {difference}"

    deadline = 10
    log = plan.with_suffix(".jsonl")
    survivor, victim = over_nccl(workload, plan, "--steps", 1_000_000, "--deadline", f"{deadline} s", "--log", log)
    while victim.poll() is None and not (log.exists() and log.stat().st_size > 0):
        time.sleep(0.5)
    victim.kill()
    victim.communicate()
    began = time.monotonic()
    try:
        error = survivor.communicate(timeout=6 * deadline)[1].strip()
    except subprocess.TimeoutExpired:
        survivor.kill()
        survivor.communicate()
        yield f"over NCCL, a rank still runs {6 * deadline} s after its peer was killed"
        return
    print(f"over NCCL, a rank ends {time.monotonic() - began:.1f} s after its peer was killed: {error}")
    if survivor.returncode != 3 or "rank 1" not in error:
        yield f"over NCCL, a rank whose peer was killed exits with {survivor.returncode}: {error}"


def machine():
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version,power.limit", "--format=csv,noheader"]
    gpu = subprocess.run(query, capture_output=True, text=True).stdout.splitlines()[0]
    libtorch = re.search(r"^LibTorch_INCLUDE_DIR:\w+=(.*)$", (BUILD / "CMakeCache.txt").read_text(), re.M).group(1)
    header = pathlib.Path(libtorch) / "torch/headeronly/version.h"
    version = ".".join(re.findall(r"define TORCH_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header.read_text()))
    return f"{gpu}; {os.cpu_count()} cores; LibTorch {version}"


def kept_rows():
    file = RESULTS / "steps.csv"
    if not file.exists():
        return []
    with file.open() as lines:
        return list(csv.DictReader(lines))


def write_results(rows):
    RESULTS.mkdir(exist_ok=True)
    rows.sort(key=lambda row: (MODELS.index(row["workload"]), DTYPES.index(row["dtype"]), int(row["stages"])))
    with (RESULTS / "steps.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    (RESULTS / "README.md").write_text(README.format(machine=machine(), steps=STEPS, error=LARGEST_ERROR,
                                                     **LARGEST_LOSS_DIFFERENCE))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS,
                        help="models to run (default: all)")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES,
                        help="dtypes to run (default: all)")
    parser.add_argument("--budget", type=float, default=480, help="seconds after which no new model begins (default: 480)")
    options = parser.parse_args()
    began = time.monotonic()

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        probe = subprocess.run([ISOBAR, "profile", ROOT / "workloads/gpt2_124m.yaml", "--device", "cuda", "--repetitions",
                                "1", "-o", folder / "probe"], capture_output=True, text=True)
        if probe.returncode == 3:
            print(f"skipped: {probe.stderr.strip()}")
            return 77

        faults, left_out = [], []
        tests = subprocess.run(["ctest", "--test-dir", BUILD, "-L", "gpu$", "--output-on-failure"])
        if tests.returncode != 0:
            faults.append("tests labelled gpu failed")
        rows = kept_rows()
        for model in options.models:
            for dtype in options.dtypes:
                if time.monotonic() - began > options.budget:
                    left_out.append(f"{model} {dtype}")
                    continue
                workload = folder / f"{model}-{dtype}.yaml"
                workload.write_text((ROOT / f"workloads/{model}.yaml").read_text().replace("dtype: float32",
                                                                                           f"dtype: {dtype}"))
                isobar("profile", workload, "--device", "cuda", "-o", folder / "live")
                losses_of_one = None
                for stages in STAGES:
                    row, losses = checked_row(model, workload, dtype, folder / "live.profile.json", folder, stages,
                                              losses_of_one)
                    losses_of_one = losses_of_one or losses
                    if (stages, dtype, model) == (2, "float32", options.models[0]):
                        faults.extend(nccl_faults(workload, folder / "2.json", losses))
                    faults.extend(faults_of(row))
                    rows = [kept for kept in rows if any(kept[key] != row[key] for key in COLUMNS[:3])] + [row]
                    write_results(rows)
                    print(", ".join(f"{key} {row[key]}" for key in COLUMNS[:10]), flush=True)
    for line in (*faults, *(f"left out: {name}" for name in left_out)):
        print(line)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
