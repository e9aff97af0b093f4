#pragma once

#include "sim/play/channels.hpp"
#include "sim/play/lanes.hpp"
#include "sim/play/simulation_state.hpp"
#include "sim/play/transfers.hpp"

#include <cstddef>
#include <vector>

namespace isobar::sim {

/// The AllReduce of all ranks that compute: a ring of 2 (ranks - 1) rounds. In a round every rank sends a part of its
/// data to the next rank; a round starts when all parts of the previous one have arrived (docs/costs.md).
class AllReduce {
 public:
  AllReduce(const SimulationState& state, Lanes& lanes, Channels& channels, Transfers& transfers);

  /// Joins the AllReduce that is the lane's turn; the ring starts when all ranks have joined. Once per turn.
  void join(LaneState& lane);
  /// Ends a part that has arrived.
  void part_arrived(const LaneState& part);

 private:
  void start_round();

  Lanes& lanes_;
  Channels& channels_;
  Transfers& transfers_;
  std::size_t ranks_ = 0;  // that compute
  std::vector<LaneState*> lanes_joined_;
  std::size_t rounds_left_ = 0;
  std::size_t parts_left_ = 0;  // of the current round
};

}  // namespace isobar::sim
