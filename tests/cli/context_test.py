"""Plans whose replicas divide sequences: isobar plan --context, verify, simulate, fidelity --export."""

import json

from tests.cli.support import CommandTest

MACHINE = """nodes: 2
gpus_per_node: 4
device: A100-SXM4-80GB
inside: {topology: switch, bandwidth_per_gpu: 300 GB/s}
outside: {nics_per_node: 4, bandwidth_per_nic: 25 GB/s}
"""
WORKLOAD = """model: llama
layers: 4
hidden: 2048
heads: 16
kv_heads: 8
intermediate: 5504
vocabulary: 32000
sequence: 16384
micro_batch: 1
dtype: bf16
optimizer: adam
attention: fused
unit: operator
compute: operators
framework: megatron-core-0.8
"""
EXCHANGES = ("ring", "all-gather", "all-to-all")


class Context(CommandTest):
    def setUp(self):
        super().setUp()
        machine = self.write("machine.yaml", MACHINE)
        self.platform = str(self.folder / "platform.xml")
        self.run_isobar("platform", "generate", "machine", machine, "-o", self.platform)
        self.workload = self.write("llama.yaml", WORKLOAD)

    def planned(self, *options):
        """A plan of grid for these options, which holds, and whose simulated step is the predicted one."""
        file = str(self.folder / "plan.json")
        self.run_isobar("plan", self.platform, self.workload, "--allocator", "grid", *options, "-o", file)
        verified = self.json_of("verify", self.platform, self.workload, file)
        self.assertEqual((verified["holds"], verified["faults"]), (True, []))
        simulated = self.json_of("simulate", self.platform, self.workload, "--plan", file)
        with open(file, encoding="utf-8") as text:
            plan = json.load(text)
        self.assertAlmostEqual(simulated["step_time_s"] / plan["predicted"]["step_time_s"], 1, delta=1e-6)
        self.assertEqual({each["device"]: each["peak_memory_bytes"] for each in simulated["stages"]},
                         plan["predicted"]["peak_memory_bytes"])
        return plan, simulated

    def test_plans_hold_and_take_their_predicted_steps(self):
        for exchange in EXCHANGES:
            for shape in (["--context", "4", "--replicas", "2", "--pipeline", "1", "--tensor", "1"],
                          ["--context", "2", "--replicas", "1", "--pipeline", "2", "--tensor", "2"],
                          ["--context", "2", "--splits", "sequence", "--tensor", "2"]):
                with self.subTest(exchange=exchange, shape=shape):
                    plan, _ = self.planned(*shape, "--context-exchange", exchange, "--microbatches", "4")
                    self.assertEqual(plan["context"], {"degree": int(shape[1]), "exchange": exchange})
                    self.assertEqual(plan["microbatches"], 4 * int(shape[1]))

    def test_ring_is_the_default_and_one_part_is_none(self):
        shape = ["--replicas", "1", "--pipeline", "1", "--tensor", "1", "--microbatches", "2"]
        plan, _ = self.planned("--context", "4", *shape)
        self.assertEqual(plan["context"]["exchange"], "ring")
        whole, of_whole = self.planned(*shape)
        self.assertNotIn("context", whole)
        one, of_one = self.planned("--context", "1", *shape)
        for each in (whole, one):
            del each["wall"]
        self.assertEqual(one, whole)
        self.assertEqual(of_one["step_time_s"], of_whole["step_time_s"])

    def test_as_many_tokens_pass_a_second_as_the_step_has(self):
        _, result = self.planned("--context", "4", "--replicas", "2", "--pipeline", "1", "--tensor", "1",
                                 "--microbatches", "6")
        self.assertAlmostEqual(result["tokens_per_s"] * result["step_time_s"], 6 * 16384, delta=1)

    def test_a_global_batch_counts_samples(self):
        plan, _ = self.planned("--context", "4", "--replicas", "2", "--global-batch", "8", "--microbatches", "4",
                               "--pipeline", "1", "--tensor", "1")
        self.assertEqual((plan["microbatches"], plan["micro_batch"]), (16, 2))

    def test_recomputation_repeats_exchanges(self):
        shape = ["--context", "4", "--context-exchange", "all-to-all", "--replicas", "1", "--pipeline", "1", "--tensor", "1"]
        plain, _ = self.planned(*shape)
        repeated, _ = self.planned(*shape, "--recompute", "all")
        self.assertGreater(repeated["predicted"]["step_time_s"], plain["predicted"]["step_time_s"])
        memory = [max(plan["predicted"]["peak_memory_bytes"].values()) for plan in (plain, repeated)]
        self.assertLess(memory[1], memory[0])

    def test_refuses_what_cannot_be_divided(self):
        command = ["plan", self.platform, self.workload]
        for options, message in (
                (["--allocator", "grid", "--context", "3"],
                 "--context: sequences of 16384 tokens are not 6 equal chunks, two for each of 3 parts; use another degree"),
                (["--allocator", "grid", "--context", "16", "--context-exchange", "all-to-all"],
                 "--context: all-to-all gives each of 16 parts of 1 shard whole heads of keys and values, and there are 8; "
                 "use ring or all-gather"),
                (["--allocator", "grid", "--context", "0"], "--context: 0 is not a number of parts; write 1 or more"),
                (["--allocator", "grid", "--context-exchange", "ring"],
                 "--context-exchange: is for divided sequences; add --context"),
                (["--allocator", "grid", "--context", "2", "--context-exchange", "star"],
                 '--context-exchange: "star" is none of ring, all-gather, all-to-all'),
                (["--allocator", "grid", "--context", "2", "--splits", "2d", "--tensor", "4"],
                 "--context: goes with shards by --splits 1d or sequence; leave out one of them"),
                (["--allocator", "grid", "--context", "2", "--simulate", "2"],
                 "--simulate: also tries allocators that divide no sequences; leave out it or --context")):
            with self.subTest(options=options):
                self.assertEqual(self.fault_of(*command, *options), message)
        self.assertIn("--context", self.fault_of(*command, "--allocator", "chain-dp", "--context", "2"))

    def test_auto_takes_the_best_of_all_degrees_and_exchanges(self):
        shape = ["--pipeline", "1", "--tensor", "1", "--microbatches", "1"]
        chosen, _ = self.planned("--context", "auto", *shape)
        steps = {}
        for degree in (1, 2, 4, 8):
            for exchange in EXCHANGES if degree > 1 else (None,):
                options = ["--context-exchange", exchange] if exchange else []
                plan, _ = self.planned("--context", str(degree), *options, *shape)
                steps[degree, exchange] = plan["predicted"]["step_time_s"]
        self.assertEqual(chosen["predicted"]["step_time_s"], min(steps.values()))
        self.assertGreater(chosen["context"]["degree"], 1)

    def test_hybrid_balances_stages_of_divided_sequences(self):
        file = str(self.folder / "hybrid.json")
        self.run_isobar("plan", self.platform, self.workload, "--allocator", "hybrid", "--context", "2",
                        "--microbatches", "2", "-o", file)
        self.run_isobar("verify", self.platform, self.workload, file)
        grid, _ = self.planned("--context", "2", "--microbatches", "2")
        with open(file, encoding="utf-8") as text:
            plan = json.load(text)
        self.assertLessEqual(plan["predicted"]["step_time_s"], grid["predicted"]["step_time_s"])

    def test_recomputation_is_chosen_only_where_plans_need_it(self):
        options = ["--pipeline", "1", "--tensor", "1", "--replicas", "1", "--microbatches", "1", "--recompute", "auto"]
        plan, _ = self.planned(*options)
        self.assertNotIn("recompute", plan)
        self.run_isobar("plan", self.platform, self.workload, "--allocator", "grid", *options[:-2], "--set",
                        "micro_batch=10", expect=4)
        file = str(self.folder / "recomputed.json")
        self.run_isobar("plan", self.platform, self.workload, "--allocator", "grid", *options, "--set", "micro_batch=10",
                        "-o", file)
        self.run_isobar("verify", self.platform, self.workload, file)
        with open(file, encoding="utf-8") as text:
            self.assertEqual(json.load(text)["recompute"], list(range(1, 9)))

    def test_what_is_chosen_is_not_given(self):
        command = ["plan", self.platform, self.workload]
        for options, message in (
                (["--allocator", "grid", "--context", "auto", "--context-exchange", "ring"],
                 "--context-exchange: --context auto tries every exchange; leave out one of them"),
                (["--allocator", "grid", "--context", "some"], '--context: "some" is neither a number of parts nor auto'),
                (["--allocator", "grid", "--context", "auto", "--splits", "2d"],
                 "--context: goes with shards by --splits 1d or sequence; leave out one of them"),
                (["--allocator", "grid", "--context", "auto", "--simulate", "2"],
                 "--simulate: also tries allocators that divide no sequences; leave out it or --context"),
                (["--allocator", "grid", "--recompute", "auto", "--simulate", "2"],
                 "--simulate: compares plans that recompute the same layers; write --recompute none or all"),
                (["--allocator", "window", "--recompute", "auto"],
                 "--recompute: auto is for layers that stay on their devices; write inner, or leave it out"),
                (["--allocator", "hybrid", "--offload", "auto", "--recompute", "auto"],
                 "--recompute: auto is for layers that stay on their devices; write inner, or leave it out")):
            with self.subTest(options=options):
                self.assertEqual(self.fault_of(*command, *options), message)
        self.assertEqual(self.fault_of("compare", self.platform, self.workload, "--allocators", "grid", "--recompute", "auto"),
                         '--recompute: "auto" is neither none, all, inner, nor layers in order, such as 3-10,12')

    def test_a_plan_without_a_placement_divides_nothing(self):
        file = self.folder / "none.json"
        self.run_isobar("plan", self.platform, self.workload, "--allocator", "grid", "--context", "4", "--replicas", "8", "-o",
                        file, expect=4)
        self.assertNotIn("context", json.loads(file.read_text()))
        self.run_isobar("verify", self.platform, self.workload, file)

    def test_verify_finds_another_exchange(self):
        file = self.folder / "plan.json"
        self.planned("--context", "4", "--context-exchange", "all-to-all", "--replicas", "1", "--pipeline", "1", "--tensor", "1")
        file.write_text(file.read_text().replace('"all-to-all"', '"all-gather"'))
        verified = self.json_of("verify", self.platform, self.workload, str(file), expect=5)
        self.assertTrue(any("predicted.step_time_s" in fault for fault in verified["faults"]), verified["faults"])
