#pragma once

#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace isobar::cli {

/// What training software places as a whole.
struct ModelItem {
  char letter = 't';      ///< of layout_letters
  std::size_t first = 0;  ///< of the workload's layers
  std::size_t last = 0;   ///< inclusive
};

/// The embedding, blocks, blocks of multi-token prediction and head of a gpt, llama or decoder, in order. Empty for
/// other workloads.
std::vector<ModelItem> items_of(const Workload& workload);

/// Whether a plan recomputes all blocks of its workload, as --recompute all or inner asks for.
bool recomputes_all_blocks(const Plan& plan, const Workload& workload);

/// The letters of the items of each stage, which has the layers first..last. Adds a line to `faults` for a workload
/// without items, and for each stage that begins within one; the result is then empty.
std::vector<std::string> letters_of_stages(const Workload& workload,
                                           const std::vector<std::pair<std::size_t, std::size_t>>& stages,
                                           const std::string& software, std::vector<std::string>& faults);

}  // namespace isobar::cli
