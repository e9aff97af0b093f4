"""A Slurm cluster on this machine, for tests: munged, slurmctld and a slurmd for each node, all by themselves.

    with slurm_cluster.started(nodes=4) as cluster:
        cluster.run("srun", "--nodes=4", "hostname")     # Slurm's commands, as those of this cluster
        subprocess.run([...], env=cluster.environment)   # whatever calls them

Nodes are virtual: n0, n1, … are all this machine, with as many CPUs as asked for, whatever it has. Keys, sockets,
spools, states and logs lie in a temporary folder and ports are free ones, so that clusters run side by side and beside
a Slurm and a munged of the machine, which are not touched. Needs Debian's slurm-wlm and munge and root, no systemd, no
cgroups, and no network but loopback; where something is missing, a test skips and says what.

Nothing is left when the block ends, however it ends: daemons, jobs and all that jobs started are ended by their ids,
and the folder is removed. A killed test takes the daemons along.
"""

import contextlib
import ctypes
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

DEADLINE_S = 300  # until every node is idle
GRACE_S = 5  # for a daemon to end by itself
ATTEMPTS = 3  # another process may take a port between our look and the daemon's
DAEMONS = ("munged", "slurmctld", "slurmd")
SHOWN_LINES = 15  # of each log, in the message of a failure

CONFIGURATION = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0
MaxArraySize={max_array_size}
KillWait=2
MailProg=/bin/true
SlurmdParameters=config_overrides
NodeName=n[0-{last_node}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first_port}-{last_port}] CPUs={cpus}
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Failed(Exception):
    """The cluster did not come up, or one of its commands failed."""


def check_available():
    """Skips the test where there can be no cluster."""
    if os.geteuid() != 0:
        raise unittest.SkipTest("a Slurm cluster: its daemons need root")
    missing = [daemon for daemon in DAEMONS if not shutil.which(daemon, path=search_path())]
    if missing:
        raise unittest.SkipTest(f"a Slurm cluster: {', '.join(missing)} not found; install slurm-wlm and munge")


def search_path():
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def end_with_parent():
    """In a daemon, before it starts: it gets SIGTERM when the test dies."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def free_ports(count):
    """The first of so many ports in a row that nobody has now; below those that connections take by themselves."""
    while True:
        first = random.randrange(10000, 32000 - count)
        with contextlib.ExitStack() as held:
            try:
                for port in range(first, first + count):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port))
                return first
            except OSError:
                pass  # one of them is taken: look elsewhere


class Cluster:
    """`environment` makes Slurm's commands speak to this cluster; `folder` is where all of it lies."""

    def __init__(self, folder, nodes, cpus, max_array_size):
        self.folder = folder
        self.nodes = [f"n{index}" for index in range(nodes)]
        self.cpus = cpus
        self.max_array_size = max_array_size
        self.environment = dict(os.environ, SLURM_CONF=str(folder / "slurm.conf"), PATH=search_path())
        self.daemons = []

    def run(self, *command):
        """What a command of Slurm prints."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=DEADLINE_S)
        if done.returncode != 0:
            raise Failed(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def write_configuration(self):
        self.folder.chmod(0o755)  # munged wants its socket's folder open to all
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        ports = free_ports(1 + len(self.nodes))
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(
            folder=self.folder, host=socket.gethostname().split(".")[0], controller_port=ports, first_port=ports + 1,
            last_port=ports + len(self.nodes), last_node=len(self.nodes) - 1, cpus=self.cpus,
            max_array_size=self.max_array_size))

    def start_daemon(self, name, *command):
        with open(self.folder / f"{name}.log", "wb") as log:
            self.daemons.append(subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log,
                                                 stderr=log, preexec_fn=end_with_parent, start_new_session=True))

    def start(self):
        self.write_configuration()
        files = {option: self.folder / f"munge.{option}" for option in ("socket", "seed", "pid")}
        self.start_daemon("munged", "munged", "--foreground", "--key-file", self.folder / "munge.key",
                          "--socket", files["socket"], "--seed-file", files["seed"], "--pid-file", files["pid"])
        self.wait_until(files["socket"].exists, "munged has no socket")
        self.start_daemon("slurmctld", "slurmctld", "-D")
        for node in self.nodes:
            (self.folder / f"spool-{node}").mkdir()
            self.start_daemon(f"slurmd-{node}", "slurmd", "-D", "-N", node)
        self.wait_until(self.is_idle, "not every node is idle")

    def is_idle(self):
        shown = subprocess.run(["sinfo", "--noheader", "--Node", "--format=%T"], env=self.environment, text=True,
                               capture_output=True, timeout=DEADLINE_S)
        return shown.stdout.split() == ["idle"] * len(self.nodes)

    def wait_until(self, condition, otherwise):
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            dead = [daemon.args[0] for daemon in self.daemons if daemon.poll() is not None]
            if dead or time.monotonic() > deadline:
                reason = f"{', '.join(dead)} ended" if dead else f"{otherwise} after {DEADLINE_S} s"
                raise Failed(f"no Slurm cluster: {reason}\n{self.logs()}")
            time.sleep(0.05)

    def logs(self):
        return "\n".join(f"== {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-SHOWN_LINES:])
                         for log in sorted(self.folder.glob("*.log")))

    def processes(self):
        """Ids of all that belongs to the cluster: daemons, and jobs with what they started; this process does not."""
        mark = f"SLURM_CONF={self.environment['SLURM_CONF']}".encode()
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                pass  # it has ended meanwhile
        return found

    def stop(self):
        for daemon in reversed(self.daemons):
            daemon.terminate()
        deadline = time.monotonic() + GRACE_S
        for daemon in self.daemons:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(max(0, deadline - time.monotonic()))
        while left := self.processes():  # jobs, which outlive their slurmd, and daemons that do not listen
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.02)
        for daemon in self.daemons:
            daemon.wait()


@contextlib.contextmanager
def uninterrupted():
    """Ctrl-C waits until the block has ended."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def started(nodes=1, cpus=2, max_array_size=1001):
    """A cluster whose nodes are idle. Skips the test where there can be none. @raise Failed with the daemons' logs."""
    check_available()
    for attempt in range(1, ATTEMPTS + 1):
        with tempfile.TemporaryDirectory(prefix="isobar-slurm-") as folder:
            cluster = Cluster(pathlib.Path(folder), nodes, cpus, max_array_size)
            try:
                try:
                    cluster.start()
                except Failed as failure:
                    if "in use" in str(failure) and attempt < ATTEMPTS:
                        continue
                    raise
                yield cluster
                return
            finally:
                with uninterrupted():
                    cluster.stop()
