#pragma once

#include "core/program/program.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace isobar {

/// One computation of a rank: a Forward, Backward, BackwardInput or BackwardWeight of one of its parts.
struct Task {
  Opcode opcode = Opcode::Forward;
  std::uint32_t part = 0;  ///< index among the rank's stages
  std::uint64_t microbatch = 0;

  bool operator==(const Task&) const = default;
};

/// As files write it: "F0.3" is the forward of micro-batch 3 through part 0; B, I and W are Backward, BackwardInput and
/// BackwardWeight.
std::string name_of(const Task& task);

/// A task of a loop: repetition j works on micro-batch first.microbatch + j * stride.
struct Slot {
  Task first;
  std::int64_t stride = 1;
  /// A forward that runs together with the backward in the slots after it, whole or in halves, layer by layer.
  bool overlaps = false;

  bool operator==(const Slot&) const = default;
};

/// A loop: all slots, `times` times.
struct Run {
  std::uint64_t times = 1;
  std::vector<Slot> slots;

  bool operator==(const Run&) const = default;
};

/// The order in which a rank computes, as loops. Looked up both ways in O(log slots); takes O(slots) memory, however
/// many micro-batches there are. Immutable.
///
/// 1F1B with W warm-up forwards is three runs: W x [F0+], (M-W) x [F(W)+, B0+], W x [B(M-W)+].
class Order {
 public:
  Order() = default;
  /// Runs without repetitions or slots are dropped. O(slots log slots) time; slots of one opcode and part whose runs
  /// have different strides, other than a single repetition, are compared in pairs.
  /// @throws InputError for a task that occurs twice, with its positions, and for a micro-batch below 0 or beyond 2^63.
  explicit Order(std::vector<Run> runs);

  /// The number of tasks.
  std::uint64_t length() const { return length_; }
  /// The task at `position` (0..length-1).
  Task at(std::uint64_t position) const;
  bool contains(const Task& task) const;
  /// The position of a task. @throws std::logic_error for a task that is not in the order.
  std::uint64_t position_of(const Task& task) const;
  /// How many tasks of the same opcode and part come before it: its place in a channel.
  std::uint64_t index_of(const Task& task) const;
  /// The task of this opcode and part with that index.
  Task nth(Opcode opcode, std::uint32_t part, std::uint64_t index) const;
  /// How many tasks of this opcode and part there are.
  std::uint64_t count(Opcode opcode, std::uint32_t part) const;

  /// The largest sum of `change` over the first tasks of the order, at least 0. `change` may depend on opcode and part
  /// only. A task's change counts from its start if it is positive and after its end if it is negative. O(slots).
  Bytes peak(const std::function<Bytes(const Task&)>& change) const;

  const std::vector<Run>& runs() const { return runs_; }
  bool operator==(const Order& other) const { return runs_ == other.runs_; }

 private:
  /// The micro-batches of one slot: from `lowest` to `highest` in steps of `stride`, which is 0 if there is one.
  struct Progression {
    std::uint64_t stride = 0;
    std::uint64_t lowest = 0;
    std::uint64_t highest = 0;
    std::size_t run = 0;
    std::size_t slot = 0;

    std::uint64_t residue() const { return stride == 0 ? 0 : lowest % stride; }
  };
  /// The tasks of one opcode and part.
  struct Track {
    /// Those of one run.
    struct Block {
      std::size_t run = 0;
      std::uint64_t index = 0;     ///< of the first among the tasks of the track
      std::size_t first_slot = 0;  ///< where its slots begin in `slots`
    };
    std::vector<Block> blocks;       // in the order of the runs
    std::vector<std::size_t> slots;  // of all blocks
    std::uint64_t count = 0;
    std::vector<Progression> progressions;  // by stride, residue and lowest micro-batch; disjoint
    std::vector<std::uint64_t> strides;     // all that progressions have, ascending

    std::size_t slots_of(std::size_t block) const;
  };

  void add_run(std::size_t run);
  std::uint64_t position_in(const Progression& progression, std::uint64_t microbatch) const;
  const Track* find_track(Opcode opcode, std::uint32_t part) const;
  static const Progression* find(const Track& track, std::uint64_t microbatch);
  static const Progression* find(const Track& track, std::uint64_t stride, std::uint64_t microbatch);
  void check_for_duplicates(Opcode opcode, std::uint32_t part, const Track& track) const;

  std::vector<Run> runs_;
  std::vector<std::uint64_t> begin_;  // position of the first task of each run
  std::uint64_t length_ = 0;
  std::map<std::pair<Opcode, std::uint32_t>, Track> tracks_;
};

}  // namespace isobar
