#pragma once

#include "core/program.hpp"
#include "exec/deadlines.hpp"
#include "exec/tcp_world.hpp"
#include "exec/transport.hpp"

#include <memory>
#include <vector>

namespace isobar::exec {

/// The one-way links that a program's transfers take: a channel for activations, one for gradients.
std::vector<LinkName> links_of(const Program& program);

/// A rank's transport over TCP. A message's header says the type and shape of each tensor. Tensors on a GPU go through
/// pinned memory on the CPU: a send waits in its own thread until they are there, and what is received lies there if
/// `for_gpu`. `world` must outlive it. How long a transfer or sum may wait is decided lane by lane (OperationDeadline).
std::unique_ptr<Transport> tcp_transport(std::size_t rank, TcpWorld& world, const Program& program,
                                         const TimeLimits& limits, bool for_gpu);

}  // namespace isobar::exec
