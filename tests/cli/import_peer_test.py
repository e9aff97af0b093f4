"""The parameters that `workload import` counts are those of transformers, also where a configuration leaves keys out."""

import json
import re
import subprocess
import sys
import unittest

from tests.cli.support import CommandTest
from tests.support.peers import need_peers, peers_environment

# Parameters of each configuration's model, which takes no memory on the meta device.
COUNT = """
import json, sys
import torch, transformers
for config in json.load(sys.stdin):
    bert = config["model_type"] == "bert"
    kind = transformers.AutoModelForSequenceClassification if bert else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        model = kind.from_config(transformers.AutoConfig.for_model(**config))
    print(sum(parameter.numel() for parameter in model.parameters()))
"""

SMALL = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 8,
         "vocab_size": 151936}
TYPES = ("llama", "mistral", "qwen2", "qwen3")
CONFIGS = (
    [{"model_type": name} for name in ("bert", "gpt2", *TYPES)]
    + [{"model_type": name, **SMALL, "num_key_value_heads": 2, "tie_word_embeddings": True} for name in TYPES]
    + [{"model_type": name, **SMALL, "num_key_value_heads": None} for name in ("llama", "mistral", "qwen2")]
    + [{"model_type": "mistral", **SMALL}, {"model_type": "llama", **SMALL, "attention_bias": True, "mlp_bias": True},
       {"model_type": "qwen3", **SMALL, "num_key_value_heads": 4, "attention_bias": True},
       {"model_type": "mistral", **SMALL, "attention_bias": True},
       {"model_type": "gpt2", "hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4,
        "max_position_embeddings": 200},
       {"model_type": "gpt2", "n_inner": 1000, "tie_word_embeddings": False},
       {"model_type": "bert", "num_labels": 5, "hidden_size": 240}])


class ImportPeer(CommandTest):
    def setUp(self):
        need_peers()
        super().setUp()

    def counted(self, config):
        """The parameters of the model, by the comment of the imported workload."""
        file = self.write("config.json", json.dumps(config))
        text = self.run_isobar("workload", "import", file, "--sequence", 128).stdout
        here, in_model = re.search(r"^# (\d+) parameters(?:, as many as the model|; the model has (\d+))\.$", text, re.M).groups()
        return int(in_model or here)

    def test_parameters_are_as_many_as_in_transformers(self):
        result = subprocess.run([sys.executable, "-c", COUNT], input=json.dumps(CONFIGS), env=peers_environment(),
                                capture_output=True, text=True, timeout=600)
        self.assertEqual(result.returncode, 0, result.stderr)
        for config, count in zip(CONFIGS, result.stdout.split(), strict=True):
            with self.subTest(**config):
                self.assertEqual(self.counted(config), int(count))


if __name__ == "__main__":
    unittest.main()
