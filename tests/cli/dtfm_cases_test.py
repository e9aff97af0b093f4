"""tools/dtfm_cases.py on the cases that take no time, and the platforms that it makes."""

import json
import subprocess
import sys

from tests.cli.support import HANG_S, ISOBAR, ROOT, CommandTest

WORKLOAD = ROOT / "workloads/dtfm_gpt3_1.3b.yaml"
SHAPE = ["--pipeline", "8", "--replicas", "8", "--microbatches", "160"]


class DtfmCases(CommandTest):
    def cases(self, *options):
        return subprocess.run([sys.executable, ROOT / "tools/dtfm_cases.py", "--isobar", ISOBAR, *options],
                              capture_output=True, text=True, timeout=HANG_S)

    def test_proves_the_optima_of_the_published_cases(self):
        result = self.cases("--cases", "0,2,3,5", "--trials", "200", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        rows = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual([row["case"] for row in rows], [0, 2, 3, 5])
        for row, optimum in zip(rows, (3.439799, 16.086840, 34.802041, 63.279913)):
            self.assertEqual(list(row), ["case", "dtfm_cost", "exact_cost", "bound", "search_s", "proof_s"])
            self.assertAlmostEqual(row["exact_cost"], optimum, delta=1e-6)
            self.assertAlmostEqual(row["bound"], optimum, delta=1e-6)
            self.assertGreaterEqual(row["dtfm_cost"], row["exact_cost"] * (1 - 1e-9))

    def test_prints_a_table(self):
        result = self.cases("--cases", "5", "--trials", "1")
        self.assertEqual(result.stdout.splitlines()[0], "case  dtfm       exact      bound      search s  proof s")
        self.assertRegex(result.stdout.splitlines()[1], r"^5     63\.279913  63\.279913  63\.279913  ")

    def test_keeps_the_platforms_on_which_its_plans_are_verified(self):
        self.assertEqual(self.cases("--cases", "2", "--trials", "1", "--platforms", self.folder).returncode, 0)
        platform = self.folder / "dtfm_2.xml"
        file = self.folder / "plan.json"
        self.run_isobar("plan", platform, WORKLOAD, "--allocator", "dtfm-exact", "--objective", "dtfm", *SHAPE, "-o", file)
        answer = self.run_isobar("verify", platform, WORKLOAD, file).stdout
        self.assertIn("no plan with as many replicas of these stages below 16.0868 s: certificate dtfm proves 16.0868 s, gap 0.00 %", answer)
        plan = json.loads(file.read_text())
        plan["objective_s"] = 16.0
        plan["objective_bound_s"] = 16.0
        plan["gap_fraction"] = 0
        file.write_text(json.dumps(plan))
        result = self.run_isobar("verify", platform, WORKLOAD, file, expect=5)
        self.assertIn("objective_s: claims 16; it is 16.0868", result.stdout + result.stderr)

    def test_refuses_what_is_no_case(self):
        result = self.cases("--cases", "2,6")
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr,
                         'dtfm_cases.py: --cases: "2,6" is no list of cases; write numbers from 0 to 5\n')
