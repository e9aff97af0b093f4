#!/bin/sh
# Makes a platform of two sites, plans GPT-2 on it, checks every claim of the plan, and simulates one step.
# Run it in the folder of platforms/, workloads/ and examples/, with isobar on the PATH.
set -eu
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT

isobar platform generate sites --site-devices 2xA100-SXM4-40GB,4xT4 --wan-bandwidth "5 Gbit/s" --wan-rtt "30 ms" \
  -o "$folder/sites.xml"
isobar plan "$folder/sites.xml" workloads/gpt2_774m.yaml --allocator chain-dp -o "$folder/plan.json"
isobar verify "$folder/sites.xml" workloads/gpt2_774m.yaml "$folder/plan.json" | sed "s#$folder/##"
isobar simulate "$folder/sites.xml" workloads/gpt2_774m.yaml --plan "$folder/plan.json"
