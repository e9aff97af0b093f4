"""isobar export, on checkpoints that this test writes from docs/checkpoints.md only."""

import json
import math
import pathlib
import struct

from tests.cli.support import CommandTest

MODEL = """model: llama
layers: 1
hidden: 4
heads: 2
kv_heads: 1
intermediate: 3
vocabulary: 5
sequence: 8
micro_batch: 1
optimizer: sgd
rope_theta: 10000
"""
BLOCK = {"attention_norm": [4], "query.weight": [4, 4], "key.weight": [2, 4], "value.weight": [2, 4],
         "output.weight": [4, 4], "feed_forward_norm": [4], "gate.weight": [3, 4], "up.weight": [3, 4],
         "down.weight": [4, 3]}
STAGES = [{"layers.0.words": [5, 4]},
          {**{f"layers.1.{name}": shape for name, shape in BLOCK.items()},
           "layers.2.norm": [4], "layers.2.words.weight": [5, 4], "layers.2.norm:exp_avg": [4]}]
PARAMETERS = sum(math.prod(shape) for tensors in STAGES for name, shape in tensors.items() if ":" not in name)


def crc32c(data):
    remainder = 0xFFFFFFFF
    for byte in data:
        remainder ^= byte
        for _ in range(8):
            remainder = remainder >> 1 ^ (0x82F63B78 if remainder & 1 else 0)
    return f"{remainder ^ 0xFFFFFFFF:08x}"


def elements(shape, first):
    count = math.prod(shape)
    return struct.pack(f"<{count}f", *(first + i for i in range(count)))


def read_safetensors(path):
    content = pathlib.Path(path).read_bytes()
    end = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:end])
    return header, content[end:]


class Export(CommandTest):
    def checkpoint(self, step=10, run=None):
        folder = self.folder / "checkpoints" / f"step-{step:08}"
        folder.mkdir(parents=True)
        for stage, tensors in enumerate(STAGES):
            header, data, sums = {}, b"", {}
            for i, (name, shape) in enumerate(tensors.items()):
                piece = elements(shape, 100 * stage + 1000 * i + step)
                header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(piece)]}
                sums[name] = crc32c(piece)
                data += piece
            text = json.dumps(header).encode()
            content = struct.pack("<Q", len(text)) + text + data
            file = f"stage-{stage}-of-2.safetensors"
            (folder / file).write_bytes(content)
            (folder / f"stage-{stage}-of-2.json").write_text(json.dumps({
                "schema": "isobar-checkpoint/1", "step": step, "stages": 2, "stage": stage, "first_layer": stage,
                "last_layer": 2 * stage, "run": run or {"seed": 1}, "file": file, "size_bytes": len(content),
                "crc32c": crc32c(content), "tensors": sums}))
        return folder

    def setUp(self):
        super().setUp()
        self.workload = self.write("model.yaml", MODEL)
        self.output = self.folder / "exported"

    def export(self, *options, expect=0):
        return self.run_isobar("export", self.workload, self.folder / "checkpoints", "-o", self.output, *options,
                               expect=expect)

    def test_the_newest_checkpoint_becomes_a_model(self):
        self.checkpoint(10)
        self.checkpoint(20)
        (self.checkpoint(30) / "stage-1-of-2.json").unlink()
        result = self.export("--json")
        self.assertIn("step-00000030: has 1 of 2 manifest parts; stage-1-of-2.json is missing", result.stderr)
        self.assertEqual(json.loads(result.stdout), {"schema": "isobar-export/1", "step": 20, "folder": str(self.output),
                                                     "parameters": PARAMETERS, "files": 1})
        header, data = read_safetensors(self.output / "model.safetensors")
        self.assertEqual(header["__metadata__"], {"format": "pt"})
        words = header["model.embed_tokens.weight"]
        self.assertEqual(data[slice(*words["data_offsets"])], elements([5, 4], 20))
        self.assertEqual(len(header), 1 + 1 + len(BLOCK) + 2)
        config = json.loads((self.output / "config.json").read_text())
        self.assertEqual((config["model_type"], config["rope_theta"], config["tie_word_embeddings"]),
                         ("llama", 10000.0, False))

    def test_a_step_can_be_named(self):
        self.checkpoint(10)
        self.checkpoint(20)
        self.assertIn("of step 10, in 1 file\n", self.export("--step", 10).stdout)
        self.output = self.folder / "again"
        self.assertIn("step-00000015: no such checkpoint", self.export("--step", 15, expect=2).stderr)

    def test_damage_is_reported_and_leaves_no_configuration(self):
        file = self.checkpoint(10) / "stage-1-of-2.safetensors"
        content = bytearray(file.read_bytes())
        content[-20] ^= 1
        file.write_bytes(content)
        self.assertIn('tensor "layers.2.words.weight": damaged: its CRC-32C is', self.export(expect=2).stderr)
        self.assertFalse((self.output / "config.json").exists())

    def test_faults_of_inputs_are_reported(self):
        self.assertIn("holds no complete checkpoint", self.export(expect=2).stderr)
        self.checkpoint(10, run={"workload": "0123"})
        self.assertIn('is of a workload with hash "0123"', self.export(expect=2).stderr)
        self.checkpoint(20)
        self.workload = self.write("other.yaml", MODEL.replace("vocabulary: 5", "vocabulary: 6"))
        self.assertIn('tensor "layers.0.words" is F32 [5, 4]; the workload\'s model has F32 [6, 4]',
                      self.export(expect=2).stderr)
        self.assertIn("--max-shard-size: \"5\" is not a size", self.export("--max-shard-size", 5, expect=2).stderr)
        self.output.mkdir()
        (self.output / "file").write_text("")
        self.workload = self.write("model.yaml", MODEL)
        self.assertIn("exported: is not empty; name a new folder", self.export(expect=2).stderr)
