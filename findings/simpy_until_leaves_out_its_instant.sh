#!/usr/bin/env bash
# SimPy's run(until=100) sets the clock to 100 without the events of time 100, whatever was scheduled first.
#
# Package: simpy 4.1.2 from PyPI. Needs python3 with venv; downloads less than 1 MB.
# Input: two jobs of a cluster, which end at 99 and at 100.
# Guess: at time 100 both have ended, as the second job's event was scheduled before run() was called.
# Seen: the clock is 100 and one job has ended. The second ends in the next run(), at time 100 too.
# So: a horizon that is a multiple of the jobs' durations loses the last round of completions, for example in goodput.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
{ python3 -m venv "$folder" && "$folder/bin/pip" install --quiet simpy==4.1.2; } ||
  { echo "cannot run: the package does not install" >&2; exit 2; }

seen=$("$folder/bin/python" - <<'END'
import simpy

ends = []


def job(environment, duration):
    yield environment.timeout(duration)
    ends.append(environment.now)


environment = simpy.Environment()
for duration in (99, 100):
    environment.process(job(environment, duration))
environment.run(until=1)  # both jobs have begun: their ends are scheduled
environment.run(until=100)
print(f"clock {environment.now:g}, ended {ends}", end="; ")
environment.run()
print(f"clock {environment.now:g}, ended {ends}")
END
) || true
expected='clock 100, ended [99]; clock 100, ended [99, 100]'
[ "$seen" = "$expected" ] || { echo "changed: expected \"$expected\", seen \"$seen\""; exit 1; }
echo "holds: $seen"
