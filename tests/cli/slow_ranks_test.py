"""Ranks a hundred times slower than the platform of their plan, on overloaded processors; takes some minutes."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys

from tests.cli.support import ISOBAR, ROOT, CommandTest

BUSY_LOOPS = 8
LONGEST_S = 3600
MODEL = """model: gpt
layers: 6
hidden: 768
heads: 12
vocabulary: 8192
sequence: 512
micro_batch: 4
"""


@contextlib.contextmanager
def busy_loops(count):
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


class SlowRanks(CommandTest):
    def test_finish_without_an_option_on_overloaded_processors_and_report_how_late_they_are(self):
        workload = self.write("gpt.yaml", MODEL)
        plan = self.make_plan("platforms/sky4.xml", workload, "--microbatches", 8, allocator="chain-dp")
        predicted_s = json.loads(pathlib.Path(plan).read_text())["predicted"]["step_time_s"]
        result = self.folder / "result.json"
        command = [ISOBAR, "run", workload, "--plan", plan, "--spawn", "--unvalidated", "--steps", 2, "-o", result]
        with busy_loops(BUSY_LOOPS):
            run = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_S)
        self.assertEqual(run.returncode, 0, run.stderr)
        steps_s = json.loads(result.read_text())["step_times_s"]
        self.assertGreater(min(steps_s), 10 * predicted_s)  # otherwise this machine is too fast for the test
        self.assertRegex(run.stderr, r"times the [\d.]+ m?s that the plan predicts")
        print(f"{os.cpu_count()} processors, {BUSY_LOOPS} busy loops: steps of {steps_s} s, {predicted_s} s predicted")
