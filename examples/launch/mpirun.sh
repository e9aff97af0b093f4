#!/usr/bin/env bash
# examples/launch/mpirun.sh FOLDER [OPTION...]: starts three ranks with Open MPI's mpirun, from whose environment they
# find each other. Writes the secret and the plan to FOLDER; passes OPTIONs to `isobar run`.
set -euo pipefail
repository=$(realpath "$(dirname "$0")/../..")
mnli=$repository/examples/mnli
folder=${1:?name a folder}
shift
"$repository/examples/launch/prepare.sh" "$folder"
mpirun --oversubscribe -np 3 "${ISOBAR:-$repository/build/release/bin/isobar}" \
  run "$mnli/bert.yaml" --plan "$folder/plan.json" --secret-file "$folder/secret" \
  --data "$mnli/train.tsv" --vocabulary "$mnli/vocab.txt" --evaluate "$mnli/dev.tsv" "$@"
