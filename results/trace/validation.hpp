#pragma once

#include "core/program/program.hpp"
#include "results/trace/timeline.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace isobar::results {

/// A predicted and a measured value of the same quantity.
template <typename Quantity>
struct Pair {
  Quantity predicted;
  Quantity measured;

  /// (predicted − measured) / measured; 0 when both are 0, infinite when only the measured one is.
  double error_fraction() const
  {
    if (predicted.value == measured.value) return 0;
    return (predicted.value - measured.value) / measured.value;
  }
};

/// Predicted and measured totals of one device.
struct StageValidation {
  std::string device;
  Pair<Seconds> compute;  ///< per step: its computations
  Pair<Bytes> peak_memory;
};

/// Instructions of one kind on one rank: medians over micro-batches and steps.
struct InstructionValidation {
  std::string device;
  Opcode opcode = Opcode::Forward;
  std::string peer;  ///< for Send: the receiving device
  /// For a device that holds several stages, the stage; none for what concerns all of them. For a Send, what it
  /// carries.
  std::optional<std::uint32_t> stage;
  std::optional<Payload> payload;
  Pair<Seconds> duration;
};

/// A share of a step's critical path.
struct PathValidation {
  std::string what;  ///< "Forward on a", "Send from a to b"
  Seconds time;
};

/// Comparison of a simulated and a measured run of the same program.
struct Validation {
  std::string allocator;                            ///< of the plan
  Pair<Seconds> step_time;                          ///< medians of the steps after the first
  std::vector<StageValidation> stages;              ///< by rank, without the data server
  std::vector<InstructionValidation> instructions;  ///< by rank; Recv counts as its Send
  std::vector<PathValidation> predicted_path;       ///< of the last step, largest share first
  std::vector<PathValidation> measured_path;        ///< of the step with the median time
};

/// Compares two timelines of the program of a plan by `allocator`. `devices` names its ranks; `peak_memory` is by rank,
/// without the data server. O(n log n) for n instructions.
Validation validate(const Timeline& predicted, const Timeline& measured, const std::string& allocator,
                    const std::vector<std::string>& devices, const std::vector<Pair<Bytes>>& peak_memory);

/// validation.json, schema isobar-validation/1 (docs/formats/validation.md). `tolerance`: largest accepted error of the
/// step time, as a fraction; the file states whether the error is within it.
std::string validation_to_json(const Validation& validation, double tolerance);

/// Tables for people.
std::string text_of(const Validation& validation);

}  // namespace isobar::results
