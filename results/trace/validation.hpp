#pragma once

#include "results/trace/timeline.hpp"

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace isobar::results {

/// Something foretold and then measured.
template <typename Quantity>
struct Pair {
  Quantity predicted;
  Quantity measured;

  /// (predicted − measured) / measured; 0 where nothing was measured and nothing foretold, infinite where something.
  double error_fraction() const
  {
    if (predicted.value == measured.value) return 0;
    return (predicted.value - measured.value) / measured.value;
  }
};

/// What one rank did with one stage.
struct StageValidation {
  std::string device;
  Pair<Seconds> compute;  ///< of a step: its instructions on the compute lane but AllReduce, which waits for others
  Pair<Bytes> peak_memory;
};

/// Instructions of one kind on one rank: medians over micro-batches and steps.
struct InstructionValidation {
  std::string device;
  Opcode opcode = Opcode::Forward;
  std::string peer;  ///< of Send: the other device
  Pair<Seconds> duration;
};

/// A share of a step's critical path.
struct PathValidation {
  std::string what;  ///< "Forward on a", "Send from a to b"
  Seconds time;
};

/// A simulated run and a measured run of the same program, laid over each other.
struct Validation {
  std::string allocator;    ///< of the plan
  Pair<Seconds> step_time;  ///< medians of the steps after the first
  std::vector<StageValidation> stages;
  std::vector<InstructionValidation> instructions;  ///< by rank; Recv counts as its Send
  std::vector<PathValidation> predicted_path;       ///< of the last step, the largest share first
  std::vector<PathValidation> measured_path;        ///< of the step whose time is the median
};

/// Compares two timelines of the same program, of a plan by `allocator`. `devices` names its ranks; `peak_memory` is by
/// stage. O(instructions log instructions).
Validation validate(const Timeline& predicted, const Timeline& measured, const std::string& allocator,
                    const std::vector<std::string>& devices, const std::vector<Pair<Bytes>>& peak_memory);

/// validation.json, schema isobar-validation/1 (docs/formats.md). `tolerance`: largest error of the step time that is
/// still good; the file says whether it is.
std::string validation_to_json(const Validation& validation, double tolerance);

/// The tables that a person reads.
std::string text_of(const Validation& validation);

}  // namespace isobar::results
