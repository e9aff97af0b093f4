"""Collectives of parameters in the profile of a rank: those of FSDP2 (fully_shard) and of ZeroRedundancyOptimizer.

Both have several where a plan's program has one for each part, so these are merged: from the first begin to the last end.
"""

import dataclasses
import re
from collections.abc import Sequence

GATHERS = ("c10d::_allgather_base_", "c10d::allgather_", "c10d::allgather_into_tensor_coalesced_")
SCATTERS = ("c10d::_reduce_scatter_base_", "c10d::reduce_scatter_", "c10d::reduce_scatter_tensor_coalesced_")
BROADCASTS = ("c10d::broadcast_",)
# Labels of fully_shard (torch 2.11 to 2.15).
FSDP_GATHER, FSDP_SCATTER = "FSDP::all_gather (", "FSDP::post_backward_reduce"
# Labels of torch's runtime that say which stage gathers or scatters.
STAGE = re.compile(r"PP:(\d{1,6})(?:UNSHARD|REDUCE_GRAD|[FBIW]\d{1,9})")


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective of parameters. Times are microseconds of the file's clock.

    `use`: what it gathers for, "forwards", "backwards" or "update"; None of a reduce-scatter. `local`: the micro-batch.
    """

    use: str | None
    stage: int
    local: int
    begin: float
    end: float


def merged(found: Sequence[Collective]) -> list[Collective]:
    """One collective in place of those of one use, stage and micro-batch."""
    whole: dict[tuple[str | None, int, int], Collective] = {}
    for each in found:
        key = each.use, each.stage, each.local
        other = whole.get(key, each)
        whole[key] = dataclasses.replace(each, begin=min(each.begin, other.begin), end=max(each.end, other.end))
    return sorted(whole.values(), key=lambda each: each.begin)
