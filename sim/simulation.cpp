#include "sim/simulation.hpp"

#include "core/errors.hpp"
#include "core/interrupt.hpp"
#include "sim/simgrid_compat.hpp"
#include "sim/simulation_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
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
constexpr double patience = 1000;  // times the nominal duration of what is under way
// SimGrid 3.32 takes no notice of a speed or bandwidth of 0 (measured: an Exec went on as before), so a resource that
// stands still keeps this rate (flop/s, byte/s): hardly above SimGrid's precision of 1e-5, nothing within a week.
constexpr double standstill_rate = 1e-4;

/// A state machine per rank and lane, driven by the completion of SimGrid's activities.
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
    // double, so that less time passes after the last activity than before it.
    Seconds slice = first_slice;
    while (!fault_ && !done_) {
      if (running_ == 0) throw std::logic_error("the program waits for itself:" + waiting_instructions());
      engine_->run_until((now() + slice).value);
      if (!fault_ && !done_) give_up_at_standstill();
      slice = std::min(2.0 * slice, week);
    }
    if (fault_) std::rethrow_exception(fault_);
    report_.wall_time = Seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - wall_begin).count());
    for (const auto& state : links_) {
      report_.links.push_back({state.link->get_name(), Bytes(static_cast<double>(state.bytes)), state.busy_time});
    }
    std::sort(report_.links.begin(), report_.links.end(),
              [](const LinkUse& a, const LinkUse& b) { return a.name < b.name; });
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
        lane.completed = 0;
        if (lane.at_end()) continue;
        ++open_lanes_;
        take_turn(lane);
      }
    }
    ensure(open_lanes_ > 0, "a program without instructions");
  }

  void take_turn(LaneState& lane)
  {
    lane.turn = program_->at(lane.rank, lane.lane, lane.completed);
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
    if (!is_ready(other) || other.completed != lane.turn.peer_position) return;
    ensure(other.turn.peer == lane.rank && other.turn.peer_position == lane.completed && lane.rank != other.rank,
           "a send and a receive that do not name each other");
    if (lane.turn.opcode == Opcode::Send) {
      start_transfer(lane, other);
    } else {
      start_transfer(other, lane);
    }
  }

  void begin(LaneState& lane)
  {
    RankState& rank = ranks_[lane.rank];
    rank.memory += lane.turn.acquires;
    if (lane.turn.acquires.value > 0) tell_memory(lane.rank);
    lane.running = true;
    lane.begin = now();
    lane.memory = rank.memory;
    ++running_;
  }

  void start_compute(LaneState& lane)
  {
    const RankState& rank = ranks_[lane.rank];
    need_on(*rank.host, lane);
    begin(lane);
    if (lane.turn.work.value <= 0) return complete(lane);
    const auto exec = sg4::Exec::init();
    exec->set_host(rank.host)->set_flops_amount(lane.turn.work.value * rank.host_flops_per_flop);
    exec->set_data(&lane);
    lane.activity = exec;
    start_activity(exec);
  }

  void start_transfer(LaneState& send, LaneState& receive)
  {
    send.channel = &channel(send, receive.rank);
    need_what_it_uses(send);
    begin(send);
    begin(receive);
    hold_links(send);
    start_comm(send, payload(send));
  }

  /// The ring starts when all have come.
  void join_all_reduce(LaneState& lane)
  {
    if (std::find(reducing_.begin(), reducing_.end(), &lane) != reducing_.end()) return;
    reducing_.push_back(&lane);
    if (reducing_.size() < computing_ranks_) return;
    for (auto* part : reducing_) begin(*part);
    reduce_rounds_left_ = 2 * (computing_ranks_ - 1);
    start_reduce_round();
  }

  /// Every rank sends a part of what it has to the next; the next round needs what came.
  void start_reduce_round()
  {
    if (reduce_rounds_left_ == 0) {
      for (auto* part : std::exchange(reducing_, {})) complete(*part);
      return;
    }
    --reduce_rounds_left_;
    reduce_parts_left_ = reducing_.size();
    for (auto* part : reducing_) {
      part->channel = &channel(*part, part->turn.peer);
      need_what_it_uses(*part);
      hold_links(*part);
      start_comm(*part, payload(*part));
    }
  }

  void end_reduce_part(LaneState& part)
  {
    release_links(part);
    if (--reduce_parts_left_ == 0) start_reduce_round();
  }

  /// What one transfer carries; of an AllReduce in each round.
  std::uint64_t payload(const LaneState& send) const
  {
    const double parts = send.is_all_reduce() ? static_cast<double>(computing_ranks_) : 1;
    return static_cast<std::uint64_t>(std::llround(std::ceil(send.turn.size.value / parts)));
  }

  void start_comm(LaneState& send, std::uint64_t bytes)
  {
    const Route& route = send.channel->route;
    const auto comm = sg4::Comm::sendto_init(ranks_[send.rank].host, ranks_[send.turn.peer].host);
    comm->set_payload_size(bytes);
    comm->set_data(&send);
    send.activity = comm;
    send.flow_begin = now();
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

  void hold_links(const LaneState& send)
  {
    for (auto* link : send.channel->links) {
      if (link->transfers++ == 0) link->busy_since = now();
      tell_transfers(*link);
    }
  }

  void release_links(const LaneState& send)
  {
    for (auto* link : send.channel->links) {
      link->bytes += payload(send);
      if (--link->transfers == 0) link->busy_time += now() - link->busy_since;
      tell_transfers(*link);
    }
  }

  void tell_memory(std::size_t rank) const
  {
    if (sink_ != nullptr) sink_->memory_changed(rank, now() - simulation_begin_, ranks_[rank].memory);
  }

  void tell_transfers(const LinkState& link) const
  {
    if (sink_ != nullptr) sink_->link_changed(link.link->get_name(), now() - simulation_begin_, link.transfers);
  }

  void complete_transfer(LaneState& send)
  {
    release_links(send);
    LaneState& receive = ranks_[send.turn.peer].lane(other_end(send.lane));
    complete(send);
    complete(receive);
  }

  void complete(LaneState& lane)
  {
    RankState& rank = ranks_[lane.rank];
    last_progress_ = now();
    if (sink_ != nullptr) {
      sink_->record({step_, lane.rank, lane.turn, lane.begin - simulation_begin_, last_progress_ - simulation_begin_,
                     lane.memory});
    }
    rank.memory -= lane.turn.releases;
    if (lane.turn.releases.value > 0) tell_memory(lane.rank);
    lane.running = false;
    --running_;
    ++lane.completed;
    for (auto& waiting : rank.lanes) {
      const Wait& wait = waiting.turn.wait;
      if (wait.lane == lane.lane && wait.count == lane.completed && &waiting != &lane) to_try_.push_back(&waiting);
    }
    if (!lane.at_end()) return take_turn(lane);
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
        if (is_first) state->second = &links_.emplace_back(link);
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

  /// SimGrid fixes the bound of some flows when they start (fixed_bound); a new flow takes what remains of them. Not of
  /// those that still pay their latency: they load no link, and SimGrid would leap over what begins on an idle one.
  void restart_what_may_go_faster(const sg4::Link& link)
  {
    const auto state = state_of_link_.find(&link);
    if (state == state_of_link_.end() || state->second->transfers == 0) return;
    for (auto& rank : ranks_) {
      for (const Lane which : {Lane::SendActivation, Lane::SendGradient}) {
        LaneState& send = rank.lane(which);
        if (!send.running || std::isinf(send.fixed_bound.value)) continue;
        const Route& route = send.channel->route;
        if (std::find(route.links.begin(), route.links.end(), &link) == route.links.end()) continue;
        const bool has_paid_latency = now() - send.flow_begin >= route.latency;
        if (!has_paid_latency || send.fixed_bound >= std::min(narrowest_now(route), route.rate_cap)) continue;
        const double remaining = std::ceil(send.activity->get_remaining());
        cancelled_.push_back(std::move(send.activity));
        cancelled_.back()->cancel();
        start_comm(send, static_cast<std::uint64_t>(remaining));
      }
    }
  }

  static BytesPerSecond narrowest_now(const Route& route)
  {
    double narrowest = std::numeric_limits<double>::infinity();
    for (const auto* link : route.links) narrowest = std::min(narrowest, link->get_bandwidth());
    return BytesPerSecond(narrowest);
  }

  template <typename Resource>
  void need_on(const Resource& resource, const LaneState& lane) const
  {
    if (!resource.is_on()) throw off_fault(resource, lane);
  }

  InputError off_fault(const sg4::Host& host, const LaneState& lane) const
  {
    return off_fault("host " + host.get_name(), lane);
  }
  InputError off_fault(const sg4::Link& link, const LaneState& lane) const
  {
    return off_fault("link " + link.get_name(), lane);
  }
  InputError off_fault(const std::string& what, const LaneState& lane) const
  {
    return fault(fmt::format("{} is off at {:.6g} s, and {} needs it; keep on what the plan uses", what,
                             (now() - simulation_begin_).value, description(lane)));
  }

  void need_what_it_uses(const LaneState& lane) const
  {
    need_on(*ranks_[lane.rank].host, lane);
    if (!lane.uses_network()) return;
    need_on(*ranks_[lane.turn.peer].host, lane);
    for (const auto* link : lane.channel->route.links) need_on(*link, lane);
  }

  /// The fault of an activity that SimGrid let fail.
  void blame_what_is_off(const LaneState& lane) const
  {
    need_what_it_uses(lane);
    throw std::logic_error("SimGrid let fail " + description(lane));
  }

  void give_up_at_standstill() const
  {
    Seconds nominal;
    for (const auto& rank : ranks_) {
      for (const auto& lane : rank.lanes) {
        if (lane.running) nominal += nominal_time(lane);
      }
    }
    if (now() - last_progress_ < std::max(week, patience * nominal)) return;
    for (const auto& rank : ranks_) {
      for (const auto& lane : rank.lanes) {
        if (lane.running && lane.activity) throw standstill_fault(lane);
      }
    }
  }

  /// Of an activity alone on its host or links; receives count with their sends.
  Seconds nominal_time(const LaneState& lane) const
  {
    if (!lane.uses_network()) return lane.turn.work / ranks_[lane.rank].speed;
    if (lane.turn.opcode == Opcode::Recv) return Seconds(0);
    const Route& route = lane.channel->route;
    return route.latency + lane.turn.size / std::min(route.bandwidth, route.rate_cap);
  }

  InputError standstill_fault(const LaneState& lane) const
  {
    std::string what = "host " + ranks_[lane.rank].host->get_name();
    if (lane.uses_network() && !lane.channel->route.links.empty()) {
      const auto& links = lane.channel->route.links;
      const auto has_less = [](const auto* a, const auto* b) { return a->get_bandwidth() < b->get_bandwidth(); };
      what = "link " + (*std::min_element(links.begin(), links.end(), has_less))->get_name();
    }
    return fault(
        fmt::format("{} stands still: nothing has completed since {:.6g} s, and {} waits for it; let its profile "
                    "rise above 0 again",
                    what, (last_progress_ - simulation_begin_).value, description(lane)));
  }

  // --- words ---------------------------------------------------------------------------------------------------

  std::string description(const LaneState& lane) const
  {
    const Instruction& turn = lane.turn;
    const bool is_transfer = lane.lane != Lane::Compute;
    return fmt::format(
        "{}{} (rank {}, step {})", is_transfer ? name_of(lane.lane) : name_of(turn.opcode),
        turn.opcode == Opcode::Update || lane.is_all_reduce() ? "" : fmt::format(" of micro-batch {}", turn.microbatch),
        lane.rank, step_);
  }

  std::string waiting_instructions() const
  {
    constexpr int most = 20;
    std::string text;
    int count = 0;
    for (const auto& rank : ranks_) {
      for (const auto& lane : rank.lanes) {
        if (lane.at_end() || ++count > most) continue;
        const Wait& wait = lane.turn.wait;
        const bool waits = rank.lanes[static_cast<std::size_t>(wait.lane)].completed < wait.count;
        text += fmt::format("\n  {} waits for {}", description(lane),
                            waits ? fmt::format("{} of its {}", wait.count, name_of(wait.lane))
                                  : fmt::format("rank {}", lane.turn.peer));
      }
    }
    if (count > most) text += fmt::format("\n  and {} more", count - most);
    return text;
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

std::vector<RankHost> rank_hosts(const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  std::vector<RankHost> ranks;
  for (const auto& stage : plan.stages) {
    const auto device = cluster.device_index(stage.device());
    if (!device)
      throw InputError(cluster.name,
                       fmt::format("there is no device {}; the plan is made for another platform", stage.device()));
    ranks.push_back({stage.device(), cluster.devices[*device].speed_at(workload.dtype)});
  }
  if (cluster.data_server) ranks.push_back({*cluster.data_server, FlopsPerSecond(0)});
  return ranks;
}

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
