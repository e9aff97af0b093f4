"""Wrong configurations, workloads, options and plans of today's models: each has its exact line and exit code 2.

Those that tests of core hold already (decoder_test.cpp, decoder_config_test.cpp, plan files of tests/instances/bad) are not
repeated.
"""

import json
import re

from tests.cli.support import CommandTest

DENSE = """model: decoder
layers: 4
hidden: 64
vocabulary: 1000
heads: 8
kv_heads: 2
head_dim: 16
intermediate: 96
sequence: 32
micro_batch: 2
dtype: bf16
unit: operator
"""

MIXTURE = """model: decoder
layers: 4
hidden: 64
vocabulary: 1000
heads: 8
kv_heads: 8
head_dim: 16
mlp_layer_types: [experts]
experts: 8
top_k: 2
expert_intermediate: 32
sequence: 32
dtype: bf16
unit: operator
"""

# Keys beside those of a small model of the type, and the line after "config.json:".
CONFIGURATIONS = [
    ("qwen3_moe", {"num_experts": 0}, '4: num_experts: "0" is out of range; write a whole number from 1 to 65536'),
    ("qwen3_moe", {"norm_topk_prob": "yes"},
     '4: norm_topk_prob: "yes" is not a boolean; write true or false without quotes'),
    ("qwen3_moe", {"decoder_sparse_step": 0},
     '4: decoder_sparse_step: "0" is out of range; write a whole number from 1 to 10000'),
    ("qwen3_moe", {"moe_intermediate_size": 0},
     '4: moe_intermediate_size: "0" is out of range; write a whole number from 1 to 4194304'),
    ("qwen3_moe", {"tie_word_embeddings": "no"},
     '4: tie_word_embeddings: "no" is not a boolean; write true or false without quotes'),
    ("deepseek_v3", {"topk_group": 20}, "4: topk_group: 20 is more than n_group, 8 (transformers' default)"),
    ("deepseek_v3", {"n_group": 0}, '4: n_group: "0" is out of range; write a whole number from 1 to 65536'),
    ("deepseek_v3", {"first_k_dense_replace": -1},
     '4: first_k_dense_replace: "-1" is not a whole number; write a whole number from 0 to 10000'),
    ("deepseek_v3", {"kv_lora_rank": 0}, '4: kv_lora_rank: "0" is out of range; write a whole number from 1 to 1048576'),
    ("deepseek_v3", {"rope_scaling": {"type": "spiral"}},
     '5: rope_scaling.type: "spiral" is not supported (only default, linear, llama3, dynamic, yarn, longrope)'),
    ("deepseek_v3", {"rope_scaling": 5}, '4: rope_scaling: is a single value; write "key: value" pairs'),
    ("qwen3_next", {"layer_types": ["full_attention"]}, "4: layer_types: lists 1 layers; num_hidden_layers is 2"),
    ("llama4_text", {"attention_chunk_size": 0},
     '4: attention_chunk_size: "0" is out of range; write a whole number from 1 to 16777216'),
    ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 5},
     "5: num_experts_per_tok: 5 is more than num_local_experts, 4"),
    ("gemma2", {"query_pre_attn_scalar": 0}, "4: query_pre_attn_scalar: is 0; write a positive number"),
    ("cohere2", {"sliding_window_pattern": 0},
     '4: sliding_window_pattern: "0" is out of range; write a whole number from 1 to 16777216'),
]

# What follows a workload, and the line after the file's name and the number of the workload's lines.
WORKLOADS = [
    (DENSE, "expert_spread: 0.2", "1: expert_spread: no layer has experts; leave it out"),
    (MIXTURE, "expert_spread: -1", '1: expert_spread: "-1" is out of range; write a number, 0 or more'),
    (MIXTURE, "expert_spread: 11",
     "1: expert_spread: 11; the standard deviation of an expert's tokens over their mean is 0 (even) to 10"),
    (MIXTURE, "expert_imbalance: 0.5", "1: expert_imbalance: 0.5; the most tokens over the mean are 1 (even) or more"),
    (MIXTURE, "expert_spread: 0.1\nexpert_imbalance: 1.2",
     "1: expert_spread: is drawn, and expert_imbalance says the most; leave out one of them"),
    (MIXTURE, "expert_seed: 1", "1: expert_seed: nothing is drawn; write expert_spread, or leave it out"),
    (DENSE, "matmul_dtype: fp9",
     '1: matmul_dtype: "fp9" is not one of tf32, float32, fp8_delayed, fp8_cs, fp8_block, mxfp8, nvfp4'),
    (DENSE, "matmul_dtype: mxfp8", "1: matmul_dtype: mxfp8 counts with compute: operators; write that, or leave it out"),
    (DENSE, "mtp_layers: 17", '1: mtp_layers: "17" is out of range; write a whole number from 0 to 16'),
    (DENSE, "mtp_layers: 1\nmtp_mlp_layer_types: [moe]",
     '2: mtp_mlp_layer_types: "moe" is no entry; write none, dense, experts, or several at once as experts*3'),
    (DENSE, "mtp_mlp_layer_types: [dense]", "1: mtp_mlp_layer_types: goes with mtp_layers; leave it out, or write that"),
    (DENSE, "mtp_layers: 1\nmtp_layer_types: [full, full]",
     "2: mtp_layer_types: lists more than the one layer; write at most as many"),
    (DENSE, "mtp: 1", "1: mtp: unknown key; keys like it are mtp_layer_types, mtp_layers, mtp_mlp_layer_types"),
    (DENSE, "num_experts: 8", "1: num_experts: unknown key; did you mean experts?"),
    (DENSE, "tied: both", '1: tied: "both" is not one of true, false, apart'),
    (MIXTURE, "shared_gate: true", "1: shared_gate: goes with shared_intermediate; leave it out"),
    (MIXTURE, "moe_latent_size: 0", '1: moe_latent_size: "0" is out of range; write a whole number from 1 to 1048576'),
    (MIXTURE, "norm_topk_prob: maybe", '1: norm_topk_prob: "maybe" is not a boolean; write true or false'),
    (MIXTURE, "scoring_func: tanh", '1: scoring_func: "tanh" is not one of softmax, sigmoid'),
    (DENSE, "qk_norm: some",
     '1: qk_norm: "some" is not one of none, head, each_head, all_heads, unweighted, weighted_keys'),
]

# Of isobar plan, and the line.
OPTIONS = [
    (MIXTURE, ("--experts", "3"),
     "--experts: the 8 experts of layer block0.mlp are not 3 equal parts; use a degree that divides them"),
    (MIXTURE, ("--experts", "0"), "--experts: 0 is not a number of parts; write 1 or more"),
    (DENSE, ("--context", "3"),
     "--context: compute: rate does not know attention; write compute: operators and a framework"),
    (DENSE, ("--context", "2", "--context-exchange", "torus"),
     '--context-exchange: "torus" is none of ring, all-gather, all-to-all'),
    (DENSE, ("--context-exchange", "ring"), "--context-exchange: is for divided sequences; add --context"),
    (MIXTURE, ("--experts", "2", "--overlap-experts", "--schedule", "zero-bubble-h1"),
     "--overlap-experts: schedule zero-bubble-h1 does not take it; it is for 1f1b, dualpipe-v, interleaved"),
    (MIXTURE, ("--schedule", "1f1b(overlap_experts=2)"),
     "--schedule: 1f1b(overlap_experts=2): overlap_experts is 1; leave it out for passes in turn"),
    (MIXTURE, ("--experts", "2", "--schedule", "1f1b(overlap_experts=1;warm_up=auto)"),
     "--schedule: 1f1b(overlap_experts=1;warm_up=auto): warm_up is chosen for passes in turn; give numbers with "
     "overlap_experts, or leave it out"),
    (MIXTURE, ("--set", "expertspread=1"), "--set: expertspread: unknown key; did you mean expert_spread?"),
    (DENSE, ("--set", "mtp_layers=-1"),
     '--set: mtp_layers: "-1" is not a whole number; write a whole number from 0 to 16'),
    (DENSE, ("--schedule", "dualpipe-v(chunks=2)"), "--schedule: dualpipe-v takes no chunks; it takes overlap_experts"),
]

# What a plan that divides experts by 4 over 16 devices has instead, and the line after "plan.json:LINE: ".
PLANS = [
    ({"experts": {"degree": 0}}, 'experts.degree: "0" is out of range; write a whole number from 1 to 65536'),
    ({"experts": {}}, "experts.degree: missing; write a whole number from 1 to 65536"),
    ({"experts": {"degree": 3}}, "experts: stage 0 has 8 replicas for groups of 3; give it a multiple"),
    ({"experts": {"degree": 4, "capacity": 1}}, "experts.capacity: unknown key; the keys here are degree, tensor"),
    ({"experts": {"degree": 4, "tensor": 2}},
     "experts.tensor: 2; write 1, for whole experts on each shard, or leave it out"),
    ({"experts": {"degree": 4, "tensor": 1}},
     "experts: tensor is 1, and no stage has several shards, so that each has whole experts anyway; leave tensor out"),
    ({"context": {"degree": 2}}, "context.exchange: missing; write one of ring, all-gather, all-to-all"),
    ({"context": {"degree": 2, "exchange": "ring"}},
     "context: needs training software, which knows attention; plan with compute: operators and a framework"),
    ({"schedule": {"name": "1f1b", "overlap_experts": 2}},
     "schedule: 1f1b(overlap_experts=2): overlap_experts is 1; leave it out for passes in turn"),
    ({"schedule": {"name": "1f1b", "overlap_experts": 1}, "experts": None},
     "schedule: overlap_experts is for replicas that divide experts; leave it out, or divide them"),
    ({"schedule": {"name": "listed", "overlap_experts": 1, "orders": {"n0g0": [[1, "F0.0 B0.0"]],
                                                                       "n1g0": [[1, "B0.0 F0.0&"]]}}},
     'schedule.orders.n1g0[0]: slot 2: & is of a forward pass with a backward pass behind it, B or I and W; write such as '
     '"F0.3+& B0.0+", or leave & out'),
    ({"schedule": {"name": "listed", "orders": {"n0g1": [[1, "F0.0 B0.0"]], "n0g0": [[1, "F0.0 B0.0"]],
                                                "n1g0": [[1, "F0.0 B0.0"]]}}},
     "schedule.orders.n0g1: no stage is on this device; give the order of the first device of each stage"),
    ({"transfers": {"sliced": True}},
     "transfers.sliced: true, and no stage has several shards that could send a part each; leave it out"),
    ({"transfers": {"slice": True}}, "transfers.slice: unknown key; did you mean sliced?"),
    ({"stages": 5}, "stages: is a single value; write a list"),
    ({"sync": {"gradient_dtype": "fp9"}}, 'sync.gradient_dtype: "fp9" is not one of float32, bf16, fp16'),
]


class WrongModels(CommandTest):
    def setUp(self):
        super().setUp()
        self.platform = self.folder / "h100.xml"
        self.run_isobar("platform", "generate", "machine", "examples/dgx_h100.yaml", "-o", self.platform)

    def plan(self, workload, *options):
        return ("plan", self.platform, workload, "--allocator", "grid", "--microbatches", "8", *options)

    def test_there_are_40_wrong_inputs_at_least(self):
        self.assertGreaterEqual(sum(map(len, (CONFIGURATIONS, WORKLOADS, OPTIONS, PLANS))), 40)

    def test_configurations(self):
        for model_type, keys, line in CONFIGURATIONS:
            with self.subTest(model_type, **keys):
                config = {"model_type": model_type, "num_hidden_layers": 2, **keys}
                path = self.write("config.json", json.dumps(config, indent=1))
                self.assertEqual(self.fault_of("workload", "import", path, "--sequence", "128"), f"{path}:{line}")

    def test_workloads(self):
        for workload, text, line in WORKLOADS:
            with self.subTest(text):
                path = self.write("wrong.yaml", f"{workload}{text}\n")
                number, rest = line.split(":", 1)
                self.assertEqual(self.fault_of(*self.plan(path)), f"{path}:{workload.count(chr(10)) + int(number)}:{rest}")

    def test_options(self):
        for workload, options, line in OPTIONS:
            with self.subTest(options):
                self.assertEqual(self.fault_of(*self.plan(self.write("model.yaml", workload), *options)), line)

    def test_plans(self):
        workload = self.write("model.yaml", MIXTURE)
        right = self.folder / "right.json"
        self.run_isobar(*self.plan(workload, "--experts", "4", "--pipeline", "2"), "-o", right)
        for keys, line in PLANS:
            with self.subTest(**keys):
                plan = {key: value for key, value in {**json.loads(right.read_text()), **keys}.items() if value is not None}
                path = self.write("plan.json", json.dumps(plan, indent=1))
                self.assertRegex(self.fault_of("verify", self.platform, workload, path),
                                 rf"\A{re.escape(path)}:\d+: {re.escape(line)}\Z")
