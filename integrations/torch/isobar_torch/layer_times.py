"""Times of layers in a profile of a plan's ranks, as a device profile (docs/formats/profile.md).

Layers are spans of torch.profiler.record_function in the forward passes, with the workload's names of layers.
"""

import bisect
import collections
import itertools
import json
import statistics
from collections.abc import Sequence

import torch
from torch import nn

from isobar_torch.document import InputError
from isobar_torch.kineto_file import Span
from isobar_torch.kineto_passes import EVALUATE, Pass, RankReader, RankStep
from isobar_torch.models import own_layers
from isobar_torch.plan import Plan
from isobar_torch.traced_module import TracedLayer, trace_module
from isobar_torch.workload import Workload


def traced_layers(workload: Workload) -> list[TracedLayer]:
    """FLOPs, parameters and kept bytes of each layer of a workload, in order."""
    names = workload.names()
    with torch.device("meta"):
        module = nn.Sequential(*own_layers(workload, range(len(names)), 0).values())
    tokens = torch.empty((workload.micro_batch, workload.sequence), dtype=torch.int64, device="meta")
    layers = [TracedLayer(name) for name in names]
    for part in trace_module(module.train(), [tokens]):
        layer = layers[int(part.name.partition(".")[0])]
        layer.forward += part.forward
        layer.backward += part.backward
        layer.parameters += part.parameters
        layer.activations += part.activations
    return layers


class LayerClock:
    """Divides the passes of a rank among its layers."""

    def __init__(self, reader: RankReader, plan: Plan, names: Sequence[str]) -> None:
        self.reader, self.plan, self.names = reader, plan, names
        known = set(names)
        self.spans = [label for label in reader.annotations if label.name in known]
        self.ends = [label.end for label in self.spans]

    def _layers(self, stage: int) -> list[str]:
        return list(self.names[self.plan.stages[stage].first_layer:self.plan.stages[stage].last_layer + 1])

    def _spans(self, each: Pass, step: int) -> list[Span]:
        """The spans of the layers in a forward pass, in their order."""
        wanted = self._layers(each.stage)
        begin, end = each.window
        following = self.spans[bisect.bisect_right(self.ends, begin):]
        found = list(itertools.takewhile(lambda label: label.begin < end, following))
        if [label.name for label in found] != wanted:
            what = f"spans {', '.join(label.name for label in found)}" if found else "no spans of layers"
            raise self.reader.fail(f"step {step}: {each.stage}F{each.local}: {what}, where the workload has {', '.join(wanted)}; "
                                   "call each layer under torch.profiler.record_function with its name, or record with "
                                   "--kineto of isobar_torch")
        return found

    def times(self, step: RankStep) -> dict[str, list[tuple[str, float]]]:
        """By layer: F or B, and seconds of a micro-batch. The times of a pass's layers add up to its time."""
        found: dict[str, list[tuple[str, float]]] = collections.defaultdict(list)
        nodes: dict[int, str] = {}
        backward: dict[tuple[str, int], float] = collections.defaultdict(float)
        for each in step.passes:
            if each.kind != "F":
                continue
            layers = self._layers(each.stage)
            # A layer lasts until the next one begins, the last one until the end of the loss.
            begins = [span.begin for span in self._spans(each, step.number)]
            begins[0] = each.window[0]
            for layer, begin, end in zip(layers, begins, [*begins[1:], each.window[1]], strict=True):
                spans = self.reader.kernels(begin, end) or [Span("", "", max(begin, each.begin), min(end, each.end), "", {})]
                found[layer].append(("F", self._seconds(spans)))
            for operator in self.reader.operators(*each.window):
                layer = layers[max(0, bisect.bisect_right(begins, operator.begin) - 1)]
                for number in self.reader.nodes.get(id(operator), ()):
                    nodes[number] = layer
        for each in step.passes:
            if each.kind != "F":
                self._add_backward(each, nodes, backward)
        for (layer, _), seconds in backward.items():
            found[layer].append(("B", seconds))
        return found

    def _seconds(self, spans: Sequence[Span]) -> float:
        return (max(span.end for span in spans) - min(span.begin for span in spans)) / 1e6

    def _add_backward(self, each: Pass, nodes: dict[int, str], backward: dict[tuple[str, int], float]) -> None:
        """Adds a backward pass to its layers. A node's time lasts until the next begins; gradients that it adds to
        parameters follow it.
        """
        layer = self._layers(each.stage)[-1]
        spans = [span for span in self.reader.operators(*each.window) if span.name.startswith(EVALUATE)]
        if not spans:
            return
        ends = [*(span.begin for span in spans[1:]), each.window[1]]
        for index, (span, end) in enumerate(zip(spans, ends, strict=True)):
            layer = nodes.get(span.arguments.get("Sequence number", -1), layer)
            begin = each.window[0] if index == 0 else span.begin
            kernels = self.reader.kernels(begin, end)
            if self.reader.on_gpu:
                backward[layer, each.local] += sum(kernel.end - kernel.begin for kernel in kernels) / 1e6
            else:
                backward[layer, each.local] += (min(end, each.end) - max(begin, each.begin)) / 1e6


def _spread(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
    return (upper - lower) / median if median > 0 else 0.0


def profile_text(plan: Plan, workload: Workload, readers: Sequence[RankReader], steps: Sequence[Sequence[RankStep]],
                 device: str, memory_bytes: float) -> str:
    """The profile (isobar-profile/1) of all layers on devices of the type `device`.

    Times are medians over micro-batches, replicas and steps, without the first step where there are more. `update_s` is a
    layer's part, by its parameters, of its stage's update. `speed_flops` counts matrix products and attention.
    """
    if plan.recompute:
        raise InputError(f"{plan.file}: recompute: its layers' backward passes compute forward again; profile a plan without it")
    names = workload.names()
    layers = traced_layers(workload)
    parameters = {layer.name: layer.parameters for layer in layers}
    passes: dict[str, dict[str, list[float]]] = {name: {"F": [], "B": [], "U": []} for name in names}
    for rank, (reader, of_rank) in enumerate(zip(readers, steps, strict=True)):
        clock = LayerClock(reader, plan, names)
        for step in of_rank[1:] or of_rank:
            for layer, times in clock.times(step).items():
                for kind, seconds in times:
                    passes[layer][kind].append(seconds)
            for stage, (begin, end) in zip(plan.stages_of(plan.devices[rank]), step.updates, strict=True):
                own = names[plan.stages[stage].first_layer:plan.stages[stage].last_layer + 1]
                whole = sum(parameters[name] for name in own)
                for name in own:
                    passes[name]["U"].append((end - begin) / 1e6 * parameters[name] / whole if whole else 0.0)
    entries = []
    for layer in layers:
        times = passes[layer.name]
        entries.append({"name": layer.name, "forward_s": statistics.median(times["F"]),
                        "backward_s": statistics.median(times["B"]), "update_s": statistics.median(times["U"]),
                        "spread_fraction": max(_spread(times["F"]), _spread(times["B"])),
                        "activations_bytes": layer.activations})
    total_s = sum(entry["forward_s"] + entry["backward_s"] for entry in entries)
    document = {"schema": "isobar-profile/1", "device": device,
                "speed_flops": sum(layer.forward + layer.backward for layer in layers) / total_s,
                "memory_bytes": memory_bytes, "dtype": workload.dtype, "micro_batch": workload.micro_batch,
                "sequence": workload.sequence, "layers": entries}
    return json.dumps(document, indent=2) + "\n"
