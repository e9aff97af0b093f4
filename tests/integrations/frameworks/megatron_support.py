"""Arguments of isobar convert --to megatron as Megatron-Core's own parser reads them."""

import contextlib
import io
import os
import sys
import types
import unittest.mock

from tests.integrations.frameworks.support import FrameworkTest, stand_in_for

stand_in_for("flask", "flask_restful", "sentencepiece", "tiktoken", "triton", "wandb")

import torch  # noqa: E402
from megatron.training import arguments as megatron  # noqa: E402

# What the files do not say: training, the tokenizer, and what Megatron-Core has without Transformer Engine and Apex.
OTHERS = ("--lr 1e-4 --train-iters 10 --tokenizer-type NullTokenizer --vocab-size 1000 --transformer-impl local --use-cpu-initialization "
          "--no-persist-layer-norm --no-gradient-accumulation-fusion --no-rope-fusion").split()


class MegatronTest(FrameworkTest):
    def read_by_megatron(self, ranks, *more):
        """The arguments and the configuration that Megatron makes of plan.json; as on a GPU, on which it insists."""
        words = ["pretrain_gpt.py", *OTHERS, *more, *self.arguments_of("megatron", "MODEL_ARGUMENTS"),
                 *self.arguments_of("megatron", "PLAN_ARGUMENTS")]
        with (unittest.mock.patch.object(sys, "argv", words), contextlib.redirect_stdout(io.StringIO()),
              unittest.mock.patch.dict(os.environ, RANK="0", WORLD_SIZE=str(ranks), CUDA_DEVICE_MAX_CONNECTIONS="1"),
              unittest.mock.patch.object(torch.cuda, "get_device_capability", lambda *_: (9, 0)),
              unittest.mock.patch.object(torch.cuda, "get_device_properties", lambda *_: types.SimpleNamespace(major=9))):
            arguments = megatron.parse_args()
            megatron.validate_args(arguments)
            return arguments, megatron.core_transformer_config_from_args(arguments)
