#include "exec/rank/pass_places.hpp"

#include "core/errors.hpp"

#include <algorithm>
#include <utility>

namespace isobar::exec {

namespace {

bool is_backward(const Instruction& instruction)
{
  return instruction.opcode == Opcode::Backward || instruction.opcode == Opcode::BackwardInput ||
         instruction.opcode == Opcode::BackwardWeight;
}

bool is_of_pass(const Instruction& load)
{
  return load.payload == Payload::Parameter && load.pass != Opcode::Update;
}

}  // namespace

std::optional<LaneId> lane_of(const Program& program, std::size_t rank, Engine engine)
{
  const auto& lanes = program.lanes(rank);
  const auto found = std::find_if(lanes.begin(), lanes.end(), [&](const Lane& lane) { return lane.engine == engine; });
  if (found == lanes.end()) return std::nullopt;
  return static_cast<LaneId>(found - lanes.begin());
}

PassPlaces::PassPlaces(const Program& program, std::size_t rank)
{
  struct Load {
    std::uint64_t position = 0;
    std::size_t place = 0;
  };
  std::map<std::uint32_t, std::vector<Load>> loads;  // of parameters, by stage
  const auto copy_in = lane_of(program, rank, Engine::CopyIn);
  for (std::uint64_t position = 0; copy_in && position < program.length(rank, *copy_in); ++position) {
    const Instruction load = program.at(rank, *copy_in, position);
    if (!is_of_pass(load)) continue;
    loads[load.stage].push_back({position, load.place});
    for (const Wait& wait : load.waits) {
      if (wait.lane == compute_lane) freed_after_[wait.count - 1].push_back(load.place);
    }
  }
  std::map<std::uint32_t, std::size_t> now;  // the place of a stage's parameters
  for (std::uint64_t position = 0; position < program.length(rank, compute_lane); ++position) {
    const Instruction pass = program.at(rank, compute_lane, position);
    if (is_backward(pass)) {
      const auto [found, is_first] = backwards_.emplace(pass.stage, Backwards{position, position});
      found->second.last = position;
    }
    const auto of_stage = loads.find(pass.stage);
    if (of_stage == loads.end() || pass.opcode == Opcode::Update) {
      of_parameters_.push_back(std::nullopt);
      continue;
    }
    for (const Wait& wait : pass.waits) {
      if (wait.lane != *copy_in || wait.periods_back > 0) continue;
      for (const Load& load : of_stage->second) {
        if (load.position < wait.count) now[pass.stage] = load.place;
      }
    }
    of_parameters_.push_back(now.at(pass.stage));
  }
  const auto copy_out = lane_of(program, rank, Engine::CopyOut);
  for (std::uint64_t position = 0; copy_out && position < program.length(rank, *copy_out); ++position) {
    const Instruction store = program.at(rank, *copy_out, position);
    if (store.payload == Payload::ParameterGradient) of_gradients_[store.stage] = store.place;
  }
}

std::optional<std::size_t> PassPlaces::of_parameters(std::uint64_t position) const
{
  return of_parameters_.at(position);
}

std::size_t PassPlaces::of_stored_parameters(const Instruction& store) const
{
  for (const Wait& wait : store.waits) {
    if (wait.lane == compute_lane) return of_parameters(wait.count - 1).value();
  }
  throw std::logic_error("a store of parameters follows a pass");
}

const std::vector<std::size_t>& PassPlaces::freed_after(std::uint64_t position) const
{
  static const std::vector<std::size_t> none;
  const auto found = freed_after_.find(position);
  return found == freed_after_.end() ? none : found->second;
}

bool PassPlaces::begins_backwards(const Instruction& pass, std::uint64_t position) const
{
  return is_backward(pass) && backwards_.at(pass.stage).first == position;
}

bool PassPlaces::ends_backwards(const Instruction& pass, std::uint64_t position) const
{
  return is_backward(pass) && backwards_.at(pass.stage).last == position;
}

}  // namespace isobar::exec
