#pragma once

#include "cli/global_batch.hpp"
#include "core/plan/plan.hpp"
#include "results/comparison.hpp"

#include <functional>
#include <string>
#include <vector>

namespace isobar::cli {

/// What --row-time-limit says. @throws InputError when that is no time, or none at all.
Seconds row_time_limit_from(const std::string& text);

/// A row of a table before anything is known of it: it says that it failed, being interrupted.
results::ComparisonRow row_to_make(const InputOptions& inputs, const std::string& allocator, const Goal& goal,
                                   std::uint64_t seed);

/// Plans by an allocator for the best of the splits and simulates what came of it: the work of one row, for
/// `make_rows`. Once per process.
std::string plan_and_simulate(const Inputs& inputs, const std::string& allocator, const Goal& goal,
                              const allocators::SearchLimits& limits, const std::vector<BatchSplit>& splits);
/// The same for the goal's micro-batches and the workload's.
std::string plan_and_simulate(const Inputs& inputs, const std::string& allocator, const Goal& goal,
                              const allocators::SearchLimits& limits);

/// What a row's work has answered.
struct RowAnswer {
  Plan plan;
  std::string result;  ///< a Result of results/result.hpp as JSON; "" where nothing was simulated
};
/// Fills a row with what `plan_and_simulate` has answered.
RowAnswer fill_row(results::ComparisonRow& row, const std::string& answer_json);

/// Whether the allocator or the simulation did not end well.
bool has_failed(const results::ComparisonRow& row);

/// Done when a row was simulated; else EnvironmentError when one failed, or Infeasible.
ExitCode exit_code_of(const std::vector<results::ComparisonRow>& rows);

/// What is told of each row that was planned, once it is filled.
using OnPlan = std::function<void(results::ComparisonRow&, const RowAnswer&)>;

/// Does the work of each row, which ends in `plan_and_simulate`, in a child of its own, as many at a time as there are
/// cores, and fills the rows. Work that fails or outlasts the limit leaves a failed row with the reason. `what` names
/// it all on a terminal. @throws Interrupted; the rows that had ended are filled then.
void make_rows(const std::string& what, std::vector<results::ComparisonRow>& rows,
               const std::vector<std::function<std::string()>>& work, Seconds row_time_limit,
               const OnPlan& on_plan = {});

}  // namespace isobar::cli
