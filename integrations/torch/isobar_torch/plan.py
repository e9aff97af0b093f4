"""Plans as torch runs them: equal pipelines of whole stages, and an order of work."""

import dataclasses
import subprocess
from collections.abc import Mapping

from isobar_torch.document import InputError, Reader, read_json, shown

# What a plan claims, and where it comes from.
CLAIMS = ("allocator", "objective", "communication", "predicted", "objective_s", "objective_bound_s", "gap_fraction",
          "step_bound_s", "schedule_bound_s", "certificate", "wall", "simulated", "stamp", "system", "without")
DEVICE_KEYS = ("slowdown", "memory_bytes", "type", "site", "share")
MOST_MICROBATCHES = 10**6


@dataclasses.dataclass(frozen=True)
class Stage:
    """Layers first_layer to last_layer, inclusive, on one device of each pipeline."""

    first_layer: int
    last_layer: int
    devices: tuple[str, ...]  # by pipeline


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The plan's order of work: the name and numbers of the plan file; `numbers` also has its orders."""

    name: str
    numbers: Mapping[str, object]


@dataclasses.dataclass(frozen=True)
class Plan:
    """A plan of equal pipelines. Of `microbatches` of a step, pipeline k of R takes k, k + R, k + 2R, …"""

    file: str
    stages: tuple[Stage, ...]
    microbatches: int
    schedule: Schedule
    sharded: str  # what the replicas divide: "none", "optimizer" (its state), or "parameters" (all)
    has_blocking_transfers: bool  # a device computes nothing while it sends
    recompute: frozenset[int]  # layers that compute their activations again in the backward pass
    micro_batch: int | None  # samples of a micro-batch, where not those of the workload's file
    workload_hash: str | None
    settings: Mapping[str, str]  # of --set

    @property
    def replicas(self) -> int:
        """The number of pipelines."""
        return len(self.stages[0].devices)

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices by rank: in the order in which the stages name them first."""
        return tuple(dict.fromkeys(device for stage in self.stages for device in stage.devices))

    def pipeline(self, replica: int) -> tuple[str, ...]:
        """The devices of a pipeline in the order of their first stages."""
        return tuple(dict.fromkeys(stage.devices[replica] for stage in self.stages))

    def stages_of(self, device: str) -> list[int]:
        """The stages on a device, ascending."""
        return [i for i, stage in enumerate(self.stages) if device in stage.devices]


def _shard_name(replica: Reader) -> str:
    shards = list(replica.mappings("shards"))
    if len(shards) != 1:
        replica.fail(f"{len(shards)} devices that divide layers; torch runs whole layers here, one device a replica",
                     "shards")
    name = shards[0].text("device")
    shards[0].skip(*DEVICE_KEYS)
    shards[0].finish()
    return name


def _replicas(stage: Reader, schema: str, microbatches: int) -> tuple[str, ...]:
    if schema == "isobar-plan/1":
        devices = list(stage.mappings("devices"))
        if len(devices) != 1:
            stage.fail(f"{len(devices)} devices; isobar-plan/1 has one", "devices")
        name = devices[0].text("name")
        devices[0].skip(*DEVICE_KEYS)
        devices[0].finish()
        return (name,)
    names, taken = [], []
    for replica in stage.mappings("replicas"):
        taken.append(replica.count("microbatches", 1, MOST_MICROBATCHES))
        names.append(_shard_name(replica))
        replica.finish()
    if not names:
        stage.fail("no replicas", "replicas")
    if sum(taken) != microbatches:
        stage.fail(f"{sum(taken)} micro-batches in all; the plan has {microbatches}", "replicas")
    if len(set(taken)) > 1:
        stage.fail(f"take {', '.join(map(str, taken))} micro-batches; torch runs replicas that take equally many",
                   "replicas")
    return tuple(names)


def _stages(reader: Reader, schema: str, microbatches: int) -> tuple[Stage, ...]:
    stages: list[Stage] = []
    for each in reader.mappings("stages"):
        first = each.count("first_layer", 0, 10**6)
        last = each.count("last_layer", first, 10**6)
        devices = _replicas(each, schema, microbatches)
        each.finish(lambda key: f"torch runs no stages with {key} here; plan without it")
        expected = stages[-1].last_layer + 1 if stages else 0
        if first != expected:
            each.fail(f"{first}; the layers before end with {expected - 1}", "first_layer")
        if stages and len(devices) != len(stages[0].devices):
            each.fail(f"{len(devices)} replicas, and {len(stages[0].devices)} of the first stage; torch runs equal "
                      "pipelines", "replicas" if schema != "isobar-plan/1" else None)
        if len(set(devices)) < len(devices):
            each.fail("a device is there twice", "replicas")
        stages.append(Stage(first, last, devices))
    if not stages:
        reader.fail(reader.text("reason", "no stages; make a plan that has some"), "stages")
    pipeline_of: dict[str, int] = {}
    for index, stage in enumerate(stages):
        for replica, device in enumerate(stage.devices):
            if pipeline_of.setdefault(device, replica) != replica:
                reader.fail(f"{device} is in two pipelines, as replica {pipeline_of[device]} and, of stage {index}, "
                            f"{replica}; torch runs a device in one", "stages")
    return tuple(stages)


def _schedule(reader: Reader, schema: str) -> Schedule:
    if schema == "isobar-plan/1":
        return Schedule(reader.choice("schedule", ("sequential", "gpipe", "1f1b")), {})
    schedule = reader.mapping("schedule")
    return Schedule(schedule.text("name"), {key: value for key, value in schedule.value.items() if key != "name"})


def _sharded(reader: Reader) -> str:
    if not reader.has("sync"):
        return "none"
    sync = reader.mapping("sync")
    sync.choice("algorithm", ("ring", "hierarchical", "tree", "direct", "server"), "ring")
    sharded = sync.choice("sharded", ("none", "optimizer", "parameters"), "none")
    for key in ("gradient_dtype", "gather_dtype"):
        sync.choice(key, ("float32",), "float32")
    sync.finish(lambda key: f"torch runs no plans with {key} here; plan without it")
    return sharded


def _require_degree_one(reader: Reader, key: str) -> None:
    if not reader.has(key):
        return
    degree = reader.mapping(key).count("degree", 1, 2**20)
    if degree > 1:
        reader.mapping(key).fail(f"{degree}; torch runs whole sequences and experts here, degree 1", "degree")


def read_plan(file: str) -> Plan:
    """Reads a plan file. Raises InputError for what is wrong, and for what torch does not run here."""
    reader = read_json(file)
    schema = reader.choice("schema", ("isobar-plan/1", "isobar-plan/2"))
    microbatches = reader.count("microbatches", 1, MOST_MICROBATCHES)
    reader.choice("outcome", ("optimal", "feasible", "infeasible", "timed_out"))
    # First, since other keys follow from them.
    _require_degree_one(reader, "context")
    _require_degree_one(reader, "experts")
    stages = _stages(reader, schema, microbatches)
    schedule = _schedule(reader, schema)
    sharded = _sharded(reader)
    is_blocking = False
    if reader.has("transfers"):
        transfers = reader.mapping("transfers")
        is_blocking = transfers.flag("blocking", False)
        transfers.finish(lambda key: f"torch sends whole tensors; plan without {key}")
    recompute = frozenset(reader.list("recompute")) if reader.has("recompute") else frozenset()
    if any(not isinstance(layer, int) or not 0 <= layer <= stages[-1].last_layer for layer in recompute):
        reader.fail(f"{shown(sorted(map(str, recompute)))}; layers from 0 to {stages[-1].last_layer}", "recompute")
    micro_batch = reader.count("micro_batch", 1, 2**20) if reader.has("micro_batch") else None
    workload_hash, settings = None, {}
    if reader.has("inputs") and reader.mapping("inputs").has("workload"):
        workload = reader.mapping("inputs").mapping("workload")
        workload_hash = workload.text("hash")
        if workload.has("set"):
            settings = {key: str(value) for key, value in workload.mapping("set").value.items()}
    reader.skip("inputs", *CLAIMS)
    reader.finish(lambda key: f"torch runs no plans with {key} here; plan without it")
    return Plan(file, stages, microbatches, schedule, sharded, is_blocking, recompute, micro_batch, workload_hash, settings)


def one_pipeline(plan: Plan) -> dict[str, object]:
    """The plan's first pipeline alone as the content of a plan file, of which `isobar schedule show` prints the order.

    Orders of a plan name the devices of its first pipeline. Raises InputError for pipelines with other warm-ups.
    """
    numbers = dict(plan.schedule.numbers)
    if plan.replicas > 1 and isinstance(numbers.get("warm_up"), list):
        by_rank = dict(zip(plan.devices, numbers["warm_up"], strict=False))  # type: ignore[call-overload]
        of_pipelines = [[by_rank.get(device) for device in plan.pipeline(k)] for k in range(plan.replicas)]
        if any(each != of_pipelines[0] for each in of_pipelines):
            raise InputError(f"{plan.file}: schedule.warm_up: the pipelines have other numbers than the first; use equal "
                             "ones")
        numbers["warm_up"] = of_pipelines[0]
    microbatches = plan.microbatches // plan.replicas
    content = read_json(plan.file).value
    for key in ("sync", "transfers", "system", "simulated", "stamp"):
        content.pop(key, None)
    content |= {
        "schema": "isobar-plan/2", "microbatches": microbatches, "schedule": {"name": plan.schedule.name, **numbers},
        "stages": [{"first_layer": stage.first_layer, "last_layer": stage.last_layer,
                    "replicas": [{"microbatches": microbatches, "shards": [{"device": stage.devices[0]}]}]}
                   for stage in plan.stages]}
    return content


def order_by_isobar(isobar: str, plan_file: str) -> str:
    """The order of work of a plan of one pipeline, as CSV: a row for each device (`isobar schedule show --csv`)."""
    try:
        done = subprocess.run([isobar, "schedule", "show", plan_file, "--csv"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise InputError(f"--isobar {isobar}: {error.strerror}; give its path, or the order as a file by --order") from None
    if done.returncode != 0:
        raise InputError((done.stderr.strip().splitlines() or [f"isobar ended with {done.returncode}"])[0])
    return done.stdout
