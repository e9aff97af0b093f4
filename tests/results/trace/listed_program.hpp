#pragma once

#include "core/program/program.hpp"

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace isobar::results {

/// A program given as lists of instructions.
class ListedProgram : public Program {
 public:
  explicit ListedProgram(std::size_t ranks) : ranks_(ranks)
  {
    for (std::size_t rank = 0; rank < ranks; ++rank) add_lane(rank, "compute", Engine::Device);
  }

  LaneId add_lane(std::size_t rank, const std::string& name, Engine engine = Engine::Network)
  {
    ranks_[rank].lanes.push_back({name, engine, {}});
    ranks_[rank].instructions.emplace_back();
    return static_cast<LaneId>(ranks_[rank].lanes.size() - 1);
  }
  /// Connects lanes by a new channel, the sender first.
  void connect(const std::vector<End>& ends)
  {
    for (const End& end : ends) ranks_[end.rank].lanes[end.lane].channel = channels_.size();
    channels_.push_back({ends, Algorithm::Ring});
  }
  void add(std::size_t rank, LaneId lane, Opcode opcode, std::initializer_list<Wait> waits = {},
           Payload payload = Payload::Activation, std::uint32_t stage = 0)
  {
    Instruction instruction;
    instruction.opcode = opcode;
    instruction.payload = payload;
    instruction.lane = lane;
    instruction.stage = stage;
    for (const Wait& wait : waits) instruction.waits.add(wait);
    ranks_[rank].instructions[lane].push_back(instruction);
  }

  std::size_t ranks() const override { return ranks_.size(); }
  const std::vector<Lane>& lanes(std::size_t rank) const override { return ranks_[rank].lanes; }
  const std::vector<Channel>& channels() const override { return channels_; }
  Bytes resident(std::size_t, Tier) const override { return Bytes(0); }
  std::uint64_t length(std::size_t rank, LaneId lane) const override { return ranks_[rank].instructions[lane].size(); }
  Instruction at(std::size_t rank, LaneId lane, std::uint64_t position) const override
  {
    return ranks_[rank].instructions[lane][position];
  }

 private:
  struct Rank {
    std::vector<Lane> lanes;
    std::vector<std::vector<Instruction>> instructions;  // by lane
  };

  std::vector<Rank> ranks_;
  std::vector<Channel> channels_;
};

}  // namespace isobar::results
