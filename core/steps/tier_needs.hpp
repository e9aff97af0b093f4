#pragma once

#include "core/program/program.hpp"
#include "core/program/residence.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

/// What the machine of a device copies and updates for its parts in a step. Internal to core/check, and independent of
/// schedules/lowering/tiers.hpp.
namespace isobar {

/// A part of a device: a stage of a plan, by what it moves. Bytes and, of the update, work.
struct MovedPart {
  Residence residence;
  double parameters = 0;  // with those that it uses of another part that passes
  double own_parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double activations = 0;  // of a micro-batch
  double update = 0;
  bool is_summed = false;  // over replicas
};

/// A pass of a part.
struct PartPass {
  Opcode opcode = Opcode::Forward;
  std::size_t part = 0;
  std::uint64_t microbatch = 0;
};

/// What a machine does for a device, each in a lane of its own, and what else its tasks wait for.
enum class TierLane : std::uint8_t { Load, Store, Update, Read, Write, Pass, Sum, Facts };
inline constexpr std::size_t tier_lanes = 5;  // those of the machine

/// The wait for number `index` of a lane: of this step, or of one `steps_back` before it. Of Sum, for the sum of the
/// gradients of that part over replicas.
struct TierWait {
  TierLane lane = TierLane::Pass;
  std::size_t index = 0;
  std::size_t steps_back = 0;
};

struct TierTask {
  double size = 0;               // bytes, or work
  bool is_for_backward = false;  // loads parameters for a backward pass
  std::vector<TierWait> waits = {};
};

/// The tasks of a step, by lane in their order, and what the device's passes wait for besides, by position.
struct TierNeeds {
  std::vector<std::vector<TierTask>> lanes{tier_lanes};
  std::vector<std::pair<std::size_t, TierWait>> waits_of_passes;

  const std::vector<TierTask>& lane(TierLane which) const { return lanes[static_cast<std::size_t>(which)]; }
  std::vector<TierTask>& lane(TierLane which) { return lanes[static_cast<std::size_t>(which)]; }
};

/// The needs of a device with these passes in a step. `needs_facts`: whether updates wait for what all of them need to
/// know; `has_facts`: whether all devices tell each other, or the device's own passes are all. O(n log n + n places)
/// for n passes.
TierNeeds tier_needs(const std::vector<PartPass>& passes, const std::vector<MovedPart>& parts, bool needs_facts,
                     bool has_facts);

}  // namespace isobar
