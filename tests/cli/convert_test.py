"""isobar convert: plans for other frameworks, and plans of what these leave."""

import json
import pathlib

from tests.cli.support import CommandTest

GPT = """model: gpt
layers: 6
hidden: 32
heads: 4
vocabulary: 100
sequence: 16
micro_batch: 2
optimizer: adamw
clip_norm: 1
"""

# With what divided layers need.
OPERATORS = GPT + "attention: fused\nunit: operator\ncompute: operators\nframework: megatron-core\ndtype: bf16\n"

MEGATRON = """# 2 ranks of Megatron-Core 0.19; rank i is on line i of hostfile: shards change first, then parts of
# sequences, replicas, stages (--use-tp-pp-dp-mapping off).
MODEL_ARGUMENTS=(
  --num-layers 6
  --hidden-size 32
  --num-attention-heads 4
  --attention-backend unfused
  --ffn-hidden-size 128
  --seq-length 16
  --max-position-embeddings 16
  --position-embedding-type learned_absolute
  --normalization LayerNorm
  --norm-epsilon 1e-05
  --untie-embeddings-and-output-weights
  --hidden-dropout 0
  --attention-dropout 0
)
PLAN_ARGUMENTS=(
  --pipeline-model-parallel-size 2
  --pipeline-model-parallel-layout 'Et*3|t*3L'
  --tensor-model-parallel-size 1
  --context-parallel-size 1
  --micro-batch-size 2
  --global-batch-size 8
)
"""

EXPERTS = """model: decoder
layers: 4
hidden: 32
vocabulary: 100
heads: 4
kv_heads: 2
head_dim: 16
qk_norm: head
mlp_layer_types: [dense, experts, experts, experts]
intermediate: 48
experts: 8
top_k: 2
expert_intermediate: 24
shared_intermediate: 40
scoring_func: sigmoid
routed_scaling_factor: 2.5
sequence: 16
dtype: bf16
"""

MODEL_OF_EXPERTS = """MODEL_ARGUMENTS=(
  --num-layers 4
  --hidden-size 32
  --num-attention-heads 4
  --group-query-attention
  --num-query-groups 2
  --kv-channels 16
  --qk-layernorm
  --ffn-hidden-size 48
  --num-experts 8
  --moe-layer-freq '[0,1,1,1]'
  --moe-ffn-hidden-size 24
  --moe-router-topk 2
  --moe-shared-expert-intermediate-size 40
  --moe-router-score-function sigmoid
  --moe-router-topk-scaling-factor 2.5
  --swiglu
  --seq-length 16
  --max-position-embeddings 16
  --position-embedding-type rope
  --rotary-base 10000
  --normalization RMSNorm
  --norm-epsilon 1e-05
  --disable-bias-linear
  --untie-embeddings-and-output-weights
  --hidden-dropout 0
  --attention-dropout 0
  --bf16
)
"""

TORCHTITAN = """# 2 ranks of torchtitan 0.3; rank i is on line i of hostfile.
# Give --module and --config before these.
PLAN_ARGUMENTS=(
  --parallelism.pipeline-parallel-degree 2
  --parallelism.module-fqns-per-model-part tok_embeddings,layers.0,layers.1,layers.2 \
layers.3,layers.4,layers.5,norm,lm_head
  --parallelism.pipeline-parallel-schedule 1F1B
  --parallelism.pipeline-parallel-microbatch-size 2
  --parallelism.data-parallel-replicate-degree 1
  --parallelism.data-parallel-shard-degree 1
  --parallelism.tensor-parallel-degree 1
  --parallelism.context-parallel-degree 1
  --training.local-batch-size 8
  --training.global-batch-size 8
  --training.seq-len 16
  --training.disable-cuda-graphs
  activation-checkpoint:none
)
"""

DEEPSPEED = """{
  "train_batch_size": 8,
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 4,
  "zero_optimization": {
    "stage": 0
  },
  "gradient_clipping": 1.0
}
"""

CSV = """0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3
1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3
"""


class ConvertTest(CommandTest):
    """`star(n)` makes a platform of n equal devices, and `self.workload` is a gpt of six blocks."""

    def setUp(self):
        super().setUp()
        self.workload = self.write("gpt.yaml", GPT)

    def path(self, name):
        return str(self.folder / name)

    def star(self, devices):
        platform = self.path(f"star-{devices}.xml")
        self.run_isobar("platform", "generate", "star", "--devices", devices, "-o", platform)
        return platform

    def read(self, name):
        return (self.folder / name).read_text()

    def plan_of(self, devices, *options, workload=None, allocator="even"):
        return self.make_plan(self.star(devices), workload or self.workload, "--microbatches", "4", *options, allocator=allocator)

    def from_text(self, text, devices, *options, framework="megatron", expect=0, workload=None):
        return self.run_isobar("convert", text, self.star(devices), workload or self.workload, "--from", framework, "-o",
                               self.path("imported.json"), *options, expect=expect)

    def refusal_of(self, text, devices, *options, framework="megatron", workload=None):
        result = self.from_text(text, devices, *options, framework=framework, expect=2, workload=workload)
        return result.stderr.removeprefix("isobar: ").rstrip("\n")

    def assert_claims_hold(self, devices, plan="imported.json", workload=None):
        inputs = self.star(devices), workload or self.workload
        self.run_isobar("verify", *inputs, self.path(plan))
        self.run_isobar("simulate", *inputs, "--plan", self.path(plan))


class ToFrameworks(ConvertTest):
    def test_megatron_gets_arguments_and_a_line_for_each_rank(self):
        plan = self.plan_of(2)
        done = self.run_isobar("convert", plan, "--to", "megatron", "-o", self.path("out"))
        self.assertEqual(self.read("out/arguments.sh"), MEGATRON)
        self.assertEqual(self.read("out/hostfile"), "device-0\ndevice-1\n")
        self.assertEqual(done.stdout, f"{self.path('out/arguments.sh')}: {len(MEGATRON)} bytes\n"
                                      f"{self.path('out/hostfile')}: 18 bytes\n")

    def test_torchtitan_gets_arguments(self):
        self.run_isobar("convert", self.plan_of(2), "--to", "torchtitan", "-o", self.path("out"))
        self.assertEqual(self.read("out/arguments.sh"), TORCHTITAN)

    def test_deepspeed_gets_a_configuration_and_a_module(self):
        self.run_isobar("convert", self.plan_of(2), "--to", "deepspeed", "-o", self.path("out"))
        self.assertEqual(self.read("out/deepspeed.json"), DEEPSPEED)
        module = self.read("out/planned_pipeline.py")
        compile(module, "planned_pipeline.py", "exec")
        self.assertIn("BOUNDS = [0, 4, 8]  #", module)
        self.assertIn("num_pp=2, num_mp=1, num_dp=1)", module)
        self.assertEqual(self.read("out/hostfile"), "device-0 slots=1\ndevice-1 slots=1\n")

    def test_deepspeed_gets_a_line_for_each_host_whose_ranks_are_neighbours(self):
        text = pathlib.Path(self.star(4)).read_text()
        for i in range(4):
            text = text.replace(f'<host id="device-{i}" speed="10Tf">', f'<host id="device-{i}" speed="10Tf"><prop id="host" value="n{i // 2}"/>')
        machines = "".join(f'<host id="{name}" speed="1Gf"><prop id="role" value="machine"/><prop id="memory" value="1 GB"/></host>'
                           f'<link id="{name}.bus" bandwidth="1GBps" latency="1us" sharing_policy="SPLITDUPLEX"/>'
                           f'<host_link id="{name}" up="{name}.bus_UP" down="{name}.bus_DOWN"/>' for name in ("n0", "n1"))
        platform = self.write("machines.xml", text.replace("<router", machines + "<router"))
        def converted(ranks, **named):
            self.run_isobar("convert", "0,2,4,6,8", platform, self.workload, "--from", "deepspeed", "--ranks", ranks, "-o",
                            self.path("plan.json"))
            return self.run_isobar("convert", self.path("plan.json"), "--to", "deepspeed", "-o", self.path("out"), **named)
        converted("device-2,device-3,device-0,device-1")
        self.assertEqual(self.read("out/hostfile"), "n1 slots=2\nn0 slots=2\n")
        self.assertEqual(converted("device-0,device-2,device-1,device-3", expect=4).stdout,
                         f"{self.path('plan.json')}: stages: ranks of host n0 lie apart; DeepSpeed numbers the ranks of a host in "
                         "turn\n")

    def test_torch_gets_an_order_and_stages(self):
        self.run_isobar("convert", self.plan_of(2), "--to", "torch", "-o", self.path("out"))
        self.assertEqual(self.read("out/schedule.csv"), CSV)
        stages = json.loads(self.read("out/stages.json"))
        self.assertEqual([(each["rank"], each["devices"], each["first_layer"], each["last_layer"]) for each in stages["stages"]],
                         [(0, ["device-0"], 0, 3), (1, ["device-1"], 4, 7)])
        self.assertEqual(stages["stages"][1]["layers"], ["block3", "block4", "block5", "head"])

    def test_megatron_gets_the_arguments_of_models_of_other_kinds(self):
        def model_of(text, layout):
            workload = self.write("other.yaml", text)
            self.from_text(layout, 2, workload=workload)
            self.run_isobar("convert", self.path("imported.json"), "--to", "megatron", "-o", self.path("out"))
            return self.read("out/arguments.sh").split("--use-tp-pp-dp-mapping off).\n")[1].split("PLAN_ARGUMENTS")[0]
        self.assertEqual(model_of(EXPERTS, "Et*2|t*2L"), MODEL_OF_EXPERTS)
        llama = ("model: llama\nlayers: 2\nhidden: 32\nheads: 4\nkv_heads: 4\nintermediate: 48\nvocabulary: 100\nsequence: 16\n"
                 "rope_theta: 10000\nrope_type: llama3\nrope_factor: 8\ndtype: fp16\n")
        self.assertIn("  --rotary-base 10000\n  --use-rope-scaling\n  --rope-scaling-factor 8\n", model_of(llama, "Et|tL"))
        self.assertIn("  --fp16\n", model_of(llama, "Et|tL"))
        self.assertNotIn("--group-query-attention", model_of(llama, "Et|tL"))
        self.assertEqual(model_of(EXPERTS + "norm_place: both\nembedding_norm: true\n", "Et*2|t*2L"),
                         "# Megatron-Core has no arguments for norm_place: both; embedding_norm: true; MODEL_ARGUMENTS are yours.\n")
        self.assertIn("no arguments for rope_theta: 10000.5;", model_of(EXPERTS + "rope_theta: 10000.5\n", "Et*2|t*2L"))

    def test_attention_that_recomputes_becomes_selective_recomputation(self):
        workload = self.write("recomputed.yaml", GPT + "attention: recomputed\n")
        for options, wanted in (((), "  --recompute-granularity selective\n  --recompute-modules core_attn\n"),
                                (("--recompute", "all"), "  --recompute-granularity full\n  --recompute-method uniform\n")):
            self.run_isobar("convert", self.plan_of(2, *options, workload=workload), "--to", "megatron", "-o", self.path("out"))
            text = self.read("out/arguments.sh")
            self.assertIn(wanted, text)
            self.assertEqual(text.count("--recompute-granularity"), 1)

    def test_virtual_stages_and_groups_are_those_of_the_plan(self):
        plan = self.plan_of(2, "--schedule", "interleaved(chunks=2;group=4)")
        self.run_isobar("convert", plan, "--to", "megatron", "-o", self.path("out"))
        text = self.read("out/arguments.sh")
        self.assertIn("  --pipeline-model-parallel-layout 'Et|(t*2|)*2tL'\n", text)
        self.assertIn("  --microbatch-group-size-per-virtual-pipeline-stage 4\n", text)

    def test_divided_layers_sequences_and_optimizers_become_degrees(self):
        workload = self.write("operators.yaml", OPERATORS)
        a100s = "16xA100-SXM4-40GB"
        self.from_text("Et*3|t*3L", a100s, "--tensor", 2, "--splits", "sequence", "--context", 2, "--context-exchange", "all-gather",
                       "--replicas", 2, "--sharded", "optimizer", "--microbatches", 8, "--recompute", "all", workload=workload)
        self.assert_claims_hold(a100s, workload=workload)
        self.run_isobar("convert", self.path("imported.json"), "--to", "megatron", "-o", self.path("out"))
        self.assertEqual(self.read("out/arguments.sh").split("PLAN_ARGUMENTS=(\n")[1], """\
  --pipeline-model-parallel-size 2
  --pipeline-model-parallel-layout 'Et*3|t*3L'
  --tensor-model-parallel-size 2
  --sequence-parallel
  --context-parallel-size 2
  --cp-comm-type all_gather
  --micro-batch-size 2
  --global-batch-size 16
  --recompute-granularity full
  --recompute-method uniform
  --recompute-num-layers 1
  --use-distributed-optimizer
  --overlap-grad-reduce
)
""")
        self.assertEqual(self.read("out/hostfile"), "".join(f"device-{i}\n" for i in range(16)))

    def test_first_blocks_of_each_stage_recompute_by_block(self):
        plan = self.plan_of(2, "--recompute", "1-2,4-5")
        self.run_isobar("convert", plan, "--to", "megatron", "-o", self.path("out"))
        self.assertIn("  --recompute-granularity full\n  --recompute-method block\n  --recompute-num-layers 2\n",
                      self.read("out/arguments.sh"))
        plan = self.plan_of(2, "--recompute", "1-2,5")
        done = self.run_isobar("convert", plan, "--to", "megatron", "-o", self.path("other"), expect=4)
        self.assertEqual(done.stdout, f"{plan}: recompute: is of other blocks than the first of each stage, as many in each; "
                                      "Megatron-Core recomputes those, or all\n")
        self.assertFalse((self.folder / "other").exists())

    def test_operators_of_modules_become_modules_that_recompute(self):
        operators = 'recompute_operators: ["0-5: context norm2 up activation down"]\n'
        workload = self.write("operators.yaml", OPERATORS + operators)
        self.from_text("Et*3|t*3L", "2xA100-SXM4-40GB", "--microbatches", 8, workload=workload)
        self.run_isobar("convert", self.path("imported.json"), "--to", "megatron", "-o", self.path("out"))
        self.assertIn("  --recompute-granularity selective\n  --recompute-modules core_attn mlp\n", self.read("out/arguments.sh"))
        for operators in ("0-5: context norm2", "0-4: context"):
            self.write("operators.yaml", OPERATORS + f'recompute_operators: ["{operators}"]\n')
            self.from_text("Et*3|t*3L", "2xA100-SXM4-40GB", "--microbatches", 8, workload=workload)
            done = self.run_isobar("convert", self.path("imported.json"), "--to", "megatron", "-o", self.path("other"), expect=4)
            self.assertEqual(done.stdout, f"{self.path('imported.json')}: recompute_operators: are of the workload; Megatron-Core "
                                          "recomputes whole blocks, or modules of all blocks that have them: core_attn, layernorm, "
                                          "mla_up_proj, mlp, moe, moe_act, shared_experts\n")

    def test_an_order_that_torchtitan_has_no_name_for_becomes_a_file(self):
        plan = self.plan_of(2, "--schedule", "zero-bubble-h1")
        self.run_isobar("convert", plan, "--to", "torchtitan", "-o", self.path("out"))
        text = self.read("out/arguments.sh")
        self.assertIn("  --parallelism.pipeline-parallel-schedule-csv schedule.csv\n", text)
        self.assertEqual(self.read("out/schedule.csv"), self.run_isobar("schedule", "show", plan, "--csv").stdout)

    def test_plans_are_refused_in_a_line_for_each_thing(self):
        for framework, schedule, line in (
                ("megatron", "gpipe", "schedule: gpipe; Megatron-Core has 1f1b and interleaved, without warm_up of your own"),
                ("megatron", "zero-bubble-v", "schedule: zero-bubble-v; Megatron-Core has 1f1b and interleaved, whose devices "
                                              "have every p-th stage"),
                ("deepspeed", "zero-bubble-h1", "schedule: zero-bubble-h1; DeepSpeed has 1f1b, without warm_up of your own"),
                ("deepspeed", "interleaved(chunks=2)", "stages: devices have 2 each; DeepSpeed has one on each device")):
            with self.subTest(framework=framework, schedule=schedule):
                plan = self.plan_of(2, "--schedule", schedule)
                done = self.run_isobar("convert", plan, "--to", framework, "-o", self.path("out"), expect=4)
                self.assertEqual(done.stdout, f"{plan}: {line}\n")
                self.assertFalse((self.folder / "out").exists())

    def test_the_nearest_plan_that_a_framework_takes_is_written(self):
        plan = self.plan_of(2, "--schedule", "gpipe")
        nearest = self.path("nearest.json")
        done = self.run_isobar("convert", plan, "--to", "megatron", "-o", self.path("out"), "--nearest", nearest, expect=4)
        lines = done.stdout.splitlines()
        self.assertEqual(len(lines), 2)
        self.assertRegex(lines[1], rf"^{nearest}: megatron takes this one: allocator .*, schedule 1f1b, predicted step .*; .* of {plan}$")
        self.assert_claims_hold(2, "nearest.json")
        self.run_isobar("convert", nearest, "--to", "megatron", "-o", self.path("out"))
        found = json.loads(self.read("nearest.json"))["predicted"]["step_time_s"]
        for allocator in ("chain-dp", "grid"):
            other = json.loads(pathlib.Path(self.plan_of(2, allocator=allocator)).read_text())
            self.assertLessEqual(found, other["predicted"]["step_time_s"])

    def test_compare_lays_a_plan_beside_others(self):
        self.from_text("Et*3|t*3L", 2, "--microbatches", 4)
        rows = self.run_isobar("compare", self.star(2), self.workload, "--start", self.path("imported.json"), "--allocators", "even",
                               "--microbatches", 4, "--json").stdout
        rows = json.loads(rows)["rows"]
        self.assertEqual([row["allocator"] for row in rows], ["start", "even"])
        self.assertEqual(rows[0]["step_time_s"], rows[1]["step_time_s"])

    def test_stages_within_a_block_are_refused(self):
        workload = self.write("operators.yaml", GPT + "unit: operator\n")
        plan = self.plan_of(2, workload=workload, allocator="even")
        stages = json.loads(pathlib.Path(plan).read_text())["stages"]
        self.assertEqual(stages[1]["first_layer"], 7)  # odd layers begin blocks
        self.run_isobar("convert", plan, "--to", "megatron", "-o", self.path("out"))
        plan = self.plan_of(3, workload=workload, allocator="even")
        done = self.run_isobar("convert", plan, "--to", "megatron", "-o", self.path("other"), expect=4)
        self.assertEqual(done.stdout, f"{plan}: stages: one begins at layer 10, within the block of layers 9 to 10; Megatron-Core "
                                      "has whole blocks in a stage\n")

    def test_a_workload_without_blocks_is_refused_except_by_deepspeed(self):
        inputs = self.small_inputs()
        plan = self.make_plan(*inputs)
        done = self.run_isobar("convert", plan, "--to", "megatron", "-o", self.path("out"), expect=4)
        self.assertEqual(done.stdout, f"{plan}: workload: small is no gpt, llama or decoder; Megatron-Core places the blocks of "
                                      "these\n")
        self.run_isobar("convert", plan, "--to", "deepspeed", "-o", self.path("out"))
        self.assertIn("BOUNDS = [0, 2, 3]", self.read("out/planned_pipeline.py"))

    def test_a_plan_without_a_placement_says_why(self):
        platform = self.write("small.xml", (pathlib.Path(self.star(2)).read_text()).replace('value="16 GB"', 'value="100 kB"'))
        plan = self.path("none.json")
        self.run_isobar("plan", platform, self.workload, "--allocator", "even", "-o", plan, expect=4)
        done = self.run_isobar("convert", plan, "--to", "megatron", "-o", self.path("out"), expect=4)
        self.assertEqual(done.stdout, f"{plan}: there is no placement to convert (infeasible): device device-0: layers 0..3 need 1.14 MiB "
                         "and it has 97.7 KiB; 1.05 MiB more memory there, and up to that on 1 other device, would be enough\n")

    def test_needs_a_direction_and_a_plan(self):
        plan = self.plan_of(2)
        self.assertEqual(self.fault_of("convert", plan, "-o", self.path("out")), "convert: needs --to or --from")
        self.assertEqual(self.fault_of("convert", self.workload, "--to", "torch", "-o", self.path("out")).split(": ")[0],
                         self.workload)


    def test_options_of_imports_and_settings_are_refused_where_they_would_do_nothing(self):
        plan = self.plan_of(2)
        to = ("convert", plan, "--to", "megatron", "-o", self.path("out"))
        self.assertEqual(self.fault_of(*to, "--replicas", 4), "--replicas requires --from; see isobar convert --help")
        self.assertEqual(self.fault_of(*to, "--set", "layers=3"),
                         "--set: changes no workload, since the plan has its own; plan with it, or name WORKLOAD")


class FromFrameworks(ConvertTest):
    def test_a_layout_becomes_a_plan_whose_claims_hold(self):
        done = self.from_text("Et|(t*2|)*2tL", 4)
        self.assertRegex(done.stdout, r"^.*imported.json: 4 stages of 8 layers on 4 devices; schedule 1f1b, 8 micro-batches; "
                                      r"predicted step .*\n$")
        self.assert_claims_hold(4)

    def test_virtual_stages_are_interleaved(self):
        self.from_text("E|t*2|t|tt|t|L", 3, "--virtual-stages", 2, "--microbatches", 6)
        self.assert_claims_hold(3)
        plan = json.loads(self.read("imported.json"))
        self.assertEqual(plan["schedule"], {"name": "interleaved", "chunks": 2})
        self.assertEqual([each["replicas"][0]["shards"][0]["device"] for each in plan["stages"]],
                         ["device-0", "device-1", "device-2"] * 2)

    def test_ranks_are_the_devices_that_are_named(self):
        self.from_text("Et*3|t*3L", 4, "--ranks", "device-3,device-1")
        stages = json.loads(self.read("imported.json"))["stages"]
        self.assertEqual([each["devices"][0]["name"] for each in stages], ["device-3", "device-1"])
        self.assertEqual(self.refusal_of("Et*3|t*3L", 4, "--ranks", "device-3,device-9"),
                         '--ranks: the platform has no device "device-9"')
        self.assertEqual(self.refusal_of("Et*3|t*3L", 4, "--ranks", "device-3"),
                         "--ranks: 1 device; 2 devices in a pipeline with 1 replicas, 1 parts of sequences and 1 shards need 2")

    def test_a_plan_goes_to_each_framework_and_comes_back(self):
        for schedule, frameworks in (("1f1b", ("megatron", "deepspeed", "torchtitan", "torch")),
                                     ("interleaved(chunks=2)", ("megatron", "torchtitan", "torch")),
                                     ("zero-bubble-v", ("torchtitan", "torch")), ("v-half", ("torchtitan", "torch"))):
            plan = json.loads(pathlib.Path(self.plan_of(2, "--schedule", schedule)).read_text())
            for framework in frameworks:
                with self.subTest(schedule=schedule, framework=framework):
                    out = self.path(f"{schedule}.{framework}")
                    self.run_isobar("convert", self.path("plan.json"), "--to", framework, "-o", out)
                    text, options = out, ()
                    if framework == "megatron":
                        text = self.read(f"{out}/arguments.sh").split("-layout '")[1].split("'")[0]
                        options = "--microbatches", 4, "--virtual-stages", 2 if "chunks" in schedule else 1
                    if framework == "deepspeed":
                        text = self.read(f"{out}/planned_pipeline.py").split("BOUNDS = ")[1].split("  #")[0]
                        options = "--microbatches", 4
                    if framework == "torchtitan":
                        text = f"{out}/arguments.sh"
                    self.from_text(text, 2, *options, framework=framework)
                    back = json.loads(self.read("imported.json"))
                    self.assertEqual(back["stages"], plan["stages"])
                    self.assertEqual(back["predicted"]["step_time_s"], plan["predicted"]["step_time_s"])
                    self.assert_claims_hold(2)

    def test_replicas_of_torchtitan_come_back(self):
        self.from_text("Et*3|t*3L", 4, "--replicas", 2, "--microbatches", 8, "--sharded", "optimizer")
        done = self.run_isobar("convert", self.path("imported.json"), "--to", "torchtitan", "-o", self.path("out"), expect=4)
        self.assertEqual(done.stdout, f"{self.path('imported.json')}: sync.sharded: optimizer; torchtitan divides nothing, or "
                                      "gradients, or parameters\n")
        self.from_text("Et*3|t*3L", 4, "--replicas", 2, "--microbatches", 8)
        self.run_isobar("convert", self.path("imported.json"), "--to", "torchtitan", "-o", self.path("dp"))
        first = json.loads(self.read("imported.json"))
        self.from_text(self.path("dp/arguments.sh"), 4, framework="torchtitan")
        self.assertEqual(json.loads(self.read("imported.json"))["stages"], first["stages"])

    def test_a_command_of_torchtitan_without_modules_has_the_parts_that_it_makes(self):
        command = self.write("run.sh", "torchrun train.py --module llama3 --config own \\\n"
                             "  --parallelism.pipeline_parallel_degree=2 --parallelism.pipeline_parallel_schedule Interleaved1F1B "
                             "--parallelism.pipeline-parallel-microbatch-size 2 --training.local_batch_size 8  # comment\n")
        self.from_text(command, 2, framework="torchtitan")
        plan = json.loads(self.read("imported.json"))
        self.assertEqual([(each["first_layer"], each["last_layer"]) for each in plan["stages"]], [(0, 1), (2, 3), (4, 5), (6, 7)])

    def test_layouts_that_are_wrong_are_refused_in_a_line(self):
        for layout, line in (("Et(t", "layout: column 3: the group has no end; write )*n"),
                             ("Et*3||t*3L", "layout: stage 1 is empty; a plan's stages have a layer or more"),
                             ("Et*3|t*2L", "layout: has 5 t (decoder layer); gpt has 6"),
                             ("Et*3|mt*3L", "layout: has 1 m (layer of multi-token prediction); gpt has 0"),
                             ("tE|t*5L", "layout: stage 0: t (decoder layer) where the model has E (embedding)"),
                             ("Et*3|t*3", "layout: has 0 L (loss); gpt has 1")):
            with self.subTest(layout=layout):
                self.assertEqual(self.refusal_of(layout, 2), line)

    def test_bounds_that_are_wrong_are_refused_in_a_line(self):
        for bounds, line in (("0,4", "bounds: 0 to 4; those of gpt are 0 to 8"), ("0,4,4,8", "bounds: 4 follows 4; a stage has a "
                             "layer or more"), ("[0, x]", 'bounds: "x" is no bound; write numbers such as 0,5,9,14')):
            with self.subTest(bounds=bounds):
                self.assertEqual(self.refusal_of(bounds, 2, framework="deepspeed"), line)

    def test_degrees_that_do_not_fit_are_refused(self):
        self.assertEqual(self.refusal_of("Et*3|t*3L", 2, "--virtual-stages", 3), "layout: 2 stages do not make 3 of each device")
        self.assertEqual(self.refusal_of("Et*3|t*3L", 2, "--replicas", 3), "layout: 8 micro-batches for 3 replicas, which take as "
                                                                           "many")
        self.assertEqual(self.refusal_of("Et*3|t*3L", 2, "--replicas", 2), "layout: 2 devices; 2 devices in a pipeline with 2 "
                                         "replicas, 1 parts of sequences and 1 shards need 4")
        self.assertEqual(self.refusal_of("Et*3|t*3L", 2, "--sharded", "all"),
                         '--sharded: "all" is none of none, optimizer, gradients, parameters')

    def test_what_a_file_says_is_no_option(self):
        self.run_isobar("convert", self.plan_of(2), "--to", "torch", "-o", self.path("out"))
        self.assertEqual(self.refusal_of(self.path("out"), 2, "--microbatches", 4, framework="torch"),
                         "--microbatches: what torch leaves says it; leave it out")

    def test_a_plan_that_needs_more_memory_is_infeasible(self):
        platform = self.write("small.xml", (pathlib.Path(self.star(2)).read_text()).replace('value="16 GB"', 'value="100 kB"'))
        done = self.run_isobar("convert", "Et*3|t*3L", platform, self.workload, "--from", "megatron", "-o", self.path("imported.json"),
                               expect=4)
        self.assertRegex(done.stdout, "^layout: infeasible: .* would be enough\n$")

    def test_options_with_which_a_layout_fits_are_named_and_true(self):
        for replicas, memory, given, found in ((2, "1.05 MB", (), ("--sharded", "optimizer")), (2, "0.9 MB", (), ("--recompute", "all")),
                                               (2, "0.76 MB", (), ("--sharded", "optimizer", "--recompute", "all")),
                                               (1, "0.76 MB", ("--recompute", "all"), ("--set", "micro_batch=1", "--microbatches", "16"))):
            with self.subTest(found=found):
                text = pathlib.Path(self.star(2 * replicas)).read_text()
                platform = self.write("small.xml", text.replace('value="16 GB"', f'value="{memory}"'))
                def convert(*options, expect):
                    return self.run_isobar("convert", "Et*3|t*3L", platform, self.workload, "--from", "megatron", "--replicas", replicas,
                                           *options, "-o", self.path("imported.json"), expect=expect).stdout
                refused = convert(*given, expect=4)
                self.assertIn(f"; it fits with {' '.join(found)}, predicted step ", refused)
                fits = convert(*given, *found, expect=0)
                self.assertEqual(fits.split("predicted step ")[1], refused.split("predicted step ")[1])
