#!/usr/bin/env python3
"""Fits the constants of devices in core/compute and of results/fidelity/systems.yaml on the calibration rows of measured
runs, and prints them.

fit_compute.py FILE.csv… fits the A100 on rows of mpt_a100_80, megatron_sc21 and megatron_seqsel together, the H100 on
those of mpt_h100, and Megatron-DeepSpeed on GH200 on those of sailor_gh200_opt350, each on rows of the role
`calibration` alone; other sets are passed over. The model of a step is the one of docs/fidelity.md with closed forms for
communication. It prints the mean errors on calibration and development rows. `--leave-out` adds those of leaving out one
model at a time, and `--rows` the error of each row.
"""
import argparse
import csv
import json
import math
import pathlib

import device_types
import fit_collectives

# Memory-bound operators: the least bytes per element of a 16-bit tensor, and the fraction of the nominal bandwidth that
# they reach (fit_operators.py), both forward and backward. See core/compute/layer_time.cpp.
NORM_SPEED = 2  # of normalization and dropout in the kernels of training software, times that of the tables
STARTS = (28 * 12e-6, 40 * 12e-6)  # between the kernels of a block
NORM = ((4, 6), (1, 0.24 * NORM_SPEED))  # no more than the nominal bandwidth
ACTIVATION = ((4, 6), (0.76, 0.60))
RESIDUAL = ((6, 6), (0.8, 0.8))
DROPOUT_RESIDUAL = ((7, 5), (0.36 * NORM_SPEED, 0.46 * NORM_SPEED))
COPY = 0.8
SOFTMAX = (3, 4)  # of Megatron's causal kernel
DROPOUT = (5, 5)


def of_fabric(name):
    """What collectives attain inside a node, their start and the latency of a step of a ring."""
    fraction, latency_us, start_us = fit_collectives.fit(name)
    return {"inside": fraction * 1e9 * fit_collectives.FABRICS[name][0], "start": start_us * 1e-6, "step": latency_us * 1e-6}


def of_type(name, nic, fabric):
    peak, bandwidth = device_types.sheet(name)
    return {"peak": peak, "bandwidth": bandwidth, "nic": nic} | of_fabric(fabric)


SETS = ("mpt_a100_80", "mpt_h100", "megatron_sc21", "megatron_seqsel")  # besides Sailor's, which has a model of its own

DEVICES = {"A100-SXM4-80GB": of_type("A100-SXM4-80GB", 25e9, "NVSwitch of A100-SXM4"),
           "H100-SXM5-80GB": of_type("H100-SXM5-80GB", 50e9, "NVSwitch of H100-SXM5")}
NIC_FRACTION = 0.9
NIC_OF_GH200 = 22.5e9  # attained
INTERFERENCE = 0.2  # of the shorter of computation and gather, beside the longer
NAMES = ("efficiency", "size_loss", "fused_attention", "core_bandwidth", "product_speed")
BEGIN = {"efficiency": 0.79, "size_loss": 108, "fused_attention": 0.25, "core_bandwidth": 0.8, "product_speed": 1}


class Run:
    """A row of a file of measured runs."""

    def __init__(self, row):
        sizes = dict(pair.split("=") for pair in row["overrides"].split(";"))
        self.row, self.role, self.measured = row["row"], row["role"], float(row["measured_s"])
        self.is_mpt = row["framework"].startswith("composer")
        self.is_of_2022 = row["framework"] == "megatron-lm-2022"
        self.hides_sums = row["framework"] == "megatron-lm-2022" and row["sequence_parallel"] != "1"
        self.device = DEVICES["H100-SXM5-80GB" if "h100" in row["platform"] else "A100-SXM4-80GB"]
        self.layers, self.hidden, self.heads = (int(sizes[key]) for key in ("layers", "hidden", "heads"))
        self.sequence = int(sizes.get("sequence", 2048))
        self.stages, self.shards, self.replicas = int(row["pp"]), int(row["tp"]), int(row["dp"])
        self.chunks = int(row["virtual_stages"] or 1)
        self.micro_batch, self.batch = int(row["micro_batch"]), int(row["global_batch"])
        self.recompute, self.divides_sequence = row["recompute"], row["sequence_parallel"] == "1"
        self.sums_bf16 = "reduced in bf16" in row["note"]
        self.vocabulary = 50368 if self.is_mpt else 51200
        self.model = (self.layers, self.hidden)

    def step(self, c):
        """Predicted time of a step for constants by name."""
        peak, bandwidth = self.device["peak"], self.device["bandwidth"]
        t, h, s = self.shards, self.hidden, self.sequence
        parameters = (12 * self.layers * h * h / self.stages + self.vocabulary * h) / t
        efficiency = c["efficiency"] * (c["product_speed"] if self.is_of_2022 else 1)
        time = 0
        per_replica = self.batch / self.replicas
        count, rest = divmod(per_replica, self.micro_batch)
        for n, b in ((count, self.micro_batch), (1, rest)):
            if b == 0:
                continue
            m = b * s

            def product(m, n, k):
                return 2 * m * n * k / (peak * efficiency) * (1 + c["size_loss"] * (1 / m + 1 / n + 1 / k))

            def bound(elements, operator, backward):
                return elements * operator[0][backward] / (bandwidth * operator[1][backward])

            products = product(m, 3 * h / t, h) + product(m, h, h / t) + product(m, 4 * h / t, h) + product(m, h, 4 * h / t)
            divided = m * h / (t if self.divides_sequence else 1)
            residual = RESIDUAL if self.is_mpt else DROPOUT_RESIDUAL
            memory = [2 * bound(divided, NORM, i) + 2 * bound(divided, residual, i) + bound(4 * m * h / t, ACTIVATION, i)
                      for i in (0, 1)]
            if self.is_mpt:
                attention = 2 * b * s * s * h / t / (peak * c["fused_attention"])
                core = [attention, 2.5 * attention]
            else:
                scores, width = b * self.heads / t * s * s, h / self.heads
                reached = bandwidth * c["core_bandwidth"]
                core = [scores * (max(4 * width / (peak * c["efficiency"]), 4 / reached) * (1 + i)
                                  + (SOFTMAX[i] + DROPOUT[i]) / reached) for i in (0, 1)]
            collective = 0 if t == 1 else (4 * m * h * (t - 1) / t / self.device["inside"] + self.device["start"]
                                           + 2 * (t - 1) * self.device["step"])
            forward = products + core[0] + memory[0] + STARTS[0] + 2 * collective
            backward = 2 * products + core[1] + memory[1] + STARTS[1] + 2 * collective
            if self.divides_sequence:  # the inputs of products are gathered again
                backward += collective
            if self.hides_sums:  # beside the products of the weights' gradients of queries, keys, values and of the first linear
                weights = product(m, 3 * h / t, h) + product(m, 4 * h / t, h)
                backward -= (1 - INTERFERENCE) * min(2 * collective, weights)
            # Composer's checkpoints stop before the last product.
            repeated = forward - (product(m, h, 4 * h / t) if self.is_mpt else 0)
            backward += {"full": repeated, "selective": core[0], "none": 0}[self.recompute]
            v = self.vocabulary
            logit = 32 if self.is_mpt else 29
            head = 3 * product(m, v / t, h) + m * v / t * logit / (bandwidth * COPY) + bound(m * h, NORM, 0) + bound(m * h, NORM, 1)
            if self.is_mpt:
                gather = self.gather_time()
                sums = gather if self.sums_bf16 else 2 * gather
                time += n * (self.layers * (beside(forward, gather) + beside(backward, gather + sums)) + head)
                continue
            stage = (forward + backward) * self.layers / self.stages
            transfer = 2 * m * h / t / (self.device["nic"] * NIC_FRACTION)
            if t > 1 and not self.divides_sequence:
                transfer += 2 * m * h / self.device["inside"]
            if self.stages == 1:
                time += n * (stage + head)
            else:
                time += n * (stage + head + 2 * transfer * self.chunks)
                time += (self.stages - 1) / self.chunks * (stage + 2 * transfer * self.chunks)
        if self.is_mpt:
            parameters /= self.replicas
        elif self.replicas > 1 and self.stages > 1:  # else beside the backward passes, in 16 bits
            time += 4 * parameters * (self.replicas - 1) / self.replicas / (self.device["nic"] * NIC_FRACTION)
        return time + parameters * 36 / (bandwidth * COPY)

    def gather_time(self):
        """Parameters of a block in 16 bits, from all replicas."""
        rate = self.device["inside"]
        if self.replicas > 8:
            rate = min(rate, 8 * self.device["nic"] * NIC_FRACTION)
        steps = (self.replicas - 1) * self.device["step"]
        return self.device["start"] + steps + 24 * self.hidden**2 * (self.replicas - 1) / self.replicas / rate


def beside(computation, communication):
    return max(computation, communication) + INTERFERENCE * min(computation, communication)


def solve(matrix, right):
    """Gaussian elimination with pivots."""
    rows = [row[:] + [value] for row, value in zip(matrix, right)]
    for i in range(len(rows)):
        pivot = max(range(i, len(rows)), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(len(rows)):
            if r != i:
                factor = rows[r][i] / rows[i][i]
                rows[r] = [a - factor * b for a, b in zip(rows[r], rows[i])]
    return [row[-1] / row[i] for i, row in enumerate(rows)]


def error(run, constants):
    return math.log(run.step(constants) / run.measured)


def fit(runs, free, rounds=40):
    """Constants with the least sum of 2 s² (√(1 + (e/s)²) − 1), s = 0.05, over log errors: outliers weigh less. Sets of the
    two kinds of software weigh the same. Gauss-Newton with reweighting, in the logarithms of the constants."""
    constants = dict(BEGIN)
    kinds = {kind: sum(run.is_mpt == kind for run in runs) for kind in (True, False)}
    for _ in range(rounds):
        errors = [error(run, constants) for run in runs]
        slopes = []
        for name in free:
            moved = dict(constants, **{name: constants[name] * 1.001})
            slopes.append([(error(run, moved) - e) / math.log(1.001) for run, e in zip(runs, errors)])
        weights = [1 / kinds[run.is_mpt] / math.sqrt(1 + (e / 0.05) ** 2) for run, e in zip(runs, errors)]
        matrix = [[sum(w * a * b for w, a, b in zip(weights, one, other)) + 1e-9 * (one is other) for other in slopes] for one in slopes]
        right = [-sum(w * a * e for w, a, e in zip(weights, one, errors)) for one in slopes]
        for name, step in zip(free, solve(matrix, right)):
            constants[name] *= math.exp(max(-0.3, min(0.3, step)))
    return constants


def mean_error(runs, constants):
    return 100 * sum(abs(math.expm1(error(run, constants))) for run in runs) / len(runs)


def left_out(runs, free, kind):
    """Mean error of runs of each model, of constants fitted on the others."""
    total = []
    for model in sorted({run.model for run in runs if run.is_mpt == kind}):
        constants = fit([run for run in runs if run.is_mpt != kind or run.model != model], free, 15)
        total += [abs(math.expm1(error(run, constants))) for run in runs if run.is_mpt == kind and run.model == model]
    return 100 * sum(total) / len(total)


class SailorRun:
    """A row of Sailor's runs on GH200, with its profile and sizes of layers."""

    def __init__(self, row, folder):
        profile = folder / row["profiles"]
        degree = row["tp"]
        times = json.loads(profile.read_text())
        sizes = json.loads((profile.parent / "OPT-350_sizes.json").read_text())[degree]
        self.row, self.role = row["row"], row["role"]
        self.measured, self.memory = float(row["measured_s"]), float(row["measured_memory_bytes"])
        self.stages, self.replicas, self.micro_batch = int(row["pp"]), int(row["dp"]), int(row["micro_batch"])
        self.microbatches = math.ceil(int(row["global_batch"]) / (self.replicas * self.micro_batch))
        larger = [run[degree] for batch, run in times.items() if int(batch) >= self.micro_batch and degree in run]
        profile_times = times[row["micro_batch"]]
        self.sent = 4 * 2048 * 1024 * self.micro_batch / NIC_OF_GH200  # an activation, and its gradient
        self.ends = sum(min(run[layer][i] for run in larger) for layer in ("0", "25") for i in (0, 1))
        self.update = times[row["micro_batch"]][degree]["2"][2]
        blocks = [int(count) for count in row["layers"].split("+")]
        self.blocks = sum(blocks)
        self.needs = []  # of each stage: parameters and bytes of activations
        block = profile_times[degree]["2"]
        self.times = []  # of each stage, for a micro-batch
        first = 1
        for stage, count in enumerate(blocks):
            layers = [*range(first, first + count)] + [0] * (stage == 0) + [self.blocks + 1] * (stage + 1 == self.stages)
            first += count
            of_stage = [sizes[str(layer)] for layer in layers]
            ends = [profile_times[degree][str(layer)] for layer in layers if layer in (0, self.blocks + 1)]
            self.times.append(count * (block[0] + block[1]) + sum(end[0] + end[1] for end in ends))
            held = min(self.microbatches, self.stages - stage) * self.micro_batch
            self.needs.append((sum(layer["params_floats"] for layer in of_stage), held * sum(layer["act_mem_bytes"] for layer in of_stage)))

    def predicted_memory(self, context, factor):
        return max(context + 24 * parameters + factor * activations for parameters, activations in self.needs)


def fit_sailor(runs):
    """Host time of a block, from runs of one node whose micro-batches of one sample wait for the host; and memory: context,
    and allocated bytes per byte of activations, by least squares of relative errors."""
    calibration = [run for run in runs if run.role == "calibration"]
    waiting = [run for run in calibration if run.stages * run.replicas == 1 and run.micro_batch == 1]
    host = sum(((run.measured - run.update) / run.microbatches - run.ends) / run.blocks for run in waiting) / len(waiting)
    context, factor = 4e9, 1.0
    for _ in range(10):  # the fullest stage may change
        matrix, right = [[0.0, 0.0], [0.0, 0.0]], [0.0, 0.0]
        for run in calibration:
            parameters, activations = max(run.needs, key=lambda need: 24 * need[0] + factor * need[1])
            line = (1 / run.memory, activations / run.memory)
            for i in (0, 1):
                right[i] += line[i] * (1 - 24 * parameters / run.memory)
                for j in (0, 1):
                    matrix[i][j] += line[i] * line[j]
        context, factor = solve(matrix, right)
    # Of a pipeline that computes longer than the host takes: what its step has over stages and transfers, which a device
    # sends and receives one after another.
    over = []
    for run in calibration:
        if run.stages > 1 and run.micro_batch > 1:
            own = [time + 2 * run.sent * (2 if 0 < stage < run.stages - 1 else 1) for stage, time in enumerate(run.times)]
            step = sum(own) + (run.microbatches - 1) * max(own) + run.update
            over.append((run.measured - step) / (run.microbatches + run.stages - 1))
    print(f"GH200-96GB with megatron-deepspeed-2024: host time of a block {1e3 * host:.2f} ms, "
          f"of a pipeline {1e3 * sum(over) / len(over):.2f} ms, context {context / 1e9:.2f} GB, activations x {factor:.2f}")
    for role in ("calibration", "development"):
        errors = [abs(run.predicted_memory(context, factor) / run.memory - 1) for run in runs if run.role == role]
        print(f"  memory, {role}: {len(errors)} rows, mean error {100 * sum(errors) / len(errors):.2f} %, max {100 * max(errors):.2f} %")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--leave-out", action="store_true")
    options = parser.parse_args()
    rows = [(row, pathlib.Path(file).parent) for file in options.files for row in csv.DictReader(open(file, newline=""))]
    runs = [Run(row) for row, _ in rows if row["set"] in SETS]
    for name, device in DEVICES.items():
        of_device = [run for run in runs if run.device is device]
        calibration = [run for run in of_device if run.role == "calibration"]
        if not calibration:
            continue
        kinds = {run.is_mpt for run in calibration}
        free = [*NAMES[:2], *(NAMES[2:3] if True in kinds else []), *(NAMES[3:] if False in kinds else [])]
        constants = fit(calibration, free)
        print(f"{name}:", ", ".join(f"{key} {constants[key]:.{0 if key == 'size_loss' else 3}f}" for key in free))
        for kind, label in ((True, "composer"), (False, "megatron")):
            for role in ("calibration", "development"):
                some = [run for run in of_device if run.is_mpt == kind and run.role == role]
                if some:
                    print(f"  {label} {role}: {len(some)} rows, mean error {mean_error(some, constants):.2f} %")
            if options.leave_out and any(run.is_mpt == kind for run in of_device):
                print(f"  {label}, leaving out one model: {left_out(of_device, free, kind):.2f} %")
        if options.rows:
            for run in of_device:
                print(f"  {run.role:12} {run.row:32} {100 * math.expm1(error(run, constants)):+.1f} %")
    of_sailor = [SailorRun(row, folder) for row, folder in rows if row["set"] == "sailor_gh200_opt350"]
    if of_sailor:
        fit_sailor(of_sailor)


if __name__ == "__main__":
    main()
