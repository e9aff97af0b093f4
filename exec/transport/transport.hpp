#pragma once

#include "core/errors.hpp"
#include "core/program/program.hpp"
#include "exec/device/message.hpp"

#include <cstddef>
#include <memory>
#include <vector>

namespace isobar::exec {

/// One rank's ends of the channels of a program: sends, receives and collectives. `channel` is an index in
/// Program::channels. The transfers and collectives of a channel are made one at a time, in the order of its lanes.
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
  virtual void send(std::size_t channel, const Instruction& instruction, const Message& message) = 0;
  /// Receives a message. @throws as `send` does.
  virtual Message receive(std::size_t channel, const Instruction& instruction) = 0;
  /// A collective of the ranks at the channel's ends, which have tensors of the same shapes:
  /// - AllReduce: replaces `tensors` by their sums. Every rank gets the same bits, whichever arrives first.
  /// - ReduceScatter: only the values of the rank's own part (part_of_end), by the same bits; the others are of no use.
  /// - AllGather: replaces the values of all parts but the own one by those of their ranks.
  ///
  /// The tensors are contiguous and all of float32, float64, bfloat16 or float16, which is rounded after each addition;
  /// those on a GPU are complete before the call and on return. @throws as `send` does, and when another rank has
  /// another number of values.
  virtual void collective(std::size_t channel, const Instruction& instruction, const Tensors& tensors) = 0;
  /// Every rank at the channel's ends sends `outgoing[i]` to end i, and receives `incoming[i]` from end i, into memory
  /// that the caller has allocated. Sizes may differ and be zero; those of one message must agree. Its own two are
  /// ignored. Only on channels that carry reforms, or what devices that divide sequences or experts exchange. The
  /// tensors are contiguous; those on a GPU are complete before the call and on return. @throws as `send` does, and
  /// when another rank sends another number of bytes.
  virtual void exchange(std::size_t channel, const Instruction& instruction, const Tensors& outgoing,
                        const Tensors& incoming) = 0;
  /// Ends all waits with a failure (Cancelled within one process). Thread-safe.
  virtual void cancel() noexcept = 0;
};

/// Makes the transports of all ranks of a program, by rank, between threads of this process; tensors are handed over
/// without a copy. `deadline`: longest wait of one end of a channel for the others.
std::vector<std::unique_ptr<Transport>> in_process_transports(const Program& program, Seconds deadline);

}  // namespace isobar::exec
