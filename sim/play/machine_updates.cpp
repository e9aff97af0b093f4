#include "sim/play/machine_updates.hpp"

#include "core/errors.hpp"
#include "sim/play/faults.hpp"

#include <utility>

namespace isobar::sim {

namespace {

/// SimGrid's timing precision (network_settings): it takes shorter times for none.
constexpr Seconds no_time(1e-13);

/// The rate at which the lane's machine runs an update now, if it is the only one.
FlopsPerSecond update_rate(const RankState& rank)
{
  const MachineRates& rates = rank.machine_rates;
  return rank.machine->computing > 0 ? rates.busy_update_speed : rates.update_speed;
}

}  // namespace

void MachineUpdates::start(LaneState& lane)
{
  require_machine(state_, lane, lane.turn);
  lanes_.begin_running(lane);
  const Flops work = lane.turn.instruction.work;
  if (work.value <= 0) return lanes_.complete(lane);
  state_.ranks[lane.rank].machine->updating.push_back(&lane);
  run(lane, work);
}

void MachineUpdates::run(LaneState& lane, Flops work)
{
  const RankState& rank = state_.ranks[lane.rank];
  sg4::Host* host = rank.machine->host;
  lane.update_speed = update_rate(rank);
  ensure(lane.update_speed.value > 0, "a machine that updates needs a rate of updates");
  const auto exec = sg4::Exec::init();
  exec->set_host(host)->set_flops_amount((work / lane.update_speed).value * host->get_speed());
  exec->set_data(static_cast<ActivityOwner*>(&lane));
  lane.activity = exec;
  start_activity(exec);
}

void MachineUpdates::complete(LaneState& lane)
{
  std::erase(state_.ranks[lane.rank].machine->updating, &lane);
  lanes_.complete(lane);
}

void MachineUpdates::device_begins(const RankState& rank)
{
  if (rank.machine != nullptr && rank.machine->computing++ == 0) change_rates_of(*rank.machine);
}

void MachineUpdates::device_ends(const RankState& rank)
{
  if (rank.machine != nullptr && --rank.machine->computing == 0) change_rates_of(*rank.machine);
}

void MachineUpdates::change_rates_of(MachineState& machine)
{
  if (machine.updating.empty()) return;
  changed_.push_back(&machine);
  if (timer_ != nullptr) return;
  // SimGrid ends activities one after the other and does not say what remains of one that is still to be ended. It runs
  // timers after them, before its clock advances.
  timer_ = call_at(now().value, [this] {
    timer_ = nullptr;
    state_.guard.run([&] { change_rates(); });
  });
}

void MachineUpdates::change_rates()
{
  for (const auto* machine : changed_) {
    for (LaneState* lane : machine->updating) {
      if (lane->update_speed == update_rate(state_.ranks[lane->rank])) continue;
      const Seconds left(lane->activity->get_remaining() / machine->host->get_speed());
      if (left <= no_time) continue;
      lane->activity->suspend();  // a cancelled Exec would keep its share of the host until another one ends
      state_.cancelled.cancel(std::move(lane->activity));
      run(*lane, left * lane->update_speed);
    }
  }
  changed_.clear();
}

void MachineUpdates::remove_timer()
{
  if (timer_ != nullptr) std::exchange(timer_, nullptr)->remove();
}

}  // namespace isobar::sim
