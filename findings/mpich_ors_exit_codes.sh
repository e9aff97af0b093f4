#!/usr/bin/env bash
# MPICH's mpiexec ends with the bitwise OR of its ranks' exit codes: 1 and 2 give 3, a code that no rank returned.
#
# Package: mpich 5.0.2 from PyPI. Needs python3 with venv; downloads 13 MB.
# Input: two ranks that exit with 1 and 2, and two that exit with 65 and 66.
# Guess: a code that some rank returned: the first one, or the largest. Open MPI 4.1.4's mpirun gives 1 for 1 and 2.
# Seen: 3 and 67.
# So: a wrapper that restarts on one code and stops on another can meet a third, which neither rule expects.
# A job over unequal devices is where ranks fail for different reasons. Let the ranks report their codes elsewhere.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
{ python3 -m venv "$folder" && "$folder/bin/pip" install --quiet mpich==5.0.2; } ||
  { echo "cannot run: the package does not install" >&2; exit 2; }

code_of() {
  local code=0
  "$folder/bin/mpiexec" -n 1 sh -c "exit $1" : -n 1 sh -c "exit $2" >/dev/null || code=$?
  echo "$code"
}
seen="1 and 2: $(code_of 1 2); 65 and 66: $(code_of 65 66)"
expected='1 and 2: 3; 65 and 66: 67'
[ "$seen" = "$expected" ] || { echo "changed: expected \"$expected\", seen \"$seen\""; exit 1; }
echo "holds: $seen"
