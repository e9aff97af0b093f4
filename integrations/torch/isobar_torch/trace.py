"""Makes a workload of a torch module: python -m isobar_torch.trace mymodel:build --input '[4,128]:int64' -o workload.yaml

The module runs on the meta device, so it needs no memory. It is divided into layers wherever one tensor crosses. A layer has
the FLOPs of its matrix products and convolutions (torch.utils.flop_counter), the parameters that it uses, what it keeps for
its backward pass, and what it passes on.
"""

import argparse
import sys
from collections.abc import Sequence

from isobar_torch.command import Options, run_command


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = Options(prog="isobar_torch.trace", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="MODULE:FUNCTION", help="function without arguments that returns the module")
    parser.add_argument("--input", action="append", required=True, metavar="[SIZES]:DTYPE",
                        help="an argument of the module's forward; the first size is the micro-batch")
    parser.add_argument("--optimizer", choices=("sgd", "momentum", "adam", "adamw"), default="adamw",
                        help="of the workload (default: adamw)")
    parser.add_argument("-o", "--output", metavar="FILE", help="workload file to write (default: print it)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Returns the exit code: 0 done, 2 wrong input, 3 this interpreter lacks a module."""
    return run_command("isobar_torch.trace", "traced_module", options_of(sys.argv[1:] if arguments is None else arguments))


if __name__ == "__main__":
    sys.exit(main())
