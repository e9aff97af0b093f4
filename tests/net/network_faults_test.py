"""isobar run, with ranks on hosts of their own, when the link between them becomes slow or is cut."""

import functools
import os
import unittest

from tests.cli.breakable_runs import ENDLESS, BreakableRuns
from tests.cli.support import holds
from tools import network_bed
from tools.network_bed import Host, Network

MBIT = 100
# A stage passes on 512 KiB for each micro-batch: 42 ms at that rate, and 4.2 s at a hundredth of it.
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
CONNECTIONS_OF_TWO = 7  # of three ranks: transfers, signs of life, what is said beside them, and one neighbour's sums
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
        """On the host of its number, encrypted as it is between machines."""
        places = ",".join(f"{address}:21000" for address in self.bed.addresses)
        return self.start("--rank", rank, "--ranks", places, "--secret-file", self.secret, *options, steps=steps,
                          begin=functools.partial(self.bed.start, rank))


class AMachineThatVanishes(OverANetwork):
    hosts = 3

    def connections(self, host):
        """Of TCP, that are open."""
        shown = network_bed.run("ip", "netns", "exec", self.bed.host(host), "cat", "/proc/net/tcp")
        return sum(line.split()[3] == "01" for line in shown.splitlines()[1:])

    def test_before_all_have_met_is_named(self):
        self.planned(devices=("a", "b", "c"))
        first, second = (self.start_rank(rank, "--deadline", "15s") for rank in (0, 1))
        self.assertTrue(holds(lambda: self.connections(0) == self.connections(1) == CONNECTIONS_OF_TWO))
        self.bed.cut(1)
        last = self.start_rank(2, "--deadline", "15s")
        # Gone after all have met, where the third one came before the first missed it; else it has to call again.
        self.assertRegex(self.errors_of(first), r"^isobar: rank 0: .*rank 1 (is gone\)|\(.*\))\n$")
        self.assertRegex(self.errors_of(last), r"^isobar: rank 2: still waiting after .* \(twice --deadline\) for .*rank 1 \(")
        self.assertRegex(self.errors_of(second), r"^isobar: rank 1: still waiting after .* for .*rank 2 \(")


class NetworkFaults(OverANetwork):
    def setUp(self):
        super().setUp()
        for host in (0, 1):
            # A connection's bytes wait in its socket and not before the token bucket, where signs of life would wait
            # behind them; elsewhere queues that are fair see to that.
            self.bed.set_sysctl(host, "net.ipv4.tcp_limit_output_bytes", 65536)
        self.planned(model=MODEL)

    def training(self, *options, steps=ENDLESS):
        """A rank on each host; some steps are done."""
        ranks = [self.start_rank(rank, *options, steps=steps) for rank in (0, 1)]
        self.wait_for_step(3, *ranks)
        return ranks

    def slow_down(self, factor):
        for host in (0, 1):
            self.bed.set_rate(host, MBIT / factor)

    def test_a_link_slowed_a_hundredfold_ends_both_ranks_by_the_deadline(self):
        ranks = self.training(*LIMITS)
        self.slow_down(100)
        errors = [self.errors_of(rank) for rank in ranks]
        # Who has waited longest says so first, and the other one passes it on.
        late = r"rank \d: receive from rank \d \(channel \d\): (no message|\d+ of \d+ B) after [\d.]+ s: deadline passed " \
            r"\(stage \d, receive (activation|gradient) of micro-batch \d, 512 KiB; --deadline 6 s\); all ranks are alive"
        for error in errors:
            self.assertRegex(error, rf"\Aisobar: (rank \d \([ab]\) failed: )?{late}\n\Z")
        self.assertTrue(any("failed:" not in error for error in errors), errors)

    def test_a_link_slowed_a_little_ends_nothing(self):
        ranks = self.training(*LIMITS, steps=12)
        self.slow_down(2)
        for rank in ranks:
            self.assertEqual(self.errors_of(rank, code=0), "")

    def test_a_link_that_is_cut_leaves_each_rank_without_a_sign_of_the_other(self):
        ranks = self.training(*LIMITS)
        self.bed.cut(1)
        self.assertEqual([self.errors_of(rank) for rank in ranks],
                         [f"isobar: rank {other}: no sign of life for 4 s (--heartbeat)\n" for other in ("1 (b)", "0 (a)")])


if __name__ == "__main__":
    unittest.main()
