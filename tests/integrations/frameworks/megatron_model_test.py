"""Megatron-Core makes the model of MODEL_ARGUMENTS that isobar convert --to megatron writes: it has the workload's parameters."""

import json
import unittest
import unittest.mock

from tests.integrations.frameworks.megatron_support import MegatronTest

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec

SYSTEM = "compute: operators\nframework: megatron-core\nunit: operator\nattention: fused\ndtype: bf16\nvocabulary: 1000\nsequence: 32\n"
MODELS = {
    "gpt": "model: gpt\nlayers: 3\nhidden: 64\nheads: 4\npositions: 48\n",
    "gpt with tied matrices": "model: gpt\nlayers: 2\nhidden: 64\nheads: 4\nintermediate: 96\ntied: true\n",
    "llama": "model: llama\nlayers: 3\nhidden: 64\nheads: 4\nkv_heads: 2\nintermediate: 96\n",
    "heads of another width": "model: decoder\nlayers: 2\nhidden: 64\nheads: 4\nkv_heads: 2\nhead_dim: 24\nintermediate: 96\nqk_norm: head\n"
                              "biases: [qkv]\n",
    "squared ReLU": "model: decoder\nlayers: 2\nhidden: 64\nheads: 4\nintermediate: 96\nactivation: relu2\ngated: false\nnorm: layer\n",
    "experts": "model: decoder\nlayers: 3\nhidden: 64\nheads: 4\nkv_heads: 2\nintermediate: 96\nmlp_layer_types: [dense, experts, experts]\n"
               "experts: 4\ntop_k: 2\nexpert_intermediate: 32\nshared_intermediate: 48\nshared_gate: true\nnorm_topk_prob: false\n",
    "latent attention": "model: decoder\nlayers: 2\nhidden: 64\nheads: 4\nlayer_types: [latent]\nq_lora_rank: 24\nkv_lora_rank: 16\n"
                        "qk_nope_head_dim: 16\nqk_rope_head_dim: 8\nv_head_dim: 12\nexperts: 4\ntop_k: 2\nexpert_intermediate: 32\n"
                        "scoring_func: sigmoid\nrouted_scaling_factor: 2.5\n",
}


class NoAttention(torch.nn.Module):
    """Stands in for an attention, which has no parameters."""

    def __init__(self, *_, **__):
        super().__init__()


class Models(MegatronTest):
    def built(self):
        """The model of this configuration in one stage."""
        arguments, config = self.read_by_megatron(2)
        spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization=arguments.normalization,
                                          qk_l2_norm=arguments.qk_l2_norm)
        if arguments.multi_latent_attention:  # for which Megatron-Core has Transformer Engine's alone
            for layer in spec.layer_specs:
                layer.submodules.self_attention.submodules.core_attention = NoAttention
        # Rotary positions of latent attention name the current GPU.
        with unittest.mock.patch.object(torch.cuda, "current_device", lambda: "cpu"):
            return self.model_of(arguments, config, spec)

    def model_of(self, arguments, config, spec):
        """GPTModel as pretrain_gpt.py calls it."""
        return GPTModel(config, spec, 1000, arguments.max_position_embeddings,
                        share_embeddings_and_output_weights=not arguments.untie_embeddings_and_output_weights,
                        position_embedding_type=arguments.position_embedding_type, rotary_percent=arguments.rotary_percent,
                        rotary_base=arguments.rotary_base)

    def parameters_of_plan(self):
        """Those of the workload, by the sums of two replicas' gradients, which have four bytes each."""
        self.isobar("simulate", "star.xml", "model.yaml", "--plan", "plan.json", "--trace", "trace.json")
        events = json.loads((self.folder / "trace.json").read_text())["traceEvents"]
        return sum(each["args"]["bytes"] for each in events
                   if each.get("cat") == "AllReduce" and each["pid"] == 0 and each["args"]["payload"] == "parameter gradient") / 4

    def test_have_the_parameters_of_the_workload(self):
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        self.addCleanup(torch.distributed.destroy_process_group)
        parallel_state.initialize_model_parallel()
        self.addCleanup(parallel_state.destroy_model_parallel)
        for name, text in MODELS.items():
            with self.subTest(name):
                blocks = int(text.split("layers: ")[1].split()[0])
                self.plan(f"Et*{blocks}L", 2, "--replicas", 2, "--microbatches", 8, text=text + SYSTEM)
                model = self.built()
                self.assertEqual(sum(each.numel() for each in model.parameters()), self.parameters_of_plan())


if __name__ == "__main__":
    unittest.main()
