"""Training by a plan: what a rank does in each step."""

import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from typing import Any, TextIO

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

from isobar_torch.models import StageModule, loss_of, tokens_of
from isobar_torch.pipeline import Groups, Stage, make_schedule
from isobar_torch.plan import Plan
from isobar_torch.timeline import Clock, Recorder
from isobar_torch.workload import Optimizer, Workload

MakeLayers = Callable[[range], dict[str, torch.nn.Module]]


@dataclasses.dataclass(frozen=True)
class Run:
    """What all ranks share."""

    plan: Plan
    workload: Workload
    steps: int
    seed: int
    order: str | None  # CSV, where torch has no class for the plan's schedule


def make_optimizer(optimizer: Optimizer, parameters: list[torch.nn.Parameter],
                   replicas: dist.ProcessGroup | None = None) -> torch.optim.Optimizer:
    """torch's optimizer of a workload. With `replicas` each of them has a part of its state, and sends what it updates."""
    kinds = {"sgd": torch.optim.SGD, "momentum": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    settings: dict[str, Any] = {"lr": optimizer.learning_rate, "weight_decay": optimizer.weight_decay}
    if optimizer.name == "momentum":
        settings["momentum"] = optimizer.momentum
    if optimizer.name in ("adam", "adamw"):
        settings |= {"betas": (optimizer.beta1, optimizer.beta2), "eps": optimizer.epsilon}
    kind = kinds[optimizer.name]
    if replicas is None:
        return kind(parameters, **settings)
    return ZeroRedundancyOptimizer(parameters, kind, process_group=replicas, **settings)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Sets the learning rate of the next update."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def square_sum(parameters: list[torch.nn.Parameter]) -> torch.Tensor:
    """The sum of the squares of this rank's gradients, in float64."""
    grads = [each.grad for each in parameters if each.grad is not None]
    local = [each.to_local() if hasattr(each, "to_local") else each for each in grads]
    return sum((each.double().square().sum() for each in local), torch.zeros((), dtype=torch.float64))


class Trainer:
    """The stages of a rank, their schedule and optimizers. `rank` is the number of the rank's device in the plan."""

    def __init__(self, run: Run, rank: int, device: torch.device, make_layers: MakeLayers, is_traced: bool) -> None:
        plan = run.plan
        self.run, self.rank, self.device = run, rank, device
        name = plan.devices[rank]
        numbers = plan.stages_of(name)
        self.replica = plan.stages[numbers[0]].devices.index(name)
        groups = Groups(plan, device)
        self.recorder = Recorder(plan, rank, Clock(device)) if is_traced else None
        self.stages: list[Stage] = []
        names = run.workload.names()
        for number in numbers:
            stage = plan.stages[number]
            layers = range(stage.first_layer, stage.last_layer + 1)
            module = StageModule(make_layers(layers), [names[i] for i in layers if i in plan.recompute],
                                 run.workload.dtype, device).to(device)
            replicas = groups.replicas(number)
            if plan.sharded == "parameters" and replicas is not None:
                mesh = DeviceMesh.from_group(replicas, device.type)
                for layer in module.layers.values():
                    fully_shard(layer, mesh=mesh)
                fully_shard(module, mesh=mesh)
                replicas = None
            self.stages.append(Stage(module, number, len(plan.stages), device, groups.pipeline(self.replica),
                                     groups.gradients(self.replica), replicas, self.recorder))
        self.parameters = [each for stage in self.stages for each in stage.submod.parameters()]
        self.optimizers = [make_optimizer(run.workload.optimizer, list(stage.submod.parameters()),
                                          stage.replicas if plan.sharded == "optimizer" else None) for stage in self.stages]
        self.schedule = make_schedule(plan, self.stages, run.order, self._loss)
        self.has_first, self.has_last = numbers[0] == 0, numbers[-1] == len(plan.stages) - 1
        self.last_replicas = groups.replicas(len(plan.stages) - 1)

    def _loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = loss_of(logits, labels)
        if self.recorder is not None:
            self.recorder.loss_computed()
        return loss

    def _clip(self) -> None:
        limit = self.run.workload.optimizer.clip_norm
        if limit is None:
            return
        # Replicas have the same gradients; shards have parts of them.
        copies = 1 if self.run.plan.sharded == "parameters" else self.run.plan.replicas
        # Two numbers, as in the plan's program; the second one is there for loss scaling.
        facts = torch.zeros(2, dtype=torch.float64, device=self.device)
        facts[0] = square_sum(self.parameters) / copies

        def start() -> Any:
            return dist.all_reduce(facts, async_op=True)

        first = self.stages[0].stage_index
        work = start() if self.recorder is None else self.recorder.summing("gradient facts", first, 16, start)
        work.wait()
        factor = (limit / (facts[0].sqrt() + 1e-6)).clamp(max=1.0).float()
        for each in self.parameters:
            if each.grad is not None:
                each.grad.mul_(factor)

    def step(self, number: int) -> float | None:
        """Trains one step. Returns the mean loss over the step's micro-batches, on ranks with the last stage."""
        run = self.run
        if self.recorder is not None:
            self.recorder.begin_step(number)
        for optimizer in self.optimizers:
            set_rate(optimizer, run.workload.optimizer.rate(number))
            optimizer.zero_grad()
        inputs: list[torch.Tensor] = []
        target: torch.Tensor | None = None
        if self.has_first or self.has_last:
            own = range(self.replica, run.plan.microbatches, run.plan.replicas)
            tokens = torch.cat([tokens_of(run.workload, run.seed, number, each) for each in own]).to(self.device)
            inputs = [tokens[:, :-1].contiguous()] if self.has_first else []
            target = tokens[:, 1:].contiguous() if self.has_last else None
        losses: list[torch.Tensor] = []
        self.schedule.step(*inputs, target=target, losses=losses if self.has_last else None, return_outputs=False)
        for stage in self.stages:
            stage.finish_sum()
        self._clip()
        for stage, optimizer in zip(self.stages, self.optimizers, strict=True):
            if self.recorder is None:
                optimizer.step()
            else:
                with self.recorder.computing("Update", stage.stage_index):
                    optimizer.step()
        if not self.has_last:
            return None
        mean = torch.stack([each.detach() for each in losses]).mean().double()
        if self.last_replicas is not None:
            dist.all_reduce(mean, group=self.last_replicas)
            mean /= run.plan.replicas
        return mean.item()


def train(trainer: Trainer, log: TextIO | None, predicted_s: float | None, profiler: torch.profiler.profile | None) -> None:
    """Trains all steps. The first rank with the last stage prints a line for each, and writes `log`.

    `profiler`: gets a step for each.
    """
    run = trainer.run
    speaks = trainer.has_last and trainer.replica == 0
    samples = run.plan.microbatches * run.workload.micro_batch
    times: list[float] = []
    if speaks:
        print(f"{'step':>5}  {'loss':>12}  {'samples/s':>10}  {'step s':>10}", flush=True)
    for number in range(run.steps):
        begin = time.perf_counter()
        loss = trainer.step(number)
        times.append(time.perf_counter() - begin)
        if profiler is not None:
            profiler.step()
        if not speaks or loss is None:
            continue
        print(f"{number:>5}  {loss:>12.7g}  {samples / times[-1]:>10.4g}  {times[-1]:>10.4g}", flush=True)
        if log is not None:
            log.write(json.dumps({"step": number, "loss": loss, "step_time_s": times[-1],
                                  "samples_per_s": samples / times[-1],
                                  "learning_rate": run.workload.optimizer.rate(number)}) + "\n")
            log.flush()
    if speaks:
        median = statistics.median(times[1:] or times)
        text = f"step {median:.4g} s (median after the first), {samples / median:.4g} samples/s"
        if predicted_s:
            text += f"; predicted {predicted_s:.4g} s ({100 * (predicted_s / median - 1):+.1f} %)"
        print(text, flush=True)


def train_alone(run: Run, make_layers: MakeLayers, device: torch.device) -> list[float]:
    """The losses of a plain loop over the whole model in this process, without a pipeline."""
    module = StageModule(make_layers(range(len(run.workload.names()))), [], run.workload.dtype, device).to(device)
    parameters = list(module.parameters())
    optimizer = make_optimizer(run.workload.optimizer, parameters)
    limit = run.workload.optimizer.clip_norm
    means = []
    for number in range(run.steps):
        set_rate(optimizer, run.workload.optimizer.rate(number))
        optimizer.zero_grad()
        losses = []
        for microbatch in range(run.plan.microbatches):
            tokens = tokens_of(run.workload, run.seed, number, microbatch).to(device)
            loss = loss_of(module(tokens[:, :-1]), tokens[:, 1:])
            (loss / run.plan.microbatches).backward()
            losses.append(loss.detach())
        if limit is not None:
            torch.nn.utils.clip_grad_norm_(parameters, limit)
        optimizer.step()
        means.append(torch.stack(losses).mean().double().item())
    return means
