#pragma once

#include "core/program/program.hpp"
#include "core/program/round_time.hpp"
#include "core/shared_link.hpp"
#include "core/transfer_times.hpp"
#include "core/units.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace isobar {

struct Turn;

/// How fast a rank copies in one direction. A copy occupies its lane until its last byte has arrived.
struct CopyRate {
  Seconds latency;
  BytesPerSecond bandwidth;

  Seconds time_of(Bytes size) const { return latency + size / bandwidth; }
};

/// The rates at which a rank uses the machine that its device is in.
struct MachineRates {
  std::size_t machine = 0;           ///< which one it is; ranks may have the same
  CopyRate in;                       ///< to the device
  CopyRate out;                      ///< from the device
  CopyRate read;                     ///< from the disk
  CopyRate write;                    ///< to the disk
  FlopsPerSecond update_speed;       ///< of updates while no rank of the machine computes on its device
  FlopsPerSecond busy_update_speed;  ///< while one does
  Seconds backward_delay;            ///< added to each load of parameters for a backward pass
  std::size_t cores = 1;             ///< updates at a time at that speed; more share it
  /// The links of copies, at which they meet others.
  std::vector<SharedLink> in_links = {};
  std::vector<SharedLink> out_links = {};
};

/// The rates by which a program is played: nominal ones.
struct PlayerRates {
  /// The times of a transfer of `size` bytes from one rank to another; none: transfers take no time. Called once per
  /// channel and size, not per message.
  std::function<TransferTimes(std::size_t from, std::size_t to, Bytes size)> transfer = {};
  /// The links of such a transfer, at which it meets others; none: no two share one.
  std::function<std::vector<SharedLink>(std::size_t from, std::size_t to)> shared_links = {};
  std::vector<std::string> sites = {};          ///< by rank, for hierarchical collectives; may be empty without them
  std::vector<MachineRates> machines = {};      ///< by rank; may be empty for a program that uses devices alone
  std::vector<double> interference = {};        ///< by rank, Device::interference; may be empty: 1
  std::vector<Seconds> collective_starts = {};  ///< by rank, Device::collective_start; may be empty: 0
};

/// What lies between ranks. Refers to `rates`, which must outlive it.
EndNetwork network_between_ranks(const PlayerRates& rates);

/// The computations of a rank in one period.
struct PlayedRank {
  Seconds begin;  ///< of the first one; 0 if there is none
  Seconds end;    ///< of the last one
  Seconds busy;   ///< sum of their durations

  Seconds window() const { return end - begin; }
};

/// One period as played.
struct PlayedPeriod {
  Seconds end;                    ///< of its last instruction on any rank, since the begin of the first period
  Seconds step_time;              ///< since the end of the period before
  std::vector<PlayedRank> ranks;  ///< by rank

  /// The largest window of a rank.
  Seconds window() const;
};

struct PlayedProgram {
  std::vector<PlayedPeriod> periods;
  /// The most memory that each rank holds at once, by rank and tier, over all periods.
  std::vector<std::array<Bytes, tier_count>> peak_memory;
};

/// Receives each instruction as it is played: when it begins, of a transfer when it is ready, and when it ends. Those
/// of a lane come in their order.
using PlayedSink = std::function<void(const Turn& turn, Seconds begin, Seconds end)>;

/// Most instructions of a period that `play_program` accepts.
inline constexpr std::uint64_t most_played_instructions = std::uint64_t{1} << 22;

/// Computes when each instruction of a program begins and ends, as the simulator plays it if no other job uses the
/// links and no two lanes of a rank share a device. Plays any program, `periods` times.
///
/// - A computation begins when its lane is free and its waits are over. It takes its time. On a device, it is
/// `interference` times slower while a collective of its rank is under way.
/// - A transfer is ready when both ends have reached it and their waits are over. Both lanes then reach their next
///   instruction. Message k, ready at r_k, arrives at A_k = max(r_k + latency, A_{k-1}) + data, which ends both
///   instructions (docs/costs.md). Sizes are not rounded to whole bytes.
/// - A collective begins when all ends have reached it and their waits are over. Its rounds follow each other
///   (rounds_of), and end with their last flows (collective_time). Then all ends complete it and reach their next
///   instruction.
/// - Data of transfers and collectives share the links that they meet at (SharedFlows). `data` is their time alone.
/// - A lane goes from its last instruction of a period to the first of the next one as within a period, unless another
///   lane of its rank has not ended the period before.
/// - A copy or disk access begins when its lane is free and its waits are over, and takes its lane's CopyRate. So do
///   updates in lanes of engine Host, at the machine's two rates. Copies share links with each other and with all else
///   that flows, reads and writes share their disk (Disk), and updates of more ranks than the machine has cores share
///   these in equal parts.
/// - Memory is acquired at the begin of an instruction (of a transfer: when it is ready) and released at its end. At
///   equal times an instruction comes after those that it waits for, so that what they release is free. The simulator
///   does the same: each activity that ends releases its memory before those that it lets begin acquire theirs.
///
/// A program with updates at two rates is played again until the computations that slow them down no longer change, but
/// for rounding: mostly a few times, and never more often than it has instructions.
///
/// What contends with others (contention_of) is followed in the order of time: when nothing else can continue, the flow
/// or update that ends first does. What has not begun by then begins no earlier.
///
/// With interference, the computation that ends first is the next one: what has not begun by then waits for one that
/// ends no earlier, so all collectives that slow it down are known. That takes O(instructions x ranks).
///
/// O(instructions) time, and O(n log n) for the n instructions with memory of a rank that has several lanes of such
/// instructions. Memory of two periods of instructions, and of as many more as waits look back. Deterministic.
/// @throws InputError for a program that deadlocks, with the lanes that wait for each other, and for one with more than
/// most_played_instructions. Throws std::logic_error for a program in which an instruction does not fit its lane
/// (program_checker.hpp).
PlayedProgram play_program(const Program& program, const PlayerRates& rates, std::uint64_t periods = 1,
                           const PlayedSink& sink = {});

}  // namespace isobar
