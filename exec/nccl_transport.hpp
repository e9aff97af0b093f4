#pragma once

#include "core/program.hpp"
#include "exec/tcp_world.hpp"
#include "exec/transport.hpp"

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace isobar::exec {

/// What carries tensors between ranks that are processes.
enum class TransportChoice {
  Tcp,   ///< through the host
  Nccl,  ///< from GPU to GPU, between any two stages
  Auto   ///< NCCL between different GPUs of one machine that both have it, in one version; else TCP
};
const char* name_of(TransportChoice choice);
/// @throws InputError naming --transport.
TransportChoice transport_from_text(const std::string& text);

/// What decides which transport a link takes, of one rank. Numbers, so that the ranks' sums tell them to all; exact as
/// doubles.
struct Reach {
  double nccl = 0;     ///< its version; 0: none, or no GPU
  double machine = 0;  ///< a hash
  double gpu = 0;      ///< a hash of its place in the machine
};
/// "" where the link from one rank to another takes NCCL, else why not: "the same GPU".
std::string why_not_nccl(const Reach& from, const Reach& to, TransportChoice choice);

/// What a rank needs to find its transports.
struct NcclOptions {
  TransportChoice choice = TransportChoice::Auto;
  std::string device;                            ///< of this rank
  std::size_t stages = 0;                        ///< ranks below are stages
  Seconds deadline;                              ///< of each transfer and sum, and of each communicator's beginning
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
std::unique_ptr<Transport> nccl_transport(std::size_t rank, TcpWorld& world, const std::vector<LinkName>& links,
                                          const NcclOptions& options);

}  // namespace isobar::exec
