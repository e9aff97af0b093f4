#pragma once

#include "core/program/program.hpp"
#include "core/program/trace.hpp"
#include "core/units.hpp"
#include "exec/model/loss.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace isobar::exec {

/// When one instruction ran, by the steady clock, and the memory that its rank held.
struct InstructionTime {
  Seconds begin;
  Seconds end;
  Bytes memory;
};

/// Memory that a rank held at a time of the steady clock.
struct MemorySample {
  Seconds time;
  Bytes memory;
};

/// Number of steps, from the first one, whose times a run keeps: those in which its busiest rank executes 200,000
/// instructions, but at least 10 and at most 1,000. The limit bounds memory in long runs.
std::uint64_t timed_steps(const Program& program);

/// A lane of a rank.
struct LaneReport {
  std::string name;
  std::vector<InstructionTime> times;  ///< of the instructions of all timed steps, in the lane's order
};

/// Measurements of one rank.
struct RankReport {
  std::vector<LaneReport> lanes;  ///< by LaneId
  /// By Tier, after each instruction that changed it, in order of time. Of a machine only if the rank uses it.
  std::array<std::vector<MemorySample>, tier_count> memory;
  std::vector<double> losses;                 ///< by step; only of the rank that has the last stage's first replica
  std::array<Bytes, tier_count> peak_memory;  ///< by Tier
  double processor_wait_fraction = 0;  ///< share of the training time that the computing thread waited for a processor
  std::optional<EvaluationSums> evaluation;  ///< only of the ranks that have the last stage

  /// A report without measurements, with the rank's lanes.
  static RankReport of(const Program& program, std::size_t rank);

  Bytes peak_of(Tier tier) const { return peak_memory[static_cast<std::size_t>(tier)]; }
  /// Converts all times to a clock that is ahead by `offset`.
  void shift(Seconds offset);
};

/// Serialises a report, to pass it between processes.
std::string report_to_json(const RankReport& report);
/// Reads such a text. @throws InputError when it is not a report.
RankReport report_from_json(const std::string& text);

/// Records one rank's events and memory before step `end` into a report.
class RankRecorder : public TraceSink {
 public:
  RankRecorder(RankReport& report, std::uint64_t end) : report_(&report), end_(end) {}
  void record(const TraceEvent& event) override;
  void memory_changed(std::size_t rank, Tier tier, Seconds time, Bytes memory) override;

 private:
  RankReport* report_;
  std::uint64_t end_;
  bool ended_ = false;
};

/// The reports of all ranks of a run, on one clock.
class MeasuredRun {
 public:
  /// `reports`: by rank. At most one of them has losses, one for each step from `first_step`, and each lane of the
  /// program has a time for every instruction of the timed steps.
  MeasuredRun(const Program& program, std::uint64_t first_step, std::vector<RankReport> reports);

  std::uint64_t first_step() const { return first_step_; }
  std::uint64_t steps() const { return steps_; }
  /// Number of steps, from the first one, whose times were kept.
  std::uint64_t timed_steps() const { return timed_steps_; }
  /// Loss by step: the mean of its micro-batches.
  const std::vector<double>& losses() const { return reports_[rank_of_loss_].losses; }
  /// Sum over the ranks that have evaluated; absent without an evaluation.
  std::optional<EvaluationSums> evaluation() const;

  /// Duration of each timed step: from the end of the previous one (or from the first instruction) to the end of the
  /// last instruction on any rank.
  std::vector<Seconds> step_times() const;
  const std::vector<RankReport>& ranks() const { return reports_; }
  /// Time that a rank has computed for a stage in each timed step.
  std::vector<Seconds> compute_times(std::size_t rank, std::size_t stage) const;
  /// Sends to `sink` all timed events in the order of their ends, then memory, then the links between ranks, named by
  /// `devices`. Times are relative to the first instruction's begin.
  void replay(TraceSink& sink, const std::vector<std::string>& devices) const;

 private:
  const LaneReport& lane(std::size_t rank, LaneId lane) const { return reports_[rank].lanes[lane]; }
  void replay_links(TraceSink& sink, const std::vector<std::string>& devices) const;

  const Program* program_;
  std::uint64_t first_step_;
  std::uint64_t steps_ = 0;
  std::uint64_t timed_steps_ = 0;
  std::vector<RankReport> reports_;
  std::size_t rank_of_loss_ = 0;
  Seconds begin_;
};

}  // namespace isobar::exec
