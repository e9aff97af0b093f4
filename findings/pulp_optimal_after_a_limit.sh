#!/usr/bin/env bash
# PuLP reports "Optimal" for a placement that CBC had to return at its limit, and that is not optimal.
#
# Package: PuLP 3.3.2 from PyPI, with the CBC that it bundles. Needs python3 with venv; downloads 16 MB.
# Input: place 42 layers on six devices of speeds 2, 3, 3, 5, 7, 8. The layers are cut from a perfect placement, so that
# the optimum of the slowest device's time is 1000. The solver stops after one node.
# Guess: a status such as "Not Solved" or "Feasible", as the limit was reached and a gap is left.
# Seen: LpStatus is "Optimal" with an objective above 1000; solve() returns 1. Only `sol_status` differs: 2 instead of 1.
# A time limit (timeLimit) gives the same status; the limit of nodes makes this script independent of the machine's speed.
# So: a study that counts LpStatus "Optimal" counts unproven plans. Test `sol_status == LpSolutionOptimal`.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
{ python3 -m venv "$folder" && "$folder/bin/pip" install --quiet PuLP==3.3.2; } ||
  { echo "cannot run: the package does not install" >&2; exit 2; }

seen=$("$folder/bin/python" - <<'END'
import random

import pulp

random.seed(1)
OPTIMUM = 1000
speeds = [2, 3, 3, 5, 7, 8]
layers = []
for speed in speeds:
    cuts = sorted(random.sample(range(1, speed * OPTIMUM), 6))
    layers += [end - begin for begin, end in zip([0] + cuts, cuts + [speed * OPTIMUM])]
random.shuffle(layers)

problem = pulp.LpProblem("placement", pulp.LpMinimize)
on = [[pulp.LpVariable(f"layer{i}_on{j}", cat="Binary") for j in range(len(speeds))] for i in range(len(layers))]
slowest = pulp.LpVariable("slowest")
problem += slowest
for row in on:
    problem += pulp.lpSum(row) == 1
for j, speed in enumerate(speeds):
    problem += pulp.lpSum(work * row[j] for work, row in zip(layers, on)) <= speed * slowest
status = problem.solve(pulp.PULP_CBC_CMD(msg=False, threads=1, maxNodes=1))
worse = "above the optimum" if slowest.value() > OPTIMUM + 0.5 else "the optimum"
print(f"status {status} {pulp.LpStatus[problem.status]}; sol_status {problem.sol_status}; {worse}")
END
) || true
expected='status 1 Optimal; sol_status 2; above the optimum'
[ "$seen" = "$expected" ] || { echo "changed: expected \"$expected\", seen \"$seen\""; exit 1; }
echo "holds: $seen"
