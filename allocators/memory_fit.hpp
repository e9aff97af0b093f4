#pragma once

#include "core/costs/cost_model.hpp"
#include "core/plan/plan.hpp"

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace isobar::allocators {

/// Memory of a stage on its device under the goal's schedule of chains, with `stages_after` stages after it.
Bytes stage_memory(const CostModel& cost, const Goal& goal, const StagePlacement& stage, std::size_t stages_after);

/// Returns "layers 3..7 need 6.10 GiB" or "layer 3 needs 6.10 GiB".
std::string need_text(std::size_t first, std::size_t last, Bytes need);

/// Describes the first layer that no device can hold; none when each fits somewhere on its own. O(layers + devices).
std::optional<std::string> oversized_layer(const CostModel& cost, const Goal& goal);

/// Returns the least whole percentage by which the memory of every device must grow for a chain to fit, according to
/// `fits`; none when 100,000 % are not enough. Calls `fits` some 10 to 30 times.
std::optional<int> enough_memory_percent(const std::function<bool(int percent)>& fits);

/// Returns "; recomputation would be enough (--recompute all)" when a chain fits with every layer recomputed, according
/// to `fits`; else "".
std::string recomputation_hint(const Workload& workload, const std::function<bool(const Workload& recomputed)>& fits);

/// True when filling the devices from the last to the first places the whole chain: then chain-dp finds a plan. False
/// proves nothing, since leaving a small device out lowers the micro-batches in flight before it. O(layers + devices).
bool surely_fits_in_order(const CostModel& cost, const Goal& goal);

/// Describes the stage that exceeds its device by most, and the smallest change that would help; none when all fit.
/// O(layers + devices).
std::optional<std::string> overfull_stage(const CostModel& cost, const Goal& goal,
                                          const std::vector<StagePlacement>& stages);

}  // namespace isobar::allocators
