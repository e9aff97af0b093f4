#pragma once

#include "core/errors.hpp"
#include "core/program/program.hpp"
#include "exec/model/message.hpp"

#include <memory>
#include <span>
#include <vector>

namespace isobar::exec {

/// Sends and receives one rank's messages. Only a lane's own thread makes that lane's transfers.
class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  /// Sends a message; returns when its memory may be freed. On a GPU the calling thread's stream must already wait for
  /// `ready`.
  /// @throws EnvironmentError naming peer, stage, micro-batch and bytes when the peer is gone or the deadline has
  /// passed.
  virtual void send(const Instruction& instruction, const Message& message) = 0;
  /// Receives a message. @throws as `send` does.
  virtual Message receive(const Instruction& instruction) = 0;
  /// All-reduce: sums over the ranks of all stages, without the data server. Every rank gets the same bits.
  virtual void all_reduce_sum(std::span<double> values) = 0;
  /// Ends all waits with a failure (Cancelled within one process). Thread-safe.
  virtual void cancel() noexcept = 0;
};

/// Makes transports between ranks that are threads of this process; tensors are handed over without a copy.
/// The first `all_reduce_ranks` ranks take part in all-reduces. `deadline`: longest wait of one end of a transfer for
/// the other.
std::vector<std::unique_ptr<Transport>> in_process_transports(std::size_t ranks, std::size_t all_reduce_ranks,
                                                              Seconds deadline);

}  // namespace isobar::exec
