import json
import pathlib

from tests.cli.support import BERT24, SKY16, CommandTest

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
        self.assertEqual((plan["objective"], plan["schedule"], plan["microbatches"]), ("pipeline", "1f1b", 8))
        self.assertEqual(set(plan["predicted"]), {"step_time_s", "step_time_by", "bottleneck_s",
                                                  "sequential_s", "peak_memory_bytes"})
        self.assertEqual(plan["predicted"]["step_time_by"], "formula")

    def test_names_the_data_server_where_there_is_one(self):
        self.assertEqual(self.json_of("plan", SKY16, BERT24, "--allocator", "even")["data_server"], "node-0")
        self.assertNotIn("data_server", self.json_of("plan", *self.small_inputs(), "--allocator", "even"))

    def test_recomputed_layers_take_their_forward_again_and_keep_what_they_read(self):
        plan = self.json_of("plan", *self.small_inputs(), "--allocator", "even", "--objective", "sequential",
                            "--recompute", "1-2")
        self.assertEqual(plan["recompute"], [1, 2])
        # slow: a and b forward (2 s), b and a back (3 + 2 s); fast: c forward (0.5 s) and back (1.5 s); two transfers.
        self.assertAlmostEqual(plan["objective_s"], 7 + 2 + 2 * 0.11)
        # 8 B a parameter, what a keeps, what b reads, the buffers over the cut, and the rest of b while it recomputes.
        self.assertAlmostEqual(plan["predicted"]["peak_memory_bytes"]["slow"], 16e3 + 1e9 + 0.1e9 + 0.2e9 + 0.9e9)
        self.assertNotIn("recompute", self.json_of("plan", *self.small_inputs(), "--allocator", "even",
                                                   "--recompute", "none"))

    def test_recomputation_makes_room(self):
        inputs = self.small_inputs(memory="2.15 GB")
        self.make_plan(*inputs, "--objective", "sequential", expect=4)
        plan = self.make_plan(*inputs, "--objective", "sequential", "--recompute", "all")
        self.assertEqual(json.loads(pathlib.Path(plan).read_text())["recompute"], [0, 1, 2])

    def test_refuses_a_recomputation_that_is_no_list_of_layers(self):
        inputs = self.small_inputs()
        for text in ("some", "1,", "2-1", "1,1", "0-1,1", "2,0", "-1", "1 2", "0x1"):
            self.assertEqual(
                self.fault_of("plan", *inputs, "--allocator", "even", f"--recompute={text}"),
                f'--recompute: "{text}" is neither none, all, nor layers in order, such as 3-10,12')
        for text in ("3", "0-3", "1-9007199254740992"):
            self.assertEqual(self.fault_of("compare", *inputs, "--recompute", text),
                             f"--recompute: layer {text.split('-')[-1]}; workload small has layers 0 to 2")

    def test_a_device_left_out_is_as_if_it_were_not_there(self):
        platform, workload = self.small_inputs()
        plan = self.make_plan(platform, workload, "--without", "fast", allocator="exact")
        content = json.loads(pathlib.Path(plan).read_text())
        self.assertEqual(content["without"], ["fast"])
        self.assertEqual([stage["devices"][0]["name"] for stage in content["stages"]], ["slow"])
        self.assertEqual(content["outcome"], "optimal")
        # Its bound is one of the rest alone: with "fast" there is a better plan.
        self.run_isobar("verify", platform, workload, plan)
        self.run_isobar("simulate", platform, workload, "--plan", plan, "--stamp")
        self.run_isobar("verify", platform, workload, plan)
        content.pop("without")
        whole = self.write("whole.json", json.dumps(content))
        self.run_isobar("verify", platform, workload, whole, expect=5)
        self.assertNotIn("without", self.json_of("plan", platform, workload, "--allocator", "even"))

    def test_a_device_left_out_has_to_be_there(self):
        inputs = self.small_inputs()
        self.assertEqual(self.fault_of("plan", *inputs, "--allocator", "even", "--without", "fast,quick"),
                         '--without: "quick" is no device of small; these are: slow, fast')
        self.assertEqual(self.fault_of("plan", *inputs, "--allocator", "even", "--without", "slow,fast"),
                         "--without: leaves out every device of small")

    def test_sky_s_memory_model_knows_no_recomputation(self):
        self.assertEqual(
            self.fault_of("plan", SKY16, BERT24, "--allocator", "even", "--recompute", "all"),
            "--recompute: memory_model sky knows nothing of recomputation; write memory_model: training")

    def test_a_start_recomputes_what_the_plan_does(self):
        inputs = self.small_inputs()
        start = self.make_plan(*inputs, "--recompute", "1")
        options = "--allocator", "local-search", "--start", start
        self.assertEqual(self.json_of("plan", *inputs, *options, "--recompute", "1")["recompute"], [1])
        self.assertEqual(self.fault_of("plan", *inputs, *options),
                         f"{start}: recompute: 1 layers, which are not the 0 that recompute in the workload as it is "
                         "given here")

    def test_an_external_policy_reads_the_workload_as_it_is_recomputed(self):
        problem = self.folder / "problem.json"
        answer = '{"stages": [{"device": "fast", "first_layer": 0, "last_layer": 2}]}'
        policy = self.write("policy.sh", f"#!/bin/sh\ncat > {problem}\necho '{answer}'\n")
        pathlib.Path(policy).chmod(0o755)
        plan = self.json_of("plan", *self.small_inputs(), "--allocator", f"exec:{policy}", "--recompute", "all")
        self.assertEqual(plan["recompute"], [0, 1, 2])
        workload = json.loads(problem.read_text())["workload"]
        self.assertEqual([layer["backward_flops"] for layer in workload["layers"]], [3e12] * 3)
        self.assertEqual([layer["activations_bytes"] for layer in workload["layers"]], [0, 1e8, 1e8])
        self.assertEqual(workload["recompute_buffer_bytes"], 1e9)

    def test_sequential_has_defaults_of_its_own(self):
        plan = self.json_of("plan", SKY16, BERT24, "--allocator", "even", "--objective", "sequential")
        self.assertEqual((plan["communication"], plan["schedule"], plan["microbatches"]), ("serial", "sequential", 1))

    def test_the_same_inputs_give_the_same_bytes(self):
        texts = []
        for _ in range(2):
            plan = json.loads(pathlib.Path(self.make_plan(SKY16, BERT24, allocator="chain-dp")).read_text())
            del plan["wall"]
            texts.append(json.dumps(plan))
        self.assertEqual(*texts)

    def test_chain_dp_takes_the_fast_device_alone_for_one_micro_batch(self):
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

    def test_a_start_is_not_written_over(self):
        start = self.make_plan(*self.small_inputs())
        self.assertEqual(
            self.fault_of("plan", *self.small_inputs(), "--allocator", "local-search", "--start", start, "-o", start),
            f"{start}: is an input; name another file to write")

    def test_start_and_polish_are_for_allocators_that_improve_plans(self):
        start = self.make_plan(*self.small_inputs())
        self.assertEqual(self.fault_of("plan", *self.small_inputs(), "--allocator", "even", "--start", start),
                         "--start: works with allocator local-search alone, and not with even")
        self.assertEqual(self.fault_of("plan", *self.small_inputs(), "--allocator", "even", "--polish"),
                         "--polish: works with allocator local-search alone, and not with even")
        self.assertEqual(self.fault_of("compare", *self.small_inputs(), "--allocators", "local-search,even", "--polish"),
                         "--polish: works with allocator local-search alone, and not with even")

    def test_polish_takes_no_more_micro_batches_than_can_be_checked(self):
        self.assertEqual(
            self.fault_of("plan", *self.small_inputs(), "--allocator", "local-search", "--polish", "--microbatches", 100000),
            "--polish: works with at most 65536 micro-batches, and not with 100000")

    def test_a_polished_plan_predicts_what_is_simulated(self):
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
            '--objective: "botleneck" is none of sequential, bottleneck, pipeline; did you mean bottleneck?')

    def test_refuses_a_time_without_unit(self):
        self.assertTrue(
            self.fault_of("plan", *self.small_inputs(), "--allocator", "even", "--time-limit", "30")
            .startswith('--time-limit: "30" is not a time'))

    def test_refuses_no_micro_batches(self):
        self.assertEqual(
            self.fault_of("plan", *self.small_inputs(), "--allocator", "even", "--microbatches", "0"),
            "--microbatches: 0 is not in 1 to 1000000000")

    def test_says_that_a_file_is_not_there(self):
        platform, workload = self.small_inputs()
        self.assertEqual(self.fault_of("plan", platform, "none.yaml", "--allocator", "even"), "none.yaml: no such file")
        self.assertEqual(self.fault_of("plan", "none.xml", workload, "--allocator", "even"), "none.xml: no such file")

    def test_an_empty_name_is_no_file(self):
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
                                 f"{option}: the name is empty; name a file; see isobar --help")

    def test_a_place_that_cannot_be_written_costs_no_search(self):
        ran = self.folder / "ran"
        policy = self.write("policy.sh", f"#!/bin/sh\ntouch '{ran}'\n")
        pathlib.Path(policy).chmod(0o755)
        for command, option in (("plan", "--allocator"), ("compare", "--allocators")):
            fault = self.fault_of(command, *self.small_inputs(), option, f"exec:{policy}", "-o", "no/such/folder/x",
                                  expect=3)
            self.assertEqual(fault, "no/such/folder/x: cannot write there: No such file or directory")
            self.assertFalse(ran.exists())

    def test_a_reason_of_a_program_is_shown_on_one_line(self):
        answer = json.dumps({"outcome": "infeasible", "reason": "\x1b[2Jdone\n" + 1000 * "x"})
        policy = self.write("policy.sh", f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
        pathlib.Path(policy).chmod(0o755)
        for command, option in (("plan", "--allocator"), ("compare", "--allocators")):
            output = self.run_isobar(command, *self.small_inputs(), option, f"exec:{policy}", expect=4).stdout
            self.assertIn("\\x1b[2Jdone\\x0axxx", output)
            self.assertNotIn("\x1b", output)
            self.assertIn("xxx…\n", output)

    def test_says_that_a_folder_to_write_to_is_not_there(self):
        fault = self.fault_of("plan", *self.small_inputs(), "--allocator", "even", "-o", self.folder / "no/plan.json", expect=3)
        self.assertIn("No such file or directory", fault)
