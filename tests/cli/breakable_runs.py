"""Training runs that a test breaks: started in the background, watched through their logs, killed when the test ends."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import time

from tests.cli.support import HANG_S, ISOBAR, ROOT, CommandTest, descendants_of, holds, without_notes

MODEL = """model: gpt
layers: 4
hidden: 32
heads: 2
vocabulary: 60
sequence: 16
micro_batch: 2
optimizer: adam
learning_rate: 0.01
"""

PLATFORM = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <zone id="z" routing="Full">
{hosts}
    <link id="wire" bandwidth="1GBps" latency="1ms"/>
{routes}
  </zone>
</platform>
"""

SOME_STEPS = 60
ENDLESS = 1_000_000


def platform_of(devices):
    hosts = [f'    <host id="{name}" speed="1Tf"><prop id="memory" value="16 GB"/></host>' for name in devices]
    routes = [f'    <route src="{a}" dst="{b}"><link_ctn id="wire"/></route>'
              for i, a in enumerate(devices) for b in devices[i + 1:]]
    return PLATFORM.format(hosts="\n".join(hosts), routes="\n".join(routes))


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def processes_of(run):
    """The live processes with the log of the run on their command line, which are its ranks."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(run.log).encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


class BreakableRuns(CommandTest):
    """Two or more ranks that share a secret."""

    isobar = ISOBAR

    def setUp(self):
        super().setUp()
        self.secret = self.write("secret", "a secret of tests, known to all\n")
        os.chmod(self.secret, 0o600)

    def planned(self, devices=("a", "b"), model=MODEL):
        self.platform = self.write("platform.xml", platform_of(devices))
        self.workload = self.write("model.yaml", model)
        self.plan = self.make_plan(self.platform, self.workload, "--microbatches", 4)
        self.run_isobar("simulate", self.platform, self.workload, "--plan", self.plan, "--stamp")

    def start(self, *options, steps=ENDLESS, begin=subprocess.Popen):
        """Starts a run with its own log, which `wait_for_step` reads; `begin` starts the process, like Popen."""
        log = self.folder / f"log-{time.monotonic_ns()}.jsonl"
        process = begin(
            [self.isobar, "run", self.workload, "--plan", self.plan, "--steps", str(steps), "--log", str(log),
             *map(str, options)], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        process.log = log
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        for pid in descendants_of(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.communicate()

    def wait_for_step(self, step, *processes):
        """Waits until a process has logged that step."""
        def is_logged():
            for process in processes:
                if any(line.get("step", -1) >= step for line in self.logged(process)):
                    return True
                if process.poll() is not None:
                    self.fail(process.stderr.read())
            return False

        self.assertTrue(holds(is_logged), f"no step {step}")

    def logged(self, process):
        lines = process.log.read_text().splitlines() if process.log.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def losses(self, process, first=0):
        """The last loss of each step: steps after a checkpoint are repeated."""
        losses = {line["step"]: line["loss"] for line in self.logged(process) if "loss" in line}
        self.assertEqual(sorted(losses), list(range(first, SOME_STEPS)))
        return losses

    def errors_of(self, process, code=3):
        """The stderr of a run that ends with that code and leaves no process, without warnings that it is slow."""
        errors = without_notes(process.communicate(timeout=HANG_S)[1])
        self.assertEqual(process.returncode, code, errors)
        self.assertEqual(processes_of(process), [])
        return errors

    def undisturbed(self):
        process = self.start("--spawn", steps=SOME_STEPS)
        self.errors_of(process, code=0)
        return self.losses(process)
