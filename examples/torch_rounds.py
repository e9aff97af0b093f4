"""Trains a small model by a plan of rounds with plain torch, a process for each worker (docs/rounds.md).

torchrun --nproc-per-node WORKERS examples/torch_rounds.py rounds.json --workload WORKLOAD.yaml

Each process has the whole model and trains a micro-batch a step, whatever the worker's own plan says. Prints for each round
the workers' mean training loss, and the loss of the outer parameters for samples that no worker trains on.
"""

import argparse
import sys

import torch
import torch.distributed as dist
from isobar_torch.document import InputError
from isobar_torch.launch import await_first_rank, is_first
from isobar_torch.models import loss_of, own_layers
from isobar_torch.rounds import Rounds, RoundsPlan, read_rounds
from isobar_torch.training import make_optimizer, set_rate
from isobar_torch.workload import Workload, read_workload

HELD_OUT = 2**40  # a step whose samples are not trained on


def samples(workload: Workload, worker: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels of a micro-batch: each token is the one before plus one. Every worker has its own samples."""
    generator = torch.Generator().manual_seed(step * 1_000 + worker)
    first = torch.randint(workload.vocabulary, (workload.micro_batch, 1), generator=generator)
    tokens = (first + torch.arange(workload.sequence + 1)) % workload.vocabulary
    return tokens[:, :-1], tokens[:, 1:]


def train(plan: RoundsPlan, workload: Workload, count: int) -> None:
    """Trains `count` rounds as one of the workers."""
    if workload.dtype != "float32":
        raise InputError(f"{workload.file}: dtype: {workload.dtype}; this example trains float32")
    if dist.get_world_size() != len(plan.workers):
        raise InputError(f"{plan.file}: workers: {len(plan.workers)}, and {dist.get_world_size()} processes; start one for each")
    worker = dist.get_rank()
    model = torch.nn.Sequential(*own_layers(workload, range(len(workload.names())), seed=1).values())
    optimizer = make_optimizer(workload.optimizer, list(model.parameters()))
    rounds = Rounds(plan, dict(enumerate(model)), worker)
    held_out, labels = samples(workload, 0, HELD_OUT)
    if worker == 0:
        print(f"{'round':>5}  {'loss of workers':>15}  {'of outer parameters':>19}")
    for number in range(count):
        losses = []
        for _ in range(plan.workers[worker].steps):
            inputs, targets = samples(workload, worker, rounds.steps_done)
            set_rate(optimizer, workload.optimizer.rate(rounds.steps_done))
            optimizer.zero_grad()
            loss = loss_of(model(inputs), targets)
            loss.backward()
            if workload.optimizer.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), workload.optimizer.clip_norm)
            optimizer.step()
            rounds.step()
            losses.append(loss.detach())
        if number == count - 1:
            rounds.finish()
        mean = torch.stack(losses).mean()
        dist.all_reduce(mean)
        if worker == 0:
            with torch.no_grad():
                outer = loss_of(torch.func.functional_call(model, rounds.outer_parameters(), (held_out,)), labels)
            print(f"{number:>5}  {mean / len(plan.workers):>15.6f}  {outer:>19.6f}", flush=True)
    if worker == 0:
        print("same samples, not the same loss: it depends on the steps of a round and the number of workers")


def main() -> int:
    """Runs a worker. Returns the exit code: 0 done, 2 wrong input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", help="plan of rounds (JSON), as isobar plan --outer writes it")
    parser.add_argument("--workload", required=True, help="workload file (YAML)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds to train (default: 5)")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    try:
        train(read_rounds(options.plan), read_workload(options.workload, {}, None, True), options.rounds)
    except InputError as fault:
        await_first_rank()
        if is_first():
            print(f"torch_rounds: {fault}", file=sys.stderr, flush=True)
        return 2
    finally:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
