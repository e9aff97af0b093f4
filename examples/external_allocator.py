#!/usr/bin/env python3
"""An external allocator: assigns layers in proportion to speed, in the order of the platform file.

    isobar plan platforms/sky16.xml workloads/bert24.yaml --allocator exec:examples/external_allocator.py

Reads one JSON object from standard input and writes one to standard output (format: docs/own_allocator.md). isobar checks
the answer, refuses an invalid one, and computes every time and bound itself.
"""

import json
import sys


def place(problem):
    layers = problem["workload"]["layers"]
    devices = problem["cluster"]["devices"]
    work = [layer["forward_flops"] + layer["backward_flops"] for layer in layers]
    speed = [device["speed_flops_per_s"] for device in devices]

    # Layer k goes to the device whose share of the total speed contains the middle of the layer's work.
    stages = []
    before = 0.0  # work of the previous layers
    device = 0
    end = speed[0]  # speed of the devices up to and including this one
    for k, amount in enumerate(work):
        middle = (before + amount / 2) / (sum(work) or 1) * sum(speed)
        while middle > end and device + 1 < len(devices):
            device += 1
            end += speed[device]
        if stages and stages[-1]["device"] == devices[device]["name"]:
            stages[-1]["last_layer"] = k
        else:
            stages.append({"device": devices[device]["name"], "first_layer": k, "last_layer": k})
        before += amount
    return {"stages": stages}


if __name__ == "__main__":
    json.dump(place(json.load(sys.stdin)), sys.stdout)
