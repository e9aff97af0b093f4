"""vTrain's derived rows of two GPUs are compositions of the times of blocks, which a simulated pipeline gives, too."""

import csv
from fractions import Fraction

from tests.cli.support import ROOT, CommandTest

TABLE = ROOT / "results/fidelity/measured/vtrain_2gpu.csv"
FLOPS = 1e15  # of each device in a second
PLATFORM = f"""<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1"><zone id="all" routing="Full">
<host id="a" speed="{FLOPS:.0f}f"><prop id="memory" value="100000 TiB"/></host>
<host id="b" speed="{FLOPS:.0f}f"><prop id="memory" value="100000 TiB"/></host>
<link id="l" bandwidth="1e15Bps" latency="0s"/><route src="a" dst="b"><link_ctn id="l"/></route>
</zone></platform>
"""


def solved(matrix, right):
    """The solution of linear equations, exact."""
    rows = [[*map(Fraction, row), Fraction(value)] for row, value in zip(matrix, right)]
    for i in range(len(rows)):
        pivot = next(k for k in range(i, len(rows)) if rows[k][i])
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [value / rows[i][i] for value in rows[i]]
        for k in range(len(rows)):
            if k != i:
                rows[k] = [value - rows[k][i] * own for value, own in zip(rows[k], rows[i])]
    return [float(row[-1]) for row in rows]


class Composition(CommandTest):
    def pipelines(self):
        """Layers, micro-batches and time of the rows with two stages, by hidden width and samples of a micro-batch."""
        found = {}
        with TABLE.open(newline="") as file:
            for row in csv.DictReader(file):
                if (row["pp"], row["tp"], row["dp"]) != ("2", "1", "1"):
                    continue
                sizes = dict(pair.split("=") for pair in row["overrides"].split(";"))
                key = sizes["hidden"], int(row["micro_batch"])
                count = int(row["global_batch"]) // key[1]
                found.setdefault(key, []).append((int(sizes["layers"]), count, float(row["measured_s"])))
        return found

    def simulated(self, layers, count, block, last, more, update):
        """A pipeline of two stages: the last layer takes `last`, the first one `more` than it, a block has the update `update`."""
        def layer(name, time, update_time):
            return (f"- {{name: {name}, forward: {time / 3 * FLOPS} FLOP, backward: {time * 2 / 3 * FLOPS} FLOP, "
                    f"parameters: {round(update_time * FLOPS / 2)}, activations: 0 B, output: 0 B}}\n")
        text = "model: layers\noptimizer: sgd\nlayers:\n" + layer("first", last + more, 0)
        text += "".join(layer(f"block{i}", block, update) for i in range(layers)) + layer("last", last, 0)
        workload = self.write("composed.yaml", text)
        plan = self.folder / "plan.json"
        self.run_isobar("plan", self.platform, workload, "--allocator", "even", "--microbatches", str(count), "-o", plan)
        return self.json_of("simulate", self.platform, workload, "--plan", plan)["step_time_s"]

    def test_pipelines_of_two_stages_are_sums_of_blocks(self):
        self.platform = self.write("free.xml", PLATFORM)
        checked = 0
        for (_, samples), rows in sorted(self.pipelines().items()):
            # t = (M + 1)(a l / 2 + b) + c + d l / 2, from four rows of two depths and two numbers of micro-batches.
            depths = sorted({layers for layers, _, _ in rows})
            counts = sorted({count for _, count, _ in rows})
            if len(depths) < 3 or len(counts) < 2:
                continue
            times = {(layers, count): time for layers, count, time in rows}
            known = [(layers, count) for layers in depths[:2] for count in counts[:2]]
            if not all(key in times for key in known):
                continue
            unknown = solved([[(count + 1) * layers / 2, count + 1, 1, layers / 2] for layers, count in known],
                             [times[key] for key in known])
            for key in sorted(set(times) - set(known))[-2:]:
                with self.subTest(samples=samples, layers=key[0], microbatches=key[1]):
                    self.assertAlmostEqual(self.simulated(*key, *unknown) / times[key], 1, delta=1e-6)
                    checked += 1
        self.assertGreaterEqual(checked, 8)
