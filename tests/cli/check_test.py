import csv
import json
import os
import pathlib
import re
import shutil
import subprocess
import unittest
import xml.etree.ElementTree

from tests.cli.support import HANG_S, ISOBAR, ROOT, CommandTest

# Gives the whole model to the device that MINE names.
ALLOCATOR = """#!/usr/bin/env python3
import json, sys
problem = json.load(sys.stdin)
last = len(problem["workload"]["layers"]) - 1
json.dump({"stages": [{"device": "MINE", "first_layer": 0, "last_layer": last}]}, sys.stdout)
"""


class ApprovedBaseline(unittest.TestCase):
    def test_has_no_step_below_a_bound(self):
        with (ROOT / "results/baselines/quality.csv").open() as file:
            rows = [row for row in csv.DictReader(file) if row["step_time_s"]]
        self.assertGreater(sum(row["objective"] == "step" for row in rows), 100)
        for row in rows:
            with self.subTest(f"{row['platform']} {row['workload']} {row['allocator']} {row['objective']}"):
                simulated, step_bound = float(row["step_time_s"]), float(row["step_bound_s"])
                self.assertGreaterEqual(simulated, step_bound * (1 - 1e-6))
                if row["objective"] != "step":
                    continue
                predicted, bound = float(row["objective_s"]), float(row["objective_bound_s"])
                self.assertGreaterEqual(predicted, max(bound, step_bound) * (1 - 1e-9))
                self.assertGreaterEqual(simulated, bound * (1 - 1e-6))


class Check(CommandTest):
    """A baseline of two allocators and two objectives on the small inputs."""

    def setUp(self):
        super().setUp()
        self.platform, self.workload = self.small_inputs()
        self.baseline = self.folder / "q.csv"
        self.meta = self.folder / "q.meta.json"
        self.write_meta(["even", "chain-dp"])

    def write_meta(self, allocators, **more):
        grid = {"platforms": [self.platform], "workloads": [self.workload], "allocators": allocators,
                "objectives": ["sequential", "pipeline"]}
        self.meta.write_text(json.dumps({"schema": "isobar-baseline/1", "grid": grid, **more}))

    def change_meta(self, change):
        meta = json.loads(self.meta.read_text())
        change(meta)
        self.meta.write_text(json.dumps(meta))

    def test_begins_a_baseline(self):
        csv_file = self.folder / "gate" / "new.csv"
        init = "check", csv_file, "--init"
        meta = csv_file.with_suffix(".meta.json")
        self.assertEqual(self.fault_of(*init), "--platforms: missing; name the platforms of the rows")
        grid = "--platforms", f"{self.folder}/*.xml", "--workloads", self.workload
        self.assertEqual(self.fault_of(*init, *grid, "--allocators", "evn"),
                         'allocator: "evn" is not known; did you mean even?')
        self.assertIn("nothing.xml", self.fault_of(*init, *grid, "--platforms", f"{self.folder}/nothing.xml"))
        self.assertFalse(meta.exists())
        self.assertEqual(self.run_isobar(*init, *grid, "--objectives", "step,pipeline").stdout,
                         f"{meta}: 4 rows; make and approve them with isobar check {csv_file} --approve\n")
        self.assertEqual(self.fault_of(*init, *grid), f"{meta}: exists already; edit it")
        self.run_isobar("check", csv_file, "--approve")
        self.run_isobar("check", csv_file)
        self.assertIn("--init", self.fault_of("check", csv_file, *grid))

    def approve(self):
        return self.run_isobar("check", self.baseline, "--approve")

    def check(self, *options, expect=0):
        return self.run_isobar("check", self.baseline, *options, expect=expect)

    def rows(self):
        with self.baseline.open() as file:
            return list(csv.DictReader(file))

    def change_row(self, allocator, objective, column, change):
        rows = self.rows()
        for row in rows:
            if (row["allocator"], row["objective"]) == (allocator, objective):
                row[column] = change(row[column])
        with self.baseline.open("w") as file:
            writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)

    def label(self, rest):
        return f"{self.platform} × {self.workload}, {rest}"

    def allocator(self, device):
        path = pathlib.Path(self.write("allocator.py", ALLOCATOR.replace("MINE", device)))
        path.chmod(0o755)
        return f"exec:{path}"

    def test_approved_rows_pass_and_the_files_stay(self):
        self.approve()
        files = self.baseline.read_bytes(), self.meta.read_bytes()
        result = self.check()
        self.assertEqual(result.stdout, f"4 rows, unchanged from {self.baseline}\n"
                                        "geometric mean of step times, new / old: 1.000000 (4 rows)\n")
        self.assertEqual(files, (self.baseline.read_bytes(), self.meta.read_bytes()))

    def test_approving_twice_writes_the_same_bytes(self):
        self.approve()
        files = self.baseline.read_bytes(), self.meta.read_bytes()
        self.approve()
        self.assertEqual(files, (self.baseline.read_bytes(), self.meta.read_bytes()))

    def test_writes_the_rows_that_compare_writes(self):
        self.approve()
        output = self.folder / "results.csv"
        self.run_isobar("compare", self.platform, self.workload, "--allocators", "even,chain-dp", "--objective",
                        "sequential,pipeline", "-o", output)
        # compare has more columns, at the end.
        rows = [line.rsplit(",", 7)[0] for line in output.read_text().splitlines()]
        self.assertEqual(rows, self.baseline.read_text().splitlines())

    def test_finds_a_plan_that_is_a_hundredth_of_a_percent_worse(self):
        self.approve()
        # The baseline's plan was that much faster.
        self.change_row("even", "sequential", "step_time_s", lambda text: repr(float(text) / 1.0001))
        result = self.check(expect=5)
        self.assertRegex(result.stdout, r"^worse   .* (\d+\.\d+) s -> (\d+\.\d+) s \(\+0\.01 %\)\n4 rows, changed from "
                                        r".*: 1 worse\ngeometric mean of step times, new / old: 1\.000025 \(4 rows\)\n$")
        self.assertIn(self.label("even, sequential (serial, sequential, M = 1, seed 1): step time"), result.stdout)

    def test_finds_a_better_plan_and_asks_for_approval(self):
        self.approve()
        self.change_row("chain-dp", "pipeline", "step_time_s", lambda text: repr(float(text) * 2))
        before = self.baseline.read_bytes()
        result = self.check(expect=5)
        self.assertIn("better  ", result.stdout)
        self.assertIn("(-50 %)", result.stdout)
        self.assertEqual(result.stderr, f"isobar: if this is intended: isobar check {self.baseline} --approve\n")
        self.assertEqual(self.baseline.read_bytes(), before)
        self.assertIn("better  ", self.approve().stdout)
        self.check()

    def test_finds_a_row_that_the_baseline_lacks_and_one_that_is_no_longer_planned(self):
        self.approve()
        lines = self.baseline.read_text().splitlines(keepends=True)
        self.baseline.write_text("".join(lines[:1] + lines[2:]))
        self.assertRegex(self.check(expect=5).stdout,
                         r"^new     .*chain-dp, pipeline .*; nothing to compare with\n")
        self.baseline.write_text("".join(lines))
        self.change_meta(lambda meta: meta["grid"].update(objectives=["sequential"]))
        result = self.check(expect=5)
        self.assertRegex(result.stdout, r"(?m)^missing .*even, pipeline .*: no longer planned$")
        self.assertIn("2 rows, changed from", result.stdout)

    def test_refuses_another_simgrid_and_another_network(self):
        self.approve()
        version = json.loads(self.meta.read_text())["approved"]["simgrid_version"]
        self.change_meta(lambda meta: meta["approved"].update(simgrid_version="2.71"))
        refusal = ("so the rows cannot be compared; use the versions and settings that made them, or make them again with "
                   "--approve")
        self.assertEqual(self.fault_of("check", self.baseline),
                         f"{self.meta}: approved.simgrid_version: the rows were made with 2.71; this is {version}, "
                         + refusal)
        self.approve()
        self.change_meta(lambda meta: meta["approved"]["network"].update({"network/model": "LV08"}))
        self.assertEqual(self.fault_of("check", self.baseline),
                         f"{self.meta}: approved.network.network/model: the rows were made with LV08; this is CM02, "
                         + refusal)

    def test_a_deliberately_bad_allocator_fails_the_check(self):
        self.write_meta(["even", self.allocator("fast")])
        self.approve()
        self.check()
        self.allocator("slow")
        result = self.check(expect=5)
        self.assertEqual(result.stdout.count("worse   "), 2, result.stdout)
        self.assertIn("(+100 %)", result.stdout)

    def test_an_allocator_that_fails_is_a_change_and_cannot_be_approved(self):
        self.write_meta(["even", self.allocator("fast")])
        self.approve()
        before = self.baseline.read_bytes()
        self.allocator("nowhere")
        result = self.check(expect=5)
        self.assertEqual(result.stdout.count("failed  "), 2, result.stdout)
        self.assertIn("nowhere", result.stdout)
        result = self.run_isobar("check", self.baseline, "--approve", expect=5)
        self.assertIn("2 rows failed, and failed rows cannot be approved; nothing was written", result.stderr)
        self.assertEqual(self.baseline.read_bytes(), before)

    def test_names_the_inputs_that_changed_since_the_approval(self):
        self.approve()
        path = pathlib.Path(self.platform)
        path.write_text(path.read_text().replace("2Tf", "4Tf"))
        self.assertIn(f"isobar: {self.platform}: has changed since the rows were approved\n",
                      self.check(expect=5).stderr)

    def test_limits_the_time_of_planning_relative_to_even(self):
        # Half a second of work; the time of even counts as at least a twentieth.
        slow = ALLOCATOR.replace("import json, sys", "import json, sys, time\nwhile time.process_time() < 0.5: pass")
        path = pathlib.Path(self.write("allocator.py", slow.replace("MINE", "fast")))
        path.chmod(0o755)
        self.write_meta(["even", f"exec:{path}"])
        self.approve()
        limit = json.loads(self.meta.read_text())["plan_time_limits"][f"exec:{path}"]
        self.assertGreater(limit, 4)
        self.check()
        self.change_meta(lambda meta: meta["plan_time_limits"].update({f"exec:{path}": 2}))
        result = self.check(expect=5)
        self.assertRegex(result.stdout, r"slower  exec:.*: planning takes [\d.]+ times as long as even; the limit is 2\n"
                                        r"4 rows, unchanged from")

    def test_a_work_budget_reaches_the_allocator(self):
        allocator = pathlib.Path(self.write("allocator.py", ALLOCATOR.replace('"MINE"', '"fast" if problem["limits"]["budget"] == 3 '
                                                                              'else "slow"')))
        allocator.chmod(0o755)
        allocator = f"exec:{allocator}"
        self.write_meta([allocator], budgets={allocator: 3})
        self.approve()
        self.change_meta(lambda meta: meta.update(budgets={allocator: 4}))
        self.assertEqual(self.check(expect=5).stdout.count("worse   "), 2)

    def test_rows_keep_the_fastest_of_the_placements_that_simulate_asks_for(self):
        grid = {"platforms": ["platforms/two_sites.xml"], "workloads": ["workloads/bert_large.yaml"],
                "allocators": ["amp", "grid"], "objectives": ["step"]}

        def steps(**more):
            self.meta.write_text(json.dumps({"schema": "isobar-baseline/1", "grid": grid, **more}))
            self.approve()
            self.check()
            return {row["allocator"]: float(row["step_time_s"]) for row in self.rows()}

        first, fastest = steps(), steps(simulate={"grid": 16})
        self.assertEqual(fastest["amp"], first["amp"])
        # Predictions count what transfers take from each other, so they choose as simulations do.
        self.assertLessEqual(fastest["grid"], first["grid"])

    def test_refuses_a_number_of_placements_to_simulate_out_of_range(self):
        for count in (0, 65):
            self.write_meta(["even", "chain-dp"], simulate={"even": count})
            self.assertEqual(self.fault_of("check", self.baseline, "--approve"), f"simulate.even: {count} is not in 1 to 64")

    def test_writes_reports_for_ci_and_for_pull_requests(self):
        self.approve()
        self.change_row("even", "sequential", "step_time_s", lambda text: repr(float(text) * 2))
        junit, markdown = self.folder / "junit.xml", self.folder / "summary.md"
        self.check("--junit", junit, "--markdown", markdown, expect=5)
        suite = xml.etree.ElementTree.parse(junit).getroot()
        self.assertEqual((suite.tag, suite.get("tests"), suite.get("failures")), ("testsuite", "5", "1"))
        failure, = suite.findall("testcase/failure")
        self.assertRegex(failure.get("message"), r"^better: step time .* \(-50 %\)$")
        self.assertTrue(markdown.read_text().startswith("### Quality of plans: changed\n"))
        self.assertIn("| better | ", markdown.read_text())

    def test_reports_the_same_as_json(self):
        self.approve()
        report = self.json_of("check", self.baseline)
        self.assertEqual((report["holds"], report["rows"], report["changes"]), (True, 4, []))
        self.change_row("even", "sequential", "peak_memory_bytes", lambda text: repr(float(text) + 1e6))
        change, = self.json_of("check", self.baseline, expect=5)["changes"]
        self.assertEqual((change["change"], change["allocator"], change["objective"]), ("better", "even", "sequential"))

    def test_compares_two_builds(self):
        other = self.folder / "other"
        # Like this build, except for one allocator's step times.
        other.write_text(f"""#!/usr/bin/env python3
import json, subprocess, sys
result = subprocess.run([{ISOBAR!r}, *sys.argv[1:]], capture_output=True, text=True)
if "chain-dp" in sys.argv: result.stdout = result.stdout.replace('"step_time_s": ', '"step_time_s": 1')
sys.stdout.write(result.stdout)
sys.stderr.write(result.stderr)
sys.exit(result.returncode)
""")
        other.chmod(0o755)
        self.assertIn(f"4 rows, unchanged from {ISOBAR}\n", self.check("--base", ISOBAR).stdout)
        result = self.check("--base", other, expect=5)
        self.assertEqual(result.stdout.count("better  "), 2, result.stdout)
        self.assertIn(f"4 rows, changed from {other}: 2 better\n", result.stdout)
        self.assertEqual(result.stderr, "")

    def test_rows_that_the_other_build_cannot_make_are_new(self):
        other = self.folder / "other"
        other.write_text(f"#!/bin/sh\ncase \"$*\" in *chain-dp*) exit 2;; esac\nexec {ISOBAR} \"$@\"\n")
        other.chmod(0o755)
        self.assertEqual(self.check("--base", other, expect=5).stdout.count("new     "), 2)

    def test_refuses_a_base_that_is_not_a_build(self):
        self.assertEqual(self.fault_of("check", self.baseline, "--base", "main"),
                         f"--base: {self.baseline} is in no Git repository; name an isobar program")
        subprocess.run(["git", "init", "--quiet", self.folder], check=True)
        self.assertEqual(self.fault_of("check", self.baseline, "--base", "main"),
                         f"--base: \"main\" is neither a program nor a revision of {os.path.realpath(self.folder)}")
        commit = ["git", "-C", self.folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet",
                  "--allow-empty", "-m", "a"]
        subprocess.run(commit, check=True)
        self.assertEqual(self.fault_of("check", self.baseline, "--base", "HEAD"),
                         "--base: \"HEAD\" is not a revision of Isobar; name the isobar program of the other build")
        self.assertIn("--base: the name is empty", self.fault_of("check", self.baseline, "--base", ""))
        self.assertRegex(self.fault_of("check", self.baseline, "--base", "/bin/true"),
                         "^--base: /bin/true makes none of the 4 rows; its first fault: ")
        self.assertEqual(self.fault_of("check", self.baseline, "--base", ISOBAR, "--approve"),
                         "--approve: approves rows of this build, but --base compares with those of another; use only one")

    def test_refuses_a_baseline_that_does_not_exist_or_was_never_approved(self):
        self.assertEqual(self.fault_of("check", self.folder / "none.csv"),
                         f"{self.folder}/none.meta.json: no such file; it defines the rows; "
                         "isobar check --init makes one")
        self.assertEqual(self.fault_of("check", self.meta),
                         f"{self.meta}: a baseline's name ends in .csv; NAME.meta.json defines the rows of NAME.csv")
        self.assertEqual(self.fault_of("check", self.baseline),
                         f"{self.meta}: approved: missing: no rows were approved yet; approve them with isobar check --approve")
        self.approve()
        self.baseline.unlink()
        self.assertEqual(self.fault_of("check", self.baseline),
                         f"{self.baseline}: no such file; isobar check --approve makes it")

    def test_a_reader_that_closes_the_pipe_does_not_lose_the_approval(self):
        self.write_meta(["even"])
        command = f"'{ISOBAR}' check '{self.baseline}' --approve | true"
        subprocess.run(["bash", "-c", command], cwd=ROOT, check=True, capture_output=True, timeout=HANG_S)
        self.check()

    def test_refuses_to_overwrite_the_inputs_of_its_rows(self):
        self.approve()
        for file in (self.platform, self.workload, self.baseline, self.meta):
            for report in ("--junit", "--markdown"):
                self.assertEqual(self.fault_of("check", self.baseline, report, file),
                                 f"{file}: is an input; name another file to write")

    def test_a_name_that_is_not_utf8_leaves_junit_valid(self):
        self.approve()
        name = str(self.folder) + "/\udcff"
        shutil.copy(self.baseline, name + ".csv")
        shutil.copy(self.meta, name + ".meta.json")
        junit = self.folder / "junit.xml"
        subprocess.run([ISOBAR, "check", name + ".csv", "--junit", junit], cwd=ROOT, check=True, capture_output=True)
        xml.etree.ElementTree.parse(junit)

    def test_refuses_faults_of_its_files_before_it_plans(self):
        self.approve()
        self.change_row("even", "pipeline", "outcome", lambda _: "good")
        self.assertEqual(self.fault_of("check", self.baseline),
                         f"{self.baseline}:4: outcome: \"good\" is not one of optimal, feasible, infeasible, timed_out, "
                         "failed")
        self.write_meta(["evn"])
        self.assertEqual(self.fault_of("check", self.baseline),
                         f"{self.meta}: grid.allocators: allocator: \"evn\" is not known; did you mean even?")
        self.write_meta(["even"])
        pathlib.Path(self.workload).write_text("model: bert\n")
        self.assertIn("small.yaml:1: ", self.fault_of("check", self.baseline, "--approve"))

    def test_refuses_a_row_time_limit_of_zero(self):
        self.assertEqual(self.fault_of("check", self.baseline, "--row-time-limit", "0s"),
                         "--row-time-limit: 0 s leaves no time to plan; raise it")

    def test_the_example_gates_an_external_allocator_and_finds_a_bad_one(self):
        for folder in ("platforms", "workloads", "examples"):
            shutil.copytree(ROOT / folder, self.folder / folder)
        example = "examples/gate/external.csv"

        def check():
            return subprocess.run([ISOBAR, "check", example], cwd=self.folder, capture_output=True, text=True)

        result = check()
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        allocator = self.folder / "examples/external_allocator.py"
        # Layers in proportion to slowness.
        allocator.write_text(allocator.read_text().replace('device["speed_flops_per_s"] for', '1 / device["speed_flops_per_s"] for'))
        result = check()
        self.assertEqual(result.returncode, 5, result.stdout + result.stderr)
        self.assertIn("worse   ", result.stdout)


class Schedules(CommandTest):
    """A baseline of schedules: a small trace under two policies."""

    TRACE = ("job_id,num_gpu,submit_time,iterations,model_name,iteration_time,resource_time_0,resource_time_1,"
             "resource_time_2\na,64,0,1000,gpt2,437,0.6,419,49\nb,64,0,100,vgg16,336,87,67,131\n")

    def setUp(self):
        super().setUp()
        self.trace = self.write("jobs.csv", self.TRACE)
        self.sweep = self.write("q.yaml", f"platform: platforms/muri_8x8.xml\ntrace: {self.trace}\npolicy: [fifo, srtf]\n")
        self.baseline = self.folder / "q.csv"
        self.meta = self.folder / "q.meta.json"
        self.write_meta(sweep=self.sweep)

    def write_meta(self, **content):
        self.meta.write_text(json.dumps({"schema": "isobar-baseline/1", **content}))

    def label(self, policy):
        return f"platforms/muri_8x8.xml × {self.trace}, {policy}, corrected, seed 0"

    def test_are_those_of_the_sweep(self):
        self.run_isobar("check", self.baseline, "--approve")
        rows = self.folder / "rows.csv"
        self.run_isobar("sweep", self.sweep, "--database", self.folder / "q.db", "--csv", rows)
        self.assertEqual(self.baseline.read_bytes(), rows.read_bytes())
        self.assertEqual(self.run_isobar("check", self.baseline).stdout,
                         f"2 rows, unchanged from {self.baseline}\n"
                         "geometric mean of mean completion times, new / old: 1.000000 (2 rows)\n")

    def test_are_better_or_worse_by_their_completion_times(self):
        self.run_isobar("check", self.baseline, "--approve")
        approved = self.baseline.read_text()
        jct = float(next(csv.DictReader(approved.splitlines()))["mean_jct_s"])
        for factor, change in ((2, "better"), (0.5, "worse")):
            self.baseline.write_text(approved.replace(f",{jct},", f",{jct * factor},", 1))
            done = self.run_isobar("check", self.baseline, expect=5)
            self.assertRegex(done.stdout, rf"^{change} +{re.escape(self.label('fifo'))}: mean_jct [\d.]+ s -> [\d.]+ s "
                                          r"\([-+]\d+ %\)\n2 rows, changed from .*: 1 " + change + "\n")
        check = self.json_of("check", self.baseline, expect=5)
        self.assertEqual([(each["change"], each["policy"]) for each in check["changes"]], [("worse", "fifo")])
        self.assertEqual((check["mean_jcts"]["rows"], set(check["mean_jcts_by_policy"])), (2, {"fifo", "srtf"}))

    def test_are_new_missing_or_made_from_changed_files(self):
        self.run_isobar("check", self.baseline, "--approve")
        sweep = pathlib.Path(self.sweep)
        sweep.write_text(sweep.read_text().replace("fifo", "muri"))
        done = self.run_isobar("check", self.baseline, "--markdown", self.folder / "s.md", "--junit", self.folder / "j.xml",
                               expect=5)
        self.assertRegex(done.stdout, rf"^new +{re.escape(self.label('muri'))}: mean_jct [\d.]+ s; nothing to compare with\n"
                                      rf"missing +{re.escape(self.label('fifo'))}: no longer scheduled\n")
        self.assertIn(f"isobar: {self.sweep}: has changed since the rows were approved\n", done.stderr)
        self.assertIn("### Quality of schedules: changed", (self.folder / "s.md").read_text())
        cases = xml.etree.ElementTree.parse(self.folder / "j.xml").getroot()
        self.assertEqual((cases.get("tests"), cases.get("failures")), ("3", "2"))

    def test_are_refused_with_other_columns_numbers_or_settings(self):
        self.run_isobar("check", self.baseline, "--approve")
        approved = self.baseline.read_text()
        self.baseline.write_text(approved.replace("mean_jct_s", "mean_jct", 1))
        self.assertRegex(self.fault_of("check", self.baseline), rf"^{re.escape(str(self.baseline))}:1: ")
        self.baseline.write_text(re.sub(r",scheduled,8,", ",scheduled,x,", approved, count=1))
        self.assertEqual(self.fault_of("check", self.baseline), f'{self.baseline}:2: nodes: "x" is not a finite number')
        self.baseline.write_text(approved + approved.splitlines()[1] + "\n")
        self.assertEqual(self.fault_of("check", self.baseline), f"{self.baseline}:4: the same row as one above; remove it")
        self.assertEqual(self.fault_of("check", self.baseline, "--base", ISOBAR),
                         f"--base: {self.meta} names a sweep of schedules; --base compares plans")
        self.write_meta(sweep=self.sweep)
        self.assertEqual(self.fault_of("check", self.baseline), f"{self.meta}: approved: missing: no rows were approved yet; "
                                                                "approve them with isobar check --approve")
        self.write_meta(sweep=self.sweep, budgets={"even": 3})
        self.assertEqual(self.fault_of("check", self.baseline, "--approve"),
                         f"{self.meta}:1: budgets: unknown key; the keys here are approved, schema, sweep")
        plans = self.write("plans.yaml", "platform: platforms/sky4.xml\nworkload: workloads/bert10.yaml\nallocator: even\n")
        self.write_meta(sweep=plans)
        self.assertEqual(self.fault_of("check", self.baseline, "--approve"),
                         f"{self.meta}: sweep: {plans} has no `trace`; write a grid for plans")


class ApprovedSchedules(unittest.TestCase):
    """The anchors of Muri's traces in the approved rows."""

    def test_have_the_published_numbers_and_stay_above_their_bounds(self):
        with (ROOT / "results/clusters/quality.csv").open() as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            for what in ("mean_jct", "p99_jct", "makespan"):
                self.assertGreaterEqual(float(row[what + "_s"]), float(row[what + "_bound_s"]) * (1 - 1e-9), row)
        by = {(pathlib.Path(row["trace"]).stem, row["policy"], row["semantics"], row["at_once"]): row for row in rows}
        for policy, at_once, mean, makespan, p99 in (
                ("srtf", "false", 193081.796, 8174135.280, 4538890.607),
                ("srsf", "false", 185021.880, 8174135.280, 4189699.177),
                ("tiresias", "false", 347213.248, 8174226.280, 4983397.254),
                ("srtf", "true", 844394.780, 7261795.828, 6363099.549),
                ("srsf", "true", 798057.683, 6907790.403, 6228160.594),
                ("tiresias", "true", 2213110.128, 6761641.420, 6739568.999)):
            row = by["trace3", policy, "published", at_once]
            for key, expected in (("mean_jct_s", mean), ("makespan_s", makespan), ("p99_jct_s", p99)):
                self.assertAlmostEqual(float(row[key]), expected, places=3)
