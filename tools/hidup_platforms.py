#!/usr/bin/env python3
"""Fits the constants of platforms/hidup_*.xml to the rows of platforms/data/hidup/calibration.csv, and prints them.

With --write, writes the platforms and the profile of operators again, byte for byte.
"""

import argparse
import collections
import csv
import json
import pathlib
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "platforms/data/hidup/calibration.csv"
FOLDER = ROOT / "platforms"

# T-MoE of the traces (platforms/data/hidup/README.md).
SAMPLES, TOKENS, HIDDEN, INTERMEDIATE, HEADS, EXPERTS = 32, 256, 1024, 4096, 4, 16
CAPACITY = 5 * TOKENS // (4 * EXPERTS)
LAYERS = 6
V100, P100 = "V100-SXM2-32GB", "P100-PCIE-16GB"


def rows(group):
    with DATA.open() as file:
        return [row for row in csv.DictReader(file) if row["group"] == group]


def forward_products():
    """FLOP of each forward product of a layer."""
    tokens = SAMPLES * TOKENS
    slots = SAMPLES * EXPERTS * CAPACITY
    square = 2 * tokens * HIDDEN * HIDDEN
    wide = 2 * tokens * HIDDEN * INTERMEDIATE
    scores = 2 * SAMPLES * TOKENS * TOKENS * HIDDEN
    routing = 2 * tokens * HIDDEN * EXPERTS * CAPACITY
    return {"q": square, "k": square, "v": square, "out": square, "scores": scores, "context": scores,
            "linear1": wide, "linear2": wide, "gating": 2 * tokens * HIDDEN * EXPERTS, "dispatch": routing,
            "combine": routing, "expert1": 2 * slots * HIDDEN * INTERMEDIATE,
            "expert2": 2 * slots * HIDDEN * INTERMEDIATE}


def fit(points):
    """The latency and the time of a byte with the least sum of squared relative errors.

    `points`: numbers of messages, bytes and seconds.
    """
    aa = ab = bb = ta = tb = 0.0
    for messages, size, seconds in points:
        a, b = messages / seconds, size / seconds
        aa, ab, bb, ta, tb = aa + a * a, ab + a * b, bb + b * b, ta + a, tb + b
    determinant = aa * bb - ab * ab
    return (ta * bb - tb * ab) / determinant, (tb * aa - ta * ab) / determinant


def collective_points(setup, ranks):
    """Rounds of a ring, or of pairs: messages in turn, and bytes that a rank sends."""
    points = []
    for row in rows("collective"):
        kind = row["item"].split()[0]
        is_least = row["statistic"] == "minimum" or kind == "reduce_scatter"  # which has medians alone
        if row["setup"] != setup or not is_least:
            continue
        size = float(row["size"]) * (ranks - 1) / ranks
        messages = ranks - 1
        if kind == "all_reduce":
            messages, size = 2 * messages, 2 * size
        elif kind == "all_to_all":
            size /= ranks
        points.append((messages, size, float(row["value"]) / 1e3))
    return points


def efficiencies():
    """Entries of work and part of the full rate, and the full rate in FLOP/s.

    The full rate is that of the fastest forward product of DDP. Small work follows the einsum by batch, in proportion to
    its rate at batch 128, which is set to the mean of the products of DDP around its work. Above that, each work has the
    mean of the products of DDP with that work: total FLOP / total time.
    """
    times = {row["item"]: float(row["value"]) / 1e3 for row in rows("ddp_forward_gemm")}
    flops = forward_products()
    full = max(flops[name] / times[name] for name in times)
    groups = collections.defaultdict(lambda: [0.0, 0.0])
    for name, seconds in times.items():
        groups[flops[name]][0] += flops[name]
        groups[flops[name]][1] += seconds
    large = [(work, total / seconds / full) for work, (total, seconds) in sorted(groups.items()) if work > 1e10]
    small = []
    for row in rows("einsum_efficiency"):
        batch = int(row["item"].split()[1])
        small.append((2 * batch * 2 * 20 * 768 * 3072, float(row["value"])))
    (below, low), (above, high) = large[0], large[1]
    last = small[-1][0]
    level = low + (last - below) / (above - below) * (high - low)
    entries = [(work, level * part) for work, part in small] + [entry for entry in large if entry[0] > last]
    entries.sort()
    return entries, full


def memory_bandwidth():
    """Bytes per second of DeepSpeed's fused Adam: 7 numbers of 4 bytes for each parameter of a rank."""
    milliseconds = next(float(row["value"]) for row in rows("deepspeed_class") if row["item"] == "adam")
    dense = 4 * HIDDEN**2 + 2 * HIDDEN * INTERMEDIATE + 9 * HIDDEN + INTERMEDIATE
    replicated = 4 * HIDDEN**2 + 8 * HIDDEN + HIDDEN * EXPERTS
    experts = EXPERTS // 4 * (2 * HIDDEN * INTERMEDIATE + HIDDEN + INTERMEDIATE)
    return LAYERS // 2 * (dense + replicated + experts) * 7 * 4 / (milliseconds / 1e3)


def sustained():
    """FLOP per second of all products of a step of DDP."""
    flops = forward_products()
    dense = sum(flops[name] for name in ("q", "k", "v", "scores", "context", "out", "linear1", "linear2"))
    experts = sum(flops[name] for name in ("q", "k", "v", "scores", "context", "out", "gating", "dispatch", "expert1",
                                           "expert2", "combine"))
    forward = LAYERS // 2 * (dense + experts)
    # The mask of dispatch has no gradient, nor have the data that the first operator reads.
    backward = 2 * forward - LAYERS // 2 * flops["dispatch"] - flops["q"] - flops["k"] - flops["v"]
    seconds = sum(float(row["value"]) / 1e3 for row in rows("ddp_gemm_sum"))
    return (forward + backward) / seconds


def interference(setup):
    """How many times longer products take beside an AllReduce of 256 MB."""
    row = next(row for row in rows("interference") if row["setup"] == setup and row["size"] == "256 MB")
    return round(1 + float(row["value"]) / 100, 4)


def constants():
    inside, inside_byte = fit(collective_points("1x4", 4))
    between, between_byte = fit(collective_points("2x4", 8))
    entries, full = efficiencies()
    return {"nvlink_latency_us": round(inside * 1e6, 1), "nvlink_GBps": round(1 / inside_byte / 1e9, 1),
            "nic_latency_us": round(between * 1e6, 1), "nic_GBps": round(1 / between_byte / 1e9, 1),
            "flops_per_s": float(f"{full:.4g}"), "sustained_Tflops": round(sustained() / 1e12, 2),
            "memory_bandwidth_bytes_per_s": float(f"{memory_bandwidth():.3g}"),
            "efficiency": [{"work_flop": work, "fraction": round(part, 3)} for work, part in entries],
            "interference_one_node": interference("1 node"), "interference_nodes": interference("2 nodes")}


class Platform:
    """Nodes round a switch. The devices of a node have a link each; all share the node's."""

    def __init__(self, name, comment, known):
        self.name = name
        self.known = known
        text = textwrap.indent(textwrap.fill(" ".join(comment.split()), 115), "  ")
        self.lines = ['<?xml version="1.0"?>', '<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">', "<!--",
                      text, "-->", '<platform version="4.1">', f'  <zone id="{name}" routing="Floyd">',
                      '    <prop id="made_by" value="tools/hidup_platforms.py --write"/>']
        self.nodes = []

    def add_node(self, devices, kind, speed, memory, inside, between, interference):
        """`inside`, `between`: bandwidth in GB/s and latency in us, of a device's link and of the node's."""
        node = f"node-{len(self.nodes)}"
        self.nodes.append(node)
        add = self.lines.append
        add(f'    <zone id="{node}" routing="Full">')
        add(f'      <prop id="site" value="{node}"/>')
        for i in range(devices):
            add(f'      <host id="{node}.{i}" speed="{speed}">')
            for prop, value in (("device", kind), ("memory", memory), ("interference", interference)):
                add(f'        <prop id="{prop}" value="{value}"/>')
            add("      </host>")
            add(f'      <link id="gpu.{node}.{i}" bandwidth="{inside[0]}GBps" latency="0us" '
                'sharing_policy="SPLITDUPLEX"/>')
        add(f'      <link id="inside.{node}" bandwidth="1000GBps" latency="{inside[1]}us" sharing_policy="FATPIPE"/>')
        add(f'      <router id="{node}.router"/>')
        up = "      <route src=\"{}\" dst=\"{}\" symmetrical=\"NO\">{}</route>".format
        link = '<link_ctn id="gpu.{}" direction="{}"/>'.format
        for a in range(devices):
            a_host = f"{node}.{a}"
            for b in range(devices):
                b_host = f"{node}.{b}"
                if a != b:
                    add(up(a_host, b_host,
                           link(a_host, "UP") + f'<link_ctn id="inside.{node}"/>' + link(b_host, "DOWN")))
            add(up(a_host, f"{node}.router", link(a_host, "UP")))
            add(up(f"{node}.router", a_host, link(a_host, "DOWN")))
        add("    </zone>")
        add(f'    <link id="nic.{node}" bandwidth="{between[0]}GBps" latency="{between[1]}us" '
            'sharing_policy="SPLITDUPLEX"/>')

    def text(self):
        add = self.lines.append
        add('    <zone id="network" routing="Full">')
        add('      <router id="switch"/>')
        add("    </zone>")
        for node in self.nodes:
            add(f'    <zoneRoute src="{node}" dst="network" gw_src="{node}.router" gw_dst="switch">')
            add(f'      <link_ctn id="nic.{node}" direction="UP"/>')
            add("    </zoneRoute>")
        return "\n".join(self.lines + ["  </zone>", "</platform>"]) + "\n"


def platforms(known):
    """The text of each platform, by name."""
    inside = known["nvlink_GBps"], known["nvlink_latency_us"]
    latency = round(known["nic_latency_us"] / 2, 2)
    rdma = known["nic_GBps"], latency
    speed = f"{known['sustained_Tflops']}Tf"
    memory = "32 GB"
    source = ("Made by tools/hidup_platforms.py; platforms/data/hidup/README.md says which rows each constant is fitted "
              "to. Speed: all matrix products of a step; --profile platforms/hidup.profile.json has rates by "
              "operator. Memory: decimal GB of the data sheet.")
    one, many = known["interference_one_node"], known["interference_nodes"]
    nodes = {"1x4": (1, 4, rdma, one, "A node of HiDup's testbed B: 4 V100 with NVLink."),
             "2x4": (2, 4, rdma, many, "HiDup's testbed B: two nodes of 4 V100 with NVLink, 100 Gb/s RDMA between "
                                       "them, of which collectives reached the bandwidth of the file."),
             "8x8": (8, 8, (round(9.71 / 8, 5), latency), many,
                     "HiDup's testbed A: eight nodes of 8 V100 with NVLink, 9.71 Gb/s between them as published; "
                     "inside, interference and latency as of testbed B, not calibrated here.")}
    result = {}
    for name, (count, devices, between, slowing, what) in nodes.items():
        platform = Platform(f"hidup_{name}", f"{what} {source}", known)
        for _ in range(count):
            platform.add_node(devices, V100, speed, memory, inside, between, slowing)
        result[f"hidup_{name}"] = platform.text()
    machines = Platform("hap", "HAP's machines: two nodes of 8 V100 and six of 8 P100, 10.4 Gb/s between them as "
                        "published. The V100 are those of HiDup. The P100 are not calibrated: float32 9.3 TFLOP/s, "
                        "16 GB and PCIe of 16 GB/s a direction, of the NVIDIA Tesla P100 data sheet, 2016; their "
                        f"latency is that of NVLink here. {source}", known)
    between = round(10.4 / 8, 5), latency
    for _ in range(2):
        machines.add_node(8, V100, speed, memory, inside, between, many)
    for _ in range(6):
        machines.add_node(8, P100, "9.3Tf", "16 GB", (16, inside[1]), between, many)
    result["hap_16v100_48p100"] = machines.text()
    return result


def profile(known):
    rates = {key: known[key] for key in ("flops_per_s", "memory_bandwidth_bytes_per_s", "efficiency")}
    # Not calibrated: the NVIDIA Tesla P100 data sheet, 2016.
    return {"schema": "isobar-profile/1",
            "operator_rates": {V100: rates, P100: {"flops_per_s": 9.3e12, "memory_bandwidth_bytes_per_s": 732e9}}}


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--write", action="store_true", help="write them again")
    options = options.parse_args()
    known = constants()
    print(json.dumps(known, indent=2))
    if not options.write:
        return
    for name, text in platforms(known).items():
        (FOLDER / f"{name}.xml").write_text(text)
    (FOLDER / "hidup.profile.json").write_text(json.dumps(profile(known), indent=2) + "\n")


if __name__ == "__main__":
    main()
