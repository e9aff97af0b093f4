import json
import pathlib
import re

from tests.cli.support import BERT24, GPT, PLATFORM, SKY16, CommandTest

# Finds a proven optimum at once.
TWO_SITES = "platforms/two_sites.xml", "workloads/bert24.yaml"

# 3 x 1 TFLOP forward and twice that back: 9 TFLOP; with "fast" alone 4.5 s.


class Plan(CommandTest):
    def test_has_every_key_that_the_format_names(self):
        plan = self.json_of("plan", SKY16, BERT24, "--allocator", "even")
        for key in ("allocator", "objective", "communication", "outcome", "schedule", "microbatches", "stages",
                    "predicted", "objective_s", "objective_bound_s", "gap_fraction", "step_bound_s", "certificate",
                    "inputs", "wall"):
            self.assertIn(key, plan)
        self.assertEqual([stage["last_layer"] - stage["first_layer"] + 1 for stage in plan["stages"]], [5] * 15)
        device, = plan["stages"][1]["devices"]
        self.assertEqual((device["name"], device["share"]), ("node-2", 1.0))
        self.assertGreater(device["slowdown"], 1)
        self.assertGreater(device["memory_bytes"], 1e9)
        self.assertEqual((plan["objective"], plan["schedule"], plan["microbatches"]), ("step", "1f1b", 8))
        self.assertEqual(set(plan["predicted"]), {"step_time_s", "step_time_by", "bottleneck_s",
                                                  "sequential_s", "pipeline_s", "peak_memory_bytes"})
        self.assertEqual(plan["predicted"]["step_time_by"], "played")
        self.assertLessEqual(plan["objective_s"], plan["predicted"]["step_time_s"])

    def test_a_grid_has_the_shape_that_is_asked_for(self):
        inputs = "platforms/nodes8.xml", "workloads/gpt2_124m.yaml"
        shaped = self.json_of("plan", *inputs, "--allocator", "grid", "--pipeline", 2, "--replicas", 4)
        self.assertEqual(shaped["schema"], "isobar-plan/2")
        for stage in shaped["stages"]:
            self.assertEqual([replica["microbatches"] for replica in stage["replicas"]], [2, 2, 2, 2])
            self.assertEqual([replica["shards"][0]["site"] for replica in stage["replicas"]], ["site-0"] * 4)
        best = self.json_of("plan", *inputs, "--allocator", "grid")
        self.assertLessEqual(best["objective_s"], shaped["objective_s"])
        table = self.run_isobar("plan", *inputs, "--allocator", "grid", "--replicas", 8).stdout.split("\n\n")[1]
        self.assertRegex(table, r"stage +device +micro-batches +layers")
        self.assertEqual(len(table.splitlines()), 2 + 8)

    def test_a_grid_divides_layers_among_devices(self):
        workload = self.write("operators.yaml", pathlib.Path("workloads/gpt2_124m.yaml").read_text() + "unit: operator\n")
        inputs = "platforms/nodes8.xml", workload
        file, result = str(self.folder / "plan.json"), str(self.folder / "result.json")
        printed = self.run_isobar("plan", *inputs, "--allocator", "grid", "--pipeline", 2, "--tensor", 2,
                                  "-o", file).stdout
        self.assertRegex(printed.split("\n\n")[1], r"stage +device +micro-batches +share +layers")
        plan = json.loads(pathlib.Path(file).read_text())
        self.assertEqual([(stage["first_layer"], stage["last_layer"]) for stage in plan["stages"]], [(0, 12), (13, 25)])
        shards = [shard for stage in plan["stages"] for replica in stage["replicas"] for shard in replica["shards"]]
        self.assertEqual([shard["share"] for shard in shards], [0.5] * 8)
        self.assertIn("every claim holds", self.run_isobar("verify", *inputs, file).stdout)
        simulated = self.run_isobar("simulate", *inputs, "--plan", file, "-o", result).stdout
        self.assertEqual(len(simulated.split("\n\n")[1].splitlines()), 2 + 8)  # one row for each device
        step = json.loads(pathlib.Path(result).read_text())["step_time_s"]
        self.assertLess(abs(step / plan["predicted"]["step_time_s"] - 1), 0.05)
        run, = self.json_of("report", result)["runs"]
        self.assertEqual(len(run["stages"]), 8)  # a shard each, not a layer
        self.assertIn("2F0", self.run_isobar("schedule", "show", file).stdout)

    def test_shards_in_a_grid_are_planned_verified_simulated_and_reported_but_not_run(self):
        text = pathlib.Path("workloads/gpt2_124m.yaml").read_text()
        workload = self.write("operators.yaml", re.sub(r"micro_batch: \d+", "micro_batch: 4", text) + "unit: operator\n")
        platform = "platforms/nodes8.xml"
        for form, sides in (("sequence", None), ("2d", [2, 2]), ("2.5d", [2, 2, 2]), ("3d", [2, 2, 2])):
            plan = self.make_plan(platform, workload, "--splits", form, "--pipeline", 1, allocator="grid")
            content = json.loads(pathlib.Path(plan).read_text())
            stage, = content["stages"]
            self.assertEqual((stage["splits"], stage.get("grid")), ({"*": form}, sides))
            self.run_isobar("verify", platform, workload, plan)
            result = self.folder / "result.json"
            self.run_isobar("simulate", platform, workload, "--plan", plan, "--stamp", "-o", result)
            # Gathers of inputs and parameters share the links of a node, which the prediction does not know.
            simulated = json.loads(result.read_text())["step_time_s"]
            self.assertGreaterEqual(simulated * (1 + 1e-6), content["step_bound_s"])
            self.json_of("report", result)
            if form == "sequence": continue
            self.assertEqual(self.fault_of("run", workload, "--plan", plan, "--spawn", "--steps", 1),
                             f"{plan}: stages[0].splits: {form}; isobar run executes 1d and sequence, and simulate "
                             "plays all")
        self.assertIn("the shards of a replica lie in a 3d grid [2, 2, 2]",
                      self.run_isobar("plan", platform, workload, "--allocator", "grid", "--splits", "3d").stdout)
        self.assertEqual(self.fault_of("plan", platform, workload, "--allocator", "grid", "--splits", "4d"),
                         '--splits: "4d" is none of 1d, sequence, 2d, 2.5d, 3d; did you mean 1d?')
        self.assertEqual(self.fault_of("plan", platform, workload, "--allocator", "even", "--splits", "2d"),
                         "--splits: works only with allocator amp or grid, not with even")

    def test_refuses_shapes_that_no_grid_has(self):
        inputs = "platforms/nodes8.xml", "workloads/gpt2_124m.yaml"
        self.assertEqual(self.fault_of("plan", *inputs, "--allocator", "chain-dp", "--replicas", 2),
                         "--replicas: works only with allocator amp or dtfm or dtfm-exact or grid or metis, not with chain-dp")
        self.assertEqual(self.fault_of("plan", *inputs, "--allocator", "grid", "--pipeline", 0),
                         "--pipeline: 0 is not a number of devices; write 1 or more")
        answer = self.run_isobar("plan", *inputs, "--allocator", "grid", "--replicas", 3, expect=4).stdout
        self.assertIn("there is no grid with 3 replicas on 8 devices: 3 replicas do not divide 8 micro-batches", answer)
        answer = self.run_isobar("plan", *inputs, "--allocator", "grid", "--tensor", 2, expect=4).stdout
        self.assertIn("there is no grid of 2 shards on 8 devices: layer block0 cannot be divided; a gpt or llama needs "
                      "unit: operator", answer)

    def test_limits_the_degrees_of_hybrid(self):
        inputs = "platforms/nodes8.xml", "workloads/gpt2_124m.yaml"
        plan = self.json_of("plan", *inputs, "--allocator", "hybrid", "--microbatches", 16)
        self.assertGreater(len(plan["stages"][0]["replicas"]), 2)
        plan = self.json_of("plan", *inputs, "--allocator", "hybrid", "--microbatches", 16, "--max-replicas", 2)
        self.assertTrue(all(len(stage.get("replicas", [0])) <= 2 for stage in plan["stages"]))
        self.assertEqual(self.fault_of("plan", *inputs, "--allocator", "grid", "--max-replicas", 2),
                         "--max-replicas: works only with allocator hybrid, not with grid")
        self.assertEqual(self.fault_of("plan", *inputs, "--allocator", "hybrid", "--max-tensor-parallel", 0),
                         "--max-tensor-parallel: 0 is not a number of devices; write 1 or more")

    def test_names_the_data_server_where_there_is_one(self):
        self.assertEqual(self.json_of("plan", SKY16, BERT24, "--allocator", "even")["data_server"], "node-0")
        self.assertNotIn("data_server", self.json_of("plan", *self.small_inputs(), "--allocator", "even"))

    def test_a_model_larger_than_its_device_says_where_its_layers_live_and_what_each_memory_needs(self):
        plan = self.folder / "plan.json"
        text = self.run_isobar("plan", "platforms/two_t4_nvme.xml", "workloads/stronghold.yaml", "--set", "layers=100",
                               "--allocator", "window", "-o", plan).stdout
        plan = json.loads(plan.read_text())
        lines = [re.split(r"  +", line) for line in text.splitlines()]
        devices = lines[lines.index(["stage", "device", "layers", "count", "needs", "has"]) + 2:]
        for number, stage in enumerate(plan["stages"]):
            count = stage["last_layer"] - stage["first_layer"] + 1
            self.assertEqual(devices[number][:4], [str(number), "gpu0", f"{stage['first_layer']}–{stage['last_layer']}", str(count)])
        lives = lines[lines.index(["stage", "in the machine", "stay", "places", "updates"]) + 2:]
        for number, stage in enumerate(plan["stages"]):
            residence = stage.get("residence", {})
            away = [key + " (disk)" * (residence[key] == "disk") for key in ("parameters", "gradients", "optimizer", "activations")
                    if residence.get(key, "device") != "device"]
            stays = residence.get("parameters", "device") == "device"
            self.assertEqual(lives[number], [str(number), ", ".join(away) or "–", str(stage["last_layer"] - stage["first_layer"] + 1 if stays else 0),
                                             "–" if stays else f"{residence['parameter_slots']} + {residence['gradient_slots']}",
                                             residence.get("overlap", "–")])
        self.assertIn("optimizer (disk)", text)
        memories = lines[lines.index(["machine", "memory", "needs", "has"]) + 2:]
        needs = plan["predicted"]["peak_memory_bytes"]
        self.assertEqual([row[:2] + row[3:] for row in memories], [["cpu", "host", "64.0 GiB"], ["cpu/nvme0", "disk", "931 GiB"]])
        for name, _, need, _ in memories:
            self.assertAlmostEqual(float(need.split()[0]), needs[name] / 2**30, 1)

    def test_recomputed_layers_take_their_forward_again_and_keep_what_they_read(self):
        plan = self.json_of("plan", *self.small_inputs(), "--allocator", "even", "--objective", "sequential",
                            "--recompute", "1-2")
        self.assertEqual(plan["recompute"], [1, 2])
        # slow: a and b forward (2 s), b and a back (3 + 2 s); fast: c forward (0.5 s) and back (1.5 s); two transfers.
        self.assertAlmostEqual(plan["objective_s"], 7 + 2 + 2 * 0.11)
        # 8 B per parameter, what a keeps, what b reads, the buffers over the cut, and the rest of b while it recomputes.
        self.assertAlmostEqual(plan["predicted"]["peak_memory_bytes"]["slow"], 16e3 + 1e9 + 0.1e9 + 0.2e9 + 0.9e9)
        self.assertNotIn("recompute", self.json_of("plan", *self.small_inputs(), "--allocator", "even",
                                                   "--recompute", "none"))

    def test_recomputation_makes_room(self):
        inputs = self.small_inputs(memory="2.15 GB")
        self.make_plan(*inputs, "--objective", "sequential", expect=4)
        plan = self.make_plan(*inputs, "--objective", "sequential", "--recompute", "all")
        self.assertEqual(json.loads(pathlib.Path(plan).read_text())["recompute"], [0, 1, 2])

    def test_says_that_the_bound_of_a_chain_is_one_of_chains(self):
        # 15 and 5 x 3 TFLOP on three devices of 100 TFLOP/s: one of them has the first layer, 0.15 s for each of 8
        # micro-batches. Three devices that divide the micro-batches take 8/3 x 0.3 s.
        layers = "".join(f"  - {{name: l{i}, forward: {5 if i == 0 else 1} TFLOP, parameters: 0, activations: 1 kB, output: 0 B}}\n"
                         for i in range(6))
        workload = self.write("unequal.yaml", f"model: layers\nlayers:\n{layers}")
        platform = self.write("three.xml", '''<?xml version="1.0"?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
<cluster id="x" prefix="n" suffix="" radical="0-2" speed="100Tf" bw="100GBps" lat="1us"><prop id="memory" value="80 GiB"/></cluster>
</platform>
''')
        file = self.folder / "plan.json"
        lines = self.run_isobar("plan", platform, workload, "--allocator", "exact", "-o", file).stdout.splitlines()
        self.assertTrue(lines[0].startswith("exact: optimal chain for objective step"), lines[0])
        self.assertRegex(lines[1], r"objective (1\.2500\d*) s, no chain below \1 s \(search\), gap 0\.00 %")
        self.assertRegex(self.run_isobar("verify", platform, workload, file).stdout, r"no chain below 1\.25")
        table = self.run_isobar("compare", platform, workload, "--allocators", "exact").stdout
        self.assertRegex(table, r"\Astep, 1f1b, M = 8: no chain below 1\.25")

        lines = self.run_isobar("plan", platform, workload, "--allocator", "hybrid", "-o", file).stdout.splitlines()
        self.assertTrue(lines[0].startswith("hybrid: feasible plan for objective step"), lines[0])
        objective, bound = re.fullmatch(r"objective ([\d.]+) s, no plan below ([\d.]+) s \(\w+\), gap .*", lines[1]).groups()
        self.assertLess(float(objective), 0.91)
        self.assertGreaterEqual(float(bound), 0.8 * (1 - 1e-6))
        self.assertRegex(self.run_isobar("verify", platform, workload, file).stdout, r"no plan below 0\.[89]")
        table = self.run_isobar("compare", platform, workload, "--allocators", "exact,hybrid").stdout
        self.assertRegex(table, r"\Astep, 1f1b, M = 8: no placement below 0\.[89]")

    def test_refuses_a_recomputation_that_is_not_a_list_of_layers(self):
        inputs = self.small_inputs()
        for text in ("some", "1,", "2-1", "1,1", "0-1,1", "2,0", "-1", "1 2", "0x1"):
            self.assertEqual(
                self.fault_of("plan", *inputs, "--allocator", "even", f"--recompute={text}"),
                f'--recompute: "{text}" is neither none, all, inner, nor layers in order, such as 3-10,12')
        for text in ("3", "0-3", "1-9007199254740992"):
            self.assertEqual(self.fault_of("compare", *inputs, "--recompute", text),
                             f"--recompute: layer {text.split('-')[-1]}; workload small has layers 0 to 2")

    def test_a_device_left_out_does_not_affect_the_plan(self):
        platform, workload = self.small_inputs()
        plan = self.make_plan(platform, workload, "--without", "fast", allocator="exact")
        content = json.loads(pathlib.Path(plan).read_text())
        self.assertEqual(content["without"], ["fast"])
        self.assertEqual([stage["devices"][0]["name"] for stage in content["stages"]], ["slow"])
        self.assertEqual(content["outcome"], "optimal")
        # Its bound holds only without "fast", with which there is a better plan.
        self.run_isobar("verify", platform, workload, plan)
        self.run_isobar("simulate", platform, workload, "--plan", plan, "--stamp")
        self.run_isobar("verify", platform, workload, plan)
        content.pop("without")
        whole = self.write("whole.json", json.dumps(content))
        self.run_isobar("verify", platform, workload, whole, expect=5)
        self.assertNotIn("without", self.json_of("plan", platform, workload, "--allocator", "even"))

    def test_a_device_left_out_needs_no_route(self):
        _, workload = self.small_inputs()
        alone = '<host id="S1" speed="1Tf"><prop id="memory" value="16 GiB"/></host>'
        platform = self.write("dogbone.xml", PLATFORM.replace("MEMORY", "16 GiB").replace("<link", alone + "<link", 1))
        fault = self.fault_of("plan", platform, workload, "--allocator", "even")
        self.assertIn("host S1: no route from slow; every pair of devices needs one", fault)
        plan = self.make_plan(platform, workload, "--without", "S1", allocator="exact")
        self.run_isobar("verify", platform, workload, plan)
        result = self.folder / "result.json"
        self.run_isobar("simulate", platform, workload, "--plan", plan, "-o", result)
        self.run_isobar("report", result, "-o", self.folder / "report.html")

    def test_a_device_left_out_may_have_a_comma_in_its_name(self):
        platform, workload = self.small_inputs()
        path = pathlib.Path(platform)
        path.write_text(path.read_text().replace('"fast"', '"rack 1, slot 2"'))
        options = (platform, workload, "--allocator", "even", "--without")
        self.assertEqual(self.json_of("plan", *options, r"rack 1\, slot 2")["without"], ["rack 1, slot 2"])
        self.assertEqual(self.fault_of("plan", *options, "rack 1, slot 2"),
                         '--without: "rack 1" is not a device of small; its devices are slow, rack 1, slot 2')

    def test_a_device_left_out_has_to_exist(self):
        inputs = self.small_inputs()
        self.assertEqual(self.fault_of("plan", *inputs, "--allocator", "even", "--without", "fast,quick"),
                         '--without: "quick" is not a device of small; its devices are slow, fast')
        self.assertEqual(self.fault_of("plan", *inputs, "--allocator", "even", "--without", "slow,fast"),
                         "--without: leaves out every device of small")

    def test_names_the_devices_that_a_plan_does_not_use(self):
        _, workload = self.small_inputs()
        plan = lambda platform, *options: self.run_isobar("plan", platform, workload, "--allocator", "even", *options).stdout
        for devices, line in ((3, None), (4, "idle: device-3 (1 of 4 devices)"),
                              (7, "idle: device-3, device-4, device-5, device-6 (4 of 7 devices)"),
                              (8, "idle: device-3, device-4, device-5, device-6, … (5 of 8 devices)")):
            platform = self.folder / f"star{devices}.xml"
            self.run_isobar("platform", "generate", "star", "--devices", devices, "-o", platform)
            idle = [each for each in plan(platform).splitlines() if each.startswith("idle")]
            self.assertEqual(idle, [line] if line else [])

    def test_a_site_left_out_is_all_of_its_devices(self):
        platform, workload = self.small_inputs()
        path = pathlib.Path(platform)
        # The site has no route to the other devices.
        away = "".join(f'<host id="{name}" speed="1Tf"><prop id="memory" value="16 GiB"/><prop id="site" value="away"/></host>'
                       for name in ("far", "farther"))
        path.write_text(path.read_text().replace("<link", away + "<link", 1))
        plan = self.make_plan(platform, workload, "--without", "away,slow")
        content = json.loads(pathlib.Path(plan).read_text())
        self.assertEqual(content["without"], ["far", "farther", "slow"])
        self.assertEqual([stage["devices"][0]["name"] for stage in content["stages"]], ["fast"])
        self.run_isobar("verify", platform, workload, plan)
        self.assertEqual(self.fault_of("plan", platform, workload, "--allocator", "even", "--without", "away,home"),
                         '--without: "home" is neither a device nor a site of small; its devices are slow, fast, far, farther; '
                         "its sites are away")

    def test_skys_memory_model_does_not_model_recomputation(self):
        self.assertEqual(
            self.fault_of("plan", SKY16, BERT24, "--allocator", "even", "--recompute", "all"),
            "--recompute: memory_model sky does not model recomputation; write memory_model: training")

    def test_a_default_that_a_workload_cannot_have_is_named_as_one(self):
        fault = "memory_model sky does not model recomputation; write memory_model: training"
        for command, default in ((("plan", SKY16, BERT24, "--allocator", "window"), "allocator window"),
                                 (("fit", SKY16, BERT24, "--allocators", "window", "--vary", "encoders"), "allocator window"),
                                 (("plan", SKY16, BERT24, "--allocator", "exact", "--offload", "auto"),
                                  "--offload auto")):
            with self.subTest(command):
                self.assertEqual(self.fault_of(*command), f"--recompute inner, the default of {default}: {fault}")

    def test_a_start_recomputes_the_same_layers_as_the_plan(self):
        inputs = self.small_inputs()
        start = self.make_plan(*inputs, "--recompute", "1")
        options = "--allocator", "local-search", "--start", start
        self.assertEqual(self.json_of("plan", *inputs, *options, "--recompute", "1")["recompute"], [1])
        self.assertEqual(self.fault_of("plan", *inputs, *options),
                         f"{start}: recompute: lists 1 layer, not the 0 that recompute in the given workload")

    def test_an_external_allocator_reads_the_workload_with_its_recomputation(self):
        problem = self.folder / "problem.json"
        answer = '{"stages": [{"device": "fast", "first_layer": 0, "last_layer": 2}]}'
        allocator = self.write("allocator.sh", f"#!/bin/sh\ncat > {problem}\necho '{answer}'\n")
        pathlib.Path(allocator).chmod(0o755)
        plan = self.json_of("plan", *self.small_inputs(), "--allocator", f"exec:{allocator}", "--recompute", "all")
        self.assertEqual(plan["recompute"], [0, 1, 2])
        workload = json.loads(problem.read_text())["workload"]
        self.assertEqual([layer["backward_flops"] for layer in workload["layers"]], [3e12] * 3)
        self.assertEqual([layer["activations_bytes"] for layer in workload["layers"]], [0, 1e8, 1e8])
        self.assertEqual(workload["recompute_buffer_bytes"], 1e9)

    def test_sequential_has_its_own_defaults(self):
        plan = self.json_of("plan", SKY16, BERT24, "--allocator", "even", "--objective", "sequential")
        self.assertEqual((plan["communication"], plan["schedule"], plan["microbatches"]), ("serial", "sequential", 1))

    def test_the_same_inputs_give_the_same_bytes(self):
        texts = []
        for _ in range(2):
            plan = json.loads(pathlib.Path(self.make_plan(SKY16, BERT24, allocator="chain-dp")).read_text())
            del plan["wall"]
            texts.append(json.dumps(plan))
        self.assertEqual(*texts)

    def test_chain_dp_uses_only_the_fast_device_for_one_micro_batch(self):
        plan = self.json_of("plan", *self.small_inputs(), "--allocator", "chain-dp", "--objective", "sequential")
        self.assertEqual([stage["devices"][0]["name"] for stage in plan["stages"]], ["fast"])
        self.assertAlmostEqual(plan["objective_s"], 4.5)

    def test_local_search_starts_from_a_plan_and_makes_it_better(self):
        start = self.make_plan(SKY16, BERT24)
        before = json.loads(pathlib.Path(start).read_text())
        options = "--allocator", "local-search", "--start", start
        plan = self.json_of("plan", SKY16, BERT24, *options, "--budget", 0)
        self.assertEqual(plan["stages"], before["stages"])
        plan = self.json_of("plan", SKY16, BERT24, *options, "--budget", 100000)
        self.assertLess(plan["objective_s"], before["objective_s"])
        self.assertEqual(plan, plan | self.plan_without_wall(SKY16, BERT24, *options, "--budget", 100000))

    def plan_without_wall(self, *arguments):
        plan = self.json_of("plan", *arguments)
        del plan["wall"]
        return plan

    def test_a_start_is_checked_against_the_inputs(self):
        start = self.make_plan(SKY16, BERT24)
        options = "--allocator", "local-search", "--start", start
        fault = self.fault_of("plan", *self.small_inputs(), *options)
        self.assertIn(f"{start}: stages[0]: device node-1 is not on platform small", fault)
        platform, workload = self.small_inputs()
        wrong = self.edited(self.make_plan(platform, workload), step_bound_s=1.0)
        self.assertRegex(self.fault_of("plan", platform, workload, "--allocator", "local-search", "--start", wrong),
                         r"plan\.json: step_bound_s: claims 1; it is [\d.]+ on this platform and workload$")
        self.assertEqual(self.fault_of("plan", platform, workload, "--allocator", "local-search", "--start", "none.json"),
                         "none.json: no such file")

    def edited(self, plan, **changes):
        path = pathlib.Path(plan)
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        return plan

    def test_a_start_without_stages_is_refused(self):
        start = self.make_plan(*self.small_inputs(memory="1 GB"), expect=4)
        self.assertEqual(
            self.fault_of("plan", *self.small_inputs(), "--allocator", "local-search", "--start", start),
            f"{start}: stages: none; a search starts from a plan that has some")

    def test_a_start_is_not_overwritten(self):
        start = self.make_plan(*self.small_inputs())
        self.assertEqual(
            self.fault_of("plan", *self.small_inputs(), "--allocator", "local-search", "--start", start, "-o", start),
            f"{start}: is an input; name another file to write")

    def test_start_and_polish_are_for_allocators_that_improve_plans(self):
        start = self.make_plan(*self.small_inputs())
        self.assertEqual(self.fault_of("plan", *self.small_inputs(), "--allocator", "even", "--start", start),
                         "--start: works only with allocator local-search, not with even")
        self.assertEqual(self.fault_of("plan", *self.small_inputs(), "--allocator", "even", "--polish"),
                         "--polish: works only with allocator local-search, not with even")
        self.assertEqual(self.fault_of("compare", *self.small_inputs(), "--allocators", "even,chain-dp", "--polish"),
                         "--polish: works only with allocator local-search, not with even or chain-dp")
        self.run_isobar("compare", *self.small_inputs(), "--allocators", "local-search,even", "--polish")

    def test_takes_no_more_micro_batches_than_can_be_checked(self):
        for count in ("0", "65537"):
            self.assertEqual(
                self.fault_of("plan", *self.small_inputs(), "--allocator", "even", "--microbatches", count),
                f"--microbatches: {count} is not in 1 to 65536; a step is predicted micro-batch by micro-batch")

    def test_shows_the_pipeline_formula_apart_from_the_prediction(self):
        # Stages of 6 and 1.5 s, M = 8: the formula says 7 * 6 + 7.5 s, and the second stage's last micro-batch follows.
        text = self.run_isobar("plan", *self.small_inputs(), "--allocator", "even").stdout
        lines = text.splitlines()
        predicted = re.fullmatch(r"predicted step ([\d.]+) s, no order of its passes below ([\d.]+) s", lines[2])
        self.assertGreaterEqual(float(predicted[1]), float(predicted[2]))
        self.assertEqual(lines[3], "pipeline formula 49.5 s, which is not a prediction")

    def test_a_polished_plan_predicts_the_simulated_step(self):
        # Links of the two-device platform carry one kind of transfer each way; the route there and back shares one.
        platform, workload = self.small_inputs()
        text = pathlib.Path(platform).read_text()
        text = text.replace('latency="10ms"/>', 'latency="10ms" sharing_policy="SPLITDUPLEX"/>')
        text = text.replace('<route src="slow" dst="fast"><link_ctn id="wire"/></route>',
                            '<route src="slow" dst="fast"><link_ctn id="wire" direction="UP"/></route>')
        pathlib.Path(platform).write_text(text)
        for schedule in ("sequential", "gpipe", "1f1b"):
            for microbatches in (1, 5):
                plan = self.make_plan(platform, workload, "--polish", "--schedule", schedule, "--microbatches", microbatches,
                                      allocator="local-search")
                predicted = json.loads(pathlib.Path(plan).read_text())["predicted"]
                self.assertEqual(predicted["step_time_by"], "recurrence")
                result = self.json_of("simulate", platform, workload, "--plan", plan)
                self.assertAlmostEqual(result["step_time_s"] / predicted["step_time_s"], 1, delta=1e-6)

    def simulated_step(self, *arguments):
        plan = self.make_plan(*arguments[:2], *arguments[3:], allocator=arguments[2])
        return self.json_of("simulate", *arguments[:2], "--plan", plan)["step_time_s"]

    def test_no_allocator_or_objective_simulates_better_than_the_choice_by_simulation(self):
        plan = self.json_of("plan", *TWO_SITES, "--allocator", "even", "--simulate", 2)
        self.assertEqual(plan["allocator"], "even")
        simulated = plan["simulated"]
        self.assertEqual(set(simulated), {"step_time_s", "candidates", "allocator", "objective"})
        self.assertGreater(simulated["candidates"], 4)
        self.assertGreaterEqual(simulated["step_time_s"], plan["step_bound_s"] * (1 - 1e-6))
        for allocator in ("even", "sky-dynamic", "sky-dynamic-fixed", "chain-dp", "local-search", "exact"):
            self.assertLessEqual(simulated["step_time_s"], self.simulated_step(*TWO_SITES, allocator) * (1 + 1e-9))
        for allocator in ("chain-dp", "local-search"):
            for objective in ("sequential", "bottleneck", "pipeline"):
                options = "--objective", objective, "--schedule", "1f1b", "--microbatches", 8
                other = self.simulated_step(*TWO_SITES, allocator, *options)
                self.assertLessEqual(simulated["step_time_s"], other * (1 + 1e-9))

    def test_the_choice_of_hybrid_simulates_no_slower_than_the_plans_of_published_planners(self):
        sites = str(self.folder / "sites.xml")
        self.run_isobar("platform", "generate", "sites", "--site-devices", "2xA100-SXM4-40GB,4xT4", "--wan-bandwidth",
                        "10 Gbit/s", "--wan-rtt", "30 ms", "-o", sites)
        inputs = sites, "workloads/bert_large.yaml"
        plan = self.make_plan(*inputs, "--simulate", 4, allocator="hybrid")
        self.run_isobar("verify", *inputs, plan)
        simulated = json.loads(pathlib.Path(plan).read_text())["simulated"]["step_time_s"]
        for allocator in ("grid", "metis", "amp"):
            with self.subTest(allocator):
                self.assertLessEqual(simulated, self.simulated_step(*inputs, allocator) * (1 + 1e-9))

    def test_a_choice_by_simulation_is_what_verify_and_simulate_find(self):
        inputs = TWO_SITES
        plan = self.make_plan(*inputs, "--simulate", 1)
        content = json.loads(pathlib.Path(plan).read_text())
        self.run_isobar("verify", *inputs, plan)
        self.assertEqual(self.json_of("simulate", *inputs, "--plan", plan)["step_time_s"],
                         content["simulated"]["step_time_s"])
        content["simulated"]["step_time_s"] *= 1.5
        wrong = self.write("wrong.json", json.dumps(content))
        result = self.run_isobar("verify", *inputs, wrong, expect=5)
        self.assertRegex(result.stdout,
                         r"wrong\.json: simulated\.step_time_s: claims [\d.]+; the simulation takes [\d.]+\n$")
        content["simulated"]["step_time_s"] = content["step_bound_s"] / 2
        low = self.write("low.json", json.dumps(content))
        self.assertIn("simulated.step_time_s: claims", self.fault_of("simulate", *inputs, "--plan", low))

    def test_the_choice_by_simulation_is_the_same_each_time(self):
        options = *TWO_SITES, "--allocator", "chain-dp", "--simulate", 3
        self.assertEqual(self.plan_without_wall(*options), self.plan_without_wall(*options))

    def test_shows_the_simulated_step_next_to_the_predicted_one(self):
        text = self.run_isobar("plan", *self.small_inputs(), "--allocator", "even", "--simulate", 1).stdout
        self.assertRegex(text, r"\npredicted step [\d.]+ s, no order of its passes below [\d.]+ s\n"
                               r"simulated step [\d.]+ s, the least of \d+ placements; found by [a-z-]+ for objective "
                               r"[a-z]+\npipeline formula [\d.]+ s, which is not a prediction\n")

    def test_another_allocator_helps_out_where_one_finds_no_placement(self):
        # even gives slow two layers of 1 GB for two micro-batches in flight, too much for 3 GB; one layer there fits.
        inputs = self.small_inputs(memory="3.3 GB")
        self.make_plan(*inputs, expect=4)
        plan = self.json_of("plan", *inputs, "--allocator", "even", "--simulate", 1)
        self.assertEqual(plan["allocator"], "even")
        self.assertNotEqual(plan["simulated"]["allocator"], "even")

    def test_nothing_to_simulate_is_an_infeasible_plan(self):
        plan = self.make_plan(*self.small_inputs(memory="1 GB"), "--simulate", 4, expect=4)
        content = json.loads(pathlib.Path(plan).read_text())
        self.assertEqual(content["outcome"], "infeasible")
        self.assertNotIn("simulated", content)

    def test_refuses_a_number_of_candidates_out_of_range(self):
        for count in ("0", "65"):
            self.assertEqual(
                self.fault_of("plan", *self.small_inputs(), "--allocator", "even", "--simulate", count),
                f"--simulate: {count} is not in 1 to 64")

    def test_a_global_batch_finds_the_best_number_of_micro_batches(self):
        inputs = self.gpt_inputs()
        plan = self.json_of("plan", *inputs, "--allocator", "even", "--global-batch", 24)
        best = {}
        for count in (1, 2, 3, 4, 6, 8, 12, 24):
            one = self.json_of("plan", *inputs, "--allocator", "even", "--global-batch", 24, "--microbatches", count)
            self.assertEqual(one["microbatches"], count)
            self.assertEqual(one.get("micro_batch", 4), 24 // count)
            best[count] = one["objective_s"]
        self.assertEqual(plan["objective_s"], min(best.values()))
        self.assertEqual(plan["microbatches"], min(best, key=best.get))
        self.assertNotIn("micro_batch", self.json_of("plan", *inputs, "--allocator", "even"))

    def test_a_plan_of_another_micro_batch_holds_in_every_command(self):
        inputs = self.gpt_inputs()
        plan = self.make_plan(*inputs, "--global-batch", 6, "--microbatches", 3, "--recompute", "1")
        content = json.loads(pathlib.Path(plan).read_text())
        self.assertEqual((content["microbatches"], content["micro_batch"]), (3, 2))
        self.run_isobar("verify", *inputs, plan)
        result = self.folder / "result.json"
        self.run_isobar("simulate", *inputs, "--plan", plan, "--stamp", "-o", result)
        self.assertEqual(json.loads(result.read_text())["plan"]["micro_batch"], 2)
        self.run_isobar("verify", *inputs, plan)
        # The same model with that micro-batch in its file is the same workload.
        halved = self.write("halved.yaml", GPT.replace("micro_batch: 4", "micro_batch: 2"))
        same = self.json_of("plan", inputs[0], halved, "--allocator", "even", "--microbatches", 3, "--recompute", "1")
        self.assertEqual(same["objective_s"], content["objective_s"])
        del content["micro_batch"]
        without = self.write("without.json", json.dumps(content))
        self.run_isobar("verify", *inputs, without, expect=5)

    def test_a_global_batch_and_a_choice_by_simulation_go_together(self):
        inputs = self.gpt_inputs()
        plan = self.make_plan(*inputs, "--global-batch", 12, "--simulate", 1)
        simulated = json.loads(pathlib.Path(plan).read_text())["simulated"]
        self.run_isobar("verify", *inputs, plan)
        for count in (1, 2, 3, 4, 6, 12):
            step = self.simulated_step(*inputs, "even", "--global-batch", 12, "--microbatches", count)
            self.assertLessEqual(simulated["step_time_s"], step * (1 + 1e-9))

    def test_a_global_batch_leaves_out_numbers_for_which_no_orders_can_be_made(self):
        inputs = SKY16, BERT24, "--schedule", "greedy"
        # 20,014 micro-batches on each of 15 devices would be too many.
        plan = self.json_of("plan", *inputs, "--allocator", "even", "--global-batch", 2 * 10007)
        self.assertEqual(plan["microbatches"], 10007)
        self.assertIn("use at most 13333", self.fault_of("plan", *inputs, "--allocator", "even", "--global-batch",
                                                         2 * 10007, "--microbatches", 2 * 10007))

    def test_refuses_a_global_batch_that_cannot_be_divided(self):
        inputs = *self.gpt_inputs(), "--allocator", "even"
        self.assertEqual(
            self.fault_of("plan", *inputs, "--global-batch", 7, "--microbatches", 2),
            "--global-batch: 7 samples are not 2 micro-batches of 1 to 1048576 samples; write a multiple of "
            "--microbatches, or leave that option out")
        self.assertEqual(self.fault_of("plan", *inputs, "--global-batch", 0),
                         "--global-batch: 0 is not in 1 to 68719476736")
        self.assertEqual(  # a prime
            self.fault_of("plan", *inputs, "--global-batch", 2097169),
            "--global-batch: 2097169 has no divisor that leaves at most 65536 micro-batches of at most 1048576 samples")
        self.assertEqual(self.fault_of("plan", *inputs, "--global-batch", 8, "--objective", "bottleneck"),
                         "--global-batch: objective bottleneck is of one micro-batch, so micro-batch sizes cannot be "
                         "compared; use step or pipeline")

    def test_listed_layers_have_one_micro_batch_size(self):
        inputs = self.small_inputs()
        fault = ("workload small lists its layers, for micro-batches of 1 sample; other sizes need a generator, such as "
                 "model: gpt")
        self.assertEqual(self.fault_of("plan", *inputs, "--allocator", "even", "--global-batch", 4),
                         f"--global-batch: {fault}")
        # The size in the file is not another size.
        plan = self.make_plan(*inputs, "--global-batch", 4, "--microbatches", 4)
        content = json.loads(pathlib.Path(plan).read_text())
        self.assertNotIn("micro_batch", content)
        other = self.edited(plan, micro_batch=2)
        for command in (("verify", *inputs, other), ("simulate", *inputs, "--plan", other)):
            self.assertEqual(self.fault_of(*command), f"{other}: micro_batch: {fault}")

    def test_a_search_that_may_take_minutes_is_announced_unless_it_is_limited(self):
        workload = self.write("deep.yaml", GPT.replace("layers: 4", "layers: 70000").replace("64", "4").replace("32", "8"))
        inputs = "plan", SKY16, workload, "--allocator", "even", "-o", self.folder / "plan.json"
        self.assertEqual(self.run_isobar(*inputs).stderr,
                         "isobar: 70002 layers on 15 devices may take minutes; Ctrl-C or --time-limit keeps the best plan "
                         "found\n")
        self.assertEqual(self.run_isobar(*inputs, "--time-limit", "60s").stderr, "")

    def test_an_infeasible_plan_is_written_with_its_reason_and_exits_with_4(self):
        inputs = self.small_inputs(memory="1 GB")
        plan = json.loads(pathlib.Path(self.make_plan(*inputs, expect=4)).read_text())
        self.assertEqual(plan["outcome"], "infeasible")
        self.assertEqual(plan["stages"], [])
        self.assertIn("slow", plan["reason"])

    def test_a_wrong_input_leaves_the_old_plan_as_it_was(self):
        old = self.write("plan.json", "old")
        platform, workload = self.small_inputs()
        pathlib.Path(workload).write_text("model: layers\n")
        self.run_isobar("plan", platform, workload, "--allocator", "even", "-o", old, expect=2)
        self.assertEqual(pathlib.Path(old).read_text(), "old")
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["plan.json", "small.xml", "small.yaml"])

    def test_names_the_nearest_allocator(self):
        self.assertIn("did you mean chain-dp?", self.fault_of("plan", *self.small_inputs(), "--allocator", "chain-pd"))

    def test_names_the_nearest_objective(self):
        self.assertEqual(
            self.fault_of("plan", *self.small_inputs(), "--allocator", "even", "--objective", "botleneck"),
            '--objective: "botleneck" is none of step, dtfm, sequential, bottleneck, pipeline; did you mean bottleneck?')

    def test_refuses_a_time_without_unit(self):
        self.assertTrue(
            self.fault_of("plan", *self.small_inputs(), "--allocator", "even", "--time-limit", "30")
            .startswith('--time-limit: "30" is not a time'))

    def test_reports_a_missing_file(self):
        platform, workload = self.small_inputs()
        self.assertEqual(self.fault_of("plan", platform, "none.yaml", "--allocator", "even"), "none.yaml: no such file")
        self.assertEqual(self.fault_of("plan", "none.xml", workload, "--allocator", "even"), "none.xml: no such file")

    def test_an_empty_file_name_is_refused(self):
        start = self.make_plan(*self.small_inputs())
        for arguments, option in ((["plan", *self.small_inputs(), "--allocator", "even", "-o", ""], "--output"),
                                  (["plan", *self.small_inputs(), "--allocator", "local-search", "--start", ""],
                                   "--start"),
                                  (["plan", "", BERT24, "--allocator", "even"], "PLATFORM"),
                                  (["plan", SKY16, "", "--allocator", "even"], "WORKLOAD"),
                                  (["plan", *self.small_inputs(), "--allocator", "even", "--devices", ""], "--devices"),
                                  (["simulate", *self.small_inputs(), "--plan", start, "--trace", ""], "--trace"),
                                  (["simulate", *self.small_inputs(), "--plan", ""], "--plan"),
                                  (["compare", *self.small_inputs(), "-o", ""], "--output"),
                                  (["verify", *self.small_inputs(), ""], "PLAN"),
                                  (["platform", "show", ""], "PLATFORM")):
            with self.subTest(arguments):
                self.assertEqual(self.fault_of(*arguments),
                                 f"{option}: the name is empty; name a file; see isobar "
                                 f"{'platform show' if arguments[0] == 'platform' else arguments[0]} --help")

    def test_an_output_that_cannot_be_written_costs_no_search(self):
        ran = self.folder / "ran"
        allocator = self.write("allocator.sh", f"#!/bin/sh\ntouch '{ran}'\n")
        pathlib.Path(allocator).chmod(0o755)
        for command, option in (("plan", "--allocator"), ("compare", "--allocators")):
            fault = self.fault_of(command, *self.small_inputs(), option, f"exec:{allocator}", "-o", "no/such/folder/x",
                                  expect=3)
            self.assertEqual(fault, "no/such/folder/x: cannot write there: No such file or directory")
            self.assertFalse(ran.exists())

    def test_the_reason_of_a_program_is_shown_on_one_line(self):
        answer = json.dumps({"outcome": "infeasible", "reason": "\x1b[2Jdone\n" + 1000 * "x"})
        allocator = self.write("allocator.sh", f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
        pathlib.Path(allocator).chmod(0o755)
        for command, option in (("plan", "--allocator"), ("compare", "--allocators")):
            output = self.run_isobar(command, *self.small_inputs(), option, f"exec:{allocator}", expect=4).stdout
            self.assertIn("\\x1b[2Jdone\\x0axxx", output)
            self.assertNotIn("\x1b", output)
            self.assertIn("xxx…\n", output)

    def test_reports_a_missing_folder_of_the_output(self):
        fault = self.fault_of("plan", *self.small_inputs(), "--allocator", "even", "-o", self.folder / "no/plan.json", expect=3)
        self.assertIn("No such file or directory", fault)
