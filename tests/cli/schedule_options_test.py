"""Schedules other than those of chains in the commands that plan: their options, plans, tables and faults."""

import csv
import json
import pathlib
import re

from tests.cli.support import CommandTest

EVEN = "--allocator", "even"
INTERLEAVED = "interleaved(chunks=2)"


def devices_of(plan):
    return [stage["replicas"][0]["shards"][0]["device"] for stage in plan["stages"]]


class Plans(CommandTest):
    def plan_and_verify(self, inputs, *options, allocator="even"):
        """The plan, which holds and whose simulated step is not below its bound."""
        file = self.make_plan(*inputs, *options, allocator=allocator)
        self.assertIn("every claim holds", self.run_isobar("verify", *inputs, file).stdout)
        plan = json.loads(pathlib.Path(file).read_text())
        step = self.json_of("simulate", *inputs, "--plan", file)["step_time_s"]
        self.assertGreaterEqual(step * (1 + 1e-9), plan["step_bound_s"])
        return plan

    def test_hold_under_every_schedule(self):
        for schedule in ("zero-bubble-h1", "zero-bubble-h2", "zero-bubble-v", "dualpipe-v", "v-half", "v-min", INTERLEAVED, "1f1b(warm_up=1/0)",
                         "1f1b(warm_up=auto)", "zero-bubble-h1(warm_up=auto)", "greedy"):
            plan = self.plan_and_verify(self.gpt_inputs(), "--schedule", schedule)
            self.assertEqual(plan["schema"], "isobar-plan/2", schedule)
            self.assertEqual(plan["predicted"]["step_time_by"], "played", schedule)
            self.assertEqual(plan["objective_s"], plan["predicted"]["step_time_s"], schedule)
            self.assertIn(plan["certificate"]["kind"], ("fractional", "load"), schedule)

    def test_fold_the_chain_onto_the_devices(self):
        plan = self.plan_and_verify(self.gpt_inputs(), "--schedule", "interleaved", "--chunks", 2)
        self.assertEqual(plan["schedule"], {"name": "interleaved", "chunks": 2})
        self.assertEqual(devices_of(plan), ["slow", "fast", "slow", "fast"])
        plan = self.plan_and_verify(self.gpt_inputs(), "--schedule", "zero-bubble-v")
        self.assertEqual(plan["schedule"], {"name": "zero-bubble-v"})
        self.assertEqual(devices_of(plan), ["slow", "fast", "fast", "slow"])
        plan = self.plan_and_verify(self.gpt_inputs(), "--schedule", "dualpipe-v")
        self.assertEqual(plan["schedule"], {"name": "dualpipe-v"})
        self.assertEqual(devices_of(plan), ["slow", "fast", "fast", "slow"])

    def test_pass_micro_batches_in_the_groups_that_were_given(self):
        plan = self.plan_and_verify(self.gpt_inputs(), "--schedule", INTERLEAVED, "--microbatch-group", 3, "--microbatches", 9)
        self.assertEqual(plan["schedule"], {"name": "interleaved", "chunks": 2, "group": 3})
        file = self.folder / "plan.json"
        printed = self.run_isobar("schedule", "show", file, "--csv").stdout
        self.assertTrue(printed.startswith("0F0,0F1,0F2,2F0,2F1,2F2,2B0,0F3,2B1,0F4"), printed)
        plain = self.plan_and_verify(self.gpt_inputs(), "--schedule", INTERLEAVED, "--microbatches", 9)
        # Its transfers of 10 ms are waited for unless another micro-batch is there to be computed.
        self.assertLess(plan["predicted"]["step_time_s"], plain["predicted"]["step_time_s"])
        self.assertGreater(plan["predicted"]["peak_memory_bytes"]["slow"], plain["predicted"]["peak_memory_bytes"]["slow"])
        for group, fault in ((0, "interleaved(chunks=2;group=0): group is one number, at least that of the devices"),
                             (1, "group is 1, fewer than the 2 devices; use 2 or more"),
                             (10, "group is 10, more than the 9 micro-batches of a pipeline; use 9 or less"),
                             (2, "groups of 2 leave 1 of 9 micro-batches, fewer than the 2 devices; use 3"),
                             ([3, 3], "interleaved(chunks=2;group=3/3): group is one number, at least that of the devices")):
            plan["schedule"]["group"] = group
            edited = self.write("edited.json", json.dumps(plan))
            self.assertEqual(self.fault_of("schedule", "show", edited), f"{edited}:1: schedule: {fault}")

    def test_have_the_warm_up_that_was_given_or_chosen(self):
        plan = self.plan_and_verify(self.small_inputs(), "--warm-up", "3,0")
        self.assertEqual(plan["schedule"], {"name": "1f1b", "warm_up": [3, 0]})
        plan = self.plan_and_verify(self.gpt_inputs(), "--schedule", "1f1b", "--warm-up", "auto", "--microbatches", 32)
        self.assertEqual(plan["schedule"]["name"], "1f1b")
        # Its transfers of 10 ms take longer than everything else.
        self.assertGreater(plan["schedule"]["warm_up"][0], 1)
        self.assertEqual(plan["schedule"]["warm_up"][1], 0)
        plain = self.json_of("plan", *self.gpt_inputs(), *EVEN, "--microbatches", 32)
        self.assertLess(plan["predicted"]["step_time_s"], plain["predicted"]["step_time_s"])

    def test_have_no_warm_up_where_there_is_no_placement_to_choose_it_for(self):
        inputs = self.small_inputs(memory="1 MB")
        for allocator in ("hybrid", "grid", "metis", "chain-dp"):
            file = self.folder / "infeasible.json"
            self.run_isobar("plan", *inputs, "--allocator", allocator, "--warm-up", "auto", "-o", file, expect=4)
            self.assertIn("infeasible: ", self.run_isobar("verify", *inputs, file).stdout)
        self.run_isobar("compare", *inputs, "--allocators", "chain-dp,hybrid", "--warm-up", "auto", expect=4)

    def test_have_the_orders_that_the_allocator_made(self):
        inputs = self.gpt_inputs()
        plan = self.plan_and_verify(inputs, "--schedule", "greedy", "--microbatches", 6)
        self.assertEqual(plan["schedule"]["name"], "greedy")
        self.assertEqual(set(plan["schedule"]["orders"]), {"slow", "fast"})
        self.assertLessEqual(plan["schedule_bound_s"], plan["predicted"]["step_time_s"] * (1 + 1e-9))
        other = self.plan_and_verify(inputs, "--schedule", "zero-bubble-h1", "--microbatches", 6)
        self.assertNotIn("schedule_bound_s", other)
        self.assertLessEqual(plan["objective_s"], other["objective_s"] * (1 + 1e-9))
        self.assertLessEqual(plan["schedule_bound_s"], other["objective_s"] * (1 + 1e-9))

    def test_show_the_bound_of_all_orders_and_its_gap(self):
        shown = self.run_isobar("plan", *self.gpt_inputs(), *EVEN, "--schedule", "greedy").stdout.splitlines()
        predicted = re.fullmatch(r"predicted step ([\d.e-]+) s, no order of its passes below [\d.e-]+ s", shown[2])
        bound = re.fullmatch(r"no order that fits in memory below ([\d.e-]+) s, gap ([\d.]+) %", shown[3])
        self.assertAlmostEqual(float(bound[2]), 100 * (1 - float(bound[1]) / float(predicted[1])), delta=0.02)

    def test_are_false_with_another_bound_of_all_orders(self):
        inputs = self.gpt_inputs()
        file = self.make_plan(*inputs, "--schedule", "greedy")
        plan = json.loads(pathlib.Path(file).read_text())
        for factor in (0.5, 1.01):
            pathlib.Path(file).write_text(json.dumps({**plan, "schedule_bound_s": factor * plan["schedule_bound_s"]}))
            shown = self.run_isobar("verify", *inputs, file, expect=5).stdout
            self.assertRegex(shown, r"schedule_bound_s: claims [\d.e-]+; it is [\d.e-]+ on this platform and workload\n\Z")
            self.assertEqual(len(shown.splitlines()), 1)
        del plan["schedule_bound_s"]
        pathlib.Path(file).write_text(json.dumps(plan))
        self.assertIn("every claim holds", self.run_isobar("verify", *inputs, file).stdout)

    def test_with_several_stages_on_a_device_have_no_bound_of_all_orders(self):
        inputs = self.gpt_inputs()
        file = self.make_plan(*inputs, "--schedule", "interleaved")
        plan = json.loads(pathlib.Path(file).read_text())
        pathlib.Path(file).write_text(json.dumps({**plan, "schedule_bound_s": 1}))
        self.assertIn("schedule_bound_s: only a plan with one stage on each device claims it; leave it out\n",
                      self.run_isobar("verify", *inputs, file, expect=5).stdout)

    def test_lose_the_bound_of_all_orders_with_their_own_orders(self):
        inputs = self.gpt_inputs()
        file, listed = self.make_plan(*inputs, "--schedule", "greedy"), self.folder / "listed.json"
        orders = self.write("orders.csv", self.run_isobar("schedule", "show", file, "--csv").stdout)
        self.run_isobar("schedule", "import", orders, *inputs, "--plan", file, "-o", listed)
        before, after = (json.loads(pathlib.Path(path).read_text()) for path in (file, listed))
        self.assertNotIn("schedule_bound_s", after)
        self.assertEqual(after["objective_s"], before["objective_s"])
        self.assertIn("every claim holds", self.run_isobar("verify", *inputs, listed).stdout)

    def test_without_stages_have_no_orders(self):
        inputs = self.small_inputs(memory="1 GB")
        file = self.make_plan(*inputs, "--schedule", "greedy", expect=4)
        self.assertEqual(json.loads(pathlib.Path(file).read_text())["schedule"], {"name": "greedy"})
        self.assertIn("nothing in it is false", self.run_isobar("verify", *inputs, file).stdout)

    def test_of_chains_stay_as_they_were(self):
        plan = self.json_of("plan", *self.gpt_inputs(), *EVEN, "--schedule", "gpipe")
        self.assertEqual((plan["schema"], plan["schedule"]), ("isobar-plan/1", "gpipe"))
        # Activations and gradients share the link between the devices, so the step is played.
        self.assertEqual(plan["predicted"]["step_time_by"], "played")

    def test_are_chosen_by_simulation_too(self):
        file = self.folder / "plan.json"
        result = self.run_isobar("plan", *self.gpt_inputs(), *EVEN, "--schedule", INTERLEAVED, "--simulate", 2, "-o", file)
        self.assertEqual(result.stderr, "")
        self.assertGreater(json.loads(file.read_text())["simulated"]["candidates"], 1)
        self.assertIn("every claim holds", self.run_isobar("verify", *self.gpt_inputs(), file).stdout)

    def test_are_false_with_another_step_time(self):
        file = self.make_plan(*self.gpt_inputs(), "--schedule", INTERLEAVED)
        plan = json.loads(pathlib.Path(file).read_text())
        plan["predicted"]["step_time_s"] = 1
        pathlib.Path(file).write_text(json.dumps(plan))
        shown = self.run_isobar("verify", *self.gpt_inputs(), file, expect=5).stdout
        self.assertRegex(shown, r"predicted\.step_time_s: claims 1; it is [\d.e-]+ on this platform and workload")
        self.assertEqual(len(shown.splitlines()), 1)
        self.assertIn("predicted.step_time_s: claims 1", self.fault_of("simulate", *self.gpt_inputs(), "--plan", file))

    def test_show_their_schedule(self):
        shown = self.run_isobar("plan", *self.gpt_inputs(), *EVEN, "--schedule", INTERLEAVED).stdout
        self.assertIn(f"schedule {INTERLEAVED}, M = 8", shown.splitlines()[0])
        self.assertEqual([line.split()[1] for line in shown.splitlines()[-4:]], ["slow", "fast", "slow", "fast"])

    def test_a_start_with_several_stages_on_a_device_moves_its_cuts_alone(self):
        inputs = self.gpt_inputs()
        start = pathlib.Path(self.make_plan(*inputs, "--schedule", INTERLEAVED)).rename(self.folder / "start.json")
        moved = pathlib.Path(self.make_plan(*inputs, "--start", start, allocator="local-search"))
        before, after = (json.loads(file.read_text()) for file in (start, moved))
        devices = [[stage["replicas"][0]["shards"][0]["device"] for stage in plan["stages"]] for plan in (before, after)]
        self.assertEqual(*devices)
        self.assertEqual(after["schedule"], before["schedule"])
        self.assertLessEqual(after["predicted"]["step_time_s"], before["predicted"]["step_time_s"])


class Options(CommandTest):
    def fault_of_plan(self, *options, allocator="even"):
        return self.fault_of("plan", *self.small_inputs(), "--allocator", allocator, *options)

    def test_that_the_schedule_does_not_take_are_refused(self):
        self.assertEqual(self.fault_of_plan("--schedule", "gpipe", "--chunks", 2),
                         "--chunks: schedule gpipe does not take it; it is for interleaved")
        self.assertEqual(self.fault_of_plan("--chunks", 2), "--chunks: schedule 1f1b does not take it; it is for interleaved")
        self.assertEqual(self.fault_of_plan("--schedule", "zero-bubble-v", "--warm-up", "auto"),
                         "--warm-up: schedule zero-bubble-v does not take it; it is for 1f1b, zero-bubble-h1, "
                         "zero-bubble-h2")
        self.assertEqual(self.fault_of_plan("--schedule", "zero-bubble-v", "--microbatch-group", 2),
                         "--microbatch-group: schedule zero-bubble-v does not take it; it is for interleaved")
        self.assertEqual(self.fault_of_plan("--schedule", "gpipe(chunks=2)"),
                         "--schedule: gpipe takes no chunks; leave it out")

    def test_that_are_given_twice_are_refused(self):
        self.assertEqual(self.fault_of_plan("--schedule", INTERLEAVED, "--chunks", 3),
                         f"--chunks: {INTERLEAVED} has its chunks already; give them once")
        self.assertEqual(self.fault_of_plan("--schedule", "interleaved(group=2)", "--microbatch-group", 3),
                         "--microbatch-group: interleaved(group=2) has its group already; give them once")

    def test_that_are_no_schedules_or_numbers_are_refused(self):
        self.assertEqual(self.fault_of_plan("--schedule", "interleave"),
                         '--schedule: "interleave" is not known; did you mean interleaved?')
        self.assertEqual(self.fault_of_plan("--schedule", "interleaved(2)"),
                         '--schedule: "2" in "interleaved(2)" is not KEY=NUMBERS; write it as in interleaved(chunks=2)')
        self.assertEqual(self.fault_of_plan("--schedule", "listed"),
                         "--schedule: listed has no orders; make a plan with isobar schedule import")
        self.assertEqual(self.fault_of_plan("--schedule", "greedy(warm_up=auto)"),
                         "--schedule: greedy takes no warm_up; leave it out")
        for text in ("x", "1,", "-1,0", "1/0"):
            self.assertEqual(self.fault_of_plan(f"--warm-up={text}"),
                             f'--warm-up: "{text}" is neither auto nor a number for each device, such as 3,2,1,0')

    def test_that_do_not_fit_the_placement_are_refused(self):
        self.assertEqual(self.fault_of_plan("--warm-up", "2,1,0"),
                         "schedule: 3 numbers of warm_up, and the placement has 2 devices; give one for each, or auto")
        self.assertIn("give no device more than the one before", self.fault_of_plan("--warm-up", "0,1"))
        self.assertEqual(self.fault_of_plan("--schedule", "interleaved", "--chunks", 1),
                         "schedule: interleaved(chunks=1): chunks is one number, at least 2")
        self.assertEqual(self.fault_of_plan("--schedule", "interleaved(chunks=0)"),
                         "--schedule: interleaved(chunks=0): chunks is one number, at least 2")
        self.assertEqual(self.fault_of_plan("--schedule", "interleaved(group=auto)"),
                         "--schedule: interleaved(group=auto): group is one number, at least that of the devices")
        self.assertEqual(self.fault_of_plan("--schedule", INTERLEAVED, "--microbatch-group", 9),
                         "schedule: group is 9, more than the 8 micro-batches of a pipeline; use 8 or less")
        self.assertEqual(self.fault_of_plan("--schedule", INTERLEAVED, "--microbatch-group", 7),
                         "schedule: groups of 7 leave 1 of 8 micro-batches, fewer than the 2 devices; use 6 or 8")

    def test_need_the_objective_step_and_an_allocator_that_proves_nothing(self):
        self.assertEqual(self.fault_of_plan("--schedule", "zero-bubble-h1", "--objective", "pipeline"),
                         "--schedule: zero-bubble-h1 does not go with objective pipeline, a formula for sequential, gpipe "
                         "and 1f1b; use objective step")
        fault = self.fault_of_plan("--schedule", "zero-bubble-h1", allocator="exact")
        self.assertTrue(fault.startswith("allocator: exact knows the schedules sequential, gpipe and 1f1b; use amp, chain-dp, "),
                        fault)

    def test_too_few_layers_for_the_stages_are_an_infeasible_plan(self):
        plan = json.loads(pathlib.Path(self.make_plan(*self.small_inputs(), "--schedule", INTERLEAVED, expect=4)).read_text())
        self.assertEqual(plan["outcome"], "infeasible")
        self.assertIn("2 devices with 2 stages each need 4 layers", plan["reason"])


class Comparisons(CommandTest):
    def test_have_a_row_for_each_schedule_and_a_column_for_it(self):
        inputs = "compare", *self.gpt_inputs(), "--allocators", "even,chain-dp", "--schedule", f"1f1b,{INTERLEAVED}"
        rows = self.json_of(*inputs)["rows"]
        self.assertEqual([(row["schedule"], row["allocator"]) for row in rows],
                         [("1f1b", "even"), ("1f1b", "chain-dp"), (INTERLEAVED, "even"), (INTERLEAVED, "chain-dp")])
        for row in rows:
            self.assertGreaterEqual(row["step_time_s"] * (1 + 1e-9), row["step_bound_s"])
        table = self.run_isobar(*inputs).stdout.splitlines()
        self.assertTrue(table[0].startswith("step, M = 8: no chain below "), table[0])
        self.assertEqual(table[2].split()[:3], ["allocator", "schedule", "stages"])
        self.assertEqual([line.split()[:2] for line in table[4:8]],
                         [["even", "1f1b"], ["chain-dp", "1f1b"], ["even", INTERLEAVED], ["chain-dp", INTERLEAVED]])

    def test_keep_the_files_of_each_schedule(self):
        kept, output = self.folder / "kept", self.folder / "rows.csv"
        self.run_isobar("compare", *self.gpt_inputs(), "--allocators", "even", "--schedule", f"1f1b,{INTERLEAVED}",
                        "--keep", kept, "-o", output)
        self.assertEqual(sorted(path.name for path in kept.iterdir()),
                         ["step.1f1b.even.plan.json", "step.1f1b.even.result.json",
                          "step.interleaved-chunks-2-.even.plan.json", "step.interleaved-chunks-2-.even.result.json"])
        with output.open() as file:
            self.assertEqual([row["schedule"] for row in csv.DictReader(file)], ["1f1b", INTERLEAVED])

    def test_give_numbers_to_the_schedules_that_take_them(self):
        rows = self.json_of("compare", *self.gpt_inputs(), "--allocators", "even", "--schedule", "gpipe,1f1b", "--warm-up",
                            "auto")["rows"]
        self.assertEqual([row["schedule"] for row in rows], ["gpipe", "1f1b(warm_up=auto)"])

    def test_an_allocator_that_does_not_know_a_schedule_costs_its_own_row(self):
        rows = self.json_of("compare", *self.gpt_inputs(), "--allocators", "exact", "--schedule", f"1f1b,{INTERLEAVED}")["rows"]
        self.assertEqual(rows[1]["outcome"], "failed")
        self.assertIn("exact knows the schedules sequential, gpipe and 1f1b", rows[1]["reason"])

    def test_are_explained(self):
        options = ("--allocators", "chain-dp", "--schedule", f"1f1b,zero-bubble-h1,{INTERLEAVED}", "--explain")
        rows = self.json_of("compare", *self.gpt_inputs(), *options)["rows"]
        for row, has_recurrence in zip(rows, (True, False, False), strict=True):
            explanation = row["explanation"]
            self.assertEqual(explanation["bottleneck"] is not None, has_recurrence)
            self.assertAlmostEqual(sum(part["step_fraction"] for part in explanation["critical_path"]["parts"]), 1)
            self.assertAlmostEqual(sum(part["time_s"] for part in explanation["critical_path"]["parts"]) /
                                   row["objective_s"], 1)


class Sweeps(CommandTest):
    def sweep(self, schedule):
        platform, workload = self.small_inputs()
        file = self.write("sweep.yaml", f"platform: {platform}\nworkload: {workload}\nallocator: even\nschedule: {schedule}\n")
        return "sweep", file, "--database", self.folder / "sweep.db"

    def test_vary_the_schedule(self):
        lines = self.folder / "rows.jsonl"
        self.run_isobar(*self.sweep("[1f1b, zero-bubble-h1, 1f1b(warm_up=auto)]"), "--jsonl", lines)
        rows = [json.loads(line) for line in lines.read_text().splitlines()]
        self.assertEqual([row["schedule"] for row in rows], ["1f1b", "zero-bubble-h1", "1f1b(warm_up=auto)"])
        self.assertEqual({row["outcome"] for row in rows} - {"feasible", "optimal"}, set())

    def test_name_the_line_of_a_schedule_that_is_not_known(self):
        fault = self.fault_of(*self.sweep("zerro-bubble-h1")).replace(f"{self.folder}/", "")
        self.assertEqual(fault, 'sweep.yaml:4: schedule: "zerro-bubble-h1" is not known; did you mean zero-bubble-h1?')


class Baselines(CommandTest):
    def check(self, **grid):
        platform, workload = self.small_inputs()
        grid = {"platforms": [platform], "workloads": [workload], "allocators": ["even"], "objectives": ["step"], **grid}
        self.meta = self.write("rows.meta.json", json.dumps({"schema": "isobar-baseline/1", "grid": grid}))
        return "check", self.folder / "rows.csv"

    def test_keep_rows_of_other_schedules(self):
        command = self.check(schedule="1f1b(warm_up=auto)")
        self.run_isobar(*command, "--approve")
        with (self.folder / "rows.csv").open() as file:
            row, = csv.DictReader(file)
        self.assertEqual(row["schedule"], "1f1b(warm_up=auto)")
        self.assertIn("unchanged", self.run_isobar(*command).stdout)

    def test_refuse_schedules_that_are_not_known_or_need_another_objective(self):
        self.assertEqual(self.fault_of(*self.check(schedule="gpip")),
                         f'{self.folder}/rows.meta.json: grid.schedule: "gpip" is not known; did you mean gpipe?')
        self.assertEqual(self.fault_of(*self.check(schedule="zero-bubble-v", objectives=["pipeline"])),
                         f"{self.folder}/rows.meta.json: grid.schedule: zero-bubble-v does not go with objective pipeline, "
                         "a formula for sequential, gpipe and 1f1b")
