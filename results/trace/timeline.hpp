#pragma once

#include "core/program/program.hpp"
#include "core/program/trace.hpp"
#include "core/units.hpp"
#include "results/trace/trace_file.hpp"

#include <array>
#include <cstdint>
#include <vector>

namespace isobar::results {

/// When every instruction of some steps of a program ran, simulated or measured. Holds 16 bytes an instruction.
class Timeline {
 public:
  struct Span {
    Seconds begin;
    Seconds end;
  };

  /// From a trace of this program, which must outlive it. @throws InputError when it is one of another program.
  static Timeline of(const TraceFile& trace, const Program& program);

  const Program& program() const { return *program_; }
  std::uint64_t steps() const { return steps_; }
  const Span& at(std::size_t rank, Lane lane, std::uint64_t step, std::uint64_t position) const;
  /// From the end of the step before, of the first from 0, to the end of its last instruction on any rank.
  std::vector<Seconds> step_times() const;
  /// An AllReduce counts from the moment when every rank had come to it. A transfer counts from the moment when its
  /// first byte left, or its receiver came to it if that is later, until its last byte arrived.
  Span work(std::size_t rank, Lane lane, std::uint64_t step, std::uint64_t position) const;

 private:
  explicit Timeline(const Program& program) : program_(&program), spans_(program.ranks()) {}
  Seconds end_of_what_precedes(std::size_t rank, Lane lane, std::uint64_t step, std::uint64_t position) const;

  const Program* program_;
  std::uint64_t steps_ = 0;
  std::vector<std::array<std::vector<Span>, lane_count>> spans_;  // by rank and lane, step by step
};

/// Without the first, which makes room for what the others use again.
std::vector<Seconds> steps_that_count(std::vector<Seconds> times);

/// The step of the median time of those that count. `times` holds one at least.
std::uint64_t typical_step(const std::vector<Seconds>& times);

/// The value in the middle; of an even number, the upper one. `values` holds one at least. O(n).
Seconds median_of(std::vector<Seconds> values);

/// What a step's time went to: instructions of one kind on one rank.
struct PathShare {
  std::size_t rank = 0;
  Opcode opcode = Opcode::Forward;
  std::size_t peer = 0;  ///< of Send: the other rank
  Seconds time;
};

/// The chain of instructions that a step waited for, from its end backwards: before each one stands what ended last of
/// all that it waited for (its lane, its Wait, and of a transfer those of the other end). An instruction counts from
/// that end to its own, so that the shares sum to the time from the first one's begin to the step's end. A Recv counts
/// as its Send, and both wait for the sender's lane, not the receiver's. The largest first.
std::vector<PathShare> critical_path(const Timeline& timeline, std::uint64_t step);

}  // namespace isobar::results
