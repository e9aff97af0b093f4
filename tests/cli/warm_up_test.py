"""--warm-up auto on two sites with a delay between them: simulated periods, and the memory that they cost."""

import json
import pathlib

from tests.cli.support import CommandTest

# A device takes 0.1 s forward and 0.2 s back for a micro-batch, which keeps 1 GB until its backward pass.
LAYERS = """model: layers
micro_batch: 1
layers:
"""
LAYER = '  - {{name: layer{}, forward: "1 TFLOP", parameters: 1000, activations: "1 GB", output: "{} MB"}}\n'
COMPUTE_S = 0.3
WAN_RTT_S = 1
WAN_MB_PER_S = 125
MICROBATCHES = 64
AUTO = "--warm-up", "auto"


class TwoSites(CommandTest):
    def inputs(self, devices_per_site, output_mb, memory="64 GB"):
        """A platform, and a workload with a layer for each of its devices."""
        platform = self.folder / "sites.xml"
        self.run_isobar("platform", "generate", "sites", "--devices", devices_per_site, "--speed", "10 TFLOP/s",
                        "--memory", memory, "--wan-bandwidth", f"{WAN_MB_PER_S} MB/s", "--wan-rtt", f"{WAN_RTT_S} s",
                        "-o", platform)
        layers = [LAYER.format(number, output_mb) for number in range(2 * devices_per_site)]
        return platform, self.write("layers.yaml", LAYERS + "".join(layers))

    def simulated(self, inputs, microbatches, *options):
        """The warm-up of a plan, and what its simulation gives. The layers stand on the devices in their order."""
        file = pathlib.Path(self.make_plan(*inputs, "--microbatches", microbatches, *options))
        schedule = json.loads(file.read_text())["schedule"]
        result = self.json_of("simulate", *inputs, "--plan", file)
        return None if schedule == "1f1b" else schedule["warm_up"], result

    def period_s(self, inputs, *options):
        """Seconds for each further micro-batch."""
        shorter, longer = (self.simulated(inputs, count, *options)[1]["step_time_s"]
                           for count in (MICROBATCHES, 2 * MICROBATCHES))
        return (longer - shorter) / MICROBATCHES

    def assert_lowering_any_is_slower(self, inputs, warm_up, period_s):
        lowered = 0
        for i in range(len(warm_up) - 1):
            if warm_up[i] == warm_up[i + 1]:
                continue  # fewer than the next device has would deadlock
            fewer = [*warm_up[:i], warm_up[i] - 1, *warm_up[i + 1:]]
            numbers = ",".join(map(str, fewer))
            self.assertGreater(self.period_s(inputs, "--warm-up", numbers), 1.001 * period_s, numbers)
            lowered += 1
        self.assertGreater(lowered, 0)

    def test_the_period_is_that_of_the_slowest_device(self):
        inputs = self.inputs(2, 25)
        wan_s = 25 / WAN_MB_PER_S
        # A device waits for every second micro-batch until it has gone over the WAN and back.
        self.assertAlmostEqual(self.period_s(inputs), COMPUTE_S + (WAN_RTT_S + 2 * wan_s) / 2)
        self.assertAlmostEqual(self.period_s(inputs, *AUTO), COMPUTE_S)
        warm_up, result = self.simulated(inputs, MICROBATCHES, *AUTO)
        plain = self.simulated(inputs, MICROBATCHES)[1]
        self.assertLess(result["step_time_s"], 0.4 * plain["step_time_s"])
        # Over the WAN ceil((2 * 0.3 + 1 + 2 * 0.2) / 0.3) - 1; within a site ceil((2 * 0.3 + 0.04) / 0.3) - 1.
        self.assertEqual(warm_up, [2 + 6 + 2, 6 + 2, 2, 0])
        self.assert_lowering_any_is_slower(inputs, warm_up, COMPUTE_S)

    def test_the_period_is_that_of_the_slowest_lane(self):
        inputs = self.inputs(1, 50)
        wan_s = 50 / WAN_MB_PER_S
        self.assertAlmostEqual(self.period_s(inputs), COMPUTE_S + (WAN_RTT_S + 2 * wan_s) / 2)
        self.assertAlmostEqual(self.period_s(inputs, *AUTO), wan_s)
        warm_up, _ = self.simulated(inputs, MICROBATCHES, *AUTO)
        self.assertEqual(warm_up, [5, 0])
        self.assert_lowering_any_is_slower(inputs, warm_up, wan_s)

    def test_a_longer_warm_up_holds_more_micro_batches(self):
        inputs = self.inputs(2, 25)
        warm_up, result = self.simulated(inputs, MICROBATCHES, *AUTO)
        plain = self.simulated(inputs, MICROBATCHES)[1]
        peaks = [[stage["peak_memory_bytes"] for stage in one["stages"]] for one in (plain, result)]
        more = [(after - before) / 1e9 for before, after in zip(*peaks)]
        for stage, count in enumerate(more):
            self.assertAlmostEqual(count, warm_up[stage] - (3 - stage), places=1)

    def test_the_warm_up_is_as_long_as_the_memory_allows(self):
        inputs = self.inputs(1, 25, memory="4.5 GB")
        warm_up, _ = self.simulated(inputs, MICROBATCHES, *AUTO)
        self.assertEqual(warm_up, [3, 0])
        # Four micro-batches go there and back at a time.
        self.assertAlmostEqual(self.period_s(inputs, *AUTO), (2 * COMPUTE_S + WAN_RTT_S + 2 * 25 / WAN_MB_PER_S) / 4)
