"""The part of Isobar's workload files that is trained here: gpt, llama and dense decoders, with their optimizers."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import yaml

from isobar_torch.document import InputError, Reader, fnv1a, read_text, read_yaml, shown

MODELS = ("gpt", "llama", "decoder")
# Keys that say what a step costs or how long it may take, and not what it computes.
COST_KEYS = ("compute", "framework", "matmul_dtype", "memory_model", "recompute_operators", "differences",
             "query_pre_attn_scalar")


@dataclasses.dataclass(frozen=True)
class Decoder:
    """Sizes of a decoder whose blocks are alike. Widths and counts are numbers of elements."""

    layers: int
    hidden: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    positions: int | None  # learned positions; None: rotary ones
    norm: str  # "layer" or "rms"
    norm_epsilon: float
    activation: str
    gated: bool
    biases: frozenset[str]  # of "qkv", "output", "mlp"
    qk_norm: bool
    rope_theta: float
    fused: bool  # one kernel for attention
    dropout: float


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """How parameters are updated (docs/formats/workload.md)."""

    name: str
    learning_rate: float
    momentum: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    clip_norm: float | None
    warmup_steps: int
    decay: str
    decay_steps: int
    min_learning_rate: float

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return self.learning_rate * step / self.warmup_steps
        if self.decay == "none":
            return self.learning_rate
        part = min(1.0, (step - self.warmup_steps) / (self.decay_steps - self.warmup_steps))
        height = 1 - part if self.decay == "linear" else (1 + math.cos(math.pi * part)) / 2
        return self.min_learning_rate + (self.learning_rate - self.min_learning_rate) * height


@dataclasses.dataclass(frozen=True)
class Workload:
    """A model and how it is trained. A micro-batch has `micro_batch` samples of `sequence` tokens."""

    file: str
    hash: str
    micro_batch: int
    sequence: int
    dtype: str  # "float32" or "bf16"
    layers: int
    hidden: int
    vocabulary: int
    unit: str  # "block" or "operator"
    decoder: Decoder | None  # None: the model is transformers'
    optimizer: Optimizer

    def names(self) -> list[str]:
        """The names of the layers that plans number: embedding, blocks or their halves, head."""
        parts = ("",) if self.unit == "block" else (".attention", ".mlp")
        return ["embedding", *(f"block{i}{part}" for i in range(self.layers) for part in parts), "head"]


def _decoder(reader: Reader, model: str, layers: int, hidden: int, vocabulary: int, sequence: int) -> Decoder:
    heads = reader.count("heads", 1, 2**20)
    kv_heads = heads if model == "gpt" else reader.count("kv_heads", 1, heads, None if model == "llama" else heads)
    if heads % kv_heads != 0:
        reader.fail(f"{kv_heads} does not divide the {heads} heads", "kv_heads")
    head_dim = reader.count("head_dim", 1, 2**20, 0) if model == "decoder" else 0
    if head_dim == 0:
        if hidden % heads != 0:
            reader.fail(f"{heads} does not divide hidden, {hidden}", "heads")
        head_dim = hidden // heads
    if model == "gpt":
        shape: dict[str, Any] = {"positions": reader.count("positions", sequence, 2**24, sequence), "norm": "layer",
                 "norm_epsilon": 1e-5, "activation": "gelu_tanh", "gated": False,
                 "biases": frozenset(("qkv", "output", "mlp")), "qk_norm": False, "rope_theta": 0.0,
                 "intermediate": reader.count("intermediate", 1, 2**22, 4 * hidden)}
    else:
        shape = {"positions": None, "norm": "rms", "activation": "silu", "gated": True, "biases": frozenset(),
                 "qk_norm": False, "intermediate": reader.count("intermediate", 1, 2**22),
                 "rope_theta": reader.number("rope_theta", 1e-9, 1e18, 500000 if model == "llama" else 10000),
                 "norm_epsilon": reader.number("norm_epsilon", 1e-12, 1, 1e-5)}
        reader.choice("rope_type", ("default",), "default")
    if model == "decoder":
        shape["norm"] = reader.choice("norm", ("rms", "layer"), "rms")
        shape["activation"] = reader.choice("activation", ("silu", "gelu", "gelu_tanh", "relu"), "silu")
        shape["gated"] = reader.flag("gated", True)
        shape["qk_norm"] = reader.choice("qk_norm", ("none", "head"), "none") == "head"
        if not reader.flag("rotary", True):
            shape["positions"] = reader.count("positions", sequence, 2**24)
        if reader.has("biases"):
            shape["biases"] = frozenset(map(str, reader.list("biases")))
            if not shape["biases"] <= {"qkv", "output", "mlp"}:
                reader.fail(f"{shown(reader.any('biases'))}; of qkv, output and mlp", "biases")
    attention = reader.choice("attention", ("fused", "flash", "unfused", "recomputed"),
                              "unfused" if model == "gpt" else "fused")
    dropout = reader.number("dropout", 0, 0.999, 0.0) if model == "gpt" else 0.0
    if dropout > 0 and attention in ("fused", "flash"):
        reader.fail(f"{dropout:g} with attention: {attention}; use attention: unfused", "dropout")
    if attention == "recomputed":
        reader.fail("recomputed; use unfused, and recompute whole layers in the plan", "attention")
    return Decoder(layers=layers, hidden=hidden, vocabulary=vocabulary, heads=heads, kv_heads=kv_heads,
                   head_dim=head_dim, fused=attention != "unfused", dropout=dropout, **shape)


def _optimizer(reader: Reader) -> Optimizer:
    warmup = reader.count("warmup_steps", 0, 10**12, 0)
    decay = reader.choice("learning_rate_decay", ("none", "linear", "cosine"), "none")
    rate = reader.number("learning_rate", 1e-300, 1e300, 0.01)
    return Optimizer(
        name=reader.choice("optimizer", ("sgd", "momentum", "adam", "adamw"), "sgd"), learning_rate=rate,
        momentum=reader.number("momentum", 0, 1, 0.9), beta1=reader.number("beta1", 0, 1, 0.9),
        beta2=reader.number("beta2", 0, 1, 0.999), epsilon=reader.number("epsilon", 0, 1, 1e-8),
        weight_decay=reader.number("weight_decay", 0, 1e300, 0.0),
        clip_norm=reader.number("clip_norm", 1e-300, 1e300, 0) if reader.has("clip_norm") else None,
        warmup_steps=warmup, decay=decay,
        decay_steps=reader.count("decay_steps", warmup + 1, 10**12) if decay != "none" else warmup + 1,
        min_learning_rate=reader.number("min_learning_rate", 0, rate, 0.0))


def read_workload(file: str, settings: Mapping[str, str], micro_batch: int | None, own_model: bool) -> Workload:
    """Reads a workload file.

    `settings`: values of keys in place of the file's, as a plan keeps those of --set. `micro_batch`: samples of a
    micro-batch in place of the file's. `own_model`: whether the layers are ours; otherwise only the sizes that a
    transformers model shares with the file are read. Raises InputError for what is wrong or not trained here.
    """
    reader = read_yaml(file)
    content = read_text(file).encode()
    for key in sorted(settings):
        content += b"\0" + f"{key}={settings[key]}".encode()
        try:
            reader.value[key] = yaml.load(settings[key], Loader=yaml.BaseLoader)  # builds texts only
        except yaml.YAMLError:
            raise InputError(f"{file}: {key}={shown(settings[key])}: not a value of YAML") from None
    model = reader.choice("model", MODELS)
    layers = reader.count("layers", 1, 10**6)
    hidden = reader.count("hidden", 1, 2**20)
    vocabulary = reader.count("vocabulary", 2, 2**24)
    sequence = reader.count("sequence", 1, 2**24)
    unit = reader.choice("unit", ("block", "operator"), "block")
    if reader.text("tied", "false") == "true":
        reader.fail("true; torch trains a matrix each for head and embedding here; write apart", "tied")
    dtype = reader.text("dtype", "float32")
    if dtype not in ("float32", "bf16"):
        reader.fail(f"{dtype}; use float32 or bf16, since losses are not scaled", "dtype")
    reader.skip(*COST_KEYS)
    optimizer = _optimizer(reader)
    samples = micro_batch or reader.count("micro_batch", 1, 2**20, 1)
    reader.skip("micro_batch")
    decoder = None
    if own_model:
        decoder = _decoder(reader, model, layers, hidden, vocabulary, sequence)
        reader.finish(lambda key: f"isobar_torch has no {model} with it; remove it, or use transformers' model: --model")
    elif unit != "block":
        reader.fail("operator; transformers' models are divided by blocks", "unit")
    return Workload(file=file, hash=fnv1a(content), micro_batch=samples, sequence=sequence, dtype=dtype, layers=layers,
                    hidden=hidden, vocabulary=vocabulary, unit=unit, decoder=decoder, optimizer=optimizer)
