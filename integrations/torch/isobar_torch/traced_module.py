"""The layers of a torch module, and their workload (the work of isobar_torch.trace)."""

import argparse
import bisect
import collections
import contextlib
import dataclasses
import importlib
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# It warns that it cannot count what Triton computes, which no module does on the meta device.
logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from isobar_torch.document import InputError, shown, write_atomically

INPUT = re.compile(r"\[\s*(\d+(?:\s*,\s*\d+)*)\s*\]:(\w+)")
DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "bfloat16": torch.bfloat16, "fp16": torch.float16,
          "float16": torch.float16, "int64": torch.int64, "int32": torch.int32, "bool": torch.bool}
WORKLOAD_DTYPES = {torch.float32: "float32", torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclasses.dataclass
class TracedLayer:
    """A layer of a workload; the numbers are of one micro-batch."""

    name: str
    forward: int = 0  # FLOPs
    backward: int = 0  # FLOPs
    backward_weight: int = 0  # FLOPs of the gradients of parameters, among `backward`
    parameters: int = 0
    activations: int = 0  # bytes, kept from forward until backward
    output: int = 0  # bytes


@dataclasses.dataclass
class _Operation:
    """An operation of the forward pass that depends on the inputs."""

    module: str  # path of the innermost module that it runs in
    sequence: int  # autograd nodes with lower numbers belong to it or to earlier ones
    forward: int = 0
    backward: int = 0
    reads: set[int] = dataclasses.field(default_factory=set)  # storages
    writes: set[int] = dataclasses.field(default_factory=set)
    parameters: set[str] = dataclasses.field(default_factory=set)
    kept: set[int] = dataclasses.field(default_factory=set)  # storages


class _Attention(torch.autograd.Function):
    """Attention by one kernel: keeps its inputs, its output and a float32 number for each query, not the scores.

    Its backward pass counts as twice the forward pass; that the kernel computes the scores again does not count.
    """

    @staticmethod
    def forward(ctx: Any, recording: "_Recording", query: torch.Tensor, key: torch.Tensor,
                value: torch.Tensor) -> torch.Tensor:
        recording.read([query, key, value])
        # Kernels write the heads of a token next to each other, so that joining them is no copy.
        shape = [1, *query.shape]
        width = value.shape[-1]
        output = query.new_empty([*shape[:-3], shape[-2], shape[-3], width]).transpose(-3, -2)
        output = output.view(*shape[1:-1], width)
        sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, output, sums)
        ctx.recording = recording
        heads = query.shape[:-2].numel()
        shapes = [(1, heads, *each.shape[-2:]) for each in (query, key, value)]
        ctx.flops = sdpa_flop_count(*shapes)
        recording.operations[-1].forward += ctx.flops
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, _, _ = ctx.saved_tensors
        ctx.recording.add_backward(2 * ctx.flops)
        return None, torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


class _FusedAttention(TorchFunctionMode):
    """Replaces scaled_dot_product_attention, which on the meta device would keep all scores."""

    def __init__(self, recording: "_Recording") -> None:
        super().__init__()
        self.recording = recording

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if function is functional.scaled_dot_product_attention:
            query, key, value = (*args, *(named[each] for each in ("query", "key", "value")[len(args):]))[:3]
            if not (named.get("dropout_p", 0.0) or (args[4] if len(args) > 4 else 0.0)):
                return _Attention.apply(self.recording, query, key, value)
        return function(*args, **named)


class _Recording(TorchDispatchMode):
    """The operations of a forward pass, and then the work of its backward pass."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.operations: list[_Operation] = []
        self.path = [""]
        self.sizes: dict[int, int] = {}  # bytes by storage
        self.floats: set[int] = set()  # storages of floating-point numbers
        self.tensors: dict[int, torch.Tensor] = {}  # the first one of each storage
        self.kept: list[tuple[int, int]] = []  # what autograd keeps: sequence number of its node, and storage
        self.parameters_of: dict[int, set[str]] = collections.defaultdict(set)  # storages made of parameters alone
        self.depending: set[int] = set()  # storages that depend on the inputs
        self.own: set[int] = set()  # storages of parameters and buffers
        self.current: int | None = None  # the operation whose backward pass runs; None: forward
        for name, each in module.named_parameters(remove_duplicate=True):
            self.parameters_of[self._storage(each)].add(name)
            self.own.add(self._storage(each))
        self.own |= {self._storage(each) for each in module.buffers()}

    def _storage(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        number = storage._cdata
        if number not in self.sizes:
            self.tensors[number] = tensor
            self.sizes[number] = storage.nbytes()
        if tensor.is_floating_point():
            self.floats.add(number)
        return number

    def depend(self, tensors: Sequence[torch.Tensor]) -> None:
        """Declares the inputs."""
        self.depending |= {self._storage(each) for each in tensors}

    def read(self, tensors: Sequence[torch.Tensor]) -> None:
        """Begins an operation that reads the tensors."""
        operation = _Operation(self.path[-1], torch.autograd._get_sequence_nr())
        for each in tensors:
            storage = self._storage(each)
            operation.reads.add(storage)
            operation.parameters |= self.parameters_of.get(storage, set())
        self.operations.append(operation)

    def add_backward(self, flops: int) -> None:
        """Counts work of the operation whose backward pass runs."""
        if self.current is not None:
            self.operations[self.current].backward += flops

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Called for what autograd keeps: for inputs before the operation runs, for outputs after it."""
        storage = self._storage(tensor)
        if self.current is None and storage not in self.own:
            self.kept.append((torch.autograd._get_sequence_nr(), storage))
        return tensor

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        read = [each for each in tree_leaves((args, named)) if isinstance(each, torch.Tensor)]
        depends = self.current is None and any(self._storage(each) in self.depending for each in read)
        if depends:
            self.read(read)
        result = function(*args, **named)
        count = flop_registry.get(function._overloadpacket)
        flops = count(*args, **named, out_val=result) if count else 0
        if self.current is not None:
            self.add_backward(flops)
            return result
        made = [self._storage(each) for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
        if depends:
            self.operations[-1].forward += flops
            self.operations[-1].writes.update(made)
            self.depending.update(made)
        else:
            for each in read:
                for storage in made:
                    self.parameters_of[storage] |= self.parameters_of.get(self._storage(each), set())
        return result

    @contextlib.contextmanager
    def naming(self, module: nn.Module) -> Iterator[None]:
        """Knows which module runs while this lasts."""
        names = {id(each): name for name, each in module.named_modules()}

        def enter(each: nn.Module, _: Any) -> None:
            self.path.append(names.get(id(each), self.path[-1]))

        def leave(*_: Any) -> None:
            self.path.pop()

        handles = [nn.modules.module.register_module_forward_pre_hook(enter),
                   nn.modules.module.register_module_forward_hook(leave)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def finish(self, outputs: Sequence[torch.Tensor]) -> None:
        """Ends the forward pass."""
        sequences = [each.sequence for each in self.operations]
        for sequence, storage in self.kept:
            number = bisect.bisect_left(sequences, sequence)
            self.operations[min(number, len(sequences) - 1)].kept.add(storage)
        waiting = [each.grad_fn for each in outputs if each.grad_fn is not None]
        seen = set(waiting)
        while waiting:
            node = waiting.pop()
            # Nodes that add up a parameter's gradient have the highest number, and no work.
            if node._sequence_nr() < sequences[-1]:
                number = bisect.bisect_right(sequences, node._sequence_nr())
                node.register_prehook(lambda _, number=number: setattr(self, "current", number))
            fresh = {each for each, _ in node.next_functions if each is not None} - seen
            seen |= fresh
            waiting += fresh
        self.current = len(sequences) - 1

    def backward_work(self, outputs: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> list[int]:
        """FLOPs of a backward pass by operation, for the gradients of some tensors."""
        for each in self.operations:
            each.backward = 0
        ends = [each for each in outputs if each.requires_grad]
        if ends and wanted:
            torch.autograd.grad(ends, wanted, [torch.empty_like(each) for each in ends], retain_graph=True,
                                allow_unused=True)
        return [each.backward for each in self.operations]


@contextlib.contextmanager
def _autocast_on_meta() -> Iterator[None]:
    """Lets modules turn autocast off for the meta device, which torch.autocast does not know."""
    known = torch.autocast.__init__

    def initialise(self: Any, device_type: str, *arguments: Any, **named: Any) -> None:
        known(self, "cpu" if device_type == "meta" else device_type, *arguments, **named)

    torch.autocast.__init__ = initialise  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.autocast.__init__ = known  # type: ignore[method-assign]


def _cuts(recording: _Recording, outputs: set[int]) -> list[tuple[int, int]]:
    """Operations after which one tensor crosses, and its storage."""
    operations = recording.operations
    last: dict[int, int] = {}
    for number, each in enumerate(operations):
        for storage in each.reads:
            last[storage] = number
    last |= dict.fromkeys(outputs, len(operations))
    live: set[int] = {storage for storage in recording.depending if storage in last} - {
        storage for each in operations for storage in each.writes}
    cuts = []
    for number, each in enumerate(operations[:-1]):
        live |= each.writes & last.keys()
        live = {storage for storage in live if last[storage] > number}
        if len(live) == 1 and live <= recording.floats:
            cuts.append((number, next(iter(live))))
    return cuts


def _name(operations: Sequence[_Operation], root: str) -> str:
    """The innermost module with the work, or the parameters, or all of the operations."""
    for chosen in ([each for each in operations if each.forward], [each for each in operations if each.parameters],
                   operations):
        if chosen:
            paths = [each.module.split(".") for each in chosen]
            return ".".join(os.path.commonprefix(paths)) or root
    return root


def trace_module(module: nn.Module, inputs: Sequence[torch.Tensor]) -> list[TracedLayer]:
    """The layers of a module on the meta device, in order.

    A layer ends wherever one tensor of floating-point numbers crosses to what follows, after some work or parameters.
    Tensors that do not depend on the inputs, such as masks, do not count. A parameter that several layers use counts in
    each. Raises what the module raises.
    """
    recording = _Recording(module)
    recording.depend(inputs)
    hooks = torch.autograd.graph.saved_tensors_hooks(recording.keep, lambda each: each)
    with _FusedAttention(recording), recording.naming(module), _autocast_on_meta(), recording, hooks:
        outputs = [each for each in tree_leaves(module(*inputs)) if isinstance(each, torch.Tensor)]
        operations = recording.operations
        if not operations:
            raise InputError("the module computes nothing of its inputs")
        recording.finish(outputs)
        cuts = _kept_cuts(operations, _cuts(recording, {recording._storage(each) for each in outputs}))
        whole = recording.backward_work(outputs, [each for each in module.parameters() if each.requires_grad])
        crossing = [recording.tensors[storage] for _, storage in cuts[:1]]
        of_activations = recording.backward_work(outputs, [each for each in crossing if each.requires_grad])
    bounds = list(zip([0, *(number + 1 for number, _ in cuts)],
                      [*(number + 1 for number, _ in cuts), len(operations)], strict=True))
    layers: list[TracedLayer] = []
    sizes = dict(module.named_parameters())
    used: collections.Counter[str] = collections.Counter()
    for index, (begin, end) in enumerate(bounds):
        own = operations[begin:end]
        layer = TracedLayer(_name(own, type(module).__name__))
        layer.forward, layer.backward = sum(each.forward for each in own), sum(whole[begin:end])
        layer.parameters = sum(sizes[name].numel() for name in set().union(*(each.parameters for each in own)))
        if layer.parameters:
            # The input of the first layer has no gradient.
            layer.backward_weight = layer.backward - (sum(of_activations[begin:end]) if index else 0)
        kept = set().union(*(each.kept for each in own))
        layer.activations = sum(recording.sizes[storage] for storage in kept)
        layer.output = recording.sizes[cuts[index][1]] if index < len(cuts) else sum(
            each.numel() * each.element_size() for each in outputs)
        used[layer.name] += 1
        if used[layer.name] > 1:
            layer.name += f"#{used[layer.name]}"
        layers.append(layer)
    return layers


def _kept_cuts(operations: Sequence[_Operation], cuts: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those between layers with work or parameters on both sides. What has neither joins the layer before it."""
    def has_work(begin: int, end: int) -> bool:
        return any(each.forward or each.parameters for each in operations[begin:end])

    kept: list[tuple[int, int]] = []
    for number, storage in cuts:
        begin = kept[-1][0] + 1 if kept else 0
        if not has_work(begin, number + 1):
            if kept:
                kept[-1] = (number, storage)
        else:
            kept.append((number, storage))
    if kept and not has_work(kept[-1][0] + 1, len(operations)):
        kept.pop()
    return kept


def shared_parameters(module: nn.Module) -> list[str]:
    """Names of parameters that the module has under several names, such as of a tied head."""
    names: dict[int, list[str]] = collections.defaultdict(list)
    for name, each in module.named_parameters(remove_duplicate=False):
        names[id(each)].append(name)
    return [" = ".join(each) for each in names.values() if len(each) > 1]


def workload_text(source: str, layers: Sequence[TracedLayer], inputs: Sequence[torch.Tensor], dtype: str,
                  optimizer: str) -> str:
    """The workload file (docs/formats/workload.md)."""
    first = inputs[0]
    sequence = first.shape[1] if first.dim() == 2 and not first.is_floating_point() else 1
    size = sum(each.numel() * each.element_size() for each in inputs)
    lines = [f"# {source}, traced by isobar_torch.trace", "model: layers", f"micro_batch: {first.shape[0]}",
             f"sequence: {sequence}", f"dtype: {dtype}", f"optimizer: {optimizer}", f"input: {size} B", "layers:"]
    for each in layers:
        fields = {"name": f'"{each.name}"', "forward": f"{each.forward} FLOP", "backward": f"{each.backward} FLOP"}
        if each.parameters:
            fields["backward_weight"] = f"{each.backward_weight} FLOP"
        fields |= {"parameters": str(each.parameters), "activations": f"{each.activations} B", "output": f"{each.output} B"}
        lines.append("  - {" + ", ".join(f"{key}: {value}" for key, value in fields.items()) + "}")
    return "\n".join(lines) + "\n"


def inputs_of(texts: Sequence[str]) -> list[torch.Tensor]:
    """Tensors on the meta device: `[4,128]:int64`."""
    inputs = []
    for text in texts:
        match = INPUT.fullmatch(text.strip())
        if match is None or match[2] not in DTYPES:
            raise InputError(f"--input {shown(text)}: write sizes and dtype ({', '.join(DTYPES)}), such as [4,128]:int64")
        shape = [int(each) for each in match[1].split(",")]
        if not all(0 < each <= 2**40 for each in shape):
            raise InputError(f"--input {shown(text)}: sizes are 1 or more")
        inputs.append(torch.empty(shape, dtype=DTYPES[match[2]], device="meta"))
    return inputs


def build_module(source: str) -> nn.Module:
    """Calls `function` of `module:function` on the meta device."""
    place, _, function = source.partition(":")
    if not place or not function:
        raise InputError(f"{shown(source)}: write MODULE:FUNCTION, such as mymodel:build")
    sys.path.insert(0, os.getcwd())
    try:
        build = getattr(importlib.import_module(place), function)
    except (ImportError, AttributeError) as fault:
        raise InputError(f"{shown(source)}: {fault}") from None
    try:
        with torch.device("meta"):
            module = build()
    except Exception as fault:  # whatever the user's function raises
        raise InputError(f"{shown(source)}: {type(fault).__name__}: {_first_line(fault)}") from None
    if not isinstance(module, nn.Module):
        raise InputError(f"{shown(source)}: gives a {type(module).__name__}; return a torch.nn.Module")
    return module.to("meta").train()


def _first_line(fault: Exception) -> str:
    return (str(fault).strip().splitlines() or [""])[0]


def run(options: argparse.Namespace) -> int:
    """Writes the workload of the module that the options name. Returns 0. Raises InputError."""
    inputs = inputs_of(options.input)
    module = build_module(options.source)
    dtype = next((each.dtype for each in module.parameters()), torch.float32)
    if dtype not in WORKLOAD_DTYPES:
        raise InputError(f"{options.source}: parameters are {dtype}; workloads have float32, bf16 or fp16")
    try:
        layers = trace_module(module, inputs)
    except InputError as fault:
        raise InputError(f"{options.source}: {fault}") from None
    except Exception as fault:  # whatever the user's module raises
        raise InputError(f"{options.source}: forward on the meta device, where no values are: {type(fault).__name__}: "
                         f"{_first_line(fault)}") from None
    text = workload_text(options.source, layers, inputs, WORKLOAD_DTYPES[dtype], options.optimizer)
    if options.output is None:
        print(text, end="")
    else:
        write_atomically(options.output, text)
        print(f"{options.output}: {len(layers)} layers, {sum(each.parameters for each in layers)} parameters, "
              f"{sum(each.forward for each in layers)} FLOP forward")
    for names in shared_parameters(module):
        print(f"isobar_torch.trace: {names}: one parameter, which counts in each layer that uses it", file=sys.stderr)
    return 0
