"""What a rank did in the steps of a profile: passes, transfers, all-reduces and updates."""

import bisect
import collections
import dataclasses
import re
from collections.abc import Sequence

from isobar_torch.document import InputError
from isobar_torch.kineto_collectives import (BROADCASTS, FSDP_GATHER, FSDP_SCATTER, GATHERS, SCATTERS, STAGE, Collective,
                                             merged)
from isobar_torch.kineto_file import RankFile, Span
from isobar_torch.plan import Plan

STEP = re.compile(r"ProfilerStep#(\d{1,15})")
# Labels of _PipelineScheduleRuntime (torch 2.11 to 2.15), from which torch's multi-stage schedules are made.
ACTION = re.compile(r"PP:(\d{1,6})(SEND_F|RECV_F|SEND_B|RECV_B|F|B|I|W)(\d{1,9})")
OVERLAPPED = re.compile(r"PP:\(.*\)OVERLAP_F_B")
# Labels of ScheduleGPipe. Schedule1F1B has none.
GPIPE = re.compile(r"(Forward|Backward) (\d{1,9})")
OPCODES = {"F": "Forward", "B": "Backward", "I": "BackwardInput", "W": "BackwardWeight"}
EVALUATE = "autograd::engine::evaluate_function"
UPDATE = "Optimizer.step#"
SENDS, RECEIVES = ("c10d::send",), ("c10d::recv_", "c10d::recv_any_source_")
SUMS = ("c10d::allreduce_", "c10d::allreduce_coalesced_")
# gloo scatters sums by an all-reduce, with a span of its name.
MAKERS = {"gloo:all_reduce": SUMS + SCATTERS}
COMMUNICATION = ("c10d::", "gloo:", "nccl:", "record_param_comms")
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclasses.dataclass(frozen=True)
class Pass:
    """A pass of a micro-batch of this pipeline. Times are microseconds of the file's clock.

    `window`: when the rank worked on it, on a CPU; `begin` and `end`: its first operator's begin and its last one's end,
    on a GPU those of its kernels.
    """

    kind: str  # F, B, I or W
    stage: int
    local: int
    begin: float
    end: float
    window: tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Moved:
    """A transfer or an all-reduce. `key` of a transfer: opcode, payload, boundary, micro-batch of this pipeline."""

    key: tuple[str, str, int, int] | None
    begin: float
    end: float


@dataclasses.dataclass(frozen=True)
class RankStep:
    """A step of a rank."""

    number: int  # as the profiler counts
    passes: tuple[Pass, ...]
    transfers: tuple[Moved, ...]
    sums: tuple[Moved, ...]
    collectives: tuple[Collective, ...]  # of parameters that replicas divide
    updates: tuple[tuple[float, float], ...]


def is_communication(span: Span) -> bool:
    """Whether an operator moves data between ranks."""
    return span.name.startswith(COMMUNICATION)


class RankReader:
    """Finds the steps of a rank. `order`: its tasks in the plan's order (stage, kind, micro-batch)."""

    def __init__(self, file: RankFile, plan: Plan, rank: int, order: Sequence[tuple[int, str, int]]) -> None:
        self.file, self.plan, self.order = file, plan, order
        self.stages = plan.stages_of(plan.devices[rank])
        self.tops = [span for span in file.spans if span.top is span]
        self.begins = [span.begin for span in self.tops]
        # Those of a backward pass are inside its nodes.
        self.exchanges = [span for span in file.spans if span.category == "cpu_op" and span.name.startswith("c10d::")]
        self.exchange_begins = [span.begin for span in self.exchanges]
        self.annotations = [span for span in file.spans if span.category == "user_annotation"]
        self.annotation_begins = [span.begin for span in self.annotations]
        self.on_gpu = {span.arguments.get("correlation"): span for span in file.spans if span.category in ON_GPU}
        self.launches = [span for span in file.spans if span.category in ("cuda_runtime", "cuda_driver")
                         and span.arguments.get("correlation") in self.on_gpu]
        self.launch_begins = [span.begin for span in self.launches]
        # Outermost operators (by id) whose autograd nodes a backward pass evaluates, with the numbers of these.
        self.nodes = self._nodes()

    def fail(self, what: str) -> InputError:
        """What is wrong with this file, to raise."""
        return InputError(f"{self.file.name}: {what}")

    def _nodes(self) -> dict[int, list[int]]:
        """The profiler gives an operator the number of the next node, so the last operator with a number makes the node."""
        evaluated = {span.arguments.get("Sequence number") for span in self.tops if span.name.startswith(EVALUATE)}
        last: dict[int, int] = {}
        for span in self.file.spans:
            if span.top is not None and not span.top.name.startswith(EVALUATE):
                number = span.arguments.get("Sequence number")
                if number is not None and number in evaluated:
                    last[number] = id(span.top)
        nodes: dict[int, list[int]] = {}
        for number, operator in last.items():
            nodes.setdefault(operator, []).append(number)
        return nodes

    def operators(self, begin: float, end: float) -> list[Span]:
        """Outermost operators that begin in a time, but those that move data between ranks."""
        found = self.tops[bisect.bisect_left(self.begins, begin):bisect.bisect_left(self.begins, end)]
        return [span for span in found if not is_communication(span)]

    def exchanged(self, step: Span) -> list[Span]:
        """Operators of c10d that begin in a step."""
        return self.exchanges[bisect.bisect_left(self.exchange_begins, step.begin):
                              bisect.bisect_left(self.exchange_begins, step.end)]

    def labels(self, begin: float, end: float) -> list[Span]:
        """Annotations that begin in a time."""
        return self.annotations[bisect.bisect_left(self.annotation_begins, begin):
                                bisect.bisect_left(self.annotation_begins, end)]

    def kernels(self, begin: float, end: float) -> list[Span]:
        """What was launched on the GPU in a time, but NCCL's kernels."""
        found = self.launches[bisect.bisect_left(self.launch_begins, begin):bisect.bisect_right(self.launch_begins, end)]
        spans = [self.on_gpu[span.arguments["correlation"]] for span in found]
        return [span for span in spans if not span.name.startswith("nccl")]

    def extent(self, begin: float, end: float, operators: Sequence[Span]) -> tuple[float, float]:
        """From the first begin to the last end of what was launched in a time, without a GPU of `operators`."""
        spans = self.kernels(begin, end) or operators
        if not spans:
            return begin, begin
        return min(span.begin for span in spans), max(span.end for span in spans)

    def steps(self, first: int) -> list[RankStep]:
        """The steps with passes, from number `first` on. Raises InputError for what cannot be recognised."""
        matches = [(STEP.fullmatch(span.name), span) for span in self.annotations]
        spans = [(int(match[1]), span) for match, span in matches if match is not None]
        if not spans:
            raise self.fail("no span ProfilerStep#N; give torch.profiler.profile a schedule, and call its step() after each "
                            "step")
        steps = [self._step(number, span) for number, span in spans if number >= first]
        found = [step for step in steps if step is not None]
        if not found:
            raise self.fail(f"steps {spans[0][0]} to {spans[-1][0]}, and from {first} on none with a pass: neither a label PP:0F0 or "
                            "Forward 0 of torch.distributed.pipelining nor an operator with a backward pass; profile steps that train")
        return found

    def _step(self, number: int, span: Span) -> RankStep | None:
        place = f"step {number}"
        labels = self.labels(span.begin, span.end)
        for label in labels:
            if OVERLAPPED.fullmatch(label.name):
                raise self.fail(f"{place}: {label.name}: two passes under one label; trace a schedule without OVERLAP_F_B")
        actions = [label for label in labels if ACTION.fullmatch(label.name)]
        gpipe = [label for label in labels if GPIPE.fullmatch(label.name)]
        if actions:
            passes = self._labelled([(label, *_task(label)) for label in actions if "_" not in label.name], span)
        elif gpipe:
            if len(self.stages) > 1:
                raise self.fail(f"{place}: {gpipe[0].name}: a label of ScheduleGPipe, and the plan has stages "
                                f"{', '.join(map(str, self.stages))} on this rank; give the plan of this run")
            passes = self._labelled([(label, label.name[0], self.stages[0], int(label.name.split()[1])) for label in gpipe], span)
        else:
            passes = self._unlabelled(place, span, labels)
        if not passes:
            return None
        self._check(place, passes)
        passes.sort(key=lambda each: each.begin)
        updates, inner = self._updates(labels)
        if len(updates) != len(self.stages):
            raise self.fail(f"{place}: {len(updates)} spans {UPDATE}…, and {len(self.stages)} stages on this rank; use an "
                            "optimizer for each stage, of torch.optim")
        collectives = self._collectives(place, span, passes, updates)
        if any(each.use == "update" for each in collectives):
            updates = [of_each[0] if of_each else each for each, of_each in zip(updates, inner, strict=True)]
        return RankStep(number, tuple(passes), tuple(self._transfers(place, span, passes, actions)),
                        tuple(self._timed(place, span, SUMS, "gloo:all_reduce", "AllReduce")), tuple(collectives),
                        tuple(self.extent(each.begin, each.end, [each]) for each in updates))

    def _updates(self, labels: Sequence[Span]) -> tuple[list[Span], list[list[Span]]]:
        """Spans of optimizers, one for each stage, and the spans in each, which are of the optimizers that it has.

        torchtitan's OptimizersContainer is an optimizer that has one for each stage.
        """
        updates: list[Span] = []
        inner: list[list[Span]] = []
        for label in labels:
            if not label.name.startswith(UPDATE):
                continue
            if updates and label.begin < updates[-1].end:
                inner[-1].append(label)
            else:
                updates.append(label)
                inner.append([])
        if len(updates) == 1 and len(inner[0]) == len(self.stages) > 1:
            return inner[0], [[] for _ in inner[0]]
        return updates, inner

    def _labelled(self, labels: Sequence[tuple[Span, str, int, int]], step: Span) -> list[Pass]:
        """Passes of torch's labels. A label's span also has the wait for what the pass needs, which is no part of it."""
        passes = []
        for index, (label, kind, stage, local) in enumerate(labels):
            end = label.end
            if kind == "F":  # the loss follows the label of ScheduleGPipe
                following = labels[index + 1][0].begin if index + 1 < len(labels) else step.end
                end = max([end, *(each.end for each in self.operators(label.end, following) if id(each) in self.nodes)])
            begin, end = self._between_transfers(kind, label.begin, end)
            passes.append(Pass(kind, stage, local, *self.extent(begin, end, self.operators(begin, end)), (begin, end)))
        return passes

    def _between_transfers(self, kind: str, begin: float, end: float) -> tuple[float, float]:
        """The part of a label between the receives before the pass's operators with autograd nodes and the sends after them."""
        found = self.tops[bisect.bisect_left(self.begins, begin):bisect.bisect_left(self.begins, end)]
        own = [index for index, span in enumerate(found)
               if (id(span) in self.nodes if kind == "F" else span.name.startswith(EVALUATE))]
        if not own:  # the first stage's I, which waits for its gradient and leaves all to W
            return end, end
        before = [span.end for span in found[:own[0]] if span.name in RECEIVES]
        after = [span.begin for span in found[own[-1]:] if span.name in SENDS]
        return max(before, default=begin), min(after, default=end)

    def _unlabelled(self, place: str, step: Span, labels: Sequence[Span]) -> list[Pass]:
        """Passes by their operators: transfers and changes between forward and backward part them.

        Their kinds must be those of the plan's order.
        """
        updates = [(label.begin, label.end) for label in labels if label.name.startswith("Optimizer.")]
        parts: list[tuple[str, list[Span]]] = []
        is_parted = True
        for span in self.tops[bisect.bisect_left(self.begins, step.begin):bisect.bisect_left(self.begins, step.end)]:
            if span.name in SENDS or span.name in RECEIVES:
                is_parted = True
            if is_communication(span) or any(begin <= span.begin < end for begin, end in updates):
                continue
            kind = "B" if span.name.startswith(EVALUATE) else "F"
            if kind == "F" and id(span) not in self.nodes:
                continue
            if is_parted or parts[-1][0] != kind:
                parts.append((kind, []))
                is_parted = False
            parts[-1][1].append(span)
        if not parts:
            return []
        kinds, wanted = "".join(kind for kind, _ in parts), "".join(kind for _, kind, _ in self.order)
        if kinds != wanted:
            raise self.fail(f"{place}: no labels of torch.distributed.pipelining, and operators of the passes {_short(kinds)}, "
                            f"where the plan has {_short(wanted)} on this rank; give the plan of this run, or later steps "
                            "by --from-step")
        return [Pass(kind, stage, local, *self.extent(spans[0].begin, spans[-1].end, spans), (spans[0].begin, spans[-1].end))
                for (_, spans), (stage, kind, local) in zip(parts, self.order, strict=True)]

    def _check(self, place: str, passes: Sequence[Pass]) -> None:
        found = collections.Counter((each.stage, each.kind, each.local) for each in passes)
        for task in found:
            if task[0] not in self.stages:
                raise self.fail(f"{place}: {_cell(task)}: the plan has stages {', '.join(map(str, self.stages))} on this rank; "
                                "give the plan of this run")
            if found[task] > 1:
                raise self.fail(f"{place}: {_cell(task)} is there {found[task]} times; end each step with the "
                                "profiler's step()")
        for stage in self.stages:
            for local in range(self.plan.microbatches // self.plan.replicas):
                kinds = "".join(kind for kind in "FBIW" if (stage, kind, local) in found)
                if kinds not in ("FB", "FIW"):
                    raise self.fail(f"{place}: micro-batch {local} of stage {stage} has {kinds or 'no passes'}; F and B, or F, "
                                    "I and W, are a whole step")
        most = self.plan.microbatches // self.plan.replicas
        for task in found:
            if task[2] >= most:
                raise self.fail(f"{place}: {_cell(task)}: a pipeline of the plan has micro-batches 0 to {most - 1}; give the "
                                "plan of this run")

    def _timed(self, place: str, step: Span, names: Sequence[str], gloo: str, nccl: str) -> list[Moved]:
        """Operations of c10d with the times of gloo's spans or of the NCCL kernels that they launch."""
        found = self.exchanged(step)
        operations = [span for span in found if span.name in names]
        spans = [label for label in self.labels(step.begin, step.end) if label.name == gloo]
        if spans:
            makers = [span for span in found if span.name in MAKERS.get(gloo, names)]
            if len(spans) != len(makers):
                raise self.fail(f"{place}: {len(spans)} spans {gloo}, and {len(makers)} operators that make them, {names[0]} and "
                                "others; profile whole steps")
            return [Moved(None, maker.begin, span.end) for maker, span in zip(makers, spans, strict=True) if maker.name in names]
        moved = []
        for operation in operations:
            launch = next((each for each in self.launches[bisect.bisect_left(self.launch_begins, operation.begin):]
                           if self._is_nccl(each, nccl)), None)
            if launch is None:
                raise self.fail(f"{place}: {operation.name} without a span {gloo} or a kernel ncclDevKernel_{nccl}; profile "
                                "CUDA, too")
            kernel = self.on_gpu[launch.arguments["correlation"]]
            moved.append(Moved(None, kernel.begin, kernel.end))
        return moved

    def _collectives(self, place: str, step: Span, passes: Sequence[Pass], updates: Sequence[Span]) -> list[Collective]:
        """Collectives of parameters, merged to one for each that the plan's program has."""
        if self.plan.sharded == "optimizer":
            moved = self._timed(place, step, BROADCASTS, "gloo:broadcast", "Broadcast")
            operations = [span for span in self.exchanged(step) if span.name in BROADCASTS]
            return merged([Collective("update", stage, 0, each.begin, each.end)
                           for operation, each in zip(operations, moved, strict=True)
                           for stage, update in zip(self.stages, updates, strict=True)
                           if update.begin <= operation.begin < update.end])
        if self.plan.sharded != "parameters":
            return []
        labels = self.labels(step.begin, step.end)
        found = []
        for names, gloo, nccl, label in ((GATHERS, "gloo:all_gather", "AllGather", FSDP_GATHER),
                                         (SCATTERS, "gloo:all_reduce", "ReduceScatter", FSDP_SCATTER)):
            own = [each for each in labels if each.name.startswith(label)]
            operations = [span for span in self.exchanged(step) if span.name in names]
            for operation, each in zip(operations, self._timed(place, step, names, gloo, nccl), strict=True):
                if not any(other.begin <= operation.begin < other.end for other in own):
                    continue
                stage = self._stage_at(operation.begin, labels)
                if label == FSDP_SCATTER:
                    found.append(Collective(None, stage, 0, each.begin, each.end))
                    continue
                user = next((one for one in passes if one.stage == stage and one.window[1] > operation.begin), None)
                if user is None:
                    raise self.fail(f"{place}: an all-gather of FSDP after the last pass of stage {stage}; give the plan of this run")
                found.append(Collective(_use(user), stage, user.local, each.begin, each.end))
        if not found:
            return []
        # FSDP keeps what it gathered for the first backward pass until the last one, which then gather in no time.
        gathered = {(each.use, each.stage, each.local) for each in found}
        found += [Collective(_use(each), each.stage, each.local, each.begin, each.begin) for each in passes
                  if (_use(each), each.stage, each.local) not in gathered]
        return merged(found)

    def _stage_at(self, moment: float, labels: Sequence[Span]) -> int:
        """The stage that the rank works on: the only one, or that of torch's label."""
        if len(self.stages) == 1:
            return self.stages[0]
        for label in labels:
            match = STAGE.fullmatch(label.name)
            if match is not None and label.begin <= moment < label.end:
                return int(match[1])
        raise self.fail("a collective of FSDP outside of labels PP:…, and several stages on this rank; trace torch's schedules")

    def _is_nccl(self, launch: Span, kind: str) -> bool:
        name = self.on_gpu[launch.arguments["correlation"]].name
        return name.startswith("nccl") and kind in name

    def _transfers(self, place: str, step: Span, passes: Sequence[Pass], actions: Sequence[Span]) -> list[Moved]:
        """Transfers with their micro-batches: those of labels, or else in the order of the passes that send and need them.

        Before its first step torch may exchange shapes, without a label and before the first pass.
        """
        result = []
        for opcode, names, gloo in (("Send", SENDS, "gloo:send"), ("Recv", RECEIVES, "gloo:recv")):
            wanted = self._expected(opcode, passes)
            moved = self._timed(place, step, names, gloo, "SendRecv")
            if actions:
                operations = [span for span in self.exchanged(step) if span.name in names]
                keys = [self._labelled_key(opcode, span, actions) for span in operations]
                pairs = [(key, each) for key, each in zip(keys, moved, strict=True) if key is not None]
                if sorted(key for key, _ in pairs) != sorted(wanted):
                    raise self.fail(f"{place}: {len(pairs)} transfers with a label PP:…{opcode.upper()}_…, where the passes have "
                                    f"{len(wanted)}; give the plan of this run")
            else:
                surplus = len(moved) - len(wanted)
                if surplus < 0 or any(each.begin >= passes[0].begin for each in moved[:surplus]):
                    raise self.fail(f"{place}: {len(moved)} transfers of {names[0]}, where the passes have {len(wanted)}; give "
                                    "the plan of this run")
                pairs = list(zip(wanted, moved[surplus:], strict=True))
            result += [Moved(key, each.begin, each.end) for key, each in pairs]
        return result

    def _expected(self, opcode: str, passes: Sequence[Pass]) -> list[tuple[str, str, int, int]]:
        """Keys of the transfers that passes send or need, in their order."""
        keys = []
        for each in passes:
            if each.kind == "W":
                continue
            is_forward = each.kind == "F"
            boundary = each.stage + ((opcode == "Send") == is_forward)
            neighbour = each.stage + (1 if (opcode == "Send") == is_forward else -1)
            if 0 <= neighbour < len(self.plan.stages) and neighbour not in self.stages:
                keys.append((opcode, "activation" if is_forward else "gradient", boundary, each.local))
        return keys

    def _labelled_key(self, opcode: str, span: Span, actions: Sequence[Span]) -> tuple[str, str, int, int] | None:
        for label in actions:
            if label.begin <= span.begin < label.end and f"{opcode.upper()}_" in label.name:
                kind, stage, local = _task(label)
                is_forward = kind.endswith("F")
                boundary = stage + ((opcode == "Send") == is_forward)
                return opcode, "activation" if is_forward else "gradient", boundary, local
        return None


def _use(user: Pass) -> str:
    return "forwards" if user.kind == "F" else "backwards"


def _task(label: Span) -> tuple[str, int, int]:
    match = ACTION.fullmatch(label.name)
    assert match is not None
    return match[2], int(match[1]), int(match[3])


def _cell(task: tuple[int, str, int]) -> str:
    return f"{task[0]}{task[1]}{task[2]}"


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}... ({len(text)} passes)"
