"""Plans whose replicas divide experts: isobar plan --experts, verify, simulate."""

import json
import pathlib

from tests.cli.support import ISOBAR, CommandTest

NODES = 2
GPUS = 4
MACHINE = f"""nodes: {NODES}
gpus_per_node: {GPUS}
device: A100-SXM4-80GB
inside: {{topology: switch, bandwidth_per_gpu: 300 GB/s}}
outside: {{nics_per_node: {GPUS}, bandwidth_per_nic: 25 GB/s}}
"""
EXPERTS = 8
DISPATCHED = 16_000_000
DENSE = 1_000_000  # parameters beside the experts
OF_EXPERTS = 80_000_000
BLOCKS = 3
MICROBATCHES = 8


def workload(imbalance=""):
    lines = ["model: layers", "micro_batch: 1", "dtype: bf16", "optimizer: adam", "sequence: 512"]
    if imbalance:
        lines.append(f"expert_imbalance: {imbalance}")
    lines.append("layers:")
    layer = 'forward: "{} TFLOP", parameters: {}, activations: "{} MB", output: 8 MB'
    lines.append("  - {name: embedding, " + layer.format(0.1, DENSE, 20) + "}")
    for block in range(BLOCKS):
        lines.append(f"  - {{name: attention{block}, " + layer.format(1, DENSE, 60) + "}")
        lines.append(f"  - {{name: experts{block}, " + layer.format(2, DENSE + OF_EXPERTS, 100)
                     + f", experts: {{count: {EXPERTS}, per_token: 2, parameters: {OF_EXPERTS}, forward: 1.5 TFLOP, "
                     f'activations: 80 MB, dispatched: "{DISPATCHED} B"}}}}')
    lines.append("  - {name: head, " + layer.format(1, DENSE, 60) + "}")
    return "\n".join(lines) + "\n"


# Large enough for devices to take longer than their hosts.
MIXTURE = """model: decoder
layers: 4
mlp_layer_types: [dense, experts*3]
hidden: 4096
heads: 32
kv_heads: 8
vocabulary: 8000
intermediate: 4096
experts: 16
top_k: 2
expert_intermediate: 4096
shared_intermediate: 512
attention: fused
sequence: 4096
micro_batch: 2
dtype: bf16
optimizer: adam
unit: operator
compute: operators
framework: megatron-core-0.8
"""


SMALL = """model: decoder
layers: 3
mlp_layer_types: [dense, experts*2]
hidden: 32
heads: 4
vocabulary: 100
intermediate: 64
experts: 8
top_k: 2
expert_intermediate: 32
sequence: 32
micro_batch: 2
optimizer: adamw
clip_norm: 1
unit: operator
"""


class Experts(CommandTest):
    def setUp(self):
        super().setUp()
        machine = self.write("machine.yaml", MACHINE)
        self.platform = str(self.folder / "platform.xml")
        self.run_isobar("platform", "generate", "machine", machine, "-o", self.platform)
        self.workload = self.write("moe.yaml", workload())

    def planned(self, *options, of=None):
        """A plan of grid for these options, which holds, and whose simulated step is the predicted one."""
        file = str(self.folder / "plan.json")
        of = of or self.workload
        self.run_isobar("plan", self.platform, of, "--allocator", "grid", *options, "-o", file)
        verified = self.json_of("verify", self.platform, of, file)
        self.assertEqual((verified["holds"], verified["faults"]), (True, []))
        simulated = self.json_of("simulate", self.platform, of, "--plan", file)
        with open(file, encoding="utf-8") as text:
            plan = json.load(text)
        self.assertAlmostEqual(simulated["step_time_s"] / plan["predicted"]["step_time_s"], 1, delta=1e-6)
        self.assertEqual({each["device"]: each["peak_memory_bytes"] for each in simulated["stages"]},
                         plan["predicted"]["peak_memory_bytes"])
        return plan, simulated

    def test_decoders_with_operators_hold_too_and_wait_for_the_most_loaded_expert(self):
        mixture = self.write("mixture.yaml", MIXTURE)
        uneven = self.write("uneven.yaml", MIXTURE + "expert_imbalance: 1.5\n")
        for shape in (["--experts", "8", "--replicas", "8", "--pipeline", "1", "--tensor", "1"],
                      ["--experts", "2", "--replicas", "4", "--pipeline", "1", "--tensor", "2"],
                      ["--experts", "2", "--replicas", "4", "--pipeline", "1", "--tensor", "2", "--experts-tensor", "1"],
                      ["--experts", "4", "--replicas", "4", "--pipeline", "1", "--tensor", "1", "--context", "2"]):
            with self.subTest(shape=shape):
                even, _ = self.planned(*shape, "--microbatches", "16", of=mixture)
                loaded, _ = self.planned(*shape, "--microbatches", "16", of=uneven)
                self.assertGreater(loaded["predicted"]["step_time_s"], even["predicted"]["step_time_s"])
                self.assertGreater(max(loaded["predicted"]["peak_memory_bytes"].values()),
                                   max(even["predicted"]["peak_memory_bytes"].values()))

    def test_tokens_go_once_to_each_node_or_beside_other_passes(self):
        shape = ["--replicas", "8", "--pipeline", "1", "--tensor", "1", "--microbatches", "16"]
        steps = {}
        for experts in ("4", "8"):
            for flags in ("", "dispatch_once_a_node: true", "dispatch_once_a_node: true, overlap_dispatches: true"):
                text = MIXTURE.replace("top_k: 2", "top_k: 8").replace(
                    "framework: megatron-core-0.8", f"framework: {{name: megatron-core, version: '0.8', {flags}}}")
                with self.subTest(experts=experts, flags=flags):
                    plan, _ = self.planned("--experts", experts, *shape, of=self.write("mixture.yaml", text))
                    steps[experts, flags.count("true")] = plan["predicted"]["step_time_s"]
        self.assertLess(steps["8", 1], steps["8", 0])
        self.assertEqual(steps["4", 1], steps["4", 0])  # groups inside of nodes
        for experts in ("4", "8"):
            self.assertLess(steps[experts, 2], steps[experts, 1])

    def test_passes_of_two_micro_batches_hide_exchanges(self):
        shape = ["--experts", "8", "--replicas", "8", "--pipeline", "1", "--tensor", "1", "--microbatches", "64"]
        in_turn, alone = self.planned(*shape)
        beside, together = self.planned(*shape, "--overlap-experts")
        self.assertEqual(beside["schedule"], {"name": "1f1b", "overlap_experts": 1})
        self.assertLess(beside["predicted"]["step_time_s"], in_turn["predicted"]["step_time_s"])
        for before, after in zip(alone["links"], together["links"]):
            self.assertEqual(before["name"], after["name"])
            self.assertAlmostEqual(before["bytes"], after["bytes"], delta=1e-9 * before["bytes"])
        for schedule in ("1f1b", "interleaved(chunks=2)", "dualpipe-v"):
            with self.subTest(schedule=schedule):
                shape = ["--experts", "4", "--replicas", "4", "--pipeline", "2", "--microbatches", "32", "--schedule", schedule]
                self.planned(*shape, "--overlap-experts", of=self.write("mixture.yaml", MIXTURE))
        best, _ = self.planned("--replicas", "8", "--pipeline", "1", "--tensor", "1", "--microbatches", "8", "--overlap-experts")
        self.assertGreater(best["experts"]["degree"], 1)

    def test_pairs_of_passes_travel_through_torchs_file(self):
        mixture = self.write("mixture.yaml", MIXTURE)
        for schedule in ("1f1b", "interleaved(chunks=2)", "dualpipe-v"):
            with self.subTest(schedule=schedule):
                shape = ["--experts", "4", "--replicas", "4", "--pipeline", "2", "--tensor", "1", "--microbatches", "32",
                         "--schedule", schedule]
                made, _ = self.planned(*shape, "--overlap-experts", of=mixture)
                csv = self.run_isobar("schedule", "show", self.folder / "plan.json", "--csv").stdout
                self.assertIn("OVERLAP_F_B", csv)
                self.assertEqual(len(csv.splitlines()), 2)  # of one of four pipelines
                listed = self.folder / "listed.json"
                self.run_isobar("schedule", "import", self.write("orders.csv", csv), self.platform, mixture, "--plan",
                                self.folder / "plan.json", "-o", listed)
                self.assertEqual(self.run_isobar("schedule", "show", listed, "--csv").stdout, csv)
                plan = json.loads(listed.read_text())
                self.assertEqual((plan["schedule"]["name"], plan["schedule"]["overlap_experts"]), ("listed", 1))
                self.assertEqual(set(plan["schedule"]["orders"]),
                                 {stage["replicas"][0]["shards"][0]["device"] for stage in plan["stages"]})
                for key in ("step_time_s", "peak_memory_bytes"):
                    self.assertEqual(plan["predicted"][key], made["predicted"][key])
                self.assertTrue(self.json_of("verify", self.platform, mixture, listed)["holds"])
                simulated = self.json_of("simulate", self.platform, mixture, "--plan", listed)
                self.assertAlmostEqual(simulated["step_time_s"] / made["predicted"]["step_time_s"], 1, delta=1e-6)
                orders = self.run_isobar("schedule", "show", listed, "--json").stdout
                again = self.folder / "again.json"
                self.run_isobar("schedule", "import", self.write("orders.json", orders), self.platform, mixture, "--plan",
                                listed, "-o", again)
                self.assertEqual(json.loads(again.read_text())["schedule"], plan["schedule"])

    def test_further_predictions_use_the_embedding_of_another_stage(self):
        for tied in ("false", "true"):
            with self.subTest(tied=tied):
                text = SMALL + f"mtp_layers: 1\ntied: {tied}\n"
                self.planned("--pipeline", "2", "--replicas", "2", "--tensor", "2", "--microbatches", "8",
                             of=self.write("further.yaml", text))

    def test_passes_that_cannot_overlap_are_refused(self):
        shape = ["--allocator", "grid", "--overlap-experts"]
        self.assertEqual(self.fault_of("plan", self.platform, self.workload, *shape, "--schedule", "gpipe"),
                         "--overlap-experts: schedule gpipe does not take it; it is for 1f1b, dualpipe-v, interleaved")
        self.assertEqual(self.fault_of("plan", self.platform, self.workload, *shape, "--experts", "1"),
                         "schedule: overlap_experts is for replicas that divide experts; leave it out, or divide them")
        self.assertEqual(self.fault_of("plan", self.platform, self.workload, "--allocator", "even", "--overlap-experts"),
                         "schedule: overlap_experts is for replicas that divide experts; leave it out, or divide them")
        self.assertEqual(self.fault_of("plan", self.platform, self.workload, *shape, "--experts", "8", "--recompute", "2-3"),
                         "schedule: layer 2 recomputes its activations, and under overlap_experts passes keep theirs; leave one "
                         "of them out")
        hidden = self.write("hidden.yaml", MIXTURE.replace(
            "framework: megatron-core-0.8", "framework: {name: megatron-core, version: '0.8', overlap_dispatches: true}"))
        self.assertIn("schedule: overlap_experts lets passes of two micro-batches hide exchanges, which overlap_dispatches of the "
                      "training software counts as hidden already; leave one of them out",
                      self.fault_of("plan", self.platform, hidden, *shape, "--experts", "8"))

    def test_experts_inside_of_blocks_are_not_divided(self):
        blocks = self.write("blocks.yaml", MIXTURE.replace("unit: operator\n", ""))
        fault = self.fault_of("plan", self.platform, blocks, "--allocator", "grid", "--experts", "2", "--replicas", "8")
        self.assertIn("the experts of blocks are parts of blocks; write unit: operator, or --set unit=operator", fault)
        even = self.write("dense.yaml", "model: llama\nlayers: 2\nhidden: 64\nheads: 2\nvocabulary: 100\nsequence: 64\n"
                          "expert_imbalance: 2\n")
        self.assertIn("dense.yaml:7: expert_imbalance: unknown key", self.fault_of("plan", self.platform, even, "--allocator", "grid"))

    def test_plans_hold_and_take_their_predicted_steps(self):
        for shape in (["--experts", "8", "--replicas", "8", "--pipeline", "1", "--tensor", "1"],
                      ["--experts", "4", "--replicas", "8", "--pipeline", "1", "--tensor", "1"],
                      ["--experts", "2", "--replicas", "4", "--pipeline", "2", "--tensor", "1"],
                      ["--experts", "2", "--replicas", "4", "--pipeline", "2", "--schedule", "interleaved(chunks=2)"],
                      ["--experts", "2", "--replicas", "4", "--pipeline", "2", "--schedule", "zero-bubble-v"],
                      ["--experts", "4", "--replicas", "4", "--pipeline", "2", "--schedule", "dualpipe-v"],
                      ["--experts", "4", "--recompute", "all"]):
            with self.subTest(shape=shape):
                plan, _ = self.planned(*shape, "--microbatches", str(MICROBATCHES))
                self.assertEqual(plan["experts"], {"degree": int(shape[1])})

    def test_without_a_number_the_best_one_is_taken(self):
        shape = ["--replicas", "8", "--pipeline", "1", "--tensor", "1", "--microbatches", "8"]
        steps = {}
        for degree in (1, 2, 4, 8):
            plan, _ = self.planned("--experts", str(degree), *shape)
            self.assertEqual(plan.get("experts", {"degree": 1}), {"degree": degree})
            steps[degree] = plan["predicted"]["step_time_s"]
        best, _ = self.planned(*shape)
        self.assertEqual(best["predicted"]["step_time_s"], min(steps.values()))
        self.assertEqual(steps[best["experts"]["degree"]], min(steps.values()))

    def test_links_carry_the_bytes_of_the_closed_form(self):
        """Each rank sends its tokens to 7 of 8 ranks, 4 times a layer and micro-batch, and once a step gradients of what are
        no experts, in rings inside the nodes and across; experts have no copies."""
        plan, simulated = self.planned("--experts", "8", "--replicas", "8", "--pipeline", "1", "--tensor", "1", "--microbatches",
                                    str(MICROBATCHES))
        replicas = NODES * GPUS
        each = 4 * BLOCKS * (MICROBATCHES // replicas) * DISPATCHED / replicas  # to each other rank
        dense = (2 * BLOCKS + 2) * DENSE * 4
        self.assertEqual(plan["sync"]["algorithm"], "hierarchical")
        expected = {"nic": GPUS * each + 2 * (NODES - 1) / NODES * dense / GPUS,
                    "nvlink": (GPUS - 1) * each + 2 * (GPUS - 1) / GPUS * dense}
        for link in simulated["links"]:
            self.assertAlmostEqual(link["bytes"] / expected[link["name"].split(".")[0]], 1, delta=1e-9, msg=link["name"])
        self.assertEqual(len(simulated["links"]), 2 * 2 * replicas)  # each way

    def test_imbalance_slows_experts_down(self):
        shape = ["--experts", "8", "--replicas", "8", "--pipeline", "1", "--tensor", "1", "--microbatches", "8"]
        even, _ = self.planned(*shape)
        uneven, _ = self.planned(*shape, of=self.write("uneven.yaml", workload("1.25")))
        self.assertGreater(uneven["predicted"]["step_time_s"], even["predicted"]["step_time_s"])
        self.assertGreater(max(uneven["predicted"]["peak_memory_bytes"].values()),
                           max(even["predicted"]["peak_memory_bytes"].values()))

    def test_refuses_what_cannot_be_divided(self):
        command = ["plan", self.platform, self.workload]
        dense = self.write("dense.yaml", 'model: layers\nlayers:\n  - {name: a, forward: 1 GFLOP, parameters: 1, '
                                         'activations: 1 MB, output: 1 MB}\n')
        for options, message in (
                (["--allocator", "grid", "--experts", "3"],
                 "--experts: the 8 experts of layer experts0 are not 3 equal parts; use a degree that divides them"),
                (["--allocator", "grid", "--experts", "0"], "--experts: 0 is not a number of parts; write 1 or more"),
                (["--allocator", "grid", "--experts", "2", "--experts-tensor", "2"],
                 "--experts-tensor: 2; write 1, for whole experts on each shard, or leave it out"),
                (["--allocator", "grid", "--experts-tensor", "1"], "--experts-tensor: is for divided experts; add --experts"),
                (["--allocator", "grid", "--experts", "2", "--splits", "2d", "--tensor", "4"],
                 "--experts: goes with shards by --splits 1d or sequence; leave out one of them"),
                (["--allocator", "grid", "--experts", "2", "--simulate", "2"],
                 "--simulate: also tries allocators that divide no experts; leave out it or --experts")):
            with self.subTest(options=options):
                self.assertEqual(self.fault_of(*command, *options), message)
        self.assertIn("--experts", self.fault_of(*command, "--allocator", "chain-dp", "--experts", "2"))
        self.assertEqual(self.fault_of("plan", self.platform, dense, "--allocator", "grid", "--experts", "2"),
                         "--experts: no layer of dense has experts")

    def test_runs_have_the_same_losses_for_every_degree(self):
        if not pathlib.Path(ISOBAR).with_name("isobar-exec").exists():
            self.skipTest("no isobar-exec beside isobar")
        workload = self.write("small.yaml", SMALL)
        losses = []
        for degree in ("1", "2", "4"):
            file = str(self.folder / f"{degree}.json")
            shape = ["--replicas", "4", "--pipeline", "1", "--tensor", "1", "--microbatches", "4"]
            self.run_isobar("plan", self.platform, workload, "--allocator", "grid", *shape, "--experts", degree, "-o", file)
            self.run_isobar("simulate", self.platform, workload, "--plan", file, "--stamp")
            result = self.json_of("run", workload, "--plan", file, "--in-process", "--steps", "3")
            losses.append(result["losses"])
        for other in losses[1:]:
            for mine, theirs in zip(other, losses[0], strict=True):
                self.assertAlmostEqual(mine / theirs, 1, delta=1e-6)

    def test_runs_have_the_same_losses_where_passes_overlap(self):
        if not pathlib.Path(ISOBAR).with_name("isobar-exec").exists():
            self.skipTest("no isobar-exec beside isobar")
        workload = self.write("small.yaml", SMALL)
        losses = []
        for options in (["--experts", "1", "--pipeline", "1"], ["--experts", "4", "--pipeline", "1", "--overlap-experts"],
                        ["--experts", "2", "--pipeline", "2", "--overlap-experts", "--schedule", "dualpipe-v"]):
            file = str(self.folder / "plan.json")
            shape = ["--replicas", "4", "--tensor", "1", "--microbatches", "16"]
            self.run_isobar("plan", self.platform, workload, "--allocator", "grid", *shape, *options, "-o", file)
            self.run_isobar("simulate", self.platform, workload, "--plan", file, "--stamp")
            losses.append(self.json_of("run", workload, "--plan", file, "--in-process", "--steps", "3")["losses"])
        for other in losses[1:]:
            for mine, theirs in zip(other, losses[0], strict=True):
                self.assertAlmostEqual(mine / theirs, 1, delta=1e-6)

    def test_runs_refuse_what_of_divided_experts_is_only_simulated(self):
        if not pathlib.Path(ISOBAR).with_name("isobar-exec").exists():
            self.skipTest("no isobar-exec beside isobar")
        workload = self.write("small.yaml", SMALL)
        file = str(self.folder / "plan.json")
        shape = ["--experts", "2", "--replicas", "2", "--pipeline", "1", "--microbatches", "4", "--tensor", "2"]
        self.run_isobar("plan", self.platform, workload, "--allocator", "grid", *shape, "--splits", "sequence", "-o", file)
        self.assertEqual(self.fault_of("run", workload, "--plan", file, "--in-process", "--unvalidated"),
                         f"{file}: experts: groups of 2 replicas; isobar run does not divide activations among shards, too; "
                         "plan with --splits 1d")
        shape[1] = "1"
        self.run_isobar("plan", self.platform, workload, "--allocator", "grid", *shape, "--experts-tensor", "1", "-o", file)
        self.assertEqual(self.fault_of("run", workload, "--plan", file, "--in-process", "--unvalidated"),
                         f"{file}: experts: groups of 1 replicas with whole experts on each shard; isobar run divides whole "
                         "experts among several replicas, or among the shards of one; plan with --experts 2 or more, or one "
                         "replica")
        shape[1] = "2"
        self.run_isobar("plan", self.platform, workload, "--allocator", "grid", *shape, "-o", file)
        plan = json.loads(pathlib.Path(file).read_text())
        plan["sync"] = {"algorithm": "ring", "sharded": "parameters"}
        pathlib.Path(file).write_text(json.dumps(plan))
        self.assertEqual(self.fault_of("run", workload, "--plan", file, "--in-process", "--unvalidated"),
                         f"{file}: experts: groups of 2 replicas; isobar run does not divide parameters among replicas, too; "
                         "use sync.sharded gradients or optimizer")

    def test_a_grid_without_groups_is_infeasible(self):
        file = self.folder / "none.json"
        self.run_isobar("plan", self.platform, self.workload, "--allocator", "grid", "--experts", "4", "--replicas", "2", "-o",
                        file, expect=4)
        plan = json.loads(file.read_text())
        self.assertNotIn("experts", plan)
        self.assertIn("2 replicas are not groups of 4 that divide experts", plan["reason"])
        self.run_isobar("verify", self.platform, self.workload, file)

    def test_verify_finds_another_degree(self):
        file = self.folder / "plan.json"
        self.planned("--experts", "4", "--replicas", "8", "--pipeline", "1", "--tensor", "1", "--microbatches", "8")
        file.write_text(file.read_text().replace('"degree": 4', '"degree": 8'))
        verified = self.json_of("verify", self.platform, self.workload, str(file), expect=5)
        for claim in ("predicted.step_time_s", "predicted.peak_memory_bytes"):
            self.assertTrue(any(claim in fault for fault in verified["faults"]), verified["faults"])
