#pragma once

#include "core/program/program.hpp"
#include "core/program/trace.hpp"
#include "core/units.hpp"
#include "results/trace/trace_file.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace isobar::results {

/// Start and end of every instruction over several steps of a program, simulated or measured. Steps may overlap. 16
/// bytes per instruction.
class Timeline {
 public:
  struct Span {
    Seconds begin;
    Seconds end;
  };

  /// Builds the timeline of a trace of `program`, which must outlive it. Tracks are the lanes of the same names.
  /// @throws InputError when the trace is of another program.
  static Timeline of(const TraceFile& trace, const Program& program);

  const Program& program() const { return *program_; }
  std::uint64_t steps() const { return steps_; }
  const Span& at(std::size_t rank, LaneId lane, std::uint64_t step, std::uint64_t position) const;
  /// End of the last instruction of the step on any rank.
  Seconds end_of(std::uint64_t step) const;
  /// Duration of each step: from the end of the previous one (or from 0) to its own end.
  std::vector<Seconds> step_times() const;
  /// Span of an instruction without waiting. A collective begins when every rank has reached it. A transfer begins when
  /// its first byte leaves, or when its receiver reaches it if that is later, and ends when its last byte arrives.
  Span work(std::size_t rank, LaneId lane, std::uint64_t step, std::uint64_t position) const;

 private:
  explicit Timeline(const Program& program) : program_(&program) {}
  void add(const TraceEvent& event, LaneId lane);
  Seconds end_of_predecessors(std::size_t rank, LaneId lane, std::uint64_t step, std::uint64_t position) const;

  const Program* program_;
  std::uint64_t steps_ = 0;
  std::vector<std::vector<std::vector<Span>>> spans_;  // by rank and lane, step by step
};

/// Drops the first of several steps, which allocates memory that the others reuse.
std::vector<Seconds> steps_that_count(std::vector<Seconds> times);

/// Index of the step with the median time among those that count. `times` is not empty.
std::uint64_t typical_step(const std::vector<Seconds>& times);

/// Median; for an even number of values, the upper of the two middle ones. `values` is not empty. O(n).
Seconds median_of(std::vector<Seconds> values);

/// Share of a step's critical path: instructions of one kind on one rank.
struct PathShare {
  std::size_t rank = 0;
  Opcode opcode = Opcode::Forward;
  std::size_t peer = 0;  ///< for Send: the receiving rank
  Seconds time;
};

/// Critical path of a step, found backwards from its end; largest share first.
///
/// The predecessor of an instruction is the last to end of all that it waits for: its lane, its waits and, for a
/// transfer or a collective, those of the other ends. An instruction counts from the end of its predecessor to its own
/// end, so shares sum to the time from the start of the first instruction, or from the end of the one of an earlier
/// step that it waited for, to the end of the step. A Recv counts as its Send; both wait for the sender's lane, not the
/// receiver's.
std::vector<PathShare> critical_path(const Timeline& timeline, std::uint64_t step);

}  // namespace isobar::results
