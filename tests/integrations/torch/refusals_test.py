"""What isobar-torch refuses: one line with file, line and key, and exit code 2, before a rank starts."""

import copy
import json
import os
import pathlib
import subprocess
import sys

import isobar_torch
from tests.integrations.torch.support import GPT, LLAMA, IsobarTorchTest

PLAN = {
    "schema": "isobar-plan/2", "allocator": "even", "objective": "step", "communication": "played",
    "schedule": {"name": "1f1b"}, "microbatches": 4, "outcome": "feasible",
    "stages": [{"first_layer": 0, "last_layer": 3, "replicas": [{"microbatches": 4, "shards": [{"device": "a"}]}]},
               {"first_layer": 4, "last_layer": 7, "replicas": [{"microbatches": 4, "shards": [{"device": "b"}]}]}]}


def two(*names, microbatches=(2, 2)):
    """Replicas."""
    return [{"microbatches": each, "shards": [{"device": name}]} for name, each in zip(names, microbatches, strict=True)]


class Commands(IsobarTorchTest):
    """What all commands of the package do before they import torch."""

    COMMANDS = (("isobar_torch", "plan.json", "--workload", "model.yaml"),
                ("isobar_torch.trace", "mymodel:build", "--input", "[4,128]:int64"),
                ("isobar_torch.kineto", "plan.json", "rank-0.json", "--workload", "model.yaml", "-o", "measured.json"))

    def without(self, module, *arguments):
        """Exit code and output of a command in an interpreter that lacks a module."""
        self.write(f"{module}.py", f'raise ModuleNotFoundError("No module named {module}", name="{module}")\n')
        self.addCleanup((self.folder / f"{module}.py").unlink, missing_ok=True)
        path = os.pathsep.join([str(self.folder), str(pathlib.Path(isobar_torch.__file__).parents[1]), os.environ["PYTHONPATH"]])
        done = subprocess.run([sys.executable, "-m", *arguments], env={**os.environ, "PYTHONPATH": path}, capture_output=True,
                              text=True, check=False)
        (self.folder / f"{module}.py").unlink()
        return done.returncode, done.stdout, done.stderr

    def test_a_missing_module_in_one_line(self):
        for command in self.COMMANDS:
            for module in ("torch", "yaml"):
                with self.subTest(command=command[0], module=module):
                    self.assertEqual(self.without(module, *command), (3, "", f"{command[0]}: {sys.executable} has no module {module}; "
                                     "install it, or choose an interpreter that has it\n"))

    def test_help_and_wrong_options_need_no_torch(self):
        for command in self.COMMANDS:
            with self.subTest(command=command[0]):
                code, output, errors = self.without("torch", command[0], "--help")
                self.assertEqual((code, errors), (0, ""))
                self.assertTrue(output.startswith(f"usage: {command[0]} "), output)
                self.assertEqual(self.without("torch", *command, "--wrong"), (2, "", f"{command[0]}: unrecognized arguments: --wrong; "
                                 f"see python -m {command[0]} --help\n"))


class Plans(IsobarTorchTest):
    """Plans that are wrong, or that torch does not execute here."""

    def refusal(self, text, *options, workload=GPT):
        """The line that a plan with this text is refused with, after `isobar_torch: `."""
        self.write("plan.json", text)
        self.write("model.yaml", workload)
        code, errors = self.run_here("plan.json", "--workload", "model.yaml", "--spawn", *options)
        self.assertEqual((code, errors.count("\n")), (2, 1), errors)
        self.assertTrue(errors.startswith("isobar_torch: "), errors)
        return errors.removeprefix("isobar_torch: ").rstrip("\n")

    def changed(self, change):
        """The refusal of PLAN after a change."""
        plan = copy.deepcopy(PLAN)
        change(plan)
        return self.refusal(json.dumps(plan, indent=1))

    def test_files_that_are_no_plans(self):
        self.assertEqual(self.refusal('{"schema": "isobar-plan/2",\n "microbatches": 4,,\n}'),
                         "plan.json:2: Expecting property name enclosed in double quotes; it is not JSON")
        self.assertEqual(self.refusal("[]"), "plan.json:1: [] is not a mapping")
        self.assertEqual(self.refusal('{"microbatches": 4, "microbatches": 5}'),
                         "plan.json: microbatches: the key stands there twice; remove one")
        self.assertEqual(self.refusal('{"microbatches": NaN}'), "plan.json: NaN is not a number of JSON")
        self.assertEqual(self.refusal('{\n "schema": "isobar-plan/3"}'),
                         "plan.json:2: schema: isobar-plan/3; use isobar-plan/1 or isobar-plan/2")
        self.assertEqual(self.refusal('{\n "schema": "isobar-plan/2"}'), "plan.json:1: microbatches is missing")
        self.assertEqual(self.run_here("no.json", "--workload", "model.yaml"),
                         (2, "isobar_torch: no.json: No such file or directory\n"))

    def test_an_unknown_key_with_its_line(self):
        self.assertEqual(self.refusal(json.dumps({**PLAN, "stage": 3}, indent=1).replace("],\n \"stage\"", "],\n\n \"stage\"")),
                         "plan.json:42: stage: torch runs no plans with stage here; plan without it")

    def test_micro_batches(self):
        self.assertEqual(self.changed(lambda plan: plan.update(microbatches=0)),
                         "plan.json:9: microbatches: 0 is not a whole number from 1 to 1000000")
        self.assertEqual(self.changed(lambda plan: plan.update(microbatches=5)),
                         "plan.json:15: stages[0].replicas: 4 micro-batches in all; the plan has 5")

    def test_unequal_replicas(self):
        self.assertEqual(self.changed(lambda plan: plan["stages"][1].update(replicas=two("b", "c", microbatches=(1, 3)))),
                         "plan.json:29: stages[1].replicas: take 1, 3 micro-batches; torch runs replicas that take equally "
                         "many")
        self.assertEqual(self.changed(lambda plan: plan["stages"][1].update(replicas=two("b", "c"))),
                         "plan.json:29: stages[1].replicas: 2 replicas, and 1 of the first stage; torch runs equal "
                         "pipelines")

    def test_a_device_in_two_pipelines(self):
        def change(plan):
            plan["stages"][0]["replicas"] = two("a", "b")
            plan["stages"][1]["replicas"] = two("b", "a")
        self.assertEqual(self.changed(change), "plan.json:11: stages: b is in two pipelines, as replica 1 and, of stage 1, "
                                               "0; torch runs a device in one")

    def test_shards_and_cuts_and_residence_and_experts_and_sequences(self):
        def shards(plan):
            plan["stages"][0]["replicas"][0]["shards"] = [{"device": "a", "share": 0.5}, {"device": "c", "share": 0.5}]
        self.assertEqual(self.changed(shards), "plan.json:18: stages[0].replicas[0].shards: 2 devices that divide layers; "
                                               "torch runs whole layers here, one device a replica")
        for key, value in (("cuts", [1]), ("residence", {"optimizer": "host"}), ("splits", {"*": "sequence"})):
            self.assertIn(f"stages[0].{key}: torch runs no stages with {key} here; plan without it",
                          self.changed(lambda plan, key=key, value=value: plan["stages"][0].update({key: value})))
        for key in ("experts", "context"):
            self.assertIn(f"{key}.degree: 2; torch runs whole sequences and experts here, degree 1",
                          self.changed(lambda plan, key=key: plan.update({key: {"degree": 2}})))

    def test_experts_before_what_follows_from_them(self):
        def change(plan):
            plan["stages"][1]["replicas"] = two("b", "c")
            plan |= {"experts": {"degree": 2}, "sync": {"bucket_bytes": 100}}
        self.assertIn("experts.degree: 2; torch runs whole sequences and experts here, degree 1", self.changed(change))

    def test_sums_that_torch_does_otherwise(self):
        for key, value in (("bucket_bytes", 100), ("each_microbatch", True), ("codec", "int8")):
            self.assertIn(f"sync.{key}: torch runs no plans with {key} here; plan without it",
                          self.changed(lambda plan, key=key, value=value: plan.update(sync={key: value})))
        self.assertIn("sync.sharded: gradients; use none or optimizer or parameters",
                      self.changed(lambda plan: plan.update(sync={"sharded": "gradients"})))
        self.assertIn("sync.gradient_dtype: bf16; use float32",
                      self.changed(lambda plan: plan.update(sync={"gradient_dtype": "bf16"})))
        self.assertIn("transfers.sliced: torch sends whole tensors; plan without sliced",
                      self.changed(lambda plan: plan.update(transfers={"sliced": True})))

    def test_stages_that_are_no_chain(self):
        self.assertEqual(self.changed(lambda plan: plan["stages"][1].update(first_layer=5)),
                         "plan.json:27: stages[1].first_layer: 5; the layers before end with 3")
        self.assertEqual(self.changed(lambda plan: plan.update(stages=[], reason="memory of a: 1 GB too little")),
                         "plan.json:11: stages: memory of a: 1 GB too little")
        self.assertEqual(self.changed(lambda plan: plan["stages"][1].update(last_layer=9)),
                         "plan.json: stages: layers 0 to 9; model.yaml has 8")

    def test_recomputation_and_divided_parameters_with_halves_of_backward_passes(self):
        order = "0F0,0F1,0F2,0F3,0I0,0W0,0I1,0W1,0I2,0W2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n"
        for key, change in (("recompute", {"recompute": [1]}), ("sync.sharded", {"sync": {"sharded": "parameters"}})):
            self.write("order.csv", order)
            self.assertEqual(self.refusal(json.dumps({**PLAN, **change}), "--order", "order.csv"),
                             f"plan.json: {key}: with backward passes in halves; plan without it, or with gpipe, 1f1b or "
                             "interleaved")
        self.assertEqual(self.changed(lambda plan: plan.update(recompute=[8])),
                         'plan.json:41: recompute: ["8"]; layers from 0 to 7')

    def test_orders(self):
        good = [["0F0", "0F1", "0F2", "0F3", "0B0", "0B1", "0B2", "0B3"], ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2", "1F3", "1B3"]]
        for row, column, cell, message in (
                (0, 3, "0X3", "order.csv:1: column 4: 0X3 is no task; write stage, F, B, I or W, and micro-batch, such as 0F3"),
                (1, 1, "0B0", "order.csv:2: column 2: 0B0: b has stages 1"),
                (1, 1, "1B4", "order.csv:2: column 2: 1B4: a pipeline has micro-batches 0 to 3"),
                (1, 2, "1F0", "order.csv:2: column 3: 1F0 is there twice"),
                (1, 7, "1I3", "order.csv:2: micro-batch 3 has FI in stage 1; F and B, or F, I and W")):
            rows = copy.deepcopy(good)
            rows[row][column] = cell
            self.write("order.csv", "\n".join(map(",".join, rows)))
            self.assertEqual(self.refusal(json.dumps(PLAN), "--order", "order.csv"), message)
        self.write("order.csv", ",".join(good[0]))
        self.assertEqual(self.refusal(json.dumps(PLAN), "--order", "order.csv"),
                         "order.csv: 1 rows; the plan has 2 devices in a pipeline, a row each")

    def test_another_workload_than_the_plans(self):
        plan = {**PLAN, "inputs": {"workload": {"name": "model.yaml", "hash": "0123456789abcdef"}}}
        self.assertRegex(self.refusal(json.dumps(plan)), r"^plan\.json: inputs\.workload\.hash: 0123456789abcdef; model\.yaml "
                         r"has [0-9a-f]{16}; pass the workload that the plan was made for$")

    def test_files_that_cannot_be_written(self):
        self.assertEqual(self.refusal(json.dumps(PLAN), "--trace", "no/trace.json"),
                         "--trace no/trace.json: its folder is not there or cannot be written; choose another")

    def test_workloads(self):
        for text, message in (
                ("model: resnet\n", "model.yaml:1: model: resnet; use gpt or llama or decoder"),
                (GPT.replace("hidden: 32", "hidden: 33"), "model.yaml:4: heads: 4 does not divide hidden, 33"),
                (GPT + "dropuot: 0.1\n", "model.yaml:13: dropuot: isobar_torch has no gpt with it; remove it, or use "
                                         "transformers' model: --model"),
                (GPT + "tied: true\n", "model.yaml:13: tied: true; torch trains a matrix each for head and embedding here; write apart"),
                (GPT + "dtype: fp16\n", "model.yaml:13: dtype: fp16; use float32 or bf16, since losses are not scaled"),
                (GPT + "layers: 7\n", "model.yaml:13: layers: the key stands there twice; remove one"),
                (LLAMA + "experts: 4\n", "model.yaml:11: experts: isobar_torch has no llama with it; remove it, or use "
                                         "transformers' model: --model"),
                (LLAMA.replace("kv_heads: 2", "kv_heads: 3"), "model.yaml:5: kv_heads: 3 does not divide the 4 heads"),
                (LLAMA + "  x: [", "model.yaml:11: mapping values are not allowed here; it is not YAML"),
                (LLAMA.replace("hidden: 32", "hidden: wide"),
                 "model.yaml:3: hidden: wide is not a whole number from 1 to 1048576")):
            self.assertEqual(self.refusal(json.dumps(PLAN), workload=text), message)

    def test_options(self):
        with self.assertRaises(SystemExit) as ended:
            self.run_here("plan.json")
        self.assertEqual(ended.exception.code, 2)
        with self.assertRaises(SystemExit) as ended:
            self.run_here("plan.json", "--workload", "model.yaml", "--steps", "0")
        self.assertEqual(ended.exception.code, 2)
