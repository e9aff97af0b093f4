"""Runs the command blocks of a page of documentation, and compares what they print with what the page shows.

pages.py PAGE... runs pages below the repository's root; the variable ISOBAR names the command. A page's blocks run in their order
in one new folder, which has the repository's platforms, workloads and examples, so that a block may use the files of earlier ones.

  ```console   "$ command" lines, each followed by all that it prints, on both streams. In what is shown, … stands
               for any text within a line, and a line of … alone for any lines.
  ```sh        commands that must succeed; what they print is not compared.

Every block names its language. A comment before a block says what is otherwise: <!-- exit code 4 --> what the last command
of the block exits with; <!-- run by tests/cli/launch_test.py --> that this test, which names the page, runs it.

pages.py --write PAGE... puts what console blocks print now into the pages.
"""
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
HANG_S = 600
COMMANDS = ("console", "sh")
BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>\S*)[^\n]*\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL)
REMARK = re.compile(r"<!-- (?:exit code (?P<code>\d+)|run by (?P<test>\S+)) -->\s*\Z")
# Notes that depend on how busy the machine is.
NOTES = re.compile(r"^isobar: .*( waited for a processor | that the plan predicts).*\n", re.MULTILINE)
# What builds before it runs, or runs all tests: what it does once it has built, or nothing.
NOT_RUN = ("./test",)


class Fault(Exception):
    """A page that does not say what happens."""


@dataclasses.dataclass
class Block:
    line: int
    language: str
    text: str
    exit_code: int = 0
    run_by: str = ""
    indent: str = ""
    source: str = ""  # as the page has it


def blocks_of(page):
    """The code blocks of a page's text, in their order."""
    for match in BLOCK.finditer(page):
        remark = REMARK.search(page, 0, match.start())
        text = re.sub(f"^{match['indent']}", "", match["text"], flags=re.MULTILINE)
        yield Block(page.count("\n", 0, match.start()) + 1, match["language"], text,
                    int(remark["code"] or 0) if remark else 0, (remark["test"] or "") if remark else "", match["indent"],
                    match["text"])


def commands_of(block):
    """(command, what it prints) of a console block; a command goes on while its lines end with a backslash."""
    before, *parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    if before or not parts:
        raise Fault('a console block that does not begin with "$ "')
    for part in parts:
        lines = part.splitlines(keepends=True)
        count = next(i for i, line in enumerate(lines) if not line.rstrip("\n").endswith("\\")) + 1
        yield "".join(lines[:count]).rstrip("\n"), "".join(lines[count:])


def matches(shown, printed):
    """Whether output is what a page shows; … stands for what differs from run to run."""
    pattern = ""
    for line in shown.splitlines(keepends=True):
        if line.strip() == "…":
            pattern += r"(?:[^\n]*\n)*"
        else:
            pattern += "[^\n]*".join(map(re.escape, line.split("…")))
    return re.fullmatch(pattern, printed) is not None


def demo():
    """What ./demo does once it has built."""
    _, found, script = (ROOT / "demo").read_text().partition("isobar=build/release/bin/isobar kept=build/demo\n")
    if not found:
        raise Fault("./demo has no line that names isobar, after which it only runs")
    return script.replace("$isobar ", "isobar ").replace("$kept", "kept")


class Folder:
    """Where a page's commands run."""

    def __init__(self, path, isobar):
        self.path = pathlib.Path(path)
        for name in ("platforms", "workloads"):
            (self.path / name).symlink_to(ROOT / name)
        for name in ("examples", "results/baselines", "results/sky_study"):
            shutil.copytree(ROOT / name, self.path / name)
        commands = self.path / ".commands"
        commands.mkdir()
        for command in ("isobar", "isobar-exec"):
            (commands / command).symlink_to(pathlib.Path(isobar).resolve().with_name(command))
        self.environment = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}"}

    def run(self, command):
        """What the command printed, and its exit code."""
        result = subprocess.run(["bash", "-c", demo() if command == "./demo" else command], cwd=self.path,
                                env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                timeout=HANG_S, stdin=subprocess.DEVNULL)
        return NOTES.sub("", result.stdout), result.returncode


def rewritten(block, folder):
    """The text of a console block with what its commands print now."""
    text = ""
    for command, shown in commands_of(block):
        printed = shown if command in NOT_RUN else folder.run(command)[0]
        text += f"$ {command}\n{shown if matches(shown, printed) else printed}"
    return text


def run_block(block, folder):
    """@throws Fault naming the first command that does or prints something else."""
    if block.language == "sh":
        printed, code = folder.run("set -euo pipefail\n" + block.text)
        if code != block.exit_code:
            raise Fault(f"exits with {code} instead of {block.exit_code}:\n{block.text}{printed}")
        return
    commands = [(command, shown) for command, shown in commands_of(block) if command not in NOT_RUN]
    for i, (command, shown) in enumerate(commands):
        printed, code = folder.run(command)
        expected = block.exit_code if i == len(commands) - 1 else 0
        if code != expected:
            raise Fault(f"`{command}` exits with {code} instead of {expected}:\n{printed}")
        if not matches(shown, printed):
            raise Fault(f"`{command}` prints\n{printed}instead of\n{shown}")


def run_page(name, isobar):
    """The faults of a page, a text for each, and the number of command blocks that were run."""
    faults, count = [], 0
    with tempfile.TemporaryDirectory() as path:
        folder = Folder(path, isobar)
        for block in blocks_of((ROOT / name).read_text()):
            where = f"{name}:{block.line}"
            try:
                if not block.language:
                    raise Fault("a block without a language; commands are console or sh, what a program prints is text")
                if block.run_by:
                    if name not in (ROOT / block.run_by).read_text():
                        raise Fault(f"{block.run_by} does not name {name}")
                elif block.language in COMMANDS:
                    count += 1
                    run_block(block, folder)
            except Fault as fault:
                faults.append(f"{where}: {fault}")
    return faults, count


def write_page(name, isobar):
    """Puts what the console blocks of a page print now into the page."""
    path = ROOT / name
    page = path.read_text()
    with tempfile.TemporaryDirectory() as folder:
        folder = Folder(folder, isobar)
        for block in blocks_of(page):
            if block.language == "sh" and not block.run_by:
                folder.run(block.text)
            if block.language == "console" and not block.run_by:
                page = page.replace(block.source, textwrap.indent(rewritten(block, folder), block.indent))
    path.write_text(page)


if __name__ == "__main__":
    failed = False
    if sys.argv[1:2] == ["--write"]:
        for page in sys.argv[2:]:
            write_page(page, os.environ["ISOBAR"])
        sys.exit(0)
    for page in sys.argv[1:]:
        found, ran = run_page(page, os.environ["ISOBAR"])
        print("\n".join(found) or f"{page}: {ran} blocks do and print what the page shows")
        failed |= bool(found)
    sys.exit(failed)
