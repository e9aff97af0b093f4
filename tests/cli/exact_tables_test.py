"""tools/exact_tables.py on the smallest instances: it runs, and its rows are consistent."""

import csv
import subprocess
import sys

from tests.cli.support import HANG_S, ISOBAR, ROOT, CommandTest


class ExactTables(CommandTest):
    def test_writes_a_row_for_each_spread_and_fill_and_how_to_make_it_again(self):
        result = subprocess.run([sys.executable, ROOT / "tools/exact_tables.py", "--isobar", ISOBAR, "--tables",
                                 "bottleneck", "--nodes", "4", "--encoders", "10", "--no-large", "--time-limit", "5",
                                 "--sky-time-limit", "2", "--verify-limit", "0", "-o", self.folder],
                                capture_output=True, text=True, timeout=HANG_S)
        self.assertEqual(result.returncode, 0, result.stderr)
        with (self.folder / "bottleneck.csv").open() as file:
            rows = list(csv.DictReader(file))
        skies = [row for row in rows if row["platform"] == "sky4"]
        self.assertEqual([(row["speed_spread"], row["memory_filled_fraction"]) for row in skies],
                         [(spread, fill) for spread in ("2", "4", "7") for fill in ("", "0.6", "0.8", "0.95")])
        for row in skies:
            self.assertLessEqual(float(row["objective_bound_s"]), float(row["objective_s"]))
        # Less memory leaves fewer placements.
        for spread in ("2", "4", "7"):
            objectives = [float(row["objective_s"]) for row in skies if row["speed_spread"] == spread]
            self.assertEqual(objectives, sorted(objectives))
        self.assertEqual(rows[-1]["platform"], "types8x8")
        self.assertIn("--nodes 4 --encoders 10", (self.folder / "README.md").read_text())
