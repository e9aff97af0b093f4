"""Ranks connect while attackers flood their ports for SIEGE_SECONDS (default 5); the losses stay the same."""

import hashlib
import hmac
import json
import os
import random
import socket
import subprocess
import threading
import time

from tests.cli.breakable_runs import MODEL
from tests.cli.support import HANG_S, ISOBAR, ROOT, CommandTest

SIEGE_SECONDS = float(os.environ.get("SIEGE_SECONDS", "5"))
PORTS = (21761, 21762, 21763)
CHALLENGE, CLAIM = 32, 192  # bytes (exec/net/handshake.hpp)


class Relay:
    """Forwards connections to a port and records what each initiator sends."""

    def __init__(self, port):
        self.port = port
        self.sent = []
        self.lines = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:{}".format(self.listener.getsockname()[1])
        threading.Thread(target=self.take_calls, daemon=True).start()

    def take_calls(self):
        while True:
            try:
                initiator = self.listener.accept()[0]
            except OSError:  # closed
                return
            self.lines.append(initiator)
            try:
                acceptor = socket.create_connection(("127.0.0.1", self.port))
            except OSError:  # not listening yet: the rank connects again
                initiator.close()
                continue
            self.lines.append(acceptor)
            record = bytearray()
            self.sent.append(record)
            threading.Thread(target=self.carry, args=(initiator, acceptor, record), daemon=True).start()
            threading.Thread(target=self.carry, args=(acceptor, initiator, None), daemon=True).start()

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        for line in (self.listener, *self.lines):
            line.close()

    @staticmethod
    def carry(source, target, record):
        try:
            while data := source.recv(65536):
                if record is not None:
                    record += data
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Attacker(threading.Thread):
    """Connects to all ports in turn until it is stopped, and answers challenges in its own way."""

    def __init__(self, words):
        super().__init__(daemon=True)
        self.words = words
        self.connected = 0
        self.longest_answer = 0
        self.over = threading.Event()

    def run(self):
        for turn in range(1 << 30):
            if self.over.wait(0.002):
                return
            try:
                with socket.create_connection(("127.0.0.1", PORTS[turn % 3]), timeout=1) as line:
                    self.connected += 1
                    challenge = line.recv(CHALLENGE, socket.MSG_WAITALL)
                    line.sendall(self.words(challenge))
                    answer = line.recv(1)
                    self.longest_answer = max(self.longest_answer, len(challenge) + len(answer))
            except OSError:
                continue  # no one listens, or the connection was closed

    def stop(self):
        self.over.set()
        self.join()


class Siege(CommandTest):
    def inputs(self):
        workload = self.write("model.yaml", MODEL)
        live = str(self.folder / "live")
        self.run_isobar("profile", workload, "--slowdowns", "1,1,1", "--repetitions", 3, "-o", live)
        profile = live + ".profile.json"
        plan = self.make_plan(live + ".xml", workload, "--profile", profile, "--microbatches", 4)
        self.run_isobar("simulate", live + ".xml", workload, "--profile", profile, "--plan", plan, "--stamp")
        return workload, plan

    def start(self, rank, ranks, *options, secret=None, patience_s=SIEGE_SECONDS + 60):
        return subprocess.Popen([ISOBAR, "run", self.workload, "--plan", self.plan, "--steps", "3", "--rank", str(rank),
                                 "--ranks", ",".join(ranks), "--secret-file", secret or self.secret, "--deadline",
                                 f"{patience_s}s", *options],
                                cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def losses_of(self, processes, output):
        printed = [process.communicate(timeout=HANG_S) for process in processes]
        self.assertEqual([process.returncode for process in processes], [0, 0, 0], printed)
        return json.loads(output.read_text())["losses"]

    def test_ranks_under_attack_compute_the_same_losses(self):
        self.workload, self.plan = self.inputs()
        self.secret = self.secret_file()
        ranks = [f"127.0.0.1:{port}" for port in PORTS]

        # An undisturbed run, recording what rank 0 sends to rank 1.
        relay = Relay(PORTS[1])
        self.addCleanup(relay.close)
        output = self.folder / "quiet.json"
        quiet = self.losses_of([self.start(0, [ranks[0], relay.address, ranks[2]], "-o", str(output)),
                                self.start(1, ranks), self.start(2, ranks)], output)
        recorded = [bytes(sent[:CLAIM + 1]) for sent in relay.sent if len(sent) > CLAIM]
        self.assertTrue(recorded)

        def wrong_proof(challenge):
            sent = random.randbytes(32) + b"link".ljust(128, b"\0")
            return sent + hmac.digest(b"a secret of its own", challenge + sent, hashlib.sha256)

        attackers = [Attacker(wrong_proof), Attacker(lambda _: random.choice(recorded)),
                     Attacker(lambda _: random.randbytes(random.randrange(1, 1000)))]
        for attacker in attackers:
            attacker.start()
            self.addCleanup(attacker.stop)
        output = self.folder / "siege.json"
        # Another attacker follows the protocol exactly, as rank 1, but with another secret.
        impostor = self.start(1, [ranks[0], "127.0.0.1:21764", ranks[2]], secret=self.secret_file("another"),
                              patience_s=SIEGE_SECONDS)
        processes = [self.start(0, ranks, "-o", str(output)), self.start(1, ranks)]
        time.sleep(SIEGE_SECONDS)
        processes.append(self.start(2, ranks))
        self.assertEqual(self.losses_of(processes, output), quiet)
        self.assertIn("rank 1: still waiting after ", impostor.communicate(timeout=HANG_S)[1])
        self.assertEqual(impostor.returncode, 3)
        for attacker in attackers:
            attacker.stop()
            self.assertGreater(attacker.connected, 3)
            # A challenge, which is random, and nothing else.
            self.assertLessEqual(attacker.longest_answer, CHALLENGE)
