#include "sim/play/simulation.hpp"

#include "core/base/interrupt.hpp"
#include "core/errors.hpp"
#include "sim/platform/simgrid_compat.hpp"
#include "sim/play/simulation_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <exception>
#include <limits>
#include <map>
#include <unordered_map>
#include <utility>

namespace isobar::sim {

namespace {

constexpr Seconds first_slice{1};
constexpr Seconds week{7 * 24 * 3600.0};
constexpr Seconds longest_run{1e15};  // a double's clock is no finer than 0.1 s beyond
constexpr double patience = 1000;     // times the nominal duration of what is under way
// SimGrid 3.32 takes no notice of a speed or bandwidth of 0 (measured: an Exec went on as before), so a resource that
// stands still keeps this rate (flop/s, byte/s): hardly above SimGrid's precision of 1e-5, nothing within a week.
constexpr double standstill_rate = 1e-4;

/// A state machine per rank and lane, driven by SimGrid: by the ends of activities, and by timers where messages are on
/// their way.
class Simulation {
 public:
  Simulation(const Platform& platform, const Program& program, const std::vector<RankHost>& ranks,
             std::uint64_t iterations, TraceSink* sink)
      : platform_(&platform), program_(&program), iterations_(iterations), sink_(sink)
  {
    ensure(ranks.size() == program.ranks(), "a simulation needs a host for each rank");
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      RankState state;
      state.host = engine_->host_by_name_or_null(ranks[rank].host);
      if (state.host == nullptr) throw fault(fmt::format("there is no host {}", ranks[rank].host));
      state.host_is_on = state.host->is_on();
      state.speed = ranks[rank].speed;
      state.memory = program.resident_memory(rank);
      for (const Lane lane : all_lanes) {
        state.lane(lane).rank = rank;
        state.lane(lane).lane = lane;
        state.lane(lane).length = program.length(rank, lane);
      }
      speed_changed(*state.host);  // a profile's values at time 0 are there already
      if (state.lane(Lane::Compute).length > 0) {
        ++computing_ranks_;
        ensure(state.speed.value > 0, "a rank that computes needs a speed");
        state.host_flops_per_flop = state.host->get_speed() / state.speed.value;
      }
      ranks_.push_back(std::move(state));
    }
    on_activity_completion([this](const sg4::Activity& activity) { guarded([&] { activity_ended(activity); }); });
    sg4::Host::on_speed_change_cb([this](const sg4::Host& host) { guarded([&] { speed_changed(host); }); });
    sg4::Link::on_bandwidth_change_cb([this](const sg4::Link& link) { guarded([&] { bandwidth_changed(link); }); });
    on_host_switch([this](const sg4::Host& host) {
      for (auto& rank : ranks_) {
        if (rank.host == &host) rank.host_is_on = host.is_on();
      }
    });
    on_link_switch([this](const sg4::Link& link) { guarded([&] { link_switched(link); }); });
  }

  SimulationReport run()
  {
    const auto wall_begin = std::chrono::steady_clock::now();
    last_progress_ = simulation_begin_ = now();
    guarded([&] {
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) tell_memory(rank);
      begin_step();
      start_what_can();
    });
    // In slices, because SimGrid's own run() goes on for ever where a periodic profile never lets an activity end. They
    // double, so that less time passes after the last activity than before it; one of years, in thousandths.
    Seconds slice = first_slice;
    while (!fault_ && !done_) {
      if (running_ == 0) throw std::logic_error("the program waits for itself:" + waiting_instructions(ranks_, step_));
      engine_->run_until((now() + slice).value);
      if (!done_) guarded([&] { give_up_at_standstill(); });
      const Seconds elapsed = now() - simulation_begin_;
      if (!done_ && elapsed > longest_run) guarded([&] { give_up_as_too_long(); });
      slice = std::min(2.0 * slice, std::max(week, 1e-3 * elapsed));
    }
    if (fault_) {
      remove_timers(ranks_);
      std::rethrow_exception(fault_);
    }
    report_.wall_time = Seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - wall_begin).count());
    for (const auto& link : links_) {
      report_.links.push_back({link.name, Bytes(static_cast<double>(link.bytes)), link.busy_time});
    }
    std::ranges::sort(report_.links, {}, &LinkUse::name);
    return report_;
  }

 private:
  static Seconds now() { return Seconds(sg4::Engine::get_clock()); }

  InputError fault(const std::string& what) const { return {platform_->cluster().name, what}; }

  /// Runs `work`, in or out of a callback of SimGrid's; an exception waits until SimGrid has come to rest.
  template <typename Work>
  void guarded(Work work)
  {
    if (fault_) return;
    try {
      work();
    } catch (...) {
      fault_ = std::current_exception();
    }
  }

  // --- the state machine ---------------------------------------------------------------------------------------

  void begin_step()
  {
    step_begin_ = now();
    for (auto& rank : ranks_) {
      for (auto& lane : rank.lanes) {
        lane.started = lane.completed = 0;
        if (lane.at_end()) continue;
        ++open_lanes_;
        take_turn(lane);
      }
    }
    ensure(open_lanes_ > 0, "a program without instructions");
  }

  void take_turn(LaneState& lane)
  {
    lane.turn = program_->at(lane.rank, lane.lane, lane.started);
    to_try_.push_back(&lane);
  }

  void start_what_can()
  {
    while (!to_try_.empty()) {
      LaneState& lane = *to_try_.back();
      to_try_.pop_back();
      try_to_start(lane);
    }
  }

  bool is_ready(const LaneState& lane)
  {
    return !lane.running && !lane.at_end() &&
           ranks_[lane.rank].lane(lane.turn.wait.lane).completed >= lane.turn.wait.count;
  }

  void try_to_start(LaneState& lane)
  {
    if (!is_ready(lane)) return;
    if (lane.is_all_reduce()) return join_all_reduce(lane);
    if (lane.lane == Lane::Compute) return start_compute(lane);
    LaneState& other = ranks_.at(lane.turn.peer).lane(other_end(lane.lane));
    if (!is_ready(other) || other.started != lane.turn.peer_position) return;
    ensure(other.turn.peer == lane.rank && other.turn.peer_position == lane.started && lane.rank != other.rank,
           "a send and a receive that do not name each other");
    if (lane.turn.opcode == Opcode::Send) {
      start_transfer(lane, other);
    } else {
      start_transfer(other, lane);
    }
  }

  /// Counts the lane's turn as begun.
  void begin(LaneState& lane)
  {
    ranks_[lane.rank].memory += lane.turn.acquires;
    if (lane.turn.acquires.value > 0) tell_memory(lane.rank);
    ++running_;
  }

  void begin_on_device(LaneState& lane)
  {
    begin(lane);
    lane.running = true;
    stamp(lane);
  }

  void stamp(LaneState& lane) const
  {
    lane.begin = now();
    lane.memory = ranks_[lane.rank].memory;
  }

  void start_compute(LaneState& lane)
  {
    const RankState& rank = ranks_[lane.rank];
    need_on(rank, lane, lane.turn);
    begin_on_device(lane);
    if (lane.turn.work.value <= 0) return complete(lane);
    const auto exec = sg4::Exec::init();
    exec->set_host(rank.host)->set_flops_amount(lane.turn.work.value * rank.host_flops_per_flop);
    exec->set_data(&lane);
    lane.activity = exec;
    start_activity(exec);
  }

  /// The message leaves; each lane comes to its next one at once.
  void start_transfer(LaneState& send, LaneState& receive)
  {
    for (LaneState* lane : {&send, &receive}) begin(*lane);
    receive.senders.push_back(&send);
    put_on_its_way(send, send.turn.size);
    for (LaneState* lane : {&send, &receive}) {
      if (lane->completed == lane->started) lane->first = lane->turn;
      ++lane->started;
      if (!lane->at_end()) take_turn(*lane);
    }
  }

  /// The ring starts when all have come.
  void join_all_reduce(LaneState& lane)
  {
    if (std::exchange(lane.has_joined, true)) return;
    reducing_.push_back(&lane);
    if (reducing_.size() < computing_ranks_) return;
    for (auto* part : reducing_) begin_on_device(*part);
    reduce_rounds_left_ = 2 * (computing_ranks_ - 1);
    start_reduce_round();
  }

  /// Every rank sends a part of what it has to the next; the next round needs what came.
  void start_reduce_round()
  {
    if (reduce_rounds_left_ == 0) {
      for (auto* part : std::exchange(reducing_, {})) {
        part->has_joined = false;
        complete(*part);
      }
      return;
    }
    --reduce_rounds_left_;
    reduce_parts_left_ = reducing_.size();
    for (auto* part : reducing_) put_on_its_way(*part, part->turn.size / static_cast<double>(computing_ranks_));
  }

  /// What the lane's turn sends: a latency later its data begin to arrive, one message of the lane after the other.
  void put_on_its_way(LaneState& send, Bytes size)
  {
    const Channel& path = channel(send, send.turn.peer);
    need_what_it_uses(send, send.turn, path);
    send.on_the_way.push_back({&path, now(), platform_->routes().latency_now(path.route),
                               static_cast<std::uint64_t>(std::llround(std::ceil(size.value)))});
    let_arrive(send);
  }

  /// Begins the data of the lane's next message, once it is due and nothing that comes before it is still arriving.
  void let_arrive(LaneState& send)
  {
    if (send.activity || send.on_the_way.empty()) return;
    const Message& next = send.on_the_way.front();
    if (now() < next.due()) return wait_until_due(send);
    if (send.lane != Lane::Compute && receiver(send, next).senders.front() != &send) return;
    send.arriving = next;
    send.on_the_way.pop_front();
    if (send.lane != Lane::Compute) {
      stamp(send);
      stamp(receiver(send, send.arriving));
    }
    hold_links(send.arriving);
    start_comm(send, send.arriving.bytes);
  }

  void wait_until_due(LaneState& send)
  {
    if (send.timer != nullptr) return;
    send.timer = call_at(send.on_the_way.front().due().value, [this, &send] {
      send.timer = nullptr;
      guarded([&] { let_arrive(send); });
    });
  }

  LaneState& receiver(const LaneState& send, const Message& message)
  {
    return ranks_[message.channel->to].lane(other_end(send.lane));
  }

  void end_reduce_part(LaneState& part)
  {
    release_links(part.arriving);
    if (--reduce_parts_left_ == 0) start_reduce_round();
  }

  void start_comm(LaneState& send, std::uint64_t bytes)
  {
    const Channel& path = *send.arriving.channel;
    const Route& route = path.route;
    const auto comm = sg4::Comm::sendto_init(ranks_[send.rank].host, ranks_[path.to].host);
    comm->set_payload_size(bytes);
    comm->set_data(&send);
    send.activity = comm;
    const bool is_capped = std::isfinite(route.rate_cap.value);
    send.fixed_bound = BytesPerSecond(std::numeric_limits<double>::infinity());
    if (is_capped || bound_is_fixed_at_start(route.latency.value)) {
      send.fixed_bound = std::min(narrowest_now(route), route.rate_cap);
    }
    // Neither 3.32 nor 4.1 heeds Comm::set_rate between hosts; both let no flow exceed gamma / (2 x latency).
    if (is_capped) sg4::Engine::set_config(window_option, 2 * (route.latency * route.rate_cap).value);
    start_activity(comm);
    if (is_capped) sg4::Engine::set_config(window_option, 0.0);
  }

  void activity_ended(const sg4::Activity& activity)
  {
    auto* lane = activity.get_data<LaneState>();
    if (lane == nullptr || activity.get_state() == sg4::Activity::State::CANCELED) return;
    // SimGrid still uses the activity after this callback; that of the callback before is free to go.
    ended_.reset();
    if (lane->activity.get() != &activity) {
      const auto cancelled = std::find(cancelled_.begin(), cancelled_.end(), &activity);
      ensure(cancelled != cancelled_.end(), "an activity ended that nobody started");
      ended_ = std::move(*cancelled);
      cancelled_.erase(cancelled);
      return;
    }
    ended_ = std::move(lane->activity);
    if (activity.get_state() != sg4::Activity::State::FINISHED) return blame_what_is_off(*lane);
    if (++report_.activities % 1024 == 0) throw_if_interrupted();
    if (lane->is_all_reduce()) {
      end_reduce_part(*lane);
    } else if (lane->lane == Lane::Compute) {
      complete(*lane);
    } else {
      complete_transfer(*lane);
    }
    start_what_can();
  }

  void hold_links(const Message& message)
  {
    const Seconds time = now();
    for (auto* link : message.channel->links) {
      if (link->transfers++ == 0) link->busy_since = time;
      tell_transfers(*link, time);
    }
  }

  void release_links(const Message& message)
  {
    const Seconds time = now();
    for (auto* link : message.channel->links) {
      link->bytes += message.bytes;
      if (--link->transfers == 0) link->busy_time += time - link->busy_since;
      tell_transfers(*link, time);
    }
  }

  void tell_memory(std::size_t rank) const
  {
    if (sink_ != nullptr) sink_->memory_changed(rank, now() - simulation_begin_, ranks_[rank].memory);
  }

  void tell_transfers(const LinkState& link, Seconds time) const
  {
    if (sink_ != nullptr) sink_->link_changed(link.name, time - simulation_begin_, link.transfers);
  }

  /// The last byte has arrived; it had left a latency before.
  void complete_transfer(LaneState& send)
  {
    const Message& message = send.arriving;
    release_links(message);
    LaneState& receive = receiver(send, message);
    ensure(receive.senders.front() == &send, "messages arrive in the order of their lane");
    receive.senders.pop_front();
    const Seconds began_to_leave = std::max({message.ready, send.left, send.begin - message.latency});
    const Seconds arrived = now();
    send.left = std::max(began_to_leave, arrived - message.latency);
    end(send, send.first, began_to_leave, send.left);
    end(receive, receive.first, receive.begin, arrived);
    for (LaneState* lane : {&send, &receive}) {
      if (lane->completed < lane->started) lane->first = program_->at(lane->rank, lane->lane, lane->completed);
    }
    let_arrive(send);
    if (!receive.senders.empty() && receive.senders.front() != &send) let_arrive(*receive.senders.front());
  }

  void complete(LaneState& lane)
  {
    lane.running = false;
    ++lane.started;
    end(lane, lane.turn, lane.begin, now());
  }

  /// The lane has completed an instruction, which took from `begin` to `end`.
  void end(LaneState& lane, const Instruction& instruction, Seconds begin, Seconds end)
  {
    RankState& rank = ranks_[lane.rank];
    last_progress_ = now();
    if (sink_ != nullptr) {
      sink_->record({step_, lane.rank, instruction, begin - simulation_begin_, end - simulation_begin_, lane.memory});
    }
    rank.memory -= instruction.releases;
    if (instruction.releases.value > 0) tell_memory(lane.rank);
    --running_;
    ++lane.completed;
    for (auto& waiting : rank.lanes) {
      const Wait& wait = waiting.turn.wait;
      if (wait.lane == lane.lane && wait.count == lane.completed && &waiting != &lane) to_try_.push_back(&waiting);
    }
    if (lane.completed < lane.length) {
      if (lane.lane == Lane::Compute) take_turn(lane);
      return;
    }
    if (--open_lanes_ > 0) return;
    report_.step_times.push_back(last_progress_ - step_begin_);
    if (++step_ == iterations_) {
      done_ = true;
    } else {
      begin_step();
    }
  }

  const Channel& channel(const LaneState& send, std::size_t to)
  {
    if (send.channel != nullptr && send.channel->to == to) return *send.channel;
    auto [entry, is_new] = channels_.try_emplace({send.rank, to});
    Channel& channel = entry->second;
    if (is_new) {
      const sg4::Host& source = *ranks_[send.rank].host;
      const sg4::Host& destination = *ranks_[to].host;
      channel.to = to;
      channel.route = platform_->routes().between(source, destination);
      if (channel.route.missing()) {
        throw fault(fmt::format("no route from {} to {}; every two devices that exchange data need one",
                                source.get_name(), destination.get_name()));
      }
      for (auto* link : channel.route.links) {
        auto [state, is_first] = state_of_link_.try_emplace(link, nullptr);
        if (is_first) state->second = &links_.emplace_back(*link);
        channel.links.push_back(state->second);
      }
    }
    return channel;
  }

  // --- what profiles do ----------------------------------------------------------------------------------------

  void speed_changed(const sg4::Host& host)
  {
    if (host.get_available_speed() > 0) return;
    engine_->host_by_name(host.get_name())
        ->set_sharing_policy(sg4::Host::SharingPolicy::NONLINEAR,
                             [](double speed, int) { return std::max(speed, standstill_rate); });
  }

  void bandwidth_changed(const sg4::Link& link)
  {
    if (link.get_bandwidth() > 0) return restart_what_may_go_faster(link);
    engine_->link_by_name(link.get_name())->set_bandwidth(standstill_rate);
  }

  /// SimGrid fixes the bound of some flows when they start (fixed_bound); a new flow takes what remains of them.
  void restart_what_may_go_faster(const sg4::Link& link)
  {
    const auto state = state_of_link_.find(&link);
    if (state == state_of_link_.end() || state->second->transfers == 0) return;
    for (auto& rank : ranks_) {
      for (auto& lane : rank.lanes) {
        if (!lane.activity || !lane.uses_network() || std::isinf(lane.fixed_bound.value)) continue;
        const Route& route = lane.arriving.channel->route;
        if (std::find(route.links.begin(), route.links.end(), &link) == route.links.end()) continue;
        if (lane.fixed_bound >= std::min(narrowest_now(route), route.rate_cap)) continue;
        const double remaining = std::ceil(lane.activity->get_remaining());
        cancelled_.push_back(std::move(lane.activity));
        cancelled_.back()->cancel();
        start_comm(lane, static_cast<std::uint64_t>(remaining));
      }
    }
  }

  /// SimGrid ends the flows over a link that goes off; what is still on its way is lost, too.
  void link_switched(const sg4::Link& link)
  {
    if (link.is_on()) return;
    for (const auto& rank : ranks_) {
      for (const auto& lane : rank.lanes) {
        if (has_on_the_way(lane, link)) throw off_fault("link " + link.get_name(), lane, lane.under_way());
      }
    }
  }

  InputError off_fault(const std::string& what, const LaneState& lane, const Instruction& instruction) const
  {
    return fault(fmt::format("{} is off at {:.6g} s, and {} needs it; keep on what the plan uses", what,
                             (now() - simulation_begin_).value, description(lane, instruction, step_)));
  }

  void need_on(const RankState& rank, const LaneState& lane, const Instruction& instruction) const
  {
    if (!rank.host_is_on) throw off_fault("host " + rank.host->get_name(), lane, instruction);
  }

  void need_what_it_uses(const LaneState& send, const Instruction& instruction, const Channel& path) const
  {
    need_on(ranks_[send.rank], send, instruction);
    need_on(ranks_[path.to], send, instruction);
    for (const auto* link : path.route.links) {
      if (!link->is_on()) throw off_fault("link " + link->get_name(), send, instruction);
    }
  }

  /// The fault of an activity that SimGrid let fail.
  void blame_what_is_off(const LaneState& lane) const
  {
    const Instruction& instruction = lane.under_way();
    if (lane.uses_network()) {
      need_what_it_uses(lane, instruction, *lane.arriving.channel);
    } else {
      need_on(ranks_[lane.rank], lane, instruction);
    }
    throw std::logic_error("SimGrid let fail " + description(lane, instruction, step_));
  }

  void give_up_as_too_long() const
  {
    throw fault(
        fmt::format("the simulation takes more than {:.0e} s of simulated time; check the units of speeds, "
                    "bandwidths and work, or play fewer iterations",
                    longest_run.value));
  }

  void give_up_at_standstill() const
  {
    Seconds nominal;
    for (const auto& rank : ranks_) {
      for (const auto& lane : rank.lanes) nominal += nominal_time(rank, lane);
    }
    if (now() - last_progress_ < std::max(week, patience * nominal)) return;
    for (const auto& rank : ranks_) {
      for (const auto& lane : rank.lanes) {
        if (lane.activity) throw standstill_fault(rank, lane);
      }
    }
  }

  InputError standstill_fault(const RankState& rank, const LaneState& lane) const
  {
    return fault(
        fmt::format("{} stands still: nothing has completed since {:.6g} s, and {} waits for it; let its profile rise "
                    "above 0 again",
                    what_stands_still(rank, lane), (last_progress_ - simulation_begin_).value,
                    description(lane, lane.under_way(), step_)));
  }

  const sg4::Engine* engine_ = sg4::Engine::get_instance();
  const Platform* platform_;
  const Program* program_;
  std::uint64_t iterations_;
  TraceSink* sink_;

  std::vector<RankState> ranks_;
  std::map<std::pair<std::size_t, std::size_t>, Channel> channels_;  // by rank of sender and receiver
  std::deque<LinkState> links_;
  std::unordered_map<const sg4::Link*, LinkState*> state_of_link_;

  std::size_t computing_ranks_ = 0;
  std::vector<LaneState*> reducing_;  // the compute lanes that have come to their AllReduce
  std::size_t reduce_rounds_left_ = 0;
  std::size_t reduce_parts_left_ = 0;  // of the round under way

  std::vector<LaneState*> to_try_;
  std::size_t open_lanes_ = 0;  // with instructions left in this step
  std::size_t running_ = 0;     // instructions
  std::uint64_t step_ = 0;
  bool done_ = false;
  std::exception_ptr fault_;
  Seconds simulation_begin_;
  Seconds step_begin_;
  Seconds last_progress_;
  sg4::ActivityPtr ended_;
  std::vector<sg4::ActivityPtr> cancelled_;
  SimulationReport report_;
};

}  // namespace

SimulationReport simulate(const Platform& platform, const Program& program, const std::vector<RankHost>& ranks,
                          std::uint64_t iterations, TraceSink* sink)
{
  // Never deleted: SimGrid keeps the callbacks and, after a fault, activities that it would trip over at their end.
  static Simulation* simulation = nullptr;
  ensure(simulation == nullptr, "SimGrid's clock and callbacks allow one simulation per process");
  ensure(iterations > 0, "a simulation of no iterations");
  simulation = new Simulation(platform, program, ranks, iterations, sink);
  return simulation->run();
}

}  // namespace isobar::sim
