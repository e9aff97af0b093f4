"""isobar trace, on traces of the two commands that write them and of PyTorch's profiler."""

import json
import unittest

from tests.cli.support import BERT24, ROOT, SKY16, CommandTest
from tests.cli.trace import assert_is_trace, compute_s, read_trace, track_names


PAIR = "examples/pair.xml"
# Layers in fp16, whose steps need a gradient sync.
HALF = """model: layers
micro_batch: 4
dtype: fp16
layers:
  - {name: first, forward: 1 TFLOP, parameters: 1000000, activations: 1 GB, output: 10 MB}
  - {name: second, forward: 1 TFLOP, parameters: 1000000, activations: 1 GB, output: 10 MB}
  - {name: third, forward: 1 TFLOP, parameters: 1000000, activations: 1 GB, output: 4 B}
"""
SCHEMA_1 = "tests/instances/traces/schema_1.json"


class Trace(CommandTest):
    def simulated(self, platform, workload, *options):
        plan = self.make_plan(platform, workload, *options)
        trace = self.folder / "trace.json"
        result = self.json_of("simulate", platform, workload, "--plan", plan, "--trace", trace)
        return trace, result

    def test_busy_times_are_those_of_the_result(self):
        trace, result = self.simulated(SKY16, BERT24)
        events = assert_is_trace(self, trace)
        busy = compute_s(events)
        stats = self.json_of("trace", "stats", trace)
        self.assertAlmostEqual(stats["step_time_s"], result["step_time_s"], places=9)
        of_device = {device["device"]: device for device in stats["devices"]}
        for rank, stage in enumerate(result["stages"]):
            device = of_device[stage["device"]]
            self.assertAlmostEqual(device["busy_s"], stage["compute_s"], places=8)
            self.assertAlmostEqual(device["busy_s"], busy[rank], places=8)
            self.assertAlmostEqual(device["idle_s"], stage["idle_s"], places=8)
            self.assertAlmostEqual(device["idle_s"], device["idle_link_s"] + device["idle_straggler_s"] +
                                   device["idle_bubble_s"], places=8)
        server = of_device["node-0"]
        self.assertEqual(server["busy_s"], 0)
        self.assertIsNone(server["idle_s"])
        self.assertAlmostEqual(sum(share["fraction"] for share in stats["critical_path_by_kind"]), 1)
        self.assertAlmostEqual(sum(share["time_s"] for share in stats["critical_path"]), result["step_time_s"], places=6)

    def test_counters_peak_at_the_values_of_the_result(self):
        trace, result = self.simulated(SKY16, BERT24)
        events = read_trace(trace)["traceEvents"]
        memory = [event for event in events if event["ph"] == "C" and event["name"] == "memory"]
        for rank, stage in enumerate(result["stages"]):
            most = max(event["args"]["bytes"] for event in memory if event["pid"] == rank)
            self.assertAlmostEqual(most / stage["peak_memory_bytes"], 1, places=9)
        links = {event["name"] for event in events if event["ph"] == "C" and event["name"] != "memory"}
        self.assertEqual(links, {link["name"] for link in result["links"]})
        for link in result["links"]:
            changes = [event for event in events if event["ph"] == "C" and event["name"] == link["name"]]
            busy_us = sum(after["ts"] - before["ts"] for before, after in zip(changes, changes[1:])
                          if before["args"]["transfers"] > 0)
            self.assertAlmostEqual(1e-6 * busy_us / result["step_time_s"], link["busy_fraction"], places=6)
            self.assertEqual(changes[-1]["args"]["transfers"], 0)

    def test_has_a_track_for_each_lane(self):
        trace, _ = self.simulated(PAIR, self.write("half.yaml", HALF))
        tracks = track_names(read_trace(trace)["traceEvents"])
        self.assertEqual([tracks[0, lane] for lane in range(4)],
                         ["compute", "send activation", "receive gradient", "sync"])
        self.assertEqual([tracks[1, lane] for lane in range(4)],
                         ["compute", "send gradient", "receive activation", "sync"])
        self.assertEqual(len(tracks), 8)
        stats = self.json_of("trace", "stats", trace)
        self.assertEqual([lane["lane"] for lane in stats["devices"][1]["lanes"]],
                         ["compute", "send gradient", "receive activation", "sync"])

    def assert_close(self, value, expected):
        """Compares JSON; numbers may differ by what a trace rounds off."""
        self.assertIs(type(value), type(expected))
        if isinstance(expected, dict):
            self.assertEqual(value.keys(), expected.keys())
            for key in expected:
                self.assert_close(value[key], expected[key])
        elif isinstance(expected, list):
            self.assertEqual(len(value), len(expected))
            for one, other in zip(value, expected):
                self.assert_close(one, other)
        elif isinstance(expected, float):
            self.assertAlmostEqual(value, expected, places=8)
        else:
            self.assertEqual(value, expected)

    def test_traces_of_the_first_schema_are_those_of_the_same_run_today(self):
        workload = self.write("half.yaml", HALF)
        plan = self.make_plan(PAIR, workload, "--microbatches", 3)
        trace, result = self.folder / "trace.json", self.folder / "result.json"
        self.run_isobar("simulate", PAIR, workload, "--plan", plan, "--trace", trace, "-o", result)
        stats = self.json_of("trace", "stats", SCHEMA_1)
        self.assertAlmostEqual(stats["step_time_s"], 2.4380004, places=6)
        self.assertAlmostEqual(stats["devices"][0]["idle_link_s"], 0.02, places=6)
        self.assertAlmostEqual(sum(share["time_s"] for share in stats["critical_path_by_kind"]
                                   if share["opcode"] == "AllReduce"), 0.002, places=6)
        today = self.json_of("trace", "stats", trace)
        for each in (stats, today):  # shares that are equal but for rounding come in any order
            each["critical_path"].sort(key=lambda share: (share["device"], share["opcode"]))
        self.assert_close(stats, today)
        for pair in ((SCHEMA_1, trace), (trace, SCHEMA_1)):
            self.run_isobar("trace", "merge", *pair, "-o", self.folder / "merged.json")
        run, = self.json_of("report", result, "--measured", SCHEMA_1)["runs"]
        self.assert_close(run["measured"]["step_time_s"], run["step_time_s"])
        self.assertEqual(run["measured"]["timeline"]["instructions"], run["timeline"]["instructions"])

    def test_names_the_site_of_each_device(self):
        trace, _ = self.simulated("platforms/two_sites.xml", "workloads/gpt2_124m.yaml")
        labels = {event["pid"]: event["args"]["labels"] for event in read_trace(trace)["traceEvents"]
                  if event["name"] == "process_labels"}
        self.assertEqual(set(labels.values()), {"site-0", "site-1"})

    def test_prints_a_table(self):
        trace, _ = self.simulated(*self.small_inputs())
        printed = self.run_isobar("trace", "stats", trace).stdout
        self.assertIn("mean of 1 step: ", printed)
        self.assertRegex(printed, r"slow +\d")
        self.assertIn("critical path of step 0: ", printed)
        self.assertRegex(printed, r"\ndevice +busy +communication +hidden +exposed\n")
        self.assertRegex(printed, r"\ndevice +idle +for link +straggler +bubble\n")
        self.assertLessEqual(max(map(len, printed.partition("critical path")[0].splitlines())), 80)

    def test_merges_two_traces_of_a_plan(self):
        inputs = self.small_inputs()
        trace, _ = self.simulated(*inputs)
        merged = self.folder / "merged.json"
        self.run_isobar("trace", "merge", trace, trace, "-o", merged)
        events = assert_is_trace(self, merged)
        self.assertEqual(len(events), 2 * len(assert_is_trace(self, trace)))
        self.assertEqual(self.fault_of("trace", "stats", merged),
                         f"{merged}: otherData.schema: not isobar-trace/1 or isobar-trace/2; pass a trace of isobar "
                         "simulate or isobar run")

    def test_reads_a_trace_of_pytorchs_profiler(self):
        stats = self.json_of("trace", "stats", "tests/instances/traces/kineto_cpu.json")
        self.assertEqual(stats["schema"], "isobar-kineto-stats/1")
        events = [event for event in read_trace(ROOT / "tests/instances/traces/kineto_cpu.json")["traceEvents"]
                  if event.get("cat") == "cpu_op"]
        self.assertEqual(sum(stream["events"] for stream in stats["streams"]), len(events))
        for stream in stats["streams"]:
            self.assertGreater(stream["busy_s"], 0)
            self.assertLessEqual(stream["busy_s"], stats["span_s"] + 1e-9)
        self.assertEqual(stats["gpus"], [])

    def test_refuses_wrong_files_in_one_line(self):
        trace, _ = self.simulated(*self.small_inputs())
        missing = self.folder / "missing.json"
        self.assertEqual(self.fault_of("trace", "stats", missing), f"{missing}: no such file")
        broken = self.write("broken.json", trace.read_text()[:-20])
        self.assertRegex(self.fault_of("trace", "stats", broken), rf"^{broken}: parse error")
        bare = self.write("bare.json", '{"otherData": {"schema": "isobar-trace/2"}}')
        self.assertEqual(self.fault_of("trace", "stats", bare), f"{bare}: key 'traceEvents' not found")
        events = json.loads(trace.read_text())
        number = next(i for i, event in enumerate(events["traceEvents"]) if event["ph"] == "X")
        events["traceEvents"][number]["ts"] = "soon"
        wrong = self.write("wrong.json", json.dumps(events))
        self.assertEqual(self.fault_of("trace", "stats", wrong),
                         f'{wrong}: traceEvents[{number}]: ts: "soon": not a number from -1e+24 to 1e+24')
        self.assertIn("is an input", self.fault_of("trace", "merge", trace, trace, "-o", trace))
        empty = self.write("empty.json", "{}")
        self.assertEqual(self.fault_of("trace", "stats", empty), f"{empty}: otherData.schema: not isobar-trace/1 or "
                         "isobar-trace/2; pass a trace of isobar simulate or isobar run")
        moved = json.loads(trace.read_text())
        moved["traceEvents"][number]["args"]["position"] = 99
        wrong = self.write("moved.json", json.dumps(moved))
        self.assertRegex(self.fault_of("trace", "stats", wrong),
                         f"^{wrong}: rank 0, compute: no instruction at position 0 of step 0$")


if __name__ == "__main__":
    unittest.main()
