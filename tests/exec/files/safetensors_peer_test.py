"""Compares our safetensors with Hugging Face's, where it is installed: reading and writing its files gives the same bytes."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from tests.support.peers import need_peers, peers_environment

FILES = 20
# Files 0, 1, … in a folder, with random tensors of every type that torch and safetensors share.
WRITE = """
import random, sys
import torch
from safetensors.torch import save_file
types = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.float16, torch.bfloat16, torch.int32,
         torch.uint32, torch.float32, torch.float64, torch.int64, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2]
for seed in range(int(sys.argv[2])):
    draw = random.Random(seed)
    tensors = {}
    for i in range(draw.randrange(20)):
        name = "".join(draw.choices('ab.01_ é漢\\\\"\\n', k=draw.randrange(6))) + str(i)
        shape = [draw.randrange(4) for _ in range(draw.randrange(4))]
        kind = draw.choice(types)
        count = torch.Size(shape).numel() * torch.empty(0, dtype=kind).element_size()
        data = torch.tensor([draw.randrange(2) for _ in range(count)], dtype=torch.uint8)
        tensors[name] = data.view(kind).reshape(shape)
    save_file(tensors, f"{sys.argv[1]}/{seed}", metadata=draw.choice([None, {"format": "pt"}, {"é": "\\n"}]))
"""


class SafetensorsPeer(unittest.TestCase):
    def test_files_are_the_same_bytes(self):
        need_peers()
        with tempfile.TemporaryDirectory() as folder:
            written = subprocess.run([sys.executable, "-c", WRITE, folder, str(FILES)], env=peers_environment(),
                                     capture_output=True, text=True, timeout=600)
            self.assertEqual(written.returncode, 0, written.stderr)
            ours = pathlib.Path(folder, "ours")
            for seed in range(FILES):
                theirs = pathlib.Path(folder, str(seed))
                result = subprocess.run([os.environ["ISOBAR_SAFETENSORS_FILTER"], theirs, ours], capture_output=True,
                                        text=True, timeout=600)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual(ours.read_bytes(), theirs.read_bytes(), seed)


if __name__ == "__main__":
    unittest.main()
