#!/usr/bin/env bash
# examples/launch/prepare.sh FOLDER: what all ranks of a run share, in FOLDER: the secret by which they know each other,
# and the plan, which was simulated. The scripts beside this one call it.
set -euo pipefail
repository=$(realpath "$(dirname "$0")/../..")
platform=$repository/examples/launch/three_devices.xml
workload=$repository/examples/mnli/bert.yaml
isobar=${ISOBAR:-$repository/build/release/bin/isobar}
folder=${1:?say a folder}
mkdir -p "$folder"
(umask 077; head -c 32 /dev/urandom | base64 >"$folder/secret")
"$isobar" plan "$platform" "$workload" --allocator even --microbatches 2 -o "$folder/plan.json" >/dev/null
"$isobar" simulate "$platform" "$workload" --plan "$folder/plan.json" --stamp >/dev/null
