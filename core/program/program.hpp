#pragma once

#include "core/errors.hpp"
#include "core/program/shard_role.hpp"
#include "core/units.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar {

/// The operation of an instruction. A BackwardInput and a BackwardWeight together do what a Backward does: the
/// gradients of the layers' inputs, which the stage before waits for, and those of their parameters.
enum class Opcode : std::uint8_t {
  Forward,
  Backward,
  BackwardInput,
  BackwardWeight,
  Update,
  Encode,       ///< the outer gradient of a worker: its parameters' way since the last outer update
  OuterUpdate,  ///< of the parameters by the mean of all workers' outer gradients
  Send,
  Recv,
  Load,   ///< from the machine to the device
  Store,  ///< back
  Read,   ///< from the machine's disk to its memory
  Write,  ///< back
  AllReduce,
  ReduceScatter,
  AllGather,
  AllToAll,
  Broadcast
};

/// What a transfer, a collective or a copy carries.
enum class Payload : std::uint8_t {
  Activation,
  Gradient,  ///< of activations
  ParameterGradient,
  TiedGradient,  ///< of a matrix of which several stages have a copy
  Parameter,
  OuterGradient,  ///< by which parameters of workers have moved since they were equal
  GradientFacts,  ///< what clipping and loss scaling need to know of all gradients
  Optimizer       ///< the optimizer's state
};

/// What a lane occupies. The lanes of a rank that have the same engine share it. Host is the processor of the machine
/// that the device is in; copies go between its memory and the device.
enum class Engine : std::uint8_t { Device, Network, Host, CopyIn, CopyOut, DiskRead, DiskWrite };

/// Where memory is allocated.
enum class Tier : std::uint8_t { Device, Host, Disk };
inline constexpr std::size_t tier_count = 3;

/// How a collective moves its data (core/program/collective.hpp).
enum class Algorithm : std::uint8_t { Ring, Hierarchical, Tree, Direct, Server };

std::string_view name_of(Opcode opcode);        ///< "Forward", "Send", …
std::string_view name_of(Payload payload);      ///< "activation", "parameter gradient", …
std::string_view name_of(Tier tier);            ///< "device", "host", "disk"
std::string_view name_of(Engine engine);        ///< "device", "network", "host", "copy in", …
std::string_view name_of(Algorithm algorithm);  ///< "ring", "hierarchical", …
std::optional<Algorithm> algorithm_from_name(std::string_view name);
std::vector<std::string> algorithm_names();
/// The value with that name; none for an unknown name.
std::optional<Opcode> opcode_from_name(std::string_view name);
std::optional<Tier> tier_from_name(std::string_view name);

/// Index of a lane of a rank. Lane 0 is its compute lane, which may be empty.
using LaneId = std::uint16_t;
inline constexpr LaneId compute_lane = 0;

/// A queue of instructions of a rank. Each lane executes its instructions in order; the lanes of a rank run
/// concurrently.
struct Lane {
  std::string name;  ///< unique in its rank: "compute", "send activation", …
  Engine engine = Engine::Device;
  std::optional<std::size_t> channel = {};  ///< index in Program::channels; none for a lane that meets no other rank
  std::optional<ShardRole> role = {};       ///< of collectives among shards for a micro-batch each
  bool keeps_step = true;                   ///< false: its instructions are of no step, but of a round (Program::steps)
};

/// One end of a channel.
struct End {
  std::size_t rank = 0;
  LaneId lane = 0;

  bool operator==(const End&) const = default;
};

/// The ends of a collective in a folded program (schedules/lowering/fold.hpp), in which one of several equal ranks acts
/// for all: those that act are Channel::ends.
struct FoldedEnds {
  std::vector<std::size_t> ranks;   ///< of all ends, in the order of the ring
  std::vector<std::size_t> places;  ///< of Channel::ends among them, ascending
};

/// The way in which ranks meet: instruction k of the lane at one end happens together with instruction k of the lane at
/// every other end.
///
/// Channels of Send and Recv have two ends, the sender first. A transfer is ready when both instructions are first in
/// their lanes and their waits are over. Both lanes then proceed to their next instruction; both instructions complete
/// when the data have arrived, in the order of the lanes. A collective has an end for each of its ranks, in the order
/// of the ring; it begins when all ends have reached it, and all complete it together.
struct Channel {
  std::vector<End> ends;
  Algorithm algorithm = Algorithm::Ring;  ///< of collectives
  std::vector<std::string> sites = {};    ///< of all ends of a hierarchical collective, "" where a plan has none
  std::optional<FoldedEnds> folded = {};  ///< none: all ends act
};

/// The condition that the same rank has completed at least `count` instructions of `lane` in the period that lies
/// `periods_back` before the instruction's own. It holds in periods that have none so far before them.
struct Wait {
  LaneId lane = compute_lane;
  std::uint16_t periods_back = 0;
  std::uint64_t count = 0;

  bool operator==(const Wait&) const = default;
};

/// The waits of an instruction: at most four, stored in place.
class Waits {
 public:
  Waits() = default;
  Waits(Wait wait) { add(wait); }  // NOLINT(google-explicit-constructor): one wait is the common case

  /// Adds a wait, unless its count is 0. @throws std::logic_error beyond four.
  void add(Wait wait)
  {
    if (wait.count == 0) return;
    ensure(size_ < waits_.size(), "an instruction waits for at most four others");
    waits_[size_++] = wait;
  }

  const Wait* begin() const { return waits_.data(); }
  const Wait* end() const { return waits_.data() + size_; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  std::array<Wait, 4> waits_{};
  std::uint8_t size_ = 0;
};

/// Memory of one tier.
struct Hold {
  Tier tier = Tier::Device;
  Bytes size;
};

/// One piece of work of one rank.
struct Instruction {
  Opcode opcode = Opcode::Forward;
  Payload payload = Payload::Activation;  ///< of transfers, collectives and copies
  Opcode pass = Opcode::Forward;          ///< of copies: Forward, Backward or Update, for or after which they are
  LaneId lane = compute_lane;
  std::uint32_t stage = 0;
  std::uint64_t microbatch = 0;
  std::size_t first_layer = 0;
  std::size_t last_layer = 0;  ///< inclusive
  /// That a computation takes on its rank while nothing slows it down; of a collective in a folded program, what it
  /// takes without flows of its own (schedules/lowering/fold.hpp), or 0.
  Seconds time;
  /// The place on the device that a copy loads parameters into, or where the gradients were that it stores; the number
  /// of the reform that a collective between operators is (schedules/lowering/operator_program.hpp).
  std::uint32_t place = 0;
  Bytes size;     ///< of transfers and copies; of collectives the data of each rank (see rounds_of)
  Bytes result;   ///< of a ReduceScatter or AllToAll into parts that are not equal: the rank's part (see rounds_of)
  Waits waits;    ///< in addition to the lane's order
  Hold acquires;  ///< memory allocated at the start
  Hold releases;  ///< memory freed at the end
};

/// True for Send and Recv.
constexpr bool is_transfer(Opcode opcode)
{
  return opcode == Opcode::Send || opcode == Opcode::Recv;
}
/// True for Load, Store, Read and Write.
constexpr bool is_copy(Opcode opcode)
{
  return opcode >= Opcode::Load && opcode <= Opcode::Write;
}
/// True for AllReduce, ReduceScatter, AllGather, AllToAll and Broadcast.
constexpr bool is_collective(Opcode opcode)
{
  return opcode >= Opcode::AllReduce;
}
/// True for passes, updates, Encode and OuterUpdate, which take time. All but passes may be in a lane of engine Host;
/// else they are in the compute lane.
constexpr bool is_computation(Opcode opcode)
{
  return opcode <= Opcode::OuterUpdate;
}

/// True for Forward, Backward, BackwardInput and BackwardWeight, which are for a micro-batch.
constexpr bool is_pass(Opcode opcode)
{
  return opcode <= Opcode::BackwardWeight;
}

/// True for what the device of a rank computes, and not its machine.
constexpr bool is_on_device(const Instruction& instruction)
{
  return instruction.lane == compute_lane && is_computation(instruction.opcode);
}

/// One period of a plan, a step or a round of steps, as lanes of instructions. A rank is a device of the plan, numbered
/// by its first appearance in the stages; the data server, if there is one, comes last. The simulator and the executor
/// interpret the same Program, period after period: a lane goes from its last instruction of a period to the first of
/// the next one, unless another lane of its rank has not ended the period before.
///
/// Lazy: `at` computes an instruction from its position, so a program of millions of instructions takes no memory.
/// Immutable; may be read from several threads.
class Program {
 public:
  Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  virtual ~Program() = default;

  virtual std::size_t ranks() const = 0;
  /// The lanes of a rank, by LaneId; the first is the compute lane.
  virtual const std::vector<Lane>& lanes(std::size_t rank) const = 0;
  virtual const std::vector<Channel>& channels() const = 0;
  /// Groups of ranks that compute each micro-batch of their stages together and have blocks of the parameters each
  /// (ShardGrid), so that not all of them meet. A rank is in one at most.
  virtual const std::vector<std::vector<std::size_t>>& grids() const;
  /// Whether ranks that compute a stage together have parameters in common, whose gradients they add up.
  virtual bool shares_parameters(std::uint32_t /*stage*/) const { return true; }
  /// Groups of stages that have a copy of one matrix each, whose gradients they add up before their updates.
  virtual const std::vector<std::vector<std::uint32_t>>& tied_stages() const;
  /// Whether ranks that divide the last stage begin its backward passes before they know what its loss needs of others,
  /// and add up the gradients of its input when they do (ScheduleChoice).
  virtual bool sums_loss_with_gradients() const { return false; }
  /// Steps of a period on a rank. As between periods, a lane that keeps step goes from one to the next unless another
  /// such lane of its rank has not ended the one before.
  virtual std::uint64_t steps(std::size_t /*rank*/) const { return 1; }
  /// How many instructions of a lane that keeps step the steps 0 to `step` of a period have, one or more each.
  virtual std::uint64_t end_of_step(std::size_t rank, LaneId lane, std::uint64_t /*step*/) const
  {
    return length(rank, lane);
  }
  /// Memory of a tier that the rank holds throughout: parameters, gradients, optimizer state, buffers.
  virtual Bytes resident(std::size_t rank, Tier tier) const = 0;
  /// The number of instructions of a lane.
  virtual std::uint64_t length(std::size_t rank, LaneId lane) const = 0;
  /// Instruction `position` (0..length-1) of a lane. O(log n) in the runs of the rank's order.
  virtual Instruction at(std::size_t rank, LaneId lane, std::uint64_t position) const = 0;
};

/// The other end of a channel of two. @throws std::logic_error if `rank` and `lane` are no end of it.
const End& other_end(const Channel& channel, std::size_t rank, LaneId lane);

}  // namespace isobar
