#!/usr/bin/env bash
# Two ranks exchange data over a link that carries 100 Mbit/s each way at once. With gloo, batch_isend_irecv takes twice as long
# when both ranks list their send before their receive.
#
# Packages: torch 2.15.0 and numpy 2.4.6 from PyPI; iproute2. Needs root, python3 >= 3.11 with venv; downloads 3 GB.
# Input: two ranks with gloo in two network namespaces, joined by a veth pair with a token bucket (tbf) of 100 Mbit/s at each end.
# Each sends the other 1 MiB, ten times, by batch_isend_irecv of one isend and one irecv, and waits for both. One begins 30 ms later.
# Guess: 0.9 s for ten exchanges, in either order. The documentation says: "the relative ordering of sends vs. receives in the list does
# not matter".
# Seen: 0.9 s with the receives first, 1.7 s with the sends first.
# Cause: gloo sends the data when the receiver's message that it is ready has come. With the send first, the rank that begins to send
# puts that message behind its own data, on the one connection that the pair has. So the other rank's data leave after them.
# So: list receives first, or use a process group for each direction. torch's Schedule1F1B lists its sends first.
set -euo pipefail
[ "$(id -u)" = 0 ] && command -v ip tc >/dev/null || { echo "cannot run: needs root, ip and tc" >&2; exit 2; }
folder=$(mktemp -d)
spaces=("finding-$$-0" "finding-$$-1")
trap 'for each in "${spaces[@]}"; do ip netns del "$each" 2>/dev/null || true; done; rm -rf "$folder"' EXIT
{ python3 -m venv "$folder" && "$folder/bin/pip" install --quiet torch==2.15.0 numpy==2.4.6; } ||
  { echo "cannot run: the packages do not install" >&2; exit 2; }
shape() {
  for each in "${spaces[@]}"; do ip netns add "$each" && ip -n "$each" link set lo up || return; done
  ip -n "${spaces[0]}" link add nic type veth peer name nic netns "${spaces[1]}" || return
  for i in 0 1; do
    ip -n "${spaces[i]}" address add "10.77.0.$((i + 1))/24" dev nic && ip -n "${spaces[i]}" link set nic up &&
      tc -n "${spaces[i]}" qdisc add dev nic root tbf rate 100mbit burst 32kb limit 64mb || return
  done
}
shape 2>/dev/null || { echo "cannot run: no network namespaces" >&2; exit 2; }

cat > "$folder/run.py" << 'END'
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
peer = 1 - dist.get_rank()
own, other = torch.zeros(1 << 18), torch.zeros(1 << 18)


def exchanges_s(send_first):
    dist.barrier()
    begin = time.perf_counter()
    time.sleep(0.03 * dist.get_rank())
    for _ in range(10):
        operations = [dist.P2POp(dist.irecv, other, peer), dist.P2POp(dist.isend, own, peer)]
        for work in dist.batch_isend_irecv(operations[::-1] if send_first else operations):
            work.wait()
    dist.barrier()
    return time.perf_counter() - begin


exchanges_s(False)
ratio = statistics.median(exchanges_s(True) for _ in range(3)) / statistics.median(exchanges_s(False) for _ in range(3))
if dist.get_rank() == 0:
    print(f"send first takes more than 1.6 times as long as receive first: {ratio > 1.6}")
sys.stdout.flush()
dist.barrier()
os._exit(0)
END
rank() {
  ip netns exec "${spaces[$1]}" env RANK="$1" WORLD_SIZE=2 MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 GLOO_SOCKET_IFNAME=nic OMP_NUM_THREADS=1 \
    timeout 100 "$folder/bin/python" "$folder/run.py" 2>/dev/null
}
rank 1 &
seen=$(rank 0) || true
wait
expected='send first takes more than 1.6 times as long as receive first: True'
[ "$seen" = "$expected" ] || { echo "changed: expected \"$expected\", seen \"$seen\""; exit 1; }
echo "holds: $seen"
