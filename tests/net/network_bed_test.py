"""tools/network_bed.py: its networks have the configured rates and delays, and leave nothing behind."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

from tools import network_bed
from tools.network_bed import PAYLOAD, Host, Network, Trunk

RELAY = os.environ["TAP_RELAY"]
ISOBAR = os.environ["ISOBAR"]
ROOT = pathlib.Path(__file__).resolve().parents[2]
PAIR = (Host("a", 500), Host("b", 500))

# Each prints the time of an event, by the steady clock that all processes of the machine share.
RECEIVE = """
import socket, sys, time
listener = socket.create_server((sys.argv[1], 5000))
print("up", flush=True)
connection = listener.accept()[0]
while connection.recv(1 << 20): pass
print(time.monotonic(), flush=True)
"""
SEND = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 5000))
print(time.monotonic(), flush=True)
connection.sendall(bytes(int(sys.argv[2])))
"""
ECHO = """
import socket, sys
listener = socket.create_server((sys.argv[1], 5000))
print("up", flush=True)
connection = listener.accept()[0]
while byte := connection.recv(1): connection.sendall(byte)
"""
PING = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 5000))
def trip():
    began = time.monotonic()
    connection.sendall(b"x")
    connection.recv(1)
    return time.monotonic() - began
print(min(trip() for _ in range(20)))
"""


def namespaces():
    return {line.split()[0] for line in network_bed.run("ip", "netns", "list").splitlines()}


def started(bed, host, program, *arguments):
    return bed.start(host, [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True)


def listening(bed, host, program):
    process = started(bed, host, program, bed.addresses[host])
    process.stdout.readline()
    return process


def transfer_times(bed, size, pairs):
    """Seconds until each pair has transferred `size` bytes, since the first pair began."""
    receivers = [listening(bed, receiver, RECEIVE) for _, receiver in pairs]
    senders = [started(bed, sender, SEND, bed.addresses[receiver], str(size)) for sender, receiver in pairs]
    began = [float(sender.stdout.readline()) for sender in senders]
    return [float(receiver.stdout.readline()) - min(began) for receiver in receivers]


class NetworkBed(unittest.TestCase):
    def setUp(self):
        try:
            network_bed.check_available()
        except network_bed.Unavailable as reason:
            self.skipTest(f"no namespaces: {reason}")
        before = namespaces()
        self.addCleanup(lambda: self.assertEqual(namespaces() - before, set()))

    def bed(self, hosts, mbit, delay_ms):
        return network_bed.bed(Network(hosts, {("a", "b"): Trunk(mbit, delay_ms)}), RELAY)

    def assert_takes(self, expected, measured):
        """Not less, except for the burst of a token bucket. On a busy machine it may take any time longer."""
        self.assertGreater(measured, 0.95 * expected)

    def test_a_transfer_takes_its_bytes_divided_by_the_rate(self):
        for delay_ms in (0, 20):
            with self.subTest(delay_ms=delay_ms), self.bed(PAIR, 100, delay_ms) as bed:
                size = 12_500_000
                expected = size * 8 / (100e6 * PAYLOAD) + delay_ms * 1e-3
                self.assert_takes(expected, transfer_times(bed, size, [(0, 1)])[0])

    def test_a_round_trip_takes_the_delay_twice(self):
        with self.bed(PAIR, 100, 20) as bed:
            listening(bed, 1, ECHO)
            least_s = float(started(bed, 0, PING, bed.addresses[1]).communicate()[0])
        self.assertGreaterEqual(least_s, 40e-3)

    def test_two_flows_over_one_trunk_get_half_each(self):
        hosts = (Host("a", 100), Host("a", 100), Host("b", 100), Host("b", 100))
        with self.bed(hosts, 100, 0) as bed:
            size = 6_250_000
            alone = size * 8 / (100e6 * PAYLOAD)
            first, last = sorted(transfer_times(bed, size, [(0, 2), (1, 3)]))
            self.assert_takes(2 * alone, last)
            self.assertGreater(first, 1.2 * alone)

    def test_a_host_sends_at_its_new_rate(self):
        with self.bed(PAIR, 100, 0) as bed:
            bed.set_rate(0, 10)
            size = 1_250_000
            self.assert_takes(size * 8 / (10e6 * PAYLOAD), transfer_times(bed, size, [(0, 1)])[0])

    def test_a_bed_is_removed_after_a_failure_and_the_machine_is_unchanged(self):
        def machine():
            return network_bed.run("ip", "-o", "link"), network_bed.run("ip", "route")

        before = machine()
        with self.assertRaises(KeyboardInterrupt):
            with self.bed(PAIR, 100, 20) as bed:
                listening(bed, 1, ECHO)
                self.assertEqual(machine(), before)
                raise KeyboardInterrupt
        self.assertTrue(all(process.poll() is not None for process in bed.processes))
        self.assertEqual(machine(), before)

    def test_the_namespaces_of_a_killed_bed_are_removed_by_the_next(self):
        script = ("from tools.network_bed import *\n"
                  f"with bed(Network((Host('a', 9), Host('b', 9)), {{('a', 'b'): Trunk(9, 5)}}), {RELAY!r}):\n"
                  "    print('up', flush=True)\n    input()\n")
        process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True)
        self.assertEqual(process.stdout.readline(), "up\n")
        process.send_signal(signal.SIGKILL)
        process.communicate()
        left = {name for name in namespaces() if name.startswith(f"isobar-{process.pid}-")}
        self.assertEqual(len(left), 5)  # two hosts, two routers, the relay
        network_bed.remove_leftovers()
        self.assertEqual(namespaces() & left, set())


class Platform(unittest.TestCase):
    def test_the_platform_file_has_the_payload_rates_and_the_delays(self):
        network = Network((Host("a", 500), Host("b", 200), Host("a", 500)), {("b", "a"): Trunk(100, 20)})
        hosts = [f'<host id="{name}" speed="1Gf"><prop id="memory" value="1 GB"/></host>' for name in "xyz"]
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "bed.xml"
            file.write_text(network_bed.platform_xml(network, hosts))
            shown = subprocess.run([ISOBAR, "platform", "show", file, "--json"], capture_output=True, text=True)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        cluster = json.loads(shown.stdout)
        self.assertAlmostEqual(cluster["latency_s"][0][1], 20.15e-3)
        self.assertAlmostEqual(cluster["latency_s"][0][2], 0.1e-3)
        self.assertAlmostEqual(cluster["bandwidth_bytes_per_s"][0][1] / 1e6, 12.5 * 8948 / 9014, places=4)
        self.assertAlmostEqual(cluster["bandwidth_bytes_per_s"][2][0] / 1e6, 62.5 * 8948 / 9014, places=4)


if __name__ == "__main__":
    unittest.main()
