"""torchtitan reads what isobar convert --to torchtitan writes: its configuration manager, its split and its schedules."""

import contextlib
import io
import unittest
import unittest.mock

import torch

from tests.integrations.frameworks.support import FrameworkTest, stand_in_for

stand_in_for("datasets", "wandb", "triton", "PIL", "tensorboard")

from torch.distributed.pipelining import schedules  # noqa: E402
from torchtitan.config.manager import ConfigManager  # noqa: E402
from torchtitan.distributed import pipeline_parallel  # noqa: E402

GPT = "model: gpt\nlayers: 6\nhidden: 64\nheads: 4\nvocabulary: 1000\nsequence: 32\nmicro_batch: 2\noptimizer: adamw\n"


class Torchtitan(FrameworkTest):
    def read_by_torchtitan(self):
        """The configuration that torchtitan makes of plan.json and of its debug model, which has six blocks."""
        with contextlib.redirect_stderr(io.StringIO()):
            return ConfigManager().parse_args(["--module", "llama3", "--config", "llama3_debugmodel",
                                               *self.arguments_of("torchtitan")])

    def modules_of_parts(self, config):
        """What torchtitan's split leaves of its debug model in each part."""
        with torch.device("meta"):
            model = config.model_spec.model.build()
        parts = []
        for names in config.parallelism.module_fqns_per_model_part:
            part = pipeline_parallel._split_module(model, names)
            blocks = [f"layers.{name}" for name in part.layers]
            others = [name for name in ("tok_embeddings", "norm", "lm_head") if getattr(part, name) is not None]
            parts.append(sorted(blocks + others))
        return parts

    def test_parts_are_the_stages_of_the_plan(self):
        self.plan("Et|t*4|tL", 3, text=GPT)
        config = self.read_by_torchtitan()
        self.assertEqual(self.modules_of_parts(config), [["layers.0", "tok_embeddings"],
                                                         ["layers.1", "layers.2", "layers.3", "layers.4"],
                                                         ["layers.5", "lm_head", "norm"]])
        self.assertEqual((config.parallelism.pipeline_parallel_degree, config.parallelism.pipeline_parallel_schedule), (3, "1F1B"))
        self.assertIsNone(config.activation_checkpoint)

    def test_parts_lie_on_the_ranks_of_the_plan(self):
        for schedule in ("interleaved(chunks=2)", "zero-bubble-v", "v-half"):
            with self.subTest(schedule=schedule):
                (self.folder / "model.yaml").write_text(GPT)
                self.isobar("platform", "generate", "star", "--devices", 2, "-o", "star.xml")
                self.isobar("plan", "star.xml", "model.yaml", "--allocator", "even", "--schedule",
                            schedule, "--microbatches", 4, "-o", "plan.json")
                config = self.read_by_torchtitan()
                parallelism = config.parallelism
                self.isobar("convert", "plan.json", "--to", "torch", "-o", "torch")
                lines = (self.folder / "torch/schedule.csv").read_text().splitlines()
                for rank, line in enumerate(lines):
                    stages = pipeline_parallel._get_pp_rank_to_stage_indices_mapping(rank, 2, parallelism.pipeline_parallel_schedule, 4)
                    self.assertEqual({int(cell[0]) for cell in line.split(",")}, set(stages))

    def test_orders_of_named_schedules_are_those_of_torch(self):
        class Stage:
            """What a schedule asks a stage."""

            def __init__(self, index, rank):
                self.stage_index, self.num_stages, self.group_size, self.group_rank = index, 4, 2, rank
                self.is_first, self.is_last, self.has_backward, self.submod = index == 0, index == 3, True, None

        for schedule in ("interleaved(chunks=2)", "zero-bubble-v"):
            with self.subTest(schedule=schedule):
                (self.folder / "model.yaml").write_text(GPT)
                self.isobar("platform", "generate", "star", "--devices", 2, "-o", "star.xml")
                self.isobar("plan", "star.xml", "model.yaml", "--allocator", "even", "--schedule", schedule, "--microbatches", 4,
                            "-o", "plan.json")
                parallelism = self.read_by_torchtitan().parallelism
                name = parallelism.pipeline_parallel_schedule
                self.assertFalse(parallelism.pipeline_parallel_schedule_csv)
                with unittest.mock.patch.object(schedules, "_check_torch_compile_compatibility", lambda *_: None):
                    made = schedules.get_schedule_class(name)(
                        [Stage(index, 0) for index in ((0, 3) if name == "ZBVZeroBubble" else (0, 2))], 4, loss_fn=lambda *_: 0)
                made._dump_csv(str(self.folder / "torch.csv"), "compute_only")
                self.isobar("schedule", "import", "torch.csv", "star.xml", "model.yaml", "--plan", "plan.json", "-o", "listed.json")
                shown = self.isobar("schedule", "show", "plan.json", "--csv")
                self.assertEqual(self.isobar("schedule", "show", "listed.json", "--csv"), shown)

    def test_degrees_and_batches_are_those_of_the_plan(self):
        self.plan("Et*3|t*3L", 4, "--replicas", 2, "--microbatches", 8, "--recompute", "all", text=GPT)
        config = self.read_by_torchtitan()
        self.assertEqual(config.parallelism.data_parallel_replicate_degree, 2)
        self.assertEqual((config.training.local_batch_size, config.training.global_batch_size, config.training.seq_len), (8, 16, 32))
        self.assertEqual(config.parallelism.pipeline_parallel_microbatch_size, 2)
        self.assertEqual(type(config.activation_checkpoint).__qualname__, "FullAC.Config")

    def test_parts_that_torchtitan_makes_itself_are_imported(self):
        (self.folder / "model.yaml").write_text(GPT)
        self.isobar("platform", "generate", "star", "--devices", 2, "-o", "star.xml")
        for stages in (2, 4):
            expected = pipeline_parallel._generate_llm_fqn_per_model_part(stages, 6)
            (self.folder / "run.sh").write_text(
                f"torchrun train.py --parallelism.pipeline-parallel-degree 2 --parallelism.pipeline-parallel-schedule "
                f"{'1F1B' if stages == 2 else 'Interleaved1F1B'} --parallelism.pipeline-parallel-microbatch-size 2\n")
            self.isobar("convert", "run.sh", "star.xml", "model.yaml", "--from", "torchtitan", "-o", "plan.json")
            config = self.read_by_torchtitan()
            self.assertEqual(config.parallelism.module_fqns_per_model_part, expected)


if __name__ == "__main__":
    unittest.main()
