#pragma once

#include "core/plan/plan.hpp"
#include "results/comparison.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace isobar::results {

/// Versions and inputs that produced a baseline. Baselines of different simulators, solvers or network models are not
/// comparable.
struct Provenance {
  std::string isobar_version;
  std::string simgrid_version;
  std::optional<std::string> cbc_version;                    ///< where an allocator uses CBC
  std::vector<std::pair<std::string, std::string>> network;  ///< every option that affects simulated times
  std::map<std::string, std::string> inputs;                 ///< file -> hash
};

/// NAME.meta.json next to a baseline NAME.csv: the rows that a check plans, and the provenance of the approved ones.
/// The grid is written by hand, the rest by `isobar check --approve`.
struct BaselineMeta {
  /// Rows of the grid that are left out: those that match a pattern of every list that is not empty.
  struct LeftOut {
    std::vector<std::string> platforms;
    std::vector<std::string> workloads;
    std::vector<std::string> allocators;
    std::vector<std::string> objectives;
    std::string because;
    int line = 0;
  };

  std::string name;                    ///< of the file
  std::string sweep;                   ///< a file of schedules (docs/sweeps.md), which has all rows; "": the grid has
  std::vector<std::string> platforms;  ///< files or patterns (*, ?, […]), relative to the working folder
  std::vector<std::string> workloads;
  std::vector<std::string> allocators;
  std::vector<Objective> objectives;
  std::optional<Communication> communication;  ///< none: the objective's default; likewise the next two
  std::optional<ScheduleChoice> schedule;
  std::optional<std::uint64_t> microbatches;
  std::optional<std::string> recompute;  ///< layers of every row, as --recompute takes them; none: its default
  std::optional<std::uint64_t> window;   ///< as --window and --offload, for the allocators that take them
  std::optional<std::string> offload;
  std::uint64_t seed = 1;
  std::map<std::string, std::uint64_t> budgets;  ///< work limit of a search, by allocator
  std::map<std::string, std::uint64_t>
      simulate;  ///< best placements to simulate, of which the fastest is kept, likewise
  std::vector<LeftOut> left_out;
  std::map<std::string, double> plan_time_limits;  ///< largest plan time relative to `even`, by allocator
  std::optional<Provenance> approved;

  /// Sets goal and recomputation of a row to what its allocator and objective have by default.
  using SetDefaults = std::function<void(ComparisonRow&)>;

  /// The rows of the grid without those left out, sorted, without outcomes.
  /// @throws InputError for a pattern that no file matches and for an entry of `left_out` that matches no row.
  std::vector<ComparisonRow> rows(const SetDefaults& set_defaults) const;
};

/// Reads schema isobar-baseline/1 (docs/formats/baseline.md). `name` is the file's.
/// @throws InputError with every fault of the file.
BaselineMeta baseline_meta_from_json(const std::string& text, const std::string& name);
std::string baseline_meta_to_json(const BaselineMeta& meta);

/// Why rows approved with one provenance cannot be compared with rows of another: one line for each reason, which
/// begins with its key; empty when they can. Isobar's own version and the inputs are no reasons.
std::vector<std::string> reasons_not_to_compare(const Provenance& approved, const Provenance& now);
/// Inputs that differ from the approved ones: one line each.
std::vector<std::string> changed_inputs(const Provenance& approved, const Provenance& now);

}  // namespace isobar::results
