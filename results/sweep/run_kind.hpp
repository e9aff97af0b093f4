#pragma once

#include <string>
#include <vector>

namespace isobar::results {

/// A number of a run: a column of the database and of tables.
struct SweepColumn {
  std::string name;
  bool is_count = false;
};

/// What the runs of a sweep are, and which numbers they have.
struct RunKind {
  /// A mean over the runs of a point, with its confidence interval.
  struct Mean {
    std::string column;   ///< of `shown`
    std::string heading;  ///< in the table for people; "" if it is not there
    int decimals = 4;
  };

  std::string table;                  ///< in the database
  std::string row_ending;             ///< of a file with one row
  std::vector<SweepColumn> stored;    ///< in the database, in this order
  std::vector<SweepColumn> shown;     ///< in tables, in this order
  std::vector<std::string> outcomes;  ///< of runs, besides failed
  std::vector<std::string> defaults;  ///< what identifies a run and may be left to defaults, which people want to see
  std::vector<Mean> means;            ///< runs count as simulated if they have the first one
};

/// Plans of allocators, simulated.
const RunKind& planned_runs();
/// Schedules of a trace of jobs.
const RunKind& scheduled_runs();

/// Outcome of a schedule.
inline constexpr const char* scheduled_outcome = "scheduled";

}  // namespace isobar::results
