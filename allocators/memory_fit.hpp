#pragma once

#include "core/plan/cost_model.hpp"
#include "core/plan/plan.hpp"

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace isobar::allocators {

/// What a stage needs on its device under the goal's schedule, with `stages_after` stages behind it.
Bytes stage_memory(const CostModel& cost, const Goal& goal, const StagePlacement& stage, std::size_t stages_after);

/// "layers 3..7 need 6.10 GiB", "layer 3 needs 6.10 GiB".
std::string need_in_words(std::size_t first, std::size_t last, Bytes need);

/// The first layer that no device can hold, in words; none when each fits somewhere on its own. O(layers + devices).
std::optional<std::string> oversized_layer(const CostModel& cost, const Goal& goal);

/// The least whole percentage of more memory on every device with which a chain fits, as far as `fits` can tell; none
/// when 100,000 % are too few. Some 10 to 30 calls.
std::optional<int> enough_memory_percent(const std::function<bool(int percent)>& fits);

/// "; recomputation would do (--recompute all)" where a chain fits once every layer computes its activations anew, as
/// far as `fits` can tell; else "".
std::string hint_at_recomputation(const Workload& workload,
                                  const std::function<bool(const Workload& recomputed)>& fits);

/// True when filling the devices from the last backwards places the whole chain: then chain-dp finds a plan. False
/// proves nothing, since leaving a small device out lowers the micro-batches in flight before it. O(layers + devices).
bool surely_fits_in_order(const CostModel& cost, const Goal& goal);

/// The stage that exceeds its device by most, in words, with the nearest change; none when all fit.
/// O(layers + devices).
std::optional<std::string> overfull_stage(const CostModel& cost, const Goal& goal,
                                          const std::vector<StagePlacement>& stages);

}  // namespace isobar::allocators
