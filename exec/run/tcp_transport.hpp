#pragma once

#include "core/program/program.hpp"
#include "exec/net/tcp_world.hpp"
#include "exec/net/transfer_waits.hpp"
#include "exec/run/transport.hpp"

#include <memory>
#include <vector>

namespace isobar::exec {

/// The one-way links that one rank's transfers take: a channel for activations, one for gradients. O(its instructions).
std::vector<LinkName> links_of(const Program& program, std::size_t rank);

/// A rank's transport over TCP. A message's header says the type and shape of each tensor. Tensors on a GPU go through
/// pinned memory on the CPU: a send waits in its own thread until they are there, and what is received lies there if
/// `for_gpu`. `world` must outlive it.
std::unique_ptr<Transport> tcp_transport(std::size_t rank, TcpWorld& world, TransferWaits waits, bool for_gpu);

}  // namespace isobar::exec
