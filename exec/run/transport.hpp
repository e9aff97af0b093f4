#pragma once

#include "core/errors.hpp"
#include "core/program/program.hpp"
#include "exec/model/message.hpp"

#include <memory>
#include <span>
#include <vector>

namespace isobar::exec {

/// One rank's way to the others. Each lane's transfers come from that lane's thread alone.
class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  /// Returns when the transfer has ended on this side: the message's memory is free to go. On a GPU the calling
  /// thread's queue comes after `ready`.
  /// @throws EnvironmentError naming peer, stage, micro-batch and bytes: the peer is gone, or the deadline has passed.
  virtual void send(const Instruction& instruction, const Message& message) = 0;
  virtual Message receive(const Instruction& instruction) = 0;
  /// Sums over all stages' ranks (the data server takes no part); every rank gets bitwise the same.
  virtual void all_reduce_sum(std::span<double> values) = 0;
  /// From any thread: whatever waits ends with a failure, in one process Cancelled.
  virtual void cancel() noexcept = 0;
};

/// Transports between ranks that are threads of this process: tensors change hands, nothing is copied.
/// The first `all_reduce_ranks` of them take part in sums. `deadline`: how long one end of a transfer waits for the
/// other.
std::vector<std::unique_ptr<Transport>> in_process_transports(std::size_t ranks, std::size_t all_reduce_ranks,
                                                              Seconds deadline);

}  // namespace isobar::exec
