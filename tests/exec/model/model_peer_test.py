"""Compares our BERT, GPT-2, Llama and Mistral with those of transformers, if installed: the same weights and inputs give
the same outputs, and so does the exported model."""

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
for name, model in models.items():
    folder = pathlib.Path(sys.argv[1], name)
    model.eval().save_pretrained(folder / "weights", max_shard_size="15KB")
    tokens = torch.randint(50, (3, 12))
    inputs = {"tokens": tokens}
    arguments = {"input_ids": tokens}
    if name == "bert":
        inputs["mask"] = (torch.arange(12) < torch.tensor([[12], [7], [9]])).long()
        inputs["segments"] = (torch.arange(12) >= torch.tensor([[4], [5], [12]])).long()
        arguments |= {"attention_mask": inputs["mask"], "token_type_ids": inputs["segments"]}
    save_file(inputs, folder / "inputs.safetensors")
    with torch.no_grad():
        save_file({"outputs": model(**arguments).logits}, folder / "expected.safetensors")
"""

# Largest differences of our outputs and of the exported model's, relative to the largest output; mismatched keys.
COMPARE = """
import pathlib, sys
import torch, transformers
from safetensors.torch import load_file
causal = transformers.AutoModelForCausalLM
for name, kind in (("bert", transformers.AutoModelForSequenceClassification), ("gpt2", causal), ("gpt2_tied", causal),
                   ("llama", causal), ("mistral", causal)):
    folder = pathlib.Path(sys.argv[1], name)
    expected = load_file(folder / "expected.safetensors")["outputs"]
    ours = load_file(folder / "outputs.safetensors")["outputs"].reshape(expected.shape)
    inputs = load_file(folder / "inputs.safetensors")
    arguments = {"input_ids": inputs["tokens"]}
    if "mask" in inputs:
        arguments |= {"attention_mask": inputs["mask"], "token_type_ids": inputs["segments"]}
    exported, loading = kind.from_pretrained(folder / "exported", output_loading_info=True)
    with torch.no_grad():
        again = exported.eval()(**arguments).logits
    size = expected.abs().max()
    print(name, ((ours - expected).abs().max() / size).item(), ((again - expected).abs().max() / size).item(),
          len(loading["missing_keys"]) + len(loading["unexpected_keys"]) + len(loading["mismatched_keys"]))
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
            compared = [line.split() for line in self.python(COMPARE, root).splitlines()]
        self.assertEqual([name for name, *_ in compared], list(WORKLOADS))
        for name, ours, exported, keys in compared:
            self.assertLess(float(ours), 1e-5, name)
            self.assertLess(float(exported), 1e-6, name)
            self.assertEqual(keys, "0", name)


if __name__ == "__main__":
    unittest.main()
