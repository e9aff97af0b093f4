#include "sim/play/simulation.hpp"

#include "core/base/interrupt.hpp"
#include "core/errors.hpp"
#include "sim/platform/simgrid_compat.hpp"
#include "sim/play/all_reduce.hpp"
#include "sim/play/channels.hpp"
#include "sim/play/faults.hpp"
#include "sim/play/flows.hpp"
#include "sim/play/lanes.hpp"
#include "sim/play/simulation_state.hpp"
#include "sim/play/standstill.hpp"
#include "sim/play/transfers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <stdexcept>
#include <utility>

namespace isobar::sim {

namespace {

constexpr Seconds first_slice{1};
constexpr Seconds longest_run{1e15};  // beyond it a double's clock is no finer than 0.1 s

std::vector<RankState> rank_states(const Platform& platform, const Program& program, const std::vector<RankHost>& ranks)
{
  ensure(ranks.size() == program.ranks(), "a simulation needs a host for each rank");
  std::vector<RankState> states;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    RankState state;
    state.host = sg4::Engine::get_instance()->host_by_name_or_null(ranks[rank].host);
    if (state.host == nullptr) throw platform_fault(platform, fmt::format("there is no host {}", ranks[rank].host));
    state.host_is_on = state.host->is_on();
    state.speed = ranks[rank].speed;
    state.memory = program.resident_memory(rank);
    for (const Lane lane : all_lanes) {
      state.lane(lane).rank = rank;
      state.lane(lane).lane = lane;
      state.lane(lane).length = program.length(rank, lane);
    }
    hold_at_standstill(*state.host);  // a profile has set its values of time 0 already
    if (state.lane(Lane::Compute).length > 0) {
      ensure(state.speed.value > 0, "a rank that computes needs a speed");
      state.host_flops_per_flop = state.host->get_speed() / state.speed.value;
    }
    states.push_back(std::move(state));
  }
  return states;
}

/// A state machine per rank and lane. SimGrid drives it by the ends of activities, and by timers for messages whose
/// latency passes.
class Simulation {
 public:
  Simulation(const Platform& platform, const Program& program, const std::vector<RankHost>& ranks,
             std::uint64_t iterations, TraceSink* sink)
      : state_{platform, program, sink, rank_states(platform, program, ranks)}, lanes_(state_, iterations)
  {
    on_activity_completion(
        [this](const sg4::Activity& activity) { state_.guard.run([&] { activity_ended(activity); }); });
    sg4::Host::on_speed_change_cb(
        [this](const sg4::Host& host) { state_.guard.run([&] { hold_at_standstill(host); }); });
    sg4::Link::on_bandwidth_change_cb(
        [this](const sg4::Link& link) { state_.guard.run([&] { flows_.bandwidth_changed(link); }); });
    on_host_switch([this](const sg4::Host& host) {
      for (auto& rank : state_.ranks) {
        if (rank.host == &host) rank.host_is_on = host.is_on();
      }
    });
    on_link_switch([this](const sg4::Link& link) { state_.guard.run([&] { transfers_.link_switched(link); }); });
  }

  SimulationReport run()
  {
    const auto wall_begin = std::chrono::steady_clock::now();
    state_.last_progress = state_.begin = now();
    state_.guard.run([&] {
      for (std::size_t rank = 0; rank < state_.ranks.size(); ++rank) lanes_.report_memory(rank);
      lanes_.begin_step();
      start_what_can();
    });
    run_to_the_end();
    if (state_.guard.has_failed()) {
      transfers_.remove_timers();
      state_.guard.rethrow();
    }
    SimulationReport report;
    report.step_times = lanes_.step_times();
    report.links = channels_.uses();
    report.activities = activities_;
    report.wall_time = Seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - wall_begin).count());
    return report;
  }

 private:
  /// Runs the engine in slices, because SimGrid's own run() never returns where a periodic profile never lets an
  /// activity end. Slices double, so that less time passes after the last activity than before it; beyond weeks they
  /// are a thousandth of the time so far.
  void run_to_the_end()
  {
    const auto* engine = sg4::Engine::get_instance();
    Seconds slice = first_slice;
    while (!state_.guard.has_failed() && !lanes_.done()) {
      if (lanes_.running() == 0) {
        throw std::logic_error("the program deadlocks:" + waiting_instructions(state_.ranks, state_.step));
      }
      engine->run_until((now() + slice).value);
      if (!lanes_.done()) state_.guard.run([&] { give_up_at_standstill(state_); });
      const Seconds elapsed = now() - state_.begin;
      if (!lanes_.done() && elapsed > longest_run) state_.guard.run([&] { give_up_as_too_long(); });
      slice = std::min(2.0 * slice, std::max(week, 1e-3 * elapsed));
    }
  }

  void start_what_can()
  {
    while (LaneState* lane = lanes_.next_to_try()) try_to_start(*lane);
  }

  void try_to_start(LaneState& lane)
  {
    if (!lanes_.is_ready(lane)) return;
    if (lane.is_all_reduce()) return all_reduce_.join(lane);
    if (lane.lane == Lane::Compute) return start_compute(lane);
    LaneState& other = state_.ranks.at(lane.turn.peer).lane(other_end(lane.lane));
    if (!lanes_.is_ready(other) || other.started != lane.turn.peer_position) return;
    ensure(other.turn.peer == lane.rank && other.turn.peer_position == lane.started && lane.rank != other.rank,
           "a send and a receive that do not name each other");
    if (lane.turn.opcode == Opcode::Send) {
      transfers_.start(lane, other);
    } else {
      transfers_.start(other, lane);
    }
  }

  void start_compute(LaneState& lane)
  {
    const RankState& rank = state_.ranks[lane.rank];
    require_host(state_, rank, lane, lane.turn);
    lanes_.begin_on_device(lane);
    if (lane.turn.work.value <= 0) return lanes_.complete(lane);
    const auto exec = sg4::Exec::init();
    exec->set_host(rank.host)->set_flops_amount(lane.turn.work.value * rank.host_flops_per_flop);
    exec->set_data(&lane);
    lane.activity = exec;
    start_activity(exec);
  }

  void activity_ended(const sg4::Activity& activity)
  {
    auto* lane = activity.get_data<LaneState>();
    if (lane == nullptr || activity.get_state() == sg4::Activity::State::CANCELED) return;
    // SimGrid still uses the activity after this callback, but no longer that of the previous one.
    ended_.reset();
    if (lane->activity.get() != &activity) {
      ended_ = flows_.release_cancelled(activity);
      return;
    }
    ended_ = std::move(lane->activity);
    if (activity.get_state() != sg4::Activity::State::FINISHED) throw_fault_of_failed_activity(state_, *lane);
    if (++activities_ % 1024 == 0) throw_if_interrupted();
    if (lane->is_all_reduce()) {
      all_reduce_.part_arrived(*lane);
    } else if (lane->lane == Lane::Compute) {
      lanes_.complete(*lane);
    } else {
      transfers_.complete(*lane);
    }
    start_what_can();
  }

  void give_up_as_too_long() const
  {
    throw platform_fault(
        state_.platform,
        fmt::format("the simulation takes more than {:.0e} s of simulated time; check the units of speeds, "
                    "bandwidths and work, or lower --iterations",
                    longest_run.value));
  }

  SimulationState state_;
  Lanes lanes_;
  Channels channels_{state_};
  Flows flows_{state_, channels_};
  Transfers transfers_{state_, lanes_, channels_, flows_};
  AllReduce all_reduce_{state_, lanes_, channels_, transfers_};
  std::uint64_t activities_ = 0;  // completed
  sg4::ActivityPtr ended_;
};

}  // namespace

SimulationReport simulate(const Platform& platform, const Program& program, const std::vector<RankHost>& ranks,
                          std::uint64_t iterations, TraceSink* sink)
{
  // Never deleted: SimGrid keeps the callbacks and, after a fault, activities that refer to it.
  static Simulation* simulation = nullptr;
  ensure(simulation == nullptr, "SimGrid's clock and callbacks allow one simulation per process");
  ensure(iterations > 0, "a simulation of no iterations");
  simulation = new Simulation(platform, program, ranks, iterations, sink);
  return simulation->run();
}

}  // namespace isobar::sim
