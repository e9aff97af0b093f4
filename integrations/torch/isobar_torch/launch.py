"""Ranks: what is checked before they meet, how they meet, and how they end."""

import argparse
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable

import torch
import torch.distributed as dist

from isobar_torch import huggingface, models, timeline, training
from isobar_torch.document import InputError, fnv1a, read_json, read_text, write_atomically
from isobar_torch.pipeline import check_order, plain_order, torch_schedule
from isobar_torch.plan import Plan, one_pipeline, order_by_isobar, read_plan
from isobar_torch.workload import Workload, read_workload

# How long ranks may take to end after one has failed, before they are killed.
GRACE_S = 10.0
# How long other ranks wait for rank 0 to report what all of them find.
FIRST_RANK_S = 3.0


def is_first() -> bool:
    """Whether this process is rank 0, or starts all ranks."""
    return os.environ.get("RANK", "0") == "0"


def await_first_rank() -> None:
    """Waits before a fault is reported that rank 0 probably finds too, since its launcher ends the others then.

    So one line appears, and on machines of other launchers one more.
    """
    if not is_first():
        time.sleep(FIRST_RANK_S)


def _order(options: argparse.Namespace, plan: Plan) -> str | None:
    if plan.has_blocking_transfers and (options.order is not None or torch_schedule(plan) is None):
        raise InputError(f"{plan.file}: transfers.blocking: torch waits for transfers under 1f1b without numbers, with a stage on each "
                         "device and a micro-batch for each stage or more, and without --order; plan without it")
    if options.order is not None:
        text, place = read_text(options.order), options.order
    elif torch_schedule(plan) is not None:
        return None
    elif (order := plain_order(plan)) is not None:
        return order
    else:
        place = f"{options.isobar} schedule show --csv"
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, os.path.basename(plan.file))
            write_atomically(path, json.dumps(one_pipeline(plan)))
            text = order_by_isobar(options.isobar, path)
    check_order(text, place, plan)
    return text


def _check_halves(plan: Plan, order: str | None) -> None:
    """Refuses what torch does wrongly, or not at all, where a backward pass is in halves.

    Blocks that FSDP reshards after their forward pass get no gradients then, and torch reports nothing
    (findings/torch_zero_bubble_loses_fsdp_gradients.sh). Checkpointed layers compute again once, for the first half.
    """
    if plan.schedule.name != "zero-bubble-v" and (order is None or not any(kind in order for kind in "IW")):
        return
    for key, has in (("recompute", plan.recompute), ("sync.sharded", plan.sharded == "parameters")):
        if has:
            raise InputError(f"{plan.file}: {key}: with backward passes in halves; plan without it, or with gpipe, 1f1b or "
                             "interleaved")


def prepare(options: argparse.Namespace) -> tuple[training.Run, object]:
    """Reads and checks all files. Returns the run, and transformers' configuration with --model.

    Raises InputError for what is wrong or not executed.
    """
    for option, path in (("--log-file", options.log_file), ("--trace", options.trace)):
        if path is not None and not os.access(os.path.dirname(path) or ".", os.W_OK):
            raise InputError(f"{option} {path}: its folder is not there or cannot be written; choose another")
    plan = read_plan(options.plan)
    own = options.model is None
    workload = read_workload(options.workload, plan.settings, plan.micro_batch, own)
    if plan.workload_hash not in (None, workload.hash):
        raise InputError(f"{plan.file}: inputs.workload.hash: {plan.workload_hash}; {workload.file} has {workload.hash}; pass "
                         "the workload that the plan was made for")
    layers = len(workload.names())
    if plan.stages[-1].last_layer != layers - 1:
        raise InputError(f"{plan.file}: stages: layers 0 to {plan.stages[-1].last_layer}; {workload.file} has {layers}")
    config = None if own else huggingface.check_model(options.model, workload)
    order = _order(options, plan) if is_first() else None
    _check_halves(plan, order)
    return training.Run(plan, workload, options.steps, options.seed, order), config


def layers_of(workload: Workload, config: object, seed: int, device: torch.device) -> training.MakeLayers:
    """What makes the layers of a stage: ours, or transformers'."""
    if config is None:
        return lambda numbers: models.own_layers(workload, numbers, seed)
    return lambda numbers: huggingface.transformers_layers(config, workload, numbers, seed, device)


def _predicted_s(plan: Plan) -> float | None:
    content = read_json(plan.file).value
    found = (content.get("stamp") or content.get("predicted") or {}).get("step_time_s")
    return float(found) if isinstance(found, int | float) else None


def _meet(options: argparse.Namespace, run: training.Run) -> tuple[dist.Store, int, str | None]:
    """Agrees with the other ranks on devices. Returns the store, this rank's number in the plan, and the order of work."""
    devices = run.plan.devices
    store, rank, ranks = next(dist.rendezvous("env://"))
    if ranks != len(devices):
        raise InputError(f"{ranks} ranks; {run.plan.file} has {len(devices)} devices ({', '.join(devices)}), a rank each")
    facts = {"plan": fnv1a(read_text(options.plan).encode()), "workload": run.workload.hash, "torch": torch.__version__,
             "steps": options.steps, "seed": options.seed, "traced": options.trace is not None,
             "profiled": options.kineto is not None, "model": options.model and fnv1a(read_text(options.model).encode())}
    store.set(f"facts/{rank}", json.dumps([options.plan_device, facts]))
    if rank == 0:
        store.set("order", json.dumps(run.order))
    named: dict[str, int] = {}
    first: dict[str, object] = {}
    for other in range(ranks):
        name, there = json.loads(store.get(f"facts/{other}"))
        first = first or there
        for what in there:
            if there[what] != first[what]:
                raise InputError(f"rank {other} has {what} {there[what]}, and rank 0 {first[what]}; give all ranks the same")
        if name is None:
            continue
        if name not in devices:
            raise InputError(f"--plan-device {name} of rank {other}: {run.plan.file} has {', '.join(devices)}")
        if name in named:
            raise InputError(f"--plan-device {name}: of ranks {named[name]} and {other}; give each its own")
        named[name] = other
    free = iter(device for device in devices if device not in named)
    of_rank = {other: device for device, other in named.items()}
    mapping = [of_rank[other] if other in of_rank else next(free) for other in range(ranks)]
    return store, devices.index(mapping[rank]), json.loads(store.get("order"))


def _profiler(uses_gpu: bool) -> torch.profiler.profile:
    """torch's profiler of all steps but the first, in which torch sets up what it needs."""
    actions, activities = torch.profiler.ProfilerAction, torch.profiler.ProfilerActivity
    return torch.profiler.profile(activities=[activities.CPU, *([activities.CUDA] if uses_gpu else [])], profile_memory=True,
                                  schedule=lambda step: actions.RECORD if step > 0 else actions.WARMUP, acc_events=True)


def run_rank(options: argparse.Namespace, run: training.Run, config: object) -> None:
    """Trains as one of the ranks that a launcher started."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    uses_gpu = (options.device or ("cuda" if torch.cuda.is_available() else "cpu")) == "cuda"
    device = torch.device("cuda", local) if uses_gpu else torch.device("cpu")
    if uses_gpu:
        if local >= torch.cuda.device_count():
            raise RuntimeError(f"{torch.cuda.device_count()} GPUs; rank {local} of this machine has none, use --device cpu")
        torch.cuda.set_device(device)
    elif "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    store, rank, order = _meet(options, run)
    run = training.Run(run.plan, run.workload, run.steps, run.seed, order)
    dist.init_process_group("cpu:gloo,cuda:nccl" if uses_gpu else "gloo", store=dist.PrefixStore("plan", store), rank=rank,
                            world_size=len(run.plan.devices), device_id=device if uses_gpu else None)
    trainer = training.Trainer(run, rank, device, layers_of(run.workload, config, run.seed, device),
                               options.trace is not None)
    offset_s = timeline.clock_offset_s(rank, len(run.plan.devices)) if trainer.recorder else 0.0
    dist.barrier()
    with contextlib.ExitStack() as stack:
        writes = options.log_file is not None and trainer.has_last and trainer.replica == 0
        log = stack.enter_context(open(options.log_file, "w", encoding="utf-8")) if writes else None
        profiler = stack.enter_context(_profiler(uses_gpu)) if options.kineto is not None else None
        training.train(trainer, log, _predicted_s(run.plan), profiler)
    if profiler is not None:
        os.makedirs(options.kineto, exist_ok=True)
        profiler.export_chrome_trace(os.path.join(options.kineto, f"rank-{rank}.json.gz"))
    if trainer.recorder is not None:
        events: list[list[timeline.Event]] = [[] for _ in run.plan.devices]
        dist.gather_object(trainer.recorder.finish(offset_s), events if rank == 0 else None)
        if rank == 0:
            write_atomically(options.trace, timeline.trace_text(run.plan, events))
    dist.barrier()
    dist.destroy_process_group()


def _ended(options: argparse.Namespace, run: training.Run, config: object, report: Callable[[str], None]) -> int:
    """Runs a rank to its end. Returns its exit code; reports a fault in one line."""
    place = f"rank {os.environ['RANK']}"
    try:
        run_rank(options, run, config)
        return 0
    except InputError as fault:
        await_first_rank()
        report(str(fault))
        return 2
    except (RuntimeError, OSError) as fault:
        while isinstance(fault.__cause__, RuntimeError):
            fault = fault.__cause__
        text = str(fault).strip().splitlines()
        report(f"{place}: {text[0] if text else type(fault).__name__}")
        return 3
    except Exception:  # a bug of ours or of a model
        report(f"{place}: {traceback.format_exc()}")
        return 1


def _end_process(code: int) -> None:
    """Ends at once: threads of a backend may wait for ranks that are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def spawn(options: argparse.Namespace, run: training.Run, config: object) -> int:
    """Starts all ranks on this machine as children and waits for them. One line says which one failed first."""
    devices = run.plan.devices
    ports = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(len(devices))}
    sys.stdout.flush()
    sys.stderr.flush()
    ranks: dict[int, int] = {}
    reader, writer = os.pipe()
    handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    for rank in range(len(devices)):
        child = os.fork()
        if child == 0:
            os.close(reader)
            _end_with_parent()
            os.environ.update(ports, RANK=str(rank), LOCAL_RANK=str(rank))
            def report(text: str) -> None:
                os.write(writer, (text + "\0").encode()[:4096])
            _end_process(_ended(options, run, config, report))
        ranks[child] = rank
    os.close(writer)
    try:
        failed = _wait_for_all(ranks)
    except KeyboardInterrupt:
        for each in ranks:
            os.kill(each, signal.SIGKILL)
            os.waitpid(each, 0)
        print("isobar_torch: interrupted; all ranks ended", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, handler)
    with os.fdopen(reader, "rb") as pipe:
        texts = pipe.read().decode(errors="replace").split("\0")
    if not failed:
        return 0
    # A rank that a signal ended comes first: the others fail because they have lost it.
    rank = min(failed, key=lambda each: (failed[each] > 0, list(failed).index(each)))
    code = failed[rank]
    if code < 0:
        print(f"isobar_torch: rank {rank} ({devices[rank]}): ended by {signal.Signals(-code).name}; so the others ended",
              file=sys.stderr)
        return 3
    print(f"isobar_torch: {texts[0] or f'rank {rank}: ended with {code}'}", file=sys.stderr)
    return code


def _end_with_parent() -> None:
    """A rank gets no interrupt of its own, and is killed when the process that spawned it is gone (Linux)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def _wait_for_all(ranks: dict[int, int]) -> dict[int, int]:
    """Waits for the processes, rank by process, and empties `ranks`. Returns the exit codes of those that failed.

    Those that have not ended GRACE_S after the first failure are killed.
    """
    failed: dict[int, int] = {}
    killed: set[int] = set()
    deadline = float("inf")
    while ranks:
        child, status = os.waitpid(-1, os.WNOHANG if failed else 0)
        if child in ranks:
            rank, code = ranks.pop(child), os.waitstatus_to_exitcode(status)
            if code != 0 and child not in killed:
                failed[rank] = code
                deadline = min(deadline, time.monotonic() + GRACE_S)
        elif time.monotonic() > deadline:
            killed |= ranks.keys()
            for each in ranks:
                os.kill(each, signal.SIGKILL)
            deadline = float("inf")
        else:
            time.sleep(0.02)
    return failed


def _checked(options: argparse.Namespace) -> tuple[training.Run, object]:
    """As `prepare`. Also refuses options that exclude each other."""
    prepared, config = prepare(options)
    if options.trace is not None and prepared.plan.sharded != "none":
        raise InputError(f"--trace: {prepared.plan.file} divides {prepared.plan.sharded}, by other collectives than its program; "
                         "use torch.profiler, or a plan without sync.sharded")
    if options.kineto is not None and options.trace is not None:
        raise InputError("--kineto with --trace: its threads would be in the profile; use one of them")
    if options.kineto is not None and options.steps < 2:
        raise InputError(f"--kineto with --steps {options.steps}: the first step is not profiled; use --steps 2 or more")
    if not options.spawn and "RANK" not in os.environ:
        ranks = len(prepared.plan.devices)
        raise InputError(f"no launcher; use torchrun --nproc-per-node {ranks} -m isobar_torch …, or --spawn")
    return prepared, config


def run(options: argparse.Namespace) -> int:
    """Checks the input, then trains as a rank, or starts the ranks. Returns the exit code. Raises InputError."""
    try:
        prepared, config = _checked(options)
    except InputError:
        await_first_rank()
        raise
    if options.spawn:
        return spawn(options, prepared, config)

    def report(text: str) -> None:
        print(f"isobar_torch: {text}", file=sys.stderr, flush=True)

    _end_process(_ended(options, prepared, config, report))
    return 1  # not reached
