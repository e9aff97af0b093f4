#pragma once

#include "core/units.hpp"
#include "exec/net/tcp_world.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace isobar::exec {

/// What ranks on different machines tell rank 0 beside the run: what their clocks say, and what they have measured.
/// All ranks call the same functions in the same order.
class SideChannel {
 public:
  /// The links that it needs, for the world of `ranks` ranks.
  static std::vector<LinkName> links(std::size_t ranks);

  /// `world` must outlive it. `deadline`: how long each message about clocks may take.
  SideChannel(TcpWorld& world, std::size_t rank, std::size_t ranks, Seconds deadline)
      : world_(&world), rank_(rank), ranks_(ranks), deadline_(deadline)
  {
  }

  /// What rank 0's steady clock shows more than this rank's: of 21 round trips, by the one that took the least; off by
  /// half of that one at most. 0 on rank 0, which tells the time to all at once, by a thread for each.
  Seconds clock_offset();
  /// On rank 0 the texts of all ranks, by rank; on the others nothing. `patience`: how long each may take.
  std::vector<std::string> gather(const std::string& text, Seconds patience);

 private:
  void tell_time(std::size_t other);

  TcpWorld* world_;
  std::size_t rank_;
  std::size_t ranks_;
  Seconds deadline_;
};

}  // namespace isobar::exec
