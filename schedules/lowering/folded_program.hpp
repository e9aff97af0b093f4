#pragma once

#include "core/program/program.hpp"
#include "core/units.hpp"
#include "schedules/lowering/pipeline_program.hpp"
#include "schedules/lowering/places.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// The program in which some of several equal ranks act for all. Internal to schedules/lowering.
namespace isobar::schedules {

/// Which replicas and shards act: the first ones.
struct Acting {
  std::size_t replicas = 1;
  bool only_first_shard = false;
  bool merges_shards = false;     ///< what shards do for a layer is one computation, their collectives included
  bool times_exchanges = false;   ///< what replicas exchange for their passes takes its time alone, without flows
  bool ignores_meetings = false;  ///< of collectives of merged shards with other flows
};

/// What a collective without flows takes, by what it does.
using CollectiveTimes = std::map<std::pair<Opcode, double>, Seconds>;

/// The program of the ranks that act among all of a plan.
class FoldedProgram : public Program {
 public:
  /// `inner`: of the first replicas; `ranks`: those of the plan, by rank of `inner`.
  FoldedProgram(std::unique_ptr<const PipelineProgram> inner, const Ranks& ranks, const Places& places,
                const Acting& acting)
      : inner_(std::move(inner)), inner_of_(places.devices() + (ranks.size() - inner_devices(ranks, places)))
  {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const bool acts = !places.is_device(ranks[rank]) || !acting.only_first_shard || places.shard_of(ranks[rank]) == 0;
      if (acts) inner_of_[ranks[rank]] = rank;
    }
    lanes_.assign(inner_of_.size(), {{"compute", Engine::Device, {}}});
    times_.resize(inner_of_.size());
    first_update_.assign(inner_of_.size(), 0);
    for (std::size_t rank = 0; rank < inner_of_.size(); ++rank) {
      if (!inner_of_[rank]) continue;
      lanes_[rank] = inner_->lanes(*inner_of_[rank]);
      std::uint64_t& position = first_update_[rank];
      position = inner_->length(*inner_of_[rank], compute_lane);
      while (position > 0 && inner_->at(*inner_of_[rank], compute_lane, position - 1).opcode == Opcode::Update) {
        --position;
      }
    }
    extra_.assign(inner_of_.size(), Seconds(0));
    if (acting.only_first_shard) return;
    for (const auto& grid : inner_->grids()) {
      auto& own = grids_.emplace_back();
      for (const std::size_t rank : grid) own.push_back(ranks[rank]);
    }
  }

  /// Adds a channel of `inner` between ranks that act; `folded`: if those are not all ends; `times`: of collectives
  /// without flows.
  void add_channel(const Channel& channel, const Ranks& ranks, std::optional<FoldedEnds> folded,
                   std::vector<std::string> sites, const CollectiveTimes& times)
  {
    Channel& own = channels_.emplace_back();
    own.algorithm = channel.algorithm;
    own.sites = std::move(sites);
    own.folded = std::move(folded);
    for (const End& end : channel.ends) {
      if (inner_of_[ranks[end.rank]] != end.rank) continue;
      own.ends.push_back({ranks[end.rank], end.lane});
      lanes_[ranks[end.rank]][end.lane].channel = channels_.size() - 1;
      if (!times.empty()) times_[ranks[end.rank]].emplace(end.lane, times);
    }
  }
  /// Adds time to the first update of each rank that acts.
  void add_to_updates(Seconds time, const Places& places)
  {
    for (std::size_t rank = 0; rank < places.devices(); ++rank) {
      if (inner_of_[rank]) extra_[rank] = time;
    }
  }

  std::size_t ranks() const override { return lanes_.size(); }
  const std::vector<Lane>& lanes(std::size_t rank) const override
  {
    ensure(rank < ranks(), "a rank beyond the program's");
    return lanes_[rank];
  }
  const std::vector<Channel>& channels() const override { return channels_; }
  const std::vector<Ranks>& grids() const override { return grids_; }
  const std::vector<std::vector<std::uint32_t>>& tied_stages() const override { return inner_->tied_stages(); }
  Bytes resident(std::size_t rank, Tier tier) const override
  {
    const auto inner = inner_of_.at(rank);
    return inner ? inner_->resident(*inner, tier) : Bytes(0);
  }
  std::uint64_t length(std::size_t rank, LaneId lane) const override
  {
    const auto inner = inner_of_.at(rank);
    return inner ? inner_->length(*inner, lane) : 0;
  }
  Instruction at(std::size_t rank, LaneId lane, std::uint64_t position) const override
  {
    const auto inner = inner_of_.at(rank);
    ensure(inner.has_value(), "a position beyond the end of its lane");
    Instruction instruction = inner_->at(*inner, lane, position);
    // The time of their data is in the first update.
    const bool is_of_facts = is_collective(instruction.opcode) && instruction.payload == Payload::GradientFacts;
    if (is_of_facts) instruction.size = Bytes(0);
    if (const auto found = times_[rank].find(lane); found != times_[rank].end()) {
      instruction.time = found->second.at({instruction.opcode, instruction.size.value});
    }
    if (lane == compute_lane && position == first_update_[rank]) instruction.time += extra_[rank];
    return instruction;
  }

 private:
  static std::size_t inner_devices(const Ranks& ranks, const Places& places)
  {
    return static_cast<std::size_t>(
        std::count_if(ranks.begin(), ranks.end(), [&](std::size_t rank) { return places.is_device(rank); }));
  }

  std::unique_ptr<const PipelineProgram> inner_;
  std::vector<std::optional<std::size_t>> inner_of_;      // by rank; none: it does not act
  std::vector<std::vector<Lane>> lanes_;                  // by rank
  std::vector<std::uint64_t> first_update_;               // by rank: its position in the compute lane
  std::vector<Seconds> extra_;                            // by rank: of that update
  std::vector<std::map<LaneId, CollectiveTimes>> times_;  // by rank: of lanes whose collectives have no flows
  std::vector<Channel> channels_;
  std::vector<Ranks> grids_;
};

}  // namespace isobar::schedules
