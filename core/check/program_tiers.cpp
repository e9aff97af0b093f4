#include "core/check/program_tiers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

namespace isobar::program_check {

namespace {

constexpr std::size_t no_lane = std::numeric_limits<std::size_t>::max();

bool is_backward(Opcode opcode)
{
  return is_pass(opcode) && opcode != Opcode::Forward;
}

}  // namespace

TierOrder::TierOrder(const Program& program, std::size_t rank)
    : program_(program), rank_(rank), noted_(program.lanes(rank).size() + 1)
{
}

void TierOrder::note(const Turn& turn, const std::vector<std::uint32_t>& begun)
{
  if (program_.lanes(rank_)[turn.at.lane].engine == Engine::Network) return;
  noted_[turn.at.lane].push_back({turn.instruction, turn.position, begun});
}

void TierOrder::add_faults(ProgramFaults& faults) const
{
  check_parameters(faults);
  check_gradients(faults);
  check_updates(faults);
  check_activations(faults);
}

/// The lane of an engine; the last, empty one if the rank has none.
std::size_t TierOrder::lane_of(Engine engine) const
{
  const auto& lanes = program_.lanes(rank_);
  const auto found = std::find_if(lanes.begin(), lanes.end(), [&](const Lane& lane) { return lane.engine == engine; });
  return static_cast<std::size_t>(found - lanes.begin());
}

bool TierOrder::follows(const Noted& later, const Noted& earlier) const
{
  return later.begun[earlier.instruction.lane] > earlier.position;
}

/// What has begun in a lane follows all of the period before; else the instruction must wait for it, or for one that
/// follows it in the same period.
bool TierOrder::follows_of_period_before(const Noted& later, const Noted& earlier) const
{
  const LaneId lane = earlier.instruction.lane;
  const Waits& waits = later.instruction.waits;
  return later.begun[lane] > 0 || std::any_of(waits.begin(), waits.end(), [&](const Wait& wait) {
           if (wait.periods_back != 1) return false;
           if (wait.lane == lane) return wait.count > earlier.position;
           return wait.count <= noted_[wait.lane].size() && follows(noted_[wait.lane][wait.count - 1], earlier);
         });
}

const TierOrder::Noted* TierOrder::find(Engine engine, Payload payload, std::uint32_t stage,
                                        std::optional<std::uint64_t> microbatch) const
{
  const auto& all = of(engine);
  const auto found = std::find_if(all.begin(), all.end(), [&](const Noted& each) {
    return each.instruction.payload == payload && each.instruction.stage == stage &&
           (!microbatch || each.instruction.microbatch == *microbatch);
  });
  return found == all.end() ? nullptr : &*found;
}

void TierOrder::add(ProgramFaults& faults, const Noted& later, const char* what) const
{
  faults.add([&] {
    const Spot spot{static_cast<std::uint32_t>(rank_), later.instruction.lane, later.position};
    return fmt::format("{}: {} of stage {} does not follow {}", text_of(program_, spot),
                       name_of(later.instruction.opcode), later.instruction.stage, what);
  });
}

void TierOrder::check_parameters(ProgramFaults& faults) const
{
  const auto& loads = of(Engine::CopyIn);
  std::set<std::uint32_t> loaded;  // stages
  std::map<std::uint32_t, std::vector<std::size_t>> loads_of_place;
  std::map<std::uint32_t, std::vector<std::size_t>> loads_of_stage;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    const Instruction& load = loads[i].instruction;
    if (load.payload != Payload::Parameter || !is_pass(load.pass)) continue;
    loaded.insert(load.stage);
    loads_of_place[load.place].push_back(i);
    loads_of_stage[load.stage].push_back(i);
  }
  std::map<std::size_t, std::vector<const Noted*>> readers;  // of each load
  for (const auto& pass : noted_[compute_lane]) {
    if (!is_pass(pass.instruction.opcode) || !loaded.contains(pass.instruction.stage)) continue;
    std::size_t serves = no_lane;
    for (const std::size_t load : loads_of_stage[pass.instruction.stage]) {
      if (follows(pass, loads[load])) serves = load;
    }
    if (serves == no_lane) {
      add(faults, pass, "the load of its parameters");
    } else {
      readers[serves].push_back(&pass);
    }
  }
  for (const auto& [place, of_place] : loads_of_place) {
    for (std::size_t i = 0; i < of_place.size(); ++i) {
      const Noted& load = loads[of_place[i]];
      const bool is_first = i == 0;
      const auto& before = readers[is_first ? of_place.back() : of_place[i - 1]];
      const bool is_free = std::all_of(before.begin(), before.end(), [&](const Noted* reader) {
        return is_first ? follows_of_period_before(load, *reader) : follows(load, *reader);
      });
      if (!is_free) add(faults, load, "the last pass that reads what is in its place");
    }
  }
}

void TierOrder::check_gradients(ProgramFaults& faults) const
{
  std::map<std::uint32_t, std::vector<const Noted*>> stores_of_place;
  for (const auto& store : of(Engine::CopyOut)) {
    if (store.instruction.payload != Payload::ParameterGradient) continue;
    const Noted* first = nullptr;
    for (const auto& pass : noted_[compute_lane]) {
      if (pass.instruction.stage != store.instruction.stage || !is_backward(pass.instruction.opcode)) continue;
      if (first == nullptr) first = &pass;
      if (!follows(store, pass)) add(faults, store, "the last backward");
    }
    stores_of_place[store.instruction.place].push_back(&store);
  }
  for (const auto& [place, stores] : stores_of_place) {
    for (std::size_t i = 0; i < stores.size(); ++i) {
      const bool is_first = i == 0;
      const Noted& before = is_first ? *stores.back() : *stores[i - 1];
      for (const auto& pass : noted_[compute_lane]) {
        if (pass.instruction.stage != stores[i]->instruction.stage || !is_backward(pass.instruction.opcode)) continue;
        const bool is_free = is_first ? follows_of_period_before(pass, before) : follows(pass, before);
        if (!is_free) add(faults, pass, "the store of the gradients that were in its place");
        break;
      }
    }
  }
}

void TierOrder::check_updates(ProgramFaults& faults) const
{
  for (const auto& update : of(Engine::Host)) {
    const std::uint32_t stage = update.instruction.stage;
    const Noted* const store = find(Engine::CopyOut, Payload::ParameterGradient, stage, {});
    if (store == nullptr) {
      add(faults, update, "a store of its gradients, of which there is none");
    } else if (!follows(update, *store) && !follows_of_period_before(update, *store)) {
      add(faults, update, "the store of its gradients");
    } else if (!follows(*store, update) && !follows_of_period_before(*store, update)) {
      add(faults, *store, "the update that reads the gradients of the period before");
    }
    for (const auto& load : of(Engine::CopyIn)) {
      if (load.instruction.payload != Payload::Parameter || load.instruction.stage != stage) continue;
      if (follows(load, update) || follows_of_period_before(load, update)) continue;
      add(faults, load, "the update of its parameters");
    }
    const Noted* const read = find(Engine::DiskRead, Payload::Optimizer, stage, {});
    if (read == nullptr) continue;
    if (!follows(update, *read)) add(faults, update, "the read of its optimizer's state");
    const Noted* const write = find(Engine::DiskWrite, Payload::Optimizer, stage, {});
    if (write == nullptr) {
      add(faults, update, "a write of its optimizer's state, of which there is none");
      continue;
    }
    if (!follows(*write, update)) add(faults, *write, "the update");
    if (!follows_of_period_before(*read, *write)) add(faults, *read, "the write of the period before");
  }
}

void TierOrder::check_activations(ProgramFaults& faults) const
{
  for (const auto& load : of(Engine::CopyIn)) {
    if (load.instruction.payload != Payload::Activation) continue;
    const std::uint32_t stage = load.instruction.stage;
    const std::uint64_t microbatch = load.instruction.microbatch;
    const Noted* const store = find(Engine::CopyOut, Payload::Activation, stage, microbatch);
    if (store == nullptr || !follows(load, *store)) {
      add(faults, load, "the store of its activations");
      continue;
    }
    for (const auto& pass : noted_[compute_lane]) {
      if (pass.instruction.stage != stage || pass.instruction.microbatch != microbatch) continue;
      if (pass.instruction.opcode == Opcode::Forward && !follows(*store, pass)) add(faults, *store, "the forward");
      const bool reads =
          pass.instruction.opcode == Opcode::Backward || pass.instruction.opcode == Opcode::BackwardInput;
      if (reads && !follows(pass, load)) add(faults, pass, "the load of its activations");
    }
  }
}

}  // namespace isobar::program_check
