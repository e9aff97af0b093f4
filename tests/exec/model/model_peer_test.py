"""Compares our BERT, GPT-2, Llama, Mistral, Qwen, Mixtral and Gemma 2 with those of transformers, if installed: the same
weights and inputs give the same outputs and losses, and so does the exported model."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from tests.support.peers import need_peers, peers_environment

WORKLOADS = {
    "bert": "model: bert\nencoders: 2\nhidden: 24\nheads: 3\nintermediate: 40\nvocabulary: 50\npositions: 16\n"
            "classes: 3\n",
    "gpt2": "model: gpt\nlayers: 2\nhidden: 24\nheads: 3\nintermediate: 40\nvocabulary: 50\npositions: 16\n",
    "gpt2_tied": "model: gpt\nlayers: 2\nhidden: 24\nheads: 3\nintermediate: 40\nvocabulary: 50\npositions: 16\ntied: true\n",
    "llama": "model: llama\nlayers: 2\nhidden: 24\nheads: 6\nkv_heads: 2\nintermediate: 40\nvocabulary: 50\n"
             "rope_theta: 10000\nnorm_epsilon: 0.001\n",
}

WORKLOADS["mistral"] = WORKLOADS["llama"]  # whose layers it has
WORKLOADS["llama3"] = WORKLOADS["llama"] + ("rope_type: llama3\nrope_factor: 8\nrope_low_freq_factor: 1\n"
                                            "rope_high_freq_factor: 4\noriginal_max_position_embeddings: 8\n")

DECODER = ("model: decoder\nlayers: 2\nhidden: 24\nheads: 6\nkv_heads: 2\nvocabulary: 50\nnorm_epsilon: 0.001\n")
WORKLOADS["llama_decoder"] = DECODER + ("intermediate: 40\nhead_dim: 8\nbiases: [qkv, output, mlp]\ntied: true\n"
                                        "rope_type: llama3\nrope_factor: 8\noriginal_max_position_embeddings: 8\n")
WORKLOADS["mistral_window"] = DECODER + "intermediate: 40\nlayer_types: [window]\nsliding_window: 5\n"
WORKLOADS["qwen2"] = DECODER + "intermediate: 40\nbiases: [qkv]\nlayer_types: [full, window]\nsliding_window: 5\n"
WORKLOADS["qwen3"] = DECODER + "intermediate: 40\nqk_norm: head\nhead_dim: 8\ntied: true\nrope_theta: 1000000\n"
WORKLOADS["qwen3_moe"] = DECODER + ("intermediate: 40\nqk_norm: head\nhead_dim: 8\nexperts: 5\ntop_k: 3\n"
                                    "expert_intermediate: 12\nnorm_topk_prob: true\n"
                                    "mlp_layer_types: [dense, experts]\n")
WORKLOADS["qwen3_moe_unnormalized"] = DECODER + ("qk_norm: head\nhead_dim: 8\nexperts: 5\ntop_k: 3\n"
                                                 "expert_intermediate: 12\nnorm_topk_prob: false\n")
WORKLOADS["mixtral"] = DECODER + "experts: 4\ntop_k: 2\nexpert_intermediate: 12\n"
WORKLOADS["gemma2"] = DECODER + (
    "intermediate: 40\nhead_dim: 8\nactivation: gelu_tanh\nnorm_place: both\nzero_centered_gamma: true\n"
    "embedding_multiplier: 4.898979485566356\nquery_pre_attn_scalar: 12\nattn_logit_softcapping: 0.7\n"
    "final_logit_softcapping: 1.5\nlayer_types: [window, full]\nsliding_window: 5\nattention: unfused\ntied: true\n")

# For each model, a folder with its weights in shards, inputs, and the outputs of transformers.
SAVE = """
import pathlib, sys
import torch, transformers
from safetensors.torch import save_file
torch.manual_seed(1)
common = {"initializer_range": 0.3, "vocab_size": 50}
sizes = {"hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 40, "max_position_embeddings": 16}
gpt2 = transformers.GPT2Config(**common, n_embd=24, n_layer=2, n_head=3, n_inner=40, n_positions=16)
models = {
    "bert": transformers.BertForSequenceClassification(transformers.BertConfig(
        **common, **sizes, num_attention_heads=3, num_labels=3)),
    "gpt2": transformers.GPT2LMHeadModel(gpt2),
    "gpt2_tied": transformers.GPT2LMHeadModel(gpt2),
    "llama": transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **common, **sizes, num_attention_heads=6, num_key_value_heads=2, rope_theta=10000.0, rms_norm_eps=1e-3)),
    "mistral": transformers.MistralForCausalLM(transformers.MistralConfig(
        **common, **sizes, num_attention_heads=6, num_key_value_heads=2, rope_theta=10000.0, rms_norm_eps=1e-3,
        sliding_window=12)),
}
common |= {"num_key_value_heads": 2, "rms_norm_eps": 1e-3, "num_attention_heads": 6, "attn_implementation": "eager",
           "tie_word_embeddings": False}
scaled = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8}
experts = {"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 12, "head_dim": 8}
tied = {"tie_word_embeddings": True}
models |= {
    "llama3": transformers.LlamaForCausalLM(transformers.LlamaConfig(**common, **sizes, rope_scaling=scaled)),
    "llama_decoder": transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **common | tied, **sizes, head_dim=8, attention_bias=True, mlp_bias=True, rope_scaling=scaled)),
    "mistral_window": transformers.MistralForCausalLM(transformers.MistralConfig(**common, **sizes, sliding_window=5)),
    "qwen2": transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        **common, **sizes, use_sliding_window=True, sliding_window=5, max_window_layers=1)),
    "qwen3": transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
        **common | tied, **sizes, head_dim=8, rope_theta=1e6)),
    "qwen3_moe": transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
        **common, **sizes, **experts, norm_topk_prob=True, mlp_only_layers=[0])),
    "qwen3_moe_unnormalized": transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
        **common, **sizes, **experts, norm_topk_prob=False)),
    "mixtral": transformers.MixtralForCausalLM(transformers.MixtralConfig(
        **common, **sizes | {"intermediate_size": 12}, num_local_experts=4, num_experts_per_tok=2, rope_theta=1e4)),
    "gemma2": transformers.Gemma2ForCausalLM(transformers.Gemma2Config(
        **common | tied, **sizes, head_dim=8, query_pre_attn_scalar=12, attn_logit_softcapping=0.7,
        final_logit_softcapping=1.5, sliding_window=5)),
}
for name, model in models.items():
    folder = pathlib.Path(sys.argv[1], name)
    for parameter in model.parameters():  # zeros and ones, too
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.eval().save_pretrained(folder / "weights", max_shard_size="15KB")
    tokens = torch.randint(50, (3, 12))
    labels = torch.randint(3 if name == "bert" else 50, (3,) if name == "bert" else (3, 12))
    inputs = {"tokens": tokens, "labels": labels}
    arguments = {"input_ids": tokens}
    if name == "bert":
        inputs["mask"] = (torch.arange(12) < torch.tensor([[12], [7], [9]])).long()
        inputs["segments"] = (torch.arange(12) >= torch.tensor([[4], [5], [12]])).long()
        arguments |= {"attention_mask": inputs["mask"], "token_type_ids": inputs["segments"]}
    save_file(inputs, folder / "inputs.safetensors")
    with torch.no_grad():
        outputs = model(**arguments).logits
    loss = torch.nn.functional.cross_entropy(outputs.flatten(0, -2), labels.flatten())
    save_file({"outputs": outputs, "loss": loss.reshape(1)}, folder / "expected.safetensors")
"""

# Largest differences of our outputs and of the exported model's, relative to the largest output; mismatched keys.
COMPARE = """
import pathlib, sys
import torch, transformers
from safetensors.torch import load_file
causal = transformers.AutoModelForCausalLM
for name in sys.argv[2:]:
    kind = transformers.AutoModelForSequenceClassification if name == "bert" else causal
    folder = pathlib.Path(sys.argv[1], name)
    file = load_file(folder / "expected.safetensors")
    expected, loss = file["outputs"], file["loss"]
    file = load_file(folder / "outputs.safetensors")
    ours, our_loss = file["outputs"].reshape(expected.shape), file["loss"]
    inputs = load_file(folder / "inputs.safetensors")
    arguments = {"input_ids": inputs["tokens"]}
    if "mask" in inputs:
        arguments |= {"attention_mask": inputs["mask"], "token_type_ids": inputs["segments"]}
    exported, loading = kind.from_pretrained(folder / "exported", output_loading_info=True,
                                             attn_implementation="eager")
    with torch.no_grad():
        again = exported.eval()(**arguments).logits
    size = expected.abs().max()
    print(name, ((ours - expected).abs().max() / size).item(), ((again - expected).abs().max() / size).item(),
          (our_loss - loss).abs().item(), len(loading["missing_keys"]) + len(loading["unexpected_keys"]) + len(loading["mismatched_keys"]))
"""


class ModelPeer(unittest.TestCase):
    def python(self, script, *arguments):
        result = subprocess.run([sys.executable, "-c", script, *arguments], env=peers_environment(),
                                capture_output=True, text=True, timeout=600)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def test_outputs_and_exports_are_those_of_transformers(self):
        need_peers()
        with tempfile.TemporaryDirectory() as root:
            self.python(SAVE, root)
            for name, workload in WORKLOADS.items():
                folder = pathlib.Path(root, name)
                (folder / "model.yaml").write_text(workload + "sequence: 12\nmicro_batch: 3\noptimizer: sgd\n")
                result = subprocess.run([os.environ["ISOBAR_MODEL_FILTER"], folder / "model.yaml", folder / "weights",
                                         folder / "inputs.safetensors", folder], capture_output=True, text=True,
                                        timeout=600)
                self.assertEqual(result.returncode, 0, result.stderr)
            compared = [line.split() for line in self.python(COMPARE, root, *WORKLOADS).splitlines()]
        self.assertEqual([name for name, *_ in compared], list(WORKLOADS))
        for name, ours, exported, loss, keys in compared:
            self.assertLess(float(ours), 1e-5, name)
            self.assertLess(float(loss), 1e-5, name)
            self.assertLess(float(exported), 1e-6, name)
            self.assertEqual(keys, "0", name)


if __name__ == "__main__":
    unittest.main()
