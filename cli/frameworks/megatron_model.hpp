#pragma once

#include "cli/frameworks/shell_text.hpp"
#include "core/model/workload.hpp"

#include <string>
#include <vector>

namespace isobar::cli {

/// The model of a workload as arguments of Megatron-Core 0.19: its sizes, dtype, dropout and sequences.
struct MegatronModel {
  std::vector<Argument> arguments;
  /// What the model has and no argument says, by keys of workload files, such as "norm_place: both".
  std::vector<std::string> unsaid;
  bool recomputes_attention =
      false;  ///< scores and what follows run again in the backward pass (attention: recomputed)
};

/// Requires a gpt, llama or decoder. O(blocks).
MegatronModel megatron_model(const Workload& workload);

}  // namespace isobar::cli
