"""isobar run, with each rank on its own host, when the link between them becomes slow or is cut."""

import functools
import os
import unittest

from tests.cli.breakable_runs import ENDLESS, BreakableRuns
from tests.cli.support import holds
from tools import network_bed
from tools.network_bed import Host, Network

MBIT = 100
# A stage sends 512 KiB for each micro-batch: 42 ms at that rate, and 4.2 s at a hundredth of it.
MODEL = """model: gpt
layers: 2
hidden: 128
heads: 2
vocabulary: 60
sequence: 256
micro_batch: 4
optimizer: adam
learning_rate: 0.01
"""
CONNECTIONS_OF_TWO = 7  # of three ranks: transfers, heartbeats, side channel, and the all-reduces of one neighbour
LIMITS = ("--deadline", "6s", "--heartbeat", "4s")


class OverANetwork(BreakableRuns):
    hosts = 2

    def setUp(self):
        super().setUp()
        try:
            self.bed = self.enterContext(network_bed.bed(Network(self.hosts * (Host("s", MBIT),), {}),
                                                         os.environ["TAP_RELAY"]))
        except network_bed.Unavailable as reason:
            self.skipTest(f"no namespaces: {reason}")

    def start_rank(self, rank, *options, steps=ENDLESS):
        """On the host with its number, with TLS as between machines."""
        endpoints = ",".join(f"{address}:21000" for address in self.bed.addresses)
        return self.start("--rank", rank, "--ranks", endpoints, "--secret-file", self.secret, *options, steps=steps,
                          begin=functools.partial(self.bed.start, rank))


class VanishedMachine(OverANetwork):
    hosts = 3

    def connections(self, host):
        """Number of open TCP connections of a host."""
        shown = network_bed.run("ip", "netns", "exec", self.bed.host(host), "cat", "/proc/net/tcp")
        return sum(line.split()[3] == "01" for line in shown.splitlines()[1:])

    def test_is_named_when_it_vanishes_before_all_are_connected(self):
        self.planned(devices=("a", "b", "c"))
        first, second = (self.start_rank(rank, "--deadline", "15s") for rank in (0, 1))
        self.assertTrue(holds(lambda: self.connections(0) == self.connections(1) == CONNECTIONS_OF_TWO))
        self.bed.cut(1)
        last = self.start_rank(2, "--deadline", "15s")
        # "is gone" when the third rank came before the first one noticed; otherwise the rank counts as missing.
        self.assertRegex(self.errors_of(first), r"^isobar: rank 0: .*rank 1 (is gone\)|\(.*\))\n$")
        self.assertRegex(self.errors_of(last), r"^isobar: rank 2: still waiting after .* \(twice --deadline\) for .*rank 1 \(")
        self.assertRegex(self.errors_of(second), r"^isobar: rank 1: still waiting after .* for .*rank 2 \(")


class NetworkFaults(OverANetwork):
    def setUp(self):
        super().setUp()
        for host in (0, 1):
            # A connection's bytes wait in its socket and not before the token bucket, where heartbeats would queue
            # behind them; elsewhere fair queues prevent that.
            self.bed.set_sysctl(host, "net.ipv4.tcp_limit_output_bytes", 65536)
        self.planned(model=MODEL)

    def training(self, *options, steps=ENDLESS):
        """Starts a rank on each host, and waits until some steps are done."""
        ranks = [self.start_rank(rank, *options, steps=steps) for rank in (0, 1)]
        self.wait_for_step(3, *ranks)
        return ranks

    def slow_down(self, factor):
        for host in (0, 1):
            self.bed.set_rate(host, MBIT / factor)

    def test_a_link_slowed_a_hundredfold_ends_both_ranks_at_the_deadline(self):
        ranks = self.training(*LIMITS)
        self.slow_down(100)
        errors = [self.errors_of(rank) for rank in ranks]
        # The rank that has waited longest reports it first, and the other one repeats its report.
        late = r"rank \d: receive from rank \d \(channel \d\): (no message|\d+ of \d+ B) after [\d.]+ s: deadline passed " \
            r"\(stage \d, receive (activation|gradient) of micro-batch \d, 512 KiB; --deadline 6 s\); all ranks are alive"
        for error in errors:
            self.assertRegex(error, rf"\Aisobar: (rank \d \([ab]\) failed: )?{late}\n\Z")
        self.assertTrue(any("failed:" not in error for error in errors), errors)

    def test_a_link_slowed_twofold_ends_no_rank(self):
        ranks = self.training(*LIMITS, steps=12)
        self.slow_down(2)
        for rank in ranks:
            self.assertEqual(self.errors_of(rank, code=0), "")

    def test_a_cut_link_leaves_each_rank_without_a_heartbeat_of_the_other(self):
        ranks = self.training(*LIMITS)
        self.bed.cut(1)
        self.assertEqual([self.errors_of(rank) for rank in ranks],
                         [f"isobar: rank {other}: no heartbeat for 4 s (--heartbeat)\n" for other in ("1 (b)", "0 (a)")])


if __name__ == "__main__":
    unittest.main()
