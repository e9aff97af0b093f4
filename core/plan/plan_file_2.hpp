#pragma once

#include "core/plan/plan.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace isobar {

class FaultList;
class MappingReader;

/// Reads "context" of isobar-plan/2: how replicas divide sequences. One part is the same as none.
ContextParallelism read_context_2(MappingReader& plan, FaultList& faults);

/// Reads "experts" of isobar-plan/2: how replicas divide experts, likewise.
ExpertParallelism read_experts_2(MappingReader& plan, FaultList& faults);

/// What the replicas of a plan divide among them.
struct DividedByReplicas {
  ContextParallelism context;
  ExpertParallelism experts;
};

/// Reads "stages" of isobar-plan/2. One with several shards, or whose replicas divide sequences or experts, becomes a
/// stage for each of its layers. `microbatches` is that of the plan, if it could be read.
std::vector<Stage> read_stages_2(MappingReader& plan, std::optional<std::uint64_t> microbatches,
                                 const DividedByReplicas& divided, FaultList& faults);

/// Reads "schedule" of isobar-plan/2. Orders are read only for a plan whose stages and micro-batches are sound, since
/// they name these; a plan without stages needs none.
ScheduleChoice read_schedule_2(MappingReader& reader, const Plan& plan, FaultList& faults);

/// Reads "sync", which a plan with several replicas of a stage may have, and refuses keys of isobar-plan/2 that this
/// version does not run.
Sync read_sync_2(MappingReader& plan, const std::vector<Stage>& stages, FaultList& faults);

/// Reads "transfers", which a plan whose devices divide no operators may have.
TransferRules read_transfers_2(MappingReader& plan, const std::vector<Stage>& stages, FaultList& faults);

}  // namespace isobar
