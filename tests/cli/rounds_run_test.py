"""isobar run of plans of rounds: workers are processes of their own on this machine."""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess

from tests.cli.support import GPT, HANG_S, ISOBAR, ROOT, CommandTest, holds

ROUND = re.compile(r"^round (\d+): .* of which (\d+) were there; predicted .* checksum ([0-9a-f]{8})$", re.MULTILINE)
MODEL = GPT + "tied: apart\noptimizer: sgd\n"
# Ports for the pieces of a worker, one after the other.
PORTS = 8


def free_ports(workers):
    """The first of PORTS free ports for each worker."""
    first = []
    candidate = 20000 + os.getpid() * 97 % 20000
    while len(first) < workers:
        candidate += PORTS
        with_all = []
        try:
            for port in range(candidate, candidate + PORTS):
                with_all.append(socket.socket())
                with_all[-1].bind(("127.0.0.1", port))
            first.append(candidate)
        except OSError:
            pass
        finally:
            for one in with_all:
                one.close()
    return first


class RoundsRunTest(CommandTest):
    def setUp(self):
        super().setUp()
        self.model = self.write("model.yaml", MODEL)
        self.secret = self.secret_file()

    def worker_plan(self, name, stages, microbatches):
        """The plan of a worker with that many stages, each on a device."""
        devices = [f"{name}.{i}" for i in range(stages)]
        hosts = "".join(f'<host id="{device}" speed="1Tf"><prop id="memory" value="16 GB"/></host>' for device in devices)
        routes = "".join(f'<route src="{a}" dst="{b}"><link_ctn id="wire"/></route>'
                         for i, a in enumerate(devices) for b in devices[i + 1:])
        platform = self.write(f"{name}.xml", f"""<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1"><zone id="z" routing="Full">{hosts}<link id="wire" bandwidth="1GBps" latency="1ms"/>{routes}</zone>
</platform>
""")
        return self.json_of("plan", platform, self.model, "--allocator", "even", "--microbatches", microbatches)

    def rounds(self, stages, steps, microbatches=2, **outer):
        """A plan of rounds of workers with these numbers of stages; its predictions are not those of any platform."""
        settings = {"steps": steps, "fragments": 1, "delay": 0, "algorithm": "direct", "codec": "fp32", "learning_rate": 0.7,
                    "momentum": 0.9, "mixing": 0.0} | outer
        workers = [{"name": f"w{i}", "steps": steps, "plan": self.worker_plan(f"w{i}", number, microbatches)}
                   for i, number in enumerate(stages)]
        plan = {"schema": "isobar-rounds/1", "allocator": "diloco", "outer": settings, "workers": workers,
                "predicted": {"round_time_s": 1.0, "slowest_steps_s": 1.0, "traffic": []}, "round_bound_s": 0.5,
                "wall": {"search_s": 0.0}}
        return self.write("rounds.json", json.dumps(plan))

    def start(self, plan, workers, *options, place="--in-process"):
        """A process for each worker."""
        addresses = ",".join(f"127.0.0.1:{port}" for port in free_ports(workers))
        processes = []
        for i in range(workers):
            log = self.folder / f"w{i}.log"
            command = [ISOBAR, "run", self.model, "--plan", plan, "--worker", f"w{i}", "--workers", addresses, place,
                       "--secret-file", self.secret, "--log", str(log), *map(str, options)]
            # Not pipes: a worker whose pipe is full would keep the others waiting.
            with open(self.folder / f"w{i}.out", "w") as output:
                processes.append(subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT))
            self.addCleanup(processes[-1].wait)
            self.addCleanup(processes[-1].kill)
        return processes

    def end(self, processes, expect=0):
        for i, process in enumerate(processes):
            self.assertEqual(process.wait(timeout=HANG_S), expect, self.output(i))
        return [self.output(i) for i in range(len(processes))]

    def output(self, worker):
        return (self.folder / f"w{worker}.out").read_text()

    def kill_after_two_rounds(self, processes, worker):
        self.assertTrue(holds(lambda: "\nround 2:" in "\n" + self.output(worker)), self.output(worker))
        processes[worker].send_signal(signal.SIGKILL)
        processes[worker].wait(timeout=HANG_S)

    def losses(self, worker):
        lines = (self.folder / f"w{worker}.log").read_text().splitlines()
        return [json.loads(line)["loss"] for line in lines]

    def run_rounds(self, plan, workers, *options, place="--in-process"):
        outputs = self.end(self.start(plan, workers, *options, place=place))
        sums = [[(number, checksum) for number, _, checksum in ROUND.findall(output)] for output in outputs]
        for other in sums[1:]:
            self.assertEqual(other, sums[0])
        return sums[0], [self.losses(worker) for worker in range(workers)]

    def test_outer_parameters_are_equal_everywhere_with_every_codec_fragments_and_delay(self):
        for outer in ({"codec": "int8"}, {"codec": "int4", "fragments": 3, "delay": 2},
                      {"codec": "top-k 0.1 2-bit", "mixing": 0.5}, {"codec": "bf16", "fragments": 2, "delay": 3}):
            with self.subTest(outer=outer):
                sums, losses = self.run_rounds(self.rounds([1, 2], 4, **outer), 2, "--rounds", 3)
                self.assertEqual([number for number, _ in sums], ["1", "2", "3"])
                self.assertEqual(len(losses[0]), 12)
                self.assertNotEqual(losses[0], losses[1])  # they have samples of their own

    def test_any_split_and_processes_give_the_same_bits(self):
        one = self.run_rounds(self.rounds([1, 1, 1], 3), 3, "--rounds", 2)
        unlike = self.run_rounds(self.rounds([3, 1, 2], 3), 3, "--rounds", 2)
        self.assertEqual(unlike[1], one[1])
        spawned = self.run_rounds(self.rounds([3, 1, 2], 3), 3, "--rounds", 2, place="--spawn")
        self.assertEqual(spawned, unlike)

    def test_a_round_of_one_step_with_sgd_is_a_step_together(self):
        steps = 6
        _, losses = self.run_rounds(self.rounds([1, 2], 1, momentum=0.0, learning_rate=1.0), 2, "--rounds", steps)
        means = [sum(of_step) / 2 for of_step in zip(*losses)]
        together = self.write("together.json", json.dumps(self.worker_plan("w", 1, 4)))
        log = self.folder / "together.log"
        self.run_isobar("run", self.model, "--plan", together, "--in-process", "--unvalidated", "--steps", steps, "--log", log)
        expected = [json.loads(line)["loss"] for line in log.read_text().splitlines()]
        self.assertGreater(expected[0] - expected[-1], 0)
        for mean, loss in zip(means, expected, strict=True):
            self.assertAlmostEqual(mean, loss, delta=2e-6 * loss)

    def test_rounds_continue_without_a_worker_that_is_killed(self):
        processes = self.start(self.rounds([1, 1, 1], 2), 3, "--rounds", 400)
        self.kill_after_two_rounds(processes, 2)
        for output in self.end(processes[:2]):
            self.assertRegex(output, r"(?m)^rounds: w2 is lost \(.*\); 2 of 3 workers continue$")
            rounds = ROUND.findall(output)
            self.assertEqual(len(rounds), 400)
            self.assertEqual((rounds[0][1], rounds[-1][1]), ("3", "2"))

    def test_half_of_the_workers_do_not_continue(self):
        processes = self.start(self.rounds([1, 1], 2), 2, "--rounds", 100000)
        self.kill_after_two_rounds(processes, 1)
        self.assertEqual(processes[0].wait(timeout=HANG_S), 3, self.output(0))
        self.assertIn("rounds: 1 of 2 workers are left, no more than half, without w1", self.output(0))

    def test_what_is_wrong_has_one_line(self):
        plan = self.rounds([1, 2], 2)
        addresses = "127.0.0.1:7000,127.0.0.1:7100"
        here = ["--worker", "w0", "--workers", addresses]
        tied = self.write("tied.yaml", GPT + "tied: true\noptimizer: sgd\n")
        for options, message in (
                (["--in-process"], "--worker: missing; write one of w0, w1"),
                (["--worker", "x", "--in-process"], '--worker: "x" is no worker of the plan; write one of w0, w1'),
                (["--worker", "w0", "--in-process"], "--workers: lists 0 addresses; the plan has 2 workers"),
                (["--worker", "w0", "--workers", "127.0.0.1:7000,x", "--in-process"], "--workers: "),
                (["--worker", "w0", "--workers", "127.0.0.1:7000,127.0.0.1:65535", "--in-process", "--secret-file", self.secret],
                 '--workers: "127.0.0.1:65535" leaves no room for the 2 ports from there on'),
                ([*here], "--spawn"),
                ([*here, "--in-process", "--rounds", "0"], "--rounds: 0 is not in 1 to 1000000"),
                ([*here, "--in-process", "--checkpoint", str(self.folder / "c")], "--checkpoint: is not for plans of rounds"),
        ):
            with self.subTest(options=options):
                self.assertIn(message, self.fault_of("run", self.model, "--plan", plan, *options))
        own = self.write("own.json", json.dumps(self.worker_plan("w", 1, 2)))
        for option in (["--worker", "w0"], ["--workers", addresses], ["--rounds", "2"]):
            with self.subTest(option=option):
                fault = self.fault_of("run", self.model, "--plan", own, "--in-process", "--unvalidated", *option)
                self.assertIn(f"{option[0]}: is for plans of rounds", fault)
        for algorithm in ("ring", "server"):
            with self.subTest(algorithm=algorithm):
                fault = self.fault_of("run", self.model, "--plan", self.rounds([1, 1], 2, algorithm=algorithm), "--in-process",
                                      *here)
                self.assertIn(f"outer.algorithm: {algorithm}; isobar run exchanges directly", fault)
        self.model = tied
        plan = self.rounds([1, 2], 2)
        fault = self.fault_of("run", tied, "--plan", plan, "--in-process", *here, "--secret-file", self.secret)
        self.assertRegex(fault, r"workers\[1\]\.plan: has the matrix of layer .* on two devices")
