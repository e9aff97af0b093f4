#include "allocators/folding.hpp"

#include <algorithm>
#include <utility>

namespace isobar::allocators {

namespace {

/// How a search treats memory.
enum class Memory { SharedByParts, First, Ignored };

class Folder {
 public:
  Folder(const CostModel& cost, const Fold& how) : cost_(cost), how_(how), stages_(how.devices.size() * how.parts) {}

  /// The stages if none takes longer than `limit`; none if that does not work.
  std::vector<StagePlacement> within(Seconds limit, Memory memory) const
  {
    std::vector<StagePlacement> stages;
    std::vector<std::size_t> parts(how_.devices.size(), 0);  // of each rank so far
    std::vector<Bytes> used(how_.devices.size());
    std::size_t next = 0;
    for (std::size_t stage = 0; stage < stages_; ++stage) {
      const std::size_t rank = schedules::rank_of_stage(how_.folding, stage, how_.devices.size());
      const std::size_t part = parts[rank]++;
      const std::size_t device = how_.devices[rank];
      const Bytes all = cost_.cluster().devices[device].memory;
      const Bytes room =
          memory == Memory::SharedByParts ? static_cast<double>(part + 1) / static_cast<double>(how_.parts) * all : all;
      const Bytes shared = part == 0 ? Bytes(0) : shared_with_parts_before(stage, next);
      const auto needed_to = [&](std::size_t end) {
        return used[rank] + cost_.memory(next, end - 1, how_.in_flight[rank][part]) - shared;
      };
      const auto fits = [&](std::size_t end) {
        if (cost_.compute_time(device, next, end - 1) > limit) return false;
        return memory == Memory::Ignored || needed_to(end) <= room;
      };
      const std::size_t furthest = cost_.layers() - (stages_ - 1 - stage);  // leaves a layer for each stage after it
      std::size_t end = next + 1;
      if (!fits(end)) return {};
      while (end < furthest && fits(end + 1)) ++end;
      used[rank] = needed_to(end);
      stages.push_back({device, next, end - 1});
      next = end;
    }
    return next == cost_.layers() ? stages : std::vector<StagePlacement>{};
  }

  /// The stages of the least limit that works, by bisection; none if no limit works.
  std::vector<StagePlacement> best(Memory memory) const
  {
    Seconds high;
    for (const std::size_t device : how_.devices) {
      high = std::max(high, cost_.compute_time(device, 0, cost_.layers() - 1));
    }
    auto found = within(high, memory);
    if (found.empty()) return {};
    Seconds low;
    for (int halved = 0; halved < 50; ++halved) {
      const Seconds middle = low + 0.5 * (high - low);
      auto shorter = within(middle, memory);
      if (shorter.empty()) {
        low = middle;
      } else {
        high = middle;
        found = std::move(shorter);
      }
    }
    return found;
  }

 private:
  /// What a further part of a rank does not need besides the parts before it: the workspace, and buffers for what comes
  /// from the rank itself. The part is a stage that begins at `layer`.
  Bytes shared_with_parts_before(std::size_t stage, std::size_t layer) const
  {
    const auto rank_of = [&](std::size_t of) {
      return schedules::rank_of_stage(how_.folding, of, how_.devices.size());
    };
    return cost_.workspace() + (rank_of(stage) == rank_of(stage - 1) ? 2 * cost_.buffers(layer) : Bytes(0));
  }

  const CostModel& cost_;
  const Fold& how_;
  std::size_t stages_;
};

}  // namespace

std::vector<StagePlacement> fold(const CostModel& cost, const Fold& how)
{
  if (how.devices.empty() || cost.layers() < how.devices.size() * how.parts) return {};
  const Folder folder(cost, how);
  for (const auto memory : {Memory::SharedByParts, Memory::First}) {
    if (auto stages = folder.best(memory); !stages.empty()) return stages;
  }
  return folder.best(Memory::Ignored);
}

}  // namespace isobar::allocators
