"""Traces of torch's profiler of a plan's ranks as its measured timeline, and as times of layers:

python -m isobar_torch.kineto plan.json --workload WORKLOAD.yaml RANK0.json RANK1.json.gz -o measured.json
"""

import argparse
import sys
from collections.abc import Sequence

from isobar_torch.command import Options, positive, run_command


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = Options(prog="isobar_torch.kineto", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", help="plan file (JSON) of the run")
    parser.add_argument("traces", nargs="+", metavar="TRACE",
                        help="what torch.profiler wrote of each rank (JSON, or packed by gzip)")
    parser.add_argument("--workload", required=True, help="workload file (YAML) that the plan was made for")
    parser.add_argument("--from-step", type=int, default=0, metavar="N", help="first step N of ProfilerStep#N to read; in "
                        "its first one torch may run passes to learn shapes (default: 0)")
    parser.add_argument("--isobar", default="isobar", help="the command isobar, which is asked for orders (default: isobar)")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="file for the measured timeline")
    parser.add_argument("--profile", metavar="FILE",
                        help="file for the measured times of layers, which isobar plan --profile reads")
    parser.add_argument("--device", metavar="TYPE", help="type of the profile's device (default: the name of the GPU)")
    parser.add_argument("--memory", metavar="BYTES", type=lambda text: positive(text, 10**18),
                        help="memory of the profile's device (default: the GPU's)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Returns the exit code: 0 done, 2 wrong input, 3 this interpreter lacks a module."""
    return run_command("isobar_torch.kineto", "kineto_timeline", options_of(sys.argv[1:] if arguments is None else arguments))


if __name__ == "__main__":
    sys.exit(main())
