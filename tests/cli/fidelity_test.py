"""isobar fidelity: its tables, limits and faults. No test here depends on how good the predictions are."""

import csv
import io
import json
import math

from tests.cli.support import ROOT, CommandTest

MEASURED = ROOT / "results/fidelity/measured"
SAILOR = MEASURED / "sailor_gh200_opt350.csv"
FIGURES = {"set", "rows", "mean_error_fraction", "median_error_fraction", "max_error_fraction", "memory_mean_error_fraction",
           "spearman", "regret_fraction", "coverage_fraction"}
PARTS = ["products_s", "attention_s", "memory_bound_s", "launch_s", "tensor_s", "pipeline_s", "data_s", "bubble_s", "update_s"]


class Fidelity(CommandTest):
    """A table of the first rows of Sailor's set, some changed."""

    def rows(self, count=2):
        with SAILOR.open(newline="") as file:
            rows = list(csv.DictReader(file))[:count]
        for row in rows:
            for column in ("platform", "workload", "profiles"):
                row[column] = str((MEASURED / row[column]).resolve())
        return rows

    def table(self, rows, name="t.csv"):
        text = io.StringIO()
        with SAILOR.open(newline="") as file:
            columns = next(csv.reader(file))
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return self.write(name, text.getvalue())

    def changed(self, name="t.csv", **cells):
        """A table of one row with other cells."""
        row = self.rows(1)[0]
        row.update(cells)
        return self.table([row], name)

    def fault_in(self, *options, **cells):
        table = self.changed(**cells)
        return self.fault_of("fidelity", table, *options).replace(f"{self.folder}/", "")

    def test_prints_the_figures_of_each_set_and_each_row(self):
        result = self.json_of("fidelity", SAILOR)
        self.assertEqual(result["schema"], "isobar-fidelity-result/1")
        self.assertEqual([one["set"] for one in result["sets"]], ["sailor_gh200_opt350"])
        sailor = result["sets"][0]
        self.assertLessEqual(FIGURES, sailor.keys())
        self.assertEqual(sailor["roles"], ["development"])
        self.assertEqual((sailor["rows"], sailor["by_role"]["calibration"]["rows"]), (11, 4))
        self.assertEqual(len(result["rows"]), 15)
        errors = []
        for row in result["rows"]:
            self.assertEqual(row["status"], "predicted", row["reason"])
            self.assertAlmostEqual(row["error_fraction"], row["predicted_s"] / row["measured_s"] - 1, places=12)
            self.assertEqual(list(row["parts"]), PARTS)
            if row["role"] == "development":
                errors.append(abs(row["error_fraction"]))
        self.assertAlmostEqual(sailor["mean_error_fraction"], sum(errors) / len(errors), places=12)
        self.assertAlmostEqual(sailor["max_error_fraction"], max(errors), places=12)
        self.assertEqual(sailor["coverage_fraction"], 1)
        self.assertEqual(sorted(group["rows"] for group in sailor["groups"]), [2, 2, 2, 3, 3])

    def test_the_same_files_give_the_same_bytes(self):
        table = self.table(self.rows(3))
        outputs = []
        for name in "ab":
            rows, tables = self.folder / f"{name}.csv", self.folder / f"{name}.md"
            printed = self.run_isobar("fidelity", table, "--json", "--csv", rows, "--markdown", tables).stdout
            outputs.append((printed, rows.read_bytes(), tables.read_bytes()))
        self.assertEqual(*outputs)

    def test_rows_that_cannot_be_expressed_count_against_coverage_and_are_listed(self):
        rows = self.rows(3)
        rows[0].update(role="gate", schedule="zb-h1")
        rows[1].update(role="gate", overrides="layrs=24")
        rows[2].update(role="gate")
        table = self.table(rows)
        result = self.json_of("fidelity", table)
        self.assertEqual((result["sets"][0]["rows"], result["sets"][0]["predicted_rows"]), (3, 1))
        self.assertAlmostEqual(result["sets"][0]["coverage_fraction"], 1 / 3)
        self.assertEqual([row["status"] for row in result["rows"]], ["unsupported", "unsupported", "predicted"])
        self.assertIn("zb-h1", result["rows"][0]["reason"])
        self.assertIn("layrs", result["rows"][1]["reason"])
        self.assertIsNone(result["rows"][0]["predicted_s"])
        text = self.run_isobar("fidelity", table).stdout
        self.assertIn(f"1 row unsupported ({rows[0]['row']}): ", text)
        self.assertIn("1/3", text)

    def test_derived_rows_have_a_table_of_their_own_and_excluded_rows_none(self):
        rows = self.rows(3)
        rows[0].update(role="derived")
        rows[1].update(role="excluded", note="a corrupt record", platform="", measured_s="")
        result = self.json_of("fidelity", self.table(rows))
        self.assertEqual(([one["rows"] for one in result["sets"]], [one["rows"] for one in result["derived"]]), ([1], [1]))
        self.assertEqual(result["sets"][0]["excluded_rows"], 1)
        self.assertEqual((result["rows"][1]["status"], result["rows"][1]["reason"]), ("excluded", "a corrupt record"))

    def test_failed_runs_count_for_feasibility_alone(self):
        rows = self.rows(2)
        rows[0].update(role="failed", measured_s="", measured_memory_bytes="", memory_kind="")
        sailor = self.json_of("fidelity", self.table(rows))["sets"][0]
        self.assertEqual((sailor["rows"], sailor["failed_runs"]), (1, 1))
        self.assertEqual(sailor["false_fits"], 1)

    def test_the_floor_is_fitted_on_calibration_rows(self):
        rows = self.rows(15)
        floors = [row["floor_s"] for row in self.json_of("fidelity", self.table(rows))["rows"]]
        self.assertNotIn(None, floors)
        calibration = [i for i, row in enumerate(rows) if row["role"] == "calibration"]
        mean = sum(math.log(floors[i] / float(rows[i]["measured_s"])) for i in calibration) / len(calibration)
        self.assertAlmostEqual(mean, 0, places=9)
        rows = [row for row in rows if row["role"] != "calibration"]
        result = self.json_of("fidelity", self.table(rows))
        self.assertIsNone(result["sets"][0]["floor"])

    def test_compares_with_the_reference_simulator(self):
        rows = self.rows(2)
        rows[0].update(reference_s=str(1.5 * float(rows[0]["measured_s"])))
        reference = self.json_of("fidelity", self.table(rows))["sets"][0]["reference"]
        self.assertEqual(reference["rows"], 1)
        self.assertAlmostEqual(reference["mean_error_fraction"], 0.5, places=9)

    def test_writes_a_line_for_each_row(self):
        lines = list(csv.DictReader(io.StringIO(self.run_isobar("fidelity", self.table(self.rows(3)), "--csv", "-").stdout)))
        self.assertEqual([line["row"] for line in lines], [row["row"] for row in self.rows(3)])
        for line in lines:
            self.assertEqual(line["status"], "predicted")
            self.assertAlmostEqual(sum(float(line[part]) for part in PARTS), float(line["predicted_s"]),
                                   delta=1e-3 * float(line["predicted_s"]))

    def test_explains_a_row(self):
        table = self.table(self.rows(2))
        name = self.rows(2)[1]["row"]
        text = self.run_isobar("fidelity", table, "--explain", name).stdout
        self.assertIn(f"sailor_gh200_opt350/{name}, development ({table}:3)\n", text)
        for word in ("products", "tensor parallelism", "bubble", "step: predicted", "device memory: predicted"):
            self.assertIn(word, text)
        self.assertEqual(text, self.run_isobar("fidelity", table, "--explain", f"sailor_gh200_opt350/{name}").stdout)
        explained = self.json_of("fidelity", table, "--explain", name)["row"]
        self.assertEqual(explained["row"], name)
        self.assertGreater(len(explained["notes"]), 0)

    def test_names_each_figure_beyond_its_limit(self):
        table = self.table(self.rows(2))
        kept = self.write("kept.yaml", "sets:\n  sailor_gh200_opt350: {mean_error_fraction: 10, coverage_fraction: 1, rows: 2}\n")
        self.run_isobar("fidelity", table, "--limits", kept)
        broken = self.write("broken.json", json.dumps({"tolerance_fraction": 0.002, "sets": {"sailor_gh200_opt350": {
            "rows": 3, "spearman": 0.5, "coverage_fraction": 1}}}))
        result = self.run_isobar("fidelity", table, "--limits", broken, expect=5)
        self.assertEqual(result.stderr, f"isobar: {broken}:1: sailor_gh200_opt350: spearman has no value; the limit is 0.5\n"
                                        f"isobar: {broken}:1: sailor_gh200_opt350: rows is 2; the limit is 3\n")
        self.assertEqual(len(self.json_of("fidelity", table, "--limits", broken, expect=5)["beyond_limits"]), 2)

    def test_unfolded_predictions_are_the_same(self):
        table = self.table(self.rows(2))
        folded, unfolded = self.json_of("fidelity", table), self.json_of("fidelity", table, "--unfolded")
        for one, other in zip(folded["rows"], unfolded["rows"]):
            self.assertAlmostEqual(one["predicted_s"] / other["predicted_s"], 1, places=6)
            self.assertFalse(other["folded"])

    def test_refuses_wrong_tables_in_one_line(self):
        for cells, fault in (
                ({"set": ""}, "t.csv:2: set: is empty; name the set of measurements"),
                ({"role": "test"}, 't.csv:2: role: "test" is not known; write calibration, development, gate, derived, '
                                   "failed, excluded"),
                ({"platform": ""}, "t.csv:2: platform: is empty; name its platform or machine file"),
                ({"platform": "m.yaml"}, "t.csv:2: platform: m.yaml: no such file; name one relative to the folder of the "
                                         "table"),
                ({"workload": "w.yaml"}, "t.csv:2: workload: w.yaml: no such file; name one relative to the folder of the "
                                         "table"),
                ({"profiles": "p.json"}, "t.csv:2: profiles: p.json: no such file; name one relative to the folder of the "
                                         "table"),
                ({"plan": "p.json"}, "t.csv:2: plan: p.json: no such file; name one relative to the folder of the table"),
                ({"overrides": "layers"}, 't.csv:2: overrides: "layers" is not a setting; write key=value, several separated '
                                          "by ;"),
                ({"pp": "0"}, 't.csv:2: pp: "0" is wrong; write a whole number from 1 to 1048576'),
                ({"tp": "2+2"}, "t.csv:2: tp: has 2 numbers; write one for each of the 1 stages of pp"),
                ({"layers": "12+12"}, "t.csv:2: layers: has 2 numbers; write one for each of the 1 stages of pp"),
                ({"zero": "4"}, 't.csv:2: zero: "4" is wrong; write a whole number from 0 to 3'),
                ({"sequence_parallel": "yes"}, 't.csv:2: sequence_parallel: "yes" is wrong; write a whole number from 0 to 1'),
                ({"global_batch": ""}, "t.csv:2: global_batch: is empty; name the samples of a step"),
                ({"micro_batch": "1.5"}, 't.csv:2: micro_batch: "1.5" is wrong; write a whole number from 1 to 1000000000'),
                ({"recompute": "block"},
                 't.csv:2: recompute: "block" is not known; write none, selective, full, plan, or modules separated by a space: '
                 "core_attn, layernorm, mla_up_proj, mlp, moe, moe_act, shared_experts"),
                ({"measured_s": "fast"}, 't.csv:2: measured_s: "fast" is wrong; write a number from 0 to 1e15'),
                ({"measured_s": "0"}, "t.csv:2: measured_s: is below 1e-9; write seconds"),
                ({"measured_memory_bytes": "0"}, "t.csv:2: measured_memory_bytes: is 0; write a size above it"),
                ({"overrides": "layers=8;layers=9"}, 't.csv:2: overrides: "layers" is set twice; leave one out'),
                ({"overrides": "framework=x"}, "t.csv:2: overrides: framework has a column of its own; write x there"),
                ({"overrides": "unit=layer"}, "t.csv:2: overrides: unit is operator in every row; leave it out"),
                ({"memory_kind": ""}, "t.csv:2: memory_kind: is empty; name the memory that was measured: allocated, "
                                      "reserved, device")):
            with self.subTest(cells=cells):
                self.assertEqual(self.fault_in(**cells), fault)

    def test_refuses_wrong_files_and_options_in_one_line(self):
        table = self.changed()
        name = self.rows(1)[0]["row"]
        limits = self.write("l.yaml", "sets: {other: {rows: 1}}\n")
        self.assertEqual(self.fault_of("fidelity", self.folder / "none.csv"), f"{self.folder}/none.csv: no such file")
        self.assertEqual(self.fault_of("fidelity", table, table), f"{table}: is given twice; name each file once")
        self.assertEqual(self.fault_of("fidelity", table, "--limits", limits),
                         f"{limits}:1: other: no row is of this set; the files have sailor_gh200_opt350")
        self.assertEqual(self.fault_of("fidelity", table, "--explain", name[:-1]),
                         f'--explain: "{name[:-1]}" is not a row of the files; did you mean {name}?')
        self.assertEqual(self.fault_of("fidelity", table, "--row-time-limit", "0s"),
                         "--row-time-limit: 0 s leaves no time to plan; raise it")
        self.assertEqual(self.fault_of("fidelity", table, "--explain", name, "--csv", "r.csv"),
                         "--csv excludes --explain; see isobar fidelity --help")
        self.assertEqual(self.fault_of("fidelity", table, "--json", "--csv", "-"),
                         "--json: is written to standard output, as is what has the file -; name a file")
        self.assertIn(table, self.fault_of("fidelity", table, "--csv", table))
        self.assertIn("FILE", self.fault_of("fidelity"))
        empty = self.table([], "empty.csv")
        self.assertEqual(self.fault_of("fidelity", empty), f"{empty}:1: has no rows; write one below the header")
        other = self.write("other.csv", "set,row\n")
        self.assertTrue(self.fault_of("fidelity", other).startswith(f'{other}:1: the columns are "set,row"; they must be set,'))

    def test_reports_all_faults_of_a_table_at_once(self):
        rows = self.rows(2)
        rows[0].update(zero="4", pp="x")
        rows[1].update(row=rows[0]["row"])
        result = self.run_isobar("fidelity", self.table(rows), expect=2)
        self.assertEqual(result.stderr.count("t.csv:2: "), 2)
        self.assertIn(f't.csv:3: row: "{rows[0]["row"]}" is the name of another row too; give each row its own', result.stderr)
