"""Layers of decoders, and modules that are stages of them.

Parameters follow from the seed and the layer, so every division of a model into stages is the same model.
"""

import math
from collections.abc import Sequence

import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional

from isobar_torch.workload import Decoder, Workload

DEVIATION = 0.02  # of weights, as in GPT-2
ACTIVATIONS = {"silu": functional.silu, "gelu": functional.gelu, "relu": functional.relu,
               "gelu_tanh": lambda value: functional.gelu(value, approximate="tanh")}


def _norm(sizes: Decoder, width: int) -> nn.Module:
    make = nn.LayerNorm if sizes.norm == "layer" else nn.RMSNorm
    return make(width, eps=sizes.norm_epsilon)


class Embedding(nn.Module):
    """Tokens [samples, sequence] to hidden states [samples, sequence, hidden]."""

    def __init__(self, sizes: Decoder) -> None:
        super().__init__()
        self.words = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.positions = nn.Embedding(sizes.positions, sizes.hidden) if sizes.positions else None
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.words(tokens)
        if self.positions is not None:
            hidden = hidden + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.dropout(hidden)


def rotate(heads: torch.Tensor, theta: float) -> torch.Tensor:
    """Rotary positions: turns the two halves of each head of [samples, heads, sequence, width] by angles of its place."""
    width, sequence = heads.shape[-1], heads.shape[-2]
    rates = theta ** (-torch.arange(0, width, 2, device=heads.device, dtype=torch.float32) / width)
    angles = torch.outer(torch.arange(sequence, device=heads.device, dtype=torch.float32), rates)
    cosines, sines = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)


class Attention(nn.Module):
    """Causal attention with its norm and residual connection."""

    def __init__(self, sizes: Decoder) -> None:
        super().__init__()
        self.sizes = sizes
        self.norm = _norm(sizes, sizes.hidden)
        width = (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim
        self.qkv = nn.Linear(sizes.hidden, width, bias="qkv" in sizes.biases)
        self.output = nn.Linear(sizes.heads * sizes.head_dim, sizes.hidden, bias="output" in sizes.biases)
        self.query_norm = _norm(sizes, sizes.head_dim) if sizes.qk_norm else nn.Identity()
        self.key_norm = _norm(sizes, sizes.head_dim) if sizes.qk_norm else nn.Identity()
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        sizes = self.sizes
        samples, sequence, _ = hidden.shape
        heads = self.qkv(self.norm(hidden)).view(samples, sequence, -1, sizes.head_dim).transpose(1, 2)
        query, key, value = heads.split((sizes.heads, sizes.kv_heads, sizes.kv_heads), dim=1)
        query, key = self.query_norm(query), self.key_norm(key)
        if sizes.positions is None:
            query, key = rotate(query, sizes.rope_theta), rotate(key, sizes.rope_theta)
        if sizes.fused:
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True,
                                                            enable_gqa=sizes.kv_heads < sizes.heads)
        else:
            group = sizes.heads // sizes.kv_heads
            key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
            scores = query @ key.transpose(-1, -2) / math.sqrt(sizes.head_dim)
            future = torch.ones(sequence, sequence, dtype=torch.bool, device=hidden.device).triu(1)
            mixed = self.dropout(scores.masked_fill(future, -math.inf).softmax(dim=-1)) @ value
        return hidden + self.dropout(self.output(mixed.transpose(1, 2).reshape(samples, sequence, -1)))


class FeedForward(nn.Module):
    """The feed-forward network with its norm and residual connection."""

    def __init__(self, sizes: Decoder) -> None:
        super().__init__()
        bias = "mlp" in sizes.biases
        self.norm = _norm(sizes, sizes.hidden)
        self.gate = nn.Linear(sizes.hidden, sizes.intermediate, bias=bias) if sizes.gated else None
        self.up = nn.Linear(sizes.hidden, sizes.intermediate, bias=bias)
        self.down = nn.Linear(sizes.intermediate, sizes.hidden, bias=bias)
        self.activate = ACTIVATIONS[sizes.activation]
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        value = self.norm(hidden)
        inner = self.activate(self.up(value)) if self.gate is None else self.activate(self.gate(value)) * self.up(value)
        return hidden + self.dropout(self.down(inner))


class Head(nn.Module):
    """Hidden states to logits [samples, sequence, vocabulary]."""

    def __init__(self, sizes: Decoder) -> None:
        super().__init__()
        self.norm = _norm(sizes, sizes.hidden)
        self.words = nn.Linear(sizes.hidden, sizes.vocabulary, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.words(self.norm(hidden))


def _draw(module: nn.Module) -> None:
    for each in module.modules():
        if isinstance(each, nn.Linear | nn.Embedding):
            nn.init.normal_(each.weight, std=DEVIATION)
        if isinstance(each, nn.Linear) and each.bias is not None:
            nn.init.zeros_(each.bias)


def make_layer(sizes: Decoder, unit: str, layer: int, seed: int) -> nn.Module:
    """Layer `layer` of a workload with its parameters. Both units draw the same ones."""
    parts = 1 if unit == "block" else 2
    last = sizes.layers * parts + 1
    make: list[type[nn.Module]]
    if layer in (0, last):
        place, make = (0, [Embedding]) if layer == 0 else (sizes.layers + 1, [Head])
    else:
        place = (layer - 1) // parts + 1
        make = [Attention, FeedForward] if parts == 1 else [(Attention, FeedForward)[(layer - 1) % 2]]
    modules = []
    for each in make:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed * 1_000_003 + 2 * place + (each is FeedForward))
            modules.append(each(sizes))
            _draw(modules[-1])
    return modules[0] if len(modules) == 1 else nn.Sequential(*modules)


class StageModule(nn.Module):
    """Neighbouring layers, one after another.

    `layers` by their names in the workload, under which torch's profiler shows them; those of `recompute` keep their input
    only. In bf16 the layers run under
    autocast, and what leaves the stage is bf16.
    """

    def __init__(self, layers: dict[str, nn.Module], recompute: Sequence[str], dtype: str, device: torch.device) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({name.replace(".", "_"): layer for name, layer in layers.items()})
        self.names = list(layers)
        self.recompute = frozenset(recompute)
        self.dtype, self.device = dtype, device

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.dtype == "bf16"):
            for name, layer in zip(self.names, self.layers.values(), strict=True):
                with torch.profiler.record_function(name):
                    if name in self.recompute and torch.is_grad_enabled():
                        value = torch.utils.checkpoint.checkpoint(layer, value, use_reentrant=False)
                    else:
                        value = layer(value)
        return value.bfloat16() if self.dtype == "bf16" else value


def own_layers(workload: Workload, numbers: range, seed: int) -> dict[str, nn.Module]:
    """Our layers with these numbers, by name."""
    names = workload.names()
    assert workload.decoder is not None
    return {names[i]: make_layer(workload.decoder, workload.unit, i, seed) for i in numbers}


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy over the tokens of a micro-batch, in float32."""
    return functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


def tokens_of(workload: Workload, seed: int, step: int, microbatch: int) -> torch.Tensor:
    """Synthetic tokens [samples, sequence + 1] of a micro-batch: inputs are all but the last, labels all but the first."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + step) * 1_000_003 + microbatch)
    return torch.randint(workload.vocabulary, (workload.micro_batch, workload.sequence + 1), generator=generator)
