#pragma once

#include "core/errors.hpp"
#include "core/program/player.hpp"
#include "core/program/program.hpp"
#include "core/program/trace.hpp"
#include "core/units.hpp"
#include "sim/platform/platform.hpp"
#include "sim/platform/routes.hpp"
#include "sim/platform/simgrid_compat.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <limits>
#include <string>
#include <utility>
#include <vector>

/// What the parts of a simulation share while a program is played: ranks, their lanes, and the streams between them.
namespace isobar::sim {

struct Collective;
struct JobState;
struct LaneState;
struct RankState;

struct LinkState {
  explicit LinkState(const sg4::Link& link)
      : name(link.get_name()),
        bandwidth(link.get_sharing_policy() == sg4::Link::SharingPolicy::FATPIPE
                      ? std::numeric_limits<double>::infinity()
                      : link.get_bandwidth())
  {
  }

  std::string name;
  std::uint64_t bytes = 0;
  Seconds busy_time;
  Seconds busy_since;
  std::size_t transfers = 0;  // that have data on the link
  BytesPerSecond bandwidth;   // of all transfers together, the most that it has had
  // Of LinkTurns:
  const JobState* holder = nullptr;
  std::size_t holds = 0;             // of the holder
  const JobState* wanted = nullptr;  // by which job that waits; null: several
  std::uint64_t scan = 0;            // in which `wanted` was set
};

/// The route from one host to another; looked up once.
struct Hop {
  sg4::Host* from = nullptr;
  sg4::Host* to = nullptr;
  bool is_within_host = false;  // no route; messages take no time
  Route route;
  std::vector<LinkState*> links;  // of route.links, in the same order
};

/// Data on the way from one rank to another: those of a transfer, or of all messages of a flow.
struct Message {
  Seconds ready;
  Seconds latency;  // of all its messages, as the route had it when they were ready
  std::uint64_t bytes = 0;

  /// When its first byte arrives, unless earlier messages are still arriving.
  Seconds due() const { return ready + latency; }
};

/// Messages of which no byte has arrived, in their order.
class MessageQueue {
 public:
  bool empty() const { return first_ == messages_.size(); }
  const Message& front() const { return messages_[first_]; }
  void push(const Message& message) { messages_.push_back(message); }
  void pop()
  {
    if (2 * ++first_ < messages_.size()) return;
    messages_.erase(messages_.begin(), messages_.begin() + static_cast<std::ptrdiff_t>(first_));
    first_ = 0;
  }

 private:
  std::vector<Message> messages_;
  std::size_t first_ = 0;  // at most half of them are gone
};

/// Base of what SimGrid works on: a lane that computes, reads or writes, or a stream.
struct ActivityOwner {
  explicit ActivityOwner(bool is_a_stream) : is_stream(is_a_stream) {}

  bool is_stream;
  sg4::ActivityPtr activity;
};

/// Messages from one host to another, whose data flow one after the other: those of a lane that sends, those of one
/// flow of a collective, or the copies of a lane.
struct Stream : ActivityOwner {
  Stream() : ActivityOwner(true) {}

  LaneState* sender = nullptr;
  LaneState* receiver = nullptr;  // null: a flow of a collective, or a copy
  const Hop* hop = nullptr;
  MessageQueue on_the_way;
  Message arriving;            // its data is what the activity transfers
  Timer* timer = nullptr;      // for the first of `on_the_way`
  Seconds begin;               // of the data that arrives
  Seconds left;                // when the bytes of the previous message had left
  BytesPerSecond fixed_bound;  // SimGrid lets the flow be no faster, whatever a bandwidth profile does
};

/// An instruction of a lane, and its place.
struct Turn {
  std::uint64_t period = 0;
  std::uint64_t position = 0;  // in the period
  Instruction instruction;
};

/// What the turn of a lane waits for.
enum class TurnState : std::uint8_t {
  Held,     // another lane of its rank to end the period before that
  Waiting,  // wait `waits_over` of its instruction
  Ready,    // nothing of its own rank
  Joined,   // a collective: the other ends of its channel
  Running,  // its own end
  Over      // nothing: the lane has ended its last period
};

/// A lane that waits until another has completed `count` instructions.
struct Waiter {
  std::uint64_t count = 0;
  LaneState* lane = nullptr;
};

struct LaneState : ActivityOwner {
  LaneState() : ActivityOwner(false) {}

  JobState* job = nullptr;
  std::size_t rank = 0;  // of its job
  LaneId id = compute_lane;
  Engine engine = Engine::Device;
  TurnState state = TurnState::Over;
  std::uint8_t waits_over = 0;  // waits of the turn
  std::uint64_t length = 0;     // of a period
  std::uint64_t completed = 0;  // over all periods
  bool keeps_step = true;
  std::uint64_t step = 0;      // of the turn, over all periods
  std::uint64_t step_end = 0;  // position where it ends
  std::uint64_t ended_steps = 0;
  std::uint64_t step_completed = 0;  // instructions, over all periods, at the end of the first step that has not ended
  Turn turn;                         // the next one, or the one that is running
  Turn first;                        // of a lane with transfers in transit: the first of these
  std::uint64_t in_transit = 0;
  Seconds begin;                     // of the instruction, or of the data that arrives
  Bytes memory;                      // of the rank's device, at `begin`
  std::vector<Waiter> waiters;       // the first to be woken last
  LaneState* other_end = nullptr;    // of a channel of two
  Stream* stream = nullptr;          // of a lane that has sent or copied
  double rate = 1;                   // of the full one, at which the lane computes with the host to itself
  Collective* collective = nullptr;  // of a lane that has joined one

  /// The first instruction in transit, else the turn.
  const Turn& under_way() const { return in_transit > 0 ? first : turn; }
};

/// A machine that ranks are in.
struct MachineState {
  sg4::Host* host = nullptr;
  sg4::Disk* disk = nullptr;         // null without one
  std::size_t computing = 0;         // computations under way on its devices
  std::vector<LaneState*> updating;  // lanes that run an update on it
};

/// A device that ranks of one or more jobs run on.
struct DeviceState {
  std::vector<RankState*> ranks;
  std::size_t collectives = 0;  // of them, under way
};

struct RankState {
  sg4::Host* host = nullptr;
  DeviceState* device = nullptr;
  MachineState* machine = nullptr;  // null: its device is in none
  MachineRates machine_rates;
  double interference = 1;  // how many times longer it computes beside a collective
  Seconds collective_start;
  std::array<Bytes, tier_count> memory;
  std::vector<LaneState> lanes;

  std::size_t lanes_in_use = 0;                  // that have instructions
  std::uint64_t periods_ended = 0;               // by all its lanes
  std::array<std::size_t, 2> lanes_in_period{};  // that have not ended period p, at p modulo 2, for the next two
  std::uint64_t steps = 1;                       // of a period
  std::size_t lanes_in_step_in_use = 0;          // that keep step and have instructions
  std::uint64_t steps_ended = 0;                 // by all of these
  std::array<std::size_t, 2> lanes_in_step{};    // that have not ended step s, at s modulo 2, for the next two
  std::vector<LaneState*> held;

  Bytes& memory_of(Tier tier) { return memory[static_cast<std::size_t>(tier)]; }
  Bytes memory_of(Tier tier) const { return memory[static_cast<std::size_t>(tier)]; }
};

/// A program that is played, and its periods.
struct JobState {
  std::size_t index = 0;
  std::string name;  // "" for a program that is played alone
  const Program* program = nullptr;
  TraceSink* sink = nullptr;  // may be null
  std::uint64_t iterations = 0;
  Seconds start;  // since the begin of the simulation
  std::vector<RankState> ranks;

  std::size_t ranks_in_use = 0;             // that have instructions
  std::deque<std::size_t> ranks_in_period;  // that have not ended it; from the first one that not all have ended
  Seconds last_period_end;
  std::vector<Seconds> step_times;  // of the periods that all ranks have ended
};

inline RankState& rank_of(const LaneState& lane)
{
  return lane.job->ranks[lane.rank];
}

/// Activities that were cancelled, until SimGrid drops them: it does so at the end of another one.
class CancelledActivities {
 public:
  void cancel(sg4::ActivityPtr activity)
  {
    activities_.push_back(std::move(activity));
    activities_.back()->cancel();
  }
  /// Removes an activity that SimGrid has ended. @throws std::logic_error for one that was not cancelled.
  sg4::ActivityPtr release(const sg4::Activity& activity)
  {
    const auto found = std::find(activities_.begin(), activities_.end(), &activity);
    ensure(found != activities_.end(), "an activity ended that was never started");
    sg4::ActivityPtr released = std::move(*found);
    activities_.erase(found);
    return released;
  }

 private:
  std::vector<sg4::ActivityPtr> activities_;
};

/// Keeps the first exception of a callback until SimGrid has returned, because none may propagate through SimGrid.
/// Later callbacks do nothing.
class CallbackGuard {
 public:
  bool has_failed() const { return fault_ != nullptr; }
  [[noreturn]] void rethrow() const { std::rethrow_exception(fault_); }

  template <typename Work>
  void run(Work work)
  {
    if (fault_) return;
    try {
      work();
    } catch (...) {
      fault_ = std::current_exception();
    }
  }

 private:
  std::exception_ptr fault_;
};

/// SimGrid's clock.
inline Seconds now()
{
  return Seconds(sg4::Engine::get_clock());
}

struct SimulationState {
  const Platform& platform;
  std::vector<JobState> jobs = {};
  std::deque<DeviceState> devices = {};
  std::deque<MachineState> machines = {};
  std::deque<Stream> streams = {};
  CancelledActivities cancelled = {};
  Seconds begin = {};          // of the simulation, by SimGrid's clock
  Seconds last_progress = {};  // when an instruction or a flow of a collective was last completed
  CallbackGuard guard = {};

  /// Records the time and the memory of the rank's device as those of the beginning of what the lane does.
  static void stamp(LaneState& lane)
  {
    lane.begin = now();
    lane.memory = rank_of(lane).memory_of(Tier::Device);
  }
};

}  // namespace isobar::sim
