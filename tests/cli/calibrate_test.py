"""isobar calibrate, and the commands that take its files with --system. Rows are made by isobar fidelity with constants that
are known; one test takes published runs."""

import csv
import io
import json
import pathlib
import re
import statistics

from tests.cli.support import ROOT, CommandTest

MEASURED = ROOT / "results/fidelity/measured"
SYSTEM, DEVICE = "composer-fsdp-2023", "A100-SXM4-80GB"
KNOWN = f"""schema: isobar-calibration/1
device: {DEVICE}
framework:
  name: {SYSTEM}
  product_speed: 0.9
  attention_speed: 1.2
  memory_speed: 0.85
"""
FITTED = ["30b-s8192-n8-b168-ck", "30b-s512-n8-b2016-ck", "13b-s32768-n8-b24-ck", "13b-s2048-n8-b48", "7b-s8192-n8-b128-ck",
          "125m-s512-n8-b2048", "125m-s32768-n8-b32", "350m-s512-n8-b2048"]


class Calibrate(CommandTest):
    def setUp(self):
        super().setUp()
        with (MEASURED / "mpt_a100_80.csv").open(newline="") as file:
            reader = csv.DictReader(file)
            rows = [row for row in reader if row["platform_overrides"] == "nodes=1"]
            self.columns = reader.fieldnames
        for row in rows:
            row.update({column: str((MEASURED / row[column]).resolve()) for column in ("platform", "workload")})
            row["role"] = "development"
        self.all_rows = {row["row"]: row for row in rows}

    def table(self, rows, name="t.csv"):
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return self.write(name, text.getvalue())

    def rows(self, count=None):
        return [dict(self.all_rows[name]) for name in FITTED[:count]]

    def as_predicted(self, rows, known=KNOWN):
        """The rows with the times that a system predicts as measured."""
        predicted = self.json_of("fidelity", self.table(rows, "p.csv"), "--system", self.write("known.yaml", known))["rows"]
        self.assertEqual({row["status"] for row in predicted}, {"predicted"})
        return [row | {"measured_s": repr(own["predicted_s"])} for row, own in zip(rows, predicted)]

    def errors_of(self, rows, *options):
        return [abs(row["error_fraction"]) for row in self.json_of("fidelity", self.table(rows, "e.csv"), *options)["rows"]]

    def fault_in(self, *arguments, **options):
        return self.fault_of("calibrate", *arguments, **options).replace(f"{self.folder}/", "")

    def test_recovers_known_constants_which_then_predict_other_rows(self):
        others = [dict(row) for name, row in list(self.all_rows.items())[::3] if name not in FITTED]
        made = self.as_predicted(others + self.rows())
        others, fitted = made[:len(others)], made[len(others):]
        self.assertGreater(len(others), 5)
        file = self.folder / "mine.yaml"
        result = self.json_of("calibrate", self.table(fitted), "-o", file)
        self.assertEqual(result["schema"], "isobar-calibration-result/1")
        self.assertEqual((result["framework"], result["device"]), (SYSTEM, DEVICE))
        factors = {constant["key"]: constant["factor"] for constant in result["constants"]}
        self.assertAlmostEqual(factors["product_speed"], 0.9, delta=0.02)
        self.assertAlmostEqual(factors["memory_speed"], 0.85, delta=0.08)
        self.assertAlmostEqual(factors["attention_speed"], 1.2, delta=0.1)
        self.assertTrue(result["improves"])
        self.assertLess(result["calibrated_mean_error_fraction"], 0.01)
        self.assertLess(result["left_out_mean_error_fraction"], 0.02)
        shipped, calibrated = self.errors_of(others), self.errors_of(others, "--system", file)
        self.assertGreater(sum(shipped) / len(shipped), 0.05)
        self.assertLess(max(calibrated), 0.02)

    def test_three_published_runs_of_a_model_leave_those_of_a_larger_one_predicted_well(self):
        """vTrain's first three rows of 18.4B disagree, so that the constants stay as shipped."""
        table, file = MEASURED / "vtrain_multi.csv", self.folder / "vtrain.yaml"
        self.run_isobar("calibrate", table, "--rows", "18.4B-t8d32p1-m8,18.4B-t8d32p1-m16,18.4B-t8d32p1-m4", "-o", file)
        rows = self.json_of("fidelity", table, "--system", file)["rows"]
        errors = [abs(row["error_fraction"]) for row in rows if row["group"] == "39.1B"]
        self.assertEqual(len(errors), 47)
        self.assertLessEqual(statistics.median(errors), 0.03)

    def test_the_same_rows_give_the_same_bytes(self):
        table = self.table(self.as_predicted(self.rows(3)))
        outputs = []
        for name in "ab":
            file = self.folder / f"{name}.yaml"
            outputs.append((self.run_isobar("calibrate", table, "-o", file).stdout, file.read_bytes()))
        self.assertEqual(*outputs)
        self.assertIn("left out: with constants that are fitted on the other rows\n", outputs[0][0])

    def test_one_row_is_fitted_and_has_no_test(self):
        table = self.table(self.as_predicted(self.rows(2)))
        result = self.json_of("calibrate", table, "--rows", FITTED[0])
        self.assertEqual((result["left_out_mean_error_fraction"], result["improves"]), (None, None))
        self.assertLess(result["calibrated_mean_error_fraction"], result["shipped_mean_error_fraction"])
        text = self.run_isobar("calibrate", table, "--rows", FITTED[0]).stdout
        self.assertIn("one row: none is left to test the calibration\n", text)

    def test_constants_that_do_not_help_on_left_out_rows_stay_as_shipped(self):
        rows = self.as_predicted(self.rows(2), KNOWN.split("framework:")[0] + f"framework: {SYSTEM}\n")
        rows[0]["measured_s"] = str(1.2 * float(rows[0]["measured_s"]))
        rows[1]["measured_s"] = str(0.85 * float(rows[1]["measured_s"]))
        table, file = self.table(rows), self.folder / "mine.yaml"
        errors = self.run_isobar("calibrate", table, "-o", file).stderr
        self.assertRegex(errors, r"isobar: rows that are left out err by [\d.]+ % with constants that are fitted on the others, and "
                                 r"by [\d.]+ % as shipped; so the calibration leaves them as shipped")
        self.assertNotIn("product_speed", file.read_text())
        self.assertEqual(self.errors_of(rows), self.errors_of(rows, "--system", file))
        errors = self.run_isobar("calibrate", table, "--even-if-worse", "-o", file).stderr
        self.assertIn("the fitted ones may not help on other rows", errors)
        self.assertIn("product_speed", file.read_text())

    def test_a_constant_at_its_bound_is_reported(self):
        rows = [row | {"measured_s": str(8 * float(row["measured_s"]))} for row in self.rows(4)]
        result = self.run_isobar("calibrate", self.table(rows))
        self.assertIn("at its bound", result.stdout)
        self.assertIn("is at the bound of what calibrate fits; these rows may be of another machine or system", result.stderr)

    def test_refuses_rows_that_do_not_go_together(self):
        rows = [dict(row) for row in list(self.all_rows.values())[:11]]
        self.assertEqual(self.fault_in(self.table(rows)), "t.csv: 11 rows; calibrate takes 1 to 10; name them with --rows")
        rows = self.rows(2)
        self.assertIn("--rows: \"7x\" is not a row of the files; ", self.fault_in(self.table(rows), "--rows", "7x"))
        twice = f"{rows[0]['row']},{rows[0]['set']}/{rows[0]['row']}"
        self.assertIn("is given twice; leave one out", self.fault_in(self.table(rows), "--rows", twice))
        for cells, message in [({"measured_s": "", "role": "failed"}, "t.csv:3: measured_s: is empty; name a row with a measured step"),
                               ({"role": "derived"}, "t.csv:3: role: is derived, which is no measurement; name another row"),
                               ({"framework": "megatron-lm-2021"}, "t.csv:3: framework: is megatron-lm-2021, and "
                                f"{SYSTEM} in t.csv:2; calibrate rows of one training system at a time"),
                               ({"schedule": "zb-h1"}, "t.csv:3: schedule: zb-h1 is none that plans have")]:
            with self.subTest(message):
                self.assertEqual(self.fault_in(self.table([rows[0], rows[1] | cells])), message)
        flag = {"overrides": f"{rows[1]['overrides']};framework.kernel_start=1 us"}
        self.assertEqual(self.fault_in(self.table([rows[0], rows[1] | flag])),
                         "t.csv:3: overrides: has other flags of the framework than t.csv:2; calibrate rows of one training "
                         "system at a time")
        other = self.write("other.yaml", pathlib.Path(rows[1]["platform"]).read_text())
        self.assertIn("calibrate rows of one machine at a time", self.fault_in(self.table([rows[0], rows[1] | {"platform": other}])))

    def inputs(self, known=KNOWN):
        """A platform with links as calibrated, a workload and a calibration."""
        known = self.write("known.yaml", known + "links: {inside: 0.5, outside: 0.8}\n")
        platform = self.folder / "a100.xml"
        self.run_isobar("platform", "generate", "machine", ROOT / "examples/machine.yaml", "--system", known, "-o", platform)
        return platform, self.write("gpt.yaml", "model: gpt\nlayers: 4\nhidden: 1024\nheads: 16\nvocabulary: 32000\n"
                                    "sequence: 1024\nmicro_batch: 4\ndtype: fp16\nunit: operator\n"), known

    def test_plan_takes_a_calibration_which_its_plan_keeps(self):
        platform, workload, known = self.inputs()
        plans = {}
        for name, options in (("shipped", ("--set", "compute=operators", "--set", f"framework={SYSTEM}")),
                              ("calibrated", ("--system", known))):
            file = self.folder / f"{name}.json"
            self.run_isobar("plan", platform, workload, *options, "--allocator", "even", "-o", file)
            plans[name] = json.loads(file.read_text())
            self.run_isobar("verify", platform, workload, file)
            step = self.json_of("simulate", platform, workload, "--plan", file)["step_time_s"]
            self.assertAlmostEqual(step / plans[name]["predicted"]["step_time_s"], 1, delta=1e-6)
        self.assertEqual(plans["calibrated"]["system"], {"name": SYSTEM, "attention_speed": 1.2, "memory_speed": 0.85,
                                                         "product_speed": 0.9})
        self.assertGreater(plans["calibrated"]["predicted"]["step_time_s"], 1.02 * plans["shipped"]["predicted"]["step_time_s"])
        self.run_isobar("simulate", platform, workload, "--plan", self.folder / "calibrated.json", "--system", known)
        rate = self.make_plan(platform, self.write("rate.yaml", pathlib.Path(workload).read_text()))
        fault = self.fault_of("simulate", platform, self.folder / "rate.yaml", "--plan", rate, "--system", known)
        self.assertRegex(fault, r"--set and --system: compute=operators: .* was made without a setting of compute; leave the option out")

    def test_a_platform_has_the_links_of_a_calibration(self):
        text = self.inputs()[0].read_text()
        self.assertTrue("times 0.5 by the calibration" in text and "--system" in text)
        bandwidths = dict(re.findall(r'<link id="(\S+)" bandwidth="(\S+)"', text))
        self.assertEqual((bandwidths["nvlink.n0g0"], bandwidths["nic.n0.0"]), ("109.2GBps", "18GBps"))

    def test_a_calibration_of_another_device_or_system_is_refused(self):
        platform, workload, known = self.inputs()
        other = self.write("other.yaml", KNOWN.replace(DEVICE, "T4"))
        self.assertEqual(self.fault_of("plan", platform, workload, "--allocator", "even", "--system", other).replace(f"{self.folder}/", ""),
                         f'--system: other.yaml calibrates devices of "T4"; the platform has "{DEVICE}"')
        self.assertIn("and --set has framework megatron-lm-2021;",
                      self.fault_of("plan", platform, workload, "--set", "framework=megatron-lm-2021", "--system", known))
        wrong = self.write("wrong.yaml", KNOWN.replace("product_speed: 0.9", "product_speed: fast"))
        self.assertIn("wrong.yaml:5: framework.product_speed: ", self.fault_of("plan", platform, workload, "--allocator", "even", "--system", wrong))
        result = self.json_of("fidelity", self.table(self.rows(1)), "--system", other, expect=4)
        self.assertIn(f'calibrates nodes of "T4"; the machine has "{DEVICE}"', result["rows"][0]["reason"])

    def test_exported_rows_are_verified_and_simulated_as_calibrated(self):
        rows = self.rows(1)
        known = self.write("known.yaml", KNOWN)
        row = self.json_of("fidelity", self.table(rows), "--system", known, "--export", self.folder / "rows")["rows"][0]
        files = self.folder / "rows" / row["set"] / row["row"]
        inputs = [files / "platform.xml", files / "workload.yaml"]
        self.run_isobar("verify", *inputs, files / "plan.json")
        step = self.json_of("simulate", *inputs, "--plan", files / "plan.json")["step_time_s"]
        self.assertAlmostEqual(step / row["predicted_s"], 1, delta=1e-3)
