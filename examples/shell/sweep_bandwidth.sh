#!/bin/sh
# Runs a grid of bandwidths, allocators and seeds, and prints the mean of each group with its confidence interval.
# Run it in the folder of platforms/, workloads/ and examples/, with isobar on the PATH.
set -eu
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT

isobar sweep examples/bandwidth_sweep.yaml --database "$folder/runs.db" --summary "$folder/means.csv" >"$folder/log" 2>&1
head -n 4 "$folder/means.csv"
