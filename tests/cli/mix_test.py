"""Mixes of jobs: isobar simulate --mix."""

import json
import pathlib
import unittest

from tests.cli.support import BERT24, HANG_S, ROOT, CommandTest
from tests.cli.trace import read_trace

# Two devices of 1 TFLOP/s with a link of 1 GB/s each way.
PAIR = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <zone id="z" routing="Full">
    <host id="one" speed="1Tf"><prop id="memory" value="MEMORY"/></host>
    <host id="two" speed="1Tf"><prop id="memory" value="MEMORY"/></host>
    <link id="there" bandwidth="1GBps" latency="0us"/>
    <link id="back" bandwidth="1GBps" latency="0us"/>
    <route src="one" dst="two" symmetrical="NO"><link_ctn id="there"/></route>
    <route src="two" dst="one" symmetrical="NO"><link_ctn id="back"/></route>
  </zone>
</platform>
"""

# A layer of 1 s forward and 2 s backward.
ONE_LAYER = """model: layers
micro_batch: 1
dtype: float32
optimizer: sgd
layers:
  - {{name: a, forward: "1 TFLOP", parameters: {parameters}, activations: "1 GB", output: "0 B"}}
"""


def update_s(transfer_s):
    """Two operations per parameter of 4 bytes."""
    return 2 * transfer_s * 1e9 / 4 / 1e12


class Mix(CommandTest):
    def setUp(self):
        super().setUp()
        self.platform = self.write("pair.xml", PAIR.replace("MEMORY", "16 GB"))

    def job(self, name, transfer_s, *options, **keys):
        """A job of data parallelism: 3 s forward and backward, `transfer_s` to add up gradients, update_s."""
        workload = self.write(f"{name}.yaml", ONE_LAYER.format(parameters=round(transfer_s * 1e9 / 4)))
        plan = self.folder / f"{name}.json"
        self.run_isobar("plan", self.platform, workload, "--allocator", "amp", "--pipeline", 1, "--replicas", 2,
                        "--microbatches", 2, "-o", plan, *options)
        return {"name": name, "plan": str(plan), "workload": workload, **keys}

    def mix(self, *jobs, **keys):
        return self.write("mix.json", json.dumps({"schema": "isobar-mix/1", "jobs": list(jobs), **keys}))

    def simulate(self, mix, *options):
        return self.json_of("simulate", self.platform, "--mix", mix, *options)

    def test_two_jobs_of_data_parallelism_take_the_larger_sum(self):
        mix = self.mix(self.job("a", 2), self.job("b", 1))
        result = self.simulate(mix, "--rounds", 5)
        updates = update_s(2) + update_s(1)
        self.assertAlmostEqual(result["round_time_s"], 6 + updates, places=9)
        self.assertAlmostEqual(result["bound_s"], 6 + updates, places=9)
        self.assertEqual(result["binds"]["kind"], "device")
        self.assertAlmostEqual(result["serial_s"], 5 + 4 + updates, places=9)
        self.assertAlmostEqual(result["speedup"], (9 + updates) / (6 + updates), places=9)
        self.assertAlmostEqual(result["gap_fraction"], 0, places=9)
        # 4 rounds, and from rest a flow shop of 3 + 2 and 3 + 1 s. The last update belongs to the turn of b's next step.
        self.assertAlmostEqual(result["total_s"], 4 * (6 + updates) + 6 + 3 + updates, places=9)
        a, b = result["jobs"]
        self.assertEqual((a["name"], a["steps_per_round"], a["steps_done"]), ("a", 1, 5))
        self.assertAlmostEqual(a["solo_step_time_s"], 5 + update_s(2), places=9)
        self.assertAlmostEqual(a["normalised_rate"], (5 + update_s(2)) / (6 + updates), places=9)
        self.assertAlmostEqual(b["longest_wait_s"], 3, places=9)
        self.assertEqual([device["name"] for device in result["devices"]], ["one", "two"])
        for device in result["devices"]:
            self.assertAlmostEqual(device["compute_s"], 6 + updates, places=9)
            jobs = [job["peak_memory_bytes"][device["name"]] for job in (a, b)]
            self.assertGreater(device["peak_memory_bytes"], max(jobs))
            self.assertLess(device["peak_memory_bytes"], sum(jobs), "activations are of one job at a time")
        self.assertEqual({link["name"]: round(link["bytes"] / 1e9, 6) for link in result["links"]},
                         {"there": 3, "back": 3})

    def test_a_mix_of_one_job_is_its_simulation(self):
        job = self.job("a", 2)
        mix = self.mix(job)
        result = self.simulate(mix, "--rounds", 3)
        alone = self.json_of("simulate", self.platform, job["workload"], "--plan", job["plan"], "--iterations", 4)
        ends = [sum(alone["step_times_s"][:count]) for count in (1, 2, 3)]
        self.assertEqual(result["round_times_s"], [ends[0], ends[1] - ends[0], ends[2] - ends[1]])
        self.assertEqual(result["speedup"], 1)
        self.assertEqual(result["jobs"][0]["normalised_rate"], 1)
        self.assertEqual(result["jobs"][0]["longest_wait_s"], 0)

    def test_turns_of_several_steps_count_in_the_round(self):
        mix = self.mix(self.job("a", 2), self.job("b", 1), turns=[{"job": "a", "steps": 2}, {"job": "b"}])
        result = self.simulate(mix)
        self.assertAlmostEqual(result["round_time_s"], 6 + 5 + 2 * update_s(2) + update_s(1), places=9)
        self.assertAlmostEqual(result["jobs"][0]["step_time_s"], result["round_time_s"] / 2, places=9)

    def test_a_job_may_start_later_and_end_earlier(self):
        mix = self.mix(self.job("a", 2), self.job("b", 1, start_s=7, steps=1), discipline="conserving")
        result = self.simulate(mix, "--rounds", 4)
        self.assertEqual([job["steps_done"] for job in result["jobs"]], [4, 1])
        # a computes from 5 to 8 s; b from 8 to 11; a again from 11.
        self.assertAlmostEqual(result["total_s"], 5 + 5 + 6 + 5, places=2)

    def test_prints_what_binds_and_the_table_of_the_jobs(self):
        mix = self.mix(self.job("a", 2), self.job("b", 1))
        lines = self.run_isobar("simulate", self.platform, "--mix", mix).stdout.splitlines()
        self.assertEqual(lines[0],
                         "round 6.0015 s, the mean of 9; none below 6.0015 s, which device one takes; gap 0.0 %")
        self.assertEqual(lines[1], "one job after the other 9.0015 s: 1.500 times as long")
        self.assertEqual(lines[4].split("  ")[0], "job")
        self.assertEqual(lines[6].split(), ["a", "1", "6.00", "s", "5.00", "s", "0.833", "1.00", "s"])

    def test_the_trace_shows_who_waits_for_a_device_and_who_holds_it(self):
        mix = self.mix(self.job("a", 2), self.job("b", 1))
        trace = self.folder / "trace.json"
        self.run_isobar("simulate", self.platform, "--mix", mix, "--rounds", 2, "--trace", trace)
        events = read_trace(trace)["traceEvents"]
        names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        self.assertEqual(list(names.values()), ["a: one", "a: two", "b: one", "b: two", "links"])
        tracks = {(event["pid"], event["tid"]): event["args"]["name"] for event in events
                  if event["name"] == "thread_name"}
        turns = [event for event in events if event.get("cat") == "turn"]
        self.assertEqual({tracks[event["pid"], event["tid"]] for event in turns}, {"turns"})
        first = min((event for event in turns if names[event["pid"]] == "b: one"), key=lambda event: event["ts"])
        self.assertEqual((first["name"], first["ts"], first["dur"]), ("wait", 0, 3e6))
        holds = [event for event in turns if event["name"] == "hold" and names[event["pid"]].endswith("one")]
        holds.sort(key=lambda event: event["ts"])
        for before, after in zip(holds, holds[1:]):
            self.assertLessEqual(before["ts"] + before["dur"], after["ts"])

    def fault(self, mix, *options, expect=2):
        text = self.fault_of("simulate", self.platform, "--mix", mix, *options, expect=expect)
        return text.replace(str(self.folder) + "/", "")

    def test_a_profile_sets_the_times_of_all_jobs(self):
        layer = {"name": "a", "forward_s": 2, "backward_s": 4, "update_s": 0, "spread_fraction": 0,
                 "activations_bytes": 1e9}
        profile = self.write("profile.json", json.dumps({
            "schema": "isobar-profile/1", "device": "gpu", "speed_flops": 5e11, "memory_bytes": 1.6e10,
            "dtype": "float32", "micro_batch": 1, "sequence": 1, "layers": [layer]}))
        self.platform = self.write("typed.xml", PAIR.replace("MEMORY", "16 GB").replace(
            '"/></host>', '"/><prop id="device" value="gpu"/></host>'))
        job = self.job("a", 1, "--profile", profile)
        result = self.simulate(self.mix(job, {**job, "name": "b"}), "--profile", profile, "--rounds", 3)
        self.assertAlmostEqual(result["round_time_s"], 12, places=9)
        self.assertAlmostEqual(result["jobs"][0]["solo_step_time_s"], 7, places=9)
        self.assertEqual(result["inputs"]["profile"]["name"], profile)

    def test_refuses_options_that_do_not_go_with_a_mix(self):
        job = self.job("a", 2)
        mix = self.mix(job)
        for option in (["--plan", job["plan"]], ["--iterations", 2], ["--set", "layers=2"],
                       ["--stamp"], [job["workload"]]):
            name = option[0] if str(option[0]).startswith("--") else "WORKLOAD"
            self.assertIn(self.fault(mix, *option), (f"{name} excludes --mix; see isobar simulate --help",
                                                     f"--mix excludes {name}; see isobar simulate --help"))
        self.assertEqual(self.fault(mix, "--rounds", 0), "--rounds: 0 is not in 1 to 1000000")
        self.assertEqual(self.fault_of("simulate", self.platform, job["workload"], "--plan", job["plan"], "--rounds", 2),
                         "--rounds: is for mixes and for plans made with --outer; write --iterations")
        self.assertEqual(self.fault_of("simulate", self.platform), "WORKLOAD is required; see isobar simulate --help")
        self.assertEqual(self.fault_of("simulate", self.platform, job["workload"]),
                         "--plan is required; see isobar simulate --help")

    def test_refuses_a_mix_whose_files_do_not_fit(self):
        a = self.job("a", 2)
        b = self.job("b", 1)
        self.assertEqual(self.fault(self.mix({**a, "plan": str(self.folder / "c.json")})), "c.json: no such file")
        self.assertEqual(self.fault(self.mix({**a, "workload": str(self.folder / "c.yaml")})), "c.yaml: no such file")
        self.assertIn("a.json: inputs.workload: made for a.yaml", self.fault(self.mix({**a, "workload": b["workload"]})))
        plan = json.loads(pathlib.Path(a["plan"]).read_text())
        plan["stages"][0]["replicas"][1]["shards"][0]["device"] = "three"
        other = self.write("other.json", json.dumps(plan))
        self.assertIn("device three is not on platform pair", self.fault(self.mix({**a, "plan": other})))
        self.assertEqual(self.fault(str(self.folder / "missing.json")), "missing.json: no such file")

    def test_refuses_jobs_that_do_not_fit_in_memory_together(self):
        self.platform = self.write("pair.xml", PAIR.replace("MEMORY", "7 GB"))
        mix = [self.job("a", 2), self.job("b", 2)]
        step = self.fault(self.mix(*mix))
        self.assertRegex(step.splitlines()[0], r"^mix.json: device one: jobs a and b need .* GiB together, and it has "
                         r"6.52 GiB; move one of them to other devices$")

    def test_names_the_device_and_the_jobs_of_turns_that_wait_for_each_other(self):
        self.platform = "platforms/nodes8.xml"
        jobs = []
        for name, model, stages in (("wide", BERT24, 1), ("deep", "workloads/gpt2_124m.yaml", 4)):
            plan = self.folder / f"{name}.json"
            self.run_isobar("plan", self.platform, model, "--allocator", "grid", "--pipeline", stages, "-o", plan)
            jobs.append({"name": name, "plan": str(plan), "workload": str(ROOT / model)})
        self.assertEqual(self.fault(self.mix(*jobs, hand_over="instruction")),
                         "mix.json: device site-0.0.0 is kept for job wide, and job deep can compute there only after it, "
                         "so that no job continues; set discipline to conserving, or hand_over to step")
        for keys in ({"discipline": "conserving", "hand_over": "instruction"}, {"hand_over": "step"}):
            self.assertGreater(self.simulate(self.mix(*jobs, **keys), "--rounds", 2)["speedup"], 1)


if __name__ == "__main__":
    unittest.main()
