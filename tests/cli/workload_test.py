import json

from tests.cli.support import SKY16, CommandTest

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
            f'{config}:10: hidden_act: "relu" is not supported (only silu, swish)'])
        with open(output) as file:
            self.assertEqual(file.read(), "as it was")

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
