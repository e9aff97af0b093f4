"""What the package's commands share. Importing it needs no torch, which takes seconds and may be missing."""

import argparse
import importlib
import sys
from typing import NoReturn


class Options(argparse.ArgumentParser):
    """Reports a wrong option in one line, with exit code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see python -m {self.prog} --help\n")


def positive(text: str, most: int = 10**9) -> int:
    """A whole number from 1 to `most`, of an option."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= most:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 to {most}")
    return value


def run_command(name: str, module: str, options: argparse.Namespace) -> int:
    """Imports a module of this package, and calls its `run(options)`.

    Returns the exit code: that of `run`, 2 for wrong input, 3 where this interpreter lacks a module that the package needs.
    """
    try:
        work = importlib.import_module(f"isobar_torch.{module}")
        from isobar_torch.document import InputError
    except ModuleNotFoundError as fault:
        if fault.name is None or fault.name.split(".")[0] == "isobar_torch":
            raise
        print(f"{name}: {sys.executable} has no module {fault.name}; install it, or choose an interpreter that has it",
              file=sys.stderr)
        return 3
    try:
        return work.run(options)
    except InputError as fault:
        print(f"{name}: {fault}", file=sys.stderr)
        return 2
