#!/usr/bin/env bash
# Blocks that fully_shard wraps, as its documentation advises, get gradients of only some micro-batches, or none, under torch's
# zero-bubble schedules. Nothing is reported.
#
# Packages: torch 2.15.0 and numpy 2.4.6 from PyPI. Needs python3 >= 3.11 with venv; downloads 3 GB.
# Input: two ranks on CPUs with gloo, four stages of two linear layers each, four micro-batches; fully_shard of each first
# linear layer, then of each stage, over a mesh of one rank. Counted: the gradients, of 16, that differ from those of a
# schedule with whole backward passes on the same data.
# Guess: none, since torch.distributed.pipelining says that its schedules work with FSDP.
# Seen: none with one fully_shard for the whole stage. With the inner one, those of the inner layers of all stages but the
# first: 4 are too small, since micro-batches are missing, and 2 are None.
# Cause: a zero-bubble schedule splits a backward pass, and takes the gradients of what module.parameters() gives at that
# time. Inner blocks are resharded after their forward pass, so these are the shards, which the graph does not have.
# So: such schedules need reshard_after_forward=False, or one fully_shard for the whole stage.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
{ python3 -m venv "$folder" && "$folder/bin/pip" install --quiet torch==2.15.0 numpy==2.4.6; } ||
  { echo "cannot run: the packages do not install" >&2; exit 2; }

cat > "$folder/run.py" << 'END'
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, schedules

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
alone = [dist.new_group([each]) for each in range(2)][rank]


def gradients(kind, is_nested):
    torch.manual_seed(0)
    stages = []
    for index in (rank, rank + 2):
        module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        mesh = DeviceMesh.from_group(alone, "cpu")
        if is_nested:
            fully_shard(module[0], mesh=mesh)
        fully_shard(module, mesh=mesh)
        stages.append(PipelineStage(module, index, 4, torch.device("cpu")))
    schedule = kind(stages, 4, loss_fn=nn.functional.mse_loss)
    schedule.step(*([torch.randn(8, 8)] if rank == 0 else []), target=torch.randn(8, 8) if rank == 1 else None, losses=[])
    return [each.grad if each.grad is None else each.grad.to_local() for stage in stages for each in stage.submod.parameters()]


def wrong(is_nested):
    expected = gradients(schedules.ScheduleInterleaved1F1B, is_nested)
    found = gradients(schedules.ScheduleInterleavedZeroBubble, is_nested)
    none = sum(each is None for each in found)
    counts = torch.tensor([none, sum(each is not None and not torch.allclose(each, other, rtol=1e-3)
                                     for each, other in zip(found, expected))])
    dist.all_reduce(counts)
    return counts.tolist()


texts = ["{} of 16 None, {} too small".format(*wrong(is_nested)) for is_nested in (False, True)]
if rank == 0:
    print(f"one fully_shard: {texts[0]}; with an inner one: {texts[1]}")
sys.stdout.flush()
os._exit(0)
END
seen=$(OMP_NUM_THREADS=1 "$folder/bin/python" -m torch.distributed.run --standalone --nproc-per-node 2 "$folder/run.py" 2>/dev/null) || true
expected='one fully_shard: 0 of 16 None, 0 too small; with an inner one: 2 of 16 None, 4 too small'
[ "$seen" = "$expected" ] || { echo "changed: expected \"$expected\", seen \"$seen\""; exit 1; }
echo "holds: $seen"
