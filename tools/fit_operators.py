#!/usr/bin/env python3
"""Fits constants of devices in core/compute on tables of measured operators, and prints them.

fit_operators.py [FOLDER] reads products.csv, memory_bound.csv and attention_core.csv of the folder (default:
results/fidelity/operators; its README names the sources).
"""
import csv
import math
import pathlib
import statistics
import sys

import device_types

SHEETS = {name: device_types.sheet(name) for name in (
    "V100-SXM2-32GB", "A100-SXM4-40GB", "A100-SXM4-80GB", "A100-PCIE-80GB", "H100-SXM5-80GB", "B200-SXM", "L4", "A10G", "A40")}
# The least bytes per element, forward and backward.
BYTES = {"norm": (4, 6), "activation": (4, 6), "dropout_residual": (7, 5)}
CORE = (3 + 5, 4 + 5)  # bytes per score beside the batched products: causal softmax and dropout
GRADIENTS = "aceso NN"  # products that are gradients of inputs, beside forward ones of the same device
LEAST_ROWS = 512  # of products: smaller ones are of inference
LEAST_ELEMENTS = 2**22  # of memory-bound operators: smaller ones measure launches


def rows(file):
    with open(file, newline="") as lines:
        return list(csv.DictReader(lines))


def fit_products(products, peak):
    """Efficiency and size loss of 2 m n k / (peak x efficiency) x (1 + loss (1/m + 1/n + 1/k)): the line through time over
    ideal time against the sum of the reciprocals, by least squares of relative errors, reweighted so that outliers weigh
    less. No negative loss."""
    points = [(1 / m + 1 / n + 1 / k, time * peak / (2 * m * n * k)) for m, n, k, time in products]
    weights = [1 / y**2 for _, y in points]
    base, slope = 1.0, 0.0
    for _ in range(60):
        total = sum(weights)
        x = sum(w * x for w, (x, _) in zip(weights, points)) / total
        y = sum(w * y for w, (_, y) in zip(weights, points)) / total
        square = sum(w * (a - x) ** 2 for w, (a, _) in zip(weights, points))
        slope = max(0.0, sum(w * (a - x) * (b - y) for w, (a, b) in zip(weights, points)) / square)
        base = y - slope * x
        weights = [1 / b**2 / math.sqrt(1 + (((base + slope * a) / b - 1) / 0.1) ** 2) for a, b in points]
    error = statistics.mean(abs((base + slope * a) / b - 1) for a, b in points)
    return 1 / base, slope / base, error


def core_bandwidth(cores, peak, bandwidth, efficiency):
    """Fraction of the bandwidth at which the model of unfused attention takes the measured time: the median."""
    fractions = []
    for scores, width, time in cores:
        low, high = 0.01, 3.0
        while high / low > 1 + 1e-9:
            middle = math.sqrt(low * high)
            reached = bandwidth * middle
            model = scores * (3 * max(4 * width / (peak * efficiency), 4 / reached) + sum(CORE) / reached)
            low, high = (middle, high) if model > time else (low, middle)
        fractions.append(low)
    return statistics.median(fractions)


def of_device(products, device, is_wanted):
    return [(int(r["m"]), int(r["n"]), int(r["k"]), float(r["us"]) * 1e-6) for r in products
            if r["device"] == device and is_wanted(r["source"]) and int(r["m"]) >= LEAST_ROWS]


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent / "results/fidelity/operators")
    products, bound, cores = (rows(folder / f"{name}.csv") for name in ("products", "memory_bound", "attention_core"))
    fractions = {}
    for device, (peak, bandwidth) in SHEETS.items():
        some = of_device(products, device, lambda source: source != GRADIENTS)
        efficiency, loss, error = fit_products(some, peak)
        print(f"{device}: efficiency {efficiency:.3f}, size_loss {loss:.0f} ({len(some)} products, mean error {100 * error:.1f} %)", end="")
        gradients = [2 * m * n * k / (peak * efficiency) * (1 + loss * (1 / m + 1 / n + 1 / k)) / time
                     for m, n, k, time in of_device(products, device, lambda source: source == GRADIENTS)]
        if gradients:
            print(f", gradients x {statistics.median(gradients):.2f} ({len(gradients)} products)", end="")
        scores = [(float(r["scores"]), int(r["width"]), float(r["us"]) * 1e-6) for r in cores if r["device"] == device]
        if scores:
            print(f", core_bandwidth {core_bandwidth(scores, peak, bandwidth, efficiency):.2f}", end="")
        for operator, least in BYTES.items():
            for i, column in enumerate(("forward_us", "backward_us")):
                reached = [least[i] * int(r["elements"]) / (float(r[column]) * 1e-6) / bandwidth for r in bound
                           if r["device"] == device and r["operator"] == operator and int(r["elements"]) >= LEAST_ELEMENTS]
                if reached:
                    fractions.setdefault((operator, i), []).append(statistics.median(reached))
        print()
    for (operator, i), reached in fractions.items():
        print(f"{operator} {('forward', 'backward')[i]}: {statistics.median(reached):.2f} of the bandwidth ({len(reached)} devices)")


if __name__ == "__main__":
    main()
