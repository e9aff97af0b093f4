"""Helpers of the tests of isobar-torch: plans of small models, and runs of ranks on this machine."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import torch

from isobar_torch import launch, training
from isobar_torch.__main__ import main, options_of

ISOBAR = str(pathlib.Path(os.environ["ISOBAR"]).resolve())
# Forked ranks must find no threads of this process.
torch.set_num_threads(1)

GPT = """model: gpt
layers: 6
hidden: 32
heads: 4
vocabulary: 100
sequence: 16
micro_batch: 2
attention: fused
optimizer: adamw
learning_rate: 0.01
warmup_steps: 2
clip_norm: 1
"""

LLAMA = """model: llama
layers: 6
hidden: 32
heads: 4
kv_heads: 2
intermediate: 48
vocabulary: 100
sequence: 16
micro_batch: 2
optimizer: momentum
"""

# Small models of transformers.
CONFIGS = {
    "gpt2": {"model_type": "gpt2", "vocab_size": 100, "n_layer": 4, "n_embd": 32, "n_head": 4, "n_positions": 64,
             "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0},
    "llama": {"model_type": "llama", "vocab_size": 100, "num_hidden_layers": 4, "hidden_size": 32, "intermediate_size": 64,
              "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64},
    "qwen2": {"model_type": "qwen2", "vocab_size": 100, "num_hidden_layers": 4, "hidden_size": 32, "intermediate_size": 64,
              "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64},
    "qwen3": {"model_type": "qwen3", "vocab_size": 100, "num_hidden_layers": 4, "hidden_size": 32, "intermediate_size": 64,
              "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64},
}


class IsobarTorchTest(unittest.TestCase):
    """`self.folder` is a new folder, in which the tests run."""

    maxDiff = None

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.addCleanup(os.chdir, pathlib.Path.cwd())
        os.chdir(self.folder)

    def write(self, name, text):
        """Writes a file into the folder."""
        (self.folder / name).write_text(text, encoding="utf-8")
        return name

    def isobar(self, *arguments):
        """Runs the command. Returns its output."""
        done = subprocess.run([ISOBAR, *map(str, arguments)], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, f"{arguments}: {done.stderr}")
        return done.stdout

    def plan(self, workload, devices, schedule, microbatches, cuts=(), replicas=1, sharded=None, settings=()):
        """Writes plan.json for `devices` in a star. `cuts`: first layers of the stages but the first, in place of even ones."""
        self.isobar("platform", "generate", "star", "--devices", devices, "-o", "star.xml")
        allocator = ["even"] if replicas == 1 else ["grid", "--replicas", replicas, "--pipeline", devices // replicas]
        self.isobar("plan", "star.xml", workload, "--allocator", *allocator, "--schedule", schedule, "--microbatches",
                    microbatches, *(each for setting in settings for each in ("--set", setting)), "-o", "plan.json")
        plan = json.loads((self.folder / "plan.json").read_text())
        if cuts:
            last = plan["stages"][-1]["last_layer"]
            bounds = [0, *cuts, last + 1]
            self.assertEqual(len(bounds) - 1, len(plan["stages"]))
            for stage, first, end in zip(plan["stages"], bounds[:-1], bounds[1:], strict=True):
                stage.update(first_layer=first, last_layer=end - 1)
        if sharded:
            plan["sync"]["sharded"] = sharded
        self.write("plan.json", json.dumps(plan))
        return plan

    def run_here(self, *arguments):
        """Runs isobar_torch in this process. Returns the exit code and what it prints on stderr."""
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            code = main([str(each) for each in arguments])
        return code, errors.getvalue()

    def losses(self, workload, *options):
        """The losses of three steps of plan.json on ranks of this machine."""
        arguments = ["plan.json", "--workload", workload, "--isobar", ISOBAR, "--device", "cpu", "--steps", 3, "--spawn",
                     "--log-file", "log.jsonl", *options]
        code, errors = self.run_here(*arguments)
        self.assertEqual((code, errors), (0, ""))
        return [json.loads(line)["loss"] for line in (self.folder / "log.jsonl").read_text().splitlines()]

    def losses_alone(self, workload, *options):
        """The same losses of a plain loop over the whole model, in a process of its own."""
        arguments = options_of(["plan.json", "--workload", workload, "--isobar", ISOBAR, "--steps", "3", *options])

        def loop():
            run, config = launch.prepare(arguments)
            device = torch.device("cpu")
            return training.train_alone(run, launch.layers_of(run.workload, config, run.seed, device), device)

        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                os.write(writer, json.dumps(loop()).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            text = pipe.read()
        os.waitpid(child, 0)
        return json.loads(text)

    def assert_trains_as_one_process(self, workload, *options):
        """The ranks' losses are those of one process to 1e-5."""
        measured, expected = self.losses(workload, *options), self.losses_alone(workload, *options)
        self.assertEqual(len(measured), len(expected))
        for each, other in zip(measured, expected, strict=True):
            self.assertAlmostEqual(each, other, delta=1e-5)
        self.assertNotAlmostEqual(expected[0], expected[-1], delta=1e-4, msg="the model does not learn")

    def check_losses(self, text, *arguments, **named):
        """Trains a plan of a workload with this text as one process does."""
        workload = self.write("model.yaml", text)
        self.plan(workload, *arguments, **named)
        self.assert_trains_as_one_process(workload)

    def check_transformers(self, kind, schedule):
        """The same of a model of CONFIGS on two devices."""
        self.write("config.json", json.dumps(CONFIGS[kind]))
        self.isobar("workload", "import", "config.json", "--sequence", 16, "--micro-batch", 2, "-o", "model.yaml")
        self.plan("model.yaml", 2, schedule, 4)
        self.assert_trains_as_one_process("model.yaml", "--model", "config.json")
