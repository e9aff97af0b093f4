#pragma once

#include "core/program/player.hpp"
#include "core/program/program.hpp"

#include <vector>

namespace isobar {

/// What may take longer than alone, because of others that are under way.
struct Contention {
  std::vector<bool> channels;            ///< by channel: its flows may share a link's bandwidth with those of others
  std::vector<std::vector<bool>> lanes;  ///< by rank and lane: likewise its copies, disk accesses or updates

  bool is_anywhere() const;
};

/// Finds what may contend in a program.
///
/// All channels and lanes may be in use at once, with one message, round or instruction each. So those of which no link
/// can be full are under way as if they were alone. Two lanes of disk accesses contend for the disk of their machine,
/// and updates where more ranks update on a machine than it has cores.
/// O((channels + lanes) x links), and the instructions of one end of each collective.
Contention contention_of(const Program& program, const PlayerRates& rates);

}  // namespace isobar
