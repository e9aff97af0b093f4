import json
import pathlib
import re

from tests.cli.support import BERT24, SKY16, CommandTest
from tests.cli.trace import assert_is_trace, compute_s


class Simulate(CommandTest):
    def edit_plan(self, plan, **changes):
        content = json.loads(pathlib.Path(plan).read_text())
        content.update(changes)
        pathlib.Path(plan).write_text(json.dumps(content, indent=2))

    def test_equals_the_closed_form_of_a_small_pipeline(self):
        inputs = self.small_inputs()
        plan = self.make_plan(*inputs, "--objective", "sequential")
        result = self.json_of("simulate", *inputs, "--plan", plan)
        # Two layers on slow (6 s), one on fast (1.5 s), 0.1 GB there and back at 1 GB/s with 10 ms each, which occupy
        # no lane.
        self.assertAlmostEqual(result["step_time_s"], 6 + 1.5 + 2 * 0.11, places=6)
        self.assertEqual(result["activities"], 8)  # a forward, a backward and an update on each, two transfers
        self.assertEqual([stage["device"] for stage in result["stages"]], ["slow", "fast"])
        self.assertAlmostEqual(result["stages"][0]["send_s"], 0.1, places=6)
        self.assertEqual(result["links"][0]["name"], "wire")
        self.assertEqual(result["links"][0]["bytes"], 2e8)
        # 9 TFLOP by 1 and 2 TFLOP/s; the devices compute for 6 and 1.5 s. Listed layers have no tokens.
        self.assertAlmostEqual(result["mfu_fraction"], 9 / (3 * 7.72), places=6)
        self.assertAlmostEqual(result["bubble_fraction"], 1 - 7.5 / (2 * 7.72), places=6)
        self.assertIsNone(result["tokens_per_s"])
        text = self.run_isobar("simulate", *inputs, "--plan", plan).stdout
        self.assertEqual(text.splitlines()[1], "MFU 38.9 %, bubble 51.4 %, layers by rate")

    def test_counts_the_tokens_of_a_model_of_sequences(self):
        platform, workload = self.gpt_inputs()
        plan = self.make_plan(platform, workload)
        result = self.json_of("simulate", platform, workload, "--plan", plan)
        # 8 micro-batches of 4 samples of 32 tokens.
        self.assertAlmostEqual(result["tokens_per_s"] * result["step_time_s"], 8 * 4 * 32)
        row, = self.json_of("compare", platform, workload, "--allocators", "even")["rows"]
        for key in ("tokens_per_s", "mfu_fraction", "bubble_fraction"):
            self.assertAlmostEqual(row[key], result[key])

    def test_has_every_key_that_the_format_names(self):
        plan = self.make_plan(SKY16, BERT24)
        result = self.json_of("simulate", SKY16, BERT24, "--plan", plan)
        for key in ("step_time_s", "step_bound_s", "stages", "links", "activities", "network", "simgrid_version", "wall"):
            self.assertIn(key, result)
        self.assertEqual(set(result["stages"][0]), {"device", "compute_s", "send_s", "idle_s", "peak_memory_bytes"})
        self.assertEqual(set(result["links"][0]), {"name", "bytes", "busy_fraction"})
        self.assertEqual(result["network"]["network/model"], "CM02")
        self.assertGreaterEqual(result["step_time_s"], result["step_bound_s"])

    def test_peak_memory_is_what_the_plan_predicted(self):
        workload = "workloads/gpt2_124m.yaml"
        plan = self.make_plan("platforms/sky4.xml", workload)
        predicted = json.loads(pathlib.Path(plan).read_text())["predicted"]["peak_memory_bytes"]
        result = self.json_of("simulate", "platforms/sky4.xml", workload, "--plan", plan)
        for stage in result["stages"]:
            self.assertAlmostEqual(stage["peak_memory_bytes"] / predicted[stage["device"]], 1, places=9)

    def test_iterations_take_equal_times_on_a_steady_platform(self):
        inputs = self.small_inputs()
        plan = self.make_plan(*inputs)
        once = self.json_of("simulate", *inputs, "--plan", plan)
        thrice = self.json_of("simulate", *inputs, "--plan", plan, "--iterations", 3)
        self.assertEqual(len(thrice["step_times_s"]), 3)
        self.assertAlmostEqual(thrice["step_time_s"], once["step_time_s"], places=6)
        self.assertEqual(thrice["activities"], 3 * once["activities"])

    def test_the_trace_names_every_instruction_and_its_times_nest(self):
        inputs = self.small_inputs()
        plan = self.make_plan(*inputs)
        trace = self.folder / "trace.json"
        result = self.json_of("simulate", *inputs, "--plan", plan, "--iterations", 2, "--trace", trace)
        events = assert_is_trace(self, trace)
        self.assertEqual(len(events), 2 * (2 * (8 + 8 + 1) + 4 * 8))  # work, and each transfer on both sides
        busy = compute_s(events)
        for rank, stage in enumerate(result["stages"]):
            self.assertAlmostEqual(busy[rank] / 2, stage["compute_s"], places=6)

    def equal_devices(self):
        """64 equal devices, and a workload of eight equal layers."""
        platform = self.folder / "equal.xml"
        self.run_isobar("platform", "generate", "machine", "results/fidelity/measured/machines/selene.yaml", "--set", "nodes=8",
                        "-o", platform)
        layers = "".join(f"  - {{name: l{i}, forward: 10 GFLOP, parameters: 1000000, activations: 1 MB, output: 100 kB}}\n"
                         for i in range(8))
        return platform, self.write("eight.yaml", f"model: layers\nlayers:\n{layers}")

    def test_some_of_many_equal_devices_act_for_all_in_a_long_step(self):
        inputs = self.equal_devices()
        plan = self.make_plan(*inputs, "--pipeline", 8, "--replicas", 8, "--microbatches", 6400, allocator="grid")
        folded = self.json_of("simulate", *inputs, "--plan", plan)
        whole = self.json_of("simulate", *inputs, "--plan", plan, "--unfolded")
        self.assertLess(folded["acting_devices"], 64)
        self.assertNotIn("acting_devices", whole)
        self.assertLess(folded["activities"], whole["activities"] / 3)
        self.assertAlmostEqual(folded["step_time_s"] / whole["step_time_s"], 1, delta=1e-6)
        self.assertEqual([stage["device"] for stage in folded["stages"]], [stage["device"] for stage in whole["stages"]])
        for own, other in zip(folded["stages"], whole["stages"]):
            for key in ("compute_s", "send_s", "peak_memory_bytes"):
                self.assertAlmostEqual(own[key] / other[key], 1, delta=1e-6, msg=(own["device"], key))
        sent = {link["name"]: link["bytes"] for link in whole["links"]}
        for link in folded["links"]:
            self.assertAlmostEqual(link["bytes"] / sent[link["name"]], 1, delta=1e-6, msg=link["name"])
        self.assertIn(f'{folded["acting_devices"]} of 64 devices act for all equal ones; --unfolded plays every one',
                      self.run_isobar("simulate", *inputs, "--plan", plan).stdout)

    def test_one_replica_acts_for_all_that_divide_experts_in_a_long_step(self):
        platform = self.folder / "nodes.xml"
        self.run_isobar("platform", "generate", "machine", "examples/dgx_h100.yaml", "--set", "nodes=8", "-o", platform)
        workload = self.write("experts.yaml", "model: decoder\nlayers: 8\nhidden: 1024\nheads: 8\nvocabulary: 32000\n"
                              "mlp_layer_types: [experts]\nexperts: 32\ntop_k: 2\nexpert_intermediate: 512\n"
                              "sequence: 4096\ndtype: bf16\nunit: operator\n")
        plan = self.make_plan(platform, workload, "--pipeline", 2, "--experts", 32, "--microbatches", 65536, allocator="grid")
        folded = self.json_of("simulate", platform, workload, "--plan", plan)
        self.assertEqual(folded["acting_devices"], 2)
        left_out = "transfers, sums and what replicas exchange for their passes do not slow down each other"
        self.assertEqual(folded["folding"], left_out)
        self.assertAlmostEqual(folded["step_time_s"] / json.loads(pathlib.Path(plan).read_text())["predicted"]["step_time_s"], 1, delta=1e-6)
        self.assertIn(f"2 of 64 devices act for all equal ones ({left_out}); --unfolded plays every one",
                      self.run_isobar("simulate", platform, workload, "--plan", plan).stdout)
        self.assertIn("every claim holds", self.run_isobar("verify", platform, workload, plan).stdout)

    def test_a_plan_for_another_cluster_is_refused_with_what_differs(self):
        plan = self.make_plan(SKY16, BERT24)
        faults = self.fault_of("simulate", "platforms/sky4.xml", BERT24, "--plan", plan).splitlines()
        self.assertRegex(faults[0], re.escape(f"{plan}: inputs.platform: made for {SKY16} (hash ") +
                         r"\w{16}\); this is platforms/sky4\.xml \(hash \w{16}\)")
        self.assertEqual(faults[1], f"{plan}: stages[3]: device node-4 is not on platform sky4")

    def test_a_plan_that_holds_on_other_inputs_is_simulated_with_a_warning(self):
        platform, workload = self.small_inputs()
        plan = self.make_plan(platform, workload)
        other = self.write("other.xml", pathlib.Path(platform).read_text() + "<!-- another -->\n")
        result = self.run_isobar("simulate", other, workload, "--plan", plan)
        self.assertRegex(result.stderr, "^isobar: " + re.escape(f"{plan}: inputs.platform: made for {platform} (hash ") +
                         r"\w{16}\); this is " + re.escape(other) + r" \(hash \w{16}\)\n$")
        self.assertEqual(self.run_isobar("simulate", platform, workload, "--plan", plan).stderr, "")

    def test_a_plan_for_another_workload_is_refused_with_what_differs(self):
        plan = self.make_plan(SKY16, BERT24)
        faults = self.fault_of("simulate", SKY16, "workloads/bert80.yaml", "--plan", plan).splitlines()
        self.assertIn("inputs.workload: made for workloads/bert24.yaml", faults[0])
        self.assertEqual(faults[1], f"{plan}: layer 75 of 243 is not placed; the stages must hold every layer in order")

    def test_a_claim_that_does_not_hold_is_refused(self):
        inputs = self.small_inputs()
        plan = self.make_plan(*inputs)
        self.edit_plan(plan, step_bound_s=1.0)
        self.assertRegex(self.fault_of("simulate", *inputs, "--plan", plan),
                         re.escape(f"{plan}: step_bound_s: claims 1; it is ") + r"[\d.]+ on this platform and workload")

    def test_a_bound_without_proof_is_refused(self):
        inputs = self.small_inputs()
        plan = self.make_plan(*inputs, "--objective", "pipeline")
        objective = json.loads(pathlib.Path(plan).read_text())["objective_s"]
        self.edit_plan(plan, objective_bound_s=objective, gap_fraction=0, outcome="optimal")
        self.assertRegex(self.fault_of("simulate", *inputs, "--plan", plan),
                         r": objective_bound_s: claims [\d.]+; it is [\d.]+ by the certificate fractional$")
        self.edit_plan(plan, certificate={"kind": "trust me"})
        self.assertIn('certificate.kind: "trust me" is not one of none, fractional, path, search, phase-flow',
                      self.fault_of("simulate", *inputs, "--plan", plan))

    def test_recomputed_layers_are_simulated_with_their_times_and_memory(self):
        inputs = self.small_inputs()
        plan = self.make_plan(*inputs, "--recompute", "1-2")
        trace = self.folder / "trace.json"
        result = self.json_of("simulate", *inputs, "--plan", plan, "--trace", trace)
        backward = {event["pid"]: event["args"]["alone_s"] for event in json.loads(trace.read_text())["traceEvents"]
                    if event["name"].startswith("Backward")}
        self.assertEqual(sorted(backward.values()), [1.5, 5])
        predicted = json.loads(pathlib.Path(plan).read_text())["predicted"]["peak_memory_bytes"]
        for stage in result["stages"]:
            self.assertAlmostEqual(stage["peak_memory_bytes"] / predicted[stage["device"]], 1, places=9)
        self.assertIn("every claim holds", self.run_isobar("verify", *inputs, plan).stdout)

    def test_a_recomputation_of_an_unknown_layer_is_refused(self):
        inputs = self.small_inputs()
        plan = self.make_plan(*inputs)
        self.edit_plan(plan, recompute=[1, 7])
        self.assertEqual(self.fault_of("simulate", *inputs, "--plan", plan),
                         f"{plan}: recompute: layer 7; workload small has layers 0 to 2")

    def stamped_plan(self):
        """Inputs, and a plan of them that was simulated with --stamp."""
        inputs = self.small_inputs()
        plan = self.make_plan(*inputs)
        return inputs, plan, self.json_of("simulate", *inputs, "--plan", plan, "--stamp")

    def test_a_stamp_records_the_simulation_and_leaves_the_rest_of_the_plan(self):
        before = json.loads(pathlib.Path(self.make_plan(*self.small_inputs())).read_text())
        _, plan, result = self.stamped_plan()
        content = json.loads(pathlib.Path(plan).read_text())
        stamp = content.pop("stamp")
        self.assertEqual(content | {"wall": None}, before | {"wall": None})
        self.assertEqual(stamp["step_time_s"], result["step_time_s"])
        self.assertEqual(stamp["peak_memory_bytes"], before["predicted"]["peak_memory_bytes"])
        self.assertEqual(stamp["platform"], before["inputs"]["platform"]["hash"])
        self.assertEqual(stamp["workload"], before["inputs"]["workload"]["hash"])
        self.assertRegex(stamp["plan"], r"^[0-9a-f]{16}$")
        versions = f"isobar {stamp['version']} (SimGrid {stamp['simgrid_version']})"
        self.assertEqual(self.run_isobar("--version").stdout.strip(), versions)

    def test_stamping_twice_gives_the_same_bytes(self):
        inputs, plan, _ = self.stamped_plan()
        first = pathlib.Path(plan).read_bytes()
        self.run_isobar("simulate", *inputs, "--plan", plan, "--stamp")
        self.assertEqual(pathlib.Path(plan).read_bytes(), first)

    def test_nothing_is_stamped_without_the_option(self):
        inputs, plan, _ = self.stamped_plan()
        stamped = pathlib.Path(plan).read_bytes()
        self.run_isobar("simulate", *inputs, "--plan", plan, "--iterations", 2)
        self.assertEqual(pathlib.Path(plan).read_bytes(), stamped)
        self.assertNotIn("stamp", json.loads(pathlib.Path(self.make_plan(*inputs)).read_text()))

    def test_an_infeasible_plan_exits_with_4(self):
        inputs = self.small_inputs(memory="1 GB")
        plan = self.make_plan(*inputs, expect=4)
        result = self.run_isobar("simulate", *inputs, "--plan", plan, expect=4)
        self.assertIn("there is no placement to simulate (infeasible): ", result.stdout)

    def test_the_bound_of_a_step_stands_beside_the_first_one(self):
        inputs = self.small_inputs()
        plan = self.make_plan(*inputs, "--schedule", "1f1b", "--microbatches", 4)
        text = self.run_isobar("simulate", *inputs, "--plan", plan, "--iterations", 3).stdout.splitlines()[0]
        found = re.fullmatch(r"step (\S+) s, the mean of 3; the first takes (\S+) s; no order of its passes below (\S+) s", text)
        steps = self.json_of("simulate", *inputs, "--plan", plan, "--iterations", 3)["step_times_s"]
        self.assertAlmostEqual(float(found[1]), sum(steps) / 3, delta=1e-5 * steps[0])
        self.assertAlmostEqual(float(found[2]), steps[0], delta=1e-5 * steps[0])
        self.assertLessEqual(float(found[3]), steps[0] * (1 + 1e-5))

    def test_refuses_no_iterations(self):
        inputs = self.small_inputs()
        plan = self.make_plan(*inputs)
        self.assertEqual(self.fault_of("simulate", *inputs, "--plan", plan, "--iterations", 0),
                         "--iterations: 0 is not in 1 to 1000000")
        self.assertEqual(self.fault_of("simulate", *inputs, "--plan", plan, "--iterations", -1),
                         '--iterations: "-1" is not a whole number from 0 to 2^53')

    def test_refuses_to_overwrite_its_input_or_to_write_one_file_twice(self):
        inputs = self.small_inputs()
        plan = self.make_plan(*inputs)
        before = pathlib.Path(plan).read_text()
        self.assertEqual(self.fault_of("simulate", *inputs, "--plan", plan, "-o", plan),
                         f"{plan}: is an input; name another file to write")
        self.assertEqual(self.fault_of("simulate", *inputs, "--plan", plan, "-o", self.folder / "a", "--trace",
                                       self.folder / "." / "a"),
                         f"{self.folder}/a: is written twice; name two files")
        self.assertEqual(pathlib.Path(plan).read_text(), before)
