"""isobar run --mix: jobs that take turns on their devices."""

import json
import os
import random
import signal
import subprocess
import time

from tests.cli.breakable_runs import MODEL, platform_of
from tests.cli.support import HANG_S, ISOBAR, ROOT, CommandTest, children_of, descendants_of, holds, without_notes
from tests.support.slurm_cluster import free_ports

BERT = """model: bert
encoders: 2
hidden: 16
heads: 2
intermediate: 24
vocabulary: 60
positions: 16
classes: 3
sequence: 8
micro_batch: 2
optimizer: adam
learning_rate: 0.01
"""


class MixRun(CommandTest):
    def setUp(self):
        super().setUp()
        self.secret = self.write("secret", "a secret of tests, known to all\n")
        os.chmod(self.secret, 0o600)

    def job(self, name, devices, model=MODEL, replicas=1, **keys):
        """A job with a stamped plan: pipelines, or replicas, over its devices."""
        platform = self.write(f"{name}.xml", platform_of(devices))
        workload = self.write(f"{name}.yaml", model)
        plan = self.folder / f"{name}.json"
        self.run_isobar("plan", platform, workload, "--allocator", "grid", "--pipeline", len(devices) // replicas,
                        "--replicas", replicas, "--microbatches", 2, "--schedule", "1f1b", "-o", plan)
        self.run_isobar("simulate", platform, workload, "--plan", plan, "--stamp")
        return {"name": name, "plan": plan.name, "workload": f"{name}.yaml", **keys}

    def mix(self, *jobs, name="mix.json", **keys):
        return self.write(name, json.dumps({"schema": "isobar-mix/1", "jobs": jobs, **keys}))

    def solo_losses(self, job, steps):
        result = self.run_isobar("run", self.folder / job["workload"], "--plan", self.folder / job["plan"],
                                 "--in-process", "--steps", steps, "--json")
        return json.loads(result.stdout)["losses"]

    def mixed(self, mix, *options):
        return json.loads(self.run_isobar("run", "--mix", mix, "--json", *options).stdout)

    def losses_of(self, result):
        return {job["name"]: job["result"]["losses"] for job in result["jobs"]}

    def two_jobs(self):
        return self.job("gpt", ("a", "b"), replicas=2), self.job("bert", ("a", "b"), BERT)

    def test_losses_are_those_of_the_jobs_alone(self):
        jobs = self.two_jobs()
        expected = {job["name"]: self.solo_losses(job, 4) for job in jobs}
        for discipline in ("strict", "conserving"):
            mix = self.mix(*jobs, discipline=discipline)
            for ranks in (("--in-process",), ("--spawn",), ("--spawn", "--processes", "job")):
                with self.subTest(discipline=discipline, ranks=ranks):
                    result = self.mixed(mix, "--steps", 4, *ranks)
                    self.assertEqual(result["schema"], "isobar-mix-run/1")
                    self.assertEqual(self.losses_of(result), expected)

    def test_the_table_has_a_line_for_each_step_of_each_job(self):
        mix = self.mix(self.job("a", ("x", "y"), steps=1), self.job("longer", ("y", "x"), start_s=0.01))
        printed = self.run_isobar("run", "--mix", mix, "--spawn", "--steps", 2).stdout
        steps, summary = printed.split("\n\n")
        number = r" +[0-9.e+-]+"
        self.assertRegex(steps, r"^job      step        loss   samples/s     step s\n")
        for line in (r"a        ", "longer   "):
            self.assertRegex(steps, rf"(?m)^{line} +0{number * 3}$")
        self.assertRegex(steps, rf"(?m)^longer +1{number * 3}$")
        self.assertRegex(summary, rf"^job +steps  step s, mixed  step s, solo    last loss\na +1{number * 3}\nlonger +2{number * 3}\n$")

    def test_each_job_has_its_steps_checkpoints_log_and_trace(self):
        gpt, bert = self.two_jobs()
        mix = self.mix(gpt | {"steps": 4}, bert, turns=[{"job": "gpt", "steps": 2}, {"job": "bert"}])
        folder = self.folder / "checkpoints"
        shared = ("--spawn", "--checkpoint", folder)
        first = self.mixed(mix, "--steps", 3, *shared, "--log", self.folder / "log.jsonl", "--trace",
                           self.folder / "trace.json", "-o", self.folder / "run.json")
        self.assertEqual({name: len(losses) for name, losses in self.losses_of(first).items()}, {"gpt": 4, "bert": 3})
        self.assertEqual(json.loads((self.folder / "run.json").read_text()), first)
        for name in ("gpt", "bert"):
            lines = (self.folder / f"log.{name}.jsonl").read_text().splitlines()
            self.assertEqual([json.loads(line)["loss"] for line in lines], self.losses_of(first)[name])
            self.assertTrue(json.loads((self.folder / f"trace.{name}.json").read_text())["traceEvents"])
            self.assertTrue((folder / name).is_dir())
        self.assertEqual([job["steps_per_round"] for job in first["jobs"]], [2, 1])
        again = self.run_isobar("run", "--mix", mix, "--json", "--steps", 5, *shared, "--resume")
        self.assertIn("isobar: job gpt: all of its 4 steps are done\n", again.stderr)
        self.assertEqual(self.losses_of(first)["bert"] + self.losses_of(json.loads(again.stdout))["bert"],
                         self.solo_losses(bert, 5))

    def test_machines_take_turns_in_the_same_order(self):
        jobs = self.two_jobs()
        mix = self.mix(*jobs)
        expected = {job["name"]: self.solo_losses(job, 4) for job in jobs}
        processes = self.ranks((mix, mix))
        outputs, errors = zip(*(process.communicate(timeout=HANG_S) for process in processes))
        self.assertEqual([process.returncode for process in processes], [0, 0], errors)
        results = [json.loads(output) for output in outputs]
        self.assertEqual(self.losses_of(results[0]), expected)
        self.assertEqual([job["result"] for job in results[1]["jobs"]], [None, None])

    def test_machines_with_another_order_reject_each_other(self):
        jobs = self.two_jobs()
        processes = self.ranks((self.mix(*jobs), self.mix(*jobs, turns=[{"job": "bert"}, {"job": "gpt"}], name="other.json")))
        for process in processes:
            errors = without_notes(process.communicate(timeout=HANG_S)[1])
            self.assertEqual(process.returncode, 3, errors)
            self.assertRegex(errors, r"isobar: job gpt: .*another run")

    def ranks(self, mixes):
        """Starts a process for each device, each with its mix."""
        jobs = 2  # each of which listens at the next port
        first = free_ports(jobs * len(mixes))
        addresses = ",".join(f"127.0.0.1:{first + jobs * rank}" for rank in range(len(mixes)))
        processes = []
        for rank, mix in enumerate(mixes):
            process = subprocess.Popen(
                [ISOBAR, "run", "--mix", mix, "--rank", str(rank), "--ranks", addresses, "--secret-file", self.secret,
                 "--steps", "4", "--json", "--deadline", "20s"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.addCleanup(process.communicate)
            self.addCleanup(process.kill)
            processes.append(process)
        return processes

    def test_a_killed_job_leaves_the_losses_of_the_others(self):
        """Each of 20 runs loses the same job at another moment; the others end as if it had not been there."""
        chosen = random.Random(23)
        short, long = self.job("gpt", ("a", "b"), replicas=2), self.job("bert", ("b", "c"), BERT, replicas=2)
        victim = self.job("victim", ("a", "c"), replicas=2, steps=1_000_000)
        expected = {job["name"]: self.solo_losses(job, 12) for job in (short, long)}
        for attempt in range(20):
            discipline = ("strict", "conserving")[attempt % 2]
            mix = self.mix(short, victim, long, discipline=discipline)
            log = self.folder / f"log{attempt}.jsonl"
            output = self.folder / f"run{attempt}.json"
            process = subprocess.Popen([ISOBAR, "run", "--mix", mix, "--spawn", "--processes", "job", "--steps", "12",
                                        "--log", log, "-o", output], cwd=ROOT, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE, text=True)
            victim_log = self.folder / f"log{attempt}.victim.jsonl"
            self.assertTrue(holds(lambda: victim_log.exists() and victim_log.read_text()), "no step")
            time.sleep(chosen.random() * 0.03)
            # In the order of the devices: a has gpt and victim, b gpt and bert, c victim and bert.
            ranks = sorted(children_of(process.pid))
            os.kill(ranks[chosen.choice((1, 4))], signal.SIGKILL)
            errors = without_notes(process.communicate(timeout=HANG_S)[1])
            self.assertEqual(process.returncode, 3, errors)
            self.assertRegex(errors, r"^isobar: job victim: rank [01] \([ac]\): died of signal 9 \(Killed\)\n$")
            self.assertEqual(descendants_of(process.pid), [])
            result = json.loads(output.read_text())
            self.assertEqual({job["name"]: job["result"] and job["result"]["losses"] for job in result["jobs"]},
                             expected | {"victim": None})

    def test_options_of_one_job_are_refused(self):
        mix = self.mix(*self.two_jobs())
        for options, message in (
                (("--plan", "p.json"), "--plan: a mix names the workloads and plans of its jobs; leave it out"),
                (("w.yaml",), "WORKLOAD: a mix names the workloads and plans of its jobs; leave it out"),
                (("--restart", 1), "--restart: starts one job again; run the mix again with --resume, which continues each job"),
                (("--data", "d.tsv"), "--data: is for one workload, and the jobs of a mix train on synthetic data; leave it out"),
                (("--in-process", "--processes", "job"), "--processes: is for --spawn; add it, or leave this out"),
                (("--spawn", "--processes", "all"), "--processes: \"all\" is neither device nor job"),
                ((), "choose where the jobs run: --spawn (processes on this machine), --in-process (threads), or --rank N with "
                     "--ranks HOST:PORT,… (the ranks on the mix's device N here, the others elsewhere)"),
                (("--rank", 2, "--ranks", "h:1,i:1"), "--rank: 2 is not below the mix's 2 devices: a, b"),
                (("--rank", 0, "--ranks", "h:1"), "--ranks: lists 1 address; the mix has 2 devices: a, b"),
                (("--rank", 0, "--ranks", "h:1,h:2"),
                 "--ranks: h:1 and h:2 are 1 ports apart; each job listens at the next port, so leave 2")):
            with self.subTest(options):
                self.assertEqual(self.fault_of("run", "--mix", mix, *options), message)
        self.assertEqual(self.fault_of("run", "w.yaml", "--plan", "p.json", "--processes", "job"),
                         "--processes: is for the jobs of a mix; add --mix FILE, or leave it out")

    def test_a_mix_that_machines_cannot_order_is_refused(self):
        gpt, bert = self.two_jobs()
        shared = ("--rank", 0, "--ranks", "127.0.0.1:1,127.0.0.1:11", "--secret-file", self.secret)
        self.assertEqual(self.fault_of("run", "--mix", self.mix(gpt, bert, discipline="conserving"), *shared),
                         "discipline: conserving, of devices on several machines, needs a process that numbers all turns, "
                         "and each machine grants its own; use strict")
        self.assertEqual(self.fault_of("run", "--mix", self.mix(gpt, bert | {"start_s": 1}), *shared),
                         "start_s: job bert starts later than job gpt, and several machines do not agree on the round; "
                         "leave it out")
