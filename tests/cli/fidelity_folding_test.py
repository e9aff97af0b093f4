"""isobar fidelity: steps of which equal ranks are simulated once take as long as those of all ranks."""

import csv
import pathlib

from tests.cli.support import ROOT, CommandTest

MEASURED = ROOT / "results/fidelity/measured"
# Rows whose ranks are few enough to simulate all of them.
ROWS = {
    "sailor_gh200_opt350": None,
    "megatron_sc21": {"sc21-1.7B", "sc21-3.6B", "sc21-7.5B"},
    "megatron_seqsel": {"seq-22B-full", "seq-22B-sel", "seq-175B-full"},
    "mpt_h100": {"7b-s2048-n8-b48"},
}


class Folding(CommandTest):
    def table(self, name, chosen):
        """Rows of a set, with the paths of their files from the folder of the test."""
        with (MEASURED / f"{name}.csv").open(newline="") as file:
            reader = csv.DictReader(file)
            rows = [row for row in reader if chosen is None or row["row"] in chosen]
        self.assertEqual(chosen or {row["row"] for row in rows}, {row["row"] for row in rows})
        for row in rows:
            for column in ("platform", "workload", "plan"):
                if row[column]:
                    row[column] = str((MEASURED / row[column]).resolve())
            row["profiles"] = ";".join(str((MEASURED / path).resolve()) for path in row["profiles"].split(";") if path)
        path = self.folder / f"{name}.csv"
        with pathlib.Path(path).open("w", newline="") as file:
            writer = csv.DictWriter(file, reader.fieldnames, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        return path

    def test_folded_steps_take_as_long_as_those_of_all_ranks(self):
        tables = [self.table(name, chosen) for name, chosen in ROWS.items()]
        folded, unfolded = (self.json_of("fidelity", *tables, *options)["rows"] for options in ((), ("--unfolded",)))
        self.assertGreaterEqual(len(folded), 20)
        self.assertGreaterEqual(sum(row["folded"] for row in folded), 20)
        for one, other in zip(folded, unfolded):
            with self.subTest(row=one["row"]):
                self.assertEqual((one["status"], other["status"], other["folded"]), ("predicted", "predicted", False))
                self.assertAlmostEqual(other["predicted_s"] / one["predicted_s"], 1, delta=1e-6)
