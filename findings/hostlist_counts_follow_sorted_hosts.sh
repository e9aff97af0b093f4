#!/usr/bin/env bash
# The command `hostlist` pairs Slurm's task counts with hosts that it has sorted, not with the hosts as listed.
#
# Package: python-hostlist 2.3.0 from PyPI. Needs python3 with venv; downloads less than 1 MB.
# Input: hosts `gpu10,gpu2,gpu1` and SLURM_TASKS_PER_NODE `8,1(x2)`: eight tasks on gpu10, one on each of the others.
# Guess: `hostlist --expand --append-slurm-tasks` prints gpu10:8 first, since its library expands the list in its order.
# Seen: the library returns gpu10 gpu2 gpu1; the command prints gpu1:8 gpu2:1 gpu10:1. No warning appears.
# So: a machine file or a rendezvous host from this command is wrong for a list that is not sorted, such as one in the
# order of ranks. The first printed host need not run rank 0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
{ python3 -m venv "$folder" && "$folder/bin/pip" install --quiet python-hostlist==2.3.0; } ||
  { echo "cannot run: the package does not install" >&2; exit 2; }

hosts=gpu10,gpu2,gpu1
library=$("$folder/bin/python" -c "import hostlist; print(*hostlist.expand_hostlist('$hosts'))") || true
command=$("$folder/bin/hostlist" --expand --separator=' ' --append=: --append-slurm-tasks='8,1(x2)' "$hosts") || true

seen="library: $library; command: $command"
expected='library: gpu10 gpu2 gpu1; command: gpu1:8 gpu2:1 gpu10:1'
[ "$seen" = "$expected" ] || { echo "changed: expected \"$expected\", seen \"$seen\""; exit 1; }
echo "holds: $seen"
