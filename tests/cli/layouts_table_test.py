"""tools/layouts_table.py: public layouts import, are never worse with other cuts, and results/layouts/README.md shows them."""

import csv
import os
import shutil
import subprocess
import sys

from tests.cli.support import HANG_S, ISOBAR, ROOT, CommandTest

FOLDER = ROOT / "results/layouts"


def rows_of(file):
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


class LayoutsTable(CommandTest):
    def table(self, *options, expect=0):
        result = subprocess.run([sys.executable, ROOT / "tools/layouts_table.py", *map(str, options)], capture_output=True, text=True,
                                timeout=HANG_S, env={**os.environ, "ISOBAR": ISOBAR})
        self.assertEqual(result.returncode, expect, result.stdout + result.stderr)
        return result

    def test_a_layout_is_made_again(self):
        name = "bridge-glm-45-air"
        file = self.folder / "results.csv"
        self.table("--rows", name, "--results", file)
        (row,) = rows_of(file)
        self.assertEqual(row, next(each for each in rows_of(FOLDER / "results.csv") if each["name"] == name))
        self.assertLess(float(row["improved_step_s"]), float(row["step_s"]))

    def test_no_layout_is_worse_with_other_cuts(self):
        results = rows_of(FOLDER / "results.csv")
        self.assertGreaterEqual(len(results), 20)
        self.assertEqual([row["name"] for row in results], [row["name"] for row in rows_of(FOLDER / "layouts.csv")])
        for row in results:
            with self.subTest(row["name"]):
                self.assertLessEqual(float(row["improved_step_s"]), float(row["step_s"]))
                self.assertLessEqual(float(row["improved_order_bound_s"]), float(row["improved_step_s"]))

    def test_the_page_shows_the_committed_rows(self):
        page = self.folder / "README.md"
        shutil.copy(FOLDER / "README.md", page)
        self.table("--keep", "--page", page)
        self.assertEqual(page.read_text(), (FOLDER / "README.md").read_text())

    def test_unknown_rows_are_refused(self):
        result = self.table("--rows", "none", expect=1)
        self.assertEqual(result.stderr, "layouts_table.py: --rows: none is no row of results/layouts/layouts.csv\n")
