"""isobar-exec with other texts for all failures: restarts, named ranks, new plans, exit codes and checkpoints stay the same."""

import json
import os
import pathlib
import resource
import signal
import unittest.mock

from tests.cli.breakable_runs import SOME_STEPS, BreakableRuns
from tests.cli.faults_test import free_ports
from tests.cli.support import ISOBAR, children_of


class RewordedFailures(BreakableRuns):
    isobar = os.environ["ISOBAR_REWORDED"]

    def setUp(self):
        super().setUp()
        path = f"{pathlib.Path(ISOBAR).parent}:{os.environ['PATH']}"  # for --replan
        self.enterContext(unittest.mock.patch.dict(os.environ, PATH=path))
        self.kept = self.folder / "kept"

    def reworded_errors_of(self, process, code):
        errors = self.errors_of(process, code)
        for text in ("signal 9 (Killed)", "No space left", "File too large", "training has diverged"):
            self.assertNotIn(text, errors)
        return errors

    def test_a_killed_rank_is_restarted_from_its_checkpoint(self):
        self.planned()
        undisturbed = self.undisturbed()
        process = self.start("--spawn", "--restart", 2, "--checkpoint", self.kept, "--checkpoint-every", 10,
                             steps=SOME_STEPS)
        self.wait_for_step(25, process)
        supervised, = children_of(process.pid)
        os.kill(children_of(supervised)[1], signal.SIGKILL)
        self.assertRegex(self.reworded_errors_of(process, code=0),
                         r"isobar: attempt 1 of 3 failed: reworded:.*; continuing from step [1-9]0\n")
        self.assertEqual(self.losses(process), undisturbed)

    def test_a_killed_rank_that_was_started_separately_is_awaited(self):
        self.planned()
        undisturbed = self.undisturbed()
        ports = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
        processes = [self.start("--rank", rank, "--ranks", ports, "--secret-file", self.secret, "--restart", 2,
                                "--checkpoint", self.kept, "--checkpoint-every", 10, steps=SOME_STEPS)
                     for rank in range(2)]
        self.wait_for_step(25, processes[1])
        os.kill(children_of(processes[1].pid)[0], signal.SIGKILL)
        for process in processes:
            self.assertRegex(self.reworded_errors_of(process, code=0),
                             "isobar: attempt 1 of 3 failed: reworded:")
        self.assertEqual(self.losses(processes[1]), undisturbed)

    def test_the_lost_device_is_left_out(self):
        self.planned(("a", "b", "c"))
        undisturbed = self.undisturbed()
        process = self.start("--spawn", "--replan", self.platform, "--checkpoint", self.kept, "--checkpoint-every",
                             10, steps=SOME_STEPS)
        self.wait_for_step(25, process)
        supervised, = children_of(process.pid)
        os.kill(children_of(supervised)[1], signal.SIGKILL)
        self.reworded_errors_of(process, code=0)
        new_plan = self.folder / "plan.without-1.json"
        self.assertEqual(json.loads(new_plan.read_text())["without"], ["b"])
        self.assertEqual(self.losses(process), undisturbed)

    def test_a_device_out_of_memory_ends_the_run_by_the_machines_fault(self):
        self.planned(("a", "b", "c"))
        content = json.loads(pathlib.Path(self.plan).read_text())
        content["stages"][1]["devices"][0]["memory_bytes"] = 100_000
        pathlib.Path(self.plan).write_text(json.dumps(content))
        process = self.start("--spawn", "--emulate", "--unvalidated", steps=1)
        self.assertRegex(self.reworded_errors_of(process, code=3), r"\Aisobar: reworded:.*\n\Z")

    def test_no_device_is_left_out_because_a_checkpoint_cannot_be_written(self):
        self.planned(("a", "b", "c"))
        process = self.start("--spawn", "--replan", self.platform, "--checkpoint", self.kept, "--checkpoint-every",
                             10, steps=SOME_STEPS)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
        self.assertRegex(self.reworded_errors_of(process, code=3), r"\Aisobar: reworded:.*\n\Z")
        self.assertEqual(list(self.folder.glob("plan.without-*")), [])

    def test_a_fault_of_the_inputs_is_not_repeated_and_ends_both_ranks_alike(self):
        self.planned()
        workload = pathlib.Path(self.workload)
        workload.write_text(workload.read_text().replace("adam", "sgd").replace("0.01", "1e30"))
        self.plan = self.make_plan(self.platform, self.workload, "--microbatches", 4)
        ports = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
        processes = [self.start("--rank", rank, "--ranks", ports, "--secret-file", self.secret, "--restart", 2,
                                "--unvalidated") for rank in range(2)]
        for process in processes:
            self.assertRegex(self.reworded_errors_of(process, code=2), r"\Aisobar: reworded:.*\n\Z")

    def test_an_interrupt_is_reported_as_one(self):
        self.planned()
        process = self.start("--spawn", "--restart", 2)
        self.wait_for_step(2, process)
        process.send_signal(signal.SIGINT)
        self.assertRegex(self.errors_of(process, code=130),
                         r"\Aisobar: interrupted; \d+ of .* steps are done\n\Z")
