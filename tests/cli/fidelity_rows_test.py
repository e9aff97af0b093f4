"""isobar fidelity: what each column of a row does to its prediction. Properties of small machines; no measured number."""

import csv
import io
import json

from tests.cli.support import ROOT, CommandTest

SAILOR = ROOT / "results/fidelity/measured/sailor_gh200_opt350.csv"
with SAILOR.open(newline="") as sailor:
    COLUMNS = next(csv.reader(sailor))

MACHINE = """nodes: 2
gpus_per_node: 4
device: A100-SXM4-80GB
inside: {topology: switch, bandwidth_per_gpu: 300 GB/s}
outside: {nics_per_node: 4, bandwidth_per_nic: 25 GB/s}
"""
MIXED = """node_groups:
- {device: T4-16GB, count: 2, gpus_per_node: 4, inside_bandwidth_per_gpu: 16 GB/s, nic_bandwidth: 50 Gbit/s}
- {device: V100-SXM2-16GB, count: 2, gpus_per_node: 4, inside_bandwidth_per_gpu: 150 GB/s, nic_bandwidth: 50 Gbit/s}
"""
GPT = """model: gpt
layers: 8
hidden: 1024
heads: 16
vocabulary: 32000
sequence: 1024
micro_batch: 1
dtype: fp16
optimizer: adam
attention: unfused
dropout: 0.1
"""
LLAMA = """model: llama
layers: 8
hidden: 1024
heads: 16
kv_heads: 16
intermediate: 4096
vocabulary: 32000
sequence: 1024
micro_batch: 1
dtype: bf16
optimizer: adam
"""
MIXTURE = """model: decoder
layers: 8
mlp_layer_types: [dense, experts*7]
hidden: 2048
heads: 16
kv_heads: 8
vocabulary: 32000
intermediate: 4096
experts: 16
top_k: 2
expert_intermediate: 2048
sequence: 1024
dtype: bf16
optimizer: adam
"""
PARTS = ["products_s", "attention_s", "memory_bound_s", "launch_s", "tensor_s", "pipeline_s", "data_s", "bubble_s", "update_s"]
SMALL_HEAD = "vocabulary=256"  # stages of as many blocks take about as long
A100_FP16 = 312e12  # FLOP/s
OPERATORS = 13  # that Aceso counts in a block
OF_ATTENTION = 8


class Rows(CommandTest):
    """Rows of one machine and one model."""

    def setUp(self):
        super().setUp()
        self.machine = self.write("machine.yaml", MACHINE)
        self.mixed = self.write("mixed.yaml", MIXED)
        self.gpt = self.write("gpt.yaml", GPT)
        self.llama = self.write("llama.yaml", LLAMA)
        self.mixture = {"workload": self.write("mixture.yaml", MIXTURE), "framework": "megatron-core-0.8"}

    def table(self, *rows):
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for number, cells in enumerate(rows):
            writer.writerow({"set": "rows", "row": str(number), "role": "development", "platform": self.machine,
                             "workload": self.gpt, "framework": "megatron-lm-2021", "virtual_stages": 1,
                             "global_batch": 32, "micro_batch": 2, "schedule": "1f1b", "recompute": "none",
                             "measured_s": 1} | cells)
        return self.write("rows.csv", text.getvalue())

    def answers(self, *rows, expect=0):
        return self.json_of("fidelity", self.table(*rows), expect=expect)["rows"]

    def predicted(self, *rows):
        """The rows as the command prints them, all predicted, with parts that make the step."""
        answers = self.answers(*rows)
        for cells, row in zip(rows, answers):
            with self.subTest(cells=cells):
                self.assertEqual((row["status"], row["reason"]), ("predicted", ""))
                self.assertEqual(list(row["parts"]), PARTS)
                self.assertAlmostEqual(sum(row["parts"].values()) / row["predicted_s"], 1, delta=1e-6)
                for part, time in row["parts"].items():
                    self.assertGreaterEqual(time, -1e-9, part)
        return answers

    def steps(self, *rows):
        return [row["predicted_s"] for row in self.predicted(*rows)]

    def memories(self, *rows):
        return [row["predicted_memory_bytes"] for row in self.predicted(*rows)]

    def notes(self, **cells):
        return self.json_of("fidelity", self.table(cells), "--explain", "0")["row"]["notes"]

    def assert_increasing(self, numbers, least=1.0):
        """Each is more than the one before, by a factor."""
        for one, next_one in zip(numbers, numbers[1:]):
            self.assertGreater(next_one, least * one, numbers)

    def assert_unsupported(self, *expected):
        """Pairs of cells and the reason why they cannot be expressed."""
        for (cells, reason), row in zip(expected, self.answers(*(cells for cells, _ in expected), expect=4)):
            with self.subTest(cells=cells):
                self.assertEqual(row["reason"].replace(f"{self.folder}/", ""), reason)
                self.assertEqual((row["status"], row["predicted_s"]), ("unsupported", None))


class Degrees(Rows):
    def test_more_samples_take_longer_and_more_replicas_less(self):
        steps = self.steps(*({"global_batch": samples} for samples in (16, 32, 64)))
        self.assert_increasing(steps, 1.8)
        for framework in ("megatron-lm-2021", "megatron-deepspeed-2023", "megatron-core-0.8", "aceso-2024"):
            steps = self.steps(*({"dp": replicas, "framework": framework} for replicas in (8, 4, 2, 1)))
            self.assert_increasing(steps, 1.2)

    def test_a_model_of_twice_the_blocks_takes_about_twice_as_long(self):
        for cells in ({}, {"dp": 4, "zero": 1}, {"tp": 2, "dp": 2}, {"pp": 2, "tp": 2}):
            one, two = self.steps(*({"overrides": f"layers={layers}", "global_batch": 64} | cells for layers in (16, 32)))
            self.assertTrue(1.7 < two / one < 2.1, (cells, two / one))

    def test_a_step_is_not_below_the_products_at_peak(self):
        cells = [{"pp": pp, "tp": tp, "dp": dp} for pp in (1, 2, 4) for tp in (1, 2, 4) for dp in (1, 2, 4) if pp * tp * dp <= 8]
        for row, answer in zip(cells, self.predicted(*cells)):
            flops = 3 * 32 * 1024 * 8 * 24 * 1024**2  # of blocks, without attention
            bound = flops / (row["pp"] * row["tp"] * row["dp"] * A100_FP16)
            self.assertGreater(answer["predicted_s"], bound, row)

    def test_only_a_pipeline_has_a_bubble_which_more_micro_batches_and_chunks_make_smaller(self):
        whole, few, many, interleaved = self.predicted(
            {}, *({"pp": 4, "overrides": SMALL_HEAD} | cells for cells in (
                {"global_batch": 16}, {"global_batch": 64},
                {"global_batch": 16, "virtual_stages": 2, "schedule": "interleaved"})))
        self.assertEqual((whole["parts"]["bubble_s"], whole["parts"]["pipeline_s"]), (0, 0))

        def bubble(row):
            return row["parts"]["bubble_s"] / row["predicted_s"]

        self.assertAlmostEqual(bubble(few), 3 / 11, delta=0.1)
        self.assertAlmostEqual(bubble(many), 3 / 35, delta=0.04)
        self.assertLess(bubble(interleaved), 0.8 * bubble(few))

    def test_replicas_of_a_pipeline_wait_for_their_sums_beside_its_bubble(self):
        alone, replicas = self.predicted({"pp": 4, "global_batch": 16}, {"pp": 4, "dp": 2, "global_batch": 32})
        more = replicas["predicted_s"] - alone["predicted_s"]
        self.assertGreater(more, 0)
        self.assertGreater(replicas["parts"]["data_s"], 0.3 * more)
        self.assertLess(replicas["parts"]["data_s"], 1.1 * more)
        self.assertAlmostEqual(replicas["parts"]["bubble_s"] / alone["parts"]["bubble_s"], 1, delta=0.05)

    def test_no_step_is_shorter_with_longer_sequences_where_the_host_is_slow(self):
        for framework in ("megatron-core-0.8", "megatron-lm-2022"):
            rows = self.predicted(*({"tp": 2, "framework": framework, "micro_batch": 1, "global_batch": 2,
                                     "overrides": f"sequence={sequence}"} for sequence in (128, 256, 512, 1024)))
            self.assert_increasing([row["predicted_s"] for row in rows])

    def test_shards_wait_for_their_sums_and_replicas_for_theirs(self):
        alone, shards, replicas = self.predicted({}, {"tp": 4}, {"dp": 4})
        for part, row in (("tensor_s", shards), ("data_s", replicas)):
            self.assertAlmostEqual(alone["parts"][part], 0, places=12)
            self.assertGreater(row["parts"][part], 0)
        self.assertGreater(replicas["parts"]["products_s"], 0)
        self.assertAlmostEqual(shards["parts"]["data_s"], 0, places=4)
        self.assertEqual(replicas["parts"]["tensor_s"], 0)

    def test_stages_may_have_degrees_of_their_own(self):
        even, uneven = self.predicted({"pp": 3, "tp": 2}, {"pp": 3, "tp": "2+2+4", "layers": "2+2+4"})
        self.assertTrue(0.5 < uneven["predicted_s"] / even["predicted_s"] < 2)
        replicas = self.steps({"pp": 3, "dp": 2, "layers": "2+2+4"}, {"pp": 3, "dp": "2+2+4", "layers": "2+2+4"})
        self.assertLess(replicas[1], replicas[0])
        both = {"pp": 3, "tp": "1+1+2", "dp": "2+2+1", "layers": "2+2+4"}
        self.predicted(both, both | {"zero": 1}, {"pp": 2, "tp": "1+4"}, {"pp": 2, "tp": "4+1", "dp": "1+4"})

    def test_blocks_of_stages_may_be_cut(self):
        cells = {"pp": 2, "overrides": SMALL_HEAD}
        even, cut, uneven = self.steps(*(cells | {"layers": layers} for layers in ("4+4", "5.5+2.5", "6+2")))
        self.assert_increasing([even, cut, uneven])
        self.assertAlmostEqual(even, self.steps(cells)[0], places=12)

    def test_chunks_of_uneven_numbers_of_blocks_are_interleaved(self):
        cells = {"pp": 2, "virtual_stages": 2, "schedule": "interleaved"}
        seven, eight = self.steps(*({"overrides": f"layers={layers}"} | cells for layers in (7, 8)))
        self.assertLess(seven, 1.05 * eight)

    def test_the_last_micro_batch_may_be_smaller(self):
        self.assert_increasing(self.steps(*({"global_batch": samples} for samples in (32, 33, 34))))
        self.assert_increasing(self.steps(*({"global_batch": samples, "dp": 4} for samples in (24, 28, 32))))
        self.assertAlmostEqual(*self.steps({"global_batch": 3, "micro_batch": 4}, {"global_batch": 3, "micro_batch": 3}),
                               places=12)

    def test_schedules_differ_as_they_should(self):
        gpipe, one = self.predicted(*({"pp": 4, "schedule": schedule} for schedule in ("gpipe", "1f1b")))
        self.assertAlmostEqual(gpipe["predicted_s"] / one["predicted_s"], 1, delta=0.1)
        self.assertGreater(gpipe["predicted_memory_bytes"], 1.5 * one["predicted_memory_bytes"])
        sequential = self.steps({"pp": 4, "schedule": "sequential"})[0]
        self.assertGreater(sequential, 2 * one["predicted_s"])


class Sharding(Rows):
    def test_zero_divides_what_the_devices_hold(self):
        rows = [{"dp": 8, "zero": zero} for zero in (3, 2, 1, 0)]
        self.assert_increasing(self.memories(*rows), 0.999)
        memories = self.memories(*rows)
        self.assertLess(memories[0], 0.8 * memories[3])

    def test_replicas_that_divide_parameters_gather_them_for_each_micro_batch(self):
        cells = {"dp": 8, "framework": "composer-fsdp-2023", "workload": self.gpt, "overrides": "dropout=0;attention=flash"}
        zero = [self.predicted(cells | {"zero": 3, "micro_batch": micro, "global_batch": 64})[0] for micro in (8, 1)]
        self.assertGreater(zero[1]["parts"]["data_s"], 2 * zero[0]["parts"]["data_s"])

    def test_replicas_with_shards_divide_parameters_too(self):
        cells = {"tp": 2, "dp": 4, "zero": 3}
        large, small = self.predicted(*(cells | {"micro_batch": micro} for micro in (8, 1)))
        self.assertGreater(small["parts"]["data_s"], 4 * large["parts"]["data_s"])
        self.assertLess(small["predicted_memory_bytes"], self.memories(cells | {"zero": 2, "micro_batch": 1})[0])

    def test_sequence_parallelism_divides_what_shards_repeat(self):
        whole, divided = self.predicted(*({"tp": 4, "sequence_parallel": flag} for flag in (0, 1)))
        self.assertLess(divided["parts"]["memory_bound_s"], whole["parts"]["memory_bound_s"])
        self.assertLess(divided["predicted_memory_bytes"], whole["predicted_memory_bytes"])
        self.predicted({"tp": 4, "sequence_parallel": 1, "pp": 2}, {"sequence_parallel": 1})


class Recomputation(Rows):
    def plan(self, **changes):
        """Two stages of 4 blocks on 2 and 4 devices; the second recomputes the attention of its blocks."""
        operators = [1 + 4 * OPERATORS, 4 * OPERATORS + 2]
        attention = [1] * OF_ATTENTION + [0] * (OPERATORS - OF_ATTENTION)
        plan = {"num_ops_in_each_stage": operators, "num_gpus": [2, 4],
                "model_parallel_size_of_each_op": [[1] * operators[0], [2] * operators[1]],
                "data_parallel_size_of_each_op": [[2] * operators[0], [2] * operators[1]],
                "recompute_ops": [[0] * operators[0], attention * 4 + [0, 0]]} | changes
        return self.write("plan.json", json.dumps(plan))

    def planned(self, **changes):
        return {"plan": self.plan(**changes), "recompute": "plan", "pp": 2, "framework": "aceso-2024"}

    def test_recomputation_costs_time_and_saves_memory(self):
        for cells in ({}, {"tp": 2}, {"pp": 2, "dp": 2}, {"tp": 2, "sequence_parallel": 1}):
            rows = self.predicted(*(cells | {"recompute": kind, "micro_batch": 8} for kind in ("none", "selective", "full")))
            self.assert_increasing([row["predicted_s"] for row in rows])
            self.assert_increasing([row["predicted_memory_bytes"] for row in reversed(rows)])
            self.assertLess(rows[2]["predicted_s"], 1.5 * rows[0]["predicted_s"])

    def test_recomputation_of_experts_is_between_none_and_all(self):
        cells = self.mixture | {"dp": 8, "ep": 8, "micro_batch": 8}
        rows = self.predicted(*(cells | {"recompute": kind} for kind in ("none", "moe", "full")))
        self.assert_increasing([row["predicted_s"] for row in rows])
        self.assert_increasing([row["predicted_memory_bytes"] for row in reversed(rows)])
        attention = [row["parts"]["attention_s"] for row in rows]
        self.assertEqual(attention[0], attention[1])
        self.assertLess(attention[1], attention[2])
        self.assert_unsupported(({"recompute": "moe"}, "recompute: no block has moe"))

    def test_recomputed_modules_cost_time_and_save_memory(self):
        cells = self.mixture | {"dp": 8, "ep": 8, "micro_batch": 8, "framework": "megatron-bridge-2026"}
        none, act, more, most = self.predicted(
            *(cells | {"recompute": kind} for kind in ("none", "moe_act", "moe_act layernorm", "moe_act layernorm mlp")))
        rows = [none, act, more, most]
        self.assert_increasing([row["predicted_s"] for row in rows])
        self.assert_increasing([row["predicted_memory_bytes"] for row in reversed(rows)])
        self.assertEqual([row["parts"]["attention_s"] for row in rows], [none["parts"]["attention_s"]] * 4)
        core = self.predicted(cells | {"recompute": "core_attn"})[0]
        self.assertGreater(core["parts"]["attention_s"], none["parts"]["attention_s"])
        self.assert_unsupported(
            (cells | {"recompute": "mla_up_proj"}, "recompute: no block has mla_up_proj"),
            (cells | {"recompute": "shared_experts mlp"}, "recompute: no block has shared_experts"))

    def test_the_reserve_of_the_allocator_counts_where_a_row_says_reserved(self):
        cells = {"overrides": "framework.memory_reserve=1.5", "measured_memory_bytes": 1e9}
        kinds = ("allocated", "reserved", "device")
        allocated, reserved, device = self.memories(*(cells | {"memory_kind": kind} for kind in kinds))
        self.assertAlmostEqual(reserved / allocated, 1.5, places=9)
        self.assertAlmostEqual(device, self.memories({"measured_memory_bytes": 1e9, "memory_kind": "device"})[0], places=9)

    def test_a_plan_of_aceso_says_degrees_blocks_and_recomputation(self):
        columns = {"pp": 2, "tp": "1+2", "dp": "2+2", "layers": "4+4", "framework": "aceso-2024"}
        some, none, full = self.steps(self.planned(), columns, columns | {"recompute": "full"})
        self.assert_increasing([none, some, full])
        one, two = (1 + 4 * OPERATORS, 4 * OPERATORS + 2)
        self.assertAlmostEqual(*self.steps(self.planned(recompute_ops=[[0] * one, [0] * two]), columns), places=9)
        blocks = [[0] + [1] * (one - 1), [1] * (two - 2) + [0, 0]]
        self.assertAlmostEqual(*self.steps(self.planned(recompute_ops=blocks), columns | {"recompute": "full"}), places=9)

    def test_the_stages_of_a_plan_of_aceso_may_cut_blocks(self):
        one, two = 1 + 3 * OPERATORS + OF_ATTENTION, 2 + 4 * OPERATORS + OPERATORS - OF_ATTENTION
        cut = self.planned(num_ops_in_each_stage=[one, two], model_parallel_size_of_each_op=[[1] * one, [2] * two],
                           data_parallel_size_of_each_op=[[2] * one, [2] * two], recompute_ops=[[0] * one, [0] * two])
        columns = {"pp": 2, "tp": "1+2", "dp": "2+2", "layers": "3.5+4.5", "framework": "aceso-2024"}
        self.assertAlmostEqual(*self.steps(cut, columns), places=9)

    def test_says_what_is_wrong_with_a_plan_of_aceso(self):
        one, two = (1 + 4 * OPERATORS, 4 * OPERATORS + 2)
        for changes, reason in (
                ({"num_gpus": [2]}, "num_gpus: has 1 numbers; num_ops_in_each_stage has 2"),
                ({"num_gpus": [2, 8]}, "num_gpus: 8 of stage 1; most of its operators have 2 x 2"),
                ({"num_gpus": [2, 0], "model_parallel_size_of_each_op": [[1] * one, [0] * two]}, "num_gpus: stage 1 has none"),
                ({"num_gpus": [2, -4]}, "num_gpus: -4 is not a whole number, 0 or more"),
                ({"num_gpus": [2, 4.5]}, "num_gpus: 4.5 is not a whole number, 0 or more"),
                ({"num_gpus": "2"}, "num_gpus: is not what Aceso writes; write lists of numbers by stage"),
                ({"recompute_ops": [[0] * one]}, "recompute_ops: has 1 lists; num_ops_in_each_stage has 2"),
                ({"recompute_ops": [[0] * one, [0]]}, f"recompute_ops: has 1 numbers for the {two} operators of stage 1"),
                ({"num_ops_in_each_stage": [one + OPERATORS, two],
                  "model_parallel_size_of_each_op": [[1] * (one + OPERATORS), [2] * two],
                  "data_parallel_size_of_each_op": [[2] * (one + OPERATORS), [2] * two],
                  "recompute_ops": [[0] * (one + OPERATORS), [0] * two]},
                 f"num_ops_in_each_stage: sum to {one + two + OPERATORS}; 8 blocks have {8 * OPERATORS}, and "
                 "there are 1 to 4 others")):
            self.assert_unsupported((self.planned(**changes), f"plan.json: {reason}"))
        path = self.write("plan.json", "[1]")
        self.assert_unsupported(({"plan": path, "recompute": "plan"},
                                 "plan.json: is no JSON object; write a plan of Aceso, or leave the column empty"))
        path = self.write("plan.json", "{}")
        self.assert_unsupported(({"plan": path, "recompute": "plan"}, "plan.json: num_ops_in_each_stage: is missing"))


class Machines(Rows):
    def test_stages_are_on_the_devices_that_the_column_names(self):
        cells = {"platform": self.mixed, "workload": self.gpt, "pp": 2, "framework": "amp"}
        t4, v100, mixed, swapped = self.steps(*(
            cells | {"devices": devices} for devices in
            ("T4-16GB|T4-16GB", "V100-SXM2-16GB|V100-SXM2-16GB", "T4-16GB|V100-SXM2-16GB", "V100-SXM2-16GB|T4-16GB")))
        self.assert_increasing([v100, mixed, t4 * 1.2], 1.2)
        self.assertTrue(1 < swapped / mixed < t4 / v100)  # the head is on the slow device
        fewer = self.steps(cells | {"devices": "T4-16GB|V100-SXM2-16GB", "layers": "2+6"})[0]
        self.assertLess(fewer, mixed)

    def test_types_and_indices_name_the_same_devices(self):
        cells = {"platform": self.mixed, "pp": 2, "tp": 2, "dp": 2, "framework": "amp"}
        by_type, by_replica, by_range, by_index, by_order = self.steps(
            cells | {"devices": "V100-SXM2-16GB|T4-16GB"},
            cells | {"devices": "V100-SXM2-16GB,V100-SXM2-16GB|T4-16GB,T4-16GB"},
            cells | {"devices": "8-11|0-3"}, cells | {"devices": "8-9,10-11|0-1,2-3"}, cells)
        self.assertAlmostEqual(by_type, by_replica, places=12)
        self.assertAlmostEqual(by_type, by_range, places=12)
        self.assertAlmostEqual(by_type, by_index, places=12)
        self.assertLess(by_type, by_order)

    def test_the_slowest_replica_decides(self):
        cells = {"platform": self.mixed, "dp": 2, "framework": "amp"}
        slow, fast, mixed = self.steps(*(cells | {"devices": devices} for devices in (
            "T4-16GB,T4-16GB", "V100-SXM2-16GB,V100-SXM2-16GB", "T4-16GB,V100-SXM2-16GB")))
        self.assertLess(fast, 0.8 * mixed)
        self.assertAlmostEqual(mixed / slow, 1, delta=0.1)

    def test_a_platform_of_simgrid_gives_what_its_machine_file_gives(self):
        platform = str(self.folder / "machine.xml")
        self.run_isobar("platform", "generate", "machine", self.machine, "-o", platform)
        cells = {"pp": 2, "tp": 2, "dp": 2}
        self.assertAlmostEqual(*self.steps(cells, cells | {"platform": platform}), places=12)
        self.assert_unsupported((cells | {"platform": platform, "platform_overrides": "nodes=4"},
                                 "platform_overrides: machine.xml is a SimGrid platform, which has none"))

    def test_what_a_run_needs_is_compared_with_the_memory_of_the_platform(self):
        platform = self.folder / "machine.xml"
        self.run_isobar("platform", "generate", "machine", self.machine, "-o", platform)
        shown = self.run_isobar("platform", "show", platform).stdout
        self.assertIn(" 79.2 GiB ", shown)
        full = {"platform": str(platform), "overrides": "hidden=16384"}
        self.assertRegex("\n".join(self.notes(**full)), r"device n0g0 needs \S+ [GT]iB and has 79\.2 GiB")
        xml = platform.read_text()
        self.assertEqual(xml.count('value="81051 MiB"'), 8)
        platform.write_text(xml.replace('value="81051 MiB"', 'value="2 GiB"'))
        self.assertRegex("\n".join(self.notes(platform=str(platform))),
                         r"device n0g0 needs \S+ GiB and has 2\.00 GiB")

    def test_overrides_change_the_machine(self):
        cells = {"dp": 16, "platform_overrides": "nodes=4", "global_batch": 64}
        wide, narrow = self.steps(cells, cells | {"platform_overrides": "nodes=2;gpus_per_node=8"})
        self.assertNotAlmostEqual(wide, narrow, places=6)
        self.assert_unsupported((cells | {"platform_overrides": ""},
                                 "platform: has 8 devices, too few for the degrees of the row"))

    def test_measured_layers_replace_those_of_their_device_type(self):
        def profile(block):
            layers = {"0": [0.001, 0.001, 0.01]} | {str(i): [block, 2 * block, 0.01] for i in range(1, 9)} | {
                "9": [0.002, 0.004, 0.01]}
            return json.dumps({"2": {"1": layers}, "4": {"1": {i: [2 * t for t in times[:2]] + [0.01]
                                                                for i, times in layers.items()}}})

        fast = self.write("MODEL_V100-16.json", profile(0.010))
        slow = self.write("MODEL_T4.json", profile(0.040))
        cells = {"platform": self.mixed, "framework": "sailor", "profiles": f"{fast};{slow}"}
        v100, t4, other = self.steps(*(cells | {"devices": kind} for kind in ("V100-SXM2-16GB", "T4-16GB")),
                                     cells | {"devices": "T4-16GB", "profiles": fast})
        self.assertAlmostEqual(v100, 16 * (8 * 0.03 + 0.008) + 0.01, delta=0.01)
        self.assertAlmostEqual(t4, 16 * (8 * 0.12 + 0.008) + 0.01, delta=0.01)
        self.assertNotAlmostEqual(other, t4, places=2)
        self.assert_unsupported((cells | {"devices": "T4-16GB", "overrides": "layers=6"},
                                 "MODEL_T4.json: has 10 layers, and the workload has 8"))


class Workloads(Rows):
    def test_a_llama_with_fewer_key_heads_is_faster(self):
        for cells in ({}, {"tp": 2}, {"tp": 4, "pp": 2}):
            few, all_heads = self.steps(*({"workload": self.llama, "overrides": f"kv_heads={heads}"} | cells
                                          for heads in (4, 16)))
            self.assertTrue(0.8 * all_heads < few < all_heads, (few, all_heads))

    def test_overrides_change_the_workload(self):
        small, wide = self.steps({}, {"overrides": "hidden=2048;heads=32"})
        self.assertGreater(wide, 1.5 * small)

    def test_fused_attention_is_predicted_with_dropout(self):
        workload = self.write("flash.yaml", GPT.replace("unfused", "flash"))
        cells = {"micro_batch": 8}  # so that the host does not decide
        unfused, dropped, without = self.steps(*(cells | more for more in (
            {}, {"workload": workload}, {"workload": workload, "overrides": "dropout=0"})))
        self.assertLess(dropped, unfused)
        self.assertTrue(without <= dropped < 1.1 * without, (without, dropped))
        overrides = ("attention=flash", "attention=fused;dropout=0.2")
        for step in self.steps(*(cells | {"overrides": override} for override in overrides),
                               cells | {"workload": workload, "recompute": "selective"}):
            self.assertAlmostEqual(step, dropped, places=12)

    def test_divides_sequences_by_the_exchange_of_the_row_or_the_one_of_the_least_step(self):
        exchanges = ("ring", "all-gather", "all-to-all")
        rows = [{"cp": f"4 {exchange}", "dp": 2, "workload": self.llama, "framework": "megatron-core-0.8"}
                for exchange in exchanges]
        steps = self.steps(*rows)
        self.assertEqual(len(set(steps)), 3, steps)
        self.assertAlmostEqual(self.steps(rows[0] | {"cp": "4"})[0], min(steps), places=12)
        notes = self.notes(**(rows[0] | {"cp": 4}))
        self.assertTrue(any(f"exchange {name} are" in note or f"exchange {name} and" in note
                            for note in notes for name in exchanges), notes)

    def test_folds_groups_that_divide_sequences(self):
        many = {"platform_overrides": "nodes=8", "workload": self.llama, "framework": "megatron-core-0.8"}
        shapes = [{"dp": 8, "zero": 1}, {"dp": 4, "tp": 2, "sequence_parallel": 1}, {"dp": 4, "pp": 2}]
        rows = [many | shape | {"cp": f"4 {exchange}"} for shape in shapes for exchange in ("ring", "all-to-all")]
        table = self.table(*rows)
        folded, unfolded = (self.json_of("fidelity", table, *options)["rows"] for options in ((), ("--unfolded",)))
        for cells, one, other in zip(rows, folded, unfolded):
            with self.subTest(cells=cells):
                self.assertEqual((one["status"], one["folded"], other["folded"]), ("predicted", True, False))
                self.assertAlmostEqual(other["predicted_s"] / one["predicted_s"], 1, delta=1e-6)

    def test_shards_have_whole_experts_or_a_part_of_each(self):
        cells = self.mixture | {"tp": 2, "dp": 4, "sequence_parallel": 1}
        whole, parts = self.predicted(cells | {"ep": "8 etp 1"}, cells | {"ep": 4})
        self.assertLess(whole["parts"]["products_s"], parts["parts"]["products_s"])  # wider products
        one, other = self.steps(cells | {"tp": 1, "dp": 8, "ep": "8 etp 1"}, cells | {"tp": 1, "dp": 8, "ep": 8})
        self.assertEqual(one, other)
        self.assert_unsupported((cells | {"ep": "1 etp 1"}, "ep: 1 parts of whole experts for groups of 2 shards; plans have a "
                                                            "multiple of them"))

    def test_blocks_of_multi_token_prediction_are_on_the_last_stage(self):
        cells = self.mixture | {"pp": 2, "ep": 2, "dp": 2}
        further = cells | {"overrides": "mtp_layers=1"}
        plain, predicts, moved = self.steps(cells, further, further | {"layers": "5+3"})
        self.assertLess(plain, moved)
        self.assertLess(moved, predicts)

    def test_a_pipeline_that_divides_the_vocabulary_has_no_slow_last_stage(self):
        large = {"pp": 4, "dp": 2, "overrides": "vocabulary=256000", "recompute": "full"}
        whole, *divided = self.predicted(large, *({**large, "schedule": schedule} for schedule in (
            "1f1b-vocab-1", "1f1b-vocab-2", "1f1b-interlaced")))
        for row in divided:
            self.assertLess(row["predicted_s"], 0.7 * whole["predicted_s"])
            self.assertLess(row["predicted_memory_bytes"], whole["predicted_memory_bytes"])
        two_sums, one_sum, _ = (row["predicted_memory_bytes"] for row in divided)
        self.assertLess(one_sum, two_sums)

    def test_chunks_have_the_blocks_that_a_row_says(self):
        cells = self.mixture | {"pp": 2, "dp": 2, "virtual_stages": 2, "schedule": "interleaved"}
        even, same, uneven = self.steps(cells, cells | {"layers": "2*4"}, cells | {"layers": "4+1+3+0"})
        self.assertEqual(even, same)
        self.assertLess(even, uneven)

    def test_blocks_of_one_part_are_layers(self):
        lists = {"layer_types": "[full, none]", "mlp_layer_types": "[none, dense]", "layers": 16}
        text = "".join(f"{key}: {value}\n" for key, value in lists.items()) + "".join(
            line + "\n" for line in MIXTURE.splitlines() if line.split(":")[0] not in lists | {"experts": 0, "top_k": 0, "expert_intermediate": 0})
        parts = {"workload": self.write("parts.yaml", text), "framework": "megatron-core-0.8", "pp": 2, "layers": "8+8"}
        pairs = parts | {"workload": self.write("pairs.yaml", text.replace("[full, none]", "[full]").replace("[none, dense]", "[dense]")
                                                .replace("layers: 16", "layers: 8")), "layers": "4+4"}
        one, other = self.steps(parts, pairs)
        self.assertTrue(1 <= one / other < 1.2, one / other)  # a block waits for the host as a whole

    def test_products_in_fewer_bits_take_less_time(self):
        cells = {"platform": self.write("b200.yaml", MACHINE.replace("A100-SXM4-80GB", "B200-SXM")), "workload": self.llama,
                 "framework": "megatron-bridge-2026", "overrides": "hidden=8192;heads=64;kv_heads=8;intermediate=28672"}
        rows = [cells] + [cells | {"overrides": f"{cells['overrides']};matmul_dtype={recipe}"} for recipe in ("mxfp8", "nvfp4")]
        plain, eight, four = self.predicted(*rows)
        products = [row["parts"]["products_s"] for row in (four, eight, plain)]
        self.assert_increasing(products, 1.5)
        self.assertLess(eight["predicted_s"], plain["predicted_s"])
        self.assert_unsupported((cells | {"platform": self.machine, "overrides": "matmul_dtype=fp8_cs"},
                                 "workload llama: matmul_dtype: fp8_cs: A100-SXM4-80GB has no products in 8 bits; leave it out"))

    def test_products_of_newer_libraries_are_fitted_to_their_calibration_row(self):
        table = ROOT / "results/fidelity/measured/bridge_cards.csv"
        row = self.json_of("fidelity", table, "--explain", "qwen8-h100-16-bf16")["row"]
        self.assertEqual((row["role"], row["framework"]), ("calibration", "megatron-bridge-2026"))
        self.assertLess(abs(row["error_fraction"]), 0.005)

    def test_tokens_that_go_once_to_each_node_or_beside_computation_take_less_time(self):
        cells = self.mixture | {"dp": 8, "ep": 8, "overrides": "top_k=8"}
        once = "top_k=8;framework.dispatch_once_a_node=true"
        plain, sent_once, hidden = self.steps(cells, cells | {"overrides": once},
                                              cells | {"overrides": once + ";framework.overlap_dispatches=true"})
        self.assertLess(sent_once, plain)
        self.assertLess(hidden, sent_once)
        inside = cells | {"dp": 4, "ep": 4, "platform_overrides": "nodes=1"}
        self.assertEqual(*self.steps(inside, inside | {"overrides": once}))

    def test_says_what_a_row_leaves_open(self):
        known = [{"micro_batch": size, "global_batch": 8} for size in (1, 2, 4, 8)]
        least = min(self.steps(*known))
        best = self.steps({"micro_batch": "", "global_batch": 8})[0]
        self.assertTrue(0.999 * least <= best <= 1.02 * least, (best, least))
        for schedule in ("", "1f1b", "interleaved"):
            notes = self.notes(micro_batch="", recompute="", virtual_stages="", pp=2, global_batch=8, schedule=schedule)
            self.assertEqual(len([note for note in notes if "are the best that fit" in note]), 1, notes)

    def test_constants_of_the_family_stand_for_software_of_an_unknown_year(self):
        self.assertAlmostEqual(*self.steps({"framework": "megatron-lm-2031"}, {"framework": "megatron-lm-2022"}), places=12)
        notes = "\n".join(self.notes(framework="megatron-lm-2031"))
        self.assertIn("megatron-lm-2031", notes)
        self.assertIn("those of megatron-lm-2022 stand for them", notes)
        self.assertNotIn("stand for them", "\n".join(self.notes(framework="megatron-lm-2022")))


class Reasons(Rows):
    def test_says_why_a_row_cannot_be_expressed(self):
        unknown = self.write("unknown.yaml", MACHINE.replace("A100-SXM4-80GB", "Z9"))
        self.assert_unsupported(
            ({"cp": 3}, "cp: sequences of 1024 tokens are not 6 equal chunks, two for each of 3 parts; use another degree"),
            ({"ep": 2}, "ep: no layer of gpt has experts"),
            ({"schedule": "zb-h1"}, "schedule: zb-h1 is none that plans have"),
            ({"schedule": "1f1b-vocab-1", "pp": 2, "tp": 2},
             "schedule: 1f1b-vocab-1 with tp, cp, ep, sequence_parallel or virtual_stages"),
            ({"schedule": "1f1b-vocab-1"}, "schedule: 1f1b-vocab-1 of one stage"),
            ({"schedule": "1f1b-vocab-1", "pp": 3},
             "schedule: 3 shards of layer embedding, which has 32000 vocabulary; software divides them evenly"),
            ({"dp": 16}, "platform: has 8 devices, too few for the degrees of the row"),
            ({"platform": self.mixed, "devices": "T4-16GB", "dp": 16},
             "platform: has 8 devices of type T4-16GB, too few for the degrees of the row"),
            ({"devices": "6-9"}, "devices: 6-9 of a machine with 8"),
            ({"devices": "0-1"}, "devices: 0-1 for 1 shards"),
            ({"devices": "0|1"}, "devices: of 2 stages; the pipeline has 1"),
            ({"devices": "0,1,2", "dp": 2}, "devices: 3 replicas of stage 0; it has 2"),
            ({"devices": "0,0", "dp": 2}, "devices: number 0 is named twice"),
            ({"layers": "5+5", "pp": 2}, "layers: of 10 blocks; the model has 8"),
            ({"virtual_stages": 2}, "virtual_stages: of a pipeline of one stage"),
            ({"overrides": "layrs=4"}, "overrides: layrs: unknown key; did you mean layers?"),
            ({"framework": ""}, "framework: is empty; name the software that trained"),
            ({"pp": 4, "overrides": "layers=2"}, "layers: a stage of no layer"),
            ({"schedule": "interleaved", "pp": 2},
             "schedule: interleaved needs the same number of stages on each device, at least 2, not 2 stages on 2 devices; "
             "use 1f1b"),
            ({"pp": 2, "virtual_stages": 2}, "schedule: 1f1b takes no chunks; it takes warm_up, overlap_experts"),
            ({"tp": 32, "platform_overrides": "nodes=8"}, "tp: 32 shards of layer block0.attention, which has 16 heads; software divides them evenly"),
            ({"tp": 7}, "tp: 7 shards of layer block0.attention, which has 16 heads; software divides them evenly"),
            ({"global_batch": 2, "dp": 4}, "global_batch: 2 samples for 4 replicas"),
            ({"recompute": "plan"}, "recompute: is plan; name one in the column plan"))
        software, device = self.answers({"framework": "pax"}, {"platform": unknown}, expect=4)
        self.assertTrue(software["reason"].startswith('framework: "pax" is unknown; write one of aceso-2024, '))
        self.assertTrue(device["reason"].startswith(f'{unknown}:3: device: "Z9" is not a device type; the types are '))
