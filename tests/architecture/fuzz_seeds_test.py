"""Checks the fuzzers' seeds in git: every fuzzer has some, at most 20, and each is named for what it shows.

fuzz_seeds_test.py ROOT prints a line for each fault and exits with 1 if there is one. What a fuzzer finds is named by its
SHA-1 and kept outside of the repository (tools/fuzz.sh).
"""
import pathlib
import re
import sys
import tempfile
import unittest

MOST_SEEDS = 20
# A hash, or what libFuzzer calls an input that fails, such as crash-0a1b….
UNNAMED = re.compile(r"((crash|leak|oom|slow-unit|timeout)-)?[0-9a-f]{16,}")


def faults(root):
    """A line for each fault below `root`, the repository's folder."""
    found = []
    fuzz = root / "tests/fuzz"
    names = {path.stem for path in fuzz.glob("fuzz_*.cpp")}
    if not names:
        found.append(f"{fuzz}: no fuzzer, no check")
    for kind in ("corpus", "crashes"):
        for folder in sorted(path for path in (fuzz / kind).glob("*") if path.name not in names):
            found.append(f"{folder}: belongs to no fuzzer")
    for name in sorted(names):
        seeds = sorted((fuzz / "corpus" / name).glob("*"))
        if not seeds:
            found.append(f"{fuzz / 'corpus' / name}: no seed; a fuzzer begins with one")
        if len(seeds) > MOST_SEEDS:
            found.append(f"{fuzz / 'corpus' / name}: {len(seeds)} seeds; keep at most {MOST_SEEDS}, which differ in what they show")
        for seed in seeds + sorted((fuzz / "crashes" / name).glob("*")):
            if UNNAMED.fullmatch(seed.stem):
                found.append(f"{seed}: named by a hash; name it for what it shows")
    return found


class Faults(unittest.TestCase):
    """The check itself, on folders that it must accept or refuse."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        self.corpus = self.root / "tests/fuzz/corpus/fuzz_a"
        self.corpus.mkdir(parents=True)
        (self.root / "tests/fuzz/fuzz_a.cpp").touch()
        (self.corpus / "valid.json").touch()

    def test_few_named_seeds_pass(self):
        self.assertEqual(faults(self.root), [])

    def test_a_seed_too_many_is_refused(self):
        for i in range(20):
            (self.corpus / f"seed_{i}").touch()
        self.assertEqual(faults(self.root), [f"{self.corpus}: 21 seeds; keep at most 20, which differ in what they show"])

    def test_hashes_are_no_names(self):
        crashes = self.root / "tests/fuzz/crashes/fuzz_a"
        crashes.mkdir(parents=True)
        unnamed = [self.corpus / "0019ca3b89e796b926a22aab718f81e95891d052",
                   crashes / "crash-0019ca3b89e796b926a22aab718f81e95891d052"]
        for path in unnamed:
            path.touch()
        self.assertEqual(faults(self.root), [f"{path}: named by a hash; name it for what it shows" for path in unnamed])

    def test_a_fuzzer_without_seeds_and_seeds_without_a_fuzzer_are_refused(self):
        self.corpus.rename(self.corpus.with_name("fuzz_b"))
        self.assertEqual(faults(self.root), [f"{self.corpus.with_name('fuzz_b')}: belongs to no fuzzer",
                                             f"{self.corpus}: no seed; a fuzzer begins with one"])


if __name__ == "__main__":
    tests = unittest.TestLoader().loadTestsFromTestCase(Faults)
    passed = unittest.TextTestRunner(verbosity=0).run(tests).wasSuccessful()
    found = faults(pathlib.Path(sys.argv[1]))
    print("\n".join(found))
    sys.exit(1 if found or not passed else 0)
