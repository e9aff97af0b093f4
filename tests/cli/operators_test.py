"""--profile with a table of operators, for workloads with compute: operators."""

import json
import pathlib

from tests.cli.support import CommandTest

WORKLOAD = """model: gpt
layers: 4
hidden: 1024
heads: 16
vocabulary: 32000
sequence: 512
micro_batch: 2
dtype: bf16
attention: fused
optimizer: adam
framework: megatron-core-0.8
compute: operators
"""

PLATFORM = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <zone id="z" routing="Full">
    <host id="a" speed="1Tf"><prop id="memory" value="80 GB"/><prop id="device" value="FIRST"/></host>
    <host id="b" speed="1Tf"><prop id="memory" value="80 GB"/><prop id="device" value="SECOND"/></host>
    <link id="wire" bandwidth="100GBps" latency="1us"/>
    <route src="a" dst="b"><link_ctn id="wire"/></route>
  </zone>
</platform>
"""


def table(device="Mine 1", dtype="bf16", slowdown=1.0, **others):
    """All products at 10 TFLOP/s and operators at 100 GB/s, on a host that takes no time."""
    products = [{"batch": 1, "m": size, "n": size, "k": size, "layout": layout, "time_s": slowdown * 2 * size ** 3 / 1e13}
                for layout in ("TN", "NN", "NT") for size in (256, 4096)]
    bandwidth = {"forward_bytes_per_s": 1e11 / slowdown, "backward_bytes_per_s": 1e11 / slowdown}
    operators = dict.fromkeys(("norm", "activation", "residual", "softmax", "copy"), bandwidth)
    return {"schema": "isobar-operators/1", "device": device, "dtype": dtype, "tf32": False, "memory_bytes": 8e10,
            "launch_s": 1e-9, "products": products, "memory_bound": operators,
            "attention": [{"batch": 1, "heads": 16, "sequence": 512, "width": 64, "forward_s": slowdown * 1e-3,
                           "backward_s": slowdown * 3e-3}], **others}


class TableOfOperators(CommandTest):
    def inputs(self, first="Mine 1", second="Mine 1", workload=WORKLOAD):
        platform = PLATFORM.replace("FIRST", first).replace("SECOND", second)
        return self.write("mine.xml", platform), self.write("gpt.yaml", workload)

    def table(self, *arguments, name="mine.operators.json", **others):
        return self.write(name, json.dumps(table(*arguments, **others), indent=1))

    def plan(self, inputs, profile, *options):
        plan = self.make_plan(*inputs, "--profile", profile, *options)
        return plan, json.loads(pathlib.Path(plan).read_text())

    def refusal(self, inputs, *options):
        return self.fault_of("plan", *inputs, "--allocator", "even", "-o", self.folder / "p.json", *options)

    def test_a_device_that_isobar_has_no_constants_of_is_planned_and_simulated_by_its_table(self):
        inputs = self.inputs()
        self.assertIn("device Mine 1: has no constants; ", self.refusal(inputs))
        profile = self.table()
        plan, document = self.plan(inputs, profile)
        self.assertEqual(document["inputs"]["profile"]["name"], profile)
        self.run_isobar("verify", *inputs, plan, "--profile", profile)
        result = self.json_of("simulate", *inputs, "--profile", profile, "--plan", plan)
        self.assertEqual(result["inputs"]["profile"], document["inputs"]["profile"])
        self.assertAlmostEqual(result["step_time_s"] / document["predicted"]["step_time_s"], 1, delta=1e-3)

    def test_a_device_that_a_plan_leaves_out_needs_no_constants(self):
        inputs = self.inputs(first="A100-SXM4-80GB", second="Mine 2")
        self.assertIn("device Mine 2: has no constants; ", self.refusal(inputs))
        plan = self.make_plan(*inputs, "--without", "b")
        self.run_isobar("verify", *inputs, plan)
        self.run_isobar("simulate", *inputs, "--plan", plan)
        self.assertIn('--without: "c" is not a device of mine; ', self.refusal(inputs, "--without", "c"))

    def test_operators_that_take_three_times_as_long_make_a_step_on_one_device_three_times_as_long(self):
        _, workload = self.inputs()
        lines = PLATFORM.replace("FIRST", "Mine 1").splitlines()
        platform = self.write("one.xml", "\n".join(line for line in lines if '"b"' not in line and "link" not in line))
        steps = []
        for slowdown in (1, 3):
            _, document = self.plan((platform, workload), self.table(slowdown=slowdown, name=f"{slowdown}.json"))
            steps.append(document["predicted"]["step_time_s"])
        self.assertAlmostEqual(steps[1] / steps[0], 3, delta=0.01)

    def test_a_plan_names_its_table_and_is_refused_with_another_one(self):
        inputs = self.inputs()
        plan, _ = self.plan(inputs, self.table())
        other = self.table(slowdown=2, name="other.json")
        fault = self.fault_of("simulate", *inputs, "--profile", other, "--plan", plan)
        self.assertIn("inputs.profile: made for ", fault)
        self.assertIn("other.json", fault)

    def test_verify_says_which_profile_a_plan_was_made_with_and_nothing_that_follows(self):
        known = "A100-SXM4-80GB"
        inputs = self.inputs(first=known, second=known)
        table = self.table(known)
        plan, _ = self.plan(inputs, table)
        faults = self.run_isobar("verify", *inputs, plan, expect=5).stdout.splitlines()
        self.assertEqual(len(faults), 1)
        self.assertIn("inputs.profile: the plan was made with ", faults[0])
        self.assertIn(", and this is no profile (hash none); give --profile ", faults[0])
        self.assertIn("mine.operators.json", faults[0])
        self.run_isobar("verify", *inputs, plan, "--profile", table)
        other = self.table(known, slowdown=2, name="other.json")
        self.assertIn("other.json", self.run_isobar("verify", *inputs, plan, "--profile", other, expect=5).stdout)
        plain = self.make_plan(*inputs)
        fault = self.run_isobar("verify", *inputs, plain, "--profile", table, expect=5).stdout
        self.assertIn("; leave --profile out", fault)

    def test_other_micro_batches_are_priced_by_the_same_table(self):
        inputs = self.inputs()
        profile = self.table()
        plan, document = self.plan(inputs, profile, "--global-batch", 24, "--microbatches", 6)
        self.assertEqual(document["micro_batch"], 4)
        self.run_isobar("verify", *inputs, plan, "--profile", profile)

    def test_devices_without_a_table_take_the_constants_of_their_type(self):
        inputs = self.inputs(second="A100-SXM4-80GB")
        rows = self.json_of("compare", *inputs, "--profile", self.table(), "--allocators", "even,exact")["rows"]
        self.assertEqual({row["outcome"] for row in rows} - {"optimal", "feasible"}, set())

    def test_a_table_without_compute_operators_is_refused_with_what_to_write(self):
        inputs = self.inputs(workload=WORKLOAD[:WORKLOAD.index("framework: ")])
        profile = self.table()
        self.assertEqual(self.refusal(inputs, "--profile", profile),
                         f"{profile}: is a table of operators, and workload gpt has compute: rate; write compute: "
                         "operators and a framework in it, or --set compute=operators --set framework=NAME")
        self.plan(inputs, profile, "--set", "compute=operators", "--set", "framework=megatron-core-0.8")

    def test_a_table_of_another_dtype_is_refused(self):
        profile = self.table(dtype="fp16")
        self.assertEqual(self.refusal(self.inputs(), "--profile", profile),
                         f"{profile}: dtype: measured in fp16; the workload is in bf16; measure it with isobar profile "
                         "--operators")
        profile = self.table(dtype="float32")
        workload = WORKLOAD.replace("dtype: bf16", "dtype: float32\nmatmul_dtype: tf32")
        fault = self.refusal(self.inputs(workload=workload), "--profile", profile)
        self.assertIn("dtype: measured in float32; the workload is in float32 with TF32; ", fault)

    def test_a_table_of_a_device_that_the_platform_does_not_have_is_refused(self):
        profile = self.table("Mine 2")
        inputs = self.inputs(second="A100-SXM4-80GB")
        self.assertEqual(self.refusal(inputs, "--profile", profile),
                         f'{profile}: device: measured on "Mine 2"; the platform has devices "A100-SXM4-80GB", "Mine 1"; '
                         "write one of them")

    def test_a_table_is_of_every_device_of_its_type_by_whatever_name(self):
        def step(table_of):
            inputs = self.inputs(first="H100-SXM-80GB", second="H100-SXM-80GB")
            return self.plan(inputs, self.table(table_of))[1]["predicted"]["step_time_s"]
        self.assertEqual(step("NVIDIA H100 80GB HBM3"), step("H100-SXM-80GB"))

    def test_measured_layers_in_place_of_a_table_are_refused(self):
        profile = self.write("layers.json", json.dumps({"schema": "isobar-profile/1", "device": "Mine 1"}))
        inputs = self.inputs(first="L4", second="L4")
        self.assertEqual(self.refusal(inputs, "--profile", profile),
                         f"{profile}: has no table of operators, which compute: operators takes; write one with isobar "
                         "profile --operators, or --set compute=rate")

    def test_every_fault_of_a_table_is_named_with_its_line(self):
        faulty = table(memory_bytes=-1)
        faulty["products"][0]["layout"] = "TT"
        profile = self.write("faulty.json", json.dumps(faulty, indent=1))
        fault = self.refusal(self.inputs(), "--profile", profile)
        self.assertRegex(fault, r"faulty\.json:6: memory_bytes: ")
        self.assertRegex(fault, r"faulty\.json:\d+: products\[0\]\.layout: ")
        self.assertEqual([file.name for file in pathlib.Path(self.folder).glob("p.json")], [])
