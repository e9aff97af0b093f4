"""The software that other tests compare us with works here, so that its faults are not taken for ours."""

import subprocess
import sys
import tempfile
import unittest

from tests.support.peers import need_peers, peers_environment

SUM_OVER_RANKS = r"""
import torch
import torch.distributed
torch.distributed.init_process_group("gloo")
total = torch.ones(1) * (torch.distributed.get_rank() + 1)
torch.distributed.all_reduce(total)
print(f"{total.item()}\n", end="")
torch.distributed.destroy_process_group()  # otherwise Gloo's threads may outlive what they use
"""

MODEL_SAVED_AND_LOADED = """
import sys
import torch
import transformers
config = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=10, n_positions=4)
model = transformers.GPT2LMHeadModel(config).eval()
model.save_pretrained(sys.argv[1])
again = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1]).eval()
tokens = torch.tensor([[1, 2, 3]])
print(torch.equal(model(tokens).logits, again(tokens).logits))
"""


class Peers(unittest.TestCase):
    def setUp(self):
        need_peers()
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = temporary.name

    def python(self, *arguments):
        result = subprocess.run([sys.executable, *arguments], env=peers_environment(), capture_output=True, text=True,
                                timeout=600)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.split()

    def test_torchrun_starts_ranks_that_sum(self):
        script = f"{self.folder}/sum.py"
        with open(script, "w") as file:
            file.write(SUM_OVER_RANKS)
        self.assertEqual(self.python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script),
                         ["3.0", "3.0"])

    def test_transformers_loads_what_it_saved(self):
        self.assertEqual(self.python("-c", MODEL_SAVED_AND_LOADED, self.folder), ["True"])


if __name__ == "__main__":
    unittest.main()
