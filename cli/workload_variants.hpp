#pragma once

#include "cli/inputs.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace isobar::cli {

/// The workload with another micro-batch, in samples. @throws InputError for a workload that lists its layers, and for
/// measured times, which hold for one size only. The message begins with `where`, the option or key that requests the
/// size.
Workload at_micro_batch(const Inputs& inputs, std::uint64_t micro_batch, const std::string& where);

/// The parts of a workload whose sequences groups of `shards` devices divide. @throws InputError that begins with
/// `where`, the option or key that divides them, for sequences that cannot be divided so, and for measured times.
Workload in_parts(const Inputs& inputs, Workload workload, const ContextParallelism& context, std::size_t shards,
                  const std::string& where);

/// The workload of a device that has a part of the experts of each layer, in groups of `shards` shards. @throws
/// InputError that begins with `where`, the option or key that divides them, for experts that cannot be divided so, and
/// for measured times.
Workload with_divided_experts(const Inputs& inputs, Workload workload, const ExpertParallelism& experts,
                              std::size_t shards, const std::string& where);

/// The workload with the micro-batch, the routing, the recomputation, the context and the divided experts of a plan.
/// `place` precedes its keys in messages, such as "plan.json: ". @throws InputError as at_micro_batch does.
Workload as_planned(const Inputs& inputs, const Plan& plan, const std::string& place = "");

/// Says that a plan drops other tokens than the workload, if it does.
std::optional<std::string> note_of_routing(const Plan& plan, const Workload& workload);

/// Makes these layers (ascending) recompute their activations. @throws InputError with `where`, the option or key that
/// asks for it, in front.
void recompute(Workload& workload, const std::vector<std::size_t>& layers, const std::string& where);

/// Makes layers recompute their activations. @throws InputError naming what asks for it.
void recompute_layers(Workload& workload, const RecomputedLayers& recomputed);

}  // namespace isobar::cli
