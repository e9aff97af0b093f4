"""Steps on two hosts with a shaped link between them are as predicted from a profile of this machine.

The link takes as long as the passes, so that steps depend on what overlaps. Prints predicted and measured steps.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import unittest

from tests.integrations.torch.support import ISOBAR, IsobarTorchTest
from tools import network_bed
from tools.network_bed import Host, Network

MBIT = 50
# Of interleaved, whose links carry three times as much, so that they bound its steps. See the table of docs/frameworks.md.
SLOW_MBIT = 25
MICROBATCHES = 8
# A boundary has 512 KiB, which take 86 ms.
MODEL = """model: gpt
layers: 4
hidden: 64
heads: 4
vocabulary: 200
sequence: 256
micro_batch: 8
optimizer: sgd
"""
STEPS = 8
LEFT_OUT = 2  # steps at the beginning, in which memory is allocated and TCP's windows open
REPETITIONS = 3
TOLERANCE = 0.08
ATTEMPTS = 2
HANG_S = 300


class HostsTest(IsobarTorchTest):
    """Two hosts with a link of `mbit` Mbit/s each."""

    mbit = MBIT

    def setUp(self):
        super().setUp()
        # The ranks, which inherit it, run before other work of the machine.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
            self.addCleanup(os.sched_setscheduler, 0, os.SCHED_OTHER, os.sched_param(0))
        try:
            # No trunk has a delay, so no relay runs.
            self.network = Network((Host("site", self.mbit), Host("site", self.mbit)), {})
            self.bed = self.enterContext(network_bed.bed(self.network, "no relay"))
        except network_bed.Unavailable as reason:
            self.skipTest(f"no namespaces: {reason}")
        self.write("model.yaml", MODEL)
        self.port = 29400

    def planned(self, schedule, speed_flops, *profile):
        """Writes plan.json for the network. Returns its simulated step in seconds."""
        hosts = [f'<host id="rank-{rank}" speed="{speed_flops:.17g}f"><prop id="memory" value="2 GB"/></host>' for rank in (0, 1)]
        self.write("network.xml", network_bed.platform_xml(self.network, hosts))
        inputs = "network.xml", "model.yaml", *profile
        self.isobar("plan", *inputs, "--allocator", "even", "--schedule", schedule, "--microbatches", MICROBATCHES, "-o", "plan.json")
        return json.loads(self.isobar("simulate", *inputs, "--plan", "plan.json", "--json"))["step_time_s"]

    def profile(self, schedule):
        """Writes layers.json, the times of layers in a run on this machine without a network. Returns its speed."""
        self.planned(schedule, 1e10)
        for command in ((), (".kineto", "k/rank-0.json.gz", "k/rank-1.json.gz", "-o", "measured.json", "--profile", "layers.json",
                             "--device", "cpu", "--memory", "16000000000")):
            name = "isobar_torch" + "".join(command[:1])
            options = command[1:] or ("--spawn", "--device", "cpu", "--steps", "6", "--kineto", "k")
            done = subprocess.run([sys.executable, "-m", name, "plan.json", *options, "--workload", "model.yaml", "--isobar", ISOBAR],
                                  capture_output=True, text=True, check=False, timeout=HANG_S)
            self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads((self.folder / "layers.json").read_text())["speed_flops"]

    def measured(self):
        """The median step of a run on both hosts, in seconds."""
        self.port += 1
        with contextlib.ExitStack() as ended:
            ranks = []
            for rank in (0, 1):
                environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0",
                               "MASTER_ADDR": self.bed.addresses[0], "MASTER_PORT": str(self.port), "GLOO_SOCKET_IFNAME": "nic"}
                ranks.append(self.bed.start(rank, [sys.executable, "-m", "isobar_torch", "plan.json", "--workload", "model.yaml",
                                                   "--isobar", ISOBAR, "--device", "cpu", "--plan-device", f"rank-{rank}", "--steps",
                                                   STEPS, "--log-file", "log.jsonl"], cwd=self.folder, env=environment,
                                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
                ended.callback(ranks[-1].kill)
            errors = [process.communicate(timeout=HANG_S)[1] for process in ranks]
        self.assertEqual([process.returncode for process in ranks], [0, 0], errors)
        times = [json.loads(line)["step_time_s"] for line in (self.folder / "log.jsonl").read_text().splitlines()]
        return statistics.median(times[LEFT_OUT:])

    def check(self, schedule):
        errors = []
        for _ in range(ATTEMPTS):
            predicted_s = self.planned(schedule, self.profile(schedule), "--profile", "layers.json")
            measured_s = statistics.median(self.measured() for _ in range(REPETITIONS))
            errors.append(predicted_s / measured_s - 1)
            print(f"{schedule}: predicted {predicted_s:.3f} s, measured {measured_s:.3f} s ({100 * errors[-1]:+.1f} %)", flush=True)
            if abs(errors[-1]) <= TOLERANCE:
                return
        self.fail(f"{schedule}: errors {', '.join(f'{100 * each:+.1f} %' for each in errors)}")


class TwoHosts(HostsTest):
    def test_1f1b(self):
        self.check("1f1b")

    def test_gpipe(self):
        self.check("gpipe")

    def test_zero_bubble(self):
        self.check("zero-bubble-h1")


class TwoHostsThatLinksBound(HostsTest):
    mbit = SLOW_MBIT

    def test_interleaved(self):
        self.check("interleaved(chunks=2)")


if __name__ == "__main__":
    unittest.main()
