"""isobar run, started once per rank by torchrun, Open MPI's mpirun or Slurm's srun, and its refusals."""

import contextlib
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import unittest

from tests.cli.run_test import MODEL
from tests.cli.support import HANG_S, ISOBAR, ROOT, CommandTest, children_of, holds
from tests.support import slurm_cluster
from tests.support.peers import need_peers, peers_environment

STEPS = 10
PLATFORM = (ROOT / "examples/launch/three_devices.xml").read_text()
# Variables that launchers set; tests begin without them.
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "OMPI_", "PMI_", "PMIX_", "SLURM", "ISOBAR_", "TORCHELASTIC_")


def clean_environment(**more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_VARIABLES)}
    return kept | more


def free_port():
    """A free port, below those that outgoing connections use."""
    while True:
        port = random.randrange(20000, 30000)
        with socket.socket() as held:
            try:
                held.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass  # in use: try another


class Scripts(CommandTest):
    """examples/launch: the scripts that docs/launch.md shows, which train BERT on the sentences of examples/mnli."""

    def run_script(self, name, **environment):
        """Checks that losses and evaluation equal those of --spawn bit by bit. Returns stderr."""
        folder = self.folder / "run"
        options = ["--steps", str(STEPS)]
        outputs = ["--log", folder / "log.jsonl", "-o", folder / "run.json"]
        done = subprocess.run([ROOT / "examples/launch" / name, folder, *options, *outputs], cwd=ROOT,
                              capture_output=True, text=True, timeout=HANG_S,
                              env=clean_environment(ISOBAR=ISOBAR) | environment)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("samples/s;"), 1)  # one rank reports for all
        self.assertGreaterEqual(len((folder / "log.jsonl").read_text().splitlines()), STEPS)
        mnli = "examples/mnli"
        spawned = self.json_of("run", f"{mnli}/bert.yaml", "--plan", folder / "plan.json", "--spawn", "--data",
                               f"{mnli}/train.tsv", "--vocabulary", f"{mnli}/vocab.txt", "--evaluate", f"{mnli}/dev.tsv",
                               *options)
        self.assertEqual(spawned["evaluation"]["labels"], 20)
        launched = json.loads((folder / "run.json").read_text())
        for measured in ("losses", "evaluation"):
            self.assertEqual(launched[measured], spawned[measured])
        return done.stderr

    def test_torchrun(self):
        need_peers()
        tools = self.folder / "tools"
        tools.mkdir()
        torchrun = tools / "torchrun"
        torchrun.write_text(f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n')
        torchrun.chmod(0o755)
        environment = {name: value for name, value in peers_environment().items() if not name.startswith(LAUNCHER_VARIABLES)}
        printed = self.run_script("torchrun.sh", **environment | {"PATH": f"{tools}:{environment['PATH']}"})
        self.assertIn("rank 2 of 3 by torchrun (RANK, WORLD_SIZE); rank 0 listens at localhost:", printed)
        self.assertIn("is the plan's left: cpu (", printed)

    @unittest.skipUnless(shutil.which("mpirun"), "mpirun not found; install openmpi-bin")
    def test_mpirun(self):
        printed = self.run_script("mpirun.sh", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                               OMPI_MCA_rmaps_base_oversubscribe="1")
        self.assertIn("rank 2 of 3 by Open MPI (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE); rank 0 listens at 127.0.0.1:2",
                      printed)

    def test_srun_on_one_node(self):
        with slurm_cluster.started(nodes=1, cpus=3) as cluster:
            printed = self.run_script("srun.sh", SLURM_CONF=cluster.environment["SLURM_CONF"])
        self.assertIn("rank 2 of 3 by Slurm (SLURM_PROCID, SLURM_NTASKS); rank 0 listens at 127.0.0.1:2", printed)

    def test_srun_on_four_nodes(self):
        # The nodes of the test are all this machine, which cannot resolve their names, so the master is given.
        with slurm_cluster.started(nodes=4, cpus=1) as cluster:
            master = f"127.0.0.1:{free_port()}"  # not a port of the cluster
            printed = self.run_script("srun.sh", SLURM_CONF=cluster.environment["SLURM_CONF"], ISOBAR_MASTER=master)
        self.assertIn(f"rank 2 of 3 by Slurm (SLURM_PROCID, SLURM_NTASKS), ISOBAR_MASTER; rank 0 listens at {master}",
                      printed)
        for rank, device in enumerate(("left", "middle", "right")):
            self.assertIn(f"rank {rank} (n{rank}) is the plan's {device}: cpu (", printed)

    def test_nodes_named_like_devices_of_the_plan_are_these_devices(self):
        platform = PLATFORM
        for name, node in {"left": "n2", "middle": "n0", "right": "n1"}.items():
            platform = platform.replace(f'"{name}"', f'"{node}"')
        workload = self.write("model.yaml", MODEL)
        plan = self.make_plan(self.write("nodes.xml", platform), workload, "--microbatches", 4)
        secret = secret_file(self.folder)
        with slurm_cluster.started(nodes=4, cpus=1) as cluster:
            done = subprocess.run(["srun", "--nodes=3", "--ntasks=3", ISOBAR, "run", workload, "--plan", plan,
                                   "--unvalidated", "--secret-file", secret, "--steps", str(STEPS)], cwd=ROOT, text=True,
                                  env=clean_environment(SLURM_CONF=cluster.environment["SLURM_CONF"],
                                                        ISOBAR_MASTER=f"127.0.0.1:{free_port()}"),
                                  capture_output=True, timeout=HANG_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        for rank in range(3):
            self.assertIn(f"rank {rank} (n{rank}) is the plan's n{rank}: cpu (", done.stderr)

    def test_rank_0_of_a_heterogeneous_job_is_on_the_first_node_of_its_first_component(self):
        workload = self.write("model.yaml", MODEL)
        plan = self.make_plan(self.write("platform.xml", PLATFORM), workload, "--microbatches", 4)
        command = [ISOBAR, "run", workload, "--plan", plan, "--unvalidated", "--secret-file", secret_file(self.folder),
                   "--deadline", "1s", "--heartbeat", "500ms"]
        with slurm_cluster.started(nodes=4, cpus=1) as cluster:
            done = subprocess.run(["srun", "-w", "n3", "-n1", *command, ":", "-w", "n[0-1]", "-n2", *command], cwd=ROOT,
                                  env=clean_environment(SLURM_CONF=cluster.environment["SLURM_CONF"]), text=True,
                                  capture_output=True, timeout=HANG_S)
        for rank in range(3):
            self.assertRegex(done.stderr, rf"rank {rank} of 3 by Slurm \(SLURM_PROCID, SLURM_NTASKS\); rank 0 listens at n3:2")
        # The nodes of the test are all this machine, which cannot resolve their names.
        self.assertIn("rank 0: the name n3 does not resolve within 2 s (twice --deadline); the address follows from the job; "
                      "give all ranks another address with --master or ISOBAR_MASTER", done.stderr)


class Grids(CommandTest):
    """A plan of two replicas of two shards each, of which each launcher starts the four ranks."""

    def setUp(self):
        super().setUp()
        self.workload = self.write("operators.yaml", MODEL + "unit: operator\n")
        hosts = "".join(f'<host id="d{rank}" speed="20Gf"><prop id="memory" value="2 GiB"/></host>' for rank in range(4))
        routes = "".join(f'<route src="d{rank}" dst="d{peer}"><link_ctn id="loopback"/></route>'
                         for rank in range(4) for peer in range(rank + 1, 4))
        platform = self.write("four.xml", "<!DOCTYPE platform SYSTEM 'https://simgrid.org/simgrid.dtd'>\n"
                              '<platform version="4.1"><zone id="machine" routing="Full">' + hosts +
                              '<link id="loopback" bandwidth="1GBps" latency="50us"/>' + routes + "</zone></platform>")
        self.plan = self.make_plan(platform, self.workload, "--microbatches", 4, "--pipeline", 1, "--replicas", 2,
                                   "--tensor", 2, allocator="grid")
        self.command = [ISOBAR, "run", self.workload, "--plan", self.plan, "--unvalidated", "--steps", str(STEPS)]

    def check(self, launcher, rank_line, **environment):
        """Checks that losses equal those of --spawn bit by bit, and how rank 3 says that it was found."""
        output = self.folder / "launched.json"
        done = subprocess.run([*launcher, *self.command, "--secret-file", secret_file(self.folder), "-o", output],
                              cwd=ROOT, text=True, capture_output=True, timeout=HANG_S,
                              env=clean_environment() | environment)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(rank_line, done.stderr)
        spawned = self.json_of(*self.command[1:], "--spawn")
        self.assertEqual(json.loads(output.read_text())["losses"], spawned["losses"])

    def test_torchrun(self):
        need_peers()
        environment = {name: value for name, value in peers_environment().items() if not name.startswith(LAUNCHER_VARIABLES)}
        self.check([sys.executable, "-m", "torch.distributed.run", "--no-python", "--standalone", "--nproc-per-node", "4"],
                   "rank 3 of 4 by torchrun", **environment)

    @unittest.skipUnless(shutil.which("mpirun"), "mpirun not found; install openmpi-bin")
    def test_mpirun(self):
        self.check(["mpirun", "--oversubscribe", "-np", "4"], "rank 3 of 4 by Open MPI", OMPI_ALLOW_RUN_AS_ROOT="1",
                   OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1")

    def test_srun(self):
        with slurm_cluster.started(nodes=2, cpus=2) as cluster:
            self.check(["srun", "--nodes=2", "--ntasks=4"], "rank 3 of 4 by Slurm",
                       SLURM_CONF=cluster.environment["SLURM_CONF"], ISOBAR_MASTER=f"127.0.0.1:{free_port()}")


def secret_file(folder, name="secret", words="known to the ranks of this test"):
    path = folder / name
    path.touch(0o600)
    path.write_text(words + "\n")
    return str(path)


def another_clock(difference):
    """The environment of a process whose wall clock is off by `difference`; the steady clock of deadlines is not."""
    if not shutil.which("faketime"):
        raise unittest.SkipTest("faketime not found; install faketime")
    library = subprocess.run(["faketime", "-f", "+0", "printenv", "LD_PRELOAD"], capture_output=True, text=True,
                             check=True).stdout.strip()
    return {"LD_PRELOAD": library, "FAKETIME": difference, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


def remove_clock(pid):
    """Removes libfaketime's files, which remain when a process executes another program."""
    for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
        pathlib.Path("/dev/shm", name).unlink(missing_ok=True)


class Ranks(CommandTest):
    """Ranks that no launcher started, with the variables that one would set."""

    def setUp(self):
        super().setUp()
        self.workload = self.write("model.yaml", MODEL)
        platform = str(ROOT / "examples/launch/three_devices.xml")
        self.plan = self.make_plan(platform, self.workload, "--microbatches", 2)
        self.secret = secret_file(self.folder)
        self.master = f"127.0.0.1:{free_port()}"

    def start(self, *options, plan=None, secret=None, **environment):
        process = subprocess.Popen([ISOBAR, "run", self.workload, "--plan", plan or self.plan, "--unvalidated",
                                    "--secret-file", secret or self.secret, "--steps", "2", *map(str, options)], cwd=ROOT,
                                   env=clean_environment(**environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True)
        if "FAKETIME" in environment:
            self.addCleanup(remove_clock, process.pid)
        self.addCleanup(process.kill)
        return process

    def flags(self, rank, world=3):
        return "--rank", rank, "--world", world, "--master", self.master

    def ended(self, processes, code):
        printed = [process.communicate(timeout=HANG_S) for process in processes]
        self.assertEqual([process.returncode for process in processes], [code] * len(processes), printed)
        return printed

    def test_rank_and_world_can_be_flags(self):
        printed = self.ended([self.start(*self.flags(rank)) for rank in range(3)], 0)
        self.assertIn(f"isobar: rank 0 of 3 by --rank, --world, --master; rank 0 listens at {self.master}", printed[0][1])

    def test_the_source_that_wins_over_another_is_reported(self):
        def environment(rank):
            host, port = self.master.split(":")
            return {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": host, "MASTER_PORT": port,
                    "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "1"}
        printed = self.ended([self.start(**environment(rank)) for rank in range(3)], 0)
        self.assertIn(f"rank 1 of 3 by torchrun (RANK, WORLD_SIZE), overriding Slurm; rank 0 listens at {self.master}",
                      printed[1][1])

    def test_ranks_are_the_devices_that_they_are_assigned(self):
        output = self.folder / "run.json"
        devices = ["right", "left", "middle"]
        printed = self.ended([self.start(*self.flags(rank), "--plan-device", device, "-o", output)
                           for rank, device in enumerate(devices)], 0)
        for device in devices:
            self.assertIn(f"is the plan's {device}: ", printed[0][1])
        self.assertIn("samples/s;", printed[1][0])  # the plan's first device reports for all
        spawned = self.json_of("run", self.workload, "--plan", self.plan, "--unvalidated", "--spawn", "--steps", 2)
        self.assertEqual(json.loads(output.read_text())["losses"], spawned["losses"])

    def test_a_missing_rank_is_named(self):
        printed = self.ended([self.start(*self.flags(rank), "--deadline", "10s") for rank in (0, 2)], 3)
        for _, errors in printed:
            self.assertIn(f"isobar: of 3 ranks these have not connected to {self.master} within 20 s (twice --deadline): 1\n", errors)

    def test_two_processes_of_one_rank_are_refused(self):
        printed = self.ended([self.start(*self.flags(rank)) for rank in (0, 1, 1)], 2)
        self.assertIn("two processes claim to be rank 1; give each its own rank", printed[0][1])
        self.assertIn("rank 1 is already connected", printed[1][1] + printed[2][1])

    def test_another_secret_is_refused(self):
        other = secret_file(self.folder, "other", "known to nobody but this one")
        printed = self.ended([self.start(*self.flags(0), "--deadline", "10s"), self.start(*self.flags(1), "--deadline", "10s"),
                           self.start(*self.flags(2), "--deadline", "10s", secret=other)], 3)
        self.assertIn("within 20 s (twice --deadline): 2", printed[0][1])
        self.assertIn("did not prove the secret", printed[0][1])
        self.assertIn("rank 2: rank 0 does not answer at ", printed[2][1])

    def test_no_secret_is_refused(self):
        result = self.run_isobar("run", self.workload, "--plan", self.plan, "--unvalidated", *self.flags(0), expect=2)
        self.assertIn("no secret: give --secret-file FILE", result.stderr)

    def test_ranks_that_disagree_are_refused_with_every_reason(self):
        other = json.loads(pathlib.Path(self.plan).read_text())
        other["microbatches"] = 1
        other = self.write("other.json", json.dumps(other))
        printed = self.ended([self.start(*self.flags(0)), self.start(*self.flags(1), plan=other),
                           self.start(*self.flags(2), "--seed", 7)], 2)
        for _, errors in printed:
            self.assertRegex(errors, r"rank 1 \(.*\): a plan with hash \"[0-9a-f]{16}\"; rank 0 has ")
            self.assertRegex(errors, r"rank 2 \(.*\): options \".*--seed 7.*\"; rank 0 has \".*--seed 1.*\"")

    def test_a_rank_whose_clock_shows_another_time_is_refused_unless_it_is_allowed(self):
        def started(clock, *options):
            return [self.start(*self.flags(rank), *options, **(clock if rank == 1 else {})) for rank in range(3)]

        for difference, shown in (("+400", "6.67 min ahead of"), ("-400", "6.67 min behind")):
            clock = another_clock(difference)
            for rank, (_, errors) in enumerate(self.ended(started(clock), 2)):
                self.assertRegex(errors, rf"\Aisobar: rank {rank} of 3 by .*\nisobar: rank 1 \(.*\): its clock is {shown} "
                                 r"rank 0's; set the clocks, or allow more than 5.00 s with --clock-skew\n\Z")
            self.ended(started(clock, "--clock-skew", "7min"), 0)

    def test_a_plan_that_needs_too_much_memory_is_refused(self):
        large = json.loads(pathlib.Path(self.plan).read_text())
        large["predicted"]["peak_memory_bytes"]["middle"] = 1e18
        large = self.write("large.json", json.dumps(large))
        printed = self.ended([self.start(*self.flags(rank), plan=large) for rank in range(3)], 2)
        for _, errors in printed:
            self.assertRegex(errors, r"rank 0 \(.*\): .* of memory on cpu \(.*\); the plan needs .* there, for left, middle")

    def test_another_number_of_ranks_is_refused(self):
        printed = self.ended([self.start(*self.flags(rank, world=2)) for rank in range(2)], 2)
        for _, errors in printed:
            self.assertIn("isobar: 2 ranks are here; the plan has 3: left, middle, right\n", errors)

    def test_wrong_addresses_are_faults_of_one_line(self):
        base = ("run", self.workload, "--plan", self.plan, "--unvalidated")
        together = "--rank requires --ranks, or --world and --master where no launcher sets them"
        self.assertEqual(self.fault_of(*base, "--rank", 0), together)
        self.assertEqual(self.fault_of(*base, "--master", "a:1"), together)
        self.assertEqual(self.fault_of(*base, "--rank", 3, "--world", 3, "--master", "a:1"),
                         "--rank: 3 is not below --world, which is 3")
        self.assertIn("choose where the ranks run: ", self.fault_of(*base, "--spawn", "--world", 3))
        self.assertEqual(self.fault_of(*base, "--rank", 0, "--ranks", "a:1,b:2,c:3", "--master", "a:1"),
                         "--ranks lists all addresses; leave out --world, --master, --plan-device, --map and --clock-skew")
        self.assertIn("choose where the ranks run: ", self.fault_of(*base, "--spawn", "--clock-skew", "1s"))
        elsewhere = "applies only to ranks that are started one by one; use it with --rank"
        for option in (("--secret-file", self.secret), ("--bind", "lo"), ("--tls",), ("--plain-text",)):
            for command in ((*base, "--in-process"), ("doctor",), ("profile", self.workload, "-o", "none")):
                self.assertEqual(self.fault_of(*command, *option), f"{option[0]}: {elsewhere}")
        self.assertIn("--map: ", self.fault_of(*base, *self.flags(0), "--map", "sideways"))
        self.assertEqual(self.fault_of(*base, "--rank", 0, "--ranks", "a:1,b:2,a:1"),
                         '--ranks: "a:1" is listed twice; give each rank an address of its own')
        process = self.start(RANK="0")
        self.assertEqual(self.ended([process], 2)[0][1],
                         "isobar: WORLD_SIZE: not set; torchrun sets RANK and WORLD_SIZE together\n")

    def test_a_rank_that_is_killed_before_all_are_connected_can_connect_again(self):
        processes = [self.start(*self.flags(rank), "--restart", 1) for rank in (0, 1)]
        os.kill(self.child_that_was_greeted(processes[1]), signal.SIGKILL)
        printed = self.ended([*processes, self.start(*self.flags(2), "--restart", 1)], 0)
        self.assertIn("attempt 1 of 2 failed: died of signal 9 (Killed)", printed[1][1])
        self.assertNotIn("failed", printed[0][1])

    def child_that_was_greeted(self, rank):
        """Whether it has two connections with rank 0 and listens for the others."""
        def greeted():
            with contextlib.suppress(OSError):
                for child in children_of(rank.pid):
                    files = [os.readlink(file) for file in pathlib.Path(f"/proc/{child}/fd").iterdir()]
                    if sum(file.startswith("socket:") for file in files) >= 3:
                        return child
            return None

        self.assertTrue(holds(greeted), "rank 0 greets nobody")
        return greeted()

    def test_a_public_port_with_a_local_master_is_refused_before_waiting_for_others(self):
        fault = self.ended([self.start(*self.flags(0), "--bind", "0.0.0.0")], 2)[0][1].splitlines()[-1]
        self.assertEqual(fault, "isobar: --bind: 0.0.0.0 is open to other machines, but the master is at 127.0.0.1, "
                         "which only this machine reaches; change the address in --master, or omit --bind")

    def test_ranks_raise_their_limit_of_open_files(self):
        def few():
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

        done = subprocess.run([ISOBAR, "run", self.workload, "--plan", self.plan, "--unvalidated", "--spawn", "--steps",
                               "2", "--flows", "64"], cwd=ROOT, preexec_fn=few, capture_output=True, text=True,
                              timeout=HANG_S)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
