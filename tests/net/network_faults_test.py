"""isobar run, with ranks on hosts of their own, when the link between them becomes slow or is cut."""

import functools
import os
import unittest

from tests.cli.breakable_runs import ENDLESS, BreakableRuns
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
LIMITS = ("--deadline", "6s", "--heartbeat", "4s")


class NetworkFaults(BreakableRuns):
    def setUp(self):
        super().setUp()
        try:
            self.bed = self.enterContext(network_bed.bed(Network((Host("s", MBIT), Host("s", MBIT)), {}),
                                                         os.environ["TAP_RELAY"]))
        except network_bed.Unavailable as reason:
            self.skipTest(f"no namespaces: {reason}")
        for host in (0, 1):
            # A connection's bytes wait in its socket and not before the token bucket, where signs of life would wait
            # behind them; elsewhere queues that are fair see to that.
            self.bed.set_sysctl(host, "net.ipv4.tcp_limit_output_bytes", 65536)
        self.planned(model=MODEL)

    def training(self, *options, steps=ENDLESS):
        """A rank on each host, encrypted as it is between machines; some steps are done."""
        places = ",".join(f"{address}:21000" for address in self.bed.addresses)
        ranks = [self.start("--rank", rank, "--ranks", places, "--secret-file", self.secret, *options, steps=steps,
                            begin=functools.partial(self.bed.start, rank)) for rank in (0, 1)]
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
        late = r"rank \d: receive from rank \d \(channel \d\): (no message|\d+ of \d+ B) after 6 s: deadline passed " \
            r"\(stage \d, receive (activation|gradient) of micro-batch \d, 512 KiB\); all ranks are alive"
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
                         [f"isobar: rank {other}: no sign of life for 4 s\n" for other in ("1 (b)", "0 (a)")])


if __name__ == "__main__":
    unittest.main()
