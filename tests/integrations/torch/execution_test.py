"""Plans on ranks of this machine: losses, timelines, and ranks that end."""

import collections
import itertools
import json
import os
import pathlib
import signal
import sys
import time
import unittest

from torch.distributed.pipelining import schedules

from isobar_torch.pipeline import plain_order, torch_schedule
from isobar_torch.plan import read_plan
from tests.integrations.torch.support import CONFIGS, GPT, ISOBAR, LLAMA, IsobarTorchTest

# Longer than any start of ranks takes.
HANG_S = 300


class Losses(IsobarTorchTest):
    """Any division of a model trains as one process does."""

    def test_one_stage(self):
        self.check_losses(GPT, 1, "1f1b", 3)

    def test_gpipe_with_unequal_stages(self):
        self.check_losses(LLAMA, 2, "gpipe", 4, cuts=[6])

    def test_1f1b_with_unequal_stages(self):
        self.check_losses(GPT, 4, "1f1b", 5, cuts=[1, 2, 6])

    def test_1f1b_with_fewer_microbatches_than_stages(self):
        self.check_losses(LLAMA, 3, "1f1b", 2)

    def test_interleaved(self):
        self.check_losses(GPT, 2, "interleaved(chunks=2)", 4, cuts=[1, 3, 7])

    def test_zero_bubble_v(self):
        self.check_losses(LLAMA, 2, "zero-bubble-v", 4, cuts=[2, 3, 5])

    def test_an_order_that_torch_has_no_class_for(self):
        self.check_losses(GPT, 2, "zero-bubble-h1", 4)

    def test_replicas(self):
        self.check_losses(GPT, 4, "1f1b", 4, cuts=[3], replicas=2)

    def test_replicas_that_divide_the_optimizer(self):
        self.check_losses(GPT, 2, "1f1b", 4, replicas=2, sharded="optimizer")

    def test_replicas_of_interleaved_stages_with_divided_parameters(self):
        self.check_losses(LLAMA, 4, "interleaved(chunks=2)", 4, replicas=2, sharded="parameters")

    def test_halves_of_blocks_as_layers(self):
        self.check_losses(GPT + "unit: operator\n", 2, "1f1b", 2, cuts=[2])

    def test_recomputed_layers(self):
        workload = self.write("model.yaml", LLAMA)
        plan = self.plan(workload, 2, "1f1b", 2)
        self.write("plan.json", json.dumps({**plan, "recompute": [1, 2, 5]}))
        self.assert_trains_as_one_process(workload)

    def test_settings_of_the_plan(self):
        workload = self.write("model.yaml", GPT)
        self.plan(workload, 2, "gpipe", 2, settings=["layers=3", "hidden=16"])
        self.assert_trains_as_one_process(workload)

    def test_an_order_of_a_file(self):
        workload = self.write("model.yaml", GPT)
        self.plan(workload, 2, "1f1b", 2)
        self.write("order.csv", "0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n")
        self.assert_trains_as_one_process(workload, "--order", "order.csv")

    def test_blocking_transfers_by_the_class_of_torch_that_waits(self):
        workload = self.write("model.yaml", GPT)
        for devices, schedule, kind in ((2, "1f1b", schedules.Schedule1F1B), (2, "gpipe", None), (4, "1f1b", None)):
            plan = self.plan(workload, devices, schedule, 3)
            stages = [{**each, "replicas": [{"microbatches": 3, "shards": [{"device": each["devices"][0]["name"]}]}]}
                      for each in plan["stages"]]
            for stage in stages:
                del stage["devices"]
            self.write("plan.json", json.dumps({**plan, "schema": "isobar-plan/2", "schedule": {"name": schedule}, "stages": stages,
                                                "transfers": {"blocking": True}}))
            self.assertEqual(torch_schedule(read_plan("plan.json")), kind)
            if kind is not None:
                self.assert_trains_as_one_process(workload)
                self.write("order.csv", plain_order(read_plan("plan.json")))
            for options in ([], ["--order", "order.csv"]) if kind is None else (["--order", "order.csv"],):
                self.assertEqual(self.run_here("plan.json", "--workload", workload, "--spawn", *options), (
                    2, "isobar_torch: plan.json: transfers.blocking: torch waits for transfers under 1f1b without numbers, with a stage "
                       "on each device and a micro-batch for each stage or more, and without --order; plan without it\n"))

    def test_bf16_learns(self):
        workload = self.write("model.yaml", GPT + "dtype: bf16\n")
        self.plan(workload, 2, "1f1b", 2)
        measured, expected = self.losses(workload), self.losses_alone(workload)
        self.assertAlmostEqual(measured[-1], expected[-1], delta=0.02)

class Transformers(IsobarTorchTest):
    """Models of transformers, divided at their blocks."""

    def test_gpt2(self):
        self.check_transformers("gpt2", "1f1b")

    def test_refuses_a_model_of_other_sizes(self):
        self.write("config.json", json.dumps(CONFIGS["gpt2"]))
        workload = self.write("model.yaml", GPT)
        self.plan(workload, 2, "1f1b", 2)
        self.assertEqual(self.run_here("plan.json", "--workload", workload, "--model", "config.json", "--spawn"),
                         (2, "isobar_torch: config.json: layers 4; model.yaml has 6\n"))


class Timelines(IsobarTorchTest):
    """Measured traces lie over predicted ones."""

    def check(self, text, *arguments, **named):
        """Runs a plan, and compares its trace with the simulated one."""
        workload = self.write("model.yaml", text)
        self.plan(workload, *arguments, **named)
        self.losses(workload, "--trace", "measured.json")
        self.isobar("simulate", "star.xml", workload, "--plan", "plan.json", "--trace", "predicted.json", "-o",
                    "result.json")
        self.isobar("trace", "merge", "predicted.json", "measured.json", "-o", "both.json")
        self.isobar("report", "result.json", "--measured", "measured.json", "-o", "page.html")
        stats = json.loads(self.isobar("trace", "stats", "measured.json", "--json"))
        self.assertEqual(stats["steps"], 2)
        read = [json.loads((self.folder / f"{side}.json").read_text())["traceEvents"] for side in ("predicted", "measured")]
        return [[each for each in events if each["ph"] == "X"] for events in read], read

    def names(self, events, what):
        """The tracks of each rank."""
        return {(each["pid"], each["args"]["name"]) for each in events if each["ph"] == "M" and each["name"] == what}

    def test_replicas_that_divide_the_optimizer(self):
        self.check_losses(GPT, 2, "1f1b", 4, replicas=2, sharded="optimizer")

    def test_replicas_of_interleaved_stages(self):
        (predicted, measured), read = self.check(GPT, 4, "interleaved(chunks=2)", 4, replicas=2)
        self.assertEqual(self.names(read[0], "thread_name"), self.names(read[1], "thread_name"))
        whats = [sorted((each["pid"], each["cat"], each["args"]["position"], each["args"]["stage"],
                         each["args"]["microbatch"], each["args"].get("payload"), each["args"].get("bytes"))
                        for each in events if each["args"]["step"] == 0)
                 for events in (predicted, measured)]
        self.assertEqual(*whats)

    def test_passes_do_not_overlap_and_receives_end_before_the_passes_that_need_them(self):
        (_, measured), _ = self.check(LLAMA, 2, "zero-bubble-v", 4)
        for rank in (0, 1):
            passes = sorted((each["ts"], each["ts"] + each["dur"]) for each in measured
                            if each["pid"] == rank and each["tid"] == 0)
            for (_, end), (begin, _) in itertools.pairwise(passes):
                self.assertLessEqual(end, begin + 0.001)
        received = {(each["pid"], each["args"]["step"], each["args"]["stage"], each["args"]["microbatch"]):
                    each["ts"] + each["dur"] for each in measured if each["name"].startswith("Recv activation")}
        forwards = {(each["pid"], each["args"]["step"], each["args"]["stage"], each["args"]["microbatch"]): each["ts"]
                    for each in measured if each["cat"] == "Forward"}
        self.assertEqual(len(received), 2 * 4 * 3)
        for key, end in received.items():
            self.assertLessEqual(end, forwards[key] + 1)
        lanes = collections.defaultdict(list)
        for each in measured:
            if each["cat"] in ("Send", "Recv"):
                lanes[each["pid"], each["tid"]].append((each["ts"], each["ts"] + each["dur"]))
        self.assertEqual(len(lanes), 2 * 2 * 2)
        for transfers in lanes.values():
            for (_, end), (begin, _) in itertools.pairwise(sorted(transfers)):
                self.assertLessEqual(end, begin + 0.001)

    def test_gpipe_and_1f1b_and_an_order_in_full(self):
        for schedule in ("gpipe", "1f1b", "zero-bubble-h1"):
            with self.subTest(schedule=schedule):
                self.check(GPT, 2, schedule, 3)

    def test_refuses_a_timeline_of_divided_parameters(self):
        workload = self.write("model.yaml", GPT)
        self.plan(workload, 4, "1f1b", 4, replicas=2, sharded="parameters")
        code, errors = self.run_here("plan.json", "--workload", workload, "--spawn", "--trace", "measured.json")
        self.assertEqual((code, errors.count("\n")), (2, 1))
        self.assertIn("--trace: plan.json divides parameters, by other collectives than its program; ", errors)


class Ranks(IsobarTorchTest):
    """How ranks meet, and how they end."""

    def start(self):
        """Starts a long run of three ranks in a process of its own. Returns its number and theirs, once they train."""
        workload = self.write("model.yaml", GPT)
        self.plan(workload, 3, "1f1b", 4)
        child = os.fork()
        if child == 0:
            with open("errors", "w") as errors, open("output", "w") as output:
                os.dup2(errors.fileno(), 2)
                os.dup2(output.fileno(), 1)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            from isobar_torch.__main__ import main
            code = main(["plan.json", "--workload", workload, "--steps", "1000000", "--spawn", "--log-file", "log.jsonl"])
            sys.stderr.flush()
            os._exit(code)
        log, deadline = self.folder / "log.jsonl", time.monotonic() + HANG_S
        while not (log.exists() and log.read_text().count("\n") >= 2):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        ranks = [int(each) for each in pathlib.Path(f"/proc/{child}/task/{child}/children").read_text().split()]
        self.assertEqual(len(ranks), 3)
        return child, ranks

    def assert_ends(self, child, ranks, code, line):
        """The run ends with this exit code and line, and no rank is left."""
        _, status = os.waitpid(child, 0)
        self.assertEqual(os.waitstatus_to_exitcode(status), code)
        self.assertEqual((self.folder / "errors").read_text(), line)
        self.assertEqual([each for each in ranks if pathlib.Path(f"/proc/{each}").exists()], [])

    def test_a_killed_rank_ends_the_others_with_one_line(self):
        child, ranks = self.start()
        os.kill(ranks[1], signal.SIGKILL)
        self.assert_ends(child, ranks, 3, "isobar_torch: rank 1 (device-1): ended by SIGKILL; so the others ended\n")

    def test_an_interrupt_ends_all_ranks(self):
        child, ranks = self.start()
        os.kill(child, signal.SIGTERM)
        self.assert_ends(child, ranks, 130, "isobar_torch: interrupted; all ranks ended\n")

    def test_ranks_end_when_the_process_that_spawned_them_is_killed(self):
        child, ranks = self.start()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        deadline = time.monotonic() + HANG_S
        while any(pathlib.Path(f"/proc/{each}").exists() for each in ranks):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)

    def test_refuses_to_start_without_a_launcher(self):
        workload = self.write("model.yaml", GPT)
        self.plan(workload, 2, "1f1b", 2)
        self.assertEqual(self.run_here("plan.json", "--workload", workload), (
            2, "isobar_torch: no launcher; use torchrun --nproc-per-node 2 -m isobar_torch …, or --spawn\n"))

    def test_orders_of_chains_are_those_of_isobar(self):
        workload = self.write("model.yaml", GPT)
        for schedule, devices, microbatches in itertools.product(("gpipe", "1f1b"), (1, 2, 4), (1, 3, 6)):
            with self.subTest(schedule=schedule, devices=devices, microbatches=microbatches):
                self.plan(workload, devices, schedule, microbatches)
                self.assertEqual(plain_order(read_plan("plan.json")), self.isobar("schedule", "show", "plan.json", "--csv"))
        for schedule in ("sequential", "interleaved(chunks=2)", "1f1b(warm_up=2/1)"):
            self.plan(workload, 2, schedule, 4)
            self.assertIsNone(plain_order(read_plan("plan.json")))

    def test_asks_the_command_isobar_for_orders_only(self):
        workload = self.write("model.yaml", GPT)
        self.plan(workload, 2, "greedy", 2)
        self.assertEqual(self.run_here("plan.json", "--workload", workload, "--isobar", "/no/isobar", "--spawn"), (
            2, "isobar_torch: --isobar /no/isobar: No such file or directory; give its path, or the order as a file by "
               "--order\n"))
        self.assertTrue(pathlib.Path(ISOBAR).exists())


if __name__ == "__main__":
    unittest.main()
