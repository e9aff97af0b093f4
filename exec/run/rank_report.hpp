#pragma once

#include "core/program/program.hpp"
#include "core/program/trace.hpp"
#include "core/units.hpp"
#include "exec/model/evaluation_sums.hpp"

#include <array>
#include <optional>
#include <string>
#include <vector>

namespace isobar::exec {

/// When one instruction ran, by the steady clock, and what its rank held then.
struct InstructionTime {
  Seconds begin;
  Seconds end;
  Bytes memory;
};

/// What a rank held at a moment of the steady clock.
struct MemorySample {
  Seconds time;
  Bytes memory;
};

/// How many steps, from its first one, a run keeps the times of: as many as take its busiest rank 200,000 instructions,
/// but 10 at least and 1,000 at most. Those of weeks would fill the memory.
std::uint64_t timed_steps(const Program& program);

/// What one rank measured.
struct RankReport {
  /// By lane: the instructions of all timed steps in the lane's order.
  std::array<std::vector<InstructionTime>, lane_count> lanes;
  std::vector<MemorySample> memory;  ///< after each of them that changed it, in the order of time
  std::vector<double> losses;        ///< by step; of a last stage alone
  Bytes peak_memory;
  double processor_wait_fraction = 0;        ///< of the computing thread, while it trained
  std::optional<EvaluationSums> evaluation;  ///< of a last stage alone

  /// To a clock that shows `offset` more.
  void shift(Seconds offset);
};

/// How a rank that is a process of its own hands its report over.
std::string report_to_json(const RankReport& report);
/// @throws InputError when `text` is no report.
RankReport report_from_json(const std::string& text);

/// Keeps the times of one rank's events before step `end`, and what it held.
class RankRecorder : public TraceSink {
 public:
  RankRecorder(RankReport& report, std::uint64_t end) : report_(&report), end_(end) {}
  void record(const TraceEvent& event) override;
  void memory_changed(std::size_t rank, Seconds time, Bytes memory) override;

 private:
  RankReport* report_;
  std::uint64_t end_;
  bool ended_ = false;
};

/// Every rank's part of a run on one clock.
class MeasuredRun {
 public:
  /// `reports` by rank, complete: who has losses has one of each step, from step `first_step`, and each lane as many
  /// times as the program has instructions in those of them that are timed.
  MeasuredRun(const Program& program, std::uint64_t first_step, std::vector<RankReport> reports);

  std::uint64_t first_step() const { return first_step_; }
  std::uint64_t steps() const { return steps_; }
  /// The first of them, whose times were kept.
  std::uint64_t timed_steps() const { return timed_steps_; }
  /// By step: the mean of the ranks that have one, each of as many samples.
  std::vector<double> losses() const;
  /// Of all ranks that have one, together.
  std::optional<EvaluationSums> evaluation() const;

  /// Of the timed steps: from the end of the step before, of the first: from the first instruction's begin, to the end
  /// of the last of its instructions on any rank.
  std::vector<Seconds> step_times() const;
  const std::vector<RankReport>& ranks() const { return reports_; }
  /// All timed events in the order in which they ended, memory, and as links the ways between ranks, named by
  /// `devices`; times since the first instruction's begin.
  void replay(TraceSink& sink, const std::vector<std::string>& devices) const;

 private:
  void replay_links(TraceSink& sink, const std::vector<std::string>& devices) const;

  const Program* program_;
  std::uint64_t first_step_;
  std::uint64_t steps_ = 0;
  std::uint64_t timed_steps_ = 0;
  std::vector<RankReport> reports_;
  Seconds begin_;
};

}  // namespace isobar::exec
