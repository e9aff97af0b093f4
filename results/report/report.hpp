#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "results/report/what_if.hpp"
#include "results/result.hpp"
#include "results/trace/step_recorder.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar::results {

/// Most instructions of one step that a page draws; more make it slow.
inline constexpr std::size_t most_drawn = 10'000;

/// A measured step, shown next to the simulated one.
struct MeasuredStep {
  std::string file;
  std::uint64_t step = 0;  ///< its index in the file
  Seconds time;
  RecordedStep recorded;
};

/// One placement in a report.
struct ReportedRun {
  std::string file;  ///< of the result
  const Result& result;
  const Workload& workload;  ///< with the plan's recomputation
  const Cluster& cluster;
  const RecordedStep& simulated;
  const MeasuredStep* measured = nullptr;  ///< null where none is given
};

/// An object of `runs` in isobar-report/1 (docs/formats/report.md), without `what_ifs`.
std::string run_to_json(const ReportedRun& run);

/// Effect of a change of the platform on the time of the first step, or where steps overlap the first between others.
struct WhatIfAnswer {
  WhatIf what_if;
  std::optional<Seconds> kept;          ///< the step with the same plan; none where the change cannot affect it
  std::optional<Seconds> planned_anew;  ///< that of the allocator's new plan; none where not requested
  std::string fault;                    ///< why there is no answer

  /// Fraction by which the step of the kept plan is shorter than that of the new one; 0 where the new one is as good.
  double saved_by_keeping() const;
};

struct RunAndAnswers {
  std::string run_json;
  std::vector<WhatIfAnswer> answers;
};

/// isobar-report/1: all data of a page. Answers are sorted by step time, shortest first. Deterministic.
std::string report_to_json(const Result& first, const std::string& version, const std::vector<RunAndAnswers>& runs);

/// Parts of a page. `frame` holds each of the placeholders @STYLE@, @DATA@, @LIBRARY@, @SCRIPT@ and @LICENCE@ once, in
/// any order.
struct PageParts {
  std::string_view frame;
  std::string_view style;
  std::string_view script;
  std::string_view library;
  std::string_view licence;  ///< of the library
};

/// Assembles the page: one HTML file without external resources. `json` is embedded as data; no text in it can end the
/// element.
/// @throws std::logic_error for a part that would end its own element.
std::string page_of(const PageParts& parts, const std::string& json);

}  // namespace isobar::results
