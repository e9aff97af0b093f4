"""The interval of a predicted step, in plans, simulations, comparisons and fidelity. No test here depends on its width."""

import json
import math
import pathlib

from tests.cli.support import BERT24, ROOT, SKY16, CommandTest

WORKLOAD = """model: gpt
layers: 8
hidden: 2048
heads: 16
vocabulary: 32000
sequence: 1024
micro_batch: 2
dtype: bf16
attention: fused
optimizer: adam
framework: FRAMEWORK
compute: operators
"""

PLATFORM = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <zone id="z" routing="Full">
    <host id="a" speed="1Tf"><prop id="memory" value="80 GB"/><prop id="device" value="DEVICE"/></host>
    <host id="b" speed="1Tf"><prop id="memory" value="80 GB"/><prop id="device" value="DEVICE"/></host>
    <link id="wire" bandwidth="100GBps" latency="1us"/>
    <route src="a" dst="b"><link_ctn id="wire"/></route>
  </zone>
</platform>
"""


class StepInterval(CommandTest):
    def inputs(self, device="A100-SXM4-80GB", framework="megatron-lm-2021"):
        return (self.write("pair.xml", PLATFORM.replace("DEVICE", device)),
                self.write("gpt.yaml", WORKLOAD.replace("FRAMEWORK", framework)))

    def planned(self, *inputs, options=()):
        plan = self.make_plan(*inputs, *options)
        return plan, json.loads(pathlib.Path(plan).read_text())["predicted"]

    def width(self, holder):
        low, high = holder["step_interval_s"]
        self.assertAlmostEqual(math.sqrt(low * high) / holder["step_time_s"], 1, places=9)
        return math.log(high / low) / 2

    def test_a_plan_and_its_simulation_have_an_interval_with_its_causes(self):
        inputs = self.inputs()
        plan, predicted = self.planned(*inputs)
        result = self.json_of("simulate", *inputs, "--plan", plan)
        for holder in (predicted, result):
            self.assertGreater(self.width(holder), 0)
            self.assertIn("any run", holder["interval_because"][0])
        self.run_isobar("verify", *inputs, plan)
        self.assertRegex(self.run_isobar("simulate", *inputs, "--plan", plan).stdout,
                         r"^step [0-9.]+ s \(80 %: [0-9.]+ to [0-9.]+ s\); no order")
        printed = self.run_isobar("plan", *inputs, "--allocator", "even").stdout
        self.assertRegex(printed, r"predicted step [0-9.]+ s \(80 %: [0-9.]+ to [0-9.]+ s\), no order")
        self.assertIn("\ninterval: any run, ", printed)

    def test_what_is_known_less_has_a_wider_interval(self):
        fitted = self.width(self.planned(*self.inputs())[1])
        same_chip = self.width(self.planned(*self.inputs("A100-SXM4-40GB"))[1])
        tables = self.width(self.planned(*self.inputs("L4"))[1])
        stand_in = self.width(self.planned(*self.inputs("T4"))[1])
        self.assertLess(fitted, same_chip)
        self.assertLess(same_chip, tables)
        self.assertLess(tables, stand_in)
        _, other = self.planned(*self.inputs(framework="megatron-deepspeed-2023"))
        self.assertLess(fitted, self.width(other))
        self.assertIn("A100-SXM4-80GB under megatron-deepspeed-2023: no known run of this pair",
                      "\n".join(other["interval_because"]))

    def test_layers_by_their_rate_have_none(self):
        plan, predicted = self.planned(SKY16, BERT24)
        self.assertNotIn("step_interval_s", predicted)
        self.assertNotIn("step_interval_s", self.json_of("simulate", SKY16, BERT24, "--plan", plan))
        self.assertNotIn("80 %", self.run_isobar("compare", SKY16, BERT24, "--allocators", "even").stdout)

    def test_a_comparison_calls_a_ranking_within_the_bar_one(self):
        inputs = self.inputs()
        options = ("--allocators", "even,chain-dp", "--microbatches", "8")
        rows = self.json_of("compare", *inputs, *options)["rows"]
        for row in rows:
            self.assertGreater(self.width(row), 0)
        slower = [row for row in rows if "ranking_fraction" in row]
        self.assertLessEqual(len(slower), 1)
        printed = self.run_isobar("compare", *inputs, *options).stdout
        self.assertRegex(printed, r"\n(even|chain-dp): step [0-9.]+ s \(80 %: ")
        ties = [row for row in slower if 1e-6 < row["slower_fraction"] <= row["ranking_fraction"]]
        self.assertEqual(printed.count("within the bar: "), len(ties))

    def test_a_plan_whose_interval_is_none_is_refused(self):
        inputs = self.inputs()
        plan, _ = self.planned(*inputs)
        document = json.loads(pathlib.Path(plan).read_text())
        document["predicted"]["step_interval_s"] = [2, 1]
        plan = self.write("wrong.json", json.dumps(document, indent=1))
        self.assertIn("predicted.step_interval_s: is no interval; write its two ends, the lower one first",
                      self.fault_of("simulate", *inputs, "--plan", plan))

    def test_verify_recomputes_the_interval_and_its_causes(self):
        inputs = self.inputs()
        plan, predicted = self.planned(*inputs)
        low, high = predicted["step_interval_s"]
        for changed, fault in (({"step_interval_s": [low * 1.01, high]}, "predicted.step_interval_s: claims "),
                               ({"step_interval_s": [low, high * 1.01]}, "predicted.step_interval_s: claims "),
                               ({"interval_because": ["luck"]}, "predicted.interval_because: claims ")):
            document = json.loads(pathlib.Path(plan).read_text())
            document["predicted"].update(changed)
            wrong = self.write("wrong.json", json.dumps(document, indent=1))
            self.assertIn(fault, self.run_isobar("verify", *inputs, wrong, expect=5).stdout)

    def test_fidelity_has_the_interval_of_each_row_and_how_many_rows_of_a_set_are_inside(self):
        table = ROOT / "results/fidelity/measured/megatron_seqsel.csv"
        result = self.json_of("fidelity", table)
        inside = []
        for row in result["rows"]:
            low, high = row["step_interval_s"]
            self.assertEqual(row["inside_interval"], low <= row["measured_s"] <= high)
            self.assertTrue(0 <= row["exposed_fraction"] <= 1)
            self.assertTrue(row["interval_because"])
            if row["role"] == "development":
                inside.append(row["inside_interval"])
        figures = result["sets"][0]
        self.assertEqual(figures["interval_rows"], len(inside))
        self.assertAlmostEqual(figures["inside_interval_fraction"], sum(inside) / len(inside))
        explained = self.run_isobar("fidelity", table, "--explain", "seq-22B-sel").stdout
        self.assertRegex(explained, r"\ninterval 80 %: [0-9.]+ to [0-9.]+ s; measured (in|out)side it\n")
        self.assertIn("\nthe interval", explained)
