#pragma once

#include "core/program/program.hpp"
#include "exec/links/tcp_world.hpp"
#include "exec/links/transfer_waits.hpp"
#include "exec/transport/transport.hpp"
#include "exec/transport/transport_choice.hpp"

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace isobar::exec {

/// How a rank chooses and opens its transports.
struct NcclOptions {
  TransportChoice choice = TransportChoice::Auto;
  std::string device;                            ///< this rank's
  std::size_t stages = 0;                        ///< ranks below this number have stages
  Seconds connect;                               ///< deadline for making a communicator
  std::function<void(const std::string&)> info;  ///< receives a line for each rank and payload to which this rank
                                                 ///< sends, and for each sum of which it is the first, with the
                                                 ///< transport
};

/// Makes a rank's transport, which uses NCCL for the transfers and the sums of gradients of each channel where it is
/// chosen, and TCP elsewhere. All ranks must call it, with the same choice. `world` must have the links and groups of
/// the program; both must outlive the transport.
///
/// A message's header always goes over TCP. Tensors go by NCCL on the calling lane's stream, and the lane's thread
/// waits until they are transferred.
///
/// Each channel has a lane at each end and a communicator of its own, in which its lanes keep the same order. A rank's
/// lanes reach their transfers in an order that differs between runs. In a common communicator, two ranks could each
/// start with the transfer that the other does second, and deadlock. A rank enqueues its part of a transfer after the
/// header, which is sent once all work that makes the tensors is queued; a sum begins with a barrier over TCP. So no
/// NCCL kernel waits for work that a host has yet to launch, such as a kernel whose module CUDA loads lazily.
/// @throws EnvironmentError when only NCCL may be used and a rank with a stage does not have it.
std::unique_ptr<Transport> nccl_transport(std::size_t rank, TcpWorld& world, const Program& program,
                                          const NcclOptions& options, const TransferWaits& waits);

}  // namespace isobar::exec
