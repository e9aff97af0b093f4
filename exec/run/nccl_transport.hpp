#pragma once

#include "core/program/program.hpp"
#include "exec/net/tcp_world.hpp"
#include "exec/net/transfer_waits.hpp"
#include "exec/run/transport.hpp"
#include "exec/run/transport_choice.hpp"

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace isobar::exec {

/// What a rank needs to find its transports.
struct NcclOptions {
  TransportChoice choice = TransportChoice::Auto;
  std::string device;                            ///< of this rank
  std::size_t stages = 0;                        ///< ranks below are stages
  Seconds connect;                               ///< a communicator that is not there by then is not coming
  std::function<void(const std::string&)> tell;  ///< a line for each link that begins here, and what it takes
};

/// A stage's transport over NCCL where that is chosen, else over TCP. All stages' ranks call it, with the same choice.
/// A message's header goes over TCP in either case; the tensors go by NCCL on the stream of the calling lane, and the
/// lane's thread waits until they are through.
///
/// Each link, which has one sending and one receiving lane, has a communicator of its own. The two lanes go through it
/// in the same order, whereas a rank's lanes come to their transfers in an order that differs from run to run: in one
/// communicator two ranks could each begin with what the other does second, and wait for each other. And a rank queues
/// its part of a transfer once it has the header, which is sent when all that makes the tensors is queued: so a kernel
/// of NCCL never waits for what a host has still to launch, be it a module that CUDA first loads while kernels wait.
/// @throws EnvironmentError when NCCL alone may be used and a stage has none.
std::unique_ptr<Transport> nccl_transport(std::size_t rank, TcpWorld& world, const Program& program,
                                          const NcclOptions& options, const TransferWaits& waits);

}  // namespace isobar::exec
