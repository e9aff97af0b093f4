#pragma once

#include "cli/inputs.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace isobar::cli {

/// The workload with another micro-batch, in samples. @throws InputError for a workload that lists its layers, and for
/// measured times, which hold for one size only. The message begins with `where`, the option or key that requests the
/// size.
Workload at_micro_batch(const Inputs& inputs, std::uint64_t micro_batch, const std::string& where);

/// The workload with the micro-batch of a plan that was made for these inputs.
Workload workload_of(const Inputs& inputs, const Plan& plan);

/// Makes these layers (ascending) recompute their activations. @throws InputError with `where`, the option or key that
/// asks for it, in front.
void recompute(Workload& workload, const std::vector<std::size_t>& layers, const std::string& where);

/// Makes layers recompute their activations. @throws InputError naming what asks for it.
void recompute_layers(Workload& workload, const RecomputedLayers& recomputed);

}  // namespace isobar::cli
