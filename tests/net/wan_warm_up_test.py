"""isobar run between two sites with a delay: 1f1b as it is, and with --warm-up auto. Both steps are as predicted.

Every rank computes for times that this file gives, by a profile with them and --emulate. So the steps depend on the
network, the order of the instructions and the executor. Prints both steps, predicted and measured.
"""

import contextlib
import json
import os
import subprocess
import unittest
from typing import NamedTuple

from tests.cli.support import HANG_S, ISOBAR, ROOT, CommandTest
from tools import network_bed
from tools.network_bed import Host, Network, Trunk

MICROBATCHES = 24
STEPS = 4  # the first one, in which TCP's windows open, does not count
# 50 ms each way. Messages of 256 KiB take 42 ms on the trunk, and 4 ms within a site.
NETWORK = Network((Host("a", 500), Host("a", 500), Host("b", 500), Host("b", 500)), {("a", "b"): Trunk(50, 50)})
# With embedding and head a layer for each rank. Its real work is a small part of the time that a rank takes for it.
MODEL = """model: gpt
layers: 2
hidden: 32
heads: 2
vocabulary: 60
sequence: 64
micro_batch: 32
"""
FORWARD_S, BACKWARD_S, UPDATE_S = 0.025, 0.050, 0.001  # of each rank
SLOWDOWN = 10  # of all ranks, compared with the profile
TOLERANCE = 0.05
# Of a rank's time. Waiting for a processor delays what other ranks wait for.
MOST_WAIT_FRACTION = 0.01
ATTEMPTS = 2


class Measurement(NamedTuple):
    predicted_s: float
    measured_s: float
    wait_fraction: float  # of the rank that waited longest for a processor

    def error(self):
        return self.predicted_s / self.measured_s - 1

    def __str__(self):
        return (f"predicted {self.predicted_s:.3f} s, measured {self.measured_s:.3f} s ({100 * self.error():+.1f} %), "
                f"waited {100 * self.wait_fraction:.1f} % of the time for a processor")


class WarmUpOverADelay(CommandTest):
    def setUp(self):
        super().setUp()
        # The ranks, which inherit it, run before other work of the machine, as the relay of the network does.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
            self.addCleanup(os.sched_setscheduler, 0, os.SCHED_OTHER, os.sched_param(0))
        try:
            self.bed = self.enterContext(network_bed.bed(NETWORK, os.environ["TAP_RELAY"]))
        except network_bed.Unavailable as reason:
            self.skipTest(f"no namespaces: {reason}")
        self.secret = self.secret_file()
        self.workload = self.write("model.yaml", MODEL)
        self.run_isobar("profile", self.workload, "--repetitions", 1, "-o", self.folder / "machine")
        profile = json.loads((self.folder / "machine.profile.json").read_text())
        for layer in profile["layers"]:
            layer |= {"forward_s": FORWARD_S / SLOWDOWN, "backward_s": BACKWARD_S / SLOWDOWN,
                      "update_s": UPDATE_S / SLOWDOWN}
        self.profile = self.write("profile.json", json.dumps(profile))
        speed = profile["speed_flops"] / SLOWDOWN
        hosts = [f'<host id="rank-{rank}" speed="{speed:.17g}f"><prop id="memory" value="2 GB"/></host>'
                 for rank in range(len(NETWORK.hosts))]
        self.platform = self.write("network.xml", network_bed.platform_xml(NETWORK, hosts))
        self.runs = 0

    def planned(self, *options):
        """A plan with a layer on each rank, in their order, and its simulated step in seconds."""
        plan = self.folder / f"plan{len(options)}.json"
        inputs = self.platform, self.workload, "--profile", self.profile
        self.run_isobar("plan", *inputs, "--allocator", "even", "--microbatches", MICROBATCHES, *options, "-o", plan)
        result = self.json_of("simulate", *inputs, "--plan", plan, "--stamp", "--iterations", STEPS)
        self.assertEqual([stage["device"] for stage in result["stages"]], [f"rank-{rank}" for rank in range(4)])
        return plan, result["step_time_s"]

    def run_once(self, plan):
        """What a run of all ranks reports."""
        self.runs += 1
        file = self.folder / f"run{self.runs}.json"
        endpoints = ",".join(f"{address}:{21000 + self.runs}" for address in self.bed.addresses)
        with contextlib.ExitStack() as ended:
            ranks = []
            for rank in range(len(NETWORK.hosts)):
                ranks.append(self.bed.start(rank, [ISOBAR, "run", self.workload, "--plan", plan, "--rank", rank,
                                                   "--ranks", endpoints, "--secret-file", self.secret, "--plain-text",
                                                   "--emulate", "--profile", self.profile, "--steps", STEPS, "-o", file],
                                            cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
                ended.callback(ranks[-1].kill)
            errors = [process.communicate(timeout=HANG_S)[1] for process in ranks]
        self.assertEqual([process.returncode for process in ranks], [0] * len(ranks), errors)
        return json.loads(file.read_text())

    def measured(self, name, plan, predicted_s):
        result = self.run_once(plan)
        measurement = Measurement(predicted_s, result["step_time_s"],
                                  max(stage["processor_wait_fraction"] for stage in result["stages"]))
        print(f"{name}: {measurement}", flush=True)
        return measurement

    def test_steps_are_as_predicted_and_the_warm_up_gains_what_is_predicted(self):
        plain_plan, plain_s = self.planned()
        auto_plan, auto_s = self.planned("--warm-up", "auto")
        predicted = plain_s / auto_s
        self.assertGreater(predicted, 1.5)
        warm_up = json.loads(auto_plan.read_text())["schedule"]["warm_up"]
        for _ in range(ATTEMPTS):
            plain = self.measured("1f1b", plain_plan, plain_s)
            auto = self.measured(f"1f1b(warm_up={'/'.join(map(str, warm_up))})", auto_plan, auto_s)
            measured = plain.measured_s / auto.measured_s
            print(f"the warm-up makes the step {measured:.2f} times shorter, predicted {predicted:.2f}", flush=True)
            errors = {"1f1b": plain.error(), "warm-up": auto.error(), "gain": predicted / measured - 1}
            if all(abs(error) <= TOLERANCE for error in errors.values()):
                return
            if max(plain.wait_fraction, auto.wait_fraction) <= MOST_WAIT_FRACTION:
                break
        self.fail(f"errors {errors}, {TOLERANCE} at most")


if __name__ == "__main__":
    unittest.main()
