"""What a rank did and when, and the trace file of all ranks (docs/formats/trace.md)."""

import contextlib
import dataclasses
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from isobar_torch.plan import Plan

COMPUTE = "compute"
ROUND_TRIPS = 21
# What replicas gather parameters for, by what they divide.
GATHERED_FOR = {"none": (), "optimizer": ("update",), "parameters": ("forwards", "backwards")}
GATHER_LANES = {"update": "gather parameters", "forwards": "gather for forwards", "backwards": "gather for backwards"}


@dataclasses.dataclass(frozen=True)
class Lane:
    """A track of a rank. Lanes with the same channel meet; `peer` is the rank at the other end of a transfer."""

    name: str
    channel: int | None = None
    peer: int | None = None


@dataclasses.dataclass
class Event:
    """An instruction. `begin` and `end` are marks of the rank's clock, in a finished trace seconds."""

    opcode: str
    lane: Lane
    step: int
    position: int  # in its lane and step
    stage: int
    microbatch: int  # of the step, not of the replica
    begin: Any
    end: Any = None
    payload: str | None = None
    size_bytes: int = 0
    memory_bytes: int = 0
    waits: list[tuple[str, int]] = dataclasses.field(default_factory=list)  # lanes, and how many instructions of them


class Clock:
    """Marks moments of a rank: seconds on a CPU, events of the current stream on a GPU, which the computation passes."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            self.base = torch.cuda.Event(enable_timing=True)
            self.base.record()
            torch.cuda.synchronize(device)
        self.base_s = time.perf_counter()

    def now(self) -> Any:
        """A mark of this moment."""
        if self.device.type == "cpu":
            return time.perf_counter()
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        return mark

    def seconds(self, mark: Any) -> float:
        """When the mark was, by this process's time.perf_counter()."""
        if self.device.type == "cpu":
            return mark
        mark.synchronize()
        return self.base_s + self.base.elapsed_time(mark) / 1e3

    def memory_bytes(self) -> int:
        """What the device holds now: a GPU's tensors, or the resident memory of this process."""
        if self.device.type == "cuda":
            return torch.cuda.memory_allocated(self.device)
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * 4096


class WatchedWork:
    """A transfer or collective whose end a thread of its lane waits for, so that its time is known."""

    def __init__(self, work: Any, event: Event) -> None:
        self.work, self.event = work, event
        self.done = threading.Event()
        self.fault: Exception | None = None

    def watch(self, clock: Clock) -> None:
        """Waits, and notes when that ended."""
        try:
            self.work.wait()
        except Exception as fault:  # raised again where the result is needed
            self.fault = fault
        self.event.end = clock.now()
        self.done.set()

    def wait(self, timeout: Any = None) -> bool:  # as torch's Work
        """As torch's Work."""
        self.done.wait()
        if self.fault is not None:
            raise self.fault
        return True


def lanes_of(plan: Plan, rank: int) -> dict[tuple[str, str, int], Lane]:
    """The transfers and sums of a rank: by opcode, payload, and the stage whose input or parameters they carry.

    Names are those of Isobar's programs, so that a measured and a predicted trace have the same lanes.
    """
    ranks = {device: index for index, device in enumerate(plan.devices)}
    device = plan.devices[rank]
    found: list[tuple[tuple[str, str, int], str, int, int | None]] = []
    pipelines = range(plan.replicas)
    for boundary in range(1, len(plan.stages)):
        before, after = plan.stages[boundary - 1], plan.stages[boundary]
        for k in pipelines:
            if before.devices[k] == after.devices[k] or device not in (before.devices[k], after.devices[k]):
                continue
            sends = device == before.devices[k]
            peer = ranks[after.devices[k] if sends else before.devices[k]]
            channel = 2 * ((boundary - 1) * plan.replicas + k)
            found.append((("Send" if sends else "Recv", "activation", boundary),
                          f"{'send' if sends else 'receive'} activation", channel, peer))
            found.append((("Recv" if sends else "Send", "gradient", boundary),
                          f"{'receive' if sends else 'send'} gradient", channel + 1, peer))
    sums = 2 * (len(plan.stages) - 1) * plan.replicas
    stages = plan.stages_of(device)
    if plan.replicas > 1:
        summing = "AllReduce" if plan.sharded == "none" else "ReduceScatter"
        found += [((summing, "parameter gradient", stage), "sync gradients", sums + stage, None) for stage in stages]
    # After the sums and the gradient facts.
    gathers = sums + len(plan.stages) + 1
    for place, use in enumerate(GATHERED_FOR[plan.sharded]):
        found += [(("AllGather", use, stage), GATHER_LANES[use], gathers + place * len(plan.stages) + stage, None) for stage in stages]
    names = [name for _, name, _, _ in found]
    lanes = {key: Lane(f"{name} {key[2]}" if names.count(name) > 1 else name, channel, peer)
             for key, name, channel, peer in found}
    lanes["AllReduce", "gradient facts", stages[0]] = Lane("sync", sums + len(plan.stages))
    return lanes


class Recorder:
    """Notes what a rank does. Its methods are called in the order of the work.

    `clock`: a `Clock`, or what has its methods and shows when recorded work was done.
    """

    def __init__(self, plan: Plan, rank: int, clock: Any) -> None:
        self.plan, self.rank, self.clock = plan, rank, clock
        self.replica = next(stage.devices.index(plan.devices[rank]) for stage in plan.stages
                            if plan.devices[rank] in stage.devices)
        self.lanes = lanes_of(plan, rank)
        self.events: list[Event] = []
        self.step = 0
        self.positions: dict[str, int] = {}
        self.threads: dict[str, queue.SimpleQueue[WatchedWork]] = {}
        self.pending: dict[tuple[str, int, int], Event] = {}  # receives on a GPU: payload, boundary, micro-batch

    def begin_step(self, step: int) -> None:
        """All that follows belongs to this step."""
        self.step, self.positions = step, {}

    def _add(self, opcode: str, lane: Lane, stage: int, microbatch: int) -> Event:
        position = self.positions.get(lane.name, 0)
        self.positions[lane.name] = position + 1
        event = Event(opcode, lane, self.step, position, stage, microbatch, self.clock.now())
        self.events.append(event)
        return event

    def _microbatch(self, local: int) -> int:
        return local * self.plan.replicas + self.replica

    @contextlib.contextmanager
    def computing(self, opcode: str, stage: int, local: int | None = None) -> Iterator[None]:
        """A pass of a micro-batch of this pipeline, or an update."""
        event = self._add(opcode, Lane(COMPUTE), stage, self._microbatch(local or 0))
        if opcode == "Forward":
            self._wait_for(event, "Recv", "activation", stage, local)
        elif opcode in ("Backward", "BackwardInput"):
            self._wait_for(event, "Recv", "gradient", stage + 1, local)
        elif opcode == "Update":
            event.waits = [(name, 1) for name in sorted(self.positions) if name.startswith("sync")]
        yield
        event.end, event.memory_bytes = self.clock.now(), self.clock.memory_bytes()

    def _wait_for(self, event: Event, opcode: str, payload: str, boundary: int, local: int | None) -> None:
        lane = self.lanes.get((opcode, payload, boundary))
        if lane is None:
            return
        received = self.pending.pop((payload, boundary, event.microbatch), None)
        if received is None:
            received = next(each for each in reversed(self.events)
                            if each.lane == lane and each.microbatch == event.microbatch)
        else:
            received.end = event.begin
        event.waits.append((lane.name, received.position + 1))

    def loss_computed(self) -> None:
        """The loss belongs to the forward pass before it. Before the first step torch calls the loss to learn shapes."""
        if self.events and self.events[-1].opcode == "Forward":
            self.events[-1].end = self.clock.now()

    def transferring(self, operation: Any, opcode: str, payload: str, boundary: int, local: int) -> None:
        """Notes torch's P2POp on a GPU.

        NCCL coalesces operations by their identity, so they stay as they are. A receive ends where the pass begins that needs
        it; of a send the receive shows the end.
        """
        tensor = operation.tensor
        event = self.transfer(opcode, payload, boundary, local, tensor.numel() * tensor.element_size())
        event.end = event.begin
        if opcode == "Recv":
            self.pending[payload, boundary, event.microbatch] = event

    def transfer(self, opcode: str, payload: str, boundary: int, local: int, size_bytes: int) -> Event:
        """A transfer that begins now. Its end is left to the caller."""
        stage = boundary if (opcode == "Recv") == (payload == "activation") else boundary - 1
        event = self._add(opcode, self.lanes[opcode, payload, boundary], stage, self._microbatch(local))
        event.payload, event.size_bytes = payload, size_bytes
        if opcode == "Send":
            event.waits = [(COMPUTE, self.positions[COMPUTE])]
        return event

    def summing(self, payload: str, stage: int, size_bytes: int, start: Callable[[], Any]) -> Any:
        """Starts an all-reduce. Returns its work, on a CPU one whose end is noted."""
        event = self.all_reduce(payload, stage, size_bytes)
        return self.watch(start(), event)

    def all_reduce(self, payload: str, stage: int, size_bytes: int) -> Event:
        """An all-reduce that begins now. Its end is left to the caller."""
        event = self._sum("AllReduce", payload, stage, size_bytes)
        if payload == "gradient facts":
            event.waits += [(name, 1) for name in sorted(self.positions) if name.startswith("sync gradients")]
        return event

    def reduce_scatter(self, stage: int, size_bytes: int) -> Event:
        """A sum of gradients, of which each replica needs a part. Its end is left to the caller."""
        return self._sum("ReduceScatter", "parameter gradient", stage, size_bytes)

    def _sum(self, opcode: str, payload: str, stage: int, size_bytes: int) -> Event:
        event = self._add(opcode, self.lanes[opcode, payload, stage], stage, 0)
        event.payload, event.size_bytes, event.waits = payload, size_bytes, [(COMPUTE, self.positions[COMPUTE])]
        return event

    def gather(self, use: str, stage: int, local: int, size_bytes: int) -> Event:
        """An all-gather of the parameters of a stage for a pass, or after an update. Its end is left to the caller.

        FSDP gathers the first layers before a pass and others during it, so the gather waits for the passes that have ended.
        """
        begin = self.clock.now()
        ended = sum(each.lane.name == COMPUTE and each.step == self.step and each.end <= begin for each in self.events)
        event = self._add("AllGather", self.lanes["AllGather", use, stage], stage, self._microbatch(local) if use != "update" else 0)
        event.payload, event.size_bytes, event.waits = "parameter", size_bytes, [(COMPUTE, ended)] if ended else []
        return event

    def watch(self, work: Any, event: Event) -> Any:
        """A work like `work`, after whose end the event has one."""
        if self.clock.device.type == "cuda":
            return _MarkedWork(work, event, self.clock)
        watched = WatchedWork(work, event)
        lane = event.lane.name
        if lane not in self.threads:
            self.threads[lane] = queue.SimpleQueue()
            threading.Thread(target=_watch_all, args=(self.threads[lane], self.clock), daemon=True).start()
        self.threads[lane].put(watched)
        return watched

    def finish(self, offset_s: float) -> list[Event]:
        """The events in seconds of rank 0's clock, which shows `offset_s` more than this rank's."""
        for event in self.events:
            begin = self.clock.seconds(event.begin)
            event.begin, event.end = begin + offset_s, max(begin, self.clock.seconds(event.end)) + offset_s
        move_in_turn(self.events)
        return self.events


class _MarkedWork:
    """A collective on a GPU, whose end is noted in the stream that waits for it."""

    def __init__(self, work: Any, event: Event, clock: Clock) -> None:
        self.work, self.event, self.clock = work, event, clock

    def wait(self) -> None:
        self.work.wait()
        self.event.end = self.clock.now()


def move_in_turn(events: list[Event]) -> None:
    """Begins each transfer after the one before it on its lane: receives may be posted long before their data move."""
    ends: dict[str, float] = {}
    for event in events:
        if event.lane.peer is not None:
            event.begin = min(event.end, max(event.begin, ends.get(event.lane.name, event.begin)))
            ends[event.lane.name] = event.end


def _watch_all(works: "queue.SimpleQueue[WatchedWork]", clock: Clock) -> None:
    while True:
        works.get().watch(clock)


def clock_offset_s(rank: int, ranks: int) -> float:
    """What rank 0's clock shows more than this rank's, from the fastest of 21 round trips. All ranks call it."""
    offset, token = 0.0, torch.zeros(1, dtype=torch.float64)
    for other in range(1, ranks):
        best = float("inf")
        for _ in range(ROUND_TRIPS):
            if rank == 0:
                dist.recv(token, other)
                dist.send(torch.tensor([time.perf_counter()], dtype=torch.float64), other)
            elif rank == other:
                sent = time.perf_counter()
                dist.send(token, 0)
                dist.recv(token, 0)
                took = time.perf_counter() - sent
                if took < best:
                    best, offset = took, token.item() - (sent + took / 2)
    return offset


def trace_text(plan: Plan, events_of_ranks: list[list[Event]]) -> str:
    """The trace file (isobar-trace/2) of all ranks. Times are since the first instruction."""
    start = min(event.begin for events in events_of_ranks for event in events)
    lines: list[dict[str, Any]] = []
    transfers: dict[tuple[int, int, int], int] = {}
    for rank, events in enumerate(events_of_ranks):
        used = {event.lane.name for event in events} - {COMPUTE}
        tracks = {name: track for track, name in enumerate([COMPUTE, *sorted(used)])}
        device = plan.devices[rank]
        lines.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": device}})
        lines.append({"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}})
        lines += [{"ph": "M", "name": "thread_name", "pid": rank, "tid": track, "args": {"name": name}}
                  for name, track in tracks.items()]
        has_several = len(plan.stages_of(device)) > 1
        for event in events:
            is_of_a_stage = has_several and event.payload != "gradient facts"
            lines += _lines_of(event, rank, plan, tracks, start, f", stage {event.stage}" if is_of_a_stage else "", transfers)
    texts = ",\n".join(json.dumps(line, separators=(",", ":"), ensure_ascii=False) for line in lines)
    return f'{{"displayTimeUnit":"ms","otherData":{{"schema":"isobar-trace/2"}},"traceEvents":[\n{texts}\n]}}\n'


def _lines_of(event: Event, rank: int, plan: Plan, tracks: dict[str, int], start: float, ending: str,
              transfers: dict[tuple[int, int, int], int]) -> list[dict[str, Any]]:
    stage = plan.stages[event.stage]
    what = " ".join(filter(None, (event.opcode, event.payload)))
    number = "" if event.opcode in ("Update", "AllReduce", "ReduceScatter", "AllGather") else f" {event.microbatch}"
    begin_us = round((event.begin - start) * 1e6, 4)
    end_us = round((event.end - start) * 1e6, 4)
    arguments: dict[str, Any] = {"step": event.step, "position": event.position, "stage": event.stage,
                                 "microbatch": event.microbatch, "first_layer": stage.first_layer,
                                 "last_layer": stage.last_layer}
    if event.payload is None:
        arguments["memory_bytes"] = event.memory_bytes
    else:
        arguments |= {"channel": event.lane.channel, "payload": event.payload, "bytes": event.size_bytes}
    if event.lane.peer is not None:
        arguments["peer"] = event.lane.peer
    if event.waits:
        arguments["waits"] = [{"tid": tracks[name], "count": count, "periods_back": 0} for name, count in event.waits]
    track = tracks[event.lane.name]
    lines = [{"ph": "X", "name": what + number + ending, "cat": event.opcode, "pid": rank, "tid": track, "ts": begin_us,
              "dur": max(0.0, round(end_us - begin_us, 4)), "args": arguments}]
    if event.payload is None:
        lines.append({"ph": "C", "name": "memory", "pid": rank, "ts": end_us, "args": {"bytes": event.memory_bytes}})
    if event.lane.peer is not None and event.lane.channel is not None:
        identity = transfers.setdefault((event.lane.channel, event.step, event.position), len(transfers) + 1)
        arrow = {"ph": "s", "ts": begin_us} if event.opcode == "Send" else {"ph": "f", "bp": "e", "ts": end_us}
        lines.append({**arrow, "name": f"{event.payload} {event.microbatch}", "cat": "transfer", "id": identity,
                      "pid": rank, "tid": track})
    return lines
