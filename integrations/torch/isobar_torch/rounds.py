"""Rounds of steps of several workers that bring their parameters together: the outer loop of a plan of rounds.

A training loop makes a `Rounds` on each rank and calls its `step` after each step of its own optimizer (docs/rounds.md).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from isobar_torch.document import InputError, Reader, read_json, shown
from isobar_torch.outer_codec import Codec, codec_of

MOST_STEPS = 100_000
MOST_FRAGMENTS = 1_000


@dataclasses.dataclass(frozen=True)
class Worker:
    """A worker by name, and its steps of a round."""

    name: str
    steps: int


@dataclasses.dataclass(frozen=True)
class RoundsPlan:
    """What a plan of rounds says of the outer loop (docs/formats/rounds.md). Its model has `layers` layers."""

    file: str
    steps: int
    fragments: int
    delay: int
    codec: Codec
    learning_rate: float
    momentum: float
    mixing: float
    workers: tuple[Worker, ...]
    layers: int

    def snapshots(self, worker: int) -> list[int]:
        """The steps of a round after which a worker encodes each fragment, by fragment."""
        return [-(-(f + 1) * self.workers[worker].steps // self.fragments) for f in range(self.fragments)]


def _below_one(reader: Reader, key: str) -> float:
    reader.required(key)
    number = reader.number(key, 0, 1, 0)
    if number == 1:
        reader.fail("1 is not below 1", key)
    return number


def _layers(plan: Reader) -> int:
    """The layers of a worker's plan, and nothing else of it."""
    plan.choice("schema", ("isobar-plan/1", "isobar-plan/2"))
    lasts = [stage.count("last_layer", 0, 10**6) for stage in plan.mappings("stages")]
    if not lasts:
        plan.fail("has no stages; a worker needs a feasible plan", "stages")
    return max(lasts) + 1


def read_rounds(file: str) -> RoundsPlan:
    """Reads a plan of rounds, schema isobar-rounds/1. Raises InputError for what is wrong."""
    reader = read_json(file)
    reader.choice("schema", ("isobar-rounds/1",))
    reader.skip("allocator", "left_out", "predicted", "round_bound_s", "wall")
    outer = reader.mapping("outer")
    steps = outer.count("steps", 1, MOST_STEPS)
    fragments = outer.count("fragments", 1, MOST_FRAGMENTS)
    delay = outer.count("delay", 0, MOST_STEPS)
    outer.choice("algorithm", ("ring", "direct", "server"))
    codec = codec_of(outer.text("codec"))
    if codec is None:
        outer.fail(f"{shown(outer.any('codec'))}; use fp32, bf16, int8, int4, or top-k and the part of the values that travel, "
                   "above 0 and at most 1, such as top-k 0.01 or top-k 0.01 2-bit", "codec")
    outer.required("learning_rate")
    rate = outer.number("learning_rate", 0, 1e300, 0)
    momentum, mixing = _below_one(outer, "momentum"), _below_one(outer, "mixing")
    outer.finish()
    workers: list[Worker] = []
    layers = 0
    for each in reader.mappings("workers"):
        name, own = each.text("name"), each.count("steps", 1, MOST_STEPS)
        if any(other.name == name for other in workers):
            each.fail(f"{name} is the name of another worker too; give each its own", "name")
        for limit, is_wrong, text in ((steps, own > steps, "more than outer.steps"),
                                      (delay, own <= delay, "no more than outer.delay"),
                                      (fragments, own < fragments, "fewer than outer.fragments")):
            if is_wrong:
                each.fail(f"{own}, {text}, {limit}", "steps")
        count = _layers(each.mapping("plan"))
        each.finish()
        if workers and count != layers:
            each.fail(f"{count} layers; the plan of {workers[0].name} has {layers}", "plan")
        workers.append(Worker(name, own))
        layers = count
    if len(workers) < 2:
        reader.fail(f"has {len(workers)}; rounds need 2 or more", "workers")
    reader.finish()
    return RoundsPlan(file, steps, fragments, delay, codec, rate, momentum, mixing, tuple(workers), layers)


@dataclasses.dataclass
class _Piece:
    """Parameters of a fragment that the same ranks of all workers have, as one vector. `ranks`: theirs, by worker."""

    fragment: int
    parameters: dict[str, torch.nn.Parameter]
    ranks: tuple[int, ...]
    group: dist.ProcessGroup
    outer: torch.Tensor
    momentum: torch.Tensor
    residual: torch.Tensor | None  # what a codec that drops values has not sent yet

    def parts(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """The parameters' parts of a vector, by name."""
        sizes = [each.numel() for each in self.parameters.values()]
        return {name: part.view(parameter.shape)
                for (name, parameter), part in zip(self.parameters.items(), vector.split(sizes), strict=True)}

    def own(self) -> torch.Tensor:
        """The worker's own parameters."""
        return torch.cat([each.detach().flatten().cpu() for each in self.parameters.values()])


@dataclasses.dataclass
class _Flight:
    """A piece between sending it and taking the mean, after step `due`."""

    piece: _Piece
    due: int
    mean: torch.Tensor | None = None
    work: dist.Work | None = None
    sent: torch.Tensor | None = None
    received: torch.Tensor | None = None


class Rounds:
    """The outer loop on one rank: DiLoCo, or Streaming DiLoCo with fragments or a delay.

    `layers`: the modules of this rank by their numbers in the plan; together the ranks of a worker have all layers. Parameters
    are float32 and whole. `worker`: the worker that this rank belongs to, in the plan's order. Every rank of the run makes one,
    at the same point. All begin with the parameters of worker 0. Raises InputError, on all ranks, for what does not fit.

    Outer parameters, momentum and sums are on the CPU, with gloo, and have the same bits on all workers.
    """

    def __init__(self, plan: RoundsPlan, layers: Mapping[int, torch.nn.Module], worker: int) -> None:
        self.plan, self.worker = plan, worker
        self.steps_done = 0
        self._flights: list[_Flight] = []
        self._pieces: list[_Piece] = []
        parameters = _parameters(layers)
        facts: list[Any] = [None] * dist.get_world_size()
        own = {layer: {name: list(each.shape) for name, each in named.items()} for layer, named in parameters.items()}
        dist.all_gather_object(facts, (worker, own, dataclasses.replace(plan, file=""), _fault(parameters)),
                               group=dist.new_group(backend="gloo"))
        for ranks, layers_of_group in _exchanges(plan, facts).items():
            group = dist.new_group(ranks, backend="gloo")
            if dist.get_rank() in ranks:
                self._add_pieces(ranks, group, {layer: parameters[layer] for layer in layers_of_group})
        self._snapshots = plan.snapshots(worker)

    def step(self) -> None:
        """Sends and takes what is due after a step of this worker's own optimizer."""
        self.steps_done += 1
        position = (self.steps_done - 1) % self.plan.workers[self.worker].steps + 1
        for piece in self._pieces:
            if self._snapshots[piece.fragment] == position:
                self._send(piece)
        while self._flights and self._flights[0].due <= self.steps_done:
            self._take(self._flights.pop(0))

    def finish(self) -> None:
        """Takes what is on its way, at the end of training. All workers call it after as many rounds."""
        while self._flights:
            self._take(self._flights.pop(0))

    def outer_parameters(self) -> dict[str, torch.Tensor]:
        """The outer parameters of this rank's layers, by `LAYER.NAME`: what is evaluated, not a worker's own ones."""
        return {name: part for piece in self._pieces for name, part in piece.parts(piece.outer).items()}

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has beside the model and its optimizer: by reference, as torch's optimizers do.

        Waits for what is on its way.
        """
        state: dict[str, Any] = {"settings": self._settings(), "steps_done": self.steps_done, "outer": {}, "momentum": {},
                                 "residual": {}, "mean": {}, "due": {}}
        for piece in self._pieces:
            state["outer"] |= piece.parts(piece.outer)
            state["momentum"] |= piece.parts(piece.momentum)
            if piece.residual is not None:
                state["residual"] |= piece.parts(piece.residual)
        for flight in self._flights:
            state["mean"] |= flight.piece.parts(self._mean(flight))
            state["due"] |= dict.fromkeys(flight.piece.parameters, flight.due)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues where `state_dict` was taken, to the same bits. Raises InputError for the state of other rounds."""
        for key, value in self._settings().items():
            if state["settings"][key] != value:
                raise InputError(f"{self.plan.file}: {key} {shown(value)}; the state has {shown(state['settings'][key])}")
        shapes = {name: list(part.shape) for name, part in self.outer_parameters().items()}
        if shapes != {name: list(part.shape) for name, part in state["outer"].items()}:
            raise InputError(f"{self.plan.file}: the state has other parameters than this rank; give each rank its own")
        self.steps_done = state["steps_done"]
        self._flights = []
        for piece in self._pieces:
            names = list(piece.parameters)

            def vector(key: str, names: list[str] = names) -> torch.Tensor:
                return torch.cat([state[key][name].flatten() for name in names])

            piece.outer, piece.momentum = vector("outer"), vector("momentum")
            if piece.residual is not None:
                piece.residual = vector("residual")
            if names[0] in state["due"]:
                self._flights.append(_Flight(piece, state["due"][names[0]], vector("mean")))
        self._flights.sort(key=lambda flight: flight.due)

    def _settings(self) -> dict[str, Any]:
        plan = self.plan
        return {"worker": plan.workers[self.worker].name, "workers": [each.name for each in plan.workers],
                "steps": plan.workers[self.worker].steps, "fragments": plan.fragments, "delay": plan.delay,
                "codec": plan.codec.name}

    def _add_pieces(self, ranks: tuple[int, ...], group: dist.ProcessGroup,
                    parameters: Mapping[int, Mapping[str, torch.nn.Parameter]]) -> None:
        for fragment in range(self.plan.fragments):
            named = {f"{layer}.{name}": each for layer, of_layer in parameters.items()
                     if layer % self.plan.fragments == fragment for name, each in of_layer.items()}
            if not named:
                continue
            piece = _Piece(fragment, named, ranks, group, torch.empty(0), torch.empty(0), None)
            piece.outer = piece.own()
            dist.broadcast(piece.outer, src=ranks[0], group=group)
            piece.momentum = torch.zeros_like(piece.outer)
            piece.residual = torch.zeros_like(piece.outer) if self.plan.codec.is_sparse else None
            self._continue_from(piece, 0)
            self._pieces.append(piece)

    def _send(self, piece: _Piece) -> None:
        moved = piece.outer - piece.own()
        if not moved.isfinite().all():
            raise RuntimeError(f"the outer gradient of fragment {piece.fragment} is not finite after step {self.steps_done}; "
                               "lower the learning rate")
        codec = self.plan.codec
        if piece.residual is not None:
            moved += piece.residual
        try:
            sent = codec.encode(moved)
        except ValueError as fault:
            raise RuntimeError(f"the outer gradient of fragment {piece.fragment} after step {self.steps_done} has {fault}") from None
        if piece.residual is not None:
            piece.residual = moved - codec.decode(sent, len(moved))
        received = torch.empty(len(self.plan.workers) * len(sent), dtype=torch.uint8)
        work = dist.all_gather_into_tensor(received, sent, group=piece.group, async_op=True)
        self._flights.append(_Flight(piece, self.steps_done + self.plan.delay, None, work, sent, received))

    def _mean(self, flight: _Flight) -> torch.Tensor:
        """The mean of all workers, summed in their order. Waits for them."""
        if flight.mean is None:
            assert flight.work is not None and flight.sent is not None and flight.received is not None
            flight.work.wait()
            # In float64, in which sums of equal values are exact.
            total = torch.zeros_like(flight.piece.outer, dtype=torch.float64)
            received = flight.received.split(len(flight.sent))
            for rank in flight.piece.ranks:
                total += self.plan.codec.decode(received[dist.get_group_rank(flight.piece.group, rank)], len(total))
            flight.mean = total.div_(len(self.plan.workers)).float()
        return flight.mean

    def _take(self, flight: _Flight) -> None:
        # One operation at a time, each of which rounds once: fused ones would round otherwise on other processors.
        piece, mean = flight.piece, self._mean(flight)
        piece.momentum.mul_(self.plan.momentum).add_(mean)
        piece.outer.sub_((piece.momentum * self.plan.momentum).add_(mean).mul_(self.plan.learning_rate))
        self._continue_from(piece, self.plan.mixing)

    def _continue_from(self, piece: _Piece, mixing: float) -> None:
        """Sets the worker's parameters to the outer ones, and keeps the part `mixing` of its own."""
        parts = piece.parts(piece.outer)
        with torch.no_grad():
            for name, parameter in piece.parameters.items():
                outer = parts[name].to(parameter.device)
                parameter.copy_(outer if mixing == 0 else parameter * mixing + outer * (1 - mixing))


def _parameters(layers: Mapping[int, torch.nn.Module]) -> dict[int, dict[str, torch.nn.Parameter]]:
    """The trained parameters by layer and name. One that several layers share belongs to the first of them."""
    seen: set[int] = set()
    found: dict[int, dict[str, torch.nn.Parameter]] = {}
    for layer in sorted(layers):
        found[layer] = {name: each for name, each in layers[layer].named_parameters()
                        if each.requires_grad and id(each) not in seen}
        seen.update(map(id, found[layer].values()))
    return found


def _fault(parameters: Mapping[int, Mapping[str, torch.nn.Parameter]]) -> str | None:
    for layer, named in parameters.items():
        for name, each in named.items():
            if isinstance(each, DTensor):
                return f"parameter {name} of layer {layer} is divided; rounds need whole parameters, without FSDP and shards"
            if each.dtype != torch.float32:
                return f"parameter {name} of layer {layer} is {each.dtype}; rounds need torch.float32, with autocast for others"
    return None


def _exchanges(plan: RoundsPlan, facts: Sequence[Any]) -> dict[tuple[int, ...], list[int]]:
    """The layers that each group of ranks exchanges: one rank of each worker, in the order of workers.

    Raises InputError where the ranks' layers do not fit together.
    """
    _, _, first_plan, _ = facts[0]
    for rank, (worker, layers, its_plan, fault) in enumerate(facts):
        if fault is not None:
            raise InputError(f"rank {rank}: {fault}")
        if its_plan != first_plan:
            raise InputError(f"{plan.file}: rank {rank} has another plan of rounds than rank 0; give all ranks the same")
        if not 0 <= worker < len(plan.workers):
            raise InputError(f"{plan.file}: workers: rank {rank} is of worker {worker}; there are 0 to {len(plan.workers) - 1}")
        for layer in layers:
            if not 0 <= layer < plan.layers:
                raise InputError(f"{plan.file}: rank {rank} has layer {layer}; the plan has 0 to {plan.layers - 1}")
    found: dict[tuple[int, ...], list[int]] = {}
    for layer in range(plan.layers):
        ranks = [[rank for rank, (worker, layers, *_) in enumerate(facts) if worker == each and layer in layers]
                 for each in range(len(plan.workers))]
        for worker, own in zip(plan.workers, ranks, strict=True):
            if not own:
                raise InputError(f"{plan.file}: layer {layer}: no rank of worker {worker.name} has it; give its ranks all layers")
            if len(own) != len(ranks[0]):
                raise InputError(f"{plan.file}: layer {layer}: {len(own)} replicas in worker {worker.name}, and {len(ranks[0])} in "
                                 f"{plan.workers[0].name}; rounds in torch need as many in each")
        for group in zip(*ranks, strict=True):
            for rank in group:
                if facts[rank][1][layer] != facts[group[0]][1][layer]:
                    raise InputError(f"{plan.file}: layer {layer}: rank {rank} has {shown(facts[rank][1][layer])}, and rank "
                                     f"{group[0]} {shown(facts[group[0]][1][layer])}; all workers train the same model")
            found.setdefault(group, []).append(layer)
    return found
