#include "sim/play/simulation.hpp"

#include "core/base/interrupt.hpp"
#include "core/errors.hpp"
#include "sim/platform/simgrid_compat.hpp"
#include "sim/play/collectives.hpp"
#include "sim/play/computations.hpp"
#include "sim/play/copies.hpp"
#include "sim/play/device_turns.hpp"
#include "sim/play/faults.hpp"
#include "sim/play/lanes.hpp"
#include "sim/play/link_turns.hpp"
#include "sim/play/links.hpp"
#include "sim/play/simulation_state.hpp"
#include "sim/play/standstill.hpp"
#include "sim/play/streams.hpp"
#include "sim/play/transfers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <stdexcept>
#include <unordered_map>
#include <utility>

namespace isobar::sim {

namespace {

constexpr Seconds first_slice{1};
constexpr Seconds longest_run{1e15};  // beyond it a double's clock is no finer than 0.1 s

std::vector<LaneState> lane_states(JobState& job, std::size_t rank)
{
  const Program& program = *job.program;
  std::vector<LaneState> states(program.lanes(rank).size());
  for (std::size_t lane = 0; lane < states.size(); ++lane) {
    states[lane].job = &job;
    states[lane].rank = rank;
    states[lane].id = static_cast<LaneId>(lane);
    states[lane].engine = program.lanes(rank)[lane].engine;
    states[lane].length = program.length(rank, states[lane].id);
    states[lane].keeps_step = program.lanes(rank)[lane].keeps_step;
  }
  return states;
}

/// Lets the two ends of each channel of two know each other.
void connect(JobState& job)
{
  for (const auto& channel : job.program->channels()) {
    if (channel.ends.size() != 2) continue;
    const auto lane_of = [&](const End& end) { return &job.ranks.at(end.rank).lanes.at(end.lane); };
    lane_of(channel.ends[0])->other_end = lane_of(channel.ends[1]);
    lane_of(channel.ends[1])->other_end = lane_of(channel.ends[0]);
  }
}

sg4::Host* host_named(const Platform& platform, const std::string& name)
{
  auto* host = sg4::Engine::get_instance()->host_by_name_or_null(name);
  if (host == nullptr) throw platform_fault(platform, fmt::format("there is no host {}", name));
  hold_at_standstill(*host);  // a profile has set its values of time 0 already
  return host;
}

/// The state of a machine, which the ranks in it share.
MachineState* machine_state(SimulationState& state, const RankMachine& machine)
{
  for (auto& known : state.machines) {
    if (known.host->get_name() == machine.host) return &known;
  }
  MachineState& added = state.machines.emplace_back();
  added.host = host_named(state.platform, machine.host);
  for (auto* disk : added.host->get_disks()) {
    if (disk->get_name() == machine.disk) added.disk = disk;
  }
  return &added;
}

/// The states of devices by host. Ranks of several jobs may share one.
using Devices = std::unordered_map<const sg4::Host*, DeviceState*>;

void add_ranks(SimulationState& simulation, JobState& job, const std::vector<RankHost>& ranks, Devices& devices)
{
  const Program& program = *job.program;
  ensure(ranks.size() == program.ranks(), "a simulation needs a host for each rank");
  auto& states = job.ranks;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    RankState state;
    state.host = host_named(simulation.platform, ranks[rank].host);
    if (const auto& machine = ranks[rank].machine) {
      state.machine = machine_state(simulation, *machine);
      state.machine_rates = machine->rates;
    }
    for (const Tier tier : {Tier::Device, Tier::Host, Tier::Disk}) {
      state.memory_of(tier) = program.resident(rank, tier);
    }
    state.lanes = lane_states(job, rank);
    state.steps = job.program->steps(rank);
    state.interference = ranks[rank].interference;
    state.collective_start = ranks[rank].collective_start;
    states.push_back(std::move(state));
  }
  for (auto& rank : states) {
    const auto [device, is_new] = devices.try_emplace(rank.host, nullptr);
    if (is_new) device->second = &simulation.devices.emplace_back();
    rank.device = device->second;
    rank.device->ranks.push_back(&rank);
  }
  connect(job);
}

void add_jobs(SimulationState& simulation, const std::vector<SimulatedJob>& jobs, const Mix& mix)
{
  ensure(!jobs.empty() && jobs.size() == mix.jobs.size(), "a mix simulates each of its jobs");
  simulation.jobs.resize(jobs.size());  // lanes refer to them
  Devices devices;
  for (std::size_t index = 0; index < jobs.size(); ++index) {
    JobState& job = simulation.jobs[index];
    ensure(jobs[index].iterations > 0, "a simulation of no iterations");
    job.index = index;
    job.name = mix.jobs[index].name;
    job.program = &jobs[index].program;
    job.sink = jobs[index].sink;
    job.iterations = jobs[index].iterations;
    job.start = mix.jobs[index].start;
    add_ranks(simulation, job, jobs[index].ranks, devices);
  }
}

/// A state machine per rank and lane. SimGrid drives it by the ends of activities, and by timers for messages whose
/// latency passes.
class Simulation {
 public:
  Simulation(const Platform& platform, const std::vector<SimulatedJob>& jobs, const Mix& mix) : state_{platform}
  {
    add_jobs(state_, jobs, mix);
    if (mix.discipline != Discipline::None) device_turns_.emplace(state_, lanes_, mix);
    if (mix.links == LinkSharing::Fifo) link_turns_.emplace();
    on_activity_completion(
        [this](const sg4::Activity& activity) { state_.guard.run([&] { activity_ended(activity); }); });
    sg4::Host::on_speed_change_cb(
        [this](const sg4::Host& host) { state_.guard.run([&] { hold_at_standstill(host); }); });
    sg4::Link::on_bandwidth_change_cb(
        [this](const sg4::Link& link) { state_.guard.run([&] { streams_.bandwidth_changed(link); }); });
    on_host_switch([this](const sg4::Host& host) { state_.guard.run([&] { copies_.machine_switched(host); }); });
    on_link_switch([this](const sg4::Link& link) { state_.guard.run([&] { streams_.link_switched(link); }); });
  }

  MixReport run()
  {
    const auto wall_begin = std::chrono::steady_clock::now();
    state_.last_progress = state_.begin = now();
    state_.guard.run([&] {
      for (auto& job : state_.jobs) starts_[job.start].jobs.push_back(&job);
      for (auto& [time, start] : starts_) begin_at(time, start);
      std::erase_if(starts_, [](const auto& entry) { return entry.second.timer == nullptr; });
    });
    run_to_the_end();
    if (state_.guard.has_failed()) {
      for (const auto& [time, start] : starts_) {
        if (start.timer != nullptr) start.timer->remove();
      }
      streams_.remove_timers();
      collectives_.remove_timers();
      computations_.remove_timer();
      state_.guard.rethrow();
    }
    MixReport report;
    for (auto& job : state_.jobs) report.step_times.push_back(std::move(job.step_times));
    report.links = links_.uses();
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
      if (lanes_.running() == 0 && starts_.empty()) {
        if (device_turns_) device_turns_->throw_if_deadlocked();
        throw std::logic_error("the program deadlocks:" + waiting_instructions(state_));
      }
      engine->run_until((now() + slice).value);
      if (!lanes_.done()) state_.guard.run([&] { give_up_at_standstill(state_); });
      const Seconds elapsed = now() - state_.begin;
      if (!lanes_.done() && elapsed > longest_run) state_.guard.run([&] { give_up_as_too_long(); });
      slice = std::min(2.0 * slice, std::max(week, 1e-3 * elapsed));
    }
  }

  /// Jobs that start at the same time, and the timer for it.
  struct Start {
    std::vector<JobState*> jobs;
    Timer* timer = nullptr;
  };

  void begin_at(Seconds time, Start& start)
  {
    if (time.value <= 0) return begin(start.jobs);
    start.timer = call_at((state_.begin + time).value, [this, time] {
      const auto node = starts_.extract(time);
      state_.guard.run([&] { begin(node.mapped().jobs); });
    });
  }

  void begin(const std::vector<JobState*>& jobs)
  {
    for (const auto* job : jobs) {
      report_resident_memory(*job);
      if (device_turns_) device_turns_->join(*job);
    }
    for (auto* job : jobs) {
      lanes_.begin_program(*job);
      start_what_can();  // before the next job asks for devices
    }
  }

  /// Tiers of which a rank holds nothing are not mentioned until it does.
  void report_resident_memory(const JobState& job)
  {
    for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
      lanes_.report_memory(job, rank, Tier::Device);
      for (const Tier tier : {Tier::Host, Tier::Disk}) {
        if (job.ranks[rank].memory_of(tier).value > 0) lanes_.report_memory(job, rank, tier);
      }
    }
  }

  void start_what_can()
  {
    while (LaneState* lane = lanes_.next_to_try()) {
      if (++tried_ % 1024 == 0) throw_if_interrupted();  // many instructions may take no time
      try_to_start(*lane);
    }
  }

  void try_to_start(LaneState& lane)
  {
    if (lane.state != TurnState::Ready) return;  // started from the other end
    const Opcode opcode = lane.turn.instruction.opcode;
    if (is_computation(opcode)) {
      if (has_device(lane)) computations_.start(lane);
      return;
    }
    if (is_copy(opcode)) return copies_.start(lane);
    if (is_transfer(opcode)) return transfers_.try_to_start(lane);
    collectives_.join(lane);
  }

  bool has_device(LaneState& lane)
  {
    const Instruction& instruction = lane.turn.instruction;
    const bool takes_turns = device_turns_ && is_on_device(instruction) && instruction.time > Seconds(0);
    return !takes_turns || device_turns_->may_compute(lane);
  }

  void activity_ended(const sg4::Activity& activity)
  {
    auto* owner = activity.get_data<ActivityOwner>();
    if (owner == nullptr || activity.get_state() == sg4::Activity::State::CANCELED) return;
    // SimGrid still uses the activity after this callback, but no longer that of the previous one.
    ended_.reset();
    if (owner->activity.get() != &activity) {
      ended_ = state_.cancelled.release(activity);
      return;
    }
    ended_ = std::move(owner->activity);
    if (activity.get_state() != sg4::Activity::State::FINISHED) throw_fault_of_failed_activity(state_, *owner);
    if (++activities_ % 1024 == 0) throw_if_interrupted();
    if (owner->is_stream) {
      complete(static_cast<Stream&>(*owner));
    } else {
      complete(static_cast<LaneState&>(*owner));
    }
    start_what_can();
  }

  void complete(LaneState& lane)
  {
    if (is_copy(lane.turn.instruction.opcode)) return lanes_.complete(lane);
    if (device_turns_ && is_on_device(lane.turn.instruction)) device_turns_->computed(lane);
    computations_.complete(lane);
  }

  void complete(Stream& stream)
  {
    if (stream.receiver != nullptr) {
      transfers_.complete(stream);
    } else if (is_copy(stream.sender->turn.instruction.opcode)) {
      copies_.complete(stream);
    } else {
      collectives_.complete(stream);
    }
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
  Lanes lanes_{state_};
  std::optional<DeviceTurns> device_turns_;  // under a discipline
  std::optional<LinkTurns> link_turns_;      // where links are fifo
  Links links_{state_};
  Streams streams_{state_, links_};
  Transfers transfers_{state_, lanes_, streams_, link_turns_};
  Computations computations_{state_, lanes_};
  Collectives collectives_{state_, lanes_, streams_, computations_, link_turns_, [this] { start_what_can(); }};
  Copies copies_{state_, lanes_, streams_};
  std::uint64_t activities_ = 0;     // completed
  std::uint64_t tried_ = 0;          // turns
  std::map<Seconds, Start> starts_;  // later ones
  sg4::ActivityPtr ended_;
};

}  // namespace

SimulationReport simulate(const Platform& platform, const Program& program, const std::vector<RankHost>& ranks,
                          std::uint64_t iterations, TraceSink* sink)
{
  Mix alone;
  alone.jobs.resize(1);
  alone.discipline = Discipline::None;
  alone.links = LinkSharing::Fair;
  MixReport report = simulate(platform, {{program, ranks, iterations, sink}}, alone);
  return {std::move(report.step_times.front()), std::move(report.links), report.activities, report.wall_time};
}

MixReport simulate(const Platform& platform, const std::vector<SimulatedJob>& jobs, const Mix& mix)
{
  // Never deleted: SimGrid keeps the callbacks and, after a fault, activities that refer to it.
  static Simulation* simulation = nullptr;
  ensure(simulation == nullptr, "SimGrid's clock and callbacks allow one simulation per process");
  simulation = new Simulation(platform, jobs, mix);
  return simulation->run();
}

}  // namespace isobar::sim
