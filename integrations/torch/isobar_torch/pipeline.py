"""A plan's stages and schedule on a rank, by torch.distributed.pipelining."""

import collections
import logging
import os
import re
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

from isobar_torch.document import InputError, shown
from isobar_torch.plan import Plan
from isobar_torch.timeline import Recorder

CELL = re.compile(r"(\d{1,6})([FBIW])(\d{1,9})")


def torch_schedule(plan: Plan) -> type | None:
    """torch's class that has the plan's schedule; None: the order of work is needed in full.

    Schedule1F1B waits for its transfers, as a plan of 1f1b with blocking transfers does. ScheduleInterleaved1F1B and
    ScheduleZBVZeroBubble have the orders of Isobar's interleaved and zero-bubble-v, and transfers beside the computation.
    """
    devices = plan.pipeline(0)
    stages = [devices.index(stage.devices[0]) for stage in plan.stages]
    width, microbatches = len(devices), plan.microbatches // plan.replicas
    name, numbers = plan.schedule.name, dict(plan.schedule.numbers)
    if plan.has_blocking_transfers:
        is_1f1b = name == "1f1b" and stages == list(range(width)) and not numbers and microbatches >= width
        return schedules.Schedule1F1B if is_1f1b else None
    if name == "interleaved" and microbatches % width == 0 and len(stages) > width:
        is_loop = stages == [i % width for i in range(len(stages))]
        if is_loop and numbers.get("group", width) == width:
            return schedules.ScheduleInterleaved1F1B
    if name == "zero-bubble-v" and stages == [*range(width), *reversed(range(width))]:
        return schedules.ScheduleZBVZeroBubble
    return None


def plain_order(plan: Plan) -> str | None:
    """The order (CSV) of a plan of gpipe, or of 1f1b without numbers, with a stage on each device; None of others."""
    width, microbatches = len(plan.stages), plan.microbatches // plan.replicas
    if plan.schedule.name not in ("gpipe", "1f1b") or plan.schedule.numbers or len(plan.pipeline(0)) < width:
        return None
    rows = []
    for stage in range(width):
        forward = [f"{stage}F{i}" for i in range(microbatches)]
        backward = [f"{stage}B{i}" for i in range(microbatches)]
        if plan.schedule.name == "gpipe":
            rows.append(forward + backward[::-1])
        else:
            ahead = min(microbatches, width - stage)
            pairs = zip(backward, forward[ahead:], strict=False)
            rows.append([*forward[:ahead], *(each for pair in pairs for each in pair), *backward[microbatches - ahead:]])
    return "\n".join(map(",".join, rows)) + "\n"


def check_order(text: str, place: str, plan: Plan) -> None:
    """Refuses an order of work (CSV, a row for each device of a pipeline) that is not one of the plan's stages.

    Raises InputError with line and column of the first fault.
    """
    devices = plan.pipeline(0)
    microbatches = plan.microbatches // plan.replicas
    rows = [line.split(",") for line in text.splitlines() if line.strip()]
    if len(rows) != len(devices):
        raise InputError(f"{place}: {len(rows)} rows; the plan has {len(devices)} devices in a pipeline, a row each")
    for line, (row, device) in enumerate(zip(rows, devices, strict=True), 1):
        stages = plan.stages_of(device)
        seen: collections.Counter[tuple[int, str, int]] = collections.Counter()
        for column, cell in enumerate(row, 1):
            where = f"{place}:{line}: column {column}: {shown(cell)}"
            match = CELL.fullmatch(cell.strip())
            if match is None:
                raise InputError(f"{where} is no task; write stage, F, B, I or W, and micro-batch, such as 0F3")
            task = (int(match[1]), match[2], int(match[3]))
            if task[0] not in stages:
                raise InputError(f"{where}: {device} has stages {', '.join(map(str, stages))}")
            if task[2] >= microbatches:
                raise InputError(f"{where}: a pipeline has micro-batches 0 to {microbatches - 1}")
            seen[task] += 1
            if seen[task] > 1:
                raise InputError(f"{where} is there twice")
        for stage in stages:
            for microbatch in range(microbatches):
                tasks = "".join(kind for kind in "FBIW" if seen[stage, kind, microbatch])
                if tasks not in ("FB", "FIW"):
                    raise InputError(f"{place}:{line}: micro-batch {microbatch} has {tasks or 'no tasks'} in stage {stage}; "
                                     "F and B, or F, I and W")


class Groups:
    """Process groups of a plan. Ranks are the plan's devices by number. All ranks make them in the same order."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        ranks = {device: rank for rank, device in enumerate(plan.devices)}
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
        wanted = [tuple(ranks[device] for device in plan.pipeline(k)) for k in range(plan.replicas)]
        if plan.replicas > 1:
            wanted += [tuple(ranks[device] for device in stage.devices) for stage in plan.stages]
        for each in wanted:
            if each not in self._groups:
                self._groups[each] = dist.new_group(list(each))
        self._pipelines = wanted[:plan.replicas]
        self._replicas = wanted[plan.replicas:]
        # gloo has a connection for each pair and group.
        self._gradients = [dist.new_group(list(each)) for each in self._pipelines] if device.type == "cpu" else []

    def pipeline(self, replica: int) -> dist.ProcessGroup:
        """The devices of a pipeline."""
        return self._groups[self._pipelines[replica]]

    def gradients(self, replica: int) -> dist.ProcessGroup | None:
        """The devices of a pipeline for what its backward passes send; None on GPUs, where torch chooses."""
        return self._gradients[replica] if self._gradients else None

    def replicas(self, stage: int) -> dist.ProcessGroup | None:
        """The devices that have the stage; None where it is one."""
        return self._groups[self._replicas[stage]] if self._replicas else None


class Stage(PipelineStage):
    """A stage that adds up its gradients with its replicas as soon as the last backward pass is done.

    On a CPU gradients move in the group `gradients`. gloo sends when the receiver's message that it is ready has come, and
    on a connection that carries data the same way that message waits behind them.

    `recorder`: notes passes and transfers; None: nothing is noted.
    """

    def __init__(self, module: nn.Module, index: int, count: int, device: torch.device, group: dist.ProcessGroup,
                 gradients: dist.ProcessGroup | None, replicas: dist.ProcessGroup | None, recorder: Recorder | None) -> None:
        super().__init__(module, index, count, device, group=group)
        self.gradients, self.replicas, self.recorder = gradients, replicas, recorder
        self._sum: tuple[Any, torch.Tensor] | None = None

    def _recorded(self, opcode: str, microbatch: int, run: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if self.recorder is None:
            return run(microbatch, *arguments, **named)
        with self.recorder.computing(opcode, self.stage_index, microbatch):
            return run(microbatch, *arguments, **named)

    def forward_one_chunk(self, fwd_chunk_id: int, *arguments: Any, **named: Any) -> Any:
        return self._recorded("Forward", fwd_chunk_id, super().forward_one_chunk, *arguments, **named)

    def backward_one_chunk(self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True,
                           last_backward: bool = False) -> Any:
        opcode = "Backward" if full_backward else "BackwardInput"
        return self._recorded(opcode, bwd_chunk_id, super().backward_one_chunk, loss=loss, full_backward=full_backward,
                              last_backward=last_backward)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> Any:
        return self._recorded("BackwardWeight", bwd_chunk_id, super().backward_weight_one_chunk,
                              last_backward=last_backward)

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        """torch 2.11 connects neighbouring stages of one rank with that rank itself, which gloo cannot."""
        return [each for each in super()._get_init_p2p_neighbors_ops() if each.peer != dist.get_rank()]

    def _moving(self, operations: list[dist.P2POp], opcode: str, payload: str, boundary: int,
                microbatch: int) -> list[dist.P2POp]:
        """torch's operations, with a connection of their direction and the recorder's notes."""
        for operation in operations:
            if self.gradients is not None:
                operation.op = self._on_cpu(operation.tensor, opcode, payload, boundary, microbatch)
            elif self.recorder is not None:
                self.recorder.transferring(operation, opcode, payload, boundary, microbatch)
        return operations

    def _on_cpu(self, tensor: torch.Tensor, opcode: str, payload: str, boundary: int, microbatch: int) -> Callable[..., Any]:
        """What starts a transfer. A tag for each makes receives match sends in any order."""
        own = self.group if payload == "activation" else self.gradients
        own_tag = microbatch * self.num_stages + boundary
        size_bytes = tensor.numel() * tensor.element_size()

        # torch names the peer by what it takes the operation for, which is a receive unless it is dist.isend.
        def start(moved: torch.Tensor, *, group: Any, tag: int, group_src: int | None = None,
                  group_dst: int | None = None) -> Any:
            peer = group_src if group_dst is None else group_dst
            event = self.recorder and self.recorder.transfer(opcode, payload, boundary, microbatch, size_bytes)
            if opcode == "Recv":
                work = dist.irecv(moved, group=own, tag=own_tag, group_src=peer)
            else:
                work = dist.isend(moved, group=own, tag=own_tag, group_dst=peer)
            return self.recorder.watch(work, event) if self.recorder else work

        return start

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._moving(super().get_fwd_recv_ops(fwd_chunk_id), "Recv", "activation", self.stage_index, fwd_chunk_id)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._moving(super().get_fwd_send_ops(fwd_chunk_id), "Send", "activation", self.stage_index + 1,
                           fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._moving(super().get_bwd_recv_ops(bwd_chunk_id), "Recv", "gradient", self.stage_index + 1, bwd_chunk_id)

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._moving(super().get_bwd_send_ops(bwd_chunk_id), "Send", "gradient", self.stage_index, bwd_chunk_id)

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        super().perform_reduce_grad(grad_scale_factor)
        if self.replicas is None:
            return
        gradients = [each.grad for each in self.submod.parameters() if each.grad is not None]
        flat = torch.cat([each.flatten() for each in gradients])

        def start() -> Any:
            return dist.all_reduce(flat, group=self.replicas, async_op=True)

        size_bytes = flat.numel() * flat.element_size()
        work = start() if self.recorder is None else self.recorder.summing("parameter gradient", self.stage_index,
                                                                           size_bytes, start)
        self._sum = work, flat

    def finish_sum(self) -> None:
        """Waits for the sum over the replicas. Gradients are then their mean."""
        if self._sum is None:
            return
        work, flat = self._sum
        self._sum = None
        work.wait()
        flat /= dist.get_world_size(self.replicas)
        begin = 0
        for each in self.submod.parameters():
            if each.grad is not None:
                each.grad.copy_(flat[begin:begin + each.grad.numel()].view_as(each.grad))
                begin += each.grad.numel()


def post_receives_first(schedule: Any) -> None:
    """Makes torch's runtime post all receives of a step at its begin, so that senders never wait for a receiver."""
    for rank, actions in schedule.pipeline_order_with_comms.items():
        receives = [each for each in actions if each.computation_type in (schedules.RECV_F, schedules.RECV_B)]
        schedule.pipeline_order_with_comms[rank] = receives + [each for each in actions if each not in receives]


def make_schedule(plan: Plan, stages: list[Stage], order: str | None, loss: Callable[..., torch.Tensor]) -> Any:
    """torch's schedule over the stages of this rank.

    `order`: the order of work of a pipeline as CSV, or None where `torch_schedule` has a class.
    """
    # torch logs the whole schedule when a rank fails; this rank says what failed.
    logging.getLogger(schedules.__name__).setLevel(logging.CRITICAL)
    microbatches = plan.microbatches // plan.replicas
    kind = torch_schedule(plan) if order is None else schedules._PipelineScheduleRuntime
    assert kind is not None
    if issubclass(kind, schedules.PipelineScheduleSingle):
        return kind(stages[0], microbatches, loss_fn=loss)
    schedule = kind(stages, microbatches, loss_fn=loss)
    if order is not None:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "order.csv")
            with open(path, "w", encoding="ascii") as file:
                file.write(order)
            schedule._load_csv(path)
    if stages[0].gradients is not None:
        post_receives_first(schedule)
    return schedule
