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

    ScheduleInterleaved1F1B and ScheduleZBVZeroBubble have the orders of Isobar's interleaved and zero-bubble-v.
    Schedule1F1B has that of 1f1b. ScheduleGPipe takes the backward passes in the order of the micro-batches, gpipe in
    the opposite one.
    """
    devices = plan.pipeline(0)
    stages = [devices.index(stage.devices[0]) for stage in plan.stages]
    width, microbatches = len(devices), plan.microbatches // plan.replicas
    name, numbers = plan.schedule.name, dict(plan.schedule.numbers)
    if name == "gpipe" and stages == list(range(width)):
        return schedules.ScheduleGPipe
    if name == "1f1b" and stages == list(range(width)) and not numbers and microbatches >= width:
        return schedules.Schedule1F1B
    if name == "interleaved" and microbatches % width == 0 and len(stages) > width:
        is_loop = stages == [i % width for i in range(len(stages))]
        if is_loop and numbers.get("group", width) == width:
            return schedules.ScheduleInterleaved1F1B
    if name == "zero-bubble-v" and stages == [*range(width), *reversed(range(width))]:
        return schedules.ScheduleZBVZeroBubble
    return None


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

    def __init__(self, plan: Plan) -> None:
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

    def pipeline(self, replica: int) -> dist.ProcessGroup:
        """The devices of a pipeline."""
        return self._groups[self._pipelines[replica]]

    def replicas(self, stage: int) -> dist.ProcessGroup | None:
        """The devices that have the stage; None where it is one."""
        return self._groups[self._replicas[stage]] if self._replicas else None


class Stage(PipelineStage):
    """A stage that adds up its gradients with its replicas as soon as the last backward pass is done.

    `recorder`: notes passes and transfers; None: nothing is noted.
    """

    def __init__(self, module: nn.Module, index: int, count: int, device: torch.device, group: dist.ProcessGroup,
                 replicas: dist.ProcessGroup | None, recorder: Recorder | None) -> None:
        super().__init__(module, index, count, device, group=group)
        self.replicas, self.recorder = replicas, recorder
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

    def _timed(self, operations: list[dist.P2POp], opcode: str, payload: str, boundary: int,
               microbatch: int) -> list[dist.P2POp]:
        if self.recorder is not None:
            for operation in operations:
                self.recorder.transferring(operation, opcode, payload, boundary, microbatch)
        return operations

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._timed(super().get_fwd_recv_ops(fwd_chunk_id), "Recv", "activation", self.stage_index, fwd_chunk_id)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._timed(super().get_fwd_send_ops(fwd_chunk_id), "Send", "activation", self.stage_index + 1,
                           fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._timed(super().get_bwd_recv_ops(bwd_chunk_id), "Recv", "gradient", self.stage_index + 1, bwd_chunk_id)

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._timed(super().get_bwd_send_ops(bwd_chunk_id), "Send", "gradient", self.stage_index, bwd_chunk_id)

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


def make_schedule(plan: Plan, stages: list[Stage], order: str | None, loss: Callable[..., torch.Tensor]) -> Any:
    """torch's schedule over the stages of this rank.

    `order`: the order of work of a pipeline as CSV, or None where `torch_schedule` has a class.
    """
    # torch logs the whole schedule when a rank fails; this rank says what failed.
    logging.getLogger(schedules.__name__).setLevel(logging.CRITICAL)
    microbatches = plan.microbatches // plan.replicas
    if order is None:
        kind = torch_schedule(plan)
        assert kind is not None
        if issubclass(kind, schedules.PipelineScheduleSingle):
            return kind(stages[0], microbatches, loss_fn=loss)
        return kind(stages, microbatches, loss_fn=loss)
    schedule = schedules._PipelineScheduleRuntime(stages, microbatches, loss_fn=loss)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "order.csv")
        with open(path, "w", encoding="ascii") as file:
            file.write(order)
        schedule._load_csv(path)
    return schedule
