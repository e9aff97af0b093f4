#!/usr/bin/env bash
# examples/launch/mpirun.sh FOLDER [OPTION...]: Open MPI's mpirun starts a process for each of three ranks, which find
# each other by what it tells them. FOLDER holds the secret and the plan; options go to `isobar run`.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$1
shift
examples/launch/prepare.sh "$folder"
mpirun -np 3 "${ISOBAR:-build/release/bin/isobar}" run examples/mnli/bert.yaml \
  --plan "$folder/plan.json" --secret-file "$folder/secret" \
  --data examples/mnli/train.tsv --vocabulary examples/mnli/vocab.txt --evaluate examples/mnli/dev.tsv "$@"
