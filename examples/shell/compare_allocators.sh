#!/bin/sh
# Compares allocators, including an external program, on one platform and workload, and keeps the rows as CSV.
# Run it in the folder of platforms/, workloads/ and examples/, with isobar on the PATH.
set -eu
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT

isobar compare platforms/sky16.xml workloads/bert24.yaml \
  --allocators even,chain-dp,exec:examples/external_allocator.py -o "$folder/rows.csv"
cut -d, -f3,9,13 "$folder/rows.csv"
