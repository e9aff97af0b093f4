#pragma once

#include "core/program/program.hpp"
#include "exec/links/tcp_world.hpp"
#include "exec/links/transfer_waits.hpp"
#include "exec/transport/transport.hpp"

#include <cstddef>
#include <memory>
#include <vector>

namespace isobar::exec {

/// The first instruction at the first end of a channel, which shows what the channel carries.
Instruction first_instruction_of(const Program& program, const Channel& channel);

/// The link of a channel of transfers: from its sender to its receiver, with the channel's index as its number.
LinkName link_of(const Program& program, std::size_t channel);
/// The links of all transfers of a program, of all ranks.
std::vector<LinkName> links_of(const Program& program);
/// The groups of ranks that a program's collectives join, with the channel's index as their number.
std::vector<RankGroup> groups_of(const Program& program);

/// For each channel of a program, the one of `training` that carries the same between the same ends.
std::vector<std::size_t> same_channels(const Program& program, const Program& training);

/// Makes a rank's transport over TCP. A message's header has the type and shape of each tensor. Tensors on a GPU go
/// through pinned memory: the calling thread copies them there before it sends, and with `for_gpu` receives into it.
/// `world` must have the links and groups of the program; both must outlive the transport.
std::unique_ptr<Transport> tcp_transport(TcpWorld& world, const Program& program, TransferWaits waits, bool for_gpu);

}  // namespace isobar::exec
