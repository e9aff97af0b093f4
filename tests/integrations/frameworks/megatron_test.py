"""Megatron-Core reads what isobar convert --to megatron writes, and layouts mean the same to both."""

import random
import subprocess
import unittest

from tests.integrations.frameworks.megatron_support import MegatronTest
from tests.integrations.frameworks.support import GPT, ISOBAR, FrameworkTest

from megatron.core.parallel_state import RankGenerator
from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}


def letters_of(stages):
    """The letters of the layers of each stage."""
    return ["".join(LETTERS[layer.name] for layer in stage) for stage in stages]


class Megatron(MegatronTest):
    def stages_by_chain(self, config):
        """The letters of the stages of Megatron's configuration, in the order of the chain."""
        layout = config.pipeline_model_parallel_layout
        chunks = layout.virtual_pipeline_model_parallel_size
        return letters_of(stages[chunk] for chunk in range(chunks) for stages in layout.layout)

    def test_stages_are_those_of_the_plan(self):
        for layout, devices, options, stages in (
                ("Et|t*4|tL", 3, (), ["Et", "tttt", "tL"]),
                ("E|t*6|L", 3, (), ["E", "tttttt", "L"]),
                ("E|t*2|t|t*2|t|L", 3, ("--virtual-stages", 2, "--microbatches", 6), ["E", "tt", "t", "tt", "t", "L"])):
            with self.subTest(layout=layout):
                self.plan(layout, devices, *options)
                arguments, config = self.read_by_megatron(devices)
                self.assertEqual(self.stages_by_chain(config), stages)
                self.assertEqual(arguments.pipeline_model_parallel_size, devices)
                self.assertEqual(arguments.data_parallel_size, 1)

    def test_all_degrees_are_those_of_the_plan(self):
        plan = self.plan("Et*3|t*3L", 16, "--tensor", 2, "--splits", "sequence", "--context", 2, "--context-exchange", "all-gather",
                         "--replicas", 2, "--sharded", "optimizer", "--microbatches", 8, "--recompute", "all")
        arguments, config = self.read_by_megatron(16)
        self.assertEqual((arguments.pipeline_model_parallel_size, arguments.tensor_model_parallel_size,
                          arguments.context_parallel_size, arguments.data_parallel_size), (2, 2, 2, 2))
        self.assertEqual(arguments.global_batch_size // arguments.micro_batch_size // arguments.data_parallel_size, 4)
        self.assertTrue(arguments.use_distributed_optimizer and arguments.sequence_parallel)
        self.assertEqual((config.recompute_granularity, config.recompute_method, config.recompute_num_layers),
                         ("full", "uniform", 1))
        self.assertIn(config.cp_comm_type, ("all_gather", ["all_gather"]))
        # The devices of the plan's stages, replicas and shards are those of Megatron's groups.
        hosts = (self.folder / "megatron/hostfile").read_text().splitlines()
        ranks = RankGenerator(tp=2, ep=1, dp=2, pp=2, cp=2, order="tp-cp-ep-dp-pp")
        devices = [[[shard["device"] for shard in replica["shards"]] for replica in stage["replicas"]] for stage in plan["stages"]]
        of_groups = {token: [[hosts[rank] for rank in group] for group in ranks.get_ranks(token)] for token in ("tp", "cp", "pp")}
        self.assertEqual(of_groups["tp"], [replica for stage in devices for replica in stage])
        for first in (0, 2):  # neighbouring replicas divide a sequence
            for shard in (0, 1):
                for stage in devices:
                    self.assertIn([stage[first][shard], stage[first + 1][shard]], of_groups["cp"])
        for replica in range(4):
            for shard in (0, 1):
                self.assertIn([stage[replica][shard] for stage in devices], of_groups["pp"])

    def test_divided_experts_are_those_of_the_plan(self):
        text = "".join(line + "\n" for line in GPT.splitlines() if "gpt" not in line)
        self.plan("Et*3|t*3L", 4, "--replicas", 2, "--experts", 2, "--microbatches", 8,
                  text=text + "model: decoder\nexperts: 4\ntop_k: 2\nexpert_intermediate: 32\n")
        arguments, config = self.read_by_megatron(4)
        self.assertEqual((arguments.expert_model_parallel_size, config.expert_tensor_parallel_size), (2, 1))
        self.assertEqual((config.num_moe_experts, config.moe_router_topk, config.moe_ffn_hidden_size), (4, 2, 32))
        self.assertEqual(config.moe_token_dispatcher_type, "alltoall")

    def test_groups_of_micro_batches_are_those_of_the_plan(self):
        self.plan("Et|t*2|t*2|tL", 2, "--virtual-stages", 2, "--microbatches", 8, "--schedule", "interleaved(group=4)")
        _, config = self.read_by_megatron(2)
        self.assertEqual(config.microbatch_group_size_per_vp_stage, 4)
        self.assertEqual(config.virtual_pipeline_model_parallel_size, 2)


class Layouts(FrameworkTest):
    """Random texts of the characters of layouts."""

    def isobar_stages(self, layout):
        """The stages that Isobar reads, as the layers of its plan; None if it refuses the text."""
        done = subprocess.run([ISOBAR, "convert", layout, "star.xml", "model.yaml", "--from", "megatron", "-o", "plan.json"],
                              cwd=self.folder, capture_output=True, text=True, check=False)
        return None if done.returncode == 2 and "column" in done.stderr else done.stderr

    def test_what_isobar_reads_megatron_reads_and_the_other_way_round(self):
        self.plan("Et*6L", 1)
        draw = random.Random(1)
        pieces = ["E", "t", "m", "L", "|", "(", ")", "*2", "*3", "*10", ",", "t*4", "(t|)*2", "*", "x", "2"]
        counts = {"both": 0, "neither": 0, "megatron": 0}
        for _ in range(400):
            layout = "".join(draw.choice(pieces) for _ in range(draw.randint(1, 8)))
            try:
                known = PipelineParallelLayerLayout.parse_str_to_list(layout)
            except AssertionError:
                known = None
            is_read = self.isobar_stages(layout) is not None
            if is_read:
                self.assertIsNotNone(known, f"Megatron refuses {layout}")
                counts["both"] += 1
            elif known is None:
                counts["neither"] += 1
            else:  # only numbers that replace a text into another repetition
                self.assertRegex(layout.replace(",", ""), r"\*\d+\*|\*\(|\(\*|\(\d|\(\)|\)\*\d+\*|\d\(")
                counts["megatron"] += 1
        self.assertGreater(counts["both"], 50)
        self.assertGreater(counts["neither"], 50)

    def test_recipes_mean_the_same_to_both(self):
        for layout in ("Et|(tt|)*30L", "Et*4|(t*4|)*14tL", "Ettt|(tt|)*29,t|L", "E,t*2|(t*3,|)*19t*2,L"):
            with self.subTest(layout=layout):
                stages = letters_of(PipelineParallelLayerLayout.parse_str_to_list(layout))
                decoders = "".join(stages).count("t")
                plan = self.plan(layout, len(stages), text=GPT.replace("layers: 6", f"layers: {decoders}"))
                firsts = [each["first_layer"] for each in plan["stages"]]
                counts = [2 * stage.count("t") + len(stage.replace("t", "")) for stage in stages]
                self.assertEqual(firsts, [sum(counts[:i]) for i in range(len(counts))])


if __name__ == "__main__":
    unittest.main()
