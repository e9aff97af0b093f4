"""Traces of torch's profiler as measured timelines: runs under the profiler, the same files in other forms, and faults."""

import contextlib
import gzip
import io
import json
import re
import shutil
import unittest
from unittest import mock

from torch.distributed.pipelining import schedules

from isobar_torch import kineto, launch, pipeline
from tests.integrations.torch.support import GPT, ISOBAR, LLAMA, IsobarTorchTest

EVALUATE = "autograd::engine::evaluate_function"


class KinetoTest(IsobarTorchTest):
    """Runs a plan under the profiler and reads what it wrote."""

    def profiled(self, text, *arguments, kind=None, **named):
        """Profiles two steps of a plan, by another class of torch's schedules with `kind`.

        Returns the contents of the ranks' files, which lie in the folder k.
        """
        workload = self.write("model.yaml", text)
        self.plan(workload, *arguments, **named)
        with contextlib.ExitStack() as patches:
            if kind is not None:
                for module in (launch, pipeline):
                    patches.enter_context(mock.patch.object(module, "torch_schedule", lambda plan: kind))
            self.losses(workload, "--kineto", "k")
        return [json.loads(gzip.decompress(path.read_bytes())) for path in sorted((self.folder / "k").iterdir())]

    def convert(self, *traces, output="measured.json", options=()):
        """Runs isobar_torch.kineto. Returns the exit code and what it prints on stderr."""
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            code = kineto.main(["plan.json", *traces, "--workload", "model.yaml", "--isobar", ISOBAR, "-o", output, *options])
        return code, errors.getvalue()

    def measured(self, *traces, output="measured.json", options=()):
        """The instructions of the timeline."""
        code, errors = self.convert(*traces, output=output, options=options)
        self.assertEqual(code, 0, errors)
        return [each for each in json.loads((self.folder / output).read_text())["traceEvents"] if each["ph"] == "X"]

    def refusal(self, content, name="bad.json", options=(), others=("k/rank-1.json.gz",)):
        """The line that a file with this content is refused with, given as rank 0."""
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        (self.folder / name).write_bytes(data)
        code, errors = self.convert(name, *others, options=options)
        self.assertEqual((code, errors.count("\n")), (2, 1), errors)
        self.assertTrue(errors.startswith("isobar_torch.kineto: "), errors)
        return errors.removeprefix("isobar_torch.kineto: ").rstrip("\n")

    def spans(self, content, pattern):
        """Spans of a profile whose whole name matches, by begin."""
        found = [each for each in content["traceEvents"] if each["ph"] == "X" and re.fullmatch(pattern, each["name"])]
        return sorted(found, key=lambda each: each["ts"])

    def within(self, content, span, pattern):
        """Spans that match and begin in `span`."""
        return [each for each in self.spans(content, pattern) if span["ts"] <= each["ts"] < span["ts"] + span["dur"]]

    def trace_of_prediction(self):
        """The text of predicted.json, which the simulation of plan.json writes."""
        self.isobar("simulate", "star.xml", "model.yaml", "--plan", "plan.json", "--trace", "predicted.json", "-o", "result.json")
        return (self.folder / "predicted.json").read_text()

    def assert_has_the_instructions_of_the_prediction(self, measured):
        """Each step has the simulated instructions, and all commands read the trace."""
        predicted = [each for each in json.loads(self.trace_of_prediction())["traceEvents"] if each["ph"] == "X"]
        self.isobar("trace", "merge", "predicted.json", "measured.json", "-o", "both.json")
        self.isobar("report", "result.json", "--measured", "measured.json", "-o", "page.html")
        stats = json.loads(self.isobar("trace", "stats", "measured.json", "--json"))
        self.assertEqual(stats["steps"], 1)
        for step in (0, 1):
            whats = [sorted((each["pid"], each["cat"], each["args"]["position"], each["args"]["stage"], each["args"]["microbatch"],
                             each["args"].get("payload") or "", each["args"].get("bytes") or 0)
                            for each in events if each["args"]["step"] == number)
                     for events, number in ((predicted, 0), (measured, step))]
            self.assertEqual(*whats)

    def check_backward_passes(self, content, measured, rank):
        """The backward passes last from their first autograd node to their last one, as the profile has them."""
        nodes = sorted((each["ts"], each["ts"] + each["dur"]) for each in self.spans(content, EVALUATE + ".*"))
        origin = None
        for each in sorted((each for each in measured if each["pid"] == rank and each["cat"] == "Backward"),
                           key=lambda each: each["ts"]):
            begin = nodes[0][0]
            origin = begin - each["ts"] if origin is None else origin
            inside = [node for node in nodes if node[0] < origin + each["ts"] + each["dur"] - 0.01]
            self.assertAlmostEqual(inside[0][0] - origin, each["ts"], delta=0.01)
            self.assertAlmostEqual(max(end for _, end in inside) - origin, each["ts"] + each["dur"], delta=0.01)
            nodes = nodes[len(inside):]
        self.assertEqual(nodes, [], "nodes that no pass has")


class Runs(KinetoTest):
    """Runs of torch.distributed.pipelining."""

    def test_1f1b_which_torch_does_not_label(self):
        contents = self.profiled(GPT, 2, "1f1b", 4, kind=schedules.Schedule1F1B)
        measured = self.measured("k/rank-0.json.gz", "k/rank-1.json.gz")
        self.assert_has_the_instructions_of_the_prediction(measured)
        for rank, content in enumerate(contents):
            self.assertEqual(self.spans(content, "PP:.*|Forward .*"), [])
            self.check_backward_passes(content, measured, rank)
        # The first node of the model is the embedding's, the last one of the first stage the sum of its last block.
        first = [each for each in measured if each["pid"] == 0 and each["cat"] == "Forward"]
        embeddings = self.spans(contents[0], "embedding")
        self.assertEqual(len(first), len(embeddings))
        for each, span in zip(first, embeddings, strict=True):
            operators = [operator for operator in self.within(contents[0], span, "aten::embedding")]
            self.assertAlmostEqual(each["ts"] - first[0]["ts"], operators[0]["ts"] - self.within(
                contents[0], embeddings[0], "aten::embedding")[0]["ts"], delta=0.01)

    def test_interleaved_which_torch_labels(self):
        contents = self.profiled(LLAMA, 2, "interleaved(chunks=2)", 4)
        measured = self.measured("k/rank-0.json.gz", "k/rank-1.json.gz")
        self.assert_has_the_instructions_of_the_prediction(measured)
        for rank, content in enumerate(contents):
            for kind, opcode in (("F", "Forward"), ("B", "Backward")):
                labels = self.spans(content, rf"PP:\d{kind}\d")
                passes = [each for each in measured if each["pid"] == rank and each["cat"] == opcode]
                self.assertEqual([(each["args"]["stage"], each["args"]["microbatch"]) for each in passes],
                                 [(int(label["name"][3]), int(label["name"][5])) for label in labels])
                for each, label in zip(passes, labels, strict=True):
                    operators = [span for span in self.within(content, label, "(?!c10d).*") if span["cat"] == "cpu_op"]
                    end = max(span["ts"] + span["dur"] for span in operators)
                    self.assertAlmostEqual(each["dur"], end - operators[0]["ts"], delta=0.01)
                    self.assertLess(each["dur"], label["dur"])

    def test_an_optimizer_that_has_one_for_each_stage_makes_no_difference(self):
        content = self.profiled(GPT, 2, "interleaved(chunks=2)", 4)[0]
        expected = self.measured("k/rank-0.json.gz", "k/rank-1.json.gz")
        predicted = json.loads(self.trace_of_prediction())["traceEvents"]
        self.assertEqual({each["name"] for each in expected}, {each["name"] for each in predicted if each["ph"] == "X"})
        updates = self.spans(content, r"Optimizer\.step#.*")
        for first, second in zip(updates[::2], updates[1::2], strict=True):
            content["traceEvents"].append({**first, "name": "Optimizer.step#OptimizersContainer.step", "ts": first["ts"] - 1,
                                           "dur": second["ts"] + second["dur"] + 1 - first["ts"]})
        self.write("container.json", json.dumps(content))
        self.assertEqual(self.measured("container.json", "k/rank-1.json.gz", output="other.json"), expected)
        content["traceEvents"].append({**updates[-1], "ts": updates[-2]["ts"] - 5, "dur": 1, "name": "Optimizer.step#Other.step"})
        del content["traceEvents"][-2]  # the container of the last step
        self.assertRegex(self.refusal(content), r"bad.json: step \d: 3 spans Optimizer.step#…, and 2 stages on this rank; use an "
                         "optimizer for each stage, of torch.optim")

    def test_gpipe_and_halves_of_backward_passes(self):
        for schedule, kind in (("gpipe", None), ("gpipe", schedules.ScheduleGPipe), ("zero-bubble-v", None)):
            with self.subTest(schedule=schedule, kind=kind):
                shutil.rmtree("k", ignore_errors=True)
                self.profiled(GPT, 2, schedule, 4, kind=kind)
                measured = self.measured("k/rank-0.json.gz", "k/rank-1.json.gz")
                stats = json.loads(self.isobar("trace", "stats", "measured.json", "--json"))
                self.assertEqual(stats["steps"], 1)
                received = {(each["pid"], each["args"]["step"], each["args"]["stage"], each["args"]["microbatch"]):
                            each["ts"] + each["dur"] for each in measured if each["name"].startswith("Recv activation")}
                forwards = {(each["pid"], each["args"]["step"], each["args"]["stage"], each["args"]["microbatch"]): each["ts"]
                            for each in measured if each["cat"] == "Forward"}
                self.assertEqual(len(received), 2 * 4 * (1 if schedule == "gpipe" else 2))
                for key, end in received.items():
                    self.assertLessEqual(end, forwards[key] + 0.01)

    def test_replicas_with_their_sums(self):
        self.profiled(GPT, 4, "1f1b", 4, replicas=2)
        self.assert_has_the_instructions_of_the_prediction(self.measured(*(f"k/rank-{rank}.json.gz" for rank in range(4))))

    def divided(self, layout, sharded, *options):
        """Profiles two steps of a plan of four devices, two of each stage. Returns the files' contents and the timeline."""
        self.write("model.yaml", GPT)
        self.isobar("platform", "generate", "star", "--devices", 4, "-o", "star.xml")
        self.isobar("convert", layout, "star.xml", "model.yaml", "--from", "megatron", "--replicas", 2, "--sharded", sharded,
                    "--microbatches", 4, *options, "-o", "plan.json")
        shutil.rmtree("k", ignore_errors=True)
        self.losses("model.yaml", "--kineto", "k")
        contents = [json.loads(gzip.decompress(path.read_bytes())) for path in sorted((self.folder / "k").iterdir())]
        return contents, self.measured(*(f"k/rank-{rank}.json.gz" for rank in range(4)))

    def moments(self, content, measured, rank):
        """What gives moments of the file of a rank as those of the timeline: both begin their first update."""
        first = min(each["ts"] for each in measured if each["pid"] == rank and each["cat"] == "Update")
        update = min(each["ts"] for each in self.spans(content, r"Optimizer\.step#AdamW.*"))
        return lambda moment: moment - update + first

    def test_fsdp_gathers_and_scatters_by_parts(self):
        for layout, options in (("Et*3|t*3L", ()), ("Et|tt|tt|tL", ("--virtual-stages", 2))):
            with self.subTest(layout=layout):
                contents, measured = self.divided(layout, "parameters", *options)
                self.assert_has_the_instructions_of_the_prediction(measured)
                for rank, content in enumerate(contents):
                    at = self.moments(content, measured, rank)
                    own = [each for each in measured if each["pid"] == rank]
                    for opcode, operator, gloo in (("AllGather", "c10d::_allgather_base_", "gloo:all_gather"),
                                                   ("ReduceScatter", "c10d::_reduce_scatter_base_", "gloo:all_reduce")):
                        events = [each for each in own if each["cat"] == opcode]
                        begins = [at(each["ts"]) for each in self.spans(content, operator)]
                        self.assertAlmostEqual(min(each["ts"] for each in events), begins[0], delta=0.1)
                        # Each begins within a part, and each part begins with one.
                        for each in events:
                            if each["dur"] > 0:
                                self.assertLess(min(abs(begin - each["ts"]) for begin in begins), 0.1)
                        for begin in begins:
                            self.assertTrue(any(each["ts"] - 0.1 <= begin < each["ts"] + each["dur"] for each in events))
                        ends = [at(each["ts"] + each["dur"]) for each in self.spans(content, gloo)]
                        for each in events:
                            if each["dur"] > 0:
                                self.assertLess(min(abs(end - each["ts"] - each["dur"]) for end in ends), 0.1)
                    # One of the two backward passes of each part gathers, since FSDP keeps the parameters for the other.
                    kept = [each for each in own if each["cat"] == "AllGather" and each["dur"] == 0]
                    stages = {each["args"]["stage"] for each in own}
                    self.assertEqual(len(kept), 2 * len(stages))

    def test_zero_broadcasts_what_it_updates(self):
        for layout, options in (("Et*3|t*3L", ()), ("Et|tt|tt|tL", ("--virtual-stages", 2))):
            with self.subTest(layout=layout):
                contents, measured = self.divided(layout, "optimizer", *options)
                self.assert_has_the_instructions_of_the_prediction(measured)
                for rank, content in enumerate(contents):
                    at = self.moments(content, measured, rank)
                    gathers = [each for each in measured if each["pid"] == rank and each["cat"] == "AllGather"]
                    updates = [each for each in measured if each["pid"] == rank and each["cat"] == "Update"]
                    outer = self.spans(content, r"Optimizer\.step#Zero.*")
                    self.assertEqual(len(gathers), len(outer))
                    for gather, update, span in zip(gathers, updates, outer, strict=True):
                        begins = [at(each["ts"]) for each in self.within(content, span, "c10d::broadcast_")]
                        self.assertAlmostEqual(gather["ts"], begins[0], delta=0.1)
                        self.assertLessEqual(gather["ts"] + gather["dur"], at(span["ts"] + span["dur"]) + 0.1)
                        self.assertLessEqual(update["ts"] + update["dur"], gather["ts"] + 0.1)

    def test_collectives_that_are_not_recognised_are_left_out(self):
        for sharded, pattern, whose in (("parameters", "FSDP::.*", "FSDP's (fully_shard)"),
                                        ("optimizer", "c10d::broadcast_|gloo:broadcast", "ZeroRedundancyOptimizer's")):
            with self.subTest(sharded=sharded):
                contents, _ = self.divided("Et*3|t*3L", sharded)
                names = [self.write(f"bare{rank}.json", json.dumps({**content, "traceEvents": [
                    each for each in content["traceEvents"] if not re.fullmatch(pattern, str(each.get("name")))]}))
                    for rank, content in enumerate(contents)]
                code, errors = self.convert(*names)
                self.assertEqual(code, 0, errors)
                self.assertIn("isobar_torch.kineto: collectives of parameters are not in the timeline, since the traces have none of "
                              f"{whose}\n", errors)
                found = [each for each in json.loads((self.folder / "measured.json").read_text())["traceEvents"] if each["ph"] == "X"]
                self.assertEqual({each["args"].get("payload") for each in found if each["cat"] == "AllGather"}, set())

    def test_sends_end_where_their_receives_end(self):
        self.profiled(GPT, 2, "interleaved(chunks=2)", 4)
        measured = self.measured("k/rank-0.json.gz", "k/rank-1.json.gz")
        def ends(opcode):
            return {(each["args"]["channel"], each["args"]["step"], each["args"]["microbatch"]): each["ts"] + each["dur"]
                    for each in measured if each["cat"] == opcode}
        sent, received = ends("Send"), ends("Recv")
        self.assertEqual(sent.keys(), received.keys())
        for key, end in sent.items():
            self.assertAlmostEqual(end, received[key], delta=0.01)

    def test_memory_is_that_of_the_profile(self):
        contents = self.profiled(GPT, 2, "1f1b", 2)
        measured = self.measured("k/rank-0.json.gz", "k/rank-1.json.gz")
        allocated = {each["args"]["Total Allocated"] for each in contents[0]["traceEvents"] if each["name"] == "[memory]"}
        for each in measured:
            if each["pid"] == 0 and each["cat"] == "Forward":
                self.assertIn(each["args"]["memory_bytes"], allocated)

    def test_options_that_exclude_each_other(self):
        workload = self.write("model.yaml", GPT)
        self.plan(workload, 2, "1f1b", 2)
        for options, line in ((("--kineto", "k", "--trace", "t.json"), "--kineto with --trace: its threads would be in the profile; "
                               "use one of them"),
                              (("--kineto", "k", "--steps", 1), "--kineto with --steps 1: the first step is not profiled; use "
                               "--steps 2 or more")):
            self.assertEqual(self.run_here("plan.json", "--workload", workload, "--spawn", *options), (2, f"isobar_torch: {line}\n"))


class Profiles(KinetoTest):
    """Times of layers."""

    def test_layers_add_up_to_their_passes_and_plans_take_them(self):
        self.profiled(GPT, 2, "interleaved(chunks=2)", 4)
        measured = self.measured("k/rank-0.json.gz", "k/rank-1.json.gz", options=("--profile", "p.json", "--device", "cpu", "--memory",
                                                                                  "16000000000"))
        profile = json.loads((self.folder / "p.json").read_text())
        self.assertEqual([each["name"] for each in profile["layers"]],
                         ["embedding", *(f"block{i}" for i in range(6)), "head"])
        # Medians of sums are not sums of medians, but both lie within what the micro-batches took.
        passes = [each for each in measured if each["args"]["step"] == 1]
        for key, opcode in (("forward_s", "Forward"), ("backward_s", "Backward")):
            whole = sum(each[key] for each in profile["layers"])
            by_microbatch = [sum(each["dur"] for each in passes if each["cat"] == opcode and each["args"]["microbatch"] == i) / 1e6
                             for i in range(4)]
            self.assertGreater(whole, 0.5 * min(by_microbatch))
            self.assertLess(whole, 1.5 * max(by_microbatch))
        updates = sum(each["dur"] for each in passes if each["cat"] == "Update") / 1e6
        self.assertAlmostEqual(sum(each["update_s"] for each in profile["layers"]), updates, delta=1e-8)
        self.isobar("plan", "star.xml", "model.yaml", "--allocator", "even", "--profile", "p.json", "-o", "profiled.json")

    def test_one_micro_batch_and_step_has_exactly_the_times_of_its_passes(self):
        self.profiled(LLAMA, 2, "1f1b", 1)
        measured = self.measured("k/rank-0.json.gz", "k/rank-1.json.gz", options=("--profile", "p.json", "--device", "cpu", "--memory",
                                                                                  "16000000000"))
        layers = json.loads((self.folder / "p.json").read_text())["layers"]
        for key, opcode in (("forward_s", "Forward"), ("backward_s", "Backward")):
            for each in measured:
                if each["cat"] == opcode and each["args"]["step"] == 1:
                    own = layers[each["args"]["first_layer"]:each["args"]["last_layer"] + 1]
                    self.assertAlmostEqual(sum(layer[key] for layer in own), each["dur"] / 1e6, delta=1e-7)

    def test_refuses_profiles_that_would_be_guesses(self):
        contents = self.profiled(GPT, 2, "1f1b", 2)
        options = ("--profile", "p.json")
        self.assertEqual(self.refusal(contents[0], options=options), "--profile: the traces name no GPU; give --device")
        options += ("--device", "cpu", "--memory", "1000000000")
        contents[0]["traceEvents"] = [each for each in contents[0]["traceEvents"] if each.get("name") != "block1"]
        self.assertEqual(self.refusal(contents[0], options=options),
                         "bad.json: step 2: 0F0: spans embedding, block0, block2, where the workload has embedding, block0, block1, "
                         "block2; call each layer under torch.profiler.record_function with its name, or record with --kineto of "
                         "isobar_torch")
        self.assertFalse((self.folder / "p.json").exists())


class Files(KinetoTest):
    """Forms of files, and faults in them."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.kept = None

    def contents(self):
        """The files of one run for all tests of this class."""
        if type(self).kept is None:
            # As other loops post them: without labels, transfers part passes of one kind.
            with mock.patch.object(pipeline, "post_receives_first"):
                contents = self.profiled(GPT, 2, "interleaved(chunks=2)", 2)
            type(self).kept = contents, {name: (self.folder / name).read_bytes() for name in (
                "plan.json", "model.yaml", "star.xml", "k/rank-0.json.gz", "k/rank-1.json.gz")}
        contents, files = type(self).kept
        (self.folder / "k").mkdir(exist_ok=True)
        for name, data in files.items():
            (self.folder / name).write_bytes(data)
        return json.loads(json.dumps(contents))

    def test_arrays_and_plain_files_and_other_orders_give_the_same(self):
        contents = self.contents()
        self.measured("k/rank-0.json.gz", "k/rank-1.json.gz")
        expected = (self.folder / "measured.json").read_text()
        for rank, content in enumerate(contents):
            self.write(f"plain{rank}.json", json.dumps(content))
            self.write(f"array{rank}.json", json.dumps(content["traceEvents"]))
        for traces in (("k/rank-1.json.gz", "k/rank-0.json.gz"), ("plain0.json", "k/rank-1.json.gz"), ("array0.json", "array1.json")):
            with self.subTest(traces=traces):
                self.measured(*traces, output="again.json")
                self.assertEqual((self.folder / "again.json").read_text(), expected)

    def test_a_clock_that_transfers_contradict_is_moved(self):
        contents = self.contents()
        self.measured("k/rank-0.json.gz", "k/rank-1.json.gz")
        contents[1]["baseTimeNanoseconds"] += 5_000_000_000
        self.write("late.json", json.dumps(contents[1]))
        code, errors = self.convert("k/rank-0.json.gz", "late.json", output="late_measured.json")
        self.assertEqual(code, 0)
        self.assertRegex(errors, r"rank 1: clock moved by -(4\.9\d*|5(\.\d+)?) s, to the middle of what its transfers with rank 0 allow; error up "
                         r"to \S+ s\n")
        error_us = float(errors.split("error up to ")[1].split()[0]) * 1e6
        read = [[each for each in json.loads((self.folder / name).read_text())["traceEvents"] if each["ph"] == "X"]
                for name in ("measured.json", "late_measured.json")]
        for before, after in zip(*read, strict=True):
            self.assertAlmostEqual(before["ts"], after["ts"], delta=2 * error_us + 1)

    def test_files_that_are_no_traces(self):
        contents = self.contents()
        packed = (self.folder / "k/rank-0.json.gz").read_bytes()
        self.assertIn("it is not a whole gzip file", self.refusal(packed[:1000], "cut.json.gz"))
        self.assertEqual(self.refusal(b"[{,"), "bad.json:1: Expecting property name enclosed in double quotes; it is not JSON")
        self.assertIn("it is not JSON", self.refusal(b"\xff\xfe[]"))
        self.assertEqual(self.refusal({"a": 1}), "bad.json: neither a list of events nor an object with traceEvents; give what "
                         "export_chrome_trace of torch.profiler wrote")
        self.assertEqual(self.refusal([3]), "bad.json: traceEvents[0]: 3 is not a mapping")
        self.assertEqual(self.refusal([]), "bad.json: no operators; give what export_chrome_trace of torch.profiler wrote")
        event = {"ph": "X", "cat": "cpu_op", "name": "a", "ts": "x", "dur": 1}
        self.assertEqual(self.refusal([event]), "bad.json: traceEvents[0].ts: x is not a number of microseconds")
        self.assertEqual(self.refusal([{**event, "ts": 1, "dur": -1}]),
                         "bad.json: traceEvents[0].dur: -1 is not a number of microseconds")
        self.assertEqual(self.refusal([{**event, "ts": 1, "args": {"Sequence number": []}}]),
                         "bad.json: traceEvents[0].args.Sequence number: [] is not a whole number")
        self.assertEqual(self.refusal([{**event, "cat": []}]),
                         "bad.json: no operators; give what export_chrome_trace of torch.profiler wrote")
        self.assertEqual(self.refusal({**contents[0], "distributedInfo": {"rank": -1}}),
                         "bad.json: rank: -1 is not a whole number of 0 or more")
        code, errors = self.convert("none.json", "k/rank-1.json.gz")
        self.assertEqual((code, errors), (2, "isobar_torch.kineto: none.json: No such file or directory\n"))

    def test_ranks_that_do_not_fit(self):
        contents = self.contents()
        self.assertEqual(self.refusal(contents[1]), "k/rank-1.json.gz: of rank 1, as bad.json; give a trace of each rank")
        self.assertEqual(self.refusal(contents[0]["traceEvents"]),
                         "bad.json: no distributedInfo.rank, which k/rank-1.json.gz has; give files of one kind")
        self.assertEqual(self.refusal(contents[0], others=()), "1 traces; the plan has 2 devices, a rank each")
        contents[0]["distributedInfo"]["world_size"] = 4
        self.assertEqual(self.refusal(contents[0]),
                         "bad.json: distributedInfo.world_size: 4; the plan has 2 devices, a rank each")

    def without(self, content, pattern):
        """The content without spans whose name matches."""
        kept = [each for each in content["traceEvents"] if not re.fullmatch(pattern, str(each.get("name")))]
        self.assertLess(len(kept), len(content["traceEvents"]))
        return {**content, "traceEvents": kept}

    def test_what_cannot_be_recognised(self):
        first = self.contents()[0]
        self.assertEqual(self.refusal(self.without(first, r"ProfilerStep#\d+")),
                         "bad.json: no span ProfilerStep#N; give torch.profiler.profile a schedule, and call its step() after each "
                         "step")
        self.assertEqual(self.refusal(self.without(first, "PP:2B1")),
                         "bad.json: step 1: micro-batch 1 of stage 2 has F; F and B, or F, I and W, are a whole step")
        self.assertEqual(self.refusal(self.without(first, r"Optimizer\.step.*")),
                         "bad.json: step 1: 0 spans Optimizer.step#…, and 2 stages on this rank; use an optimizer for each stage, of "
                         "torch.optim")
        self.assertRegex(self.refusal(self.without(first, "gloo:recv")),
                         r"bad.json: step 1: c10d::recv_ without a span gloo:recv or a kernel ncclDevKernel_SendRecv; profile CUDA, too")
        self.assertRegex(self.refusal(self.without(first, "gloo:all_reduce")),
                         r"bad.json: step 1: c10d::allreduce_ without a span gloo:all_reduce or a kernel ncclDevKernel_AllReduce; "
                         "profile CUDA, too")
        self.assertRegex(self.refusal(first, options=("--from-step", "9")),
                         r"bad.json: steps 1 to 3, and from 9 on none with a pass: .*; profile steps that train")
        for each in first["traceEvents"]:
            if each.get("name") == "PP:0F1":
                each["name"] = "PP:(0F1;2B0)OVERLAP_F_B"
        self.assertEqual(self.refusal(first), "bad.json: step 1: PP:(0F1;2B0)OVERLAP_F_B: two passes under one label; trace a schedule "
                         "without OVERLAP_F_B")

    def test_another_plan_than_that_of_the_run(self):
        first = self.contents()[0]
        for each in first["traceEvents"]:
            if each.get("name") == "PP:0F1":
                each["name"] = "PP:1F1"
        self.assertEqual(self.refusal(first), "bad.json: step 1: 1F1: the plan has stages 0, 2 on this rank; give the plan of this run")

    def on_gpu(self, content):
        """The content as if each outermost operator launched a kernel that lasts as long, 50 us later, and c10d NCCL's kernels."""
        delay, events, launches = 50, [], []
        outermost, gloo = {}, {"send": [], "recv": [], "all_reduce": []}
        spans = sorted((each for each in content["traceEvents"] if each["ph"] == "X" and each.get("cat") in ("cpu_op",
                        "user_annotation")), key=lambda each: (each["ts"], -each["dur"]))
        for each in spans:
            if each["name"].startswith("gloo:"):
                gloo[each["name"][5:]].append(each)
        kinds = {"c10d::send": ("send", "SendRecv"), "c10d::recv_": ("recv", "SendRecv"), "c10d::allreduce_": ("all_reduce", "AllReduce")}
        for each in spans:
            if each["cat"] != "cpu_op" or each["ts"] + 0.002 < outermost.get(each["tid"], float("-inf")):
                continue
            outermost[each["tid"]] = each["ts"] + each["dur"]
            end, name = each["ts"] + each["dur"], "elementwise"
            if each["name"] in kinds:
                kind, kernel = kinds[each["name"]]
                last = gloo[kind].pop(0)
                end, name = last["ts"] + last["dur"], f"ncclDevKernel_{kernel}_Sum_f32"
            elif each["name"].startswith("c10d::"):
                continue
            launches.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": each["tid"],
                             "ts": each["ts"], "dur": 0.1, "args": {"correlation": len(launches) + 1}})
            events.append({"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": each["ts"] + delay,
                           "dur": end - each["ts"], "args": {"correlation": len(launches), "device": 0, "stream": 7}})
        kept = [each for each in content["traceEvents"] if not str(each.get("name")).startswith("gloo:")]
        gpu = {"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150_000_000_000}
        return {**content, "deviceProperties": [gpu], "traceEvents": kept + launches + events}

    def test_passes_and_transfers_of_gpus_are_those_of_their_kernels(self):
        contents = self.contents()
        for pattern in ("no span", "PP:.*"):  # with labels, and without them
            bare = [{**each, "traceEvents": [event for event in each["traceEvents"] if not re.fullmatch(pattern, str(event.get("name")))]}
                    for each in contents]
            names = []
            for rank, content in enumerate(bare):
                names += [self.write(f"cpu{rank}.json", json.dumps(content)), self.write(f"gpu{rank}.json", json.dumps(self.on_gpu(content)))]
            expected = self.measured(names[0], names[2])
            found = self.measured(names[1], names[3], output="gpu.json", options=("--profile", "p.json"))
            def of(events):
                return sorted((each["pid"], each["args"]["step"], each["cat"], each["args"]["stage"], each["args"]["microbatch"],
                               each["args"].get("payload") or "", each["ts"], each["dur"]) for each in events if each["cat"] != "Update")
            for before, after in zip(of(expected), of(found), strict=True):
                self.assertEqual(before[:6], after[:6])
                self.assertAlmostEqual(before[6], after[6], delta=0.02)
                self.assertAlmostEqual(before[7], after[7], delta=0.02)
            self.assertEqual(json.loads((self.folder / "p.json").read_text())["device"], "NVIDIA H200")

    def test_without_labels_passes_are_those_of_the_plan_or_refused(self):
        contents = self.contents()
        bare = [self.without(content, "PP:.*") for content in contents]
        for rank, content in enumerate(bare):
            self.write(f"bare{rank}.json", json.dumps(content))
        expected = self.measured("k/rank-0.json.gz", "k/rank-1.json.gz")
        found = self.measured("bare0.json", "bare1.json", output="bare.json")
        def tasks(events):
            return [(each["pid"], each["cat"], each["args"]["stage"], each["args"]["microbatch"], each["args"]["step"])
                    for each in events]
        self.assertEqual(sorted(tasks(found)), sorted(tasks(expected)))
        self.plan("model.yaml", 2, "interleaved(chunks=2)", 4)
        self.assertEqual(self.refusal(bare[0]),
                         "bad.json: step 1: no labels of torch.distributed.pipelining, and operators of the passes FFFFBBBB, where the "
                         "plan has FFFFFBFBFBFBBBBB on this rank; give the plan of this run, or later steps by --from-step")


if __name__ == "__main__":
    unittest.main()
