"""The committed plans of `hybrid` are never slower than those of its rivals, and results/hybrid/README.md shows them."""

import csv
import shutil
import subprocess
import sys

from tests.cli.support import HANG_S, ROOT, CommandTest

QUALITY = ROOT / "results/hybrid/quality.csv"
PAGE = ROOT / "results/hybrid/README.md"


class HybridTable(CommandTest):
    def test_no_rival_simulates_faster_on_any_pair(self):
        steps = {}
        with QUALITY.open() as file:
            for row in csv.DictReader(file):
                pair = steps.setdefault((row["platform"], row["workload"]), {})
                if row["step_time_s"]:
                    pair[row["allocator"]] = float(row["step_time_s"])
        compared = 0
        for pair, by_allocator in steps.items():
            own = by_allocator.pop("hybrid", None)
            for rival, step in by_allocator.items():
                with self.subTest(pair=pair, rival=rival):
                    self.assertIsNotNone(own, "hybrid has no plan")
                    self.assertLessEqual(own, step * (1 + 1e-9))
            compared += own is not None and bool(by_allocator)
        self.assertGreaterEqual(compared, 12)

    def table(self, *options):
        return subprocess.run([sys.executable, ROOT / "tools/hybrid_table.py", *options], capture_output=True, text=True,
                              timeout=HANG_S)

    def test_the_page_shows_the_committed_rows(self):
        page = self.folder / "README.md"
        shutil.copy(PAGE, page)
        result = self.table("--keep-times", "--page", page)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(page.read_text(), PAGE.read_text(), "run tools/hybrid_table.py")

    def test_refuses_a_page_without_its_marks(self):
        page = self.write("page.md", "nothing\n")
        result = self.table("--keep-times", "--page", page)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"^hybrid_table\.py: .*page\.md: has no lines <!-- begin .* and <!-- end -->; "
                                        r"copy them from results/hybrid/README\.md\n$")
