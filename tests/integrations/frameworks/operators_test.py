"""Operators that the host issues for parts of Megatron-Core's blocks, counted: what compute/transformer.cpp takes them for.

results/fidelity/operators/issued.csv keeps the counts.
"""

import csv
import json

from tests.integrations.frameworks.support import FrameworkTest
from tests.support.wheels import ROOT

TABLE = ROOT / "results/fidelity/operators/issued.csv"
# Two ranks divide the experts. Tensors on CPUs have no streams, and gloo takes sizes as numbers.
RANK = '''
import contextlib
import json
import os

from tests.integrations.frameworks.support import stand_in_for

stand_in_for("triton")

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode


def on_cpu(make):
    return lambda *arguments, **named: make(*arguments, **({**named, "device": "cpu"} if "device" in named else named))


class Stream:
    def __init__(self, *_, **__): pass
    def wait_stream(self, *_): pass
    def wait_event(self, *_): pass
    def synchronize(self, *_): pass
    def record_event(self, *_): return self


class Tracker:
    def fork(self, *_): return contextlib.nullcontext()


for name in ("zeros", "empty", "tensor", "ones", "arange"):
    setattr(torch, name, on_cpu(getattr(torch, name)))
torch.cuda.current_device = lambda: "cpu"
torch.cuda.synchronize = lambda *_: None
torch.cuda.Stream = torch.cuda.Event = Stream
torch.cuda.current_stream = lambda *_: Stream()
torch.cuda.stream = lambda _: contextlib.nullcontext()
torch.Tensor.record_stream = lambda *_: None
exchange = dist.all_to_all_single
numbers = lambda sizes: sizes if sizes is None else [int(size) for size in sizes]
dist.all_to_all_single = lambda result, given, output_split_sizes=None, input_split_sizes=None, **named: exchange(
    result, given, numbers(output_split_sizes), numbers(input_split_sizes), **named)
dist.init_process_group("gloo")

from megatron.core import parallel_state
from megatron.core.models import backends
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.transformer import dot_product_attention
from megatron.core.transformer.spec_utils import build_module
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

dot_product_attention.tensor_parallel.get_cuda_rng_tracker = lambda *_: Tracker()
parallel_state.initialize_model_parallel(expert_model_parallel_size=2)
# What a device does not run: other looks at the same numbers, memory, and numbers that the host reads for gloo.
NOT_ISSUED = {"view", "_unsafe_view", "transpose", "t", "permute", "expand", "slice", "select", "unsqueeze", "squeeze", "detach",
              "as_strided", "alias", "split", "split_with_sizes", "chunk", "unbind", "reshape", "_reshape_alias", "empty",
              "empty_like", "new_empty", "new_empty_strided", "ones_like", "lift_fresh", "_local_scalar_dense"}


class Counter(TorchDispatchMode):
    issued = 0

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        self.issued += function.overloadpacket.__name__ not in NOT_ISSUED
        return function(*arguments, **(named or {}))


class FusedAttention(torch.nn.Module):
    """One operator."""

    def __init__(self, *_, **__): super().__init__()

    def forward(self, *given, **_):
        sums = torch.nn.functional.scaled_dot_product_attention(*(each.permute(1, 2, 0, 3) for each in given[:3]))
        return sums.permute(2, 0, 1, 3).reshape(sums.shape[2], sums.shape[0], -1)


def layer_of(config, **named):
    spec = gpt_layer_specs.get_gpt_layer_local_spec(normalization="LayerNorm", **named)
    return build_module(spec, config=config, layer_number=1).train()


def count(module, *given, **named):
    state = torch.randn(64, 1, 64, requires_grad=True)
    with Counter() as forward:
        result = module(state, *given, **named)[0]
    gradient = torch.randn_like(result)
    with Counter() as backward:
        result.backward(gradient)
    return {"forward": forward.issued, "backward": backward.issued}


sizes = {"num_layers": 1, "hidden_size": 64, "num_attention_heads": 4, "ffn_hidden_size": 128, "use_cpu_initialization": True,
         "params_dtype": torch.float32, "normalization": "LayerNorm"}
gated = {**sizes, "add_bias_linear": False, "gated_linear_unit": True, "activation_func": torch.nn.functional.silu,
         "hidden_dropout": 0.0, "attention_dropout": 0.0}
routed = {**gated, "expert_model_parallel_size": 2, "num_moe_experts": 4, "moe_router_topk": 2, "moe_ffn_hidden_size": 32, "moe_token_dispatcher_type": "alltoall",
          "moe_router_load_balancing_type": "none"}
latent = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_head_dim": 16, "qk_pos_emb_head_dim": 8, "v_head_dim": 24,
          "rope_type": "rope", "qk_layernorm": True, "multi_latent_attention": True}
mask = torch.triu(torch.ones(1, 1, 64, 64, dtype=torch.bool), 1)
counts = {"block of gpt": count(layer_of(TransformerConfig(**sizes)), attention_mask=mask)}
backends.DotProductAttention = gpt_layer_specs.DotProductAttention = FusedAttention
counts["attention"] = count(layer_of(TransformerConfig(**gated)).self_attention, mask)
counts["gated network"] = count(layer_of(TransformerConfig(**gated)).mlp)
layer = layer_of(MLATransformerConfig(**gated, **latent), multi_latent_attention=True, qk_layernorm=True)
counts["latent attention"] = count(layer.self_attention, mask)
counts["experts, two of a device"] = count(layer_of(TransformerConfig(**routed), num_experts=4).mlp)
routed["num_moe_experts"] = 2
counts["experts"] = count(layer_of(TransformerConfig(**routed), num_experts=2).mlp)
shared = TransformerConfig(**routed, moe_shared_expert_intermediate_size=32)
counts["experts, one shared"] = count(layer_of(shared, num_experts=2).mlp)
if dist.get_rank() == 0:
    print(json.dumps(counts))
'''


class OperatorsTest(FrameworkTest):
    def test_the_table_has_what_megatron_core_issues(self):
        with TABLE.open(newline="") as opened:
            table = {row["part"]: {"forward": int(row["forward"]), "backward": int(row["backward"])}
                     for row in csv.DictReader(opened)}
        self.assertEqual(json.loads(self.outputs_of_ranks(RANK)[0].splitlines()[-1]), table)
