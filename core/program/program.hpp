#pragma once

#include "core/units.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace isobar {

/// What a device does at one time with one of its parts. Each lane works through its instructions in order; lanes of a
/// device run side by side. Sends and receives have a lane for each kind of payload, so that neither waits for the
/// other.
enum class Lane : std::uint8_t { Compute, SendActivation, SendGradient, ReceiveActivation, ReceiveGradient };
inline constexpr std::size_t lane_count = 5;
inline constexpr std::array<Lane, lane_count> all_lanes = {Lane::Compute, Lane::SendActivation, Lane::SendGradient,
                                                           Lane::ReceiveActivation, Lane::ReceiveGradient};

enum class Opcode : std::uint8_t { Forward, Backward, AllReduce, Update, Send, Recv };

/// The lane of the other end of a transfer; std::logic_error for the compute lane, which has none.
Lane other_end(Lane lane);

std::string_view name_of(Lane lane);      ///< "compute", "send activation", …
std::string_view name_of(Opcode opcode);  ///< "Forward", "Send", …

/// The same rank has completed at least `count` instructions of `lane`.
struct Wait {
  Lane lane = Lane::Compute;
  std::uint64_t count = 0;  ///< 0: nothing to wait for
};

/// One piece of work of one rank in one step. An AllReduce is the work of all ranks that have one, together: a ring in
/// the order of the ranks (docs/costs.md).
struct Instruction {
  Opcode opcode = Opcode::Forward;
  Lane lane = Lane::Compute;
  std::uint32_t stage = 0;
  std::uint64_t microbatch = 0;
  std::size_t first_layer = 0;
  std::size_t last_layer = 0;  ///< inclusive
  Flops work;                  ///< of Forward, Backward, Update
  Bytes size;                  ///< of Send, Recv; of AllReduce: what each rank brings
  std::size_t peer = 0;        ///< of Send, Recv: the other rank; of AllReduce: the next one of the ring
  /// Of Send: its Recv is instruction `peer_position` of the receive lane of the same payload on `peer`; of Recv
  /// likewise its Send. A transfer is ready when both have come to their turn and their waits are over. Both lanes then
  /// turn to their next instruction, and both instructions are completed when the data have arrived, in the lanes'
  /// order.
  std::uint64_t peer_position = 0;
  Wait wait;       ///< besides the lane's order
  Bytes acquires;  ///< activation memory taken when it starts
  Bytes releases;  ///< activation memory given back when it ends
};

/// Send or Recv.
bool is_transfer(const Instruction& instruction);

/// One step of a plan, rank by rank and lane by lane: ranks 0..S-1 run the stages in chain order, rank S is the data
/// server if there is one. The simulator and the executor interpret the same Program.
///
/// Made lazily: `at` computes an instruction from its position in O(1), so a program of millions takes no memory.
/// Immutable; may be read from several threads.
class Program {
 public:
  Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  virtual ~Program() = default;

  virtual std::size_t ranks() const = 0;
  /// Memory that the rank holds throughout: parameters, gradients, optimizer state, buffers.
  virtual Bytes resident_memory(std::size_t rank) const = 0;
  virtual std::uint64_t length(std::size_t rank, Lane lane) const = 0;
  /// Instruction `position` (0..length-1) of a lane.
  virtual Instruction at(std::size_t rank, Lane lane, std::uint64_t position) const = 0;
};

}  // namespace isobar
