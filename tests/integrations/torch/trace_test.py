"""Workloads of modules: work, parameters, what is kept and what crosses, against formulas and against the generators."""

import contextlib
import io
import json
import sys
import unittest

import torch
from torch import nn
from torch.nn import functional

from isobar_torch import models, trace, traced_module, workload
from tests.integrations.torch.support import GPT, LLAMA, IsobarTorchTest

SOURCES = """
import torch
from torch import nn

class Mixture(nn.Module):
    def forward(self, value):
        return value[value > 0]

def number(): return 3
def fails(): raise ValueError("no such size\\nsecond line")
def choosing(): return Mixture()
def linear(): return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
def doubles(): return nn.Linear(4, 4).double()
"""


class Whole(nn.Module):
    """A model of ours, not divided."""

    def __init__(self, file):
        super().__init__()
        read = workload.read_workload(file, {}, None, True)
        self.layers = nn.ModuleDict(models.own_layers(read, range(len(read.names())), 1))

    def forward(self, value):
        for layer in self.layers.values():
            value = layer(value)
        return value


class Branches(nn.Module):
    """Two towers over a stem, whose outputs are joined."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.left = nn.Conv2d(8, 8, 3, padding=1)
        self.right = nn.Sequential(nn.Conv2d(8, 4, 1), nn.ReLU(), nn.Conv2d(4, 8, 3, padding=1))
        self.join = nn.Conv2d(16, 8, 1)
        self.head = nn.Linear(8, 10)

    def forward(self, image):
        stem = self.stem(image).relu()
        return self.head(self.join(torch.cat([self.left(stem), self.right(stem)], 1)).mean((2, 3)))


class Tied(nn.Module):
    """A head that uses the embedding's matrix."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(100, 8)
        self.inner = nn.Linear(8, 8)

    def forward(self, tokens):
        return functional.linear(self.inner(self.words(tokens)), self.words.weight)


class Masked(nn.Module):
    """Attention whose mask, made of no input, crosses every cut."""

    def __init__(self):
        super().__init__()
        self.products = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, value):
        mask = torch.ones(4, 4, device=value.device).tril()
        for product in self.products:
            value = mask @ product(value)
        return value


def traced(module, *inputs):
    """The layers of a module."""
    return traced_module.trace_module(module.to("meta"), [each.to("meta") for each in inputs])


class Modules(IsobarTorchTest):
    """trace_module."""

    TOKENS = torch.zeros(2, 16, dtype=torch.int64)

    def check_against_the_generator(self, text):
        """The traced workload takes as long, and nearly as much memory, as the generator's."""
        self.write("model.yaml", text)
        module = Whole("model.yaml")
        layers = traced(module, self.TOKENS)
        self.write("traced.yaml", traced_module.workload_text("whole", layers, [self.TOKENS], "float32", "adamw"))
        self.isobar("platform", "generate", "star", "--devices", 1, "-o", "one.xml")
        predicted = []
        for file in ("model.yaml", "traced.yaml"):
            self.isobar("plan", "one.xml", file, "--allocator", "even", "--set", "optimizer=adamw", "-o", "plan.json")
            predicted.append(json.loads((self.folder / "plan.json").read_text())["predicted"])
        self.assertAlmostEqual(predicted[0]["bottleneck_s"] / predicted[1]["bottleneck_s"], 1, delta=1e-12)
        memory = [each["peak_memory_bytes"]["device-0"] for each in predicted]
        self.assertAlmostEqual(memory[1] / memory[0], 1, delta=0.1)
        self.assertEqual(sum(each.parameters for each in layers), sum(each.numel() for each in module.parameters()))
        return layers

    def test_a_gpt(self):
        layers = self.check_against_the_generator(GPT)
        tokens, hidden, heads, sequence, inner, vocabulary = 32, 32, 4, 16, 128, 100
        self.assertEqual([each.name for each in layers[:4]], [
            "layers.embedding.words", "layers.embedding", "layers.block0.0", "layers.block0.1"])
        self.assertEqual([each.name for each in layers[-2:]], ["layers.head.norm", "layers.head.words"])
        attention, network, head = layers[2], layers[3], layers[-1]
        products, scores = 4 * tokens * hidden**2, 2 * 2 * sequence**2 * hidden
        self.assertEqual((attention.forward, attention.backward, attention.backward_weight),
                         (2 * (products + scores), 4 * (products + scores), 2 * products))
        self.assertEqual(attention.parameters, 4 * (hidden**2 + hidden) + 2 * hidden)
        # Input and its norm with two numbers a token; queries, keys and values; attention's output, and a number for
        # each head of a token.
        self.assertEqual(attention.activations, 4 * (6 * tokens * hidden + 2 * tokens + tokens * heads))
        self.assertEqual((network.forward, network.backward, network.backward_weight), tuple(
            each * tokens * hidden * inner for each in (4, 8, 4)))
        self.assertEqual((head.forward, head.backward_weight, head.output),
                         (2 * tokens * hidden * vocabulary, 2 * tokens * hidden * vocabulary, 4 * tokens * vocabulary))
        self.assertEqual({each.output for each in layers[:-1]}, {4 * tokens * hidden})

    def test_a_llama(self):
        layers = self.check_against_the_generator(LLAMA)
        tokens, hidden, keys, inner = 32, 32, 16, 48
        products = tokens * (2 * hidden**2 + 2 * hidden * keys)
        self.assertEqual([each.name for each in layers[:3]], ["layers.embedding.words", "layers.block0.0", "layers.block0.1"])
        self.assertEqual(layers[1].backward_weight, 2 * products)
        self.assertEqual(layers[2].forward, 6 * tokens * hidden * inner)
        self.assertEqual(layers[2].parameters, 3 * hidden * inner + hidden)

    def test_branches_are_one_layer(self):
        layers = traced(Branches(), torch.zeros(2, 3, 8, 8))
        pixels, image, maps = 2 * 64, 4 * 2 * 3 * 64, 4 * 2 * 8 * 64
        self.assertEqual([each.name for each in layers], ["stem", "Branches", "join", "head"])
        stem, towers, join, head = layers
        # The image has no gradient.
        self.assertEqual((stem.forward, stem.backward, stem.backward_weight), (2 * 216 * pixels,) * 3)
        self.assertEqual((stem.activations, stem.output), (image + maps, maps))
        self.assertEqual(towers.forward, 2 * pixels * (9 * 64 + 32 + 9 * 32))
        self.assertEqual((towers.backward, towers.backward_weight), (2 * towers.forward, towers.forward))
        self.assertEqual((towers.activations, towers.output), (maps + maps // 2, 2 * maps))
        self.assertEqual((join.activations, join.output), (2 * maps, 4 * 2 * 8))
        self.assertEqual((head.parameters, head.output), (90, 4 * 2 * 10))

    def test_a_tied_matrix_counts_in_both_layers(self):
        module = Tied()
        layers = traced(module, self.TOKENS)
        self.assertEqual([each.parameters for each in layers], [800, 72, 800])
        # The matrix has a gradient in the head too.
        self.assertEqual(layers[2].backward_weight, layers[2].forward)
        self.assertEqual(traced_module.shared_parameters(module), [])
        module.head = nn.Linear(8, 100, bias=False)
        module.head.weight = module.words.weight
        self.assertEqual(traced_module.shared_parameters(module), ["words.weight = head.weight"])

    def test_tensors_of_no_input_do_not_cross(self):
        layers = traced(Masked(), torch.zeros(2, 4, 8))
        self.assertEqual([each.name for each in layers if each.parameters], ["products.0", "products.1", "products.2"])

    def test_frozen_parameters_have_no_gradients(self):
        module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        module[1].weight.requires_grad_(False)
        layers = traced(module, torch.zeros(4, 8))
        self.assertEqual([(each.backward, each.backward_weight) for each in layers], [(512, 512), (512, 0)])

    def test_a_module_without_gradients(self):
        layers = traced(nn.Linear(8, 8).requires_grad_(False), torch.zeros(4, 8))
        self.assertEqual([(each.forward, each.backward, each.activations) for each in layers], [(512, 0, 0)])

    def test_a_cut_into_layers_adds_up_to_the_whole(self):
        one = traced(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2), nn.Tanh()), torch.zeros(3, 4))
        self.assertEqual([(each.name, each.output) for each in one], [("0", 4 * 3 * 8), ("2", 4 * 3 * 2)])
        self.assertEqual(sum(each.forward for each in one), 2 * 3 * (32 + 16))


class Command(IsobarTorchTest):
    """python -m isobar_torch.trace"""

    def run_trace(self, *arguments):
        """Exit code, stdout and stderr."""
        self.write("sources.py", SOURCES)
        output, errors = io.StringIO(), io.StringIO()
        self.addCleanup(sys.modules.pop, "sources", None)
        self.addCleanup(setattr, sys, "path", list(sys.path))
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code = trace.main(arguments)
        sys.modules.pop("sources", None)
        return code, output.getvalue(), errors.getvalue()

    def test_prints_a_workload_that_isobar_plans(self):
        code, text, errors = self.run_trace("sources:linear", "--input", "[3,4]:float32")
        self.assertEqual((code, errors), (0, ""))
        self.assertEqual(text, """# sources:linear, traced by isobar_torch.trace
model: layers
micro_batch: 3
sequence: 1
dtype: float32
optimizer: adamw
input: 48 B
layers:
  - {name: "0", forward: 192 FLOP, backward: 192 FLOP, backward_weight: 192 FLOP, parameters: 40, activations: 144 B, output: 96 B}
  - {name: "2", forward: 96 FLOP, backward: 192 FLOP, backward_weight: 96 FLOP, parameters: 18, activations: 96 B, output: 24 B}
""")
        self.write("traced.yaml", text)
        self.isobar("platform", "generate", "star", "--devices", 2, "-o", "two.xml")
        self.assertIn("exact: optimal", self.isobar("plan", "two.xml", "traced.yaml", "--allocator", "exact"))

    def test_writes_a_file(self):
        self.assertEqual(self.run_trace("sources:linear", "--input", "[3,4]:float32", "-o", "out.yaml"),
                         (0, "out.yaml: 2 layers, 58 parameters, 288 FLOP forward\n", ""))
        self.assertIn("model: layers\n", (self.folder / "out.yaml").read_text())

    def test_refusals(self):
        for arguments, message in (
                (("sources", "--input", "[3]:float32"), "sources: write MODULE:FUNCTION, such as mymodel:build"),
                (("sources:none", "--input", "[3]:float32"), "sources:none: module 'sources' has no attribute 'none'"),
                (("nowhere:none", "--input", "[3]:float32"), "nowhere:none: No module named 'nowhere'"),
                (("sources:number", "--input", "[3]:float32"), "sources:number: gives a int; return a torch.nn.Module"),
                (("sources:fails", "--input", "[3]:float32"), "sources:fails: ValueError: no such size"),
                (("sources:doubles", "--input", "[3,4]:float32"), "sources:doubles: parameters are torch.float64; workloads "
                                                                  "have float32, bf16 or fp16"),
                (("sources:linear", "--input", "[3,x]:float32"), "--input [3,x]:float32: write sizes and dtype (float32, bf16, "
                                                                 "bfloat16, fp16, float16, int64, int32, bool), such as "
                                                                 "[4,128]:int64"),
                (("sources:linear", "--input", "[0,4]:float32"), "--input [0,4]:float32: sizes are 1 or more")):
            self.assertEqual(self.run_trace(*arguments), (2, "", f"isobar_torch.trace: {message}\n"))

    def test_a_module_that_reads_values_is_refused(self):
        code, output, errors = self.run_trace("sources:choosing", "--input", "[3,4]:float32")
        self.assertEqual((code, output, errors.count("\n")), (2, "", 1))
        self.assertIn("sources:choosing: forward on the meta device, where no values are: ", errors)


if __name__ == "__main__":
    unittest.main()
