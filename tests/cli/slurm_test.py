"""isobar sweep --slurm as docs/sweeps.md shows it, on a Slurm cluster that the test starts
(tests/support/slurm_cluster.py)."""

import contextlib
import os
import pathlib
import signal
import subprocess
import unittest

from tests.cli.support import HANG_S, ISOBAR, ROOT, CommandTest, holds
from tests.support import slurm_cluster

# 20 runs; the names have characters that are special to a shell and sbatch.
SWEEP = """platform: {platform}
workload: {workload}
allocator: [even, chain-dp]
scale: {{bandwidth: [0.25, 0.5, 1, 2, 4]}}
noise: 0.2
repetitions: 2
"""
# The allocator waits for a file `go` next to it, then plans as examples/external_allocator.py does.
GATED = """platform: {platform}
workload: {workload}
allocator: 'exec:{allocator}'
microbatches: [1, 2, 3, 4, 5, 6]
"""
GATE = """#!/bin/sh
while [ ! -e "$(dirname "$0")/go" ]; do sleep 0.05; done
exec python3 '{root}/examples/external_allocator.py'
"""
EXPORTS = ("csv", "jsonl", "summary")


def wait_for(condition):
    assert holds(condition)


class SlurmTest(CommandTest):
    """`self.study` is a folder for a sweep, its database and its exports; `self.environment` is that of isobar."""

    environment = None

    def setUp(self):
        super().setUp()
        self.study = self.folder / "it's a study, 100 %a"
        self.study.mkdir()

    def sweep_file(self, text=SWEEP):
        platform, workload = self.small_inputs()
        allocator = self.study / "gate.sh"
        allocator.write_text(GATE.format(root=ROOT))
        allocator.chmod(0o755)
        file = self.study / "sweep.yaml"
        file.write_text(text.format(platform=platform, workload=workload, allocator=str(allocator).replace("'", "''")))
        return file

    def command(self, file, name, *options):
        exports = [word for export in EXPORTS for word in (f"--{export}", self.study / f"{name}.{export}")]
        return [ISOBAR, "sweep", *map(str, (file, "--database", self.study / f"{name}.db", *exports, *options))]

    def start(self, file, *options):
        return subprocess.Popen(self.command(file, "slurm", "--slurm", *options), cwd=ROOT, env=self.environment,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def finish(self, process, expect=0):
        """Waits for a sweep to end and returns its stderr."""
        output, errors = process.communicate(timeout=HANG_S)
        self.assertEqual(process.returncode, expect, output + errors)
        return errors

    def sweep(self, file, *options, expect=0):
        return self.finish(self.start(file, *options), expect)

    def exports(self, name):
        return [(self.study / f"{name}.{export}").read_bytes() for export in EXPORTS]

    def assert_equals_local(self, file):
        """The exports of the Slurm sweep equal those of a local one, and it leaves nothing else."""
        subprocess.run(self.command(file, "local"), cwd=ROOT, check=True, capture_output=True, timeout=HANG_S)
        self.assertEqual(self.exports("slurm"), self.exports("local"))
        self.assertFalse((self.study / "slurm.db.slurm").exists())


class OnACluster(SlurmTest):
    @classmethod
    def setUpClass(cls):
        started = slurm_cluster.started(cpus=8)
        cls.cluster = started.__enter__()
        cls.addClassCleanup(started.__exit__, None, None, None)
        cls.environment = cls.cluster.environment

    def setUp(self):
        super().setUp()
        self.addCleanup(self.end_jobs)
        self.jobs_before = self.jobs()

    def end_jobs(self):
        (self.study / "go").touch()
        self.cluster.run("scancel", "--user=root")
        wait_for(lambda: not self.queue())

    def queue(self, *options):
        return self.cluster.run("squeue", "--noheader", "--array", "--format=%F %K %T", *options).splitlines()

    def jobs(self):
        return {line.split()[0] for line in self.queue("--states=all")}

    def new_jobs(self):
        return sorted(self.jobs() - self.jobs_before, key=int)

    def started_gated(self):
        """A sweep whose six tasks run and wait. Returns its file, the process and the job."""
        file = self.sweep_file(GATED)
        process = self.start(file)
        wait_for(lambda: len([line for line in self.queue() if line.endswith("RUNNING")]) == 6)
        [job] = self.new_jobs()
        return file, process, job

    def open_gate(self):
        (self.study / "go").touch()

    def test_an_array_of_twenty_runs_equals_the_local_sweep_byte_for_byte(self):
        file = self.sweep_file()
        printed = self.sweep(file)
        [job] = self.new_jobs()
        self.assertEqual(printed, f"isobar: submitted job {job}, 20 tasks\n")
        # A task may end a little after the sweep has its last row.
        completed = sorted(f"{job} {task} COMPLETED" for task in range(20))
        wait_for(lambda: sorted(self.queue("--states=all", f"--job={job}")) == completed)
        self.assert_equals_local(file)
        self.assertEqual(self.sweep(file), "")  # no row is missing: nothing to submit
        self.assert_equals_local(file)

    def test_runs_that_fail_or_have_no_plan_are_rows_as_in_the_local_sweep(self):
        file = self.sweep_file(SWEEP.replace("[even, chain-dp]", "[even, 'exec:false']")
                               .replace("noise: 0.2", "").replace("bandwidth: [0.25, 0.5, 1, 2, 4]",
                                                                  "memory: [0.001, 1]"))
        self.sweep(file)
        self.assert_equals_local(file)
        rows = self.exports("slurm")[0].decode()
        self.assertIn(",infeasible,", rows)
        self.assertIn(",failed,", rows)
        self.assertIn("exited with code 1", rows)

    def test_a_second_start_after_sigkill_waits_for_what_is_queued_and_submits_nothing(self):
        file, process, job = self.started_gated()
        process.kill()
        process.communicate()
        again = self.start(file)
        self.assertEqual(again.stderr.readline(), f"isobar: job {job} of an earlier start continues, 6 tasks\n")
        self.open_gate()
        self.assertEqual(self.finish(again), "")
        self.assertEqual(self.new_jobs(), [job])
        self.assert_equals_local(file)

    def test_a_second_start_takes_what_was_written_meanwhile(self):
        file, process, job = self.started_gated()
        process.kill()
        process.communicate()
        self.open_gate()
        wait_for(lambda: not self.queue())
        self.assertEqual(self.sweep(file), "")
        self.assertEqual(self.new_jobs(), [job])
        self.assert_equals_local(file)

    def kill_task(self, task):
        """Slurm reports a task as running before its process exists."""
        def killed():
            found = False
            for process in self.cluster.processes():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # others may end in the meantime
                    words = pathlib.Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
                    if f"{task}-{task}".encode() in words:
                        os.kill(process, signal.SIGKILL)
                        found = True
            return found
        wait_for(killed)

    def test_cancelled_and_killed_tasks_have_no_row_and_a_second_start_submits_only_them(self):
        file, process, job = self.started_gated()
        self.cluster.run("scancel", f"{job}_2")
        self.kill_task(4)
        wait_for(lambda: len(self.queue()) == 4)
        self.open_gate()
        printed = self.finish(process, expect=3)
        self.assertRegex(printed, f"^isobar: submitted job {job}, 6 tasks\n"
                               r"isobar: 2 of 6 runs have no row, since their tasks ended without one: 2 \(CANCELLED\), "
                               r"4 \(FAILED\); .*/slurm.db.slurm/isobar-[0-9a-f]{16}/2.log ends with "
                               r'"(isobar: interrupted|slurmstepd.* CANCELLED AT .*)"; '
                               "the same command submits them again\n$")
        self.assertFalse((self.study / "slurm.csv").exists())
        printed = self.sweep(file)
        self.assertEqual(printed, f"isobar: submitted job {self.new_jobs()[-1]}, 2 tasks\n")
        self.assert_equals_local(file)

    def test_an_interrupt_leaves_the_job_running_and_reports_how_to_continue(self):
        file, process, job = self.started_gated()
        process.send_signal(signal.SIGINT)
        self.assertEqual(self.finish(process, expect=130),
                         f"isobar: submitted job {job}, 6 tasks\n"
                         f"isobar: job {job} continues; the same command takes its rows, scancel {job} ends it\n"
                         "isobar: interrupted\n")
        self.assertEqual(len(self.queue()), 6)
        again = self.start(file)
        self.open_gate()
        self.finish(again)
        self.assertEqual(self.new_jobs(), [job])
        self.assert_equals_local(file)

    def test_two_starts_at_once_share_the_rows(self):
        file, process, job = self.started_gated()
        again = self.start(file)
        again.stderr.readline()
        self.open_gate()
        self.finish(process)
        self.finish(again)
        self.assertEqual(self.new_jobs(), [job])
        self.assert_equals_local(file)

    def test_failed_rows_are_repeated_only_on_request(self):
        file = self.sweep_file(GATED)
        allocator = self.study / "gate.sh"
        waits = allocator.read_text()
        allocator.write_text("#!/bin/sh\n[ -e \"$(dirname \"$0\")/go\" ] || exit 7\n" + waits.split("\n", 2)[2])
        self.sweep(file, expect=3)
        self.assertIn("exited with code 7", (self.study / "slurm.csv").read_text())
        self.assertEqual(self.sweep(file, expect=3), "")
        self.open_gate()
        self.assertEqual(self.sweep(file, "--retry-failed"), f"isobar: submitted job {self.new_jobs()[-1]}, 6 tasks\n")
        self.assert_equals_local(file)

    def test_options_reach_sbatch_and_its_errors_reach_the_user(self):
        file = self.sweep_file()
        self.assertEqual(self.sweep(file, "--slurm-options", "--partition=none", expect=2),
                         "isobar: --slurm-options: sbatch: error: invalid partition specified: none; sbatch: error: "
                         "Batch job submission failed: Invalid partition name specified\n")
        self.assertEqual(self.sweep(file, "--slurm-options=--bogus", expect=2),
                         "isobar: --slurm-options: sbatch: unrecognized option '--bogus'; "
                         'Try "sbatch --help" for more information\n')
        self.assertEqual(self.sweep(file, "--slurm-options", "--time=1\nid", expect=2),
                         'isobar: --slurm-options: "--time=1\\x0aid" is not one line\n')
        self.environment = dict(self.environment, SBATCH_PARTITION="none")
        self.assertEqual(self.sweep(file, expect=3),
                         "isobar: sbatch: error: invalid partition specified: none; sbatch: error: Batch job submission "
                         "failed: Invalid partition name specified\n")
        self.assertEqual(self.new_jobs(), [])
        self.environment = self.cluster.environment
        process = self.start(self.sweep_file(GATED), "--slurm-options", '--comment="of a test" --array=3 --time=7')
        wait_for(lambda: len(self.queue()) == 6)
        self.assertEqual(set(self.queue("--format=%k %l")), {"of a test 7:00"})
        self.open_gate()
        self.finish(process)


class OnASmallCluster(SlurmTest):
    def test_a_task_makes_several_runs_when_arrays_are_limited(self):
        with slurm_cluster.started(cpus=8, max_array_size=8) as cluster:
            self.environment = cluster.environment
            file = self.sweep_file()
            self.assertRegex(self.sweep(file), r"^isobar: submitted job 1, 7 tasks\n$")
        self.assert_equals_local(file)


class WithoutACluster(SlurmTest):
    """Slurm's commands are scripts that the test writes."""

    def setUp(self):
        super().setUp()
        self.commands = self.folder / "commands"
        self.commands.mkdir()
        self.environment = dict(os.environ, PATH=f"{self.commands}")

    def write_command(self, name, script):
        file = self.commands / name
        file.write_text("#!/bin/sh\nPATH=/usr/bin:/bin\n" + script)
        file.chmod(0o755)

    def write_commands(self):
        self.write_command("scontrol", "echo 'MaxArraySize            = 1001'\n")
        self.write_command("sbatch", "echo 17\n")
        self.write_command("squeue", "")

    def test_a_missing_slurm_is_reported(self):
        self.assertEqual(self.sweep(self.sweep_file(), expect=3),
                         "isobar: scontrol: cannot start: No such file or directory; --slurm needs Slurm's commands "
                         "sbatch, squeue and scontrol on the PATH\n")
        self.write_commands()
        (self.commands / "sbatch").unlink()
        self.assertEqual(self.sweep(self.sweep_file(), expect=3),
                         "isobar: sbatch: cannot start: No such file or directory; --slurm needs Slurm's commands "
                         "sbatch, squeue and scontrol on the PATH\n")

    def test_a_controller_that_does_not_answer_is_reported(self):
        self.write_commands()
        self.write_command("scontrol", "echo 'slurm_load_ctl_conf error: Unable to contact slurm controller' >&2; exit 1")
        self.assertEqual(self.sweep(self.sweep_file(), expect=3),
                         "isobar: scontrol: slurm_load_ctl_conf error: Unable to contact slurm controller\n")

    def test_a_cluster_without_job_arrays_is_reported(self):
        self.write_commands()
        self.write_command("scontrol", "echo 'MaxArraySize            = 0'\n")
        self.assertEqual(self.sweep(self.sweep_file(), expect=3),
                         "isobar: scontrol: this Slurm has no job arrays; its MaxArraySize is not above 0\n")

    def test_an_sbatch_that_gives_no_job_id_is_reported(self):
        self.write_commands()
        self.write_command("sbatch", "echo 'thank you'\n")
        self.assertEqual(self.sweep(self.sweep_file(), expect=3),
                         'isobar: sbatch gave no job id, but "thank you"\n')

    def test_a_queue_that_stays_silent_ends_the_wait_but_not_the_job(self):
        self.write_commands()
        self.write_command("squeue", f"[ -e '{self.folder}/asked' ] && exit 1\ntouch '{self.folder}/asked'\n")
        self.assertEqual(self.sweep(self.sweep_file(), expect=3),
                         "isobar: submitted job 17, 20 tasks\n"
                         "isobar: squeue does not answer; job 17 continues, and the same command takes its rows\n")

    def test_tasks_that_slurm_has_forgotten_are_named(self):
        self.write_commands()
        self.assertRegex(self.sweep(self.sweep_file(), expect=3),
                         "isobar: 20 of 20 runs have no row, since their tasks ended without one: 0, 1, 2, 3, 4, …; "
                         "the same command submits them again\n$")

    def test_a_wrong_row_file_is_named(self):
        self.write_commands()
        folder = self.study / "slurm.db.slurm" / "isobar-0123456789abcdef"
        folder.mkdir(parents=True)
        (folder / "x.row").write_text("{}")
        self.assertRegex(self.sweep(self.sweep_file(), expect=2), r"^isobar: .*/x.row:1: definition: missing; write a string\n")


class Tasks(SlurmTest):
    """The command of a task, run by hand."""

    def rows(self):
        return sorted(path for path in self.study.iterdir() if path.suffix == ".row")

    def test_a_task_writes_the_rows_of_its_runs_and_skips_existing_ones(self):
        file = self.sweep_file()
        self.run_isobar("sweep", file, "--rows", self.study, "--runs", "3-5")
        rows = self.rows()
        self.assertEqual(len(rows), 3)
        before = {row: row.stat().st_mtime_ns for row in rows}
        self.run_isobar("sweep", file, "--rows", self.study, "--runs", "4-6")
        self.assertEqual(len(self.rows()), 4)
        self.assertEqual({row: row.stat().st_mtime_ns for row in rows}, before)

    def test_a_range_may_end_after_the_last_run(self):
        self.run_isobar("sweep", self.sweep_file(), "--rows", self.study, "--runs", "18-23")
        self.assertEqual(len(self.rows()), 2)

    def test_wrong_ranges_and_folders_are_refused(self):
        file = self.sweep_file()
        for text in ("3", "3-", "-3", "5-3", "3-5x", "a-b"):
            self.assertEqual(self.fault_of("sweep", file, "--rows", self.study, f"--runs={text}"),
                             f'--runs: "{text}" is not a range of runs, such as 0-9')
        self.assertEqual(self.fault_of("sweep", file, "--rows", self.study, "--runs", "20-22"),
                         "--runs: 20-22; the sweep has runs 0 to 19")
        self.assertEqual(self.fault_of("sweep", file, "--rows", "/no/folder", "--runs", "0-1"),
                         "--rows: /no/folder is not a folder")

    def test_options_that_do_not_go_together_are_refused(self):
        file = self.sweep_file()
        for options in (["--rows", self.study], ["--runs", "0-1"], ["--slurm-options", "--time=1"],
                        ["--slurm", "--export-only"], ["--slurm", "--rows", self.study, "--runs", "0-1"],
                        ["--rows", self.study, "--runs", "0-1", "--csv", self.study / "rows.csv"]):
            self.assertRegex(self.fault_of("sweep", file, *options), r"^--.* (requires|excludes) --")


if __name__ == "__main__":
    unittest.main()
