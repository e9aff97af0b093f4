import csv
import pathlib

from tests.cli.support import BERT24, SKY16, CommandTest

HEADER = ("platform,workload,allocator,objective,communication,schedule,microbatches,seed,outcome,objective_s,"
          "objective_bound_s,gap_fraction,step_time_s,step_bound_s,peak_memory_bytes,tokens_per_s,"
          "mfu_fraction,bubble_fraction,bottleneck_s,recompute,stages,reason")


class Compare(CommandTest):
    def test_writes_one_sorted_row_for_each_allocator_and_objective(self):
        output = self.folder / "results.csv"
        self.run_isobar("compare", SKY16, BERT24, "--objective", "sequential,pipeline", "-o", output)
        self.assertEqual(output.read_text().splitlines()[0], HEADER)
        rows = list(csv.DictReader(output.open()))
        keys = [(row["allocator"], row["objective"]) for row in rows]
        self.assertEqual(keys, sorted((allocator, objective)
                                      for allocator in ("even", "sky-dynamic", "sky-dynamic-fixed", "chain-dp")
                                      for objective in ("sequential", "pipeline")))
        for row in rows:
            self.assertGreaterEqual(float(row["step_time_s"]) * (1 + 1e-9), float(row["step_bound_s"]))
            self.assertLessEqual(float(row["objective_bound_s"]), float(row["objective_s"]))

    def test_says_how_many_replicas_a_grid_has(self):
        inputs = "platforms/nodes8.xml", "workloads/gpt2_124m.yaml"
        options = "--allocators", "grid", "--pipeline", 2, "--replicas", 4
        row, = self.json_of("compare", *inputs, *options)["rows"]
        self.assertEqual((row["stages"], row["replicas"]), (2, 4))
        self.assertGreaterEqual(row["step_time_s"] * (1 + 1e-6), row["step_bound_s"])
        self.assertIn("2 × 4", self.run_isobar("compare", *inputs, *options).stdout)

    def test_says_how_many_shards_a_replica_has(self):
        workload = self.write("operators.yaml", pathlib.Path("workloads/gpt2_124m.yaml").read_text() + "unit: operator\n")
        inputs = "platforms/nodes8.xml", workload
        options = "--allocators", "grid", "--pipeline", 2, "--replicas", 1, "--tensor", 4
        row, = self.json_of("compare", *inputs, *options)["rows"]
        self.assertEqual([row[key] for key in ("stages", "replicas", "shards")], [2, 1, 4])
        self.assertRegex(self.run_isobar("compare", *inputs, *options).stdout, r"grid +2 × 1 × 4 ")

    def test_two_runs_give_the_same_bytes(self):
        texts = []
        for name in ("first.csv", "second.csv"):
            self.run_isobar("compare", SKY16, BERT24, "-o", self.folder / name)
            texts.append((self.folder / name).read_text())
        self.assertEqual(*texts)

    def test_one_micro_batch_at_a_time_takes_what_the_formula_says(self):
        for row in self.json_of("compare", SKY16, BERT24, "--objective", "sequential")["rows"]:
            # The update comes on top: 2 FLOP per parameter.
            self.assertAlmostEqual(row["step_time_s"] / row["objective_s"], 1, places=4)

    def test_recomputes_as_plan_does(self):
        inputs = self.small_inputs()
        row, = self.json_of("compare", *inputs, "--allocators", "even", "--recompute", "1-2", "--explain")["rows"]
        plan = self.json_of("plan", *inputs, "--allocator", "even", "--recompute", "1-2")
        self.assertEqual(row["objective_s"], plan["objective_s"])
        self.assertEqual(row["peak_memory_bytes"], max(plan["predicted"]["peak_memory_bytes"].values()))

    def test_a_placement_that_does_not_fit_has_a_reason_and_the_rest_continue(self):
        inputs = SKY16, "workloads/bert80.yaml"
        rows = {row["allocator"]: row for row in self.json_of("compare", *inputs)["rows"]}
        self.assertEqual(rows["even"]["outcome"], "infeasible")
        self.assertRegex(rows["even"]["reason"], r"node-\d+")
        self.assertEqual(rows["sky-dynamic"]["outcome"], "feasible")
        self.assertIn(rows["even"]["reason"], self.run_isobar("compare", *inputs).stdout)

    def test_exits_with_4_when_nothing_fits(self):
        self.run_isobar("compare", *self.small_inputs(memory="1 GB"), expect=4)

    def test_an_allocator_that_crashes_costs_its_own_row(self):
        allocator = self.write("allocator.sh", "#!/bin/sh\necho broken >&2\nexit 7\n")
        pathlib.Path(allocator).chmod(0o755)
        rows = self.json_of("compare", *self.small_inputs(), "--allocators", f"even,exec:{allocator}")["rows"]
        self.assertEqual([row["outcome"] for row in rows], ["feasible", "failed"])
        self.assertIn("exited with code 7; last line on stderr: broken", rows[1]["reason"])

    def test_an_allocator_that_hangs_costs_its_own_row(self):
        allocator = self.write("allocator.sh", "#!/bin/sh\nsleep 600\n")
        pathlib.Path(allocator).chmod(0o755)
        rows = self.json_of("compare", *self.small_inputs(), "--allocators", f"even,exec:{allocator}", "--row-time-limit",
                            "3s")["rows"]
        self.assertEqual([row["outcome"] for row in rows], ["feasible", "failed"])
        self.assertEqual(rows[1]["reason"], "was ended at the time limit of 3 s (--row-time-limit)")

    def test_refuses_to_overwrite_its_inputs(self):
        inputs = self.small_inputs()
        allocator = self.write("allocator.py", "#!/usr/bin/env python3\n")
        devices = self.write("small.devices.yaml", '"slow": {memory: 15 GB}\n')
        for file in (allocator, devices, *inputs):
            self.assertEqual(self.fault_of("compare", *inputs, "--allocators", f"even,exec:{allocator}", "-o", file),
                             f"{file}: is an input; name another file to write")

    def test_a_name_that_is_too_long_is_a_fault_of_one_line(self):
        name = "a" * 300
        for command in (("report", name), ("trace", "stats", name), ("plan", name, name, "--allocator", "even")):
            self.assertEqual(self.fault_of(*command), f"{'a' * 60}…: File name too long")

    def test_refuses_a_row_time_limit_that_cuts_the_search_short(self):
        inputs = "compare", SKY16, BERT24
        self.assertEqual(self.fault_of(*inputs, "--time-limit", "20s", "--row-time-limit", "10s"),
                         "--row-time-limit: 10s is not more than --time-limit 20s, so no search would finish; raise it")
        self.assertEqual(self.fault_of(*inputs, "--row-time-limit", "0s"),
                         "--row-time-limit: 0 s leaves no time to plan; raise it")

    def test_no_device_is_worth_the_whole_bound(self):
        for row in self.json_of("compare", "platforms/sky4.xml", "workloads/bert10.yaml", "--allocators", "even",
                                "--objective", "sequential", "--explain")["rows"]:
            prices = row["explanation"]["shadow_prices"]
            self.assertGreater(len(prices), 0)
            for price in prices:
                self.assertLess(price["saves_s"], row["objective_bound_s"])

    def test_explains_what_limits_each_plan(self):
        # Layers of 3 s on slow and 1.5 s on fast; each transfer takes 0.11 s. even gives slow two of them.
        text = self.run_isobar("compare", *self.small_inputs(), "--allocators", "even", "--objective",
                               "sequential,pipeline", "--explain").stdout
        self.assertIn("""
even, sequential (sequential, M = 1, communication serial): 7.72 s
  largest stage cost: stage 0 on slow, 6.11 s, by its compute (6.00 s)
  largest shares: slow 77.7 %, fast 19.4 %; links wire 2.8 %
  10 % more speed of slow saves 545 ms (7.1 %)
  10 % more bandwidth of wire saves 18.2 ms (0.2 %)
  no chain has an objective lower by more than 3.22 s (41.7 %)
""", text)
        self.assertTrue(text.endswith("""
sequential, M = 1: if transfers were free, 1 of 2 devices would be worth using; even uses 2
pipeline, M = 8: if transfers were free, 2 of 2 devices would be worth using; even uses 2
"""), text)

    def test_all_rows_of_one_goal_have_its_best_bound(self):
        rows = self.json_of("compare", SKY16, BERT24, "--objective", "step,pipeline")["rows"]
        for objective in ("step", "pipeline"):
            bounds = [row["objective_bound_s"] for row in rows if row["objective"] == objective]
            self.assertEqual(len(set(bounds)), 1)
            self.assertEqual(len(bounds), 4)

    def test_explains_what_a_step_waits_for(self):
        # Forwards of 2 and 0.5 s, backwards of 4 and 1 s: slow computes all the time, for 8 micro-batches.
        inputs = *self.small_inputs(), "--allocators", "even"
        row, = self.json_of("compare", *inputs, "--explain")["rows"]
        path = row["explanation"]["critical_path"]
        self.assertAlmostEqual(sum(part["time_s"] for part in path["parts"]), row["objective_s"])
        self.assertEqual((path["parts"][0]["kind"], path["parts"][0]["from"]), ("compute", "slow"))
        text = self.run_isobar("compare", *inputs, "--explain").stdout
        self.assertRegex(text, r"\neven, step \(1f1b, M = 8, communication played\): [\d.]+ s\n"
                               r"  the step waits\n    100\.0 % for compute: slow 100\.0 %\n    0\.0 % for bytes\n"
                               r"    0\.0 % for latency\n")

    def test_a_global_batch_is_planned_as_plan_does(self):
        inputs = self.gpt_inputs()
        rows = self.json_of("compare", *inputs, "--allocators", "even,chain-dp", "--global-batch", 12, "--explain")["rows"]
        for row in rows:
            plan = self.json_of("plan", *inputs, "--allocator", row["allocator"], "--global-batch", 12)
            self.assertEqual((row["objective_s"], row["microbatches"], row.get("micro_batch")),
                             (plan["objective_s"], plan["microbatches"], plan.get("micro_batch")))
            parts = row["explanation"]["critical_path"]["parts"]
            self.assertAlmostEqual(sum(part["time_s"] for part in parts) / row["objective_s"], 1)

    def test_more_bandwidth_saves_nothing_where_a_window_limits_the_transfer(self):
        platform, workload = self.small_inputs()
        xml = pathlib.Path(platform).read_text()
        wire = '<link id="wire" bandwidth="1GBps" latency="10ms"'
        self.write("small.xml", xml.replace(wire + "/>", wire + '><prop id="window" value="1 MB"/></link>'))
        options = "--allocators", "even", "--objective", "sequential", "--explain"
        self.assertIn("10 % more bandwidth of any one of those tried saves nothing",
                      self.run_isobar("compare", platform, workload, *options).stdout)

    def test_explains_in_json_too_and_only_on_request(self):
        inputs = *self.small_inputs(), "--allocators", "even,chain-dp", "--objective", "bottleneck"
        row = self.json_of("compare", *inputs, "--explain")["rows"][0]
        self.assertEqual(row["explanation"]["bottleneck"]["device"], "slow")
        self.assertEqual(row["explanation"]["devices_worth_using"], 2)
        self.assertAlmostEqual(row["explanation"]["gap_s"], row["objective_s"] - row["objective_bound_s"])
        self.assertNotIn("explanation", self.json_of("compare", *inputs)["rows"][0])

    def test_names_the_nearest_allocator_before_it_runs_any(self):
        self.assertIn("did you mean even?", self.fault_of("compare", SKY16, BERT24, "--allocators", "chain-dp,evn"))

    def test_refuses_an_allocator_or_objective_that_is_listed_twice(self):
        inputs = "compare", *self.small_inputs()
        self.assertEqual(self.fault_of(*inputs, "--allocators", "even,chain-dp, even"),
                         '--allocators: "even" is listed twice; leave one out')
        self.assertEqual(self.fault_of(*inputs, "--objective", "step", "--objective", "step"),
                         '--objective: "step" is listed twice; leave one out')

    def test_blanks_around_the_commas_of_a_list_do_not_count(self):
        rows = self.json_of("compare", *self.small_inputs(), "--allocators", "even, chain-dp ,exact")["rows"]
        self.assertEqual([row["allocator"] for row in rows], ["even", "chain-dp", "exact"])
        self.assertEqual(self.fault_of("compare", SKY16, BERT24, "--allocators", "even, ,exact"),
                         "--allocators: a name of the list is empty; write NAME,NAME")

    def test_a_failed_row_changes_the_exit_code_only_with_strict(self):
        allocator = self.write("allocator.sh", "#!/bin/sh\nexit 7\n")
        pathlib.Path(allocator).chmod(0o755)
        mixed = "compare", *self.small_inputs(), "--allocators", f"even,exec:{allocator}"
        self.run_isobar(*mixed)
        self.assertEqual(self.run_isobar(*mixed, "--strict", expect=3).stderr, "isobar: 1 of 2 rows failed\n")
        self.run_isobar("compare", *self.small_inputs(), "--allocators", "even", "--strict")
        self.run_isobar("compare", *self.small_inputs(memory="1 GB"), "--strict", expect=4)

    def test_the_table_shows_the_number_of_stages_and_why_there_is_no_plan(self):
        output = self.folder / "results.csv"
        arguments = "compare", SKY16, "workloads/bert80.yaml", "--allocators", "even,sky-dynamic", "-o", output
        shown = {row["allocator"]: row for row in self.json_of(*arguments)["rows"]}
        with output.open() as file:
            rows = {row["allocator"]: row for row in csv.DictReader(file)}
        for row in rows.values():
            in_json = shown[row["allocator"]]
            self.assertEqual(row["reason"], in_json["reason"])
            self.assertEqual(row["stages"], str(in_json["stages"] or ""))
            self.assertEqual(row["bottleneck_s"], "" if in_json["bottleneck_s"] is None else repr(in_json["bottleneck_s"]))
        self.assertEqual((rows["even"]["stages"], rows["sky-dynamic"]["reason"]), ("", ""))
