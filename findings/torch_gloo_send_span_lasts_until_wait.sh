#!/usr/bin/env bash
# In a profile, gloo's span of an isend does not end when the data have arrived. It ends when the sender calls wait().
#
# Packages: torch 2.15.0 and numpy 2.4.6 from PyPI. Needs python3 >= 3.11 with venv; downloads 3 GB.
# Input: two ranks on CPUs with gloo. Rank 0 sends 4 bytes by isend, sleeps for a second, and waits for the work. Rank 1 posts
# its recv at that time, and notes how long it took. torch.profiler records rank 0.
# Guess: a span gloo:send of milliseconds, as long as the transfer. Profiles of NCCL show kernels, which end with it.
# Seen: a receive of less than half a second, and a span gloo:send of a second or more.
# Cause: gloo's works for send and recv have no callback for their end. ProcessGroupGloo ends the span in wait().
# So: torch's pipeline runtime waits for all sends at the end of a step. Spans gloo:send of a pipeline then last until there, and
# the sum of their times is many times the step. The receiver's span, which is waited for at once, has the time of the transfer.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
{ python3 -m venv "$folder" && "$folder/bin/pip" install --quiet torch==2.15.0 numpy==2.4.6; } ||
  { echo "cannot run: the packages do not install" >&2; exit 2; }

cat > "$folder/run.py" << 'END'
import json
import os
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
data = torch.ones(1)
# Ranks connect at their first transfer.
dist.send(data, 1) if rank == 0 else dist.recv(data, 0)
dist.barrier()
if rank == 0:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        dist.barrier()
        work = dist.isend(data, 1)
        time.sleep(1)
        work.wait()
    file = os.path.join(os.path.dirname(__file__), "trace.json")
    profiler.export_chrome_trace(file)
    with open(file) as trace:
        spans = [each["dur"] / 1e6 for each in json.load(trace)["traceEvents"] if each.get("name") == "gloo:send"]
    received = torch.zeros(1, dtype=torch.float64)
    dist.recv(received, 1)
    print(f"received in less than 0.5 s: {received.item() < 0.5}; "
          f"spans of gloo:send: {len(spans)}, a second or more: {sum(each >= 1 for each in spans)}")
else:
    dist.barrier()
    begin = time.perf_counter()
    dist.recv(data, 0)
    took = time.perf_counter() - begin
    dist.send(torch.tensor([took], dtype=torch.float64), 0)
sys.stdout.flush()
dist.barrier()
os._exit(0)
END
seen=$(OMP_NUM_THREADS=1 "$folder/bin/python" -m torch.distributed.run --standalone --nproc-per-node 2 "$folder/run.py" 2>/dev/null) || true
expected='received in less than 0.5 s: True; spans of gloo:send: 1, a second or more: 1'
[ "$seen" = "$expected" ] || { echo "changed: expected \"$expected\", seen \"$seen\""; exit 1; }
echo "holds: $seen"
