"""Every shell example prints what the text beside it shows."""
import os
import tempfile
import unittest

from tests.docs.pages import ROOT, Folder, matches


class ShellExamples(unittest.TestCase):
    maxDiff = None

    def test_each_prints_what_stands_in_its_text(self):
        scripts = sorted((ROOT / "examples/shell").glob("*.sh"))
        self.assertGreater(len(scripts), 3)
        for script in scripts:
            with self.subTest(script.name), tempfile.TemporaryDirectory() as path:
                printed, code = Folder(path, os.environ["ISOBAR"]).run(f"sh examples/shell/{script.name}")
                self.assertEqual(code, 0, printed)
                shown = script.with_suffix(".txt").read_text()
                if not matches(shown, printed):
                    self.assertEqual(printed, shown)


if __name__ == "__main__":
    unittest.main()
