"""--profile with measured times of layers of several device types."""
import json
import pathlib

from tests.cli.support import CommandTest

PLATFORM = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <zone id="world" routing="Full">
    <host id="a" speed="10Tf"><prop id="memory" value="16GiB"/><prop id="device" value="First 1"/></host>
    <host id="b" speed="10Tf"><prop id="memory" value="16GiB"/><prop id="device" value="Second 2"/></host>
    <link id="ab" bandwidth="10Gbps" latency="50us"/>
    <route src="a" dst="b"><link_ctn id="ab"/></route>
  </zone>
</platform>
"""
LAYERS = 8
WORKLOAD = "model: layers\nmicro_batch: 1\nlayers:\n" + "".join(
    f"  - {{name: l{i}, forward: 1 GFLOP, parameters: 1000000, activations: 1 MB, output: 100 kB}}\n"
    for i in range(LAYERS))
# The first type is quick with the first half of the layers, the second with the other one.
QUICK, SLOW = 0.010, 0.050


def times(is_quick_with_the_first):
    return [QUICK if (i < LAYERS // 2) == is_quick_with_the_first else SLOW for i in range(LAYERS)]


class ProfilesOfTypes(CommandTest):
    def inputs(self):
        return self.write("unlike.xml", PLATFORM), self.write("eight.yaml", WORKLOAD)

    def profile(self, name, device, forward, **others):
        layers = [{"name": f"l{i}", "forward_s": time, "backward_s": 2 * time, "update_s": 1e-4, "spread_fraction": 0.01,
                   "activations_bytes": 1e6} for i, time in enumerate(forward)]
        document = {"schema": "isobar-profile/1", "device": device, "speed_flops": LAYERS * 3e9 / (3 * sum(forward)),
                    "memory_bytes": 1.6e10, "dtype": "float32", "micro_batch": 1, "sequence": 1, "layers": layers}
        return self.write(name, json.dumps({**document, **others}))

    def profiles(self):
        return ("--profile", self.profile("first.json", "First 1", times(True)),
                "--profile", self.profile("second.json", "Second 2", times(False)))

    def plan_of(self, allocator, *options, microbatches=4):
        path = self.make_plan(*self.inputs(), *options, "--microbatches", microbatches, allocator=allocator)
        return path, json.loads(pathlib.Path(path).read_text())

    def test_each_device_gets_the_layers_that_its_type_is_quick_with(self):
        for allocator in ("exact", "chain-dp", "local-search", "hybrid"):
            with self.subTest(allocator):
                _, plan = self.plan_of(allocator, *self.profiles())
                self.assertEqual([(stage["devices"][0]["name"], stage["first_layer"], stage["last_layer"])
                                  for stage in plan["stages"]],
                                 [("a", 0, 3), ("b", 4, 7)])

    def test_a_step_takes_what_its_layers_were_measured_to_take(self):
        profiles = self.profiles()
        plan, document = self.plan_of("exact", *profiles, microbatches=1)
        self.run_isobar("verify", *self.inputs(), plan, *profiles)
        result = self.json_of("simulate", *self.inputs(), *profiles, "--plan", plan)
        updates = LAYERS // 2 * 1e-4
        transfers = 2 * (50e-6 + 100e3 / 1.25e9)
        self.assertAlmostEqual(result["step_time_s"], 3 * LAYERS * QUICK + updates + transfers, delta=1e-4)
        self.assertAlmostEqual(document["predicted"]["step_time_s"], result["step_time_s"], delta=1e-9)

    def test_every_allocator_predicts_what_is_simulated(self):
        for allocator in ("even", "exact", "local-search", "metis", "amp", "grid", "hybrid", "dtfm"):
            with self.subTest(allocator):
                plan, document = self.plan_of(allocator, *self.profiles())
                self.run_isobar("verify", *self.inputs(), plan, *self.profiles())
                result = self.json_of("simulate", *self.inputs(), *self.profiles(), "--plan", plan)
                self.assertAlmostEqual(result["step_time_s"] / document["predicted"]["step_time_s"], 1, delta=1e-6)

    def test_the_order_of_profiles_changes_no_plan(self):
        first, second = self.profiles()[1], self.profiles()[3]
        for allocator in ("exact", "metis", "grid", "hybrid"):
            with self.subTest(allocator):
                _, one = self.plan_of(allocator, "--profile", first, "--profile", second)
                _, other = self.plan_of(allocator, "--profile", second, "--profile", first)
                del one["wall"], other["wall"]
                self.assertEqual(one, other)

    def test_passes_without_time_leave_bounds_below_their_plans(self):
        profiles = ("--profile", self.profile("first.json", "First 1", times(True)),
                    "--profile", self.profile("second.json", "Second 2", [0] * (LAYERS - 1) + [1e-3]))
        for allocator in ("exact", "chain-dp", "grid", "hybrid"):
            with self.subTest(allocator):
                path, plan = self.plan_of(allocator, *profiles)
                self.assertLessEqual(plan["objective_bound_s"], plan["objective_s"] * (1 + 1e-9))
                self.run_isobar("verify", *self.inputs(), path, *profiles)

    def test_a_type_without_a_profile_takes_times_in_the_proportion_of_the_first(self):
        profile = self.profile("first.json", "First 1", times(True))
        plan, document = self.plan_of("exact", "--profile", profile)
        self.run_isobar("verify", *self.inputs(), plan, "--profile", profile)
        self.assertEqual(document["inputs"]["profile"]["name"], profile)

    def refusal(self, *profiles):
        options = [word for profile in profiles for word in ("--profile", profile)]
        return self.fault_of("plan", *self.inputs(), "--allocator", "even", "-o", self.folder / "p.json", *options)

    def test_profiles_that_do_not_go_together_are_refused(self):
        first = self.profile("first.json", "First 1", times(True))
        again = self.profile("again.json", "First 1", times(False))
        self.assertEqual(self.refusal(first, again), f'{again}: device: measured on "First 1", as {first} was; give one '
                                                     "profile of each device type")
        other = self.profile("other.json", "Third 3", times(False))
        self.assertEqual(self.refusal(first, other), f'{other}: device: measured on "Third 3"; the platform has devices '
                                                     '"First 1", "Second 2"; write one of them')
        self.assertEqual(self.refusal(other), self.refusal(first, other))
        in_us = self.profile("us.json", "Second 2", [1e-9] + times(False)[1:])
        self.assertRegex(self.refusal(first, in_us), r"us\.json: layers\[0\]\.forward_s: 1e-09 s is under a millionth of "
                                                     r"the 0\.0\d+ s that the profiles' speed_flops and the other profile "
                                                     r"give; check the units of both$")
        larger = self.profile("larger.json", "Second 2", times(False), micro_batch=2)
        self.assertIn("larger.json: micro_batch: measured with 2 samples of 1; the workload has 1 of 1",
                      self.refusal(first, larger))
