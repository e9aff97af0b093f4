#pragma once

#include "core/units.hpp"
#include "exec/links/tcp_world.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace isobar::exec {

/// Exchanges what a run needs besides its data between rank 0 and the other ranks: clock offsets and measurements.
/// All ranks call the same functions in the same order.
class SideChannel {
 public:
  /// Links that the channel needs in a process group of `ranks` ranks.
  static std::vector<LinkName> links(std::size_t ranks);

  /// `world` must outlive this object. `deadline`: of each message about clocks.
  SideChannel(TcpWorld& world, std::size_t rank, std::size_t ranks, Seconds deadline)
      : world_(&world), rank_(rank), ranks_(ranks), deadline_(deadline)
  {
  }

  /// Offset of rank 0's steady clock from ours, from the fastest of 21 round trips; error ≤ half that round trip.
  /// 0 on rank 0, which answers all other ranks at once with a thread for each.
  Seconds clock_offset();
  /// Collects the texts of all ranks on rank 0, by rank; returns nothing on the others. `deadline`: of each text.
  std::vector<std::string> gather(const std::string& text, Seconds deadline);

 private:
  void answer_clock_requests(std::size_t other);

  TcpWorld* world_;
  std::size_t rank_;
  std::size_t ranks_;
  Seconds deadline_;
};

}  // namespace isobar::exec
