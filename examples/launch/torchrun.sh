#!/usr/bin/env bash
# examples/launch/torchrun.sh FOLDER [OPTION...]: starts three ranks with PyTorch's torchrun, from whose environment they
# find each other. Writes the secret and the plan to FOLDER; passes OPTIONs to `isobar run`.
set -euo pipefail
repository=$(realpath "$(dirname "$0")/../..")
mnli=$repository/examples/mnli
folder=${1:?name a folder}
shift
"$repository/examples/launch/prepare.sh" "$folder"
# Without --, torchrun takes an option of Isobar such as --log for its own.
torchrun --no-python --standalone --nproc-per-node 3 -- "${ISOBAR:-$repository/build/release/bin/isobar}" \
  run "$mnli/bert.yaml" --plan "$folder/plan.json" --secret-file "$folder/secret" \
  --data "$mnli/train.tsv" --vocabulary "$mnli/vocab.txt" --evaluate "$mnli/dev.tsv" "$@"
