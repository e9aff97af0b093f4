#pragma once

#include "core/outer/outer.hpp"
#include "core/program/program.hpp"
#include "core/units.hpp"
#include "schedules/rounds/round_program.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace isobar::schedules {

/// Where the steps of a worker's round begin and end, and what lies between them. A place is a number of steps that are
/// played one by one; runs of others are one computation.
class Timeline {
 public:
  struct Pause {
    std::uint64_t place = 0;
    std::uint64_t steps = 0;  ///< that are one computation
  };
  /// Where the update of a fragment is taken.
  struct Merge {
    std::uint64_t place = 0;
    std::uint16_t periods_back = 0;  ///< of its snapshot
  };

  /// `in_one`: of the steps between snapshots and updates all but the first `steps_by_step` are one computation.
  Timeline(const Outer& outer, std::uint64_t steps, bool in_one);

  static constexpr std::uint64_t steps_by_step = 6;

  std::uint64_t played() const { return played_; }
  const std::vector<Pause>& pauses() const { return pauses_; }
  const std::vector<std::uint64_t>& snapshots() const { return snapshots_; }  ///< places, by fragment
  const std::vector<Merge>& merges() const { return merges_; }                ///< by fragment

 private:
  std::uint64_t played_ = 0;
  std::vector<Pause> pauses_;
  std::vector<std::uint64_t> snapshots_;
  std::vector<Merge> merges_;
};

/// An instruction between two steps of a compute lane.
struct Insert {
  std::uint64_t place = 0;
  Instruction instruction;
};

/// The instructions of a rank that no step has.
struct OuterInstructions {
  std::map<LaneId, std::vector<Instruction>> lanes;
  std::vector<Insert> inserts;  ///< of the compute lane, by place
  Bytes resident;
};

/// The outer work of a rank of a round, once it is filled in.
struct OuterWork {
  struct Piece {
    std::vector<std::uint64_t> values;  ///< by fragment
    std::size_t gather = 0;             ///< OuterPiece::gathers of the rank's worker
    LaneId lane = 0;                    ///< in which it is synced
  };
  struct Gather {
    std::size_t number = 0;  ///< in OuterDivision::gathers
    LaneId lane = 0;
    std::vector<bool> has_values;  ///< by fragment: of any of its ranks
  };

  OuterWork(Timeline of_worker, const Codec& of_outer) : timeline(std::move(of_worker)), codec(of_outer) {}

  Timeline timeline;
  Codec codec;
  OuterRank costs = {};
  std::optional<Seconds> step_time = {};
  std::vector<std::uint64_t> step_lengths = {};  ///< by lane of the step
  std::vector<LaneId> host_lanes = {};           ///< lanes of the step that update on the machine
  std::vector<Piece> pieces = {};
  std::vector<Gather> gathers = {};
  std::optional<LaneId> encode_lane = {};  ///< on the machine
  std::optional<LaneId> update_lane = {};

  /// That outer state is in: every device has a machine, whether the platform describes it or not.
  static constexpr Tier tier = Tier::Host;
  OuterInstructions instructions() const;
};

}  // namespace isobar::schedules
