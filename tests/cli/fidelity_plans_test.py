"""Plans that are made by the compute model of operators, and rows of measured runs that have such a plan."""

import csv

from tests.cli.support import ROOT, CommandTest

with (ROOT / "results/fidelity/measured/mpt_h100.csv").open(newline="") as measured:
    COLUMNS = next(csv.reader(measured))

MACHINE = """nodes: 1
gpus_per_node: 4
device: A100-SXM4-80GB
inside: {topology: switch, bandwidth_per_gpu: 300 GB/s}
"""
GPT = """model: gpt
layers: 8
hidden: 2048
heads: 16
vocabulary: 32768
sequence: 1024
micro_batch: 4
dtype: fp16
optimizer: adam
unit: operator
compute: operators
framework: megatron-lm-2021
"""


class PlansByOperators(CommandTest):
    def setUp(self):
        super().setUp()
        self.machine = self.write("machine.yaml", MACHINE)
        self.platform = self.folder / "machine.xml"
        self.run_isobar("platform", "generate", "machine", self.machine, "-o", self.platform)
        self.workload = self.write("gpt.yaml", GPT)

    def plan_of(self, *options):
        plan = self.folder / "plan.json"
        self.run_isobar("plan", self.platform, self.workload, "--microbatches", "8", *options, "-o", plan)
        return plan

    def row_with(self, plan, expect=0):
        """The prediction of a row whose plan this is."""
        cells = dict.fromkeys(COLUMNS, "") | {
            "set": "s", "row": "r", "role": "gate", "platform": self.machine, "workload": self.workload,
            "framework": "megatron-lm-2021", "global_batch": "32", "micro_batch": "4", "recompute": "plan", "plan": plan,
            "measured_s": "1"}
        table = self.write("rows.csv", ",".join(COLUMNS) + "\n" + ",".join(str(cells[key]) for key in COLUMNS) + "\n")
        return self.json_of("fidelity", table, expect=expect)["rows"][0]

    def test_a_plan_holds_and_takes_what_was_predicted(self):
        for allocator in ("hybrid", "grid", "chain-dp"):
            with self.subTest(allocator=allocator):
                plan = self.plan_of("--allocator", allocator)
                self.run_isobar("verify", self.platform, self.workload, plan)
                result = self.json_of("simulate", self.platform, self.workload, "--plan", plan)
                self.assertEqual(result["compute"], "operators")
                predicted = result["plan"]["predicted"]["step_time_s"]
                self.assertAlmostEqual(result["step_time_s"] / predicted, 1, delta=0.01)

    def test_small_micro_batches_wait_for_the_host(self):
        """Four samples one by one take longer than together, since kernels are small."""
        slow = self.json_of("compare", self.platform, self.workload, "--allocators", "grid", "--microbatches", "32",
                            "--set", "micro_batch=1")["rows"][0]["step_time_s"]
        fast = self.json_of("compare", self.platform, self.workload, "--allocators", "grid",
                            "--microbatches", "8")["rows"][0]["step_time_s"]
        self.assertGreater(slow, 1.2 * fast)

    def test_a_row_with_a_plan_takes_as_long_as_the_plan(self):
        plan = self.plan_of("--allocator", "hybrid")
        step = self.json_of("simulate", self.platform, self.workload, "--plan", plan)["step_time_s"]
        row = self.row_with(plan)
        self.assertEqual((row["status"], row["reason"]), ("predicted", ""))
        self.assertAlmostEqual(row["predicted_s"] / step, 1, delta=0.05)

    def test_a_plan_of_other_layers_is_unsupported(self):
        plan = self.plan_of("--allocator", "hybrid", "--set", "layers=4")
        self.assertEqual(self.row_with(plan, expect=4)["reason"], "plan: of 10 layers; the model has 18 of unit operator")

    def test_names_what_operators_need(self):
        without = self.write("without.yaml", GPT.replace("framework: megatron-lm-2021\n", ""))
        self.assertIn("1: framework: missing; compute: operators takes the constants of one:",
                      self.fault_of("plan", self.platform, without, "--allocator", "even"))
        unknown = self.write("unknown.yaml", GPT.replace("megatron-lm-2021", "tensorflow"))
        self.assertIn("is unknown; write one of", self.fault_of("plan", self.platform, unknown, "--allocator", "even"))

    def test_names_devices_without_a_type(self):
        self.assertIn("sky64: node-1: has no device type, whose constants compute: operators takes; give it a prop device",
                      self.fault_of("plan", "platforms/sky64.xml", self.workload, "--allocator", "even"))
