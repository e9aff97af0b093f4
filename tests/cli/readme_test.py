"""Each command that the README shows is run, and must print what the README shows below it."""

import re
import subprocess

from tests.cli.support import HANG_S, ISOBAR, ROOT, CommandTest
from tests.cli.trace import assert_is_trace

# ```console, then "$ command" lines, each followed by its output.
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands_of(readme):
    for block in BLOCK.findall(readme):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


class Readme(CommandTest):
    def demo(self):
        """What ./demo does once it has built."""
        _, _, script = (ROOT / "demo").read_text().partition("isobar=build/release/bin/isobar kept=build/demo\n")
        script = script.replace("$isobar ", "isobar ").replace("$kept", "/tmp/demo")
        return re.sub(r"(-o|--trace) (report\.html|trace\.json)", r"\1 /tmp/\2", script)

    def test_every_command_prints_what_the_readme_shows(self):
        shown = list(commands_of((ROOT / "README.md").read_text()))
        self.assertGreaterEqual(len(shown), 4)
        for command, output in shown:
            if command in ("./test",):
                continue  # the test that runs this one
            # Files go to a folder of the test's own.
            line = command.replace("./demo", self.demo()).replace("/tmp/", f"{self.folder}/")
            line = re.sub(r"^isobar ", f"'{ISOBAR}' ", line, flags=re.MULTILINE)
            with self.subTest(command):
                result = subprocess.run(line, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S)
                printed = (result.stdout + result.stderr).replace(f"{self.folder}/", "/tmp/")
                self.assertEqual(printed.replace("/tmp/report.html: ", "report.html: "), output)
        self.assertTrue((self.folder / "report.html").read_text().startswith("<!doctype html>"))
        assert_is_trace(self, self.folder / "trace.json")
