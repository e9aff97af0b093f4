#pragma once

#include "core/compute/operator_table.hpp"
#include "core/model/workload.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace isobar::exec {

/// How operators are timed.
struct OperatorTiming {
  std::string device = "cpu";             ///< open
  Bytes memory;                           ///< of the device
  std::uint64_t seed = 1;                 ///< of the data
  std::size_t repetitions = 15;           ///< passes that count, where they take no longer than `longest`
  Seconds longest{0.25};                  ///< five passes of an operator; what would take longer is left out
  std::function<void()> on_part = [] {};  ///< called after each of the `operator_parts`
};

/// Measures what an OperatorTable holds, apart from its device and memory, in the workload's dtype, and with TF32 where
/// the workload has it.
///
/// - Products: a grid of shapes, and those of the workload's layers on one of 1, 2, 4 and 8 shards. On a GPU, gradients
///   of parameters of 16 bits are added up in float32.
/// - Memory-bound operators as the workload has them: with dropout, of a gated feed-forward network.
/// - Causal attention of one sample with the workload's heads, where LibTorch has a kernel for it.
/// - The time in which this thread issues an addition.
///
/// Each is a median after two passes to warm up, by the clocks that measure_profile uses. How long a product or
/// attention would take follows from the rate of those measured before, with less work. Data are random. By default it
/// takes about half a minute on one thread of a CPU.
/// @throws InputError when no generator of bert, gpt or llama made the layers; Interrupted after the current pass.
void time_operators(const Workload& workload, const OperatorTiming& timing, compute::OperatorTable& table);

/// How often `time_operators` calls `on_part`.
std::size_t operator_parts(const Workload& workload);

}  // namespace isobar::exec
