#!/usr/bin/env bash
# examples/launch/prepare.sh FOLDER: what all ranks of a run share, in FOLDER: the secret by which they know each other,
# and the plan, which was simulated. The scripts beside this one call it.
set -euo pipefail
cd "$(dirname "$0")/../.."
isobar=${ISOBAR:-build/release/bin/isobar}
mkdir -p "$1"
(umask 077; head -c 32 /dev/urandom | base64 >"$1/secret")
"$isobar" plan examples/launch/three_devices.xml examples/mnli/bert.yaml --allocator even --microbatches 2 -o "$1/plan.json" >/dev/null
"$isobar" simulate examples/launch/three_devices.xml examples/mnli/bert.yaml --plan "$1/plan.json" --stamp >/dev/null
