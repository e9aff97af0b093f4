#pragma once

#include "core/model/dtype.hpp"
#include "core/model/framework.hpp"
#include "core/plan/plan.hpp"
#include "core/text/document.hpp"
#include "core/units.hpp"

#include <optional>
#include <string>

namespace isobar {

/// A Sync::bucket that holds the gradients of any stage, so that they are added up after its last backward pass.
inline constexpr Bytes one_bucket{1e18};

/// The training software whose flags count in a plan, which live as long as the plan; null: none, or a system that is
/// only measured on a platform.
const Framework* framework_of(const Plan& plan);

/// Whether parameters that replicas gather travel beside passes and the next step, as they do unless training software
/// waits for them.
bool overlaps_gathers(const Plan& plan);

/// Gives a plan the rules of training software: whether transfers block and are sliced, the types in which gradients
/// and parameters travel, and, where replicas divide nothing, which gradients they add up together. `dtype` is that of
/// the model; gradients of float32 travel in float32.
void take_rules(const Framework& framework, DType dtype, Plan& plan);

/// A note on flags of sums that `framework` has other than its named system, in a plan whose replicas
/// divide the optimizer; none: they count, or none is changed.
std::optional<std::string> note_of_idle_flags(const Plan& plan, const Framework& framework);

/// The system of a plan that has the rules of training software in its `transfers` and `sync`.
TrainingSystem system_beside_rules(Framework framework);

/// Reads the key `system` of a plan file, whose `stages`, `sync` and `transfers` were read before. Flags that are rules
/// of transfers and sums become those of the plan; a plan that says otherwise in `sync` or `transfers` is a fault.
void read_system(MappingReader& file, Plan& plan, FaultList& faults);

}  // namespace isobar
