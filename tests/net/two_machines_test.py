"""docs/launch.md, "Two machines, step by step": its commands as they stand, on two hosts with the page's addresses.

Each host is a network namespace with a folder of its own, like that of any page of the documentation. Only scp is a
stand-in, which copies to the other host's folder: so B has no file that the page does not copy.
"""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

from tests.cli.launch_test import clean_environment
from tests.cli.support import HANG_S, ISOBAR, descendants_of
from tests.docs.pages import ROOT, Folder, blocks_of
from tests.support.peers import peers_environment, why_no_peers
from tools import network_bed

PAGE = "docs/launch.md"
SECTION = "Two machines, step by step"
ADDRESSES = {"A": "10.0.0.1", "B": "10.0.0.2"}
# The line before a block names where it runs; remarks for the tests may follow.
PLACE = re.compile(r"^\*\*On (A|B|both):\*\*\s*(?:<!--[^>]*-->\s*)*\Z", re.MULTILINE)
ASSIGNMENTS = re.compile(r"(?:\w+=\S+\n)+")

# scp [-p] FILE... HOST:[PATH]
SCP = """#!/bin/bash
set -eu
target=${@: -1}
cp "${@:1:$#-1}" "$MACHINES/${target/://}"
"""
TORCHRUN = f"""#!/bin/sh
exec {sys.executable} -m torch.distributed.run "$@"
"""


def section_of(page):
    _, _, rest = (ROOT / page).read_text().partition(f"\n## {SECTION}\n")
    return rest.partition("\n## ")[0]


def steps_of(section):
    """(names of the machines, block) of each block, in the page's order."""
    lines = section.splitlines(keepends=True)
    for block in blocks_of(section):
        place = PLACE.search("".join(lines[:block.line - 1]))
        if not place:
            raise AssertionError(f"{PAGE}: no line says where this runs:\n{block.text}")
        yield tuple(ADDRESSES) if place[1] == "both" else (place[1],), block


class Machine:
    """A host: its namespace, its folder, and the variables that its shell has."""

    def __init__(self, name, machines):
        self.namespace = f"isobar-{os.getpid()}-{name}"  # removed by the next bed if this process is killed
        path = machines / ADDRESSES[name]
        path.mkdir()
        self.folder = Folder(path, ISOBAR)
        self.variables = ""
        for command, script in (("scp", SCP), ("torchrun", TORCHRUN)):
            file = path / ".commands" / command
            file.write_text(script)
            file.chmod(0o755)

    def start(self, block):
        if ASSIGNMENTS.fullmatch(block.text):
            self.variables += block.text
        environment = peers_environment() if "torchrun" in block.text else clean_environment()
        environment |= {"PATH": self.folder.environment["PATH"], "MACHINES": str(self.folder.path.parent)}
        script = f"set -euo pipefail\n{self.variables}{block.text}"
        return subprocess.Popen(["ip", "netns", "exec", self.namespace, "bash", "-c", script], cwd=self.folder.path,
                                env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)


def remove_namespace(name):
    with network_bed.uninterrupted():
        network_bed.run("ip", "netns", "del", name)


@contextlib.contextmanager
def two_machines(folder):
    """Machines by name, joined by one wire. Raises network_bed.Unavailable."""
    network_bed.check_available()
    network_bed.remove_leftovers()
    machines = {name: Machine(name, folder) for name in ADDRESSES}
    a, b = (machine.namespace for machine in machines.values())
    with contextlib.ExitStack() as namespaces:
        for namespace in (a, b):
            network_bed.run("ip", "netns", "add", namespace)
            namespaces.callback(remove_namespace, namespace)
            network_bed.run("ip", "-n", namespace, "link", "set", "lo", "up")
        network_bed.run("ip", "-n", a, "link", "add", "nic", "type", "veth", "peer", "name", "nic", "netns", b)
        for name, machine in machines.items():
            network_bed.run("ip", "-n", machine.namespace, "address", "add", f"{ADDRESSES[name]}/24", "dev", "nic")
            network_bed.run("ip", "-n", machine.namespace, "link", "set", "nic", "up")
        yield machines


def end(process):
    """Ends a command and all that it started, by their ids."""
    if process.poll() is None:
        for pid in [*descendants_of(process.pid), process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    process.communicate()


class TwoMachines(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        try:
            self.machines = self.enterContext(two_machines(self.root))
        except network_bed.Unavailable as reason:
            self.skipTest(f"no namespaces: {reason}")

    def run_step(self, names, block):
        """Runs a block on these machines at the same time. Returns what each of them printed, by name."""
        with contextlib.ExitStack() as processes:
            started = {}
            for name in names:
                started[name] = self.machines[name].start(block)
                processes.callback(end, started[name])
            printed = {name: process.communicate(timeout=HANG_S)[0] for name, process in started.items()}
            codes = {name: process.returncode for name, process in started.items()}
        self.assertEqual(codes, dict.fromkeys(names, block.exit_code), "\n".join([block.text, *printed.values()]))
        return printed

    def has(self, name, file):
        return (self.machines[name].folder.path / file).exists()

    def test_the_commands_of_the_page_do_what_it_says(self):
        section = section_of(PAGE)
        trained = 0
        skipped = ""
        steps = list(steps_of(section))
        self.assertGreater(len(steps), 5)
        for names, block in steps:
            self.assertEqual((block.language, block.run_by), ("sh", "tests/net/two_machines_test.py"), block.text)
            if block.text.startswith("torchrun") and (reason := why_no_peers()):
                skipped = reason
                continue
            printed = self.run_step(names, block)
            if "isobar profile" in block.text:
                for file in ("live.xml", "live.profile.json", "live.links.csv"):
                    self.assertEqual((self.has("A", file), self.has("B", file)), (True, False), file)
            if "isobar run" in block.text:
                trained += 1
                # A has the plan's first stage, which prints the result; B has the last one, which prints the steps.
                self.assertIn("(median after the first)", printed["A"])
                self.assertRegex(printed["B"], r"(?m)^ *step +loss ")
        self.assertGreaterEqual(trained, 1)
        if skipped:
            self.skipTest(f"all commands but torchrun's: {skipped}")


if __name__ == "__main__":
    unittest.main()
