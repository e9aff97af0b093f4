#!/bin/sh
# Replaces the schedule of a plan by one of your own, written as torch.distributed.pipelining writes it: 1F1B with pairs
# of micro-batches, so that devices compute one while the other crosses the ocean. Simulates the plan before and after.
# Run it in the folder of platforms/, workloads/ and examples/, with isobar on the PATH.
set -eu
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT

platform=platforms/geo_2regions.xml
workload=workloads/bert_large.yaml
isobar plan $platform $workload --allocator even --recompute all --without gcp-us.2,gcp-us.3,gcp-eu.2,gcp-eu.3 \
  -o "$folder/plan.json" | head -n 1
isobar simulate $platform $workload --plan "$folder/plan.json"

isobar schedule import examples/own_schedule.csv $platform $workload --plan "$folder/plan.json" -o "$folder/own.json" |
  sed "s#$folder/##g"
isobar schedule show "$folder/own.json"
isobar simulate $platform $workload --plan "$folder/own.json"
