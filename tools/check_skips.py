#!/usr/bin/env python3
"""Fails if ctest skipped a test that tests/skips.txt does not name.

check_skips.py LOG reads what ctest printed. A line of tests/skips.txt is a pattern of names of tests, as in a shell, and why
they are skipped where CI runs. Tests that are disabled are not skipped: .ci/full runs them by name.
"""
import fnmatch
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
SKIPPED = re.compile(r"^\s+\d+ - (?P<name>.+) \((?P<why>Skipped|Not Run)\)$", re.MULTILINE)


def allowed_patterns(text):
    """The patterns of a list of skips, without comments."""
    return [line.split()[0] for line in text.splitlines() if line.strip() and not line.startswith("#")]


def unexpected_skips(log, patterns):
    """Names of skipped tests that no pattern matches."""
    names = [match["name"] for match in SKIPPED.finditer(log)]
    return [name for name in names if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def main(log):
    found = unexpected_skips(pathlib.Path(log).read_text(), allowed_patterns((ROOT / "tests/skips.txt").read_text()))
    for name in found:
        print(f"{name}: skipped; install what it lacks, or name it in tests/skips.txt with the reason")
    return 5 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
