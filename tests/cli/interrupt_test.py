import fcntl
import json
import os
import pathlib
import signal
import subprocess
import sys
import termios

from tests.cli.support import HANG_S, ISOBAR, ROOT, CommandTest, children_of, holds, worked_s


def processes_with(text):
    """Ids of processes whose command line contains `text`."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and text.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            pass  # it has ended in the meantime
    return found


def waiting_bytes(pipe):
    """How many bytes a pipe holds that nobody has read."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


class Interrupt(CommandTest):
    def interrupted(self, sign, *arguments):
        """Starts the command, waits until its allocator runs, sends the signal, and returns what it printed."""
        marker = self.folder / "allocator runs"
        allocator = self.write("allocator.sh", f"#!/bin/sh\ntouch '{marker}'\nsleep 600 & sleep 600\n")
        pathlib.Path(allocator).chmod(0o755)
        process = subprocess.Popen([ISOBAR, *map(str, arguments), f"exec:{allocator}"], cwd=ROOT, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        # The other rows of a comparison run in children too, which end.
        self.assertTrue(holds(lambda: marker.exists() and len(children_of(process.pid)) == 1))
        os.kill(process.pid, sign)
        output, errors = process.communicate(timeout=HANG_S)
        self.assertEqual(process.returncode, 130, output + errors)
        self.assertEqual(errors, "isobar: interrupted\n")
        self.assertTrue(holds(lambda: not processes_with(str(self.folder))))
        return output

    def test_a_comparison_writes_its_finished_rows_and_leaves_no_child(self):
        output = self.folder / "results.csv"
        printed = self.interrupted(signal.SIGINT, "compare", *self.small_inputs(), "-o", output, "--allocators", "even",
                                   "--allocators")
        rows = output.read_text().splitlines()
        self.assertEqual(len(rows), 3)
        self.assertIn(",even,step,played,1f1b,8,1,feasible,", rows[1])
        self.assertIn(",failed,", rows[2])
        self.assertIn("interrupted", printed)

    def test_planning_leaves_no_half_file(self):
        self.leaves_no_half_file(signal.SIGTERM)

    def test_a_closed_terminal_leaves_no_half_file(self):
        self.leaves_no_half_file(signal.SIGHUP)

    def test_a_signal_of_a_cluster_leaves_no_half_file(self):
        self.leaves_no_half_file(signal.SIGUSR1)
        self.leaves_no_half_file(signal.SIGUSR2)

    def leaves_no_half_file(self, sign):
        output = self.folder / "plan.json"
        self.interrupted(sign, "plan", *self.small_inputs(), "-o", output, "--allocator")
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()),
                         ["allocator runs", "allocator.sh", "small.xml", "small.yaml"])

    def test_a_choice_by_simulation_writes_its_best_plan_and_leaves_no_child(self):
        output = self.folder / "plan.json"
        process = subprocess.Popen([ISOBAR, "plan", "platforms/sky64.xml", "workloads/bert160.yaml", "--allocator", "even",
                                    "--simulate", "1", "--microbatches", "65536", "-o", str(output)], cwd=ROOT, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        # local-search takes much longer for so many micro-batches
        self.assertTrue(holds(lambda: worked_s(process.pid) > 2))
        os.kill(process.pid, signal.SIGINT)
        printed, errors = process.communicate(timeout=HANG_S)
        self.assertEqual((process.returncode, errors), (130, "isobar: interrupted\n"))
        self.assertIn("even: timed_out chain", printed)
        self.assertEqual(json.loads(output.read_text())["outcome"], "timed_out")
        self.assertTrue(holds(lambda: not processes_with(str(self.folder))))

    def test_verifying_ends(self):
        plan = self.make_plan("platforms/sky64.xml", "workloads/bert160.yaml", "--objective", "pipeline")
        content = json.loads(pathlib.Path(plan).read_text())
        content["certificate"] = {"kind": "search", "levels": 8, "rungs": [{"limit_s": None, "multipliers": 63 * [0]}]}
        pathlib.Path(plan).write_text(json.dumps(content))
        process = subprocess.Popen([ISOBAR, "verify", "platforms/sky64.xml", "workloads/bert160.yaml", plan], cwd=ROOT,
                                   text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertTrue(holds(lambda: worked_s(process.pid) > 1))  # it would take minutes
        os.kill(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=HANG_S)
        self.assertEqual((process.returncode, output, errors), (130, "", "isobar: interrupted\n"))

    def test_printing_ends_although_nobody_reads(self):
        plan = self.make_plan(*self.small_inputs(), "--microbatches", 65536)
        process = subprocess.Popen([ISOBAR, "schedule", "show", plan, "--csv"], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        pipe = process.stdout.fileno()
        capacity = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
        self.assertTrue(holds(lambda: waiting_bytes(pipe) == capacity))
        os.kill(process.pid, signal.SIGINT)
        self.assertEqual(process.wait(timeout=HANG_S), 130)
        self.assertEqual(process.stderr.read(), "isobar: interrupted\n")
        process.stdout.close()
        process.stderr.close()

    def test_a_simulation_leaves_no_child_and_no_half_trace(self):
        platform, workload = self.small_inputs()
        plan = self.make_plan(platform, workload, "--microbatches", 65536)
        trace = self.folder / "trace.json"
        process = subprocess.Popen([ISOBAR, "simulate", platform, workload, "--plan", plan, "--trace", trace,
                                    "--iterations", "1000"], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertTrue(holds(lambda: worked_s(process.pid) > 1))
        os.kill(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=HANG_S)
        self.assertEqual((process.returncode, output, errors), (130, "", "isobar: interrupted\n"))
        self.assertTrue(holds(lambda: not processes_with(str(self.folder))))
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["plan.json", "small.xml", "small.yaml"])
