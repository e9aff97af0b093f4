"""Files of torch's profiler (Kineto): Chrome trace JSON as an object or an array, also packed by gzip."""

import dataclasses
import gzip
import json
import math
import zlib
from typing import Any

from isobar_torch.document import InputError, shown

# The largest file, unpacked: traces of a few steps of large models have hundreds of megabytes.
MOST_BYTES = 2**32
# What two doubles differ by that count microseconds of months.
ROUNDING_US = 0.002
# Categories that are read: operators, annotations, launches, and what GPUs did.
CATEGORIES = frozenset(("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "kernel", "gpu_memcpy", "gpu_memset"))


@dataclasses.dataclass
class Span:
    """A complete event. `begin` and `end` are microseconds of the file's clock. `top` is the outermost operator that
    contains this operator on its thread, or itself."""

    name: str
    category: str
    begin: float
    end: float
    thread: str
    arguments: dict[str, Any]
    top: "Span | None" = None


@dataclasses.dataclass(frozen=True)
class RankFile:
    """What one rank's profiler wrote."""

    name: str
    rank: int | None  # of distributedInfo
    ranks: int | None
    base_ns: int | None  # Unix time of the clock's zero
    device: tuple[str, int] | None  # name and bytes of the GPU
    spans: tuple[Span, ...]  # by begin
    memory: tuple[tuple[float, int], ...]  # by moment: the bytes allocated from then on, of the GPU if there is one


def _content(name: str) -> bytes:
    try:
        with open(name, "rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if not packed:
                content = file.read(MOST_BYTES + 1)
            else:
                with gzip.open(file) as unpacked:
                    content = unpacked.read(MOST_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as fault:
        raise InputError(f"{name}: {fault}; it is not a whole gzip file") from None
    except OSError as fault:
        raise InputError(f"{name}: {fault.strerror}") from None
    if len(content) > MOST_BYTES:
        raise InputError(f"{name}: larger than {MOST_BYTES} bytes; profile fewer steps")
    return content


def _json(name: str) -> Any:
    content = _content(name)
    try:
        return json.loads(content)
    except json.JSONDecodeError as fault:
        raise InputError(f"{name}:{fault.lineno}: {fault.msg}; it is not JSON") from None
    except (UnicodeDecodeError, RecursionError) as fault:
        raise InputError(f"{name}: {shown(str(fault))}; it is not JSON") from None


def _number(name: str, index: int, event: dict[str, Any], key: str, lowest: float) -> float:
    value = event.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < lowest:
        raise InputError(f"{name}: traceEvents[{index}].{key}: {shown(value)} is not a number of microseconds")
    return value


def _integer(name: str, content: dict[str, Any], key: str) -> int | None:
    value = content.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise InputError(f"{name}: {key}: {shown(value)} is not a whole number of 0 or more")
    return value


def _gpu(name: str, head: dict[str, Any]) -> tuple[str, int] | None:
    """The type of the machine's GPUs; None without one, or with several types."""
    found = head.get("deviceProperties") or []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise InputError(f"{name}: deviceProperties: {shown(found)} is not a list of mappings")
    types = {(str(each.get("name")), each["totalGlobalMem"]) for each in found if isinstance(each.get("totalGlobalMem"), int)}
    return types.pop() if len(types) == 1 else None


def _set_tops(spans: list[Span]) -> None:
    open_tops: dict[str, Span] = {}
    for span in spans:
        if span.category != "cpu_op":
            continue
        top = open_tops.get(span.thread)
        if top is None or top.end <= span.begin + ROUNDING_US:
            top = open_tops[span.thread] = span
        span.top = top


def read_kineto(name: str) -> RankFile:
    """Reads a file of torch.profiler's export_chrome_trace. Raises InputError for what is none."""
    content = _json(name)
    events = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(events, list):
        raise InputError(f"{name}: neither a list of events nor an object with traceEvents; give what export_chrome_trace of "
                         "torch.profiler wrote")
    head = content if isinstance(content, dict) else {}
    info = head.get("distributedInfo") or {}
    if not isinstance(info, dict):
        raise InputError(f"{name}: distributedInfo: {shown(info)} is not a mapping")
    spans: list[Span] = []
    memory: dict[int, list[tuple[float, int]]] = {}  # by type of device: 0 is the CPU
    for index, event in enumerate(events):
        if not isinstance(event, dict):
            raise InputError(f"{name}: traceEvents[{index}]: {shown(event)} is not a mapping")
        arguments = event.get("args") or {}
        if event.get("name") == "[memory]" and event.get("ph") == "i" and isinstance(arguments, dict):
            allocated, device = arguments.get("Total Allocated"), arguments.get("Device Type")
            if isinstance(allocated, int) and isinstance(device, int):
                memory.setdefault(device, []).append((_number(name, index, event, "ts", -1e18), allocated))
        if event.get("ph") != "X" or str(event.get("cat")) not in CATEGORIES:
            continue
        if not isinstance(event.get("name"), str) or not isinstance(arguments, dict):
            raise InputError(f"{name}: traceEvents[{index}]: {shown(event)} has no name, or args that are no mapping")
        begin = _number(name, index, event, "ts", -1e18)
        duration = _number(name, index, event, "dur", 0)
        for key in ("Sequence number", "correlation"):
            if not isinstance(arguments.get(key, 0), int):
                raise InputError(f"{name}: traceEvents[{index}].args.{key}: {shown(arguments[key])} is not a whole number")
        spans.append(Span(event["name"], event["cat"], begin, begin + duration, str(event.get("tid")), arguments))
    spans.sort(key=lambda span: (span.begin, -span.end))
    if not spans:
        raise InputError(f"{name}: no operators; give what export_chrome_trace of torch.profiler wrote")
    _set_tops(spans)
    return RankFile(name, _integer(name, info, "rank"), _integer(name, info, "world_size"),
                    _integer(name, head, "baseTimeNanoseconds"), _gpu(name, head), tuple(spans),
                    tuple(sorted(memory[max(memory)])) if memory else ())


def by_rank(files: list[RankFile], ranks: int) -> list[RankFile]:
    """The files in the order of their ranks: those of distributedInfo, or the order given where no file has it."""
    if len(files) != ranks:
        raise InputError(f"{len(files)} traces; the plan has {ranks} devices, a rank each")
    without = [file.name for file in files if file.rank is None]
    if len(without) == ranks:
        return files
    if without:
        raise InputError(f"{without[0]}: no distributedInfo.rank, which {next(f.name for f in files if f.rank is not None)} "
                         "has; give files of one kind")
    found: dict[int, RankFile] = {}
    for file in files:
        assert file.rank is not None
        if file.ranks not in (None, ranks):
            raise InputError(f"{file.name}: distributedInfo.world_size: {file.ranks}; the plan has {ranks} devices, a rank each")
        if file.rank >= ranks:
            raise InputError(f"{file.name}: distributedInfo.rank: {file.rank}; the plan has ranks 0 to {ranks - 1}")
        if file.rank in found:
            raise InputError(f"{file.name}: of rank {file.rank}, as {found[file.rank].name}; give a trace of each rank")
        found[file.rank] = file
    return [found[rank] for rank in range(ranks)]
