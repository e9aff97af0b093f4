"""Profiles of Megatron-Core's own pipeline schedule on two CPU ranks, read by isobar_torch.kineto."""

import gzip
import json

from tests.integrations.frameworks.support import FrameworkTest

MODEL = """model: gpt
layers: 6
hidden: 32
heads: 4
vocabulary: 100
sequence: 16
micro_batch: 2
attention: fused
optimizer: adamw
"""
# A rank: four steps of forward_backward_pipelining_without_interleaving on the layers of isobar_torch, two of them profiled.
RANK = '''
import os
import sys

from tests.integrations.frameworks.support import stand_in_for

stand_in_for("triton")

import torch
import torch.distributed as dist


def on_cpu(make):
    """Megatron-Core names the device "cuda" where it makes tensors."""
    return lambda *arguments, **named: make(*arguments, **({**named, "device": "cpu"} if "device" in named else named))


for name in ("zeros", "empty", "tensor"):
    setattr(torch, name, on_cpu(getattr(torch, name)))
torch.cuda.current_device = lambda: "cpu"
torch.cuda.synchronize = lambda *_: None

from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.pipeline_parallel import schedules
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from megatron.core.process_groups_config import ProcessGroupCollection

from isobar_torch import models
from isobar_torch.workload import read_workload

rank = int(os.environ["RANK"])
torch.set_num_threads(1)
dist.init_process_group("gloo")
alone = [dist.new_group([each]) for each in (0, 1)][rank]
workload = read_workload("model.yaml", {}, None, True)


class Model(models.StageModule):
    def set_input_tensor(self, tensor):
        self.input = tensor[0] if isinstance(tensor, list) else tensor


model = Model(models.own_layers(workload, range(4 * rank, 4 * rank + 4), 1), [], workload.dtype, torch.device("cpu"))
model.config = ModelParallelConfig(pipeline_model_parallel_size=2, pipeline_dtype=torch.float32)
model.config.hidden_size = workload.hidden
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
losses = []


def loss_of(logits, tokens):
    loss = models.loss_of(logits, tokens[:, 1:])
    losses.append(loss.item())
    return loss, {}


def forward_step(data, module):
    tokens = models.tokens_of(workload, 1, 0, next(data))
    # Megatron-Core's tensors begin with the sequence.
    with torch.profiler.record_function("the forward pass"):
        output = module(tokens[:, :-1] if rank == 0 else module.input.transpose(0, 1))
        output = output.transpose(0, 1).contiguous() if rank == 0 else output
    return output, lambda logits: loss_of(logits, tokens)


groups = ProcessGroupCollection()
groups.tp = groups.cp = groups.dp_cp = groups.embd = groups.pos_embd = alone
groups.pp = dist.group.WORLD
with torch.profiler.profile(schedule=torch.profiler.schedule(wait=1, warmup=1, active=2)) as profiler:
    for _ in range(4):
        optimizer.zero_grad()
        schedules.forward_backward_pipelining_without_interleaving(
            forward_step_func=forward_step, data_iterator=iter(range(4)), model=model, num_microbatches=4,
            seq_length=workload.sequence, micro_batch_size=workload.micro_batch,
            p2p_communicator=P2PCommunicator(dist.group.WORLD, model.config), pg_collection=groups)
        optimizer.step()
        profiler.step()
profiler.export_chrome_trace(f"rank-{rank}.json.gz")
if rank == 1:
    print("losses", losses[0], losses[-4])
dist.barrier()
sys.stdout.flush()
os._exit(0)
'''


class Profile(FrameworkTest):
    def test_has_the_instructions_of_the_plan(self):
        self.predict(MODEL, "1f1b")
        first, last = map(float, self.outputs_of_ranks(RANK)[1].split()[1:])
        self.assertLess(last, first, "the model does not learn")
        passes = self.measured_of(["rank-0.json.gz", "rank-1.json.gz"])
        for rank, order in ((0, "FFBFBFBB"), (1, "FBFBFBFB")):
            own = passes[rank]
            self.assertEqual("".join(each["cat"][0] for each in own), 2 * order)
            # Forward passes lie within labels of the loop, the last stage's but for the loss.
            content = json.loads(gzip.decompress((self.folder / f"rank-{rank}.json.gz").read_bytes()))
            labels = sorted((each for each in content["traceEvents"] if each.get("name") == "the forward pass" and each["ph"] == "X"),
                            key=lambda each: each["ts"])
            forwards = [each for each in own if each["cat"] == "Forward"]
            self.assertEqual(len(labels), len(forwards))
            shift = labels[0]["ts"] - forwards[0]["ts"]
            for label, each in zip(labels, forwards, strict=True):
                self.assertLess(abs(each["ts"] + shift - label["ts"]), label["dur"])
                if rank == 0:
                    self.assertLess(each["dur"], label["dur"])
