#include "core/program/machine_use.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace isobar {

namespace {

/// What delays a copy besides its latency.
Seconds delay_of(const Instruction& copy, const MachineRates& machine)
{
  const bool is_slow =
      copy.opcode == Opcode::Load && copy.payload == Payload::Parameter && copy.pass == Opcode::Backward;
  return is_slow ? machine.backward_delay : Seconds(0);
}

const CopyRate& rate_of(Opcode opcode, const MachineRates& machine)
{
  switch (opcode) {
    case Opcode::Load:
      return machine.in;
    case Opcode::Store:
      return machine.out;
    case Opcode::Read:
      return machine.read;
    default:
      ensure(opcode == Opcode::Write, "an instruction in a lane of others");
      return machine.write;
  }
}

/// The part of an update that is done in a second while the devices of its machine compute.
double busy_rate_of(const MachineRates& machine)
{
  ensure(machine.update_speed.value > 0 && machine.busy_update_speed.value > 0, "a machine that updates has a rate");
  return machine.busy_update_speed / machine.update_speed;
}

}  // namespace

bool are_equal(const BusyTimes& some, const BusyTimes& others)
{
  return std::equal(some.begin(), some.end(), others.begin(), others.end(),
                    [](const auto& a, const auto& b) { return a.first == b.first && are_equal(a.second, b.second); });
}

bool has_two_update_rates(const PlayerRates& rates)
{
  return std::any_of(rates.machines.begin(), rates.machines.end(),
                     [](const MachineRates& rank) { return rank.update_speed != rank.busy_update_speed; });
}

bool uses_host(const Program& program)
{
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    const auto& lanes = program.lanes(rank);
    if (std::any_of(lanes.begin(), lanes.end(), [](const Lane& lane) { return lane.engine == Engine::Host; })) {
      return true;
    }
  }
  return false;
}

const MachineRates& MachineUse::machine_of(const Turn& turn) const
{
  ensure(turn.at.rank < rates_.machines.size(), "a rank that uses a machine needs its rates");
  return rates_.machines[turn.at.rank];
}

/// In which updates are slower.
const std::vector<Interval>& MachineUse::busy_times_of(const MachineRates& machine) const
{
  static const std::vector<Interval> never_busy;
  const auto found = busy_.find(machine.machine);
  const bool is_slowed = found != busy_.end() && machine.update_speed != machine.busy_update_speed;
  return is_slowed ? found->second : never_busy;
}

double MachineUse::time_alone(const Turn& turn, Engine engine, double begin) const
{
  const MachineRates& machine = machine_of(turn);
  const Instruction& instruction = turn.instruction;
  if (!is_computation(instruction.opcode)) {
    return (rate_of(instruction.opcode, machine).time_of(instruction.size) + delay_of(instruction, machine)).value;
  }
  ensure(engine == Engine::Host, "an instruction in a lane of others");
  if (instruction.time.value <= 0) return 0;
  return duration_of(instruction.time.value, begin, busy_rate_of(machine), busy_times_of(machine));
}

SharedUpdates& MachineUse::updates_on(const MachineRates& machine)
{
  return updates_.try_emplace(machine.machine, busy_rate_of(machine), machine.cores, busy_times_of(machine))
      .first->second;
}

/// What an engine of a rank shares with others. Reads and writes of a disk share the larger of their rates.
std::vector<SharedLink> MachineUse::links_of(const MachineRates& machine, Engine engine)
{
  if (engine == Engine::CopyIn) return machine.in_links;
  if (engine == Engine::CopyOut) return machine.out_links;
  auto& names = disks_[machine.machine];
  if (names.empty()) {
    // No link of a platform has such a name.
    for (const char* use : {"", "read", "write"}) names.push_back(fmt::format("\ndisk {} {}", machine.machine, use));
  }
  const CopyRate& own = engine == Engine::DiskRead ? machine.read : machine.write;
  return {{names[0], std::max(machine.read.bandwidth, machine.write.bandwidth)},
          {names[engine == Engine::DiskRead ? 1 : 2], own.bandwidth}};
}

void MachineUse::begin(const Turn& turn, Engine engine, double begin, std::size_t owner, SharedFlows& flows)
{
  const MachineRates& machine = machine_of(turn);
  const Instruction& instruction = turn.instruction;
  if (engine == Engine::Host) return updates_on(machine).begin(owner, begin, instruction.time.value);
  const auto [way, is_new] = ways_.try_emplace({turn.at.rank, engine}, 0);
  if (is_new) way->second = flows.way_over(links_of(machine, engine));
  const CopyRate& rate = rate_of(instruction.opcode, machine);
  flows.begin(owner, way->second, begin + (rate.latency + delay_of(instruction, machine)).value, instruction.size.value,
              rate.bandwidth.value, weight_of_flow(rate.latency));
}

double MachineUse::next() const
{
  double time = std::numeric_limits<double>::infinity();
  for (const auto& [machine, updates] : updates_) time = std::min(time, updates.next());
  return time;
}

const std::vector<std::size_t>& MachineUse::advance()
{
  const auto first = std::min_element(updates_.begin(), updates_.end(),
                                      [](const auto& a, const auto& b) { return a.second.next() < b.second.next(); });
  const auto& ended = first->second.advance();
  now_ = first->second.now();
  return ended;
}

}  // namespace isobar
