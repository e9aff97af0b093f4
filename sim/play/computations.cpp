#include "sim/play/computations.hpp"

#include "core/errors.hpp"
#include "sim/play/faults.hpp"

#include <utility>

namespace isobar::sim {

namespace {

/// SimGrid's timing precision (network_settings): it takes shorter times for none.
constexpr Seconds no_time(1e-13);

bool is_on_machine(const LaneState& lane)
{
  return lane.engine == Engine::Host;
}

sg4::Host& host_of(const RankState& rank, const LaneState& lane)
{
  return is_on_machine(lane) ? *rank.machine->host : *rank.host;
}

}  // namespace

/// The part of its full rate at which the lane computes now, if nothing else uses the host.
double Computations::rate_of(const LaneState& lane) const
{
  const RankState& rank = rank_of(lane);
  if (!is_on_machine(lane)) return rank.device->collectives > 0 ? 1 / rank.interference : 1;
  const MachineRates& rates = rank.machine_rates;
  return rank.machine->computing > 0 ? rates.busy_update_speed / rates.update_speed : 1;
}

void Computations::start(LaneState& lane)
{
  if (is_on_machine(lane)) {
    require_machine(state_, lane, lane.turn);
  } else {
    require_host(state_, lane, lane.turn);
  }
  lanes_.begin_running(lane);
  const Seconds time = lane.turn.instruction.time;
  if (time <= Seconds(0)) return lanes_.complete(lane);
  const RankState& rank = rank_of(lane);
  run(lane, time);
  if (is_on_machine(lane)) {
    rank.machine->updating.push_back(&lane);
  } else if (rank.machine != nullptr && rank.machine->computing++ == 0) {
    rates_of_machine_change(rank);
  }
}

/// Runs what is left of a computation, in seconds at its full rate.
void Computations::run(LaneState& lane, Seconds left)
{
  sg4::Host& host = host_of(rank_of(lane), lane);
  lane.rate = rate_of(lane);
  ensure(lane.rate > 0, "a machine that updates has a rate");
  const auto exec = sg4::Exec::init();
  exec->set_host(&host)->set_flops_amount((left / lane.rate).value * host.get_speed());
  exec->set_data(static_cast<ActivityOwner*>(&lane));
  lane.activity = exec;
  start_activity(exec);
}

void Computations::complete(LaneState& lane)
{
  const RankState& rank = rank_of(lane);
  if (is_on_machine(lane)) {
    std::erase(rank.machine->updating, &lane);
  } else if (rank.machine != nullptr && --rank.machine->computing == 0) {
    rates_of_machine_change(rank);
  }
  lanes_.complete(lane);
}

void Computations::collective_begins(const RankState& rank)
{
  if (rank.device->collectives++ == 0) rates_of_device_change(*rank.device);
}

void Computations::collective_ends(const RankState& rank)
{
  if (--rank.device->collectives == 0) rates_of_device_change(*rank.device);
}

void Computations::rates_of_machine_change(const RankState& rank)
{
  for (LaneState* lane : rank.machine->updating) rate_changes(*lane);
}

void Computations::rates_of_device_change(const DeviceState& device)
{
  for (RankState* rank : device.ranks) {
    LaneState& lane = rank->lanes[compute_lane];
    if (rank->interference > 1 && lane.activity) rate_changes(lane);
  }
}

void Computations::rate_changes(LaneState& lane)
{
  changed_.push_back(&lane);
  if (timer_ != nullptr) return;
  // SimGrid ends activities one after the other and does not say what remains of one that is still to be ended. It runs
  // timers after them, before its clock advances.
  timer_ = call_at(now().value, [this] {
    timer_ = nullptr;
    state_.guard.run([&] { change_rates(); });
  });
}

void Computations::change_rates()
{
  for (LaneState* lane : changed_) {
    if (!lane->activity || lane->rate == rate_of(*lane)) continue;
    const Seconds left(lane->activity->get_remaining() / host_of(rank_of(*lane), *lane).get_speed());
    if (left <= no_time) continue;
    lane->activity->suspend();  // a cancelled Exec would keep its share of the host until another one ends
    state_.cancelled.cancel(std::move(lane->activity));
    run(*lane, left * lane->rate);
  }
  changed_.clear();
}

void Computations::remove_timer()
{
  if (timer_ != nullptr) std::exchange(timer_, nullptr)->remove();
}

}  // namespace isobar::sim
