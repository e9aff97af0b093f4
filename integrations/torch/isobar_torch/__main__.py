"""Trains by a plan of Isobar: torchrun --nproc-per-node N -m isobar_torch plan.json --workload WORKLOAD.yaml"""

import argparse
import sys
from collections.abc import Sequence

from isobar_torch.command import Options, positive, run_command


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = Options(prog="isobar_torch", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", help="plan file (JSON), as isobar plan -o writes it")
    parser.add_argument("--workload", required=True, help="workload file (YAML) that the plan was made for")
    parser.add_argument("--model", metavar="CONFIG", help="configuration (config.json) of a Llama, Qwen2, Qwen3 or GPT-2 of "
                        "transformers, which is trained in place of Isobar's layers (default: these)")
    parser.add_argument("--order", metavar="CSV", help="order of work of a pipeline, as isobar schedule show --csv prints "
                        "it (default: torch's class of the plan's schedule; without one, what isobar prints)")
    parser.add_argument("--isobar", default="isobar", help="the command isobar, which is asked for orders (default: isobar)")
    parser.add_argument("--steps", type=positive, default=10, help="steps to train (default: 10)")
    parser.add_argument("--seed", type=int, default=1, help="seed of parameters and data (default: 1)")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="where ranks compute (default: cuda if there is a GPU)")
    parser.add_argument("--plan-device", metavar="NAME", help="the plan's device that this rank is (default: rank i is the "
                        "plan's device i, in the order of their first stages; ranks without a name share the others)")
    parser.add_argument("--spawn", action="store_true", help="start all ranks on this machine, without torchrun")
    parser.add_argument("--log-file", metavar="FILE", help="file for a line of JSON for each step")
    parser.add_argument("--trace", metavar="FILE", help="file for the measured timeline, which isobar trace reads")
    parser.add_argument("--kineto", metavar="DIR", help="folder for a file of torch's profiler of each rank, of all steps but the "
                        "first; isobar_torch.kineto reads them")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Returns the exit code: 0 done, 1 a bug, 2 wrong input, 3 a rank or the machine failed, 130 interrupted."""
    return run_command("isobar_torch", "launch", options_of(sys.argv[1:] if arguments is None else arguments))


if __name__ == "__main__":
    sys.exit(main())
