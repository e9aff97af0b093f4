#pragma once

#include "core/program/collective.hpp"
#include "core/program/program.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace isobar {

/// The ranks of all ends of a channel, in the order of the ring.
std::vector<std::size_t> ranks_of(const Channel& channel);

/// The rounds of a collective over a channel, whose flows are between places of `ranks_of`. `size`, `results`: of
/// Channel::ends; `sites`: of all ends, for one that is not folded, which has its own (Channel::sites).
///
/// Of a folded channel, they have the flows that leave an end that acts, and those that reach one from a rank that does
/// not act: all others take as long as one of these. A rank that acts may stand in places of others too, to receive
/// what they would.
std::vector<Round> rounds_of(const Channel& channel, Opcode opcode, const std::vector<Bytes>& size,
                             const std::vector<std::string>& sites, const std::vector<Bytes>& results = {});

}  // namespace isobar
