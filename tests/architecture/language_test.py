"""Refuses words and turns of phrase that a reader stumbles over, in texts that users see.

language_test.py ROOT checks, below ROOT: Markdown files outside of code blocks, string literals and `///` comments of
C++ sources, and comments, keys' descriptions and help of YAML, shell and Python files that are shipped. It prints a line
for each finding, with what to write instead, and exits with 1 if there is one.
"""
import pathlib
import re
import sys
import unittest

# What is refused (case does not matter), and what to write instead.
BANNED = {
    r"(?<!--plan-)\banew\b": "again, new",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bforet(old|ell|ells)\b": "predicted, predict",
    r"\bso many\b": "a number, or N",
    r"\bthat (is|are) there\b": "existing, available, present",
    r"\b(is|are|was|were|be|been) said\b": "is given, is set, is reported",
    r"\b(is|are|was|were|be|been) told\b": "is reported, receives",
    r"\bgo(es|ing)? on\b|\bwent on\b": "continue",
    r"\bwhoever\b|\bnobody\b|\bsomebody\b|\bwhosoever\b": "the process, the rank, the caller, no one",
    r"\bstrangers?\b": "unauthenticated peer",
    r"\bdeput(y|ies)\b": "supervised child",
    r"\bswitchboard\b": "connection manager",
    r"\bheed(s|ed|ing)?\b": "obey, honour, respect",
    r"\bwishe?s? (for|to)\b|\bwished\b": "request",
    r"\btakes? leave\b": "leaves",
    r"\bstands? there twice\b": "is listed twice",
    r"\bis no place\b": "is not an address",
    r"\bfinds? what (it|they) looks? for\b|\bfound what (it|they) looks? for\b": "failed",
    r"\binfeasible plan\b": "no feasible plan",
    r"\bpatient stop\b": "graceful stop",
    r"(?!^policy$)(?<!sharing_)(?<!--)(?<!scheduling )\bpolic(y|ies)\b(?! of)": "allocator",
    r"\bsays so\b|\bsay so\b": "reports it, states it",
    r"\bas it were\b|\bthereof\b|\bwherein\b|\bhereof\b|\bthereby\b|\bherein\b": "plain words",
    r"(^|[.!?:] )Of (?!course)[^.;:]{1,60}:": "name the subject first",
}
BANNED = {re.compile(pattern, re.IGNORECASE if not pattern.startswith("(^") else 0): instead
          for pattern, instead in BANNED.items()}

LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
SHIPPED = ("core", "allocators", "schedules", "sim", "results", "exec", "cli")


def texts_of_markdown(text):
    """(line number, text) of each line outside of code blocks, without code spans and links' targets."""
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code:
            yield number, re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "", line))


def texts_of_source(text):
    """(line number, text) of the string literals and documenting comments of C++."""
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.lstrip()
        if stripped.startswith("#include"):
            continue
        if "///" in line:
            yield number, line[line.index("///") + 3:].lstrip("< ")
        elif not stripped.startswith("//"):
            for literal in LITERAL.findall(line):
                yield number, literal


def texts_of_script(text):
    """(line number, text) of the comments of YAML and shell files."""
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.match(r"\s*#[ !]?(.*)", line):
            yield number, match.group(1)


def findings(name, text):
    """A line for each banned phrase in a file."""
    suffix = pathlib.PurePath(name).suffix
    texts = {".md": texts_of_markdown, ".cpp": texts_of_source, ".hpp": texts_of_source, ".cu": texts_of_source}
    for number, line in texts.get(suffix, texts_of_script)(text):
        for pattern, instead in BANNED.items():
            if match := pattern.search(line):
                yield f'{name}:{number}: "{match.group(0).strip()}": write {instead}'


def files(root):
    """Paths of what users see, below the root."""
    yield from sorted(root.glob("*.md"))
    for folder in ("docs", "results", "examples", "workloads", "platforms", "findings"):
        for suffix in ("md", "yaml", "yml", "sh"):
            yield from sorted((root / folder).rglob(f"*.{suffix}"))
    for folder in SHIPPED:
        for suffix in ("hpp", "cpp", "cu"):
            yield from sorted((root / folder).rglob(f"*.{suffix}"))
    yield from (root / name for name in ("demo", "test", "tools/setup.sh"))


class Findings(unittest.TestCase):
    """The check itself, on texts that it must accept or refuse."""

    def test_messages_and_comments_are_checked_and_identifiers_are_not(self):
        text = 'call(mended, "it goes on");\n/// Whoever calls.\n// Nobody sees this.\n'
        self.assertEqual(list(findings("a.cpp", text)), ['a.cpp:1: "goes on": write continue',
                                                         'a.cpp:2: "Whoever": write the process, the rank, the caller, no one'])

    def test_code_in_markdown_is_left_alone(self):
        text = "Use `anew`.\n```\nso many\n```\nThis is so many.\n"
        self.assertEqual(list(findings("a.md", text)), ['a.md:5: "so many": write a number, or N'])

    def test_a_sentence_that_begins_with_of_is_refused(self):
        self.assertEqual(len(list(findings("a.md", "It holds. Of the timed steps: the end.\n"))), 1)
        self.assertEqual(list(findings("a.md", "It holds. The time of the steps: the end.\n")), [])


if __name__ == "__main__":
    tests = unittest.TestLoader().loadTestsFromTestCase(Findings)
    passed = unittest.TextTestRunner(verbosity=0).run(tests).wasSuccessful()
    root = pathlib.Path(sys.argv[1])
    found = [line for path in files(root) for line in findings(path.relative_to(root).as_posix(), path.read_text())]
    only = sys.argv[2:]  # folders to look at; all by default
    found = [line for line in found if not only or line.startswith(tuple(only))]
    print("\n".join(found) or "no banned phrase")
    sys.exit(1 if found or not passed else 0)
