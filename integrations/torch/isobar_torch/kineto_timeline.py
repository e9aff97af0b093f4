"""Traces of torch's profiler of a plan's ranks as its measured timeline (the work of isobar_torch.kineto)."""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence

import torch

from isobar_torch.document import InputError, write_atomically
from isobar_torch.kineto_collectives import Collective
from isobar_torch.kineto_file import RankFile, by_rank, read_kineto
from isobar_torch.kineto_passes import OPCODES, Moved, Pass, RankReader, RankStep
from isobar_torch.layer_times import profile_text
from isobar_torch.models import own_layers
from isobar_torch.pipeline import CELL, check_order
from isobar_torch.plan import Plan, one_pipeline, order_by_isobar, read_plan
from isobar_torch.timeline import Event, Recorder, move_in_turn, trace_text
from isobar_torch.workload import Workload, read_workload

FACTS_BYTES = 16  # what clipping adds up: two numbers in float64


class ReplayClock:
    """The clock of a recorded rank. `time_us`: the moment that it shows."""

    def __init__(self, file: RankFile) -> None:
        self.memory = file.memory
        self.time_us = 0.0
        self.next = 0

    def now(self) -> float:
        """Seconds of the file's clock."""
        return self.time_us / 1e6

    def seconds(self, mark: float) -> float:
        """A mark is in seconds."""
        return mark

    def memory_bytes(self) -> int:
        """The most recent allocation; 0 in a profile without memory. Moments are asked for in their order."""
        while self.next < len(self.memory) and self.memory[self.next][0] <= self.time_us:
            self.next += 1
        return self.memory[self.next - 1][1] if self.next else 0


class Sizes:
    """Bytes of what ranks exchange."""

    def __init__(self, plan: Plan, workload: Workload) -> None:
        width = 2 if workload.dtype == "bf16" else 4
        self.boundary_bytes = workload.micro_batch * workload.sequence * workload.hidden * width
        with torch.device("meta"):
            layers = list(own_layers(workload, range(len(workload.names())), 0).values())
        # Gradients of each stage, in float32.
        self.parameter_bytes = [4 * sum(each.numel() for layer in layers[stage.first_layer:stage.last_layer + 1]
                                        for each in layer.parameters()) for stage in plan.stages]


def tasks_of(plan: Plan, isobar: str) -> dict[str, list[tuple[int, str, int]]]:
    """The plan's order of work by device: stage, kind, micro-batch of the pipeline. All pipelines have the first's."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, os.path.basename(plan.file))
        write_atomically(path, json.dumps(one_pipeline(plan)))
        text = order_by_isobar(isobar, path)
    check_order(text, f"{isobar} schedule show --csv", plan)
    rows = [line.split(",") for line in text.splitlines() if line.strip()]
    orders = {}
    for index, row in enumerate(rows):
        matches = [CELL.fullmatch(cell.strip()) for cell in row]
        tasks = [(int(match[1]), match[2], int(match[3])) for match in matches if match is not None]
        for replica in range(plan.replicas):
            orders[plan.pipeline(replica)[index]] = tasks
    return orders


def _sums_of(plan: Plan, workload: Workload, step: RankStep, stages: Sequence[int],
             file: RankFile) -> list[tuple[str, int, Moved]]:
    """The all-reduces of the plan's program: payload, stage, and when. Others, such as one of losses, are none of it."""
    last = {stage: max(each.end for each in step.passes if each.stage == stage) for stage in stages}
    own = sorted(last, key=lambda each: last[each]) if plan.replicas > 1 else []
    wanted = [("parameter gradient", stage) for stage in own if plan.sharded != "parameters"]
    if workload.optimizer.clip_norm is not None:
        wanted.append(("gradient facts", stages[0]))
    has_loss = plan.replicas > 1 and len(plan.stages) - 1 in stages
    # Before its first step torch may agree on shapes by others.
    sums = [each for each in step.sums if each.begin > step.passes[0].begin]
    if wanted and len(sums) not in (len(wanted), len(wanted) + has_loss):
        raise InputError(f"{file.name}: step {step.number}: {len(sums)} all-reduces, where the plan has {len(wanted)} on this "
                         "rank; give the plan of this run")
    return [(payload, stage, moved) for (payload, stage), moved in zip(wanted, sums, strict=False)]


def _replay(plan: Plan, workload: Workload, rank: int, file: RankFile, steps: Sequence[RankStep],
            sizes: Sizes) -> list[Event]:
    """The events of a rank, in seconds of its file's clock."""
    clock = ReplayClock(file)
    recorder = Recorder(plan, rank, clock)
    stages = plan.stages_of(plan.devices[rank])
    for number, step in enumerate(steps):
        recorder.begin_step(number)
        work: list[tuple[float, object]] = [(each.begin, each) for each in step.passes]
        work += [(each.begin, each) for each in step.transfers]
        work += [(each[2].begin, each) for each in _sums_of(plan, workload, step, stages, file)]
        work += [(each.begin, each) for each in step.collectives]
        work += [(begin, (stage, end)) for stage, (begin, end) in zip(stages, step.updates, strict=True)]
        for begin, each in sorted(work, key=lambda entry: entry[0]):
            clock.time_us = begin
            if isinstance(each, Pass):
                received = ("Recv", "activation" if each.kind == "F" else "gradient", each.stage + (each.kind != "F"), each.local)
                if any(other.key == received and other.begin > begin for other in step.transfers):
                    raise InputError(f"{file.name}: step {step.number}: {each.stage}{each.kind}{each.local} begins before the "
                                     "transfer that it needs; give the plan of this run")
                with recorder.computing(OPCODES[each.kind], each.stage, each.local):
                    clock.time_us = each.end
            elif isinstance(each, Moved):
                assert each.key is not None
                event = recorder.transfer(*each.key, sizes.boundary_bytes)
                event.end = each.end / 1e6
            elif isinstance(each, Collective):
                size = sizes.parameter_bytes[each.stage]
                event = (recorder.reduce_scatter(each.stage, size) if each.use is None else
                         recorder.gather(each.use, each.stage, each.local, size // plan.replicas))
                event.end = each.end / 1e6
            elif len(each) == 3:
                payload, stage, moved = each
                if payload == "gradient facts":
                    event = recorder.all_reduce(payload, stage, FACTS_BYTES)
                elif plan.sharded == "none":
                    event = recorder.all_reduce(payload, stage, sizes.parameter_bytes[stage])
                else:
                    event = recorder.reduce_scatter(stage, sizes.parameter_bytes[stage])
                event.end = moved.end / 1e6
            else:
                with recorder.computing("Update", each[0]):
                    clock.time_us = each[1]
    return recorder.events


def _align(plan: Plan, files: Sequence[RankFile], events: Sequence[list[Event]]) -> list[str]:
    """Puts all events on rank 0's clock. Returns a line for each rank about its clock.

    Clocks are those of the machines, by the files' baseTimeNanoseconds. What one rank sends another has after it was
    sent, and a collective ends on no rank before it began on all, so ranks that exchange something bound each other's
    clocks. A clock outside the bounds is moved to their middle.
    """
    base_ns = files[0].base_ns or 0
    for file, of_rank in zip(files, events, strict=True):
        shift_s = ((file.base_ns or 0) - base_ns) / 1e9
        for event in of_rank:
            event.begin, event.end = event.begin + shift_s, event.end + shift_s
    # A rank may have sent all of its part of a gather before another one begins.
    met: list[dict[tuple[int, int, int], Event]] = [
        {(event.lane.channel, event.step, event.position): event for event in of_rank
         if event.lane.channel is not None and event.opcode != "AllGather"} for of_rank in events]
    lines = []
    placed = [0]
    while len(placed) < len(files):
        bounds: dict[int, tuple[float, float, int]] = {}
        for rank in placed:
            for other in range(len(files)):
                shared = met[rank].keys() & met[other].keys() if other not in placed else set()
                if shared:
                    ends = [key for key in shared if met[other][key].opcode != "Send"]
                    begins = [key for key in shared if met[other][key].opcode != "Recv"]
                    low = max((met[rank][key].begin - met[other][key].end for key in ends), default=float("-inf"))
                    high = min((met[rank][key].end - met[other][key].begin for key in begins), default=float("inf"))
                    if other not in bounds or high - low < bounds[other][1] - bounds[other][0]:
                        bounds[other] = (low, high, rank)
        if not bounds:
            lines += [f"rank {rank}: exchanges nothing with the others; its clock is that of its machine"
                      for rank in range(len(files)) if rank not in placed]
            break
        rank = min(bounds, key=lambda each: bounds[each][1] - bounds[each][0])
        low, high, against = bounds[rank]
        if low > high:
            raise InputError(f"{files[rank].name}: its clock drifts from that of {files[against].name}: transfers put it both "
                             f"{low:.3g} s or more and {high:.3g} s or less behind; profile fewer steps")
        if not low <= 0 <= high:
            moved = low if high == float("inf") else high if low == float("-inf") else (low + high) / 2
            for event in events[rank]:
                event.begin, event.end = event.begin + moved, event.end + moved
            lines.append(f"rank {rank}: clock moved by {moved:.3g} s, to the middle of what its transfers with rank {against} "
                         f"allow; error up to {(high - low) / 2:.2g} s")
        else:
            lines.append(f"rank {rank}: clock of its machine, which transfers with rank {against} allow; it is at most "
                         f"{-low:.2g} s ahead and {high:.2g} s behind")
        placed.append(rank)
    return lines


def _end_sends(events: Sequence[list[Event]]) -> None:
    """Ends each send where its receive ends: gloo's span of a send lasts until the sender waits for it."""
    ends = {(event.lane.channel, event.step, event.microbatch): event.end for of_rank in events for event in of_rank
            if event.opcode == "Recv"}
    for of_rank in events:
        for event in of_rank:
            if event.opcode == "Send":
                event.end = max(event.begin, ends[event.lane.channel, event.step, event.microbatch])


def _device(options: argparse.Namespace, files: Sequence[RankFile]) -> tuple[str, int]:
    """The type of the profile's device and its memory: of --device and --memory, or of the GPU that all files name."""
    found = {file.device for file in files}
    device, memory_bytes = next(iter(found)) or (None, None)
    if len(found) > 1:
        raise InputError(f"--profile: ranks had {' and '.join(sorted(each[0] if each else 'no GPU' for each in found))}; a profile "
                         "is of one type, profile it alone")
    device, memory_bytes = options.device or device, options.memory or memory_bytes
    for option, value in (("--device", device), ("--memory", memory_bytes)):
        if value is None:
            raise InputError(f"--profile: the traces name no GPU; give {option}")
    return device, memory_bytes


def run(options: argparse.Namespace) -> int:
    """Writes the timeline and the profile, and prints what to know of them. Returns 0. Raises InputError."""
    plan = read_plan(options.plan)
    workload = read_workload(options.workload, plan.settings, plan.micro_batch, own_model=True)
    if plan.workload_hash not in (None, workload.hash):
        raise InputError(f"{plan.file}: inputs.workload.hash: {plan.workload_hash}; {workload.file} has {workload.hash}; pass "
                         "the workload that the plan was made for")
    files = by_rank([read_kineto(name) for name in options.traces], len(plan.devices))
    orders = tasks_of(plan, options.isobar)
    readers = [RankReader(file, plan, rank, orders[plan.devices[rank]]) for rank, file in enumerate(files)]
    steps = [reader.steps(options.from_step) for reader in readers]
    numbers = [[step.number for step in of_rank] for of_rank in steps]
    for file, own in zip(files, numbers, strict=True):
        if own != numbers[0]:
            raise InputError(f"{file.name}: steps {', '.join(map(str, own))}, and {files[0].name} "
                             f"{', '.join(map(str, numbers[0]))}; profile the same steps on each rank")
    sizes = Sizes(plan, workload)
    events = [_replay(plan, workload, rank, file, of_rank, sizes)
              for rank, (file, of_rank) in enumerate(zip(files, steps, strict=True))]
    lines = _align(plan, files, events)
    _end_sends(events)
    for of_rank in events:
        move_in_turn(of_rank)
    if options.profile is not None:
        device, memory_bytes = _device(options, files)
        write_atomically(options.profile, profile_text(plan, workload, readers, steps, device, memory_bytes))
    write_atomically(options.output, trace_text(plan, events))
    if plan.sharded != "none" and not all(step.collectives for of_rank in steps for step in of_rank):
        whose = "FSDP's (fully_shard)" if plan.sharded == "parameters" else "ZeroRedundancyOptimizer's"
        lines.append(f"collectives of parameters are not in the timeline, since the traces have none of {whose}")
    if not any(file.memory for file in files):
        lines.append("no memory, which counts as 0: profile with profile_memory=True")
    for line in lines:
        print(f"isobar_torch.kineto: {line}", file=sys.stderr)
    return 0
