#pragma once

#include "core/plan/plan.hpp"
#include "results/comparison.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace isobar::results {

/// What a baseline was made by and from. Two with another simulator, solver or network model are not comparable.
struct Provenance {
  std::string isobar_version;
  std::string simgrid_version;
  std::optional<std::string> cbc_version;                    ///< where an allocator uses it
  std::vector<std::pair<std::string, std::string>> network;  ///< every option that decides simulated times
  std::map<std::string, std::string> inputs;                 ///< file -> hash
};

/// NAME.meta.json beside a baseline NAME.csv: which rows there are to be, and what the approved ones were made by. The
/// grid is written by hand, the rest by `isobar check --approve`.
struct BaselineMeta {
  /// Rows of the grid that are not made: those that match a pattern of each list that is not empty.
  struct LeftOut {
    std::vector<std::string> platforms;
    std::vector<std::string> workloads;
    std::vector<std::string> allocators;
    std::vector<std::string> objectives;
    std::string because;
    int line = 0;
  };

  std::string name;                    ///< of its file
  std::vector<std::string> platforms;  ///< files or patterns of them (*, ?, […]), from the working folder
  std::vector<std::string> workloads;
  std::vector<std::string> allocators;
  std::vector<Objective> objectives;
  std::optional<Communication> communication;  ///< none: the objective's default; likewise the next two
  std::optional<Schedule> schedule;
  std::optional<std::uint64_t> microbatches;
  std::uint64_t seed = 1;
  std::map<std::string, std::uint64_t> budgets;  ///< work of a search, by allocator
  std::vector<LeftOut> left_out;
  std::map<std::string, double> plan_time_limits;  ///< largest ratio of plan time to even's, by allocator
  std::optional<Provenance> approved;

  /// The grid without what is left out, sorted; outcomes are not known yet.
  /// @throws InputError for a pattern that no file matches, and for an entry of `left_out` that leaves nothing out.
  std::vector<ComparisonRow> rows() const;
};

/// Schema isobar-baseline/1 (docs/formats.md). @throws InputError with every fault of the file.
BaselineMeta baseline_meta_from_json(const std::string& text, const std::string& name);
std::string baseline_meta_to_json(const BaselineMeta& meta);

/// Why rows that were approved with one provenance cannot be compared with rows made by another: one line for each
/// reason, which begins with its key; none when they can. Isobar's own version and the inputs are no reason.
std::vector<std::string> reasons_not_to_compare(const Provenance& approved, const Provenance& now);
/// Inputs that are not the ones that were approved: one line each.
std::vector<std::string> changed_inputs(const Provenance& approved, const Provenance& now);

}  // namespace isobar::results
