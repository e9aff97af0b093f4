#include "results/trace/recorded_program.hpp"

#include "core/errors.hpp"
#include "core/program/walk.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace isobar::results {

namespace {

class RecordedProgram : public Program {
 public:
  explicit RecordedProgram(const TraceFile& trace) : lanes_(trace.lanes), channels_(trace.channels)
  {
    for (const auto& lanes : lanes_) instructions_.emplace_back(lanes.size());
    std::vector<const TraceEvent*> first_step;
    for (const auto& event : trace.events) {
      if (event.step == 0) first_step.push_back(&event);
    }
    std::stable_sort(first_step.begin(), first_step.end(),
                     [](const TraceEvent* a, const TraceEvent* b) { return a->position < b->position; });
    for (const TraceEvent* event : first_step) add(*event);
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      for (const auto& lane : instructions_[rank]) {
        for (const auto& instruction : lane) check_waits(rank, instruction);
      }
    }
    for (const auto& channel : channels_) check_ends(channel);
  }

  std::size_t ranks() const override { return lanes_.size(); }
  const std::vector<Lane>& lanes(std::size_t rank) const override { return lanes_[rank]; }
  const std::vector<Channel>& channels() const override { return channels_; }
  Bytes resident(std::size_t /*rank*/, Tier /*tier*/) const override
  {
    throw std::logic_error("a trace does not record resident memory");
  }
  std::uint64_t length(std::size_t rank, LaneId lane) const override { return instructions_[rank][lane].size(); }
  Instruction at(std::size_t rank, LaneId lane, std::uint64_t position) const override
  {
    return instructions_[rank][lane][position];
  }

 private:
  std::string name_of_lane(const End& end) const
  {
    return fmt::format("rank {}, {}", end.rank, shown(lanes_[end.rank][end.lane].name));
  }

  void add(const TraceEvent& event)
  {
    auto& lane = instructions_[event.rank][event.instruction.lane];
    if (event.position != lane.size()) {
      const End end{event.rank, event.instruction.lane};
      throw InputError(
          event.position < lane.size()
              ? fmt::format("{}: two instructions at position {} of step 0", name_of_lane(end), event.position)
              : fmt::format("{}: no instruction at position {} of step 0", name_of_lane(end), lane.size()));
    }
    lane.push_back(event.instruction);
  }

  void check_waits(std::size_t rank, const Instruction& instruction) const
  {
    for (const Wait& wait : instruction.waits) {
      if (wait.count <= length(rank, wait.lane)) continue;
      throw InputError(fmt::format("{} waits for {} instructions of {}; there are {}",
                                   description_of(rank, instruction), wait.count, shown(lanes_[rank][wait.lane].name),
                                   length(rank, wait.lane)));
    }
  }

  void check_ends(const Channel& channel) const
  {
    for (const End& end : channel.ends) {
      const End& first = channel.ends.front();
      const std::uint64_t expected = length(first.rank, first.lane);
      const std::uint64_t found = length(end.rank, end.lane);
      if (found != expected) {
        throw InputError(fmt::format("{}: {} instructions in step 0; {} at the other end, {}", name_of_lane(end), found,
                                     expected, name_of_lane(first)));
      }
      for (std::uint64_t position = 0; position < found; ++position) {
        const Opcode opcode = at(end.rank, end.lane, position).opcode;
        const Opcode there = at(first.rank, first.lane, position).opcode;
        if (opcode == there || is_transfer(opcode)) continue;
        throw InputError(fmt::format("{}: {} at position {}; {} at the other end, {}", name_of_lane(end),
                                     name_of(opcode), position, name_of(there), name_of_lane(first)));
      }
    }
  }

  std::vector<std::vector<Lane>> lanes_;
  std::vector<Channel> channels_;
  std::vector<std::vector<std::vector<Instruction>>> instructions_;  // by rank and lane
};

/// Only asks whether a walk comes to its end.
class NoVisitor : public WalkVisitor {
 public:
  void execute(const Turn& /*turn*/) override {}
  bool meet(std::size_t /*channel*/, std::span<const Turn* const> /*turns*/) override { return true; }
};

}  // namespace

std::unique_ptr<const Program> recorded_program(const TraceFile& trace)
{
  try {
    auto program = std::make_unique<const RecordedProgram>(trace);
    NoVisitor visitor;
    if (const auto deadlock = ProgramWalk(*program).run(1, visitor)) throw InputError(*deadlock);
    return program;
  } catch (const InputError& fault) {
    throw InputError(trace.name, fault.what());
  }
}

}  // namespace isobar::results
