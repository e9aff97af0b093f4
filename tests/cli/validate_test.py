"""isobar validate, isobar doctor and profiles of several ranks."""

import json
import pathlib
import subprocess
import xml.etree.ElementTree

from tests.cli.run_test import MODEL
from tests.cli.support import HANG_S, ISOBAR, ROOT, CommandTest
from tests.cli.trace import assert_is_trace

PORTS = "127.0.0.1:21751,127.0.0.1:21752"


class Validate(CommandTest):
    def validate(self, *options, expect=0):
        workload = self.write("model.yaml", MODEL)
        name = self.folder / "v"
        result = self.run_isobar("validate", workload, "--slowdowns", "1,2", "--steps", 3, "--microbatches", 4, "-o",
                                 name, *options, expect=expect)
        return name, result

    def test_everything_from_a_profile_to_the_comparison(self):
        name, result = self.validate("--tolerance", 1000, "--json")
        [comparison] = json.loads(result.stdout)
        self.assertEqual(comparison, json.loads(name.with_suffix(".validation.json").read_text()))
        self.assertEqual(comparison["allocator"], "exact")
        self.assertEqual(comparison["schema"], "isobar-validation/1")
        self.assertTrue(comparison["within_tolerance"])
        plan = json.loads(name.with_suffix(".plan.json").read_text())
        devices = [stage["devices"][0]["name"] for stage in plan["stages"]]
        self.assertEqual([stage["device"] for stage in comparison["stages"]], devices)
        for stage in comparison["stages"]:
            self.assertGreater(stage["measured_compute_s"], 0)
            self.assertGreater(stage["measured_peak_memory_bytes"], 0)
        opcodes = {(kind["device"], kind["opcode"]) for kind in comparison["instructions"]}
        for device in devices:
            self.assertLessEqual({(device, "Forward"), (device, "Backward"), (device, "Update")}, opcodes)
        for side in ("predicted", "measured"):
            path = comparison[f"{side}_critical_path"]
            total = sum(share["time_s"] for share in path)
            self.assertLess(abs(total / comparison[f"{side}_step_time_s"] - 1), 0.75)
        [run] = self.json_of("report", name.with_suffix(".result.json"), "--measured",
                             name.with_suffix(".measured.json"))["runs"]
        # A result has the mean of the steps, a comparison the typical step.
        self.assertAlmostEqual(run["step_time_s"] / comparison["predicted_step_time_s"], 1, places=3)
        self.assertEqual(run["measured"]["step_time_s"], comparison["measured_step_time_s"])
        for ending in ("xml", "profile.json", "links.csv", "simulated.json", "measured.json", "run.json"):
            self.assertTrue(name.with_suffix("." + ending).exists(), ending)

    def test_several_allocators_share_one_profile(self):
        name, result = self.validate("--tolerance", 1000, "--allocator", "even,exact")
        self.assertRegex(result.stdout, r"allocator +predicted s +measured s +error\n(.*\n)even .*\nexact ")
        plans = [json.loads(pathlib.Path(f"{name}.{allocator}.plan.json").read_text()) for allocator in ("even", "exact")]
        self.assertEqual(plans[0]["inputs"]["profile"], plans[1]["inputs"]["profile"])
        self.assertEqual([plan["allocator"] for plan in plans], ["even", "exact"])

    def test_an_error_above_the_tolerance_is_a_failed_check(self):
        name, result = self.validate("--tolerance", 0, expect=5)
        self.assertRegex(result.stderr, r"isobar: the predicted step time is .* % off; --tolerance allows 0.0 %\n")
        self.assertFalse(json.loads(name.with_suffix(".validation.json").read_text())["within_tolerance"])

    def test_wrong_options_are_refused_before_anything_is_measured(self):
        workload = self.write("model.yaml", MODEL)
        name = self.folder / "v"
        base = ("validate", workload, "-o", name)
        self.assertEqual(self.fault_of(*base, "--tolerance", -1),
                         "--tolerance: -1 is not in 0 to 1e6; 0.1 is 10 %")
        for command in ("validate", "profile"):
            for folder in (f"{self.folder}/", self.folder):
                self.assertEqual(self.fault_of(command, workload, "-o", folder),
                                 f"--output: {folder} is a folder; write {self.folder}/NAME")
        self.assertEqual(self.fault_of(*base, "--steps", 1), "--steps: the first step does not count; use at least 2")
        self.assertIn("--slowdowns", self.fault_of(*base, "--slowdowns", "0.5"))
        self.assertIn("exakt", self.fault_of(*base, "--allocator", "exakt"))
        self.assertEqual(self.fault_of(*base, "--allocator", "even,even"),
                         '--allocator: "even" is listed twice; leave one out')
        self.assertIn("no.yaml: no such file", self.fault_of("validate", self.folder / "no.yaml", "-o", name))
        self.assertEqual(list(self.folder.glob("v*")), [])


class SeveralRanks(CommandTest):
    def by_two_ranks(self, *arguments):
        """The output of two ranks, each in its own process."""
        secret = self.secret_file()
        processes = [subprocess.Popen([ISOBAR, *map(str, arguments), "--rank", str(rank), "--ranks", PORTS,
                                       "--secret-file", secret], cwd=ROOT, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True) for rank in (0, 1)]
        printed = [process.communicate(timeout=HANG_S) for process in processes]
        self.assertEqual([process.returncode for process in processes], [0, 0], printed)
        return [output for output, _ in printed]

    def test_a_profile_measures_every_link_both_ways(self):
        workload = self.write("model.yaml", MODEL)
        name = self.folder / "live"
        printed = self.by_two_ranks("profile", workload, "--repetitions", 3, "--slowdowns", "1,3", "--flows", 2, "-o",
                                    name)
        self.assertIn("rank-1, rank-0", printed[0])
        self.assertEqual(printed[1], "")
        lines = [line.split(",") for line in name.with_suffix(".links.csv").read_text().splitlines()]
        self.assertEqual(lines[0], ["from", "to", "flows", "latency_s", "bandwidth_bytes_per_s", "size_bytes",
                                    "time_s"])
        self.assertEqual({tuple(line[:3]) for line in lines[1:]},
                         {(*pair, flows) for pair in (("0", "1"), ("1", "0")) for flows in ("1", "2")})
        zone = xml.etree.ElementTree.parse(name.with_suffix(".xml")).getroot().find("zone")
        speeds = [float(host.get("speed").rstrip("f")) for host in zone.findall("host")]
        self.assertAlmostEqual(speeds[0] / speeds[1], 3)
        self.assertEqual(len(zone.findall("link")), 2)
        self.assertEqual(len(zone.findall("route")), 2)

    def test_rank_0_reports_the_measurements_of_all(self):
        workload = self.write("model.yaml", MODEL)
        name = str(self.folder / "live")
        self.by_two_ranks("profile", workload, "--repetitions", 3, "-o", name)
        inputs = (name + ".xml", workload, "--profile", name + ".profile.json")
        plan = self.make_plan(*inputs, "--microbatches", 4)
        self.run_isobar("simulate", *inputs, "--plan", plan, "--stamp")
        result = self.folder / "run.json"
        trace = self.folder / "trace.json"
        printed = self.by_two_ranks("run", workload, "--plan", plan, "--steps", 3, "-o", result, "--trace", trace)
        self.assertIn("peak memory", printed[0])
        self.assertIn("loss", printed[1])
        content = json.loads(result.read_text())
        self.assertEqual(len(content["stages"]), 2)
        self.assertEqual(len(content["losses"]), 3)
        assert_is_trace(self, trace)  # on one machine the clocks agree, so nothing is received before it was sent

    def test_wrong_ranks_are_faults_of_one_line(self):
        workload = self.write("model.yaml", MODEL)
        base = ("profile", workload, "-o", self.folder / "live")
        self.assertEqual(self.fault_of(*base, "--rank", 0), "--rank and --ranks go together; give both")
        self.assertEqual(self.fault_of(*base, "--rank", 2, "--ranks", PORTS), "--rank: 2 is not below 2, the number of --ranks")
        self.assertEqual(self.fault_of(*base, "--rank", 0, "--ranks", PORTS, "--slowdowns", "1,2,3"),
                         "--slowdowns: lists 3 devices, and --ranks 2; list one for each rank")
        self.assertEqual(self.fault_of(*base, "--threads", 0), "--threads: 0 is not in 1 to 1024")
        self.assertEqual(self.fault_of(*base, "--flows", 65), "--flows: 65 is not in 1 to 64")


class Doctor(CommandTest):
    def test_it_reports_what_the_machine_can_do(self):
        findings = json.loads(self.run_isobar("doctor", "--flows", 2, "--json").stdout)["findings"]
        self.assertLessEqual({"LibTorch", "NCCL", "processor", "memory", "matrix product", "attention", "sleep",
                              "loopback", "TCP"}, {finding["subject"] for finding in findings})

    def test_a_plan_that_needs_too_much_memory_is_bad(self):
        platform, workload = self.small_inputs(memory="1000000 TB")
        plan = self.make_plan(platform, workload)
        content = json.loads(pathlib.Path(plan).read_text())
        self.run_isobar("doctor", "--flows", 1, "--plan", plan)
        for device in content["predicted"]["peak_memory_bytes"]:
            content["predicted"]["peak_memory_bytes"][device] = 1e15
        pathlib.Path(plan).write_text(json.dumps(content))
        printed = self.run_isobar("doctor", "--flows", 1, "--plan", plan, expect=3).stdout
        self.assertRegex(printed, r"bad +memory +.* available; the plan needs .* here")
