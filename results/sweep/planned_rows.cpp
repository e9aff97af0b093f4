#include "results/sweep/planned_rows.hpp"

#include "core/errors.hpp"

#include <algorithm>

namespace isobar::results {

namespace {

template <typename Unit>
std::optional<double> number(const std::optional<Unit>& quantity)
{
  return quantity ? std::optional(quantity->value) : std::nullopt;
}

/// Whether layers recompute by the default of an allocator, which no parameter of the sweep says.
bool recomputes_by_default(const Sweep& sweep, const std::vector<PlannedRun>& runs)
{
  if (sweep.has_parameter("recompute")) return false;
  return std::any_of(runs.begin(), runs.end(), [](const PlannedRun& run) { return run.row.recompute != "none"; });
}

}  // namespace

SweepRow stored_row(const std::string& definition, const ComparisonRow& row)
{
  return {definition,
          row.outcome,
          {number(row.objective), number(row.objective_bound), number(row.bottleneck), number(row.step_time),
           number(row.step_bound), number(row.peak_memory), static_cast<double>(row.stages)},
          row.reason};
}

void fill_from(const SweepRow& stored, ComparisonRow& row)
{
  const auto& numbers = stored.numbers;
  ensure(numbers.size() == planned_runs().stored.size(), "a plan's row has a plan's numbers");
  const auto take = [&numbers](std::size_t i, auto& quantity) {
    quantity.reset();
    if (numbers[i]) quantity.emplace(*numbers[i]);
  };
  row.outcome = stored.outcome;
  take(0, row.objective);
  take(1, row.objective_bound);
  take(2, row.bottleneck);
  take(3, row.step_time);
  take(4, row.step_bound);
  take(5, row.peak_memory);
  row.stages = static_cast<std::size_t>(numbers[6].value_or(0));
  row.reason = stored.reason;
}

std::vector<SweepResult> results_of(const Sweep& sweep, const std::vector<PlannedRun>& runs)
{
  const bool with_recompute = recomputes_by_default(sweep, runs);
  std::vector<SweepResult> results;
  results.reserve(runs.size());
  for (const auto& [run, row] : runs) {
    SweepResult result{run, {}, row.outcome, {}, row.reason};
    result.key = {{"platform", text_node(row.platform)},
                  {"workload", text_node(row.workload)},
                  {"allocator", text_node(row.allocator)},
                  {"objective", text_node(std::string(name_of(row.goal.objective)))},
                  {"communication", text_node(std::string(name_of(row.goal.communication)))},
                  {"schedule", text_node(text_of(row.goal.schedule))},
                  {"microbatches", count_node(row.goal.microbatches)},
                  {"seed", count_node(row.seed)}};
    if (with_recompute) result.key.push_back({"recompute", text_node(row.recompute)});
    result.numbers = {number(row.objective),  number(row.objective_bound),    gap_of(row),
                      number(row.step_time),  number(row.step_bound),         number(row.peak_memory),
                      number(row.bottleneck), static_cast<double>(row.stages)};
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace isobar::results
