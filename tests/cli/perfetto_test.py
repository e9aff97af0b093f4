"""Traces in Perfetto's own reader, where it is installed."""

import shutil
import subprocess
import unittest

from tests.cli.support import BERT24, HANG_S, SKY16, CommandTest
from tests.cli.trace import read_trace

QUERY = """select count(*) from slice;
select count(*) from flow;
select count(distinct track_id) from counter;
select count(*) from stats where severity = 'error' and value > 0;
"""


@unittest.skipUnless(shutil.which("trace_processor_shell"), "there is no trace_processor_shell on the PATH")
class Perfetto(CommandTest):
    def test_reads_every_event_without_an_error(self):
        plan = self.make_plan(SKY16, BERT24)
        trace = self.folder / "trace.json"
        self.run_isobar("simulate", SKY16, BERT24, "--plan", plan, "--trace", trace)
        answer = subprocess.run(["trace_processor_shell", "-q", self.write("query.sql", QUERY), str(trace)],
                                capture_output=True, text=True, timeout=HANG_S, check=True).stdout
        counts = [int(line) for line in answer.split() if line.isdigit()]
        events = read_trace(trace)["traceEvents"]
        counters = {(event["pid"], event["name"]) for event in events if event["ph"] == "C"}
        self.assertEqual(counts, [sum(event["ph"] == "X" for event in events),
                                  sum(event["ph"] == "s" for event in events), len(counters), 0])


if __name__ == "__main__":
    unittest.main()
