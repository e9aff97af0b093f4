#pragma once

#include "tests/support/editable_program.hpp"

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace isobar::results {

/// A program given as lists of instructions. Its lanes come in the order in which they are added, not in that of its
/// channels.
class ListedProgram : public testing_support::EditableProgram {
 public:
  using EditableProgram::EditableProgram;

  LaneId add_lane(std::size_t rank, const std::string& name)
  {
    auto& own = listing[rank];
    own.lanes.push_back({name, Engine::Network, {}});
    own.instructions.emplace_back();
    return static_cast<LaneId>(own.lanes.size() - 1);
  }
  /// Connects lanes by a new channel, the sender first.
  void connect(const std::vector<End>& ends)
  {
    for (const End& end : ends) listing[end.rank].lanes[end.lane].channel = channel_list.size();
    channel_list.push_back({ends, Algorithm::Ring});
  }
  void add(std::size_t rank, LaneId lane, Opcode opcode, std::initializer_list<Wait> waits = {},
           Payload payload = Payload::Activation, std::uint32_t stage = 0)
  {
    Instruction instruction;
    instruction.opcode = opcode;
    instruction.payload = payload;
    instruction.stage = stage;
    for (const Wait& wait : waits) instruction.waits.add(wait);
    EditableProgram::add(rank, lane, instruction);
  }
};

}  // namespace isobar::results
