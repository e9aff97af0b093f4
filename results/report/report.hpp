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

/// Instructions that a page draws of one step, at most; more make it slow.
inline constexpr std::size_t most_drawn = 10'000;

/// A step as it was measured, to be shown beside the simulated one.
struct MeasuredStep {
  std::string file;
  std::uint64_t step = 0;  ///< which of the file's
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
  const MeasuredStep* measured = nullptr;  ///< where there is one
};

/// An object of `runs` in isobar-report/1 (docs/formats.md), without `what_ifs`.
std::string run_to_json(const ReportedRun& run);

/// What a change of the platform is worth.
struct WhatIfAnswer {
  WhatIf what_if;
  std::optional<Seconds> kept;          ///< first step with the plan as it is; none where that is no question
  std::optional<Seconds> planned_anew;  ///< first step of the same allocator's new plan; none where not asked
  std::string fault;                    ///< why there is no answer
};

struct RunAndAnswers {
  std::string run_json;
  std::vector<WhatIfAnswer> answers;
};

/// isobar-report/1: all that a page shows. Answers are sorted, the most saved first. Deterministic.
std::string report_to_json(const Result& first, const std::string& version, const std::vector<RunAndAnswers>& runs);

/// What a page is made of. `frame` holds each of @STYLE@, @DATA@, @LIBRARY@, @SCRIPT@ and @LICENCE@ once, in any order.
struct PageParts {
  std::string_view frame;
  std::string_view style;
  std::string_view script;
  std::string_view library;
  std::string_view licence;  ///< of the library
};

/// The page: one file of HTML that needs nothing else. `json` goes in as data, whatever names it holds.
/// @throws std::logic_error for a part that would end its own element.
std::string page_of(const PageParts& parts, const std::string& json);

}  // namespace isobar::results
