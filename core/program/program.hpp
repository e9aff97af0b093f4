#pragma once

#include "core/units.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace isobar {

/// A queue of instructions of a rank. Each lane executes its instructions in order; the lanes of a rank run
/// concurrently. Sends and receives have a lane for each kind of payload, so that neither waits for the other.
enum class Lane : std::uint8_t { Compute, SendActivation, SendGradient, ReceiveActivation, ReceiveGradient };
inline constexpr std::size_t lane_count = 5;
inline constexpr std::array<Lane, lane_count> all_lanes = {Lane::Compute, Lane::SendActivation, Lane::SendGradient,
                                                           Lane::ReceiveActivation, Lane::ReceiveGradient};

/// The operation of an instruction.
enum class Opcode : std::uint8_t { Forward, Backward, AllReduce, Update, Send, Recv };

/// The lane at the other end of a transfer. @throws std::logic_error for the compute lane, which has none.
Lane other_end(Lane lane);

std::string_view name_of(Lane lane);      ///< "compute", "send activation", …
std::string_view name_of(Opcode opcode);  ///< "Forward", "Send", …

/// The condition that the same rank has completed at least `count` instructions of `lane`.
struct Wait {
  Lane lane = Lane::Compute;
  std::uint64_t count = 0;  ///< 0: nothing to wait for
};

/// One piece of work of one rank in one step. All ranks that have an AllReduce execute it together: a ring in the order
/// of the ranks (docs/costs.md).
struct Instruction {
  Opcode opcode = Opcode::Forward;
  Lane lane = Lane::Compute;
  std::uint32_t stage = 0;
  std::uint64_t microbatch = 0;
  std::size_t first_layer = 0;
  std::size_t last_layer = 0;  ///< inclusive
  Flops work;                  ///< for Forward, Backward, Update
  Bytes size;                  ///< for Send, Recv; for AllReduce the contribution of each rank
  std::size_t peer = 0;        ///< for Send, Recv the other rank; for AllReduce the next rank of the ring
  /// For Send: the position of its Recv in the receive lane of the same payload on `peer`; for Recv that of its Send. A
  /// transfer is ready when both instructions are first in their lanes and their waits are over. Both lanes then
  /// proceed to their next instruction. Both instructions complete when the data have arrived, in the order of the
  /// lanes.
  std::uint64_t peer_position = 0;
  Wait wait;       ///< in addition to the lane's order
  Bytes acquires;  ///< activation memory allocated at the start
  Bytes releases;  ///< activation memory freed at the end
};

/// True for Send and Recv.
bool is_transfer(const Instruction& instruction);

/// One step of a plan as lanes of instructions. Ranks 0..S-1 run the stages in chain order; rank S is the data server,
/// if there is one. The simulator and the executor interpret the same Program.
///
/// Lazy: `at` computes an instruction from its position in O(1), so a program of millions of instructions takes no
/// memory. Immutable; may be read from several threads.
class Program {
 public:
  Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  virtual ~Program() = default;

  virtual std::size_t ranks() const = 0;
  /// Memory that the rank holds throughout: parameters, gradients, optimizer state, buffers.
  virtual Bytes resident_memory(std::size_t rank) const = 0;
  /// The number of instructions of a lane.
  virtual std::uint64_t length(std::size_t rank, Lane lane) const = 0;
  /// Instruction `position` (0..length-1) of a lane.
  virtual Instruction at(std::size_t rank, Lane lane, std::uint64_t position) const = 0;
};

}  // namespace isobar
