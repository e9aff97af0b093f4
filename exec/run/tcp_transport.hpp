#pragma once

#include "core/program/program.hpp"
#include "exec/net/tcp_world.hpp"
#include "exec/net/transfer_waits.hpp"
#include "exec/run/transport.hpp"

#include <memory>
#include <vector>

namespace isobar::exec {

/// The one-way links of one rank's transfers: channel 0 for activations, channel 1 for gradients. O(its instructions).
std::vector<LinkName> links_of(const Program& program, std::size_t rank);

/// Makes a rank's transport over TCP. A message's header has the type and shape of each tensor. Tensors on a GPU go
/// through pinned memory: the calling thread copies them there before it sends, and with `for_gpu` receives into it.
/// `world` must outlive the transport.
std::unique_ptr<Transport> tcp_transport(std::size_t rank, TcpWorld& world, TransferWaits waits, bool for_gpu);

}  // namespace isobar::exec
