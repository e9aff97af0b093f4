#pragma once

#include "core/program/program.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace isobar {

/// The instruction that is next in a lane.
struct Turn {
  End at;                  ///< rank and lane
  std::size_t number = 0;  ///< of the lane (see ProgramWalk::number_of)
  std::uint64_t period = 0;
  std::uint64_t position = 0;  ///< in the lane, within the period
  std::uint64_t step = 0;      ///< of all periods, of a lane that keeps step
  Instruction instruction;
};

/// "rank 1, lane send gradient, position 3". The lane's name may be a user's: it is shown on one line.
std::string place_text(std::size_t rank, const Lane& lane, std::uint64_t position);

/// The number of instructions of a period; the largest number if the lanes claim to have more.
std::uint64_t instructions_of(const Program& program);

/// What a visitor has left for later and continues now.
struct Deferred {
  bool is_meeting = false;  ///< a meeting that was under way is over; else the turn of a lane may be executed
  std::size_t number = 0;   ///< of the channel, or of the lane
};

/// What is done at each instruction of a walk.
class WalkVisitor {
 public:
  WalkVisitor() = default;
  WalkVisitor(const WalkVisitor&) = delete;
  WalkVisitor& operator=(const WalkVisitor&) = delete;
  virtual ~WalkVisitor() = default;

  /// A lane enters a period after the first.
  virtual void enter_period(const Turn& /*turn*/) {}
  /// A lane that keeps step enters a step after the first, in a program with several in a period.
  virtual void enter_step(const Turn& /*turn*/) {}
  /// The turn of a lane without a channel.
  virtual void execute(const Turn& turn) = 0;
  /// Whether the turn of a lane without a channel, which may be executed, is left for later.
  virtual bool defers(const Turn& /*turn*/) { return false; }
  /// What was left for later and continues now that nothing else can be visited. Called if there is something. Meetings
  /// of a channel end in their order.
  virtual Deferred next_deferred() { return {}; }
  /// The turns of all ends of a channel, in the channel's order. @returns whether their instructions are completed. If
  /// not, they are under way until next_deferred names the channel: lanes of transfers meanwhile reach their next
  /// turns, those of collectives do not.
  virtual bool meet(std::size_t channel, std::span<const Turn* const> turns) = 0;
};

/// Visits the instructions of a program in an order in which each comes after those that it waits for: those before it
/// in its lane, those that its waits count, and those before it at the other ends of its channel. Knows no time.
///
/// A lane enters the next period after its own part of this one, unless another lane of its rank has not ended the
/// period before. A lane that has to wait is tried again when what it waits for has been visited, so a walk takes
/// O(instructions). O(lanes) memory. Deterministic; may be used once. The program must outlive it.
class ProgramWalk {
 public:
  /// @throws std::logic_error for a lane and a channel that do not name each other.
  explicit ProgramWalk(const Program& program);
  ProgramWalk(const ProgramWalk&) = delete;
  ProgramWalk& operator=(const ProgramWalk&) = delete;
  ~ProgramWalk() = default;

  /// The number of a lane: by rank, then by lane.
  std::size_t number_of(const End& lane) const { return first_lane_[lane.rank] + lane.lane; }
  /// The number of lanes of all ranks.
  std::size_t lanes() const { return lanes_.size(); }
  /// Visits `periods` periods. @returns none, or, of a program that deadlocks, one line with the lanes that wait for
  /// each other. @throws std::logic_error for a wait for a lane that the rank does not have.
  std::optional<std::string> run(std::uint64_t periods, WalkVisitor& visitor);

 private:
  struct Waiter {
    std::size_t lane = 0;
    std::uint64_t completed = 0;  // of the lane that it waits for
  };
  struct LaneState {
    Turn turn;
    std::uint64_t length = 0;
    std::uint64_t steps = 1;     // of a period
    std::uint64_t step_end = 0;  // position where the turn's step ends
    bool keeps_step = true;
    std::optional<std::size_t> channel;
    std::uint64_t completed = 0;  // over all periods
    bool has_turn = false;        // `turn` has its instruction
    bool is_present = false;      // at its channel, where another end is missing
    std::size_t blocked_by = 0;   // the lane that it waited for last
    std::vector<Waiter> waiters;
    std::uint64_t wakes_at = std::numeric_limits<std::uint64_t>::max();  // the least that a waiter needs
  };
  struct Meeting {
    std::vector<std::size_t> lanes;  // of its ends, in the channel's order
    std::vector<const Turn*> turns;
    std::size_t present = 0;
    bool has_left = false;  // the lanes of a meeting under way have reached their next turns
  };

  bool has_ended(const LaneState& lane) const;
  bool advance(LaneState& lane);
  bool take_turn(LaneState& lane);
  bool may_enter_step(LaneState& lane);
  std::uint64_t instructions_before(const LaneState& lane, std::uint64_t step) const;
  bool reaches(LaneState& lane, LaneState& other, std::uint64_t completed);
  bool meet(LaneState& lane);
  void execute(LaneState& lane);
  void end_meeting(Meeting& meeting);
  void complete(LaneState& lane);
  void proceed(LaneState& lane);
  void count(LaneState& lane);
  void wake_waiters(LaneState& lane);
  std::size_t blocker_of(const LaneState& lane) const;
  std::string deadlock() const;

  const Program& program_;
  std::vector<LaneState> lanes_;
  std::vector<std::size_t> first_lane_;  // of each rank; then the number of all
  std::vector<Meeting> meetings_;        // by channel
  std::vector<std::size_t> awake_;       // lanes to try
  std::size_t deferred_ = 0;             // turns and meetings
  std::uint64_t periods_ = 0;
  WalkVisitor* visitor_ = nullptr;
};

/// The lanes that wait for each other in a program that deadlocks, in one line; none for one that ends.
/// O(instructions).
std::optional<std::string> deadlock_of(const Program& program);

}  // namespace isobar
