#pragma once

#include "cli/planning/global_batch.hpp"
#include "core/cluster/scaled_cluster.hpp"
#include "core/errors.hpp"
#include "core/plan/plan.hpp"
#include "results/comparison.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace isobar::cli {

/// Adds --row-time-limit; `text` holds its default.
void add_row_time_limit(CLI::App& command, std::string& text);
/// The value of --row-time-limit. @throws InputError when it is not a time, or not positive.
Seconds row_time_limit_from(const std::string& text);

/// A row whose work has not ended: its outcome is failed, its reason "interrupted".
results::ComparisonRow pending_row(const InputOptions& inputs, const std::string& allocator, const Goal& goal,
                                   const std::string& recompute, std::uint64_t seed);

/// Plans with an allocator for the best of the splits and simulates the plan; of several candidates, the one with the
/// least simulated step. Returns the answer for `fill_row` as JSON. Can be called once per process.
std::string plan_and_simulate(const Inputs& inputs, const std::string& allocator, const Goal& goal,
                              const allocators::SearchLimits& limits, const std::vector<BatchSplit>& splits);
/// The same for the goal's number of micro-batches and the workload's micro-batch.
std::string plan_and_simulate(const Inputs& inputs, const std::string& allocator, const Goal& goal,
                              const allocators::SearchLimits& limits);

/// Simulates a plan of these inputs. Returns the answer likewise.
std::string simulate_given(const Inputs& inputs, const Plan& plan);

/// What an allocator takes for the truth in a study of wrong measurements.
struct Belief {
  ClusterFactors cluster;
  double layer_noise = 0;  ///< as of with_noise

  bool operator==(const Belief&) const = default;
};
/// The same for an allocator that plans by a belief, drawn by `seed`: the plan's claims and the simulation are by the
/// inputs. For objective `step`.
std::string plan_by_belief_and_simulate(const Inputs& inputs, const std::string& allocator, const Goal& goal,
                                        const allocators::SearchLimits& limits, const Belief& belief,
                                        std::uint64_t seed);

/// The answer of a row's work.
struct RowAnswer {
  Plan plan;
  std::string result;  ///< a Result of results/result.hpp as JSON; "" where nothing was simulated
};
/// Fills a row with the answer of `plan_and_simulate`. Its schedule stays as it was asked for.
RowAnswer fill_row(results::ComparisonRow& row, const std::string& answer_json);

/// Whether the allocator or the simulation failed.
bool has_failed(const results::ComparisonRow& row);

/// Done when a row was simulated; otherwise EnvironmentError when one failed, else Infeasible.
ExitCode exit_code_of(const std::vector<results::ComparisonRow>& rows);

/// Called for each row that was planned, after it was filled.
using OnPlan = std::function<void(results::ComparisonRow&, const RowAnswer&)>;

/// Runs the work of each row in a child process, one per core at a time, and fills the rows. The work of a row must
/// return what `plan_and_simulate` returns. Work that fails or exceeds the limit leaves a failed row with the reason.
/// `what` is the title of the progress line. @throws Interrupted; rows that have ended are filled then.
void make_rows(const std::string& what, std::vector<results::ComparisonRow>& rows,
               const std::vector<std::function<std::string()>>& work, Seconds row_time_limit,
               const OnPlan& on_plan = {});

}  // namespace isobar::cli
