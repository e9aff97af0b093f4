#!/usr/bin/env bash
# examples/launch/torchrun.sh FOLDER [OPTION...]: torchrun, of Python's torch, starts a process for each of three ranks,
# which find each other by what it tells them. FOLDER holds the secret and the plan; options go to `isobar run`.
set -euo pipefail
repository=$(realpath "$(dirname "$0")/../..")
mnli=$repository/examples/mnli
folder=${1:?say a folder}
shift
"$repository/examples/launch/prepare.sh" "$folder"
torchrun --no-python --standalone --nproc-per-node 3 "${ISOBAR:-$repository/build/release/bin/isobar}" \
  run "$mnli/bert.yaml" --plan "$folder/plan.json" --secret-file "$folder/secret" \
  --data "$mnli/train.tsv" --vocabulary "$mnli/vocab.txt" --evaluate "$mnli/dev.tsv" "$@"
