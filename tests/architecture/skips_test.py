"""The list of tests that may be skipped."""
import importlib.util
import pathlib
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("check_skips", ROOT / "tools/check_skips.py")
check_skips = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(check_skips)

LOG = """
98% tests passed, 0 tests failed out of 100

The following tests did not run:
\t 12 - exec.Spmd.DISABLED_TakesAllDegrees (Disabled)
\t 40 - gpu.Streams.Overlap (Skipped)
\t 77 - cli.slurm (Skipped)
"""


class Skips(unittest.TestCase):
    def test_names_a_skipped_test_that_no_pattern_matches(self):
        self.assertEqual(check_skips.unexpected_skips(LOG, ["gpu.*"]), ["cli.slurm"])

    def test_accepts_skips_of_the_list_and_disabled_tests(self):
        self.assertEqual(check_skips.unexpected_skips(LOG, ["gpu.*", "cli.slurm"]), [])

    def test_reads_a_pattern_and_a_reason_from_each_line(self):
        self.assertEqual(check_skips.allowed_patterns("# why\n\ngpu.*   there is no GPU\n"), ["gpu.*"])


if __name__ == "__main__":
    unittest.main()
