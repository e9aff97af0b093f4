"""isobar run with faults: ranks that fail, stop or are late; restarts; new plans without the lost device."""

import contextlib
import json
import os
import pathlib
import resource
import signal
import socket
import subprocess
import threading
import time

from tests.cli.breakable_runs import ENDLESS, SOME_STEPS, BreakableRuns, is_alive, platform_of
from tests.cli.support import HANG_S, children_of, descendants_of, holds, without_notes


def listens_at(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def small_disk(test, size):
    """A folder with its own file system, removed with the test."""
    disk = test.folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode != 0:
        test.skipTest(f"no small disk: {mounted.stderr.strip()}")
    test.addCleanup(subprocess.run, ["umount", "--lazy", disk], check=True)
    return disk


class Relay:
    """Forwards connections to a port, slowly after `slow_after` bytes, until they are cut."""

    def __init__(self, port, slow_after=None):
        self.port_behind = port
        self.slow_after = slow_after
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.open = []
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.server.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self.port_behind))
                except OSError:
                    near.close()
                    continue
                self.open += [near, far]
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self.passes_on, args=ends, daemon=True).start()

    def passes_on(self, source, sink):
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(4096 if self.slow_after is None or passed < self.slow_after else 64):
                sink.sendall(data)
                passed += len(data)
                if self.slow_after is not None and passed >= self.slow_after:
                    time.sleep(0.2)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self):
        self.server.close()
        for end in self.open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Faults(BreakableRuns):
    def ranks(self, *options, steps=ENDLESS, relay=None, count=2):
        """Starts a process for each rank; rank 0 connects to `relay(port)` instead of rank 1."""
        ports = free_ports(count)
        seen = [ports] * count
        if relay:
            seen[0] = [ports[0], relay(ports[1]).port, *ports[2:]]
        return [self.start("--rank", rank, "--ranks", ",".join(f"127.0.0.1:{port}" for port in seen[rank]),
                           "--secret-file", self.secret, *options, steps=steps) for rank in range(count)]

    def test_a_rank_that_is_killed_is_named_with_its_device_and_no_process_is_left(self):
        self.planned(("a", "b", "c"))
        for rank, name in enumerate("abc"):
            process = self.start("--spawn")
            self.wait_for_step(2, process)
            children = children_of(process.pid)
            os.kill(children[rank], signal.SIGKILL)
            self.assertEqual(self.errors_of(process), f"isobar: rank {rank} ({name}): died of signal 9 (Killed)\n")
            self.assertEqual([child for child in children if is_alive(child)], [])

    def test_no_rank_outlives_the_parent(self):
        self.planned()
        for options in ((), ("--restart", 3)):
            process = self.start("--spawn", *options)
            self.wait_for_step(2, process)
            descendants = descendants_of(process.pid)
            self.assertGreaterEqual(len(descendants), 2)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            self.assertTrue(holds(lambda: not any(map(is_alive, descendants))), descendants)

    def test_a_stopped_rank_is_named_and_ends_when_it_continues(self):
        self.planned()
        for stopped, (name, other) in enumerate((("a", "b"), ("b", "a"))):
            processes = self.ranks("--heartbeat", "3s")
            self.wait_for_step(2, *processes[1:])
            os.kill(processes[stopped].pid, signal.SIGSTOP)
            self.assertEqual(self.errors_of(processes[1 - stopped]),
                             f"isobar: rank {stopped} ({name}): no heartbeat for 3 s (--heartbeat)\n")
            time.sleep(1)
            os.kill(processes[stopped].pid, signal.SIGCONT)
            self.assertRegex(self.errors_of(processes[stopped]),
                             rf"^isobar: rank {stopped} \({name}\) was suspended for .* s; the others wait 3 s for a "
                             r"heartbeat \(--heartbeat\)\n$")

    def test_a_short_pause_harms_nothing(self):
        self.planned()
        processes = self.ranks("--heartbeat", "8s", steps=SOME_STEPS)
        self.wait_for_step(2, processes[1])
        os.kill(processes[0].pid, signal.SIGSTOP)
        time.sleep(2)
        os.kill(processes[0].pid, signal.SIGCONT)
        for process in processes:
            self.errors_of(process, code=0)

    def test_a_killed_rank_without_a_common_parent_is_gone(self):
        self.planned(("a", "b", "c"))
        processes = self.ranks(count=3)
        self.wait_for_step(2, processes[2])
        processes[1].kill()
        for rank in (0, 2):
            self.assertEqual(self.errors_of(processes[rank]), "isobar: rank 1 (b) is gone\n")

    def test_cut_connections_end_both_ranks(self):
        self.planned()
        relays = []

        def relay(port):
            relays.append(Relay(port))
            return relays[-1]

        processes = self.ranks(relay=relay)
        self.wait_for_step(2, processes[1])
        relays[0].cut()
        for process in processes:
            self.assertRegex(self.errors_of(process),
                             r"^isobar: (rank [01] \([ab]\)|rank 1 \(b\) reported this rank as lost: rank 0 \(a\)) is gone\n$")

    def test_a_link_that_becomes_slow_ends_the_run_at_the_deadline(self):
        self.planned()
        processes = self.ranks("--deadline", "4s", "--heartbeat", "3.5s",
                               relay=lambda port: Relay(port, slow_after=200_000))
        self.wait_for_step(2, processes[1])
        errors = [self.errors_of(process) for process in processes]
        # Both wait for each other; the one that has waited longer reports first, and the other repeats it.
        late = r"rank \d: receive from rank \d \(channel \d\): (no message|\d+ of \d+ B) after 4(\.\d+)? s: deadline passed " \
            r"\(stage \d, receive (activation|gradient) of micro-batch \d, 4.00 KiB; --deadline 4 s\); all ranks are alive"
        for error in errors:
            self.assertRegex(error, rf"^isobar: (rank \d \([ab]\) failed: )?{late}\n$")
        self.assertTrue(any("failed:" not in error for error in errors), errors)

    def test_a_rank_that_does_not_connect_is_named(self):
        self.planned()
        port, absent = free_ports(2)
        process = self.start("--rank", 0, "--ranks", f"127.0.0.1:{port},127.0.0.1:{absent}", "--secret-file",
                             self.secret, "--deadline", "1s")
        self.assertRegex(self.errors_of(process), rf"still waiting after 2.* \(twice --deadline\) for rank 1 \(127.0.0.1:{absent}: ")

    def test_a_port_in_use_and_a_second_rank_of_the_same_number_are_refused(self):
        self.planned()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            process = self.start("--rank", 0, "--ranks", f"127.0.0.1:{port},127.0.0.1:1", "--secret-file", self.secret)
            self.assertEqual(self.errors_of(process),
                             f"isobar: cannot listen on 127.0.0.1:{port}: Address already in use\n")
        ports = free_ports(2)
        first = self.start("--rank", 0, "--ranks", f"127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}", "--secret-file",
                           self.secret)
        self.assertTrue(holds(lambda: listens_at(ports[0])))
        second = self.start("--rank", 0, "--ranks", f"127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}", "--secret-file",
                            self.secret)
        self.assertIn("Address already in use", self.errors_of(second))
        self.assertIsNone(first.poll())

    def test_a_full_disk_ends_the_run_and_costs_no_complete_checkpoint(self):
        self.planned()
        disk = small_disk(self, "1600k")  # two checkpoints of 680 KiB
        options = ("--spawn", "--checkpoint", disk, "--checkpoint-every", 10)
        self.assertRegex(self.errors_of(self.start(*options, steps=SOME_STEPS)),
                         rf"\Aisobar: rank (0 \(a\)|1 \(b\)): {disk}/step-00000030/stage-[01]-of-2.safetensors: cannot "
                         r"write: No space left on device; the file takes \d{6} bytes\n\Z")
        subprocess.run(["mount", "-o", "remount,size=16m", disk], check=True)
        resumed = self.start(*options, "--resume", steps=SOME_STEPS)
        self.errors_of(resumed, code=0)
        undisturbed = self.undisturbed()
        self.assertEqual(self.losses(resumed, first=20), {step: undisturbed[step] for step in range(20, SOME_STEPS)})

    def test_a_failed_run_is_restarted_from_its_checkpoint(self):
        self.planned()
        process = self.start("--spawn", "--restart", 2, "--checkpoint", self.folder / "kept", "--checkpoint-every", 10,
                             steps=SOME_STEPS)
        self.wait_for_step(25, process)
        supervised, = children_of(process.pid)
        os.kill(children_of(supervised)[1], signal.SIGKILL)
        errors = self.errors_of(process, code=0)
        self.assertRegex(errors, r"isobar: attempt 1 of 3 failed: rank 1 \(b\): died of signal 9 \(Killed\); "
                         r"continuing from step [1-9]0\n")
        self.assertEqual(self.losses(process), self.undisturbed())

    def test_ranks_started_separately_restart_their_own_parts(self):
        self.planned()
        processes = self.ranks("--restart", 2, "--checkpoint", self.folder / "kept", "--checkpoint-every", 10,
                               steps=SOME_STEPS)
        self.wait_for_step(25, processes[1])
        os.kill(children_of(processes[1].pid)[0], signal.SIGKILL)
        errors = [self.errors_of(process, code=0) for process in processes]
        self.assertRegex(errors[0], r"isobar: attempt 1 of 3 failed: rank 1 \(b\) is gone; continuing from step [1-9]0\n")
        self.assertRegex(errors[1], r"isobar: attempt 1 of 3 failed: died of signal 9 \(Killed\); continuing from step")
        self.assertEqual(self.losses(processes[1]), self.undisturbed())

    def test_inputs_that_can_be_read_only_once_are_refused_with_restarts(self):
        self.planned()
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        for options in (("--restart", 1), ("--replan", self.platform)):
            for inputs in ((pipe, "--plan", self.plan), (self.workload, "--plan", pipe),
                           (self.workload, "--plan", self.plan, "--data", pipe)):
                self.assertEqual(self.fault_of("run", *inputs, "--spawn", *options),
                                 f"{pipe}: can be read only once, and --restart and --replan read it for every attempt; "
                                 "write it to a file")

    def test_a_permanent_fault_is_not_restarted(self):
        self.planned()
        self.assertIn("no.json: no such file",
                      self.fault_of("run", self.workload, "--plan", self.folder / "no.json", "--spawn", "--restart", 3))
        port = free_ports(1)[0]
        process = self.start("--rank", 0, "--ranks", f"127.0.0.1:{port},127.0.0.1:{port + 1}", "--secret-file",
                             self.secret, "--deadline", "0.5s", "--restart", 1)
        errors = self.errors_of(process).splitlines()
        self.assertEqual(len(errors), 2, errors)
        self.assertRegex(errors[0], "^isobar: attempt 1 of 2 failed: rank 0: still waiting .*; continuing from step 0$")
        self.assertRegex(errors[1], "^isobar: rank 0: still waiting ")

    def test_a_run_continues_without_the_lost_device(self):
        self.planned(("a", "b", "c"))
        mine = pathlib.Path(self.write("plan.without-1.json", "of an earlier run"))
        process = self.start("--spawn", "--replan", self.platform, "--checkpoint", self.folder / "kept",
                             "--checkpoint-every", 10, steps=SOME_STEPS)
        self.wait_for_step(25, process)
        supervised, = children_of(process.pid)
        os.kill(children_of(supervised)[1], signal.SIGKILL)
        errors = self.errors_of(process, code=0)
        self.assertEqual(mine.read_text(), "of an earlier run")
        new_plan = str(self.folder / "plan.without-1-2.json")
        self.assertRegex(errors, r"isobar: rank 1 \(b\): died of signal 9 \(Killed\); continuing from step [1-9]0 with " +
                         new_plan)
        content = json.loads(pathlib.Path(new_plan).read_text())
        self.assertEqual(content["without"], ["b"])
        self.assertEqual([stage["devices"][0]["name"] for stage in content["stages"]], ["a", "c"])
        self.run_isobar("verify", self.platform, self.workload, new_plan)
        self.assertEqual(self.losses(process), self.undisturbed())

    def test_another_platform_than_the_plans_is_refused_before_the_first_step(self):
        self.planned()
        other = self.write("other.xml", platform_of(("a", "b", "c")))
        self.assertRegex(self.fault_of("run", self.workload, "--plan", self.plan, "--spawn", "--replan", other),
                         "^--replan: the plan cannot be made again for this platform: isobar verify .*platform: claims ")

    def test_replanning_needs_one_process_that_starts_all_ranks(self):
        self.planned()
        self.assertEqual(self.fault_of("run", self.workload, "--plan", self.plan, "--in-process", "--replan",
                                       self.platform),
                         "--replan: needs one process that restarts all ranks on the new plan; add --spawn")

    def test_limits_in_the_wrong_order_are_refused(self):
        self.planned()
        base = ("run", self.workload, "--plan", self.plan, "--in-process")
        self.assertEqual(self.fault_of(*base, "--heartbeat", "20s", "--deadline", "10s"),
                         "--heartbeat: 20 s is not below the deadline of transfers, 10 s, so dead ranks would be "
                         "reported as late; lower it, or raise --deadline")
        self.assertIn("--heartbeat: ", self.fault_of(*base, "--heartbeat", "soon"))

    def test_a_device_out_of_memory_is_named_with_layer_and_bytes(self):
        self.planned()
        content = json.loads(pathlib.Path(self.plan).read_text())
        content["stages"][1]["devices"][0]["memory_bytes"] = 100_000
        pathlib.Path(self.plan).write_text(json.dumps(content))
        fault = self.fault_of("run", self.workload, "--plan", self.plan, "--spawn", "--emulate", "--unvalidated",
                              expect=3)
        self.assertRegex(fault, r"^rank 1 \(b\): out of memory in layer \d+ \(\w+.*\): .* requested in addition to .* held, of "
                         r"97.7 KiB$")

    def test_too_few_open_files_are_reported_with_the_number_needed(self):
        self.planned()

        def with_few(arguments, **options):
            return subprocess.Popen(["prlimit", "--nofile=40", *arguments], **options)

        self.assertRegex(self.errors_of(self.start("--spawn", begin=with_few)),
                         r"^isobar: rank [01] \([ab]\): its connections need about \d+ open files in addition to the \d+ "
                         r"of this process, whose limit is 40; raise it with: ulimit -n (64|128)\n$")

    def test_a_thread_that_cannot_start_ends_all_ranks_in_one_line(self):
        self.planned()
        for mode in ("--spawn", "--in-process"):
            printed = []
            for threads in range(100):
                def with_few(arguments, **options):
                    environment = {**os.environ, "LD_PRELOAD": os.environ["ISOBAR_PRELOAD"],
                                   "ISOBAR_FEW_THREADS": str(threads)}
                    return subprocess.Popen(arguments, env=environment, **options)

                run = self.start(mode, steps=1, begin=with_few)
                errors = without_notes(run.communicate(timeout=HANG_S)[1])
                if run.returncode == 0:
                    break
                self.assertEqual(run.returncode, 3, errors)
                self.assertRegex(errors, r"^isobar: .*cannot start a thread: Resource temporarily unavailable; .*\n$")
                printed.append(errors)
            self.assertEqual(run.returncode, 0)
            self.assertGreater(len(printed), 1)

    def test_no_port_is_open_once_all_ranks_are_connected(self):
        self.planned()
        process = self.start("--spawn")
        self.wait_for_step(1, process)
        listening = "0A"
        lines = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
        sockets = {f"socket:[{line[9]}]" for line in lines if line[3] == listening}
        for pid in (process.pid, *descendants_of(process.pid)):
            files = {os.readlink(file) for file in pathlib.Path(f"/proc/{pid}/fd").iterdir()}
            self.assertEqual(files & sockets, set())

    def test_an_interrupt_ends_the_wait_for_the_other_ranks(self):
        self.planned()
        for restarts in ((), ("--restart", 3)):
            port, = free_ports(1)
            process = self.start("--rank", 0, "--world", 2, "--master", f"127.0.0.1:{port}", "--secret-file",
                                 self.secret, *restarts)
            self.assertTrue(holds(lambda: listens_at(port)))
            process.send_signal(signal.SIGINT)
            printed = self.errors_of(process, code=130).splitlines()
            self.assertRegex(printed[0], "listens at")
            self.assertEqual(printed[1:], ["isobar: interrupted"])

    def test_a_fault_that_one_rank_does_not_repeat_is_repeated_by_none(self):
        self.planned()
        workload = pathlib.Path(self.workload)
        workload.write_text(workload.read_text().replace("adam", "sgd").replace("0.01", "1e30"))
        self.plan = self.make_plan(self.platform, self.workload, "--microbatches", 4)
        processes = self.ranks("--restart", 2, "--unvalidated")
        diverged = r"step \d+: the loss is -?(nan|inf); training has diverged.*"
        self.assertRegex(self.errors_of(processes[1], code=2), rf"^isobar: {diverged}\n$")
        self.assertRegex(self.errors_of(processes[0], code=2), rf"^isobar: rank 1 \(b\) failed: {diverged}\n$")

    def test_an_interrupt_hides_no_checkpoint_that_could_not_be_written(self):
        self.planned()
        for restarts in ((), ("--restart", 3)):
            process = self.start("--spawn", "--checkpoint", self.folder / f"kept-{len(restarts)}", *restarts)
            self.wait_for_step(2, process)
            for pid in descendants_of(process.pid):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
            process.send_signal(signal.SIGINT)
            self.assertRegex(self.errors_of(process), r"\Aisobar: rank [01] \([ab]\): .*/stage-[01]-of-2.safetensors: "
                             r"cannot write: File too large.*\n\Z")

    def test_no_device_is_left_out_because_a_checkpoint_cannot_be_written(self):
        self.planned(("a", "b", "c"))
        process = self.start("--spawn", "--replan", self.platform, "--checkpoint", self.folder / "kept",
                             "--checkpoint-every", 10, steps=SOME_STEPS)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
        self.assertRegex(self.errors_of(process), r"\Aisobar: rank \d \([abc]\): .*cannot write: File too large.*; no "
                         r"device is known to be lost, so none can be left out\n\Z")
        self.assertFalse((self.folder / "plan.without-1.json").exists())
