"""Helpers of the tests with frameworks: plans for them, and modules that stand in for what they import and do not use here."""

import importlib
import importlib.abc
import importlib.machinery
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import types
import typing
import unittest

ISOBAR = str(pathlib.Path(os.environ["ISOBAR"]).resolve())

# Six blocks of a gpt, whose layers divide.
GPT = """model: gpt
layers: 6
hidden: 64
heads: 4
vocabulary: 1000
sequence: 32
micro_batch: 2
optimizer: adamw
attention: fused
dtype: bf16
unit: operator
compute: operators
framework: megatron-core
"""
A100S = "A100-SXM4-40GB"


class Anything:
    """Stands for whatever a module is asked for: a class to derive from, a decorator, a value."""

    def __init__(self, *arguments, **named):
        pass

    def __call__(self, *arguments, **named):
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else Anything()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __mro_entries__(self, bases):
        return (object,)

    def __getitem__(self, index):
        return Anything()


class StandIn(types.ModuleType):
    """A module that has everything, of a version newer than any that is asked for."""

    __version__ = "99"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stand-ins for some packages."""

    def __init__(self, packages):
        self.packages = packages

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in self.packages:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


def stand_in_for(*packages):
    """Lets these packages be imported where they are not installed. torch finds out before that it has no triton."""
    for module in ("_dynamo", "_functorch.partitioners", "_inductor.compile_fx", "nn.attention.flex_attention"):
        importlib.import_module(f"torch.{module}")
    sys.meta_path.append(StandIns(packages))


# Frameworks are for Python 3.12, which has it.
if not hasattr(typing, "override"):
    typing.override = lambda method: method


class FrameworkTest(unittest.TestCase):
    """`self.folder` is a new folder for platforms, workloads and plans."""

    maxDiff = None

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def isobar(self, *arguments):
        """Runs the command in the folder. Returns its output."""
        done = subprocess.run([ISOBAR, *map(str, arguments)], cwd=self.folder, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, f"{arguments}: {done.stdout}{done.stderr}")
        return done.stdout

    def plan(self, layout, devices, *options, text=GPT):
        """Writes plan.json, of a layout on equal devices. Returns it."""
        (self.folder / "model.yaml").write_text(text)
        self.isobar("platform", "generate", "star", "--devices", f"{devices}x{A100S}", "-o", "star.xml")
        self.isobar("convert", layout, "star.xml", "model.yaml", "--from", "megatron", "-o", "plan.json", *options)
        return json.loads((self.folder / "plan.json").read_text())

    def converted(self, framework):
        """Converts plan.json. Returns the folder."""
        self.isobar("convert", "plan.json", "--to", framework, "-o", framework)
        return self.folder / framework

    def arguments_of(self, framework, array="PLAN_ARGUMENTS"):
        """The arguments of an array that a shell reads in what is written for a framework."""
        script = self.converted(framework) / "arguments.sh"
        done = subprocess.run(["bash", "-c", f'. {shlex.quote(str(script))}; printf "%s\\n" "${{{array}[@]}}"'],
                              capture_output=True, text=True, check=True)
        return done.stdout.splitlines()
