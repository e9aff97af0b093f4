#pragma once

#include "core/plan/plan.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace isobar {

class FaultList;
class MappingReader;

/// Reads "stages" of isobar-plan/2, of which this version runs one replica and one shard a stage. `microbatches` is
/// that of the plan, if it could be read.
std::vector<Stage> read_stages_2(MappingReader& plan, std::optional<std::uint64_t> microbatches, FaultList& faults);

/// Reads "schedule" of isobar-plan/2. Orders are read only for a plan whose stages and micro-batches are sound, since
/// they name these; a plan without stages needs none.
ScheduleChoice read_schedule_2(MappingReader& plan, const std::vector<Stage>& stages, std::uint64_t microbatches,
                               FaultList& faults);

/// Refuses keys of the plan that isobar-plan/2 has and this version does not run.
void refuse_future_keys_2(MappingReader& plan);

}  // namespace isobar
