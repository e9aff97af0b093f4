import json
import pathlib

from tests.cli.support import GPT, ROOT, SKY16, CommandTest

LLAMA = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
         "num_key_value_heads": 2, "num_hidden_layers": 30, "vocab_size": 1000, "max_position_embeddings": 256,
         "hidden_act": "silu", "rms_norm_eps": 1e-06, "torch_dtype": "bfloat16"}


class Workload(CommandTest):
    def config(self, **changes):
        return self.write("config.json", json.dumps({**LLAMA, **changes}, indent=1))

    def test_imports_a_workload_that_plan_reads(self):
        workload = self.folder / "imported.yaml"
        self.run_isobar("workload", "import", self.config(), "--sequence", 128, "--micro-batch", 2, "-o", workload)
        self.assertIn("\nnorm_epsilon: 1e-06\nattention: fused\nmicro_batch: 2\nsequence: 128\ndtype: bf16\noptimizer: adamw\n", workload.read_text())
        plan = self.json_of("plan", SKY16, workload, "--allocator", "even")
        self.assertEqual(plan["stages"][-1]["last_layer"], 31)

    def test_the_optimizers_state_counts_in_memory(self):
        peaks = {}
        for optimizer in ("sgd", "adamw"):
            workload = self.folder / f"{optimizer}.yaml"
            self.run_isobar("workload", "import", self.config(), "--sequence", 8, "--optimizer", optimizer, "-o", workload)
            plan = self.make_plan(SKY16, workload)
            result = self.json_of("simulate", SKY16, workload, "--plan", plan)
            peaks[optimizer] = result["stages"][1]["peak_memory_bytes"]
        self.assertGreater(peaks["adamw"], 1.5 * peaks["sgd"])

    def test_prints_without_output(self):
        text = self.run_isobar("workload", "import", self.config(), "--sequence", 1, "--dtype", "float32").stdout
        self.assertTrue(text.startswith("# Converted from config.json, model_type llama of Hugging Face's transformers.\n"), text)
        self.assertTrue(text.endswith("micro_batch: 1\nsequence: 1\ndtype: float32\noptimizer: adamw\n"), text)

    def test_an_unsupported_model_is_a_fault_of_the_user(self):
        config = self.config(hidden_act="relu", num_attention_heads=5)
        output = self.write("imported.yaml", "as it was")
        fault = self.fault_of("workload", "import", config, "--sequence", "8", "-o", output)
        self.assertEqual(fault.splitlines(), [
            f"{config}:5: num_attention_heads: 5 does not divide hidden_size, 64",
            f'{config}:10: hidden_act: "relu" is not supported (only silu, swish, gelu, gelu_python, gelu_new, gelu_fast, '
            'gelu_pytorch_tanh, gelu_python_tanh, gelu_10, gelu_accurate, quick_gelu)'])
        with open(output) as file:
            self.assertEqual(file.read(), "as it was")

    def test_a_tied_model_is_planned_and_simulated_with_both_counts(self):
        workload = self.folder / "tied.yaml"
        self.run_isobar("workload", "import", self.config(tie_word_embeddings=True), "--sequence", 128, "-o", workload)
        self.assertIn("\n# 1237824 parameters; the model has 1173824.\n", workload.read_text())
        note = (f"{workload}: tied: apart: counts 1237824 parameters; 1173824 with one matrix for head and embedding, as in "
                "the model\n")
        plan = str(self.folder / "plan.json")
        planned = self.run_isobar("plan", SKY16, workload, "--allocator", "even", "-o", plan)
        self.assertIn(note, planned.stderr)
        self.assertIn(note, self.run_isobar("compare", SKY16, workload, "--allocators", "even").stderr)
        self.assertIn(note, self.run_isobar("simulate", SKY16, workload, "--plan", plan).stderr)

    def test_a_model_of_the_same_cost_is_planned_and_its_differences_are_in_the_file(self):
        workload = self.folder / "other.yaml"
        self.run_isobar("workload", "import", self.config(hidden_act="gelu", attention_dropout=0.1), "--sequence", 128,
                        "-o", workload)
        self.assertTrue(workload.read_text().endswith(
            "# What the model computes and isobar run does not; the cost is the same.\ndifferences:\n"
            '  - "hidden_act gelu, not silu"\n  - "attention_dropout 0.1, not 0"\n'), workload.read_text())
        same = self.folder / "same.yaml"
        self.run_isobar("workload", "import", self.config(), "--sequence", 128, "-o", same)
        steps = [self.json_of("plan", SKY16, file, "--allocator", "even")["predicted"]["step_time_s"] for file in (workload, same)]
        self.assertEqual(steps[0], steps[1])

    def test_lists_the_types_that_can_be_imported(self):
        lines = self.run_isobar("workload", "import", "--list").stdout.splitlines()
        self.assertEqual(lines[0].split(), ["model_type", "workload"])
        models = dict(line.split(None, 1) for line in lines[1:])
        self.assertEqual(len(models), 37)
        self.assertEqual(list(models), sorted(models))
        self.assertEqual(models["llama"], "llama or decoder")
        self.assertEqual(models["deepseek_v3"], "decoder")

    def test_a_mixture_of_experts_is_planned_simulated_and_verified(self):
        config = {"model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 8,
                  "num_key_value_heads": 2, "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2,
                  "moe_intermediate_size": 32, "vocab_size": 1000, "tie_word_embeddings": True}
        workload = self.folder / "mixture.yaml"
        self.run_isobar("workload", "import", self.write("config.json", json.dumps(config, indent=1)), "--sequence", 64,
                        "-o", workload)
        self.assertIn("\nexperts: 8\ntop_k: 2\nexpert_intermediate: 32\n", workload.read_text())
        for settings in ((), ("--set", "unit=operator"), ("--set", "unit=operator", "--set", "mtp_layers=1")):
            plan = self.make_plan(SKY16, workload, *settings)
            self.run_isobar("verify", SKY16, workload, plan)
            result = self.json_of("simulate", SKY16, workload, "--plan", plan)
            self.assertGreater(result["step_time_s"], 0)

    def test_operators_of_a_decoder_have_times_on_known_devices(self):
        steps = []
        for per_token in (8, 16):
            config = {"model_type": "qwen3_moe", "num_hidden_layers": 14, "num_experts": 16, "num_experts_per_tok": per_token,
                      "head_dim": 128}
            workload = self.folder / "mixture.yaml"
            self.run_isobar("workload", "import", self.write("config.json", json.dumps(config)), "--sequence", 2048,
                            "--dtype", "bf16", "-o", workload)
            plan = self.json_of("plan", ROOT / "platforms/nodes8.xml", workload, "--allocator", "even",
                                "--set", "compute=operators", "--set", "framework=megatron-core-0.8")
            steps.append(plan["predicted"]["step_time_s"])
        self.assertGreater(steps[1], 1.05 * steps[0])
        self.assertLess(steps[1], 2 * steps[0])

    def test_options_out_of_range_are_faults_of_the_user(self):
        config = self.config()
        self.assertEqual(self.fault_of("workload", "import", config, "--sequence", "0"),
                         "--sequence: 0 is not in 1 to 16777216")
        self.assertEqual(self.fault_of("workload", "import", config, "--sequence", "8", "--micro-batch", "2000000"),
                         "--micro-batch: 2000000 is not in 1 to 1048576")
        self.assertEqual(self.fault_of("workload", "import", config, "--sequence", "8", "--dtype", "int8"),
                         '--dtype: "int8" is none of float32, bf16, fp16')
        self.assertEqual(self.fault_of("workload", "import", config, "--sequence", "8", "--optimizer", "adamax"),
                         '--optimizer: "adamax" is none of sgd, momentum, adam, adamw')
        self.assertIn("max_position_embeddings: 256 is less than the sequence of 257",
                      self.fault_of("workload", "import", config, "--sequence", "257"))
        self.assertIn("--sequence is required", self.fault_of("workload", "import", config))

    def test_it_does_not_overwrite_its_input(self):
        config = self.config()
        self.assertIn("config.json", self.fault_of("workload", "import", config, "--sequence", "8", "-o", config))
        with open(config) as file:
            self.assertEqual(json.load(file), LLAMA)


class Settings(CommandTest):
    def test_replace_the_files_keys_in_every_command_that_reads_it(self):
        platform, workload = self.gpt_inputs()
        plan = self.make_plan(platform, workload, "--set", "layers=6", "--set", "dtype = bf16")
        written = json.loads(pathlib.Path(plan).read_text())
        self.assertEqual(written["stages"][-1]["last_layer"], 7)
        self.assertEqual(written["inputs"]["workload"]["set"], {"dtype": "bf16", "layers": "6"})
        rows = self.json_of("compare", platform, workload, "--set", "layers=6", "--allocators", "even,exact")["rows"]
        self.assertEqual({row["workload"] for row in rows}, {f"{workload} --set layers=6"})
        edited = self.write("edited.yaml", GPT.replace("layers: 4", "layers: 6"))
        same, _ = self.json_of("compare", platform, edited, "--allocators", "even,exact")["rows"]
        self.assertEqual(rows[0]["step_time_s"], same["step_time_s"])

    def test_a_plan_applies_its_own(self):
        platform, workload = self.gpt_inputs()
        plan = self.make_plan(platform, workload, "--set", "layers=6")
        result = self.folder / "plan.result.json"
        simulated = self.run_isobar("simulate", platform, workload, "--plan", plan, "--stamp", "-o", result)
        self.assertEqual(simulated.stderr, "")
        self.run_isobar("verify", platform, workload, plan)
        self.run_isobar("verify", platform, workload, plan, "--set", "layers=6")
        report = self.json_of("report", result)
        self.assertEqual(report["workload"]["name"], f"{workload} --set layers=6")
        orders = self.folder / "orders.json"
        orders.write_text(self.run_isobar("schedule", "show", plan, "--json").stdout)
        listed = self.folder / "listed.json"
        self.run_isobar("schedule", "import", orders, platform, workload, "--plan", plan, "-o", listed)
        self.assertEqual(json.loads(listed.read_text())["inputs"]["workload"]["set"], {"layers": "6"})
        self.run_isobar("verify", platform, workload, listed)

    def test_a_plan_refuses_others(self):
        platform, workload = self.gpt_inputs()
        plan = self.make_plan(platform, workload, "--set", "layers=6")
        self.assertEqual(
            self.fault_of("simulate", platform, workload, "--plan", plan, "--set", "layers=4"),
            f"--set: layers=4: {plan} was made with layers=6; leave the option out, or plan again")
        self.assertEqual(
            self.fault_of("verify", platform, workload, plan, "--set", "hidden=32"),
            f"--set: hidden=32: {plan} was made without a setting of hidden; leave the option out, or plan again")
        other = self.write("bert.yaml", (ROOT / "workloads/bert10.yaml").read_text())
        self.assertEqual(self.fault_of("simulate", platform, other, "--plan", plan).splitlines()[0],
                         f"{plan}: inputs.workload.set: layers: unknown key; the keys here are attention, beta1, beta2, classes, "
                         "clip_norm, compute, decay_steps, differences, dropout, dtype, encoders, epsilon, framework, heads, hidden, "
                         "intermediate, learning_rate, learning_rate_decay, matmul_dtype, memory_model, micro_batch, "
                         "min_learning_rate, model, momentum, optimizer, positions, sequence, vocabulary, warmup_steps, "
                         "weight_decay")

    def test_a_plan_whose_settings_were_changed_is_found_out(self):
        platform, workload = self.gpt_inputs()
        plan = self.make_plan(platform, workload, "--set", "hidden=128")
        text = pathlib.Path(plan).read_text()
        self.write("plan.json", text.replace('"hidden": "128"', '"hidden": "64"'))
        findings = self.run_isobar("verify", platform, workload, plan, expect=5).stdout
        self.assertIn("inputs.workload: claims", findings)
        self.assertIn(" --set hidden=64 (hash ", findings)

    def test_a_wrong_one_is_one_line(self):
        platform, workload = self.gpt_inputs()

        def fault(*settings):
            options = [word for setting in settings for word in ("--set", setting)]
            return self.fault_of("plan", *options, platform, workload, "--allocator", "even")

        self.assertEqual(fault("layrs=6"), "--set: layrs: unknown key; did you mean layers?")
        self.assertEqual(fault("layers"), "--set: layers: no value; write layers=VALUE")
        self.assertEqual(fault("=6"), '--set: "=6" names no key; write KEY=VALUE')
        self.assertEqual(fault("layers=6", "layers=7"), "--set: layers is given twice; leave one out")
        self.assertEqual(fault("layers=[1, 2]"), "--set: layers: is a list; write a whole number from 1 to 999998")
        self.assertEqual(fault("heads=3"), "--set: heads: 3 does not divide hidden, 64; write a divisor of it")

    def test_go_with_other_micro_batches(self):
        platform, workload = self.gpt_inputs()
        plan = self.make_plan(platform, workload, "--set", "micro_batch=2", "--global-batch", "32", "--microbatches", "2")
        written = json.loads(pathlib.Path(plan).read_text())
        self.assertEqual((written["micro_batch"], written["inputs"]["workload"]["set"]), (16, {"micro_batch": "2"}))
        self.run_isobar("verify", platform, workload, plan)
