"""Profiles that torchtitan's own training writes on two CPU ranks, by the arguments of isobar convert, read by isobar_torch.kineto."""

from tests.integrations.frameworks.support import FrameworkTest

# torchtitan's debug model. It clips norms unless told otherwise.
MODEL = """model: llama
layers: 6
hidden: 256
heads: 16
kv_heads: 16
intermediate: 768
vocabulary: 2048
sequence: 32
micro_batch: 2
optimizer: adamw
clip_norm: 1
"""
# A rank. The GPU, the tokenizer, the data, and attention, which torchtitan compiles with Triton, are stood in for.
RANK = '''
import dataclasses
import os
import sys
import types

from tests.integrations.frameworks.support import stand_in_for

stand_in_for("datasets", "wandb", "triton", "PIL", "tensorboard")

import torch
import torch.distributed as dist

device = types.SimpleNamespace(
    set_device=lambda *_: None, current_device=lambda: None, device_count=lambda: 1, synchronize=lambda *_: None,
    get_device_name=lambda *_: "cpu", get_device_properties=lambda *_: types.SimpleNamespace(total_memory=1 << 34),
    reset_peak_memory_stats=lambda *_: None, empty_cache=lambda: None, memory_stats=lambda *_: {})
torch._utils._get_available_device_type = lambda: "cpu"
torch._utils._get_device_module = lambda _: device
barrier = dist.barrier
dist.barrier = lambda *arguments, device_ids=None, **named: barrier(*arguments, **named)
torch.set_num_threads(1)

from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.config import ConfigManager, Configurable
from torchtitan.models import llama3
from torchtitan.models.common.attention import ScaledDotProductAttention


class NoTokenizer(Configurable):
    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):
        pass

    def __init__(self, config, **_):
        pass


class OneBatch(BaseDataLoader):
    """The same tokens in each micro-batch."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        pass

    def __init__(self, config, *, seq_len, local_batch_size, **_):
        self.tokens = torch.randint(2048, (local_batch_size, seq_len + 1), generator=torch.Generator().manual_seed(1))

    def __iter__(self):
        while True:
            yield {"input": self.tokens[:, :-1].contiguous()}, self.tokens[:, 1:].contiguous()

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


config = ConfigManager().parse_args(["--module", "llama3", "--config", "llama3_debugmodel_ce_loss", *sys.argv[1:]])
llama3.get_attention_config = lambda _: ScaledDotProductAttention.Config()
config.model_spec = llama3.model_registry("debugmodel")
config.tokenizer, config.dataloader = NoTokenizer.Config(), OneBatch.Config()
config.validator.enable = False
config.training.steps = 5
profiler = config.profiler
profiler.enable_profiling, profiler.profile_freq, profiler.profiler_warmup, profiler.profiler_active = True, 4, 1, 2
losses = []
trainer = config.build()
step_of_schedule = trainer.pp_schedule.step


def step(*arguments, **named):
    step_of_schedule(*arguments, **named)
    if named["losses"] is not None:
        losses.append(torch.stack(named["losses"]).sum().item())


trainer.pp_schedule.step = step
trainer.train()
trainer.close()
if losses:
    print("losses", losses[0], losses[-1])
dist.barrier()
sys.stdout.flush()
os._exit(0)
'''


class Profile(FrameworkTest):
    def check_profile(self, schedule):
        self.predict(MODEL, schedule)
        first, last = map(float, self.outputs_of_ranks(RANK, *self.arguments_of("torchtitan"))[1].split()[-2:])
        self.assertLess(last, first, "the model does not learn")
        passes = self.measured_of(sorted((self.folder / "outputs/profiling/traces/iteration_4").glob("rank*_trace.json.gz")))
        for own, order in zip(passes, self.isobar("schedule", "show", "plan.json", "--csv").splitlines(), strict=True):
            cells = [f"{each['args']['stage']}{each['cat'][0]}{each['args']['microbatch']}" for each in own]
            self.assertEqual(cells, 2 * order.split(","))

    def test_of_one_stage_on_each_rank_has_the_instructions_of_the_plan(self):
        self.check_profile("1f1b")

    def test_of_two_stages_on_each_rank_has_the_instructions_of_the_plan(self):
        self.check_profile("interleaved(chunks=2)")
