"""tests/support/slurm_cluster.py: its clusters run jobs and leave nothing behind."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from tests.cli.support import ROOT, holds
from tests.support import slurm_cluster


def wait_for(condition):
    assert holds(condition)


class SlurmCluster(unittest.TestCase):
    def setUp(self):
        slurm_cluster.check_available()

    def test_four_virtual_nodes_work_on_one_job_under_their_names(self):
        with slurm_cluster.started(nodes=4, cpus=1) as cluster:
            printed = cluster.run("srun", "--nodes=4", "--ntasks=4", "sh", "-c", "echo $SLURMD_NODENAME $SLURM_PROCID")
        self.assertEqual(sorted(printed.splitlines()), ["n0 0", "n1 1", "n2 2", "n3 3"])

    def test_two_clusters_run_side_by_side_independently(self):
        with slurm_cluster.started() as one, slurm_cluster.started() as other:
            one.run("sbatch", "--wrap=sleep 600", "--job-name=mine", "--output=/dev/null")
            self.assertEqual(one.run("squeue", "--noheader", "--format=%j"), "mine\n")
            self.assertEqual(other.run("squeue", "--noheader", "--format=%j"), "")

    def test_a_test_that_fails_while_a_job_runs_leaves_nothing(self):
        with self.assertRaises(KeyboardInterrupt):
            with slurm_cluster.started() as cluster:
                mark = cluster.folder / "runs"
                cluster.run("sbatch", f"--wrap=touch '{mark}'; sleep 600", "--output=/dev/null")
                wait_for(mark.exists)
                self.assertGreaterEqual(len(cluster.processes()), 5)  # three daemons, the job, its sleep
                raise KeyboardInterrupt
        self.assertEqual(cluster.processes(), [])
        self.assertFalse(cluster.folder.exists())
        self.assertTrue(all(daemon.returncode is not None for daemon in cluster.daemons))

    def test_the_daemons_end_with_a_killed_test(self):
        script = ("from tests.support import slurm_cluster\n"
                  "with slurm_cluster.started() as cluster:\n    print(cluster.folder, flush=True)\n    input()\n")
        temporary = self.enterContext(tempfile.TemporaryDirectory())  # removed with what a killed process leaves
        os.chmod(temporary, 0o755)  # munge requires that all can read the folder of its socket
        process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": temporary})
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        folder = process.stdout.readline().strip()
        self.assertNotEqual(folder, "", "there is no cluster")
        cluster = slurm_cluster.Cluster(pathlib.Path(folder), nodes=1, cpus=1, max_array_size=1)
        self.assertGreaterEqual(len(cluster.processes()), 3)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        wait_for(lambda: not cluster.processes())

    def test_a_cluster_that_does_not_start_reports_its_logs(self):
        wrong = slurm_cluster.CONFIGURATION.replace("CredType=cred/munge", "CredType=cred/none-such")
        with mock.patch.object(slurm_cluster, "CONFIGURATION", wrong):
            with self.assertRaisesRegex(slurm_cluster.Failed, r"(?s)slurmctld.* ended\n== munged.log\n.*== slurmctld.log\n"
                                                              r".*cannot find cred plugin for cred/none-such"):
                with slurm_cluster.started():
                    self.fail("it came up")

    def test_a_test_skips_where_slurm_is_not_installed_or_it_is_not_root(self):
        with mock.patch.object(slurm_cluster, "search_path", lambda: "/nowhere"):
            with self.assertRaisesRegex(unittest.SkipTest, "munged, slurmctld, slurmd not found; install slurm-wlm"):
                slurm_cluster.check_available()
        with mock.patch.object(os, "geteuid", lambda: 1000):
            with self.assertRaisesRegex(unittest.SkipTest, "a Slurm cluster: its daemons need root"):
                slurm_cluster.check_available()
