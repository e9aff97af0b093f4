#pragma once

#include "core/model/workload.hpp"
#include "exec/stage/exchanged_passes.hpp"
#include "exec/stage/stage_model.hpp"
#include "exec/stage/stage_parameters.hpp"
#include "exec/stage/stage_passes.hpp"
#include "exec/stage/stage_places.hpp"
#include "exec/stage/stage_update.hpp"

#include <memory>

/// What a StageModel consists of. Internal to exec/model.
namespace isobar::exec {

struct StageModel::State {
  State(const Workload& stage_workload, const StageOptions& stage_options);

  const Workload& workload;
  StageOptions options;
  State* matrix_owner;  // of StageOptions::has_matrix; null if there is none
  StageParameters parameters;
  StagePlaces places;
  StageUpdate update;
  StagePasses passes;
  std::unique_ptr<ExchangedPasses> exchanged_passes;  // null if devices exchange nothing for its layer
};

}  // namespace isobar::exec
