"""Messages name the failed rank and its fault, however ranks are started: by one process, one by one, by a launcher."""

import functools
import json
import os
import pathlib
import shutil
import signal
import subprocess

from tests.cli.breakable_runs import ENDLESS, BreakableRuns
from tests.cli.faults_test import free_ports, small_disk
from tests.cli.launch_test import clean_environment
from tests.cli.support import children_of


class NamedFaults(BreakableRuns):
    """Rank 1 (b) has the fault. Each test starts the ranks in every way."""

    def spawned(self, *options, steps=ENDLESS):
        return [self.start("--spawn", *options, steps=steps)]

    def placed(self, *options, steps=ENDLESS):
        places = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
        return [self.start("--rank", rank, "--ranks", places, "--secret-file", self.secret, *options, steps=steps)
                for rank in (0, 1)]

    def launched(self, *options, steps=ENDLESS):
        """With the variables of torchrun."""
        port = str(free_ports(1)[0])

        def environment(rank):
            return clean_environment(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)

        return [self.start("--secret-file", self.secret, *options, steps=steps,
                           begin=functools.partial(subprocess.Popen, env=environment(rank))) for rank in (0, 1)]

    def every_way(self, *options, steps=ENDLESS):
        """The processes that a user starts, for each way of starting; the first one is rank 0 or its parent."""
        for way in (self.spawned, self.placed, self.launched):
            yield way(*options, steps=steps)

    def in_training(self, *options):
        """The same processes once they train, and the id of the process of rank 1."""
        for processes in self.every_way(*options):
            self.wait_for_step(2, *processes)
            yield processes, (processes[1].pid if len(processes) > 1 else children_of(processes[0].pid)[1])

    def test_a_rank_that_is_killed(self):
        self.planned()
        for processes, victim in self.in_training():
            os.kill(victim, signal.SIGKILL)
            self.assertRegex(self.errors_of(processes[0]),
                             r"isobar: rank 1 \(b\)(: died of signal 9 \(Killed\)| is gone)\n\Z")

    def test_a_rank_that_stands_still(self):
        self.planned()
        for processes, victim in self.in_training("--heartbeat", "3s"):
            os.kill(victim, signal.SIGSTOP)
            self.assertRegex(self.errors_of(processes[0]),
                             r"isobar: rank 1 \(b\): no heartbeat for 3 s \(--heartbeat\)\n\Z")

    def test_a_disk_that_is_full(self):
        self.planned()
        disk = small_disk(self, "1600k")  # two checkpoints of 680 KiB
        for processes in self.every_way("--checkpoint", disk, "--checkpoint-every", 10):
            full = rf"{disk}/step-\d+/stage-[01]-of-2.safetensors: cannot write: No space left on device"
            for process in processes:
                self.assertRegex(self.errors_of(process), rf"isobar: .*{full}.*\n\Z")
            for checkpoint in pathlib.Path(disk).glob("step-*"):
                shutil.rmtree(checkpoint)

    def test_a_device_that_is_out_of_memory(self):
        self.planned()
        content = json.loads(pathlib.Path(self.plan).read_text())
        content["stages"][1]["devices"][0]["memory_bytes"] = 100_000
        pathlib.Path(self.plan).write_text(json.dumps(content))
        for processes in self.every_way("--emulate", "--unvalidated"):
            for process in processes:
                self.assertRegex(self.errors_of(process),
                                 r"isobar: rank 1 \(b\)( failed)?: .*out of memory in layer \d+ .*\n\Z")
