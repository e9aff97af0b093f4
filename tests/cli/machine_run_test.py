"""isobar run of plans whose stages live in the machine of their device, or on its disk."""

import contextlib
import csv
import json
import os
import pathlib
import signal
import subprocess
import sys

from tests.cli.support import HANG_S, ISOBAR, ROOT, CommandTest, holds, without_notes

PLATFORM = """<?xml version="1.0"?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <zone id="node" routing="Full">
    <host id="gpu0" speed="1Gf"><prop id="memory" value="DEVICE"/><prop id="host" value="cpu"/></host>
    <host id="cpu" speed="2Mf,4Mf">
      <prop id="role" value="machine"/><prop id="memory" value="HOST"/>
      <disk id="nvme0" read_bw="4MBps" write_bw="2MBps"><prop id="capacity" value="1 GB"/></disk>
    </host>
    <link id="pcie0" bandwidth="1MBps" latency="5us" sharing_policy="SPLITDUPLEX"/>
    <route src="gpu0" dst="cpu"><link_ctn id="pcie0" direction="UP"/></route>
  </zone>
</platform>
"""

GPT = """model: gpt
layers: 4
hidden: 16
heads: 2
vocabulary: 60
sequence: 8
micro_batch: 2
optimizer: adam
learning_rate: 0.01
dropout: 0.1
"""

ALLOCATORS = ("window", "stronghold", "stronghold-published", "zero-offload", "zero-infinity", "l2l")


class MachineRun(CommandTest):
    def setUp(self):
        super().setUp()
        self.workload = self.write("gpt.yaml", GPT)
        self.platform = self.platform_of("165 kB", "1 GB")
        self.large = self.platform_of("1 GB", "1 GB")

    def platform_of(self, device, host):
        return self.write(f"{device}-{host}.xml", PLATFORM.replace("DEVICE", device).replace("HOST", host))

    def stamped(self, allocator, *options, platform=None):
        """A plan by an allocator, with its simulation's timeline beside it."""
        platform = platform or self.platform
        file = self.folder / f"{allocator}.json"
        self.run_isobar("plan", platform, self.workload, "--allocator", allocator, "-o", file, *options)
        self.run_isobar("simulate", platform, self.workload, "--plan", file, "--stamp", "--trace", f"{file}.simulated")
        return file

    def changed(self, plan, change):
        """The plan, changed by a function of its stages."""
        document = json.loads(plan.read_text())
        for stage in document["stages"]:
            change(stage)
        file = plan.with_suffix(".changed.json")
        file.write_text(json.dumps(document))
        return file

    def on_disk(self):
        """A plan with optimizer states on the disk and on the host, and its platform."""
        self.workload = self.write("gpt10.yaml", GPT.replace("layers: 4", "layers: 10"))
        platform = self.platform_of("160 kB", "300 kB")
        plan = self.stamped("window", platform=platform)
        kinds = {stage.get("residence", {}).get("optimizer") for stage in json.loads(plan.read_text())["stages"]}
        self.assertEqual(kinds, {"disk", "host", None})
        return plan, platform

    def trained(self, plan, *options):
        output = self.folder / "run.json"
        result = self.run_isobar("run", self.workload, "--plan", plan, "--in-process", "-o", output, *options)
        return json.loads(output.read_text()), result

    def durations(self, trace):
        """The seconds of each instruction by lane, in order, of a timeline."""
        events = json.loads(pathlib.Path(trace).read_text())["traceEvents"]
        lanes = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
        found = {}
        for event in events:
            if event["ph"] == "X":
                found.setdefault(lanes[event["tid"]], []).append((event["ts"], event["dur"] / 1e6))
        return {lane: [duration for _, duration in sorted(times)] for lane, times in found.items()}

    def test_plans_of_all_allocators_have_the_losses_of_the_device_and_the_memory_that_was_simulated(self):
        resident = self.stamped("resident", "--recompute", "inner", "--schedule", "gpipe", "--microbatches", 1,
                                platform=self.large)
        losses = self.trained(resident, "--steps", 4)[0]["losses"]
        for allocator in ALLOCATORS:
            with self.subTest(allocator):
                run, printed = self.trained(self.stamped(allocator), "--steps", 4)
                self.assertEqual(run["losses"], losses)
                self.assertNotIn("updates_late", run)
                stage = run["stages"][0]
                self.assertEqual(stage["host_peak_memory_bytes"], stage["predicted_host_peak_memory_bytes"])
                self.assertIn("its machine", printed.stdout)

    def test_a_measured_timeline_has_the_lanes_of_the_simulated_one(self):
        plan, _ = self.on_disk()
        trace = self.folder / "trace.json"
        run, _ = self.trained(plan, "--steps", 3, "--trace", trace)
        stage = run["stages"][0]
        self.assertEqual(stage["disk_peak_memory_bytes"], stage["predicted_disk_peak_memory_bytes"])
        measured, simulated = self.durations(trace), self.durations(f"{plan}.simulated")
        self.assertEqual(set(measured), set(simulated))
        self.assertLessEqual({"compute", "copy in", "copy out", "host update", "disk read", "disk write"}, set(measured))
        for lane, times in simulated.items():
            self.assertEqual(len(measured[lane]), 3 * len(times), lane)

    def test_emulated_machines_take_the_time_of_their_platform(self):
        plan, platform = self.on_disk()
        trace = self.folder / "trace.json"
        self.trained(plan, "--steps", 2, "--emulate", "--platform", platform, "--trace", trace)
        measured, simulated = self.durations(trace), self.durations(f"{plan}.simulated")
        # Half where the simulator has a rate that another lane shares, or that a computation halves.
        least = {"copy in": 0.99, "copy out": 0.99, "disk read": 0.49, "disk write": 0.49, "host update": 0.49}
        for lane, part in least.items():
            for took, predicted in zip(measured[lane], 2 * simulated[lane]):
                self.assertGreaterEqual(took, part * predicted, lane)
            self.assertLess(sum(measured[lane]), 2 * sum(simulated[lane]) + 0.5, lane)

    def test_a_plan_without_a_profile_that_fills_its_device_to_the_last_byte_runs_there(self):
        def needs(plan):
            return json.loads(plan.read_text())["predicted"]["peak_memory_bytes"]["gpu0"]

        for allocator in ALLOCATORS:
            with self.subTest(allocator):
                full = needs(self.stamped(allocator))
                platform = self.platform_of(f"{full} B", "1 GB")
                plan = self.stamped(allocator, platform=platform)
                self.assertEqual(needs(plan), full)
                self.trained(plan, "--steps", 1, "--emulate", "--platform", platform)

    def test_emulation_needs_the_plans_own_platform(self):
        plan = self.stamped("zero-offload")
        run = ("run", self.workload, "--plan", plan, "--in-process")
        self.assertIn("add --platform", self.fault_of(*run, "--emulate"))
        self.assertIn("add --emulate", self.fault_of(*run, "--platform", self.platform))
        self.assertIn("has hash", self.fault_of(*run, "--emulate", "--platform", self.large))

    def test_late_updates_are_named_and_train_otherwise(self):
        def delay(stage):
            if "residence" in stage:
                stage["residence"]["overlap"] = "delayed"
        plan = self.stamped("stronghold")
        exact = self.trained(plan, "--steps", 4)[0]["losses"]
        log = self.folder / "log.jsonl"
        run, printed = self.trained(self.changed(plan, delay), "--unvalidated", "--steps", 4, "--log", log)
        self.assertTrue(run["updates_late"])
        self.assertEqual(run["losses"][0], exact[0])
        self.assertNotEqual(run["losses"], exact)
        self.assertIn("a step late", printed.stderr)
        self.assertIn("a step late", printed.stdout)
        steps = [json.loads(line) for line in log.read_text().splitlines()]
        self.assertEqual([step["updates_late"] for step in steps], [True] * 4)

    def test_what_no_run_executes_is_refused_in_one_line(self):
        self.workload = self.write("gpt.yaml", GPT + "clip_norm: 1\n")
        plan = self.stamped("stronghold-published")
        fault = self.fault_of("run", self.workload, "--plan", plan, "--in-process")
        self.assertIn("residence.copies: redundant, whose updates do not wait for all gradients", fault)
        self.assertNotIn("\n", fault)

    def test_a_machine_without_the_memory_is_refused_before_it_is_taken(self):
        self.workload = "workloads/gpt3_175b.yaml"
        plan = self.stamped("zero-infinity", platform=self.platform_of("80 GB", "9 TB"))
        fault = self.fault_of("run", self.workload, "--plan", plan, "--in-process", expect=3)
        self.assertRegex(fault, "^the plan's ranks hold .* TiB in the memory of this machine, which has ")

    def findings_of(self, plan, *options, expect=0):
        printed = self.run_isobar("doctor", "--flows", 1, "--plan", plan, "--workload", self.workload, "--json", *options,
                                  expect=expect).stdout
        return {finding["subject"]: finding for finding in json.loads(printed)["findings"]}

    def test_doctor_says_what_a_plan_needs_of_the_machine_and_its_disk(self):
        plan, _ = self.on_disk()
        found = self.findings_of(plan, "--scratch", self.folder)
        self.assertEqual({found[subject]["verdict"] for subject in ("memory", "machine memory", "disk")}, {"good"})
        self.assertRegex(found["machine memory"]["text"], "^the plan's ranks hold .* KiB in the memory of this machine, ")
        self.assertRegex(found["disk"]["text"], f"^the plan's ranks hold .* KiB on the disk of {self.folder}, which has ")
        self.assertIn("add --workload", self.fault_of("doctor", "--plan", plan))
        self.assertEqual(self.fault_of("doctor", "--plan", plan, "--workload", self.workload, "--scratch",
                                       self.folder / "none", expect=3),
                         f"{self.folder / 'none'}: cannot write there: No such file or directory")

    def test_doctor_and_run_find_the_same_machine_too_small(self):
        self.workload = "workloads/gpt3_175b.yaml"
        plan = self.stamped("zero-infinity", platform=self.platform_of("80 GB", "9 TB"))
        found = self.findings_of(plan, expect=3)["machine memory"]
        self.assertEqual(found["verdict"], "bad")
        self.assertEqual(found["text"], self.fault_of("run", self.workload, "--plan", plan, "--in-process", expect=3))

    def test_a_disk_without_the_space_is_refused_before_it_is_taken(self):
        plan, _ = self.on_disk()
        few = "/proc"  # no space is left there
        fault = self.fault_of("run", self.workload, "--plan", plan, "--in-process", "--scratch", few, expect=3)
        self.assertRegex(fault, "^the plan's ranks hold .* on the disk of /proc, which has 0 B left$")

    def scratch_of(self, process, folder):
        """The open scratch file of a process."""
        for entry in pathlib.Path(f"/proc/{process}/fd").iterdir():
            try:
                target = os.readlink(entry)
            except OSError:
                continue
            if target.startswith(str(folder)) and target.endswith("(deleted)"):
                return entry
        return None

    def started(self, plan, steps, scratch):
        scratch.mkdir(exist_ok=True)
        log = self.folder / "log.jsonl"
        process = subprocess.Popen(
            [ISOBAR, "run", self.workload, "--plan", str(plan), "--in-process", "--steps", str(steps), "--checkpoint",
             str(self.folder / "checkpoints"), "--checkpoint-every", "5", "--log", str(log), "--scratch", str(scratch)],
            cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        self.assertTrue(holds(lambda: log.exists() and log.read_bytes().count(b"\n") > 6))
        return process

    def resumed(self, plan):
        """The result of a run from the newest whole checkpoint until three steps after the newest one."""
        newest = max(int(folder.name.removeprefix("step-")) for folder in (self.folder / "checkpoints").glob("step-*"))
        run, _ = self.trained(plan, "--steps", newest + 3, "--checkpoint", self.folder / "checkpoints", "--resume")
        self.assertIn(run["first_step"], (newest, newest - 5))  # the end of the run may have cut the newest one short
        self.assertEqual(len(run["losses"]), newest + 3 - run["first_step"])
        return run

    def test_a_killed_run_leaves_nothing_on_its_disk_and_resumes_to_the_same_losses(self):
        plan, _ = self.on_disk()
        scratch = self.folder / "scratch"
        process = self.started(plan, 100000, scratch)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=HANG_S)
        self.assertEqual(list(scratch.iterdir()), [])
        run = self.resumed(plan)
        losses = self.trained(plan, "--steps", run["first_step"] + len(run["losses"]))[0]["losses"]
        self.assertEqual(run["losses"], losses[run["first_step"]:])

    def test_a_disk_that_fails_ends_the_run_in_one_line_with_its_last_checkpoint(self):
        plan, _ = self.on_disk()
        scratch = self.folder / "scratch"
        process = self.started(plan, 100000, scratch)
        file = self.scratch_of(process.pid, scratch)

        def fails():  # again and again, since a write makes the file longer
            with contextlib.suppress(OSError):
                os.truncate(file, 0)
            return process.poll() is not None
        self.assertTrue(holds(fails))
        errors = without_notes(process.communicate(timeout=HANG_S)[1])
        self.assertEqual(process.returncode, 3, errors)
        self.assertEqual(errors.count("\n"), 1, errors)
        self.assertIn("the scratch file became shorter", errors)
        self.assertEqual(list(scratch.iterdir()), [])
        self.resumed(plan)


class OffloadRuns(CommandTest):
    """tools/offload_runs.py, whose experiment is for a GPU, with a small model on a CPU."""

    def run_tool(self, *arguments):
        workload = self.write("gpt.yaml", GPT)
        return subprocess.run([sys.executable, ROOT / "tools/offload_runs.py", "--workload", workload, "--repetitions",
                               "1", "--steps", "2", "--threads", "1", "--output", self.folder / "runs", *arguments],
                              capture_output=True, text=True, timeout=HANG_S)

    def test_writes_what_each_plan_takes_beside_its_losses(self):
        result = self.run_tool("--device", "cpu", "--memory", "300 kB", "--windows", "1", "--microbatches", "1")
        self.assertEqual(result.stderr, "")
        with (self.folder / "runs/runs.csv").open() as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([row["allocator"] for row in rows],
                         ["zero-offload", "zero-infinity", "window", "resident", "stronghold"])
        for row in rows:
            self.assertEqual(row["outcome"], "feasible")
            self.assertEqual(float(row["loss_difference_fraction"]), 0)
            self.assertEqual(row["measured_host_memory_bytes"], row["planned_host_memory_bytes"])
            self.assertGreater(float(row["measured_step_time_s"]), 0)
        self.assertIn("The device's memory is limited to 300 kB", (self.folder / "runs/README.md").read_text())

    def test_is_skipped_without_its_device(self):
        result = self.run_tool("--device", "cuda:99")
        self.assertEqual(result.returncode, 77)
        self.assertTrue(result.stdout.startswith("skipped: isobar: "), result.stdout)
        self.assertFalse((self.folder / "runs").exists())
