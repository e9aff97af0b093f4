#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/units.hpp"
#include "results/fidelity/measured_row.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace isobar::cli {

/// What a row may leave open.
struct RowChoice {
  std::uint64_t micro_batch = 1;
  std::size_t virtual_stages = 1;
  results::Recomputation recompute = results::Recomputation::None;
  ContextExchange exchange = ContextExchange::Ring;  ///< if the row divides sequences
};

/// The choices for a row: one, unless it does not say all of them.
std::vector<RowChoice> choices_of(const results::MeasuredRow& row);

/// A row as what all other commands take.
struct RowPlan {
  std::string workload_text;
  WorkloadSettings settings;  ///< of the workload
  Workload workload;          ///< with the times of its software, and with recomputation as the plan says
  Plan plan;                  ///< without claims
};
/// @throws Unsupported, and InputError for a workload or profile that is wrong.
RowPlan plan_of(const results::MeasuredRow& row, const RowChoice& choice, const Cluster& cluster);

}  // namespace isobar::cli
