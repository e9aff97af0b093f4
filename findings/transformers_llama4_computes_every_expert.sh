#!/usr/bin/env bash
# A Llama 4 of transformers sends every token through every expert, though each token has one. Its work grows with the
# number of experts, as its parameters do.
#
# Packages: transformers 5.24.0 and torch 2.11.0 from PyPI. Needs python3 >= 3.11 with venv; downloads 2 GB.
# Input: models of one layer, 256 tokens, one expert for a token; 4 or 16 experts, of the same sizes.
# Guess: a forward pass takes the same FLOPs with 4 and with 16 experts, but for the router, as in Mixtral.
# Seen, in MFLOP by torch's FlopCounterMode: mixtral 29.5 and 29.9; llama4_text 92.4 and 243.8.
# Cause: its experts are one batched product over all tokens, whose inputs a router scaled, most of them by 0.
# So: a profile of this code overstates the compute of a Llama 4 by almost the number of its experts, and its memory too.
# Training frameworks that dispatch tokens take the work of one expert.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
{ python3 -m venv "$folder" && "$folder/bin/pip" install --quiet transformers==5.24.0 torch==2.11.0 numpy==2.4.6; } ||
  { echo "cannot run: the packages do not install" >&2; exit 2; }

seen=$(TRANSFORMERS_VERBOSITY=error "$folder/bin/python" - <<'END'
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

SIZES = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
         "vocab_size": 128, "num_experts_per_tok": 1, "intermediate_size": 128}
OWN = {"mixtral": {}, "llama4_text": {"head_dim": 16, "intermediate_size_mlp": 128}}


def mflop(model_type, experts):
    config = transformers.AutoConfig.for_model(model_type, **SIZES, **OWN[model_type], num_local_experts=experts)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, 256, dtype=torch.long))
    return counter.get_total_flops() / 1e6


print("; ".join(f"{each} {mflop(each, 4):.1f} {mflop(each, 16):.1f}" for each in OWN))
END
) || true
expected='mixtral 29.5 29.9; llama4_text 92.4 243.8'
[ "$seen" = "$expected" ] || { echo "changed: expected \"$expected\", seen \"$seen\""; exit 1; }
echo "holds: $seen"
