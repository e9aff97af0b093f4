#pragma once

#include "core/program/program.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace isobar::testing_support {

/// The lanes of a rank and their instructions, both by LaneId.
struct RankListing {
  std::vector<Lane> lanes = {{"compute", Engine::Device, {}}};
  std::vector<std::vector<Instruction>> instructions = {{}};
  std::array<Bytes, tier_count> resident{};
};

/// A program given as lists. Every part may be changed, also so that the program is wrong.
class EditableProgram : public Program {
 public:
  /// Ranks with an empty compute lane each.
  explicit EditableProgram(std::size_t ranks) : listing(ranks) {}
  /// The instructions of another program.
  explicit EditableProgram(const Program& program)
      : listing(program.ranks()),
        channel_list(program.channels()),
        grid_list(program.grids()),
        tied(program.tied_stages()),
        sums_loss(program.sums_loss_with_gradients())
  {
    for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
      RankListing& own = listing[rank];
      own.lanes = program.lanes(rank);
      own.instructions.resize(own.lanes.size());
      for (std::size_t tier = 0; tier < tier_count; ++tier) {
        own.resident[tier] = program.resident(rank, static_cast<Tier>(tier));
      }
      for (LaneId lane = 0; lane < own.lanes.size(); ++lane) {
        for (std::uint64_t k = 0; k < program.length(rank, lane); ++k) {
          own.instructions[lane].push_back(program.at(rank, lane, k));
        }
      }
    }
  }

  /// Adds a network lane of that name to each rank, and a channel over these lanes in this order.
  /// @returns the index of the channel.
  std::size_t connect(const std::vector<std::pair<std::size_t, std::string>>& lanes,
                      Algorithm algorithm = Algorithm::Ring)
  {
    Channel channel;
    channel.algorithm = algorithm;
    for (const auto& [rank, name] : lanes) {
      RankListing& own = listing.at(rank);
      channel.ends.push_back({rank, static_cast<LaneId>(own.lanes.size())});
      own.lanes.push_back({name, Engine::Network, channel_list.size()});
      own.instructions.emplace_back();
    }
    channel_list.push_back(std::move(channel));
    return channel_list.size() - 1;
  }
  Instruction& add(std::size_t rank, LaneId lane, Instruction instruction)
  {
    instruction.lane = lane;
    auto& list = listing.at(rank).instructions.at(lane);
    list.push_back(instruction);
    return list.back();
  }
  /// Adds a computation of the stage with the rank's number to the compute lane.
  Instruction& compute(std::size_t rank, Opcode opcode, std::uint64_t microbatch, double seconds = 0, Waits waits = {})
  {
    Instruction instruction;
    instruction.opcode = opcode;
    instruction.stage = static_cast<std::uint32_t>(rank);
    instruction.microbatch = microbatch;
    instruction.time = Seconds(seconds);
    instruction.waits = waits;
    return add(rank, compute_lane, instruction);
  }
  /// Adds a Send and its Recv to the ends of a channel, each of the stage with its rank's number.
  void transfer(std::size_t channel, Payload payload, std::uint64_t microbatch, double bytes, Waits of_send = {},
                Waits of_recv = {})
  {
    Instruction instruction;
    instruction.payload = payload;
    instruction.microbatch = microbatch;
    instruction.size = Bytes(bytes);
    const auto add_end = [&](const End& end, Opcode opcode, const Waits& waits) {
      instruction.opcode = opcode;
      instruction.stage = static_cast<std::uint32_t>(end.rank);
      instruction.waits = waits;
      add(end.rank, end.lane, instruction);
    };
    add_end(channel_list.at(channel).ends.at(0), Opcode::Send, of_send);
    add_end(channel_list.at(channel).ends.at(1), Opcode::Recv, of_recv);
  }
  /// Adds a collective to all ends of a channel, each of the stage with its rank's number.
  void collective(std::size_t channel, Opcode opcode, Payload payload, double bytes, Waits waits = {})
  {
    Instruction instruction;
    instruction.opcode = opcode;
    instruction.payload = payload;
    instruction.size = Bytes(bytes);
    instruction.waits = waits;
    for (const End& end : channel_list.at(channel).ends) {
      instruction.stage = static_cast<std::uint32_t>(end.rank);
      add(end.rank, end.lane, instruction);
    }
  }
  Instruction& instruction(std::size_t rank, LaneId lane, std::size_t position)
  {
    return listing.at(rank).instructions.at(lane).at(position);
  }

  std::size_t ranks() const override { return listing.size(); }
  const std::vector<Lane>& lanes(std::size_t rank) const override { return listing.at(rank).lanes; }
  const std::vector<Channel>& channels() const override { return channel_list; }
  const std::vector<std::vector<std::uint32_t>>& tied_stages() const override { return tied; }
  bool sums_loss_with_gradients() const override { return sums_loss; }
  Bytes resident(std::size_t rank, Tier tier) const override
  {
    return listing.at(rank).resident.at(static_cast<std::size_t>(tier));
  }
  std::uint64_t length(std::size_t rank, LaneId lane) const override
  {
    return listing.at(rank).instructions.at(lane).size();
  }
  Instruction at(std::size_t rank, LaneId lane, std::uint64_t position) const override
  {
    return listing.at(rank).instructions.at(lane).at(position);
  }

  const std::vector<std::vector<std::size_t>>& grids() const override { return grid_list; }

  std::vector<RankListing> listing;  // by rank
  std::vector<Channel> channel_list;
  std::vector<std::vector<std::size_t>> grid_list;
  std::vector<std::vector<std::uint32_t>> tied;
  bool sums_loss = false;
};

}  // namespace isobar::testing_support
