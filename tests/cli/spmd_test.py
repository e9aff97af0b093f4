import json
import pathlib

from tests.cli.support import BERT24, CommandTest

# The check of the search: T-MoE with two layers on two devices.
WORKLOAD = """model: moe
trunk: plain
layers: 2
hidden: 64
heads: 4
intermediate: 256
experts: 4
top_k: 1
capacity_factor: 1.25
capacity_rounding: down
parity: true
micro_batch: 16
sequence: 32
"""
DIVIDING = "ddp, deepspeed-moe, dp-cp, dp-ev, fastmoe, fastmoe-published, horovod, spmd"
PROFILE = {"devices": 2, "device_flops": 1e9, "all_gather": 1e8, "all_reduce": 5e7, "reduce_scatter": 1e8,
           "all_to_all": 2e8}


class Spmd(CommandTest):
    def setUp(self):
        super().setUp()
        platform, _ = self.small_inputs()
        self.inputs = platform, self.write("tmoe.yaml", WORKLOAD)
        self.profile = self.write("profile.json", json.dumps(PROFILE))

    def strategy(self, cost):
        return self.json_of("plan", *self.inputs, "--allocator", "spmd", "--cost", cost, "--parity-profile",
                            self.profile)

    def test_finds_the_published_costs(self):
        for cost, wanted in (("paper", 0.153583616), ("code", 0.475754976), ("symmetric", 0.464198560),
                             ("none", 0.482685760)):
            self.assertAlmostEqual(self.strategy(cost)["spmd_cost_s"], wanted, delta=1e-8)

    def test_prints_the_collectives_and_stages_of_the_strategy(self):
        strategy = self.strategy("code")
        self.assertEqual(strategy["collectives"], {"all_gather": 13, "all_to_all": 2, "replicate": 8, "slice": 1})
        self.assertEqual(len(strategy["stages"]), 13)
        operators = [operator for stage in strategy["stages"] for operator in stage["operators"]]
        self.assertEqual((operators[0]["name"], operators[-1]["name"]), ("embedding.x", "head.output"))
        self.assertEqual(operators[-1]["inputs"], ["reduce"])
        kinds = [reform["kind"] for stage in strategy["stages"] for reform in stage["reforms"]]
        self.assertEqual({kind: kinds.count(kind) for kind in kinds}, strategy["collectives"])

    def test_prints_a_table_for_people(self):
        printed = self.run_isobar("plan", *self.inputs, "--allocator", "spmd", "--cost", "code", "--parity-profile",
                                  self.profile).stdout
        head, table = printed.split("\n\n")
        self.assertEqual(head, "spmd: cost 0.475754976 s by formula code on 2 devices; 57 operators in 13 stages\n"
                               "reforms: 13 all_gather, 2 all_to_all, 8 replicate, 1 slice")
        self.assertEqual(len(table.splitlines()), 2 + 13)

    def test_takes_our_graph_as_well_as_the_published_one(self):
        self.inputs = self.inputs[0], self.write("ours.yaml", WORKLOAD.replace("parity: true\n", ""))
        strategy = self.strategy("code")
        names = [operator["name"] for stage in strategy["stages"] for operator in stage["operators"]]
        self.assertIn("layer0.scores", names)
        self.assertGreater(strategy["spmd_cost_s"], 0)

    def test_refuses_what_it_cannot_do(self):
        command = "plan", *self.inputs, "--allocator", "spmd"
        self.assertEqual(self.fault_of(*command),
                         "unit: spmd divides operators; write unit: operator in a workload of model moe, or --set "
                         "unit=operator")
        self.assertEqual(self.fault_of(*command, "--cost", "code"),
                         "--cost: goes with --parity-profile FILE; without it, spmd minimizes the step on the platform")
        with_profile = *command, "--parity-profile", self.profile
        self.assertEqual(self.fault_of(*with_profile), "--cost: missing; write one of paper, code, symmetric, none")
        self.assertEqual(self.fault_of(*with_profile, "--cost", "cod"),
                         '--cost: "cod" is none of paper, code, symmetric, none')
        self.assertEqual(self.fault_of(*with_profile, "--cost", "code", "-o", "plan.json"),
                         "--output: with --parity-profile, spmd makes no plan; print its strategy with --json")
        self.assertEqual(self.fault_of(*with_profile, "--cost", "code", "--microbatches", 2),
                         "--microbatches: has no effect with --parity-profile; leave it out")
        other = "plan", self.inputs[0], BERT24, *with_profile[3:], "--cost", "code"
        self.assertEqual(self.fault_of(*other),
                         f"{BERT24}: model: has no operators to divide; allocator spmd takes model: moe")

    def test_its_options_are_refused_for_other_allocators(self):
        command = "plan", *self.inputs, "--allocator", "even"
        self.assertEqual(self.fault_of(*command, "--cost", "code"), "--cost: goes with --allocator spmd, not with even")
        self.assertEqual(self.fault_of(*command, "--parity-profile", self.profile),
                         "--parity-profile: goes with --allocator spmd, not with even")

    def test_the_rule_of_shares_is_one_of_three_and_for_spmd(self):
        command = "plan", *self.inputs, "--set", "unit=operator", "--set", "parity=false", "--allocator"
        self.assertEqual(self.fault_of(*command, "spmd", "--shares", "fair"),
                         '--shares: "fair" is none of best, even, speed')
        self.assertEqual(self.fault_of(*command, "ddp", "--shares", "even"),
                         "--shares: works only with allocator spmd, not with ddp")
        steps = {}
        for rule in ("best", "even", "speed"):
            plan = self.make_plan(*self.inputs, "--set", "unit=operator", "--set", "parity=false", "--shares", rule,
                                  allocator="spmd")
            with open(plan) as file:
                steps[rule] = json.load(file)["predicted"]["step_time_s"]
        self.assertLessEqual(steps["best"], min(steps["even"], steps["speed"]) * (1 + 1e-9))

    def test_plans_are_verified_and_simulated(self):
        self.inputs = self.inputs[0], self.write("ours.yaml", WORKLOAD.replace("parity: true", "unit: operator"))
        for allocator in ("spmd", "ddp", "dp-ev", "dp-cp", "horovod", "deepspeed-moe", "fastmoe", "fastmoe-published"):
            plan = self.make_plan(*self.inputs, allocator=allocator)
            self.assertIn("every claim holds", self.run_isobar("verify", *self.inputs, plan).stdout)
            result = self.json_of("simulate", *self.inputs, "--plan", plan)
            for device in result["devices"]:
                self.assertAlmostEqual(device["hidden_s"] + device["exposed_s"], device["communication_s"])
                self.assertLessEqual(device["compute_s"], result["step_time_s"])
            self.assertGreaterEqual(result["step_time_s"], result["step_bound_s"] * (1 - 1e-9))
            self.assertEqual(len(result["plan"]["stages"]), 1)
        rows = self.run_isobar("compare", *self.inputs, "--allocators", "spmd,ddp", "--global-batch", 16).stdout
        self.assertIn("spmd", rows)

    def test_rates_of_operators_come_from_a_profile(self):
        inputs = self.inputs[0], self.write("ours.yaml", WORKLOAD.replace("parity: true", "unit: operator"))
        rates = self.write("rates.json", json.dumps(
            {"schema": "isobar-profile/1",
             "operator_rates": {"T4": {"flops_per_s": 8e9, "memory_bandwidth_bytes_per_s": 1e8}}}))
        devices = self.write("devices.yaml", '"*": {device: T4, interference: 1.14}\n')
        measured = *inputs, "--devices", devices, "--profile", rates
        for allocator in ("spmd", "horovod", "deepspeed-moe", "fastmoe"):
            plan = self.make_plan(*measured, allocator=allocator)
            self.assertEqual(json.loads(pathlib.Path(plan).read_text())["inputs"]["profile"]["name"], rates)
            self.assertIn("every claim holds", self.run_isobar("verify", *measured, plan).stdout)
            result = self.json_of("simulate", *measured, "--plan", plan)
            self.assertGreaterEqual(result["step_time_s"], result["step_bound_s"] * (1 - 1e-9))
        rows = self.run_isobar("compare", *measured, "--allocators", "spmd,ddp", "--global-batch", 16).stdout
        self.assertIn("spmd", rows)
        fault = self.fault_of("plan", self.inputs[0], BERT24, "--allocator", "even", "--profile", rates)
        self.assertRegex(fault, "rates.json: has rates of operators alone, and the layers of workload .* are not "
                                "operators; write unit: operator in that of a moe, or measure its layers")

    def test_testbeds_of_hidup_are_planned_verified_and_simulated(self):
        rates = "--profile", "platforms/hidup.profile.json"
        inputs = "platforms/hidup_1x4.xml", "workloads/hidup/tmoe_4.yaml", *rates
        plan = self.make_plan(*inputs, "--microbatches", 1, allocator="ddp")
        self.assertIn("every claim holds", self.run_isobar("verify", *inputs, plan).stdout)
        predicted = json.loads(pathlib.Path(plan).read_text())["predicted"]["step_time_s"]
        simulated = self.json_of("simulate", *inputs, "--plan", plan)["step_time_s"]
        self.assertAlmostEqual(simulated / predicted, 1, delta=1e-9)

    def test_plans_with_another_routing_say_so_and_are_read_with_it(self):
        self.inputs = self.inputs[0], self.write("ours.yaml", WORKLOAD.replace("parity: true", "unit: operator"))
        note = "isobar: deepspeed-moe: experts take 80 slots for 8 samples; by the workload 10 slots for a sample, so that " \
               "other tokens are dropped"
        plan = str(self.folder / "plan.json")
        printed = self.run_isobar("plan", *self.inputs, "--allocator", "deepspeed-moe", "-o", plan)
        self.assertIn(note, printed.stderr)
        self.assertIn("devices add up the gradients of replicated parameters in 1 bucket\n", printed.stdout)
        self.assertEqual(json.loads(pathlib.Path(plan).read_text())["routing"], {"capacity_samples": 8, "by_index": False})
        compared = self.run_isobar("compare", *self.inputs, "--allocators", "spmd,deepspeed-moe")
        self.assertIn(note, compared.stderr)
        grouped = self.inputs[0], self.write("grouped.yaml", WORKLOAD.replace(
            "parity: true", "unit: operator\ncapacity_samples: 8"))
        printed = self.run_isobar("plan", *grouped, "--allocator", "deepspeed-moe", "-o", plan)
        self.assertNotIn("slots", printed.stderr)
        self.assertNotIn("routing", json.loads(pathlib.Path(plan).read_text()))
        self.assertEqual(self.fault_of("plan", *grouped, "--allocator", "ddp", "--global-batch", 4),
                         "--global-batch: capacity_samples: 8 do not divide the 4 of a micro-batch")
        text = pathlib.Path(self.make_plan(*self.inputs, allocator="fastmoe-published")).read_text()
        wrong = self.write("wrong.json", text.replace('"capacity_samples": 8', '"capacity_samples": 3'))
        self.assertEqual(self.fault_of("simulate", *self.inputs, "--plan", wrong),
                         f"{wrong}: routing: capacity_samples: 3 do not divide the 16 of a micro-batch")
        self.assertIn("replicas of parameters drift apart",
                      self.run_isobar("plan", *self.inputs, "--allocator", "fastmoe-published").stdout)
        self.assertIn("fastmoe", self.run_isobar("compare", *self.inputs, "--allocators", "fastmoe,horovod",
                                                 "--global-batch", 32).stdout)

    def test_plans_are_of_all_operators_and_for_allocators_that_divide_them(self):
        inputs = self.inputs[0], self.write("ours.yaml", WORKLOAD.replace("parity: true", "unit: operator"))
        self.assertEqual(self.fault_of("plan", *inputs, "--allocator", "even"),
                         f"unit: operator, whose layers only {DIVIDING} divide; leave it out for even")
        self.assertEqual(self.fault_of("plan", *self.inputs, "--allocator", "even", "--schedule", "duplex"),
                         f"schedule: duplex is for devices that divide operators; use allocator {DIVIDING}, "
                         "or another schedule")
        self.assertEqual(self.fault_of("plan", *inputs, "--allocator", "spmd", "--schedule", "zero-bubble-h1"),
                         "schedule: zero-bubble-h1 splits backward passes, and devices that divide operators compute "
                         "whole ones; use duplex, gpipe, 1f1b or sequential")
        plan = json.loads(pathlib.Path(self.make_plan(*inputs, allocator="ddp")).read_text())
        del plan["stages"][0]["splits"]["layer0.qkv"]
        wrong = self.write("wrong.json", json.dumps(plan))
        self.assertIn("stages[0].splits: 62 signatures for 63 layers; give each a signature, in their order",
                      self.fault_of("simulate", *inputs, "--plan", wrong))

    def test_names_the_line_and_key_of_a_wrong_profile(self):
        wrong = self.write("wrong.json", json.dumps(PROFILE, indent=1).replace("all_gather", "allgather"))
        self.assertEqual(self.fault_of("plan", *self.inputs, "--allocator", "spmd", "--cost", "code", "--parity-profile",
                                       wrong),
                         f"{wrong}:1: all_gather: missing; write a number, 0 or more\n"
                         f"{wrong}:4: allgather: unknown key; did you mean all_gather?")

    def test_other_allocators_and_the_simulator_take_the_workload(self):
        plan = self.make_plan(*self.inputs, allocator="exact")
        self.assertIn("every claim holds", self.run_isobar("verify", *self.inputs, plan).stdout)
        result = self.json_of("simulate", *self.inputs, "--plan", plan)
        self.assertGreater(result["step_time_s"], 0)
