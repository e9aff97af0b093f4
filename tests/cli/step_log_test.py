"""The logs of isobar run: JSON lines, TensorBoard events as TensorBoard reads them, Prometheus text."""

import json
import shutil
import subprocess
import sys
import unittest

from tests.cli.run_test import MODEL
from tests.cli.support import HANG_S, ISOBAR, ROOT, CommandTest
from tests.support.peers import need_peers, peers_environment

# TensorBoard shows float32.
SCALARS_OF_FOLDER = """
import json
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
print(json.dumps({tag: [(event.step, event.value) for event in events.Scalars(tag)]
                  for tag in events.Tags()["scalars"]}))
"""


class StepLog(CommandTest):
    def setUp(self):
        super().setUp()
        platform, _ = self.small_inputs()
        self.workload = self.write("model.yaml", MODEL)
        self.plan = self.make_plan(platform, self.workload, "--microbatches", 2)
        self.log, self.events = self.folder / "log.jsonl", self.folder / "events"

    def run_steps(self, *options, expect=0):
        return self.run_isobar("run", self.workload, "--plan", self.plan, "--unvalidated", *options, expect=expect)

    def logged(self):
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def assert_shown(self, steps):
        """TensorBoard shows exactly these lines of the log."""
        read = subprocess.run([sys.executable, "-c", SCALARS_OF_FOLDER, str(self.events)], env=peers_environment(),
                              capture_output=True, text=True, timeout=HANG_S)
        self.assertEqual(read.returncode, 0, read.stderr)
        shown = json.loads(read.stdout)
        self.assertEqual(set(shown), set(steps[0]) - {"step"})
        for tag, scalars in shown.items():
            self.assertEqual([step for step, _ in scalars], [line["step"] for line in steps])
            for (_, value), line in zip(scalars, steps):
                self.assertAlmostEqual(value, line[tag], delta=1e-6 * abs(line[tag]))

    def test_the_log_has_the_learning_rate_of_each_step_also_of_a_resumed_run(self):
        platform, _ = self.small_inputs()
        self.workload = self.write("model.yaml", MODEL + "warmup_steps: 2\nlearning_rate_decay: linear\ndecay_steps: 6\n")
        self.plan = self.make_plan(platform, self.workload, "--microbatches", 2)
        kept = ("--spawn", "--log", self.log, "--checkpoint", self.folder / "kept")
        self.run_steps("--steps", 3, *kept)
        self.run_steps("--steps", 8, *kept, "--resume")
        self.assertEqual([round(line["learning_rate"], 12) for line in self.logged()],
                         [0, 0.005, 0.01, 0.0075, 0.005, 0.0025, 0, 0])

    def test_tensorboard_shows_the_values_of_the_log(self):
        need_peers()
        logs = ("--log", self.log, "--tensorboard", self.events)
        self.run_steps("--spawn", "--steps", 5, *logs)
        steps = self.logged()
        self.assertEqual([line["step"] for line in steps], [0, 1, 2, 3, 4])
        self.assertEqual({line["learning_rate"] for line in steps}, {0.01})
        self.assertGreater(steps[-1]["peak_memory_bytes"], 0)
        self.assert_shown(steps)
        # Another run into the same folder replaces the steps of the first.
        self.run_steps("--in-process", "--steps", 3, *logs)
        self.assertEqual(len(list(self.events.iterdir())), 2)
        self.assert_shown(self.logged())

    def test_repeated_steps_are_logged_once(self):
        need_peers()
        checkpoints = self.folder / "checkpoints"
        options = ("--in-process", "--checkpoint", checkpoints, "--checkpoint-every", 2, "--log", self.log,
                   "--tensorboard", self.events)
        self.run_steps(*options, "--steps", 4)
        undisturbed = [line["loss"] for line in self.logged()]
        shutil.rmtree(checkpoints / "step-00000004")
        self.run_steps(*options, "--steps", 6, "--resume")
        steps = self.logged()
        self.assertEqual([line["step"] for line in steps], [0, 1, 2, 3, 4, 5])
        self.assertEqual([line["loss"] for line in steps][:4], undisturbed)
        self.assert_shown(steps)

    def test_prometheus_reads_the_last_step(self):
        metrics = self.folder / "isobar.prom"
        self.run_steps("--in-process", "--steps", 3, "--log", self.log, "--prometheus", metrics)
        values = dict(line.split() for line in metrics.read_text().splitlines() if not line.startswith("#"))
        last = self.logged()[-1]
        self.assertEqual(float(values["isobar_steps_total"]), 3)
        self.assertEqual(float(values["isobar_loss"]), last["loss"])
        self.assertEqual(float(values["isobar_samples_per_second"]), last["samples_per_s"])
        self.assertEqual([path.name for path in self.folder.glob("isobar.prom*")], ["isobar.prom"])

    def test_only_the_rank_with_the_loss_writes_the_log(self):
        ranks, secret = "127.0.0.1:21751,127.0.0.1:21752", self.secret_file()
        processes = [subprocess.Popen([ISOBAR, "run", self.workload, "--plan", self.plan, "--unvalidated", "--rank",
                                       str(rank), "--ranks", ranks, "--secret-file", secret, "--steps", "3", "--log",
                                       self.log, "--tensorboard", self.events], cwd=ROOT, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True)
                     for rank in (0, 1)]
        printed = [process.communicate(timeout=HANG_S) for process in processes]
        self.assertEqual([process.returncode for process in processes], [0, 0], printed)
        self.assertEqual([line["step"] for line in self.logged()], [0, 1, 2])
        self.assertEqual(len(list(self.events.iterdir())), 1)

    def test_an_output_that_cannot_be_written_ends_the_run_before_training(self):
        file = self.write("file", "")
        for option, place in (("--prometheus", self.folder / "no/such/folder"), ("--tensorboard", file)):
            result = self.run_steps("--in-process", "--steps", 1, option, place, expect=3)
            self.assertRegex(result.stderr, f"^isobar: {place}: cannot write there: .*\n$")
            self.assertEqual(result.stdout, "")


if __name__ == "__main__":
    unittest.main()
