import json
import pathlib
import re

from tests.cli.support import BERT24, ROOT, SKY16, WORKLOAD, CommandTest

GOAL = ["--objective", "sequential", "--communication", "none"]


class Verify(CommandTest):
    def certified(self, *options, kind="path", multipliers=(0, 0), bound=4.5, limit=None, platform_and_workload=None):
        """A plan of the small inputs, 4.5 s on only the fast device, with a certificate made here."""
        self.inputs = platform_and_workload or self.small_inputs()
        plan = self.make_plan(*self.inputs, *(options or GOAL), allocator="chain-dp")
        rung = {"limit_s": limit, "multipliers": list(multipliers)}
        self.edit(plan, bound=bound, outcome="feasible", certificate={"kind": kind, "levels": 1, "rungs": [rung]})
        return plan

    def edit(self, plan, bound=None, **changes):
        """Changes members of the file; a changed bound changes the gap with it."""
        content = json.loads(pathlib.Path(plan).read_text())
        content.update(changes)
        if bound is not None:
            content["objective_bound_s"] = bound
            content["gap_fraction"] = (content["objective_s"] - bound) / content["objective_s"]
        pathlib.Path(plan).write_text(json.dumps(content, indent=2))

    def replace(self, plan, before, after):
        path = pathlib.Path(plan)
        text = path.read_text()
        self.assertIn(before, text)
        path.write_text(text.replace(before, after, 1))

    def assert_false(self, plan, *faults, inputs=None):
        """Exit code 5, with exactly these faults."""
        result = self.run_isobar("verify", *(inputs or self.inputs), plan, expect=5)
        self.assertEqual(result.stdout.splitlines(), [f"{plan}: {fault}" for fault in faults])
        self.assertEqual(result.stderr, "")

    def assert_unreadable(self, plan, fault):
        """Exit code 2, with this fault after the file's name and line."""
        self.assertRegex(self.fault_of("verify", *self.inputs, plan), re.escape(plan) + r":\d+: " + re.escape(fault))

    # Valid plans

    def test_a_plan_that_holds(self):
        plan = self.certified()
        result = self.run_isobar("verify", *self.inputs, plan)
        self.assertEqual(result.stdout, f"{plan}: every claim holds\n"
                                        "objective 4.5 s (sequential, communication none), 3 layers on 1 device\n"
                                        "no chain below 4.5 s: certificate path proves 4.5 s, gap 0.00 %\n")

    def test_the_same_as_json(self):
        plan = self.certified()
        answer = self.json_of("verify", *self.inputs, plan)
        self.assertEqual(answer["schema"], "isobar-verification/1")
        self.assertTrue(answer["holds"])
        self.assertTrue(answer["proven"])
        self.assertAlmostEqual(answer["proven_bound_s"], 4.5, places=9)
        self.assertEqual(answer["certificate"], "path")
        self.assertEqual(answer["faults"], [])

    def test_plans_of_every_allocator_as_they_are_written(self):
        for allocator in ("chain-dp", "even", "sky-dynamic", "sky-dynamic-fixed"):
            for objective in ("sequential", "bottleneck", "pipeline"):
                plan = self.make_plan(SKY16, BERT24, "--objective", objective, allocator=allocator)
                self.assertIn("every claim holds", self.run_isobar("verify", SKY16, BERT24, plan).stdout)

    def infeasible(self, **changes):
        """A plan that claims that nothing fits, for the small inputs, where a placement exists."""
        plan = self.certified()
        self.edit(plan, **{"outcome": "infeasible", "reason": "the moon", "stages": [], "predicted": None,
                           "objective_s": None, "objective_bound_s": None, "gap_fraction": None, "step_bound_s": None,
                           "certificate": {"kind": "none"}, **changes})
        return plan

    def test_an_infeasible_plan_is_not_false_and_not_proven(self):
        plan = self.infeasible()
        self.assertEqual(self.run_isobar("verify", *self.inputs, plan).stdout,
                         f"{plan}: infeasible: the moon\n"
                         "nothing in it is false, but it does not prove that there is no placement\n")
        answer = self.json_of("verify", *self.inputs, plan)
        self.assertEqual((answer["holds"], answer["proven"], answer["objective_bound_s"]), (True, False, None))

    def test_claims_of_an_infeasible_plan(self):
        self.assert_false(self.infeasible(objective_bound_s=1e9, step_bound_s=1),
                          *(f"{key}: a claim of a plan without stages; leave it out or write null"
                            for key in ("step_bound_s", "objective_bound_s")))

    def test_the_bound_of_a_search_that_timed_out(self):
        rungs = {"kind": "path", "levels": 1, "rungs": [{"limit_s": None, "multipliers": [0, 0]}]}
        plan = self.infeasible(outcome="timed_out", objective_bound_s=4.5, certificate=rungs)
        self.assertEqual(self.run_isobar("verify", *self.inputs, plan).stdout,
                         f"{plan}: timed_out: the moon\nnothing in it is false, and it has no placement\n"
                         "no chain below 4.5 s: certificate path proves 4.5 s\n")
        answer = self.json_of("verify", *self.inputs, plan)
        self.assertEqual((answer["holds"], answer["proven"], answer["objective_bound_s"]), (True, False, 4.5))
        self.edit(plan, objective_bound_s=1e9)
        self.assert_false(plan, "objective_bound_s: claims 1e+09; it is 4.5 by the certificate path")

    def test_texts_of_a_plan_are_shown_on_one_line(self):
        escape = "\x1b[2J\nevery claim holds"
        shown = "\\x1b[2J\\x0aevery claim holds"
        plan = self.infeasible(reason=escape)
        for command in (["verify", *self.inputs, plan], ["simulate", *self.inputs, "--plan", plan]):
            output = self.run_isobar(*command, expect=4 if command[0] == "simulate" else 0).stdout
            self.assertIn(f": {shown}\n", output)
        inputs = json.loads(pathlib.Path(plan).read_text())["inputs"]
        for key in ("name", "hash"):
            self.edit(plan, inputs={**inputs, "platform": {**inputs["platform"], "hash": "0", key: escape}})
            output = self.run_isobar("verify", *self.inputs, plan, expect=5).stdout
            self.assertIn(shown, output)
            self.assertNotIn("\x1b", output)
        self.run_isobar("plan", *self.inputs, "--allocator", "even", "-o", plan)
        self.replace(plan, '"name": "slow"', '"name": ' + json.dumps(escape))
        self.assertIn(f"stages[0]: device {shown} is not on platform small",
                      self.run_isobar("verify", *self.inputs, plan, expect=5).stdout)

    def test_texts_that_are_not_plans(self):
        plan = self.certified()
        self.edit(plan, allocator=True)
        self.assert_unreadable(plan, 'allocator: true is not a string; write "true"')

    def test_a_schedule_that_does_not_fit_the_stages(self):
        self.inputs = self.small_inputs()
        plan = self.make_plan(*self.inputs, "--schedule", "1f1b(warm_up=1/0)")
        for schedule, fault in (({"name": "1f1b", "warm_up": [1]}, "schedule: warm_up has 1 number for 2 devices; give "
                                                                   "one for each"),
                                ({"name": "1f1b", "chunks": 2}, "schedule: 1f1b takes no chunks; it takes warm_up, overlap_experts"),
                                ({"name": "1f2b"}, 'schedule: "1f2b" is not known; did you mean 1f1b?')):
            self.edit(plan, schedule=schedule)
            self.assert_unreadable(plan, fault)
            self.assertEqual(self.fault_of("simulate", *self.inputs, "--plan", plan),
                             self.fault_of("verify", *self.inputs, plan))

    def test_text_after_the_end(self):
        plan = self.certified()
        with open(plan, "a") as file:
            file.write("\0 and more")
        self.assert_unreadable(plan, "not JSON: the control character \\x00; write text in UTF-8")

    def test_a_search_that_finds_nothing_below_the_bound(self):
        plan = self.certified(kind="search")
        self.assertIn("certificate search proves 4.5 s", self.run_isobar("verify", *self.inputs, plan).stdout)

    def test_rungs_of_a_bottleneck(self):
        # Within 2.9 s fast holds one layer and slow none, so three stages on fast: 3 u > u.
        plan = self.certified("--objective", "bottleneck", "--communication", "none", multipliers=(0, 1), bound=2.9,
                              limit=2.9)
        self.assertIn("certificate path proves 2.9 s", self.run_isobar("verify", *self.inputs, plan).stdout)

    # Forged bounds

    def test_a_bound_raised(self):
        plan = self.certified("--objective", "bottleneck", "--communication", "none", multipliers=(0, 1), bound=2.95,
                              limit=2.9)
        self.assert_false(plan, "objective_bound_s: claims 2.95; it is 2.9 by the certificate path")

    def test_a_search_whose_bound_a_plan_is_below(self):
        # The even plan takes 7.5 s; only fast takes 4.5 s.
        self.inputs = self.small_inputs()
        plan = self.make_plan(*self.inputs, *GOAL)
        self.edit(plan, bound=7.5, outcome="feasible", certificate={
            "kind": "search", "levels": 1, "rungs": [{"limit_s": None, "multipliers": [0, 0]}]})
        self.assert_false(plan, "objective_bound_s: claims 7.5; it is at most 4.5, which a placement achieves")

    def test_a_rung_limit_raised(self):
        plan = self.certified("--objective", "bottleneck", "--communication", "none", multipliers=(0, 1), bound=3,
                              limit=3)
        self.assert_false(plan, "objective_bound_s: claims 3; it is 0 by the certificate path")

    def test_a_rung_limit_lowered(self):
        plan = self.certified("--objective", "bottleneck", "--communication", "none", multipliers=(0, 1), bound=2.9,
                              limit=2.8)
        self.assert_false(plan, "objective_bound_s: claims 2.9; it is 2.8 by the certificate path")

    def test_a_multiplier_changed(self):
        plan = self.certified("--objective", "bottleneck", "--communication", "none", multipliers=(3, 1), bound=2.9,
                              limit=2.9)
        self.assert_false(plan, "objective_bound_s: claims 2.9; it is 0 by the certificate path")

    def test_an_optimum_with_a_gap(self):
        plan = self.certified(bound=4)
        self.edit(plan, outcome="optimal")
        self.assert_false(plan, "outcome: optimal, but the bound 4 leaves a gap to the objective 4.5; write feasible")

    # Forged certificates

    def test_a_kind_renamed(self):
        # Fractional layers: 2.5 of them in the fast device's memory.
        plan = self.certified("--objective", "sequential", "--communication", "none", multipliers=(0, 1.5), bound=6,
                              platform_and_workload=self.small_inputs(memory="2.5 GB"))
        self.assertIn("every claim holds", self.run_isobar("verify", *self.inputs, plan).stdout)
        self.edit(plan, certificate={"kind": "fractional"})
        self.assert_false(plan, "objective_bound_s: claims 6; it is 5.25003 by the certificate fractional")

    def test_a_kind_that_proves_nothing(self):
        plan = self.certified()
        self.edit(plan, certificate={"kind": "none"})
        self.assert_false(plan, "objective_bound_s: claims 4.5; it is 0 by the certificate none")

    def test_groups_that_make_a_transfer_free(self):
        # In groups of one, neither device can follow itself; together they can.
        inputs = self.small_inputs(memory="2.5 GB")
        plan = self.certified("--objective", "sequential", "--schedule", "sequential", bound=6.1,
                              platform_and_workload=inputs)
        certificate = json.loads(pathlib.Path(plan).read_text())["certificate"]
        self.edit(plan, certificate={**certificate, "groups": [0, 1]})
        self.assertIn("every claim holds", self.run_isobar("verify", *inputs, plan).stdout)
        self.edit(plan, certificate={**certificate, "groups": [0, 0]})
        self.assert_false(plan, "objective_bound_s: claims 6.1; it is 4.72 by the certificate path")

    def test_a_kind_that_does_not_apply(self):
        plan = self.certified()
        self.edit(plan, certificate={"kind": "phase-flow", "limit_s": 4.5})
        self.assert_false(plan, "certificate.kind: claims phase-flow; it is only for objective bottleneck without "
                                "communication")

    def test_a_missing_multiplier(self):
        plan = self.certified(multipliers=(0,))
        self.assert_false(plan, "certificate.rungs[0].multipliers: claims 1; it is 2, one for each device")

    def test_rungs_in_no_order(self):
        plan = self.certified()
        rungs = [{"limit_s": limit, "multipliers": [0, 0]} for limit in (2, 1)]
        self.edit(plan, certificate={"kind": "path", "levels": 1, "rungs": rungs})
        self.assert_false(plan, "certificate.rungs[1].limit_s: claims 1; it is above 2, since rungs ascend")

    def test_no_rung(self):
        plan = self.certified()
        self.edit(plan, certificate={"kind": "search", "levels": 1, "rungs": []})
        self.assert_false(plan, "certificate.rungs: claims 0; it is at least 1")

    def test_a_group_out_of_range(self):
        plan = self.certified()
        rungs = [{"limit_s": None, "multipliers": [0, 0]}]
        self.edit(plan, certificate={"kind": "path", "groups": [0, 7], "levels": 1, "rungs": rungs})
        self.assert_false(plan, "certificate.groups[1]: claims 7; it is below 2, the number of devices")

    def test_levels_changed(self):
        # Under 1f1b a stage before another holds two micro-batches: slow one layer, fast none. So only slow is used,
        # 9 s. Where all stages count as the last one, fast holds one layer after the other.
        platform, workload = self.small_inputs(memory="3.3 GB")
        text = pathlib.Path(platform).read_text()
        pathlib.Path(platform).write_text("1.5 GB".join(text.rsplit("3.3 GB", 1)))
        plan = self.certified("--objective", "sequential", "--communication", "none", "--schedule", "1f1b",
                              "--microbatches", 8, multipliers=(1.5, 0), bound=9,
                              platform_and_workload=(platform, workload))
        certificate = json.loads(pathlib.Path(plan).read_text())["certificate"]
        self.edit(plan, certificate={**certificate, "levels": 2})
        self.assertIn("every claim holds", self.run_isobar("verify", *self.inputs, plan).stdout)
        self.edit(plan, certificate={**certificate, "levels": 1})
        self.assert_false(plan, "objective_bound_s: claims 9; it is 3 by the certificate path")

    # Forged placements and claims

    def test_another_objective(self):
        plan = self.certified(bound=4.5)
        self.edit(plan, objective_s=4.8)
        self.edit(plan, bound=4.5)
        self.assert_false(plan, "objective_s: claims 4.8; it is 4.5 on this platform and workload")

    def pair(self):
        """A plan with two stages: slow holds layers 0 and 1, fast layer 2."""
        self.inputs = self.small_inputs()
        return self.make_plan(*self.inputs, *GOAL)

    def test_stages_swapped(self):
        plan = self.pair()
        content = json.loads(pathlib.Path(plan).read_text())
        first, second = content["stages"]
        first["devices"], second["devices"] = second["devices"], first["devices"]
        self.edit(plan, stages=[first, second])
        faults = self.run_isobar("verify", *self.inputs, plan, expect=5).stdout.splitlines()
        self.assertEqual(faults[0], f"{plan}: objective_s: claims 7.5; it is 6 on this platform and workload")

    def test_a_layer_lost(self):
        plan = self.pair()
        content = json.loads(pathlib.Path(plan).read_text())
        content["stages"][1]["first_layer"] = 3
        content["stages"][1]["last_layer"] = 3
        self.edit(plan, stages=content["stages"])
        self.assert_false(plan, "stages[1]: layer 2 is not placed; the stages must hold every layer in order")

    def test_a_device_twice(self):
        plan = self.pair()
        self.replace(plan, '"name": "fast"', '"name": "slow"')
        self.assert_unreadable(plan, "stages[1].devices: device slow has stage 0 already; a device of several stages needs "
                                     "isobar-plan/2")

    def test_an_unknown_device(self):
        plan = self.pair()
        self.replace(plan, '"name": "fast"', '"name": "faster"')
        self.assert_false(plan, "stages[1]: device faster is not on platform small")

    def test_a_step_bound_raised(self):
        plan = self.certified()
        self.edit(plan, step_bound_s=5)
        self.assert_false(plan, "step_bound_s: claims 5; it is 4.5 on this platform and workload")

    def test_a_peak_memory_lowered(self):
        plan = self.pair()
        content = json.loads(pathlib.Path(plan).read_text())
        actual = content["predicted"]["peak_memory_bytes"]["slow"]
        content["predicted"]["peak_memory_bytes"]["slow"] = 5
        self.edit(plan, predicted=content["predicted"])
        self.assert_false(plan, f"predicted.peak_memory_bytes.slow: claims 5; it is {actual:.9g}")

    def test_other_microbatches(self):
        self.inputs = self.small_inputs()
        plan = self.make_plan(*self.inputs, "--objective", "pipeline", "--communication", "none", allocator="chain-dp")
        content = json.loads(pathlib.Path(plan).read_text())
        self.edit(plan, microbatches=4)
        faults = self.run_isobar("verify", *self.inputs, plan, expect=5).stdout.splitlines()
        self.assertRegex(faults[0], re.escape(f"{plan}: objective_s: claims {content['objective_s']:.9g}; it is "))

    def test_another_communication(self):
        plan = self.pair()
        self.edit(plan, communication="serial")
        faults = self.run_isobar("verify", *self.inputs, plan, expect=5).stdout.splitlines()
        self.assertEqual(faults[0], f"{plan}: objective_s: claims 7.5; it is 7.72 on this platform and workload")

    def test_another_recomputation(self):
        self.inputs = self.small_inputs()
        plan = self.make_plan(*self.inputs, *GOAL, "--recompute", "1-2")
        self.edit(plan, recompute=[2])
        faults = self.run_isobar("verify", *self.inputs, plan, expect=5).stdout.splitlines()
        self.assertEqual(faults[0], f"{plan}: objective_s: claims 9; it is 8 on this platform and workload")

    def test_plans_of_older_versions_hold_by_their_own_rules(self):
        # In them latencies occupy lanes too. By their formula the step took less than any schedule can.
        folder = ROOT / "tests/instances/plans"
        self.inputs = folder / "old.xml", folder / "old.yaml"
        for name in ("old_by_formula", "old_polished"):
            plan = folder / f"{name}.json"
            content = json.loads(plan.read_text())
            self.assertNotIn("pipeline_s", content["predicted"])
            self.assertIn("every claim holds by the rules of older versions",
                          self.run_isobar("verify", *self.inputs, plan).stdout)
            result = self.json_of("simulate", *self.inputs, "--plan", plan)
            self.assertGreaterEqual(result["step_time_s"], content["step_bound_s"] * (1 - 1e-9))
            for key in ("objective_s", "step_bound_s"):
                changed = self.write("changed.json", json.dumps(content | {key: content[key] * 1.01}))
                self.run_isobar("verify", *self.inputs, changed, expect=5)
            content["predicted"]["step_time_s"] *= 1.01
            changed = self.write("changed.json", json.dumps(content))
            self.assertIn("predicted.step_time_s: claims",
                          self.run_isobar("verify", *self.inputs, changed, expect=5).stdout)

    def test_another_workload(self):
        plan = self.certified()
        other = self.write("other.yaml", WORKLOAD.replace("1000", "1001"))
        result = self.run_isobar("verify", self.inputs[0], other, plan, expect=5)
        self.assertRegex(result.stdout.splitlines()[0],
                         re.escape(f"{plan}: inputs.workload: claims {self.inputs[1]} (hash ") + r"\w{16}\); it is " +
                         re.escape(other) + r" \(hash \w{16}\)$")

    def test_another_platform(self):
        plan = self.certified()
        other = self.write("other.xml", pathlib.Path(self.inputs[0]).read_text().replace("10ms", "11ms"))
        result = self.run_isobar("verify", other, self.inputs[1], plan, expect=5)
        self.assertRegex(result.stdout, re.escape(f"{plan}: inputs.platform: claims {self.inputs[0]} (hash ") +
                         r"\w{16}\); it is " + re.escape(other) + r" \(hash \w{16}\)\n$")

    def test_faults_as_json(self):
        plan = self.certified()
        self.edit(plan, certificate={"kind": "none"})
        answer = self.json_of("verify", *self.inputs, plan, expect=5)
        self.assertFalse(answer["holds"])
        self.assertEqual(answer["faults"], ["objective_bound_s: claims 4.5; it is 0 by the certificate none"])
        self.assertIsNone(answer["proven_bound_s"])

    # Stamps

    def stamped(self):
        plan = self.certified()
        self.run_isobar("simulate", *self.inputs, "--plan", plan, "--stamp")
        return plan, json.loads(pathlib.Path(plan).read_text())["stamp"]

    def test_a_stamped_plan_that_holds(self):
        plan, _ = self.stamped()
        self.assertIn("every claim holds", self.run_isobar("verify", *self.inputs, plan).stdout)

    def test_a_plan_edited_after_it_was_stamped(self):
        plan, stamp = self.stamped()
        self.edit(plan, allocator="by hand")
        result = self.run_isobar("verify", *self.inputs, plan, expect=5)
        self.assertRegex(result.stdout, re.escape(f"{plan}: stamp.plan: claims hash {stamp['plan']}; it is ") +
                         r"\w{16}\n$")

    def test_a_stamp_of_other_files(self):
        plan, stamp = self.stamped()
        self.edit(plan, stamp=stamp | {"platform": "0123", "workload": "4567"})
        self.assert_false(plan, f"stamp.platform: claims hash 0123; it is {stamp['platform']}",
                          f"stamp.workload: claims hash 4567; it is {stamp['workload']}")

    # Unreadable files

    def test_a_gap_that_does_not_follow(self):
        plan = self.certified(bound=4)
        self.edit(plan, gap_fraction=0)
        self.assert_unreadable(plan, "gap_fraction: does not follow from objective_s and objective_bound_s; it is "
                                     "(objective_s - objective_bound_s) / objective_s")

    def test_a_bound_above_the_objective(self):
        plan = self.certified(bound=4.6)
        self.assert_unreadable(plan, 'gap_fraction: "-0.02')

    def test_a_multiplier_that_is_not_a_number(self):
        plan = self.certified(multipliers=(0.125, 0))
        self.replace(plan, "0.125", "NaN")
        self.assertRegex(self.fault_of("verify", *self.inputs, plan), re.escape(plan) + r":\d+: ")

    def test_a_multiplier_that_is_negative(self):
        plan = self.certified(multipliers=(-1, 0))
        self.assert_unreadable(plan, 'certificate.rungs[0].multipliers[0]: "-1" is out of range; write a number, 0 or '
                                     "more")

    def test_a_multiplier_that_is_infinite(self):
        plan = self.certified(multipliers=(0.125, 0))
        self.replace(plan, "0.125", "1e999")
        self.assert_unreadable(plan, "not JSON: number overflow parsing '1e999'")

    def test_an_unknown_kind(self):
        plan = self.certified()
        self.edit(plan, certificate={"kind": "CBC"})
        self.assert_unreadable(plan, 'certificate.kind: "CBC" is not one of none, fractional, path, search, phase-flow')

    def test_a_key_of_another_kind(self):
        plan = self.certified()
        self.edit(plan, certificate={"kind": "fractional", "rungs": []})
        self.assert_unreadable(plan, "certificate.rungs: unknown key; ")

    def test_a_certificate_that_is_a_word(self):
        plan = self.certified()
        self.edit(plan, certificate="path")
        self.assert_unreadable(plan, "certificate: is not an object; see docs/formats/plan.md")

    def test_a_rung_without_limit(self):
        plan = self.certified()
        self.edit(plan, certificate={"kind": "path", "levels": 1, "rungs": [{"multipliers": [0, 0]}]})
        self.assert_unreadable(plan, "certificate.rungs[0].limit_s: missing; ")

    def test_no_plan(self):
        self.inputs = self.small_inputs()
        self.assertEqual(self.fault_of("verify", *self.inputs, "no/plan.json"), "no/plan.json: no such file")
