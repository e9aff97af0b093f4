#pragma once

#include "core/program/program.hpp"
#include "core/program/round_time.hpp"

#include <string>
#include <vector>

namespace isobar {

/// By channel: whether its flows may share the bandwidth of a link with those of another channel.
///
/// `network` is between ranks, `sites` by rank for hierarchical collectives. All channels may be in use at once, with
/// one message or one round each. So those of which no link can be full are under way as if they were alone.
/// O(channels x links), and the instructions of one end of each collective.
std::vector<bool> contending_channels(const Program& program, const EndNetwork& network,
                                      const std::vector<std::string>& sites);

}  // namespace isobar
