"""The flags of training systems, in plans and in workloads."""

import json
import pathlib
import re

from tests.cli.support import CommandTest

ROOT = pathlib.Path(__file__).parents[2]

WORKLOAD = """model: gpt
layers: 2
hidden: 2048
heads: 16
vocabulary: 32001
sequence: 1024
micro_batch: 4
dtype: DTYPE
attention: ATTENTION
optimizer: adam
unit: operator
compute: operators
framework: SYSTEM
"""
LAYERS = 6

# Links inside the pairs a, b and c, d are fast.
FAST, SLOW = "100GBps", "2GBps"


def platform(device="A100-SXM4-80GB"):
    hosts = "".join(f'<host id="{name}" speed="100Tf"><prop id="memory" value="80 GB"/>'
                    f'<prop id="device" value="{device}"/></host>' for name in "abcd")
    links, routes = "", ""
    for pair in ("ab", "ac", "ad", "bc", "bd", "cd"):
        links += f'<link id="{pair}" bandwidth="{FAST if pair in ("ab", "cd") else SLOW}" latency="1us"/>'
        routes += f'<route src="{pair[0]}" dst="{pair[1]}"><link_ctn id="{pair}"/></route>'
    return ("<?xml version='1.0'?>\n<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n"
            f'<platform version="4.1"><zone id="z" routing="Full">{hosts}{links}{routes}</zone></platform>\n')


def stage(first, last, *replicas):
    """Layers of a stage and, for each of its replicas, the names of its shards."""
    return {"first_layer": first, "last_layer": last,
            "replicas": [{"microbatches": 4 // len(replicas),
                          "shards": [{"device": device, "share": 1 / len(shards)} for device in shards]}
                         for shards in replicas]}


SHAPES = {
    "one": {"stages": [stage(0, 5, "a")]},
    "pipeline": {"stages": [stage(0, 2, "a"), stage(3, 5, "c")]},
    "shards": {"stages": [stage(0, 5, "ab")]},
    "pipeline of shards": {"stages": [stage(0, 2, "ab"), stage(3, 5, "cd")]},
    "replicas": {"stages": [stage(0, 2, "a", "c"), stage(3, 5, "a", "c")], "sync": {"algorithm": "ring"}},
    "pipelines": {"stages": [stage(0, 1, "a", "c"), stage(2, 3, "a", "c"), stage(4, 5, "b", "d")],
                  "sync": {"algorithm": "ring"}},
    "optimizers": {"stages": [stage(0, 2, "a", "c"), stage(3, 5, "a", "c")], "sync": {"algorithm": "ring", "sharded": "optimizer"}},
    "parameters": {"stages": [stage(0, 2, "a", "c"), stage(3, 5, "a", "c")],
                   "sync": {"algorithm": "ring", "sharded": "parameters"}},
}

SHAPES["pipeline of slices"] = SHAPES["pipeline of shards"] | {"transfers": {"sliced": True}}

MEGATRON, CORE, COMPOSER, DEEPSPEED = ("megatron-lm-2021", "megatron-core-0.8", "composer-fsdp-2023",
                                       "megatron-deepspeed-2023")
ENGINE = "megatron-deepspeed-2024"
LONGER, SHORTER, MORE, LESS = ("step", 1), ("step", -1), ("memory", 1), ("memory", -1)
# A flag as plans spell it: the system and the shape of a plan, the value, what it changes, and what else the plan has.
FLAGS = {
    "host_forward_s": (MEGATRON, "one", 0.05, LONGER),
    "host_backward_s": (MEGATRON, "one", 0.05, LONGER),
    "host_shards_s": (MEGATRON, "shards", 0.05, LONGER),
    "host_pipeline_s": (MEGATRON, "pipeline", 0.01, LONGER),
    "causal_softmax": (MEGATRON, "one", False, LONGER),
    "logit_bytes_forward": (MEGATRON, "one", 250, LONGER),
    "logit_bytes_backward": (MEGATRON, "one", 40, LONGER),
    "product_speed": (MEGATRON, "one", 2, SHORTER),
    "fitted_product_speed": (MEGATRON, "one", 2, SHORTER),
    "attention_speed": (CORE, "one", 8, SHORTER, {"attention": "fused"}),
    "norm_speed": (MEGATRON, "one", 0.1, LONGER),
    "memory_speed": (MEGATRON, "one", 0.5, LONGER),
    "speed_in_training": (MEGATRON, "one", 0.5, LONGER, {"device": "V100-SXM2-32GB"}),
    "kernel_start_s": (MEGATRON, "one", 1e-3, LONGER),
    "update_bytes": (MEGATRON, "one", 360, LONGER),
    "gradient_bytes": (MEGATRON, "one", 360, LONGER),
    "pads_vocabulary": (MEGATRON, "one", False, SHORTER),
    "recomputed_collectives": (MEGATRON, "shards", 0, SHORTER, {"recompute": "inner"}),
    "stops_recomputation": (MEGATRON, "one", True, SHORTER, {"recompute": "inner"}),
    "drops_recomputed_outputs": (MEGATRON, "one", True, LESS, {"operators": "norm1 norm2 activation"}),
    "overlap_shard_sums": (MEGATRON, "shards", True, SHORTER),
    "overlap_shard_collectives": (MEGATRON, "shards", True, SHORTER),
    "overlap_parameter_gathers": (CORE, "optimizers", True, SHORTER),
    "serial_receives": (MEGATRON, "pipeline", True, LONGER),
    "rebuild_s_per_gb": (ENGINE, "pipeline of slices", 1, LONGER),
    "memory_parameter_bytes_16bit": (MEGATRON, "one", 20, MORE),
    "memory_gradient_bytes_16bit": (MEGATRON, "one", 40, MORE),
    "memory_optimizer_bytes_16bit": (MEGATRON, "one", 40, MORE),
    "memory_update_bytes_16bit": (MEGATRON, "one", 200, MORE),
    "memory_parameter_bytes_32bit": (MEGATRON, "one", 40, MORE, {"dtype": "float32"}),
    "memory_gradient_bytes_32bit": (MEGATRON, "one", 40, MORE, {"dtype": "float32"}),
    "memory_optimizer_bytes_32bit": (MEGATRON, "one", 40, MORE, {"dtype": "float32"}),
    "memory_logit_bytes": (MEGATRON, "one", 100, MORE),
    "memory_activations": (MEGATRON, "one", 2, MORE),
    "memory_block_gradients": (MEGATRON, "one", True, MORE),
    "memory_context_bytes": (MEGATRON, "one", 20e9, MORE),
}
# The same of rules, which become keys of `sync` and `transfers`. The base states the other value.
RULES = {
    "overlap_gradient_sums": (MEGATRON, "replicas", False, LONGER),
    "overlap_gradient_sums_in_pipelines": (MEGATRON, "pipelines", True, SHORTER),
    "gradient_bucket_bytes": (MEGATRON, "replicas", 1e12, LONGER),
    "blocking_transfers": (MEGATRON, "pipeline", False, SHORTER),
    "sliced_transfers": (MEGATRON, "pipeline of shards", False, LONGER),
    "gradient_dtype": (MEGATRON, "replicas", "float32", LONGER),
    "gather_dtype": (COMPOSER, "parameters", "float32", LONGER),
    "sums_each_microbatch": (COMPOSER, "parameters", False, SHORTER),
}
# What a base states of rules, where the system itself would not.
STATED = {"overlap_gradient_sums": {"overlap_gradient_sums": True},
          "overlap_gradient_sums_in_pipelines": {"overlap_gradient_sums_in_pipelines": False},
          "gradient_bucket_bytes": {"gradient_bucket_bytes": 0}, "blocking_transfers": {"blocking_transfers": True},
          "sliced_transfers": {"sliced_transfers": True}, "gradient_dtype": {"gradient_dtype": "fp16"},
          "gather_dtype": {"gather_dtype": "bf16"}, "sums_each_microbatch": {"sums_each_microbatch": True}}


class TrainingSystems(CommandTest):
    def setUp(self):
        super().setUp()
        self.platform = self.write("four.xml", platform())

    def workload(self, system, dtype="fp16", attention="unfused", operators=""):
        text = WORKLOAD.replace("SYSTEM", system).replace("DTYPE", dtype).replace("ATTENTION", attention)
        if operators:
            text += f'recompute_operators: ["0-1: {operators}"]\n'
        return self.write("gpt.yaml", text)

    def plan(self, system, shape, flags, recompute="none", name="plan.json", device="A100-SXM4-80GB", **workload):
        """The plan of an answer that states flags, with its file and that of the workload."""
        self.platform = self.write("four.xml", platform(device))
        answer = self.write("answer.json", json.dumps(SHAPES[shape] | {"system": {"name": system} | flags}))
        program = pathlib.Path(self.write("answer.sh", f"#!/bin/sh\ncat >/dev/null; cat {answer}\n"))
        program.chmod(0o700)
        file, model = self.folder / name, self.workload(system, **workload)
        self.run_isobar("plan", self.platform, model, "--allocator", f"exec:{program}", "--microbatches", 4,
                        "--recompute", recompute, "-o", file)
        return json.loads(file.read_text()), file, model

    def check(self, plan, file, workload):
        """Verifies a plan, and compares its step and memory with those of its simulation."""
        self.run_isobar("verify", self.platform, workload, file)
        result = self.json_of("simulate", self.platform, workload, "--plan", file)
        self.assertAlmostEqual(result["step_time_s"] / plan["predicted"]["step_time_s"], 1, delta=1e-6)
        self.assertEqual({each["device"]: each["peak_memory_bytes"] for each in result["stages"]},
                         plan["predicted"]["peak_memory_bytes"])

    def test_verify_proves_the_bound_of_a_plan_and_no_more(self):
        workload = self.workload(CORE)
        flags = ("--set", "framework.overlap_shard_collectives=true")
        file = self.make_plan(self.platform, workload, *flags, "--microbatches", 8, allocator="grid")
        plan = json.loads(pathlib.Path(file).read_text())
        proven = self.json_of("verify", self.platform, workload, file)["proven_bound_s"]
        self.assertAlmostEqual(proven / plan["objective_bound_s"], 1, delta=1e-6)
        plan["objective_bound_s"] *= 1.01
        plan["gap_fraction"] = 1 - plan["objective_bound_s"] / plan["objective_s"]
        more = self.write("more.json", json.dumps(plan))
        self.assertIn("objective_bound_s: claims", self.run_isobar("verify", self.platform, workload, more, expect=5).stdout)

    def compare(self, flag, system, shape, value, change, others=None, stated=None):
        what, sign = change
        figure = (lambda plan: plan["predicted"]["step_time_s"] if what == "step"
                  else max(plan["predicted"]["peak_memory_bytes"].values()))
        base, file, _ = self.plan(system, shape, stated or {}, **(others or {}))
        changed, file, workload = self.plan(system, shape, {flag: value}, **(others or {}))
        self.assertGreater(sign * (figure(changed) - figure(base)), 1e-4 * figure(base),
                           f"{flag}: {figure(base)} and with {value} {figure(changed)}")
        self.check(changed, file, workload)
        return base, changed

    def test_each_flag_changes_the_step_or_the_memory_that_is_predicted_verified_and_simulated(self):
        for flag, (system, shape, value, change, *others) in FLAGS.items():
            with self.subTest(flag):
                base, changed = self.compare(flag, system, shape, value, change, *others)
                self.assertEqual(base["system"], system)
                self.assertEqual(changed["system"], {"name": system, flag: value})

    def test_each_rule_becomes_one_of_transfers_or_sums(self):
        for flag, (system, shape, value, change) in RULES.items():
            with self.subTest(flag):
                base, changed = self.compare(flag, system, shape, value, change, stated=STATED[flag])
                self.assertEqual(changed["system"], system, "the plan has it in transfers or sync alone")
                keys = ("transfers", "sync")
                self.assertNotEqual([base.get(key) for key in keys], [changed.get(key) for key in keys])

    def test_all_flags_are_tested(self):
        file = (ROOT / "results" / "fidelity" / "systems.yaml").read_text()
        first = file.split("- name:")[1]
        keys = set(re.findall(r"^    (\w+): ", first, re.MULTILINE)) - {"version", "source"}
        tested = {re.sub("_s$", "", flag) if flag.startswith(("host", "kernel")) else re.sub(r"(context|bucket)_bytes$", r"\1", flag)
                  for flag in FLAGS | RULES}
        # What the allocator reserves is of measured rows alone (fidelity_rows_test.py); dispatches are of experts
        # (experts_test.py).
        self.assertEqual(keys, tested | {"most_divided", "memory_reserve", "overlap_dispatches", "dispatch_once_a_node"})

    def test_parameters_that_wait_for_their_gathers_take_longer_without_what_gathers_slow_down(self):
        self.compare("overlap_parameter_gathers", COMPOSER, "parameters", False, LONGER)

    def test_replicas_divide_what_their_system_can(self):
        model = self.workload(MEGATRON)
        options = ("--allocator", "grid", "--pipeline", 1, "--replicas", 2, "--tensor", 1, "--microbatches", 4)
        plans = {}
        for most in ("none", "parameters"):
            file = self.folder / f"{most}.json"
            self.run_isobar("plan", self.platform, model, *options, "--set", f"framework.most_divided={most}",
                            "--set", "framework.memory_optimizer_bytes_16bit=200", "-o", file)
            plans[most] = json.loads(file.read_text())
        self.assertNotIn("sharded", plans["none"]["sync"])
        self.assertEqual(plans["parameters"]["system"],
                         {"name": MEGATRON, "most_divided": "parameters", "memory_optimizer_bytes_16bit": 200})

    def test_flags_of_sums_without_effect_on_a_divided_optimizer_are_refused_or_said(self):
        _, file, workload = self.plan(CORE, "optimizers", {})
        for flag, value in (("overlap_gradient_sums", True), ("overlap_gradient_sums_in_pipelines", True),
                            ("gradient_bucket_bytes", 1e6)):
            plan = json.loads(file.read_text())
            plan["system"] = {"name": CORE, flag: value}
            other = self.write("other.json", json.dumps(plan, indent=1))
            fault = self.fault_of("verify", self.platform, workload, other)
            self.assertRegex(fault, rf"other\.json:\d+: system\.{flag}: is .*; replicas that divide the optimizer .*; leave it out")
        options = ("--allocator", "grid", "--pipeline", 1, "--replicas", 4, "--tensor", 1, "--microbatches", 4,
                   "--set", "framework.overlap_gradient_sums=true")
        for more, is_divided in (((), True), (("--set", "framework.most_divided=none"), False)):
            plan = self.folder / "plan.json"
            said = self.run_isobar("plan", self.platform, workload, *options, *more, "-o", plan).stderr
            self.assertEqual("sharded" in json.loads(plan.read_text())["sync"], is_divided)
            self.assertEqual("framework.overlap_gradient_sums: without effect in this plan: " in said, is_divided)

    def test_a_workload_changes_flags_by_a_mapping_or_by_set(self):
        model = self.workload(MEGATRON)
        inside = self.write("inside.yaml", pathlib.Path(model).read_text().replace(
            f"framework: {MEGATRON}", f"framework: {{name: {MEGATRON}, host_forward: 50 ms, blocking_transfers: false}}"))
        shape = ("--allocator", "grid", "--pipeline", 2, "--replicas", 1, "--tensor", 1, "--microbatches", 4)
        set_ = ("--set", "framework.host_forward=50 ms", "--set", "framework.blocking_transfers=false")
        plans = []
        for workload, options in ((inside, ()), (model, set_)):
            file = self.folder / "plan.json"
            self.run_isobar("plan", self.platform, workload, *shape, *options, "-o", file)
            plans.append(json.loads(file.read_text()))
            self.check(plans[-1], file, workload)
        for plan in plans:
            self.assertEqual(plan["system"], {"name": MEGATRON, "host_forward_s": 0.05})
            self.assertNotIn("transfers", plan)
        self.assertEqual(plans[0]["predicted"], plans[1]["predicted"])

    def test_wrong_flags_have_one_line_with_the_key(self):
        model = self.workload(MEGATRON)
        for setting, fault in (
                ("framework.overlap_shard_sum=true",
                 "--set: framework.overlap_shard_sum: unknown key; did you mean overlap_shard_sums?"),
                ("framework.host_forward=5", '--set: framework.host_forward: "5" is not a time; write a number and a unit, '
                 'such as "20 ms"'),
                ("framework.host_forward=1001 s", '--set: framework.host_forward: "1001 s" is out of range; write a time '
                 "from 0 s to 1000 s"),
                ("framework.product_speed=1e-320", '--set: framework.product_speed: "1e-320" is out of range; write a '
                 "number from 0.001 to 1000"),
                ("framework.update_bytes=1e308", '--set: framework.update_bytes: "1e308" is out of range; write a number '
                 "from 0 to 10000"),
                ("framework={name: aceso-2024}", "--set: framework: is a mapping; write a name, and each flag as "
                 "framework.FLAG=VALUE"),
                ("framework=megatron-lm-2021x", '--set: framework: "megatron-lm-2021x" is unknown; write one of aceso-2024, '),
                ("framework.version=2022", '--set: framework.name: "megatron-lm-2021-2022" is unknown; write one of '),
                ("framework.gradient_dtype=fp8", "--set: framework.gradient_dtype: \"fp8\" is not one of "
                 "float32, bf16, fp16")):
            with self.subTest(setting):
                printed = self.fault_of("plan", self.platform, model, "--allocator", "even", "--set", setting)
                self.assertIn(fault, printed)
                self.assertEqual(len(printed.strip().splitlines()), 1, printed)

    def test_workloads_without_known_software_have_one_line_with_its_place(self):
        model = self.workload(MEGATRON)
        text = pathlib.Path(model).read_text()
        known = ("aceso-2024, composer-fsdp-2023, fms-fsdp-2024, internevo-2023, megascale-moe-2025, megatron-bridge-2026, megatron-core-0.8, "
                 "megatron-deepspeed-2023, megatron-deepspeed-2024, megatron-lm-2021, megatron-lm-2022")
        for value, fault in (
                ("pax", f'13: framework: "pax" is unknown; write one of {known}'),
                ('""', f'13: framework: "" is unknown; write one of {known}'),
                ("[x]", "13: framework: is a list; write a name, or an object of name and flags"),
                ('{name: "megatron-lm-2021\\nx"}', f'13: framework.name: "megatron-lm-2021\\x0ax" is unknown; write one of '
                                                   f"{known}"),
                ("{host_forward: 1 ms}", f"13: framework.name: missing; write one of {known}"),
                (None, f"1: framework: missing; compute: operators takes the constants of one: {known}")):
            with self.subTest(value):
                line = "" if value is None else f"framework: {value}"
                file = self.write("other.yaml", text.replace(f"framework: {MEGATRON}", line))
                self.assertEqual(self.fault_of("plan", self.platform, file, "--allocator", "even"), f"{file}:{fault}")
        file = self.write("none.yaml", text.replace(f"framework: {MEGATRON}", ""))
        self.run_isobar("plan", self.platform, file, "--allocator", "even", "--set", f"framework={MEGATRON}")

    def test_a_version_may_be_said_twice(self):
        file = self.workload(f'{{name: {MEGATRON}, version: "2021"}}')
        plan = self.folder / "plan.json"
        result = self.run_isobar("plan", self.platform, file, "--allocator", "even", "-o", plan)
        self.assertNotIn("stand for", result.stderr)
        self.assertEqual(json.loads(plan.read_text())["system"], MEGATRON)

    def test_plans_of_unknown_systems_and_of_too_many_samples_are_refused(self):
        plan, file, workload = self.plan(MEGATRON, "replicas", {})
        for changes, fault in (({"system": "foo"}, 'system: "foo" is unknown; write one of aceso-2024, '),
                               ({"samples": 17}, "samples: 17; the step has 4 micro-batches of 4, so at most 16\n")):
            with self.subTest(changes):
                file.write_text(json.dumps(plan | changes))
                result = self.run_isobar("verify", self.platform, workload, file, expect=5)
                self.assertEqual(len(result.stdout.strip().splitlines()), 1, result.stdout)
                self.assertIn(f"{file}: {fault}", result.stdout)
                self.assertIn(fault.strip(), self.fault_of("simulate", self.platform, workload, "--plan", file))
