"""Helpers of the tests with frameworks: plans for them, and modules that stand in for what they import and do not use here."""

import collections
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import pathlib
import shlex
import socket
import subprocess
import sys
import tempfile
import types
import typing
import unittest

from tests.support.wheels import ROOT

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
# Longer than imports of frameworks whose sources are not compiled.
HANG_S = 600


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

    def python(self, *arguments, **environment):
        """Starts Python, which finds isobar_torch, in the folder."""
        path = os.pathsep.join([str(ROOT), str(ROOT / "integrations/torch"), os.environ["PYTHONPATH"]])
        started = subprocess.Popen([sys.executable, *arguments], cwd=self.folder, env={**os.environ, "PYTHONPATH": path, **environment},
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(started.kill)
        return started

    def outputs_of_ranks(self, script, *arguments):
        """Runs a script on two ranks, which meet on this machine. Returns what each prints."""
        (self.folder / "rank.py").write_text(script)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = [self.python("rank.py", *arguments, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                             MASTER_PORT=str(port)) for rank in (0, 1)]
        outputs = [each.communicate(timeout=HANG_S) for each in ranks]
        self.assertEqual([each.returncode for each in ranks], [0, 0], outputs)
        return [printed for printed, _ in outputs]

    def predict(self, workload, schedule):
        """Writes plan.json, of two devices, with its predicted.json and result.json."""
        (self.folder / "model.yaml").write_text(workload)
        self.isobar("platform", "generate", "star", "--devices", 2, "-o", "star.xml")
        self.isobar("plan", "star.xml", "model.yaml", "--allocator", "even", "--schedule", schedule, "--microbatches", 4, "-o", "plan.json")
        self.isobar("simulate", "star.xml", "model.yaml", "--plan", "plan.json", "--trace", "predicted.json", "-o", "result.json")

    def measured_of(self, profiles):
        """Reads profiles of two steps, which have the plan's instructions. Returns those of each rank that compute, in order."""
        reader = self.python("-m", "isobar_torch.kineto", "plan.json", "--workload", "model.yaml", "--isobar", ISOBAR, "-o",
                             "measured.json", *map(str, profiles))
        errors = reader.communicate(timeout=HANG_S)[1]
        self.assertEqual(reader.returncode, 0, errors)
        self.isobar("trace", "merge", "predicted.json", "measured.json", "-o", "both.json")
        self.isobar("report", "result.json", "--measured", "measured.json", "-o", "page.html")
        predicted, measured = ([each for each in json.loads((self.folder / f"{name}.json").read_text())["traceEvents"] if each["ph"] == "X"]
                               for name in ("predicted", "measured"))
        for step in (0, 1):
            self.assertEqual(*(collections.Counter((each["pid"], each["name"], each["args"].get("bytes")) for each in events
                                                   if each["args"]["step"] == number)
                               for events, number in ((predicted, 0), (measured, step))))
        return [sorted((each for each in measured if each["pid"] == rank and each["cat"] in ("Forward", "Backward")),
                       key=lambda each: each["ts"]) for rank in (0, 1)]

    def arguments_of(self, framework, array="PLAN_ARGUMENTS"):
        """The arguments of an array that a shell reads in what is written for a framework."""
        script = self.converted(framework) / "arguments.sh"
        done = subprocess.run(["bash", "-c", f'. {shlex.quote(str(script))}; printf "%s\\n" "${{{array}[@]}}"'],
                              capture_output=True, text=True, check=True)
        return done.stdout.splitlines()
