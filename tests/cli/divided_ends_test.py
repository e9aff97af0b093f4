"""Plans whose devices divide the embedding and the head of a model, and have a stage of the blocks each."""

import json
import pathlib
import unittest

from tests.cli.support import CommandTest

PLATFORM = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <zone id="z" routing="Full">
    <host id="c0" speed="1Gf"><prop id="memory" value="1 GB"/></host>
    <host id="c1" speed="1Gf"><prop id="memory" value="1 GB"/></host>
    <host id="c2" speed="1Gf"><prop id="memory" value="1 GB"/></host>
    <link id="a" bandwidth="1GBps" latency="10us"/>
    <link id="b" bandwidth="1GBps" latency="10us"/>
    <link id="c" bandwidth="1GBps" latency="10us"/>
    <route src="c0" dst="c1"><link_ctn id="a"/></route>
    <route src="c1" dst="c2"><link_ctn id="b"/></route>
    <route src="c0" dst="c2"><link_ctn id="c"/></route>
  </zone>
</platform>
"""

GPT = """model: gpt
layers: 6
hidden: 32
heads: 4
vocabulary: 960
sequence: 16
micro_batch: 2
unit: operator
"""

SCHEDULES = ("1f1b-interlaced", "1f1b-vocab-1", "1f1b-vocab-2")


class DividedEndsTest(CommandTest):
    def setUp(self):
        super().setUp()
        self.platform = self.write("three.xml", PLATFORM)
        self.workload = self.write("gpt.yaml", GPT)

    def plan_under(self, schedule, microbatches=12):
        return self.make_plan(self.platform, self.workload, "--schedule", schedule, "--microbatches", microbatches,
                              "--pipeline", 3, allocator="grid")

    def content_of(self, plan):
        return json.loads(pathlib.Path(plan).read_text(encoding="utf-8"))

    def step_of(self, plan):
        return self.content_of(plan)["predicted"]["step_time_s"]

    def changed(self, plan, change):
        content = self.content_of(plan)
        change(content)
        return self.write("changed.json", json.dumps(content, indent=1))

    def test_plans_have_the_ends_on_all_devices_and_hold_when_verified(self):
        for schedule in SCHEDULES:
            plan = self.plan_under(schedule)
            stages = self.content_of(plan)["stages"]
            devices = [[shard["device"] for shard in stage["replicas"][0]["shards"]] for stage in stages]
            self.assertEqual(devices, [["c0", "c1", "c2"], ["c0"], ["c1"], ["c2"], ["c0", "c1", "c2"]])
            self.assertEqual([(stage["first_layer"], stage["last_layer"]) for stage in stages],
                             [(0, 0), (1, 4), (5, 8), (9, 12), (13, 13)])
            self.assertEqual(self.json_of("verify", self.platform, self.workload, plan)["faults"], [])

    def test_simulates_the_predicted_step(self):
        for schedule in SCHEDULES:
            plan = self.plan_under(schedule)
            predicted = self.step_of(plan)
            simulated = self.json_of("simulate", self.platform, self.workload, "--plan", plan, "--iterations", 1)
            self.assertAlmostEqual(simulated["step_time_s"], predicted, delta=1e-6 * predicted)

    def test_is_faster_than_a_head_on_one_device_that_takes_as_long_as_a_stage(self):
        whole = self.make_plan(self.platform, self.workload, "--microbatches", 24, "--pipeline", 3, "--tensor", 1,
                               allocator="grid")
        step = self.step_of(whole)
        self.assertLess(self.step_of(self.plan_under("1f1b-vocab-1", 24)), step)

    def test_orders_are_shown_for_each_device_and_imported_as_they_are(self):
        for schedule in ("1f1b-interlaced", "1f1b-vocab-1"):
            plan = self.plan_under(schedule)
            self.assertTrue(self.run_isobar("schedule", "show", plan).stdout.startswith(
                f"{schedule}: 3 devices, 5 stages, 12 micro-batches\n"))
            orders = self.write("orders.json", self.run_isobar("schedule", "show", plan, "--json").stdout)
            listed = str(self.folder / "listed.json")
            printed = self.run_isobar("schedule", "import", orders, self.platform, self.workload, "--plan", plan, "-o",
                                      listed).stdout
            self.assertIn("c1: stages 0, 2, 4; 72 tasks in ", printed)
            self.assertEqual(self.step_of(listed), self.step_of(plan))
            self.assertEqual(self.json_of("verify", self.platform, self.workload, listed)["faults"], [])

    def test_listed_orders_wait_for_the_logits_of_others(self):
        plan = self.plan_under("1f1b-vocab-2")
        orders = self.write("orders.json", self.run_isobar("schedule", "show", plan, "--json").stdout)
        listed = str(self.folder / "listed.json")
        self.run_isobar("schedule", "import", orders, self.platform, self.workload, "--plan", plan, "-o", listed)
        self.assertGreater(self.step_of(listed), 1.05 * self.step_of(plan))

    def test_reports_the_stages_of_each_device(self):
        result = str(self.folder / "result.json")
        self.run_isobar("simulate", self.platform, self.workload, "--plan", self.plan_under("1f1b-vocab-1"), "-o", result)
        run = self.json_of("report", result)["runs"][0]
        rows = run["stages"]
        self.assertEqual([[(rows[i]["stage"], rows[i]["shard"], rows[i]["shards"]) for i in device["stages"]]
                          for device in run["sites"][0]["devices"]],
                         [[(0, 0, 3), (1, 0, 1), (4, 0, 3)],
                          [(0, 1, 3), (2, 0, 1), (4, 1, 3)],
                          [(0, 2, 3), (3, 0, 1), (4, 2, 3)]])

    def test_refuses_other_schedules_for_such_stages(self):
        plan = self.changed(self.plan_under("1f1b-vocab-1"),
                            lambda content: content["schedule"].update(name="1f1b"))
        self.assertEqual(self.fault_of("simulate", self.platform, self.workload, "--plan", plan).splitlines()[0].split(
            ": ", 1)[1], "schedule: 1f1b works with devices that have each of their stages alone, and 3 devices divide "
                         "stages[0]; use 1f1b-interlaced, 1f1b-vocab-1, 1f1b-vocab-2, listed")

    def test_refuses_ends_that_devices_divide_in_another_order(self):
        def reverse(content):
            content["stages"][4]["replicas"][0]["shards"].reverse()

        plan = self.changed(self.plan_under("1f1b-vocab-1"), reverse)
        self.assertIn("needs stages[4] divided among all devices, in the order of their stages",
                      self.fault_of("simulate", self.platform, self.workload, "--plan", plan))

    def test_refuses_other_allocators(self):
        for allocator in ("even", "hybrid"):
            self.assertEqual(
                self.fault_of("plan", self.platform, self.workload, "--allocator", allocator, "--schedule",
                              "1f1b-vocab-1"),
                "schedule: 1f1b-vocab-1 is for devices that divide the first and the last layer; use allocator grid, or "
                "another schedule")

    def test_says_why_there_is_no_such_grid(self):
        small = self.write("small.yaml", GPT.replace("layers: 6", "layers: 1"))
        for workload, devices, reason in (
                (self.workload, 1, "1f1b-vocab-1 needs several devices in a pipeline"),
                (small, 3, "5 stages need as many layers that can be cut apart, and there are 4")):
            result = self.run_isobar("plan", self.platform, workload, "--allocator", "grid", "--schedule",
                                     "1f1b-vocab-1", "--pipeline", devices, expect=4)
            self.assertIn(reason, result.stdout)


if __name__ == "__main__":
    unittest.main()
