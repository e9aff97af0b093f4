"""What takes too long for every change: all schedules by models, widths and replicas, and ranks of torchrun."""

import itertools
import json
import os
import shutil
import subprocess
import sys
import unittest

from tests.docs.pages import ROOT, blocks_of
from tests.integrations.torch.kineto_test import KinetoTest
from tests.integrations.torch.support import CONFIGS, GPT, ISOBAR, LLAMA, IsobarTorchTest

# Longer than any start of ranks takes.
HANG_S = 300
SCHEDULES = ("sequential", "gpipe", "1f1b", "interleaved(chunks=2)", "interleaved(chunks=2;group=3)", "zero-bubble-h1",
             "zero-bubble-h2", "zero-bubble-v", "dualpipe-v", "v-half", "v-min", "greedy")


KINDS = {"Forward": "F", "Backward": "B", "BackwardInput": "I", "BackwardWeight": "W"}
# Prints what HTA 0.5.0 has of each rank: its operators and annotations, steps, labels of passes with the begin and end of their
# operators, updates, and the first begin and last end of FSDP's gathers and scatters of a step. Its breakdowns of idle, compute and communication need GPU kernels.
ANALYSE = """
import json
import logging
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis

analysis = TraceAnalysis(trace_files={rank: f"k/rank-{rank}.json.gz" for rank in (0, 1)}, trace_dir="k")
analysis.t.decode_symbol_ids()
result = []
for rank in (0, 1):
    frame = analysis.t.get_trace(rank)
    frame = frame[frame.s_cat.isin(["cpu_op", "user_annotation"])].sort_values("ts")
    operators = frame[(frame.s_cat == "cpu_op") & ~frame.s_name.str.startswith(("c10d::", "record_param_comms"))]
    labels = []
    for row in frame[frame.s_name.str.fullmatch(r"PP:\\d+[FBIW]\\d+")].itertuples():
        own = operators[(operators.ts >= row.ts) & (operators.ts < row.ts + row.dur)]
        begin, end = (int(own.ts.min()), int((own.ts + own.dur).max())) if len(own) else (None, None)
        labels.append([row.s_name, int(row.iteration), begin, end])
    updates = frame[frame.s_name.str.startswith("Optimizer.step#")]
    gathers = []
    for step in sorted(set(frame.iteration) - {-1}):
        own = frame[frame.iteration == step]
        for operator, gloo in (("c10d::_allgather_base_", "gloo:all_gather"), ("c10d::_reduce_scatter_base_", "gloo:all_reduce")):
            begins, ends = own[own.s_name == operator], own[own.s_name == gloo]
            if len(begins):
                ends = ends.head(len(begins))  # other all-reduces follow
                gathers.append([operator, int(begins.ts.min()), int((ends.ts + ends.dur).max())])
    result.append({"gathers": gathers, "operators": len(frame), "steps": [int(each) for each in analysis.get_profiler_steps()], "labels": labels,
                   "updates": [float(each) for each in updates.dur]})
print(json.dumps(result))
"""


class Crosses(IsobarTorchTest):
    """Losses of plans of all kinds are those of one process."""

    def test_all_schedules_widths_and_replicas(self):
        for text, schedule, width, replicas in itertools.product((GPT, LLAMA), SCHEDULES, (1, 2, 3, 4), (1, 2)):
            is_no_plan = (width == 1 and "chunks" in schedule) or (width == 4 and "chunks" in schedule and text == GPT)
            # A greedy plan has orders of every device. The last of groups of 3 has fewer micro-batches than 3 devices.
            if width * replicas > 4 or is_no_plan or (replicas > 1 and schedule == "greedy") or (
                    width != 2 and "group" in schedule):
                continue
            for local in (width + 1, 2 * width + 1):
                with self.subTest(model=text.split()[1], schedule=schedule, width=width, replicas=replicas, local=local):
                    self.check_losses(text, width * replicas, schedule, local * replicas, replicas=replicas)

    def test_replicas_that_divide_optimizer_or_parameters(self):
        for text, schedule, width, sharded in itertools.product((GPT, LLAMA), ("gpipe", "1f1b", "interleaved(chunks=2)"), (1, 2),
                                                                ("optimizer", "parameters")):
            if width == 1 and "chunks" in schedule:
                continue
            with self.subTest(model=text.split()[1], schedule=schedule, width=width, sharded=sharded):
                self.check_losses(text, 2 * width, schedule, 4 * width, replicas=2, sharded=sharded)

    def test_all_models_of_transformers(self):
        for kind, schedule in itertools.product(CONFIGS, ("gpipe", "interleaved(chunks=2)", "zero-bubble-v")):
            with self.subTest(kind=kind, schedule=schedule):
                self.check_transformers(kind, schedule)


class Torchrun(IsobarTorchTest):
    """Ranks that torchrun starts."""

    def torchrun(self, ranks, *arguments):
        """Runs ranks on this machine."""
        return subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks),
                               *arguments], capture_output=True, text=True, check=False, timeout=HANG_S)

    def test_ranks_are_the_devices_of_their_names(self):
        workload = self.write("model.yaml", GPT)
        self.plan(workload, 2, "1f1b", 2)
        expected = self.losses_alone(workload)
        self.write("swapped.py", "import os, sys\nfrom isobar_torch.__main__ import main\n"
                   "sys.exit(main([*sys.argv[1:], '--plan-device', f'device-{1 - int(os.environ[\"RANK\"])}']))\n")
        done = self.torchrun(2, "swapped.py", "plan.json", "--workload", workload, "--steps", "3", "--log-file", "log.jsonl",
                             "--trace", "measured.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        losses = [json.loads(line)["loss"] for line in (self.folder / "log.jsonl").read_text().splitlines()]
        for each, other in zip(losses, expected, strict=True):
            self.assertAlmostEqual(each, other, delta=1e-5)
        self.isobar("trace", "stats", "measured.json")

    def test_refuses_another_number_of_ranks(self):
        workload = self.write("model.yaml", GPT)
        self.plan(workload, 3, "1f1b", 2)
        done = self.torchrun(2, "-m", "isobar_torch", "plan.json", "--workload", workload)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("isobar_torch: 2 ranks; plan.json has 3 devices (device-0, device-1, device-2), a rank each\n",
                      done.stderr)

    def test_refuses_a_device_of_two_ranks(self):
        workload = self.write("model.yaml", GPT)
        self.plan(workload, 2, "1f1b", 2)
        done = self.torchrun(2, "-m", "isobar_torch", "plan.json", "--workload", workload, "--plan-device", "device-1")
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stderr.count("isobar_torch: --plan-device device-1: of ranks 0 and 1; give each its own\n"), 1,
                         done.stderr)


class Analysis(KinetoTest):
    """HolisticTraceAnalysis of what the profiler wrote, in the environment of ISOBAR_HTA."""

    def test_times_are_those_of_holistic_trace_analysis(self):
        if "ISOBAR_HTA" not in os.environ:
            self.skipTest("no HolisticTraceAnalysis; source tools/setup.sh && need_hta")
        for schedule in ("interleaved(chunks=2)", "zero-bubble-v"):
            with self.subTest(schedule=schedule):
                shutil.rmtree("k", ignore_errors=True)
                contents = self.profiled(GPT, 2, schedule, 4)
                measured = self.measured("k/rank-0.json.gz", "k/rank-1.json.gz")
                for rank, found in enumerate(self.analysed()):
                    self.check_rank(rank, found, contents[rank], [each for each in measured if each["pid"] == rank])

    def test_collectives_of_fsdp_are_those_of_holistic_trace_analysis(self):
        if "ISOBAR_HTA" not in os.environ:
            self.skipTest("no HolisticTraceAnalysis; source tools/setup.sh && need_hta")
        self.write("model.yaml", GPT)
        self.isobar("platform", "generate", "star", "--devices", 2, "-o", "star.xml")
        self.isobar("convert", "0,8", "star.xml", "model.yaml", "--from", "deepspeed", "--replicas", 2, "--sharded", "parameters",
                    "--microbatches", 4, "-o", "plan.json")
        self.losses("model.yaml", "--kineto", "k")
        measured = self.measured("k/rank-0.json.gz", "k/rank-1.json.gz")
        for rank, found in enumerate(self.analysed()):
            wanted = []
            for step in (0, 1):
                for opcode in ("AllGather", "ReduceScatter"):
                    own = [each for each in measured if (each["pid"], each["args"]["step"], each["cat"]) == (rank, step, opcode)]
                    wanted.append(max(each["ts"] + each["dur"] for each in own if each["dur"] > 0) - min(each["ts"] for each in own))
            self.assertEqual(len(found["gathers"]), len(wanted))
            for (_, begin, end), duration in zip(found["gathers"], wanted, strict=True):
                self.assertAlmostEqual(end - begin, duration, delta=2)

    def analysed(self):
        """What ANALYSE prints of each rank."""
        self.write("analyse.py", ANALYSE)
        environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "LD_LIBRARY_PATH")}
        done = subprocess.run([os.environ["ISOBAR_HTA"], "analyse.py"], env=environment, capture_output=True, text=True, check=False,
                              timeout=HANG_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout.splitlines()[-1])

    def check_rank(self, rank, found, content, measured):
        """HTA rounds times to microseconds, begins up and ends down; so its spans are up to 2 us shorter."""
        spans = [each for each in content["traceEvents"] if each["ph"] == "X" and each.get("cat") in ("cpu_op", "user_annotation")]
        steps = sorted({each["args"]["step"] for each in measured})
        # Both leave out the step that the profiler begins at the end, which has nothing.
        empty = [each for each in spans if each["name"] == f"ProfilerStep#{len(steps) + 1}"]
        self.assertEqual(found["operators"], len(spans) - len(empty))
        self.assertEqual(found["steps"], [step + 1 for step in steps])
        passes = sorted((each for each in measured if each["cat"] in ("Forward", "Backward", "BackwardInput", "BackwardWeight")),
                        key=lambda each: each["ts"])
        labels = found["labels"]
        self.assertEqual(len(labels), len(passes))
        compared = 0
        for each, (name, iteration, begin, end) in zip(passes, labels, strict=True):
            self.assertEqual(iteration, each["args"]["step"] + 1)
            self.assertEqual(name, f"PP:{each['args']['stage']}{KINDS[each['cat']]}{each['args']['microbatch']}")
            if begin is not None:
                compared += 1
                self.assertAlmostEqual(each["dur"], end - begin, delta=2)
        self.assertGreaterEqual(compared, len(passes) - 4 * len(steps))  # the first stage's I has no operators
        updates = sorted((each for each in measured if each["cat"] == "Update"), key=lambda each: each["ts"])
        for each, duration in zip(updates, found["updates"], strict=True):
            self.assertAlmostEqual(each["dur"], duration, delta=2)


class Page(IsobarTorchTest):
    """docs/frameworks.md"""

    def test_commands_of_the_page_run(self):
        commands = self.folder / "bin"
        commands.mkdir()
        (commands / "isobar").symlink_to(ISOBAR)
        (commands / "python3").symlink_to(sys.executable)
        (commands / "torchrun").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m torch.distributed.run "$@"\n')
        (commands / "torchrun").chmod(0o755)
        (self.folder / "examples").symlink_to(ROOT / "examples")
        # The test of the pages runs the others.
        blocks = [each for each in blocks_of((ROOT / "docs/frameworks.md").read_text()) if each.language == "sh"
                  and each.run_by == "tests/integrations/torch/crosses_test.py"]
        self.assertEqual(len(blocks), 4)
        environment = {**os.environ, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"}
        for each in blocks:
            done = subprocess.run(["bash", "-euc", each.text], env=environment, capture_output=True, text=True, check=False,
                                  timeout=HANG_S)
            self.assertEqual(done.returncode, 0, f"line {each.line}: {done.stdout}{done.stderr}")


if __name__ == "__main__":
    unittest.main()
