#pragma once

#include "core/check/program_checker.hpp"
#include "core/program/program.hpp"
#include "core/program/walk.hpp"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

/// What the parts of the program checker share.
namespace isobar::program_check {

/// The faults found so far. Those beyond the shown ones are counted, not written.
class ProgramFaults {
 public:
  /// Adds the fault that `text` writes.
  template <typename Text>
  void add(Text text)
  {
    if (lines_.size() < most_program_faults) {
      lines_.push_back(text());
    } else {
      ++more_;
    }
  }
  bool empty() const { return lines_.empty(); }
  std::vector<std::string> lines() const
  {
    auto lines = lines_;
    if (more_ > 0) lines.push_back(fmt::format("and {} more", more_));
    return lines;
  }

 private:
  std::vector<std::string> lines_;
  std::uint64_t more_ = 0;
};

/// Where an instruction is.
struct Spot {
  static constexpr std::uint64_t nowhere = std::numeric_limits<std::uint64_t>::max();

  std::uint32_t rank = 0;
  LaneId lane = 0;
  std::uint64_t position = nowhere;

  bool is_set() const { return position != nowhere; }
};

/// "rank 1, lane send gradient, position 3".
inline std::string text_of(const Program& program, const Spot& spot)
{
  return place_text(spot.rank, program.lanes(spot.rank)[spot.lane], spot.position);
}

/// What a rank does with a micro-batch in a stage, the messages that it needs for it, and the collectives that make the
/// results of several ranks whole. The first four are opcodes.
enum class Kind : std::uint8_t {
  Forward,
  Backward,
  BackwardInput,
  BackwardWeight,
  ActivationRecv,
  GradientRecv,
  ActivationSum,
  GradientSum
};
inline constexpr std::size_t kinds = 8;
static_assert(static_cast<std::size_t>(Opcode::Forward) == static_cast<std::size_t>(Kind::Forward) &&
              static_cast<std::size_t>(Opcode::BackwardWeight) == static_cast<std::size_t>(Kind::BackwardWeight));

/// A micro-batch in a stage on a rank.
struct Passage {
  std::uint32_t stage = 0;
  std::uint64_t microbatch = 0;
  std::uint32_t rank = 0;
  std::optional<std::size_t> next = {};  ///< the same micro-batch and stage on another rank
  std::array<Spot, kinds> spots = {};    ///< by Kind

  const Spot& spot(Kind kind) const { return spots[static_cast<std::size_t>(kind)]; }
  /// Of what makes the gradient of the stage's input.
  const Spot& input_backward() const
  {
    return spot(Kind::Backward).is_set() ? spot(Kind::Backward) : spot(Kind::BackwardInput);
  }
};

/// Instructions of each lane of a rank up to the last of some.
class LaneCounts {
 public:
  struct Count {
    LaneId lane = 0;
    std::uint64_t count = 0;
  };

  void include(const Spot& spot)
  {
    for (auto& each : counts_) {
      if (each.lane != spot.lane) continue;
      if (each.count < spot.position + 1) each.count = spot.position + 1;
      return;
    }
    counts_.push_back({spot.lane, spot.position + 1});
  }
  bool empty() const { return counts_.empty(); }
  auto begin() const { return counts_.begin(); }
  auto end() const { return counts_.end(); }

 private:
  std::vector<Count> counts_;
};

/// A collective among the ranks of a grid for one micro-batch.
struct GridCollective {
  Spot spot;
  Opcode opcode = Opcode::AllGather;
  Payload payload = Payload::Activation;

  bool adds() const { return opcode != Opcode::AllGather; }
};

/// What a rank does for the parameters of a stage.
struct Holding {
  std::uint32_t stage = 0;
  std::uint32_t rank = 0;
  LaneCounts block_sums = {};           // collectives of a grid that add up the gradients of one micro-batch
  LaneCounts backwards = {};            // that make gradients of parameters
  LaneCounts syncs = {};                // collectives of these gradients
  std::set<std::size_t> channels = {};  // of those
  std::set<std::size_t> scatters = {};  // of those that leave the rank with a part of the sums
  Spot update = {};
  LaneCounts ties = {};                        // sums with stages that have a copy of a matrix, too
  std::set<std::size_t> tie_channels = {};     // of those
  LaneCounts gathers = {};                     // collectives of the parameters
  std::set<std::size_t> gather_channels = {};  // of those
};

/// The instructions of a program by stage, micro-batch and rank.
class Tasks {
 public:
  explicit Tasks(const Program& program)
      : backwards(program.ranks()), facts(program.ranks()), ties(program.ranks()), grid_of(program.ranks())
  {
    for (std::size_t rank = 0; rank < program.ranks(); ++rank) is_awaited.emplace_back(program.lanes(rank).size());
    for (std::size_t i = 0; i < program.grids().size(); ++i) {
      for (const std::size_t rank : program.grids()[i]) grid_of[rank] = i;
    }
  }

  /// The stages after its own whose gradients a collective adds up too, by rank, lane and position.
  std::map<std::tuple<std::uint32_t, LaneId, std::uint64_t>, std::vector<std::uint32_t>> stages_besides;

  std::vector<Passage> passages;                                 // in the order in which they were first asked for
  std::vector<Holding> holdings;                                 // likewise
  std::vector<LaneCounts> backwards;                             // by rank: of all its holdings
  std::vector<LaneCounts> facts;                                 // by rank: collectives of gradient facts
  std::vector<LaneCounts> ties;                                  // by rank: of all its holdings
  std::map<std::size_t, std::set<std::uint32_t>> stages_of_tie;  // of all ends, by channel
  std::vector<std::vector<bool>> is_awaited;                     // by rank and lane: others wait for it
  std::vector<std::optional<std::size_t>> grid_of;  // by rank: its number among the grids; none outside of one
  /// By stage: the ranks outside of grids that compute it together, if there are several, by the channels on which they
  /// meet.
  std::map<std::uint32_t, std::set<std::size_t>> meetings;

  /// Makes the passage if there is none yet.
  Passage& passage(std::uint32_t stage, std::uint64_t microbatch, std::uint32_t rank)
  {
    const auto [found, is_new] = passage_of_.try_emplace({stage, microbatch}, passages.size());
    std::optional<std::size_t> last;
    for (std::optional<std::size_t> i = found->second; !is_new && i; i = passages[*i].next) {
      if (passages[*i].rank == rank) return passages[*i];
      last = i;
    }
    if (last) passages[*last].next = passages.size();
    passages.push_back({.stage = stage, .microbatch = microbatch, .rank = rank});
    return passages.back();
  }
  /// The first of the passages of a micro-batch through a stage, on any rank.
  const Passage* find_passage(std::uint32_t stage, std::uint64_t microbatch) const
  {
    const auto found = passage_of_.find({stage, microbatch});
    return found == passage_of_.end() ? nullptr : &passages[found->second];
  }
  const Passage* next(const Passage& passage) const { return passage.next ? &passages[*passage.next] : nullptr; }
  const Passage* find_passage(std::uint32_t stage, std::uint64_t microbatch, std::size_t rank) const
  {
    const Passage* passage = find_passage(stage, microbatch);
    while (passage != nullptr && passage->rank != rank) passage = next(*passage);
    return passage;
  }
  /// The collectives among the ranks of a grid for a passage.
  const std::vector<GridCollective>& collectives_of(const Passage& passage) const
  {
    static const std::vector<GridCollective> none;
    const auto found = collectives_.find(static_cast<std::size_t>(&passage - passages.data()));
    return found == collectives_.end() ? none : found->second;
  }
  void add_collective(const Passage& passage, const GridCollective& collective)
  {
    collectives_[static_cast<std::size_t>(&passage - passages.data())].push_back(collective);
  }
  /// Messages for a passage beside the one among its spots: of several other ranks.
  const std::vector<Spot>& more_receives_of(const Passage& passage, Kind kind) const
  {
    static const std::vector<Spot> none;
    const auto found = more_receives_.find({static_cast<std::size_t>(&passage - passages.data()), kind});
    return found == more_receives_.end() ? none : found->second;
  }
  void add_receive(Passage& passage, Kind kind, const Spot& spot)
  {
    Spot& first = passage.spots[static_cast<std::size_t>(kind)];
    if (!first.is_set()) {
      first = spot;
    } else {
      more_receives_[{static_cast<std::size_t>(&passage - passages.data()), kind}].push_back(spot);
    }
  }
  /// Makes the holding if there is none yet.
  Holding& holding(std::uint32_t stage, std::uint32_t rank)
  {
    const auto [found, is_new] = holding_of_.try_emplace({stage, rank}, holdings.size());
    if (is_new) holdings.push_back({.stage = stage, .rank = rank});
    return holdings[found->second];
  }
  const Holding* find_holding(std::uint32_t stage, std::uint32_t rank) const
  {
    const auto found = holding_of_.find({stage, rank});
    return found == holding_of_.end() ? nullptr : &holdings[found->second];
  }

 private:
  struct Key {
    std::uint32_t stage = 0;
    std::uint64_t number = 0;  // micro-batch or rank

    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const
    {
      return static_cast<std::size_t>((key.number ^ (std::uint64_t{key.stage} << 40U)) * 0x9E3779B97F4A7C15U);
    }
  };

  std::unordered_map<Key, std::size_t, KeyHash> passage_of_;
  std::unordered_map<std::size_t, std::vector<GridCollective>> collectives_;  // by passage
  std::map<std::pair<std::size_t, Kind>, std::vector<Spot>> more_receives_;   // likewise
  std::unordered_map<Key, std::size_t, KeyHash> holding_of_;
};

/// Checks that every stage has all that it needs for every micro-batch, and an update.
void add_task_faults(const Program& program, ProgramUse use, const Tasks& tasks, ProgramFaults& faults);

/// Plays the program without times. Checks that it ends, that each task comes after those that it needs, and memory.
/// The program has no other faults.
std::vector<std::string> order_faults(const Program& program, const Tasks& tasks);

}  // namespace isobar::program_check
