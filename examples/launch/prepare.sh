#!/usr/bin/env bash
# examples/launch/prepare.sh FOLDER: writes what all ranks of a run share to FOLDER: the secret with which they authenticate
# each other, and a simulated plan. Called by the other scripts in this folder.
set -euo pipefail
repository=$(realpath "$(dirname "$0")/../..")
platform=$repository/examples/launch/three_devices.xml
workload=$repository/examples/mnli/bert.yaml
isobar=${ISOBAR:-$repository/build/release/bin/isobar}
folder=${1:?name a folder}
mkdir -p "$folder"
(umask 077; head -c 32 /dev/urandom | base64 >"$folder/secret")
"$isobar" plan "$platform" "$workload" --allocator even --microbatches 2 -o "$folder/plan.json" >/dev/null
"$isobar" simulate "$platform" "$workload" --plan "$folder/plan.json" --stamp >/dev/null
