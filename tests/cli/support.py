"""Helpers of the tests of the command: running it, and small inputs."""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
ISOBAR = os.environ["ISOBAR"]
# Ends a test that hangs; long enough for the slowest machine.
HANG_S = 600
SKY16 = "platforms/sky16.xml"
BERT24 = "workloads/bert24.yaml"

# Two devices of 1 and 2 TFLOP/s, 10 ms and 1 GB/s between them.
PLATFORM = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <zone id="z" routing="Full">
    <host id="slow" speed="1Tf"><prop id="memory" value="MEMORY"/></host>
    <host id="fast" speed="2Tf"><prop id="memory" value="MEMORY"/></host>
    <link id="wire" bandwidth="1GBps" latency="10ms"/>
    <route src="slow" dst="fast"><link_ctn id="wire"/></route>
  </zone>
</platform>
"""

# Three layers of 1 TFLOP forward and 2 back, 1 GB of activations and 0.1 GB between each two.
WORKLOAD = """model: layers
micro_batch: 1
dtype: float32
optimizer: sgd
layers:
  - {name: a, forward: "1 TFLOP", parameters: 1000, activations: "1 GB", output: "0.1 GB"}
  - {name: b, forward: "1 TFLOP", parameters: 1000, activations: "1 GB", output: "0.1 GB"}
  - {name: c, forward: "1 TFLOP", parameters: 1000, activations: "1 GB", output: "0 B"}
"""


# A generated model whose micro-batch may have another size.
GPT = """model: gpt
layers: 4
hidden: 64
heads: 4
vocabulary: 1000
sequence: 32
micro_batch: 4
"""


def children_of(pid):
    try:
        return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def descendants_of(pid):
    found = []
    for child in children_of(pid):
        found += [child, *descendants_of(child)]
    return found


def worked_s(pid):
    """Processor time of a process and its descendants."""
    ticks = 0
    for one in (pid, *descendants_of(pid)):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = pathlib.Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += sum(map(int, fields[11:15]))  # its own and that of ended children
    return ticks / os.sysconf("SC_CLK_TCK")


BUSY_NOTE = r"isobar: .* waited for a processor .*\n"
LATE_NOTE = r"isobar: .* took .* that the plan predicts.*\n"


def without_notes(errors, notes=f"{BUSY_NOTE}|{LATE_NOTE}"):
    """The stderr of a run without warnings that it is late or that the machine was busy, as a test machine may be."""
    return re.sub(f"^({notes})", "", errors, flags=re.MULTILINE)


def holds(condition):
    """Waits until `condition` holds; returns False after HANG_S."""
    end = time.monotonic() + HANG_S
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


class CommandTest(unittest.TestCase):
    """Runs isobar in the repository's root; `self.folder` is a new folder for what it writes."""

    maxDiff = None
    hang_s = HANG_S

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def write(self, name, content):
        path = self.folder / name
        path.write_text(content)
        return str(path)

    def secret_file(self, name="secret"):
        """A new secret in a file that others may not read."""
        path = pathlib.Path(self.write(name, os.urandom(32).hex()))
        path.chmod(0o600)
        return str(path)

    def small_inputs(self, memory="16 GB"):
        return self.write("small.xml", PLATFORM.replace("MEMORY", memory)), self.write("small.yaml", WORKLOAD)

    def gpt_inputs(self):
        return self.write("small.xml", PLATFORM.replace("MEMORY", "16 GB")), self.write("gpt.yaml", GPT)

    def run_isobar(self, *arguments, expect=0):
        result = subprocess.run([ISOBAR, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True,
                                timeout=self.hang_s)
        self.assertEqual(result.returncode, expect, result.stdout + result.stderr)
        return result

    def json_of(self, *arguments, expect=0):
        return json.loads(self.run_isobar(*arguments, "--json", expect=expect).stdout)

    def fault_of(self, *arguments, expect=2):
        """The one line of a refusal, without the command's name."""
        result = self.run_isobar(*arguments, expect=expect)
        self.assertEqual(result.stdout, "")
        self.assertTrue(result.stderr.startswith("isobar: "), result.stderr)
        return result.stderr.removeprefix("isobar: ").rstrip("\n")

    def make_plan(self, platform, workload, *options, allocator="even", expect=0):
        plan = str(self.folder / "plan.json")
        self.run_isobar("plan", platform, workload, "--allocator", allocator, "-o", plan, *options, expect=expect)
        return plan
