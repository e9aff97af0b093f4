#!/bin/sh
# Gates the quality of an allocator: approves its plans once, then plans and simulates every row again, as CI does.
# A change for better or worse fails the check until it is approved.
# Run it in the folder of platforms/, workloads/ and examples/, with isobar on the PATH.
set -eu
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT

isobar check "$folder/quality.csv" --init --platforms "platforms/sky16.xml" --workloads "workloads/bert24.yaml" \
  --allocators "even,exec:examples/external_allocator.py" --objectives "step" >"$folder/log" 2>&1
isobar check "$folder/quality.csv" --approve >"$folder/log" 2>&1
isobar check "$folder/quality.csv" | sed "s#$folder#gate#"

# With an approved table that claims even was faster, the check fails and names the row.
sed -i 's/^\(.*,even,step,.*,feasible,\)[0-9.]*/\11.0/' "$folder/quality.csv"
isobar check "$folder/quality.csv" >"$folder/log" 2>&1 || echo "exit code $?"
sed "s#$folder#gate#" "$folder/log"
