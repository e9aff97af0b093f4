#!/usr/bin/env python3
"""Fits the start of NCCL's collectives, what they attain of the bandwidth of links, and the latency of their steps, as
sim/generate/fabrics.cpp has them.

A ring all-reduce of D bytes over n GPUs is taken to last as the simulator plays it, start + 2 (n - 1) latency + 2 (n - 1) / n
D / attained, and a send/recv latency + D / attained. Where both directions of a GPU share one bandwidth, a ring has half
of it. Over N nodes it is rings inside the nodes, and a ring of every NIC across them. The constants are those with the least
squares of log(model / measured) over the rows that a fabric names, from 1 MiB. With --errors, prints the mean error of each
count of GPUs.
"""

import argparse
import csv
import math
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "results/fidelity/collectives"
LEAST_BYTES = 2**20

# fabric: nominal GB/s, whether directions share, and rows: file, value of its first columns, collective, ranks
FABRICS = {
    "NVSwitch of A100-SXM4": (300, False, [("nccl", ("vtrain", "A100-SXM4"), "all_reduce", range(4, 9)),
                                                     ("nccl", ("echo", "A100-SXM4-40GB"), "all_reduce", (4, 8))]),
    "NVSwitch of H100-SXM5": (450, False, [("nccl", ("vidur", "H100-SXM5-80GB"), "all_reduce", (4, 8))]),
    "NVLink cube of V100-SXM2": (150, False, [("nccl", ("vtrain", "V100-SXM2"), "all_reduce", (4, 7, 8))]),
    "NVLink pairs of V100-SXM2": (25, False, [("nccl", ("vtrain", "V100-SXM2"), "all_reduce", (2,)),
                                                        ("aceso_collectives", ("V100-SXM2-32GB",),
                                                         "send_recv_intra_node", (2,))]),
    "PCI Express of A10G": (32, False, [("aceso_collectives", ("A10G",), "all_reduce", (2, 4, 8))]),
    "PCI Express of L4": (32, True, [("aceso_collectives", ("L4",), "all_reduce", (2, 4, 8)),
                                       ("aceso_collectives", ("L4",), "send_recv_intra_node", (2,))]),
}
# Between nodes: the fabric inside of them, GPUs of a node, GB/s of each NIC and what is attained of it (send/recv between nodes
# of GH200, 22.9 of 25 GB/s), and the source of the rows
NETWORK = ("NVSwitch of A100-SXM4", 8, 25, 0.9, "echo")
# Fabrics on which one transfer attains less than a GPU of a ring sends: the rows of send/recv
SEND_RECV = {"PCI Express of A10G": ("aceso_collectives", ("A10G",), "send_recv_intra_node", (2,))}


def rows(file, first_columns, collective, ranks):
    """(is_ring, ranks, bytes, seconds) of each row of one node with at least LEAST_BYTES."""
    found = []
    with open(FOLDER / f"{file}.csv", newline="") as text:
        for row in csv.DictReader(text):
            size = float(row["bytes"]) if "bytes" in row else float(row["size_mib"]) * 2**20
            if (tuple(row.values())[:len(first_columns)] == first_columns and row["collective"] == collective
                    and int(row["ranks"]) in ranks and row.get("nodes", "1") == "1" and size >= LEAST_BYTES):
                found.append((collective == "all_reduce", int(row["ranks"]), size, float(row["time_us"]) / 1e6))
    return found


def seconds(row, shares, start, latency, attained):
    is_ring, ranks, size, _ = row
    if not is_ring:
        return latency + size / attained
    steps = 2 * (ranks - 1)
    return start + steps * latency + steps / ranks * size / (attained / 2 if shares else attained)


def mean_error(measured, shares, *constants):
    return sum(abs(math.log(seconds(row, shares, *constants) / row[3])) for row in measured) / len(measured)


def mean_square(measured, shares, *constants):
    return sum(math.log(seconds(row, shares, *constants) / row[3])**2 for row in measured) / len(measured)


def measured_of(fabric):
    return [row for named in FABRICS[fabric][2] for row in rows(*named)]


def fit(fabric):
    """Fraction of the nominal bandwidth, in thousandths, latency, in quarters of a microsecond, and start, in microseconds."""
    least_quarters = 2  # a step of NCCL's fastest protocol over NVLink takes 0.6 us (src/graph/tuning.cc)
    nominal, shares, _ = FABRICS[fabric]
    measured = measured_of(fabric)

    def best(starts, quarters, thousandths):
        return min((mean_square(measured, shares, start * 1e-6, quarter * 2.5e-7, step * 1e6 * nominal), start, quarter, step)
                   for start in starts for quarter in quarters for step in thousandths)

    found = best(range(0, 101, 10), range(least_quarters, 80, 6), range(20, 1001, 20))
    for steps in ((5, 3, 10), (2, 1, 4), (1, 1, 1)):
        while True:
            windows = [range(max(least, at - 2 * by), at + 2 * by + 1, by)
                       for at, by, least in zip(found[1:], steps, (0, least_quarters, 1))]
            nearer = best(*windows)
            if nearer[0] >= found[0]:
                break
            found = nearer
    _, start, quarter, step = found
    return step / 1000, quarter / 4, start


def ring_gain(fabric):
    """What a GPU of a ring attains over what one transfer does, in thousandths; 1 without rows of SEND_RECV."""
    if fabric not in SEND_RECV:
        return 1
    nominal, shares, _ = FABRICS[fabric]
    fraction, latency, start = fit(fabric)
    measured = rows(*SEND_RECV[fabric])
    attained = min(range(1, 1001),
                   key=lambda step: mean_square(measured, shares, start * 1e-6, latency * 1e-6, step * 1e5 * nominal))
    return round(fraction / (attained / 1e4), 3)


def fit_network():
    """Latency of a step between nodes, in quarters of a microsecond; and log(model / measured) of each row."""
    inside, gpus, nic, attained, source = NETWORK
    fraction, latency, start = fit(inside)
    inside_rate = fraction * 1e9 * FABRICS[inside][0]
    with open(FOLDER / "nccl.csv", newline="") as text:
        measured = [(int(row["nodes"]), float(row["bytes"]), float(row["time_us"]) / 1e6) for row in csv.DictReader(text)
                    if row["source"] == source and row["collective"] == "all_reduce" and int(row["nodes"]) > 1
                    and float(row["bytes"]) >= LEAST_BYTES]

    def model(nodes, size, step):
        inside_nodes = 2 * (gpus - 1) * latency * 1e-6 + 2 * (gpus - 1) / gpus * size / inside_rate
        across = 2 * (nodes - 1) * step + 2 * (nodes - 1) / nodes * size / gpus / (attained * nic * 1e9)
        return start * 1e-6 + inside_nodes + across

    errors_of = {quarter: [math.log(model(nodes, size, quarter * 2.5e-7) / time) for nodes, size, time in measured]
                 for quarter in range(1, 81)}
    best = min(errors_of, key=lambda quarter: sum(error**2 for error in errors_of[quarter]))
    return best / 4, errors_of[best]


def errors(fabric, fraction, latency_us, start_us):
    """Mean error of each kind of rows: "ranks" of a ring, or "send/recv"."""
    nominal, shares, _ = FABRICS[fabric]
    kinds = {}
    for row in measured_of(fabric):
        kinds.setdefault(str(row[1]) if row[0] else "send/recv", []).append(row)
    return {kind: mean_error(of_kind, shares, start_us * 1e-6, latency_us * 1e-6, fraction * 1e9 * nominal)
            for kind, of_kind in kinds.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--errors", action="store_true", help="print the mean error of each count of GPUs")
    arguments = parser.parse_args()
    for fabric, (nominal, shares, _) in FABRICS.items():
        fraction, latency, start = fit(fabric)
        measured = measured_of(fabric)
        error = mean_error(measured, shares, start * 1e-6, latency * 1e-6, fraction * 1e9 * nominal)
        print(f"{fabric}: {fraction:.3f} of {nominal} GB/s, {latency} us, start {start} us; mean error {error:.1%} of {len(measured)} rows; "
              f"rings over send/recv {ring_gain(fabric)}")
        if arguments.errors:
            for kind, mean in errors(fabric, fraction, latency, start).items():
                print(f"  {kind}: {mean:.1%}")
    latency, found = fit_network()
    print(f"network: {latency} us; mean error {sum(map(abs, found)) / len(found):.1%} of {len(found)} rows")


if __name__ == "__main__":
    main()
