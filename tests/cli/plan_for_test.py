"""isobar plan --for: plans that a framework takes, whatever the allocator; and starts whose cuts alone move."""

import json
import pathlib

from tests.cli.support import CommandTest

FRAMEWORKS = ("deepspeed", "megatron", "torch", "torchtitan")

# Blocks of three layers where layers are operators.
LLAMA = """model: llama
layers: 7
hidden: 1024
heads: 16
kv_heads: 16
intermediate: 2816
vocabulary: 32000
sequence: 512
micro_batch: 1
optimizer: adamw
"""
OPERATORS = LLAMA + "attention: fused\nunit: operator\ncompute: operators\nframework: megatron-core\ndtype: bf16\n"


class PlanForTest(CommandTest):
    """`self.unequal` is a platform of five unlike devices."""

    def setUp(self):
        super().setUp()
        self.unequal = self.star("unequal", "2xA100-SXM4-40GB+1xV100-SXM2-32GB+2xT4")
        self.llama = self.write("llama.yaml", LLAMA)
        self.operators = self.write("operators.yaml", OPERATORS)

    def path(self, name):
        return str(self.folder / name)

    def star(self, name, devices):
        platform = self.path(f"{name}.xml")
        self.run_isobar("platform", "generate", "star", "--devices", devices, "--bandwidth", "10 Gbit/s", "-o", platform)
        return platform

    def plan_for(self, framework, *arguments, expect=0):
        return self.run_isobar("plan", *arguments, "--for", framework, "-o", self.path("plan.json"), expect=expect)

    def step_of(self, name="plan.json"):
        return json.loads(pathlib.Path(self.path(name)).read_text())["predicted"]["step_time_s"]

    def assert_converts(self, framework, platform, workload):
        self.run_isobar("verify", platform, workload, self.path("plan.json"))
        self.run_isobar("convert", self.path("plan.json"), "--to", framework, "-o", self.path("out"))


class PlansForFrameworks(PlanForTest):
    def test_plans_of_every_allocator_convert(self):
        for workload, allocators in ((self.llama, ("even", "chain-dp", "exact", "local-search", "grid", "hybrid", "amp", "metis", "dtfm")),
                                     (self.operators, ("even", "chain-dp", "grid", "hybrid"))):
            for framework in FRAMEWORKS:
                for allocator in allocators:
                    with self.subTest(workload=workload, framework=framework, allocator=allocator):
                        objective = ("--objective", "dtfm") if allocator == "dtfm" else ()
                        self.plan_for(framework, self.unequal, workload, "--allocator", allocator, "--microbatches", 8, *objective)
                        self.assert_converts(framework, self.unequal, workload)

    def test_several_stages_on_each_device_convert(self):
        for framework, schedule in (("megatron", "interleaved(chunks=2)"), ("torchtitan", "zero-bubble-v"), ("torch", "v-half")):
            for allocator in ("chain-dp", "grid", "hybrid"):
                with self.subTest(framework=framework, allocator=allocator):
                    self.plan_for(framework, self.unequal, self.operators, "--allocator", allocator, "--schedule", schedule,
                                  "--microbatches", 8)
                    self.assert_converts(framework, self.unequal, self.operators)

    def test_an_allocator_that_ignores_the_rules_finds_other_plans(self):
        """Without --for, hybrid gives the pipelines of the README's devices other numbers of micro-batches."""
        platform, workload = self.path("sites.xml"), "workloads/gpt2_350m.yaml"
        self.run_isobar("platform", "generate", "sites", "--site-devices", "2xA10,6xT4", "--wan-bandwidth", "10 Gbit/s", "--wan-rtt",
                        "30 ms", "-o", platform)
        arguments = platform, workload, "--allocator", "hybrid", "--microbatches", 256
        self.run_isobar("plan", *arguments, "-o", self.path("any.json"))
        refused = self.run_isobar("convert", self.path("any.json"), "--to", "megatron", "-o", self.path("out"), expect=4)
        self.assertIn("Megatron-Core", refused.stdout)
        self.plan_for("megatron", *arguments)
        self.assert_converts("megatron", platform, workload)
        self.assertGreaterEqual(self.step_of(), self.step_of("any.json") * (1 - 1e-9))

    def test_blocks_of_prediction_stay_together_for_megatron(self):
        workload = self.write("predicts.yaml", """model: decoder
layers: 4
hidden: 256
heads: 4
kv_heads: 4
intermediate: 1024
vocabulary: 1000
sequence: 64
micro_batch: 1
mtp_layers: 3
optimizer: adamw
""")
        platform = self.star("equal", "7xT4")
        self.plan_for("megatron", platform, workload, "--allocator", "even", "--microbatches", 8)
        self.assert_converts("megatron", platform, workload)
        self.assertIn("mmm", (self.folder / "out/arguments.sh").read_text().replace("m*3", "mmm"))

    def test_compare_takes_the_same_option(self):
        rows = self.run_isobar("compare", self.unequal, self.operators, "--allocators", "chain-dp,hybrid", "--microbatches", 8, "--for",
                               "megatron", "--keep", self.path("kept"), "--json").stdout
        self.assertEqual([row["outcome"] for row in json.loads(rows)["rows"]], ["feasible"] * 2)
        for allocator in ("chain-dp", "hybrid"):
            self.run_isobar("convert", self.path(f"kept/step.{allocator}.plan.json"), "--to", "megatron", "-o", self.path("out"))

    def test_a_search_that_finds_nothing_says_what_its_best_plan_has(self):
        done = self.plan_for("deepspeed", self.unequal, self.llama, "--allocator", "even", "--microbatches", 8, "--recompute", "1-2",
                             expect=4)
        self.assertRegex(done.stdout.splitlines()[1], r"^deepspeed takes none of 1 plan that fit; the best one, of .*, has recompute: "
                                                      r"is of some layers; DeepSpeed recomputes all of a stage, or none$")

    def test_wrong_use_is_refused_in_a_line(self):
        small = self.small_inputs()
        llama = self.unequal, self.llama
        for arguments, fault in (
                ((*llama, "--allocator", "even", "--for", "deepspeed", "--schedule", "gpipe"), "deepspeed has schedule 1f1b, not gpipe"),
                ((*llama, "--allocator", "even", "--for", "megatron", "--schedule", "zero-bubble-v"),
                 "megatron has schedule 1f1b and interleaved, not zero-bubble-v"),
                ((*small, "--allocator", "even", "--for", "megatron"),
                 "megatron places the blocks of a gpt, llama or decoder, and workload small is none"),
                ((*llama, "--allocator", "window", "--for", "torch"),
                 "torch has no plans such as those of allocator window, which keep layers in a machine; use another allocator"),
                ((*llama, "--allocator", "hybrid", "--for", "torch", "--offload", "auto"),
                 "torch keeps stages on their devices; leave out --offload")):
            with self.subTest(fault=fault):
                self.assertEqual(self.fault_of("plan", *arguments), f"--for: {fault}")


class Starts(PlanForTest):
    def imported(self, layout, *options, workload=None, name="today.json", framework="megatron"):
        self.run_isobar("convert", layout, self.unequal, workload or self.llama, "--from", framework, *options, "-o", self.path(name))
        return self.path(name)

    def test_cuts_of_virtual_stages_move_and_nothing_else(self):
        start = self.imported("Et|t|t|t|t|ttL", "--virtual-stages", 2, "--microbatches", 6)
        before = json.loads(pathlib.Path(start).read_text())
        self.run_isobar("plan", self.unequal, self.llama, "--allocator", "local-search", "--start", start, "--for", "megatron", "-o",
                        self.path("plan.json"))
        self.assert_converts("megatron", self.unequal, self.llama)
        after = json.loads(pathlib.Path(self.path("plan.json")).read_text())
        self.assertLess(self.step_of(), self.step_of("today.json"))
        for key in ("schedule", "microbatches"):
            self.assertEqual(after[key], before[key])
        shards_of = [[each["replicas"][0]["shards"][0]["device"] for each in plan["stages"]] for plan in (before, after)]
        self.assertEqual(*shards_of)

    def test_cuts_of_replicas_and_shards_move(self):
        platform = self.star("equal", "8xA100-SXM4-40GB")
        self.run_isobar("convert", "Et*2|t*5L", platform, self.operators, "--from", "megatron", "--replicas", 2, "--tensor", 2, "--splits",
                        "sequence", "--sharded", "optimizer", "--microbatches", 16, "-o", self.path("today.json"))
        self.run_isobar("plan", platform, self.operators, "--allocator", "local-search", "--start", self.path("today.json"), "--for",
                        "megatron", "-o", self.path("plan.json"))
        self.assert_converts("megatron", platform, self.operators)
        self.assertLess(self.step_of(), self.step_of("today.json"))
        text = (self.folder / "out/arguments.sh").read_text()
        for line in ("--tensor-model-parallel-size 2", "--use-distributed-optimizer", "--global-batch-size 16"):
            self.assertIn(line, text)

    def test_no_cuts_of_few_blocks_are_better(self):
        """Every layout of these degrees is imported and none is faster."""
        start = self.imported("Et|tt|tt|ttL", "--virtual-stages", 2, "--microbatches", 4)
        self.run_isobar("plan", self.unequal, self.llama, "--allocator", "local-search", "--start", start, "-o", self.path("plan.json"))
        least = self.step_of()
        for first in range(4):
            for second in range(1, 6):
                for third in range(1, 6):
                    last = 7 - first - second - third
                    if last < 0:
                        continue
                    layout = "E" + "t" * first + "|" + "t" * second + "|" + "t" * third + "|" + "t" * last + "L"
                    self.imported(layout, "--virtual-stages", 2, "--microbatches", 4, name="other.json")
                    self.assertLessEqual(least, self.step_of("other.json") * (1 + 1e-9), layout)

    def test_a_start_within_a_block_moves_to_whole_blocks(self):
        self.run_isobar("plan", self.unequal, self.operators, "--allocator", "even", "--microbatches", 8, "-o", self.path("today.json"))
        self.plan_for("megatron", self.unequal, self.operators, "--allocator", "local-search", "--start", self.path("today.json"),
                      "--microbatches", 8)
        self.assert_converts("megatron", self.unequal, self.operators)

    def test_options_beside_such_a_start_are_refused(self):
        start = self.imported("Et|t|t|t|t|ttL", "--virtual-stages", 2, "--microbatches", 6)
        command = "plan", self.unequal, self.llama, "--allocator", "local-search", "--start", start
        for option in (("--microbatches", 8), ("--schedule", "1f1b"), ("--recompute", "all"), ("--simulate", 4),
                       ("--without", "device-0")):
            with self.subTest(option=option):
                self.assertEqual(self.fault_of(*command, *option),
                                 f"{option[0]}: {start} says it, whose cuts alone move; leave it out")
