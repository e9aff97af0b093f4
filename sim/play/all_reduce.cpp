#include "sim/play/all_reduce.hpp"

#include <algorithm>
#include <utility>

namespace isobar::sim {

AllReduce::AllReduce(const SimulationState& state, Lanes& lanes, Channels& channels, Transfers& transfers)
    : lanes_(lanes), channels_(channels), transfers_(transfers)
{
  ranks_ = static_cast<std::size_t>(
      std::ranges::count_if(state.ranks, [](const RankState& rank) { return rank.lane(Lane::Compute).length > 0; }));
}

void AllReduce::join(LaneState& lane)
{
  if (std::exchange(lane.has_joined, true)) return;
  lanes_joined_.push_back(&lane);
  if (lanes_joined_.size() < ranks_) return;
  for (auto* part : lanes_joined_) lanes_.begin_on_device(*part);
  rounds_left_ = 2 * (ranks_ - 1);
  start_round();
}

void AllReduce::start_round()
{
  if (rounds_left_ == 0) {
    for (auto* part : std::exchange(lanes_joined_, {})) {
      part->has_joined = false;
      lanes_.complete(*part);
    }
    return;
  }
  --rounds_left_;
  parts_left_ = lanes_joined_.size();
  for (auto* part : lanes_joined_) {
    transfers_.put_on_its_way(*part, part->turn.size / static_cast<double>(ranks_));
  }
}

void AllReduce::part_arrived(const LaneState& part)
{
  channels_.release_links(part.arriving);
  if (--parts_left_ == 0) start_round();
}

}  // namespace isobar::sim
