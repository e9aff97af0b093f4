#include "allocators/mix/cluster_schedule.hpp"

#include "allocators/mix/gangs.hpp"
#include "core/base/interrupt.hpp"
#include "core/errors.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

namespace isobar::allocators {

namespace {

constexpr Seconds never(std::numeric_limits<double>::infinity());

struct State {
  double steps_left = 0;
  Seconds held;       // time on its devices
  Seconds cost_left;  // of a start
  Seconds round;      // in which it does a step
  Seconds end;        // predicted
  Seconds waits_since;
  std::size_t queue = 0;          // of Tiresias
  bool has_entered_queue = true;  // since the last decision
  bool runs = false;
  bool ended = false;
  std::vector<std::size_t> nodes;  // that it ran on last
};

JobStepTimes scaled(JobStepTimes step, double factor)
{
  step.alone *= factor;
  for (Seconds& part : step.busy) part *= factor;
  return step;
}

class Player {
 public:
  Player(const std::vector<Job>& jobs, const std::vector<std::size_t>& nodes, const ScheduleRules& rules,
         const OnDecision& on_decision)
      : jobs_(jobs), nodes_(nodes), rules_(rules), on_decision_(on_decision), states_(jobs.size())
  {
    devices_ = std::accumulate(nodes.begin(), nodes.end(), std::size_t{0});
    run_.jobs.resize(jobs.size());
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      ensure(fault_of_gang(jobs[i].devices, nodes).empty(), "a job that never fits");
      ensure(i == 0 || jobs[i - 1].arrival <= jobs[i].arrival, "jobs that are not sorted by arrival");
      steps_.push_back(scaled(jobs[i].step, rules.step_factor));
      states_[i].steps_left = jobs[i].steps;
    }
  }

  ClusterRun play()
  {
    while (arrived_ < jobs_.size() || !active_.empty()) {
      throw_if_interrupted();
      advance_to(next_event());
      while (arrived_ < jobs_.size() && jobs_[arrived_].arrival <= now_) {
        states_[arrived_].waits_since = jobs_[arrived_].arrival;
        active_.push_back(arrived_++);
        is_due_ = true;
      }
      if (is_due_ && may_decide()) decide();
      predict_ends();
    }
    return std::move(run_);
  }

 private:
  bool orders_by_service() const
  {
    return rules_.policy == Policy::Tiresias || (shares_devices(rules_.policy) && rules_.groups_by_service);
  }

  /// The attained device-seconds at which a job leaves its queue.
  double end_of_queue(std::size_t i) const
  {
    if (!orders_by_service() || states_[i].queue == std::size(service_queues)) return never.value;
    return service_queues[states_[i].queue];
  }

  /// When a running job leaves its queue if nothing else happens before.
  Seconds change_of_queue(std::size_t i) const
  {
    const double held = end_of_queue(i) / static_cast<double>(jobs_[i].devices);
    const Seconds change =
        now_ + (Seconds(rules_.semantics == Semantics::Published ? std::ceil(held) : held) - states_[i].held);
    return std::max(change, Seconds(std::nextafter(now_.value, never.value)));  // so that time passes
  }

  Seconds next_event() const
  {
    Seconds next = arrived_ < jobs_.size() ? jobs_[arrived_].arrival : never;
    for (const auto& holding : holdings_) {
      for (const std::size_t i : holding.jobs) {
        next = std::min({next, states_[i].end, change_of_queue(i)});
      }
    }
    if (rules_.round && is_due_) {
      next = std::min(next, std::max(now_, std::ceil(now_ / *rules_.round) * *rules_.round));
    }
    ensure(next < never, "no job can start");
    return next;
  }

  bool may_decide() const
  {
    if (!rules_.round) return true;
    const Seconds nearest = std::round(now_ / *rules_.round) * *rules_.round;
    return std::abs((now_ - nearest).value) <= 1e-12 * now_.value;
  }

  void advance_to(Seconds time)
  {
    const Seconds passed = time - now_;
    now_ = time;
    for (auto& holding : holdings_) {
      if (!holding.jobs.empty()) run_.device_time += passed * static_cast<double>(holding.devices.size());
      for (const std::size_t i : holding.jobs) progress(i, passed);
      std::erase_if(holding.jobs, [this](std::size_t i) { return states_[i].ended; });
    }
    std::erase_if(active_, [this](std::size_t i) { return states_[i].ended; });
  }

  void progress(std::size_t i, Seconds passed)
  {
    State& state = states_[i];
    if (state.end <= now_) {
      state.ended = true;
      run_.jobs[i].end = now_;
      is_due_ = true;
      return;
    }
    state.held += passed;
    while (state.held.value * static_cast<double>(jobs_[i].devices) >= end_of_queue(i)) {
      ++state.queue;
      state.has_entered_queue = true;
      is_due_ = true;
    }
    Seconds works = passed;
    if (rules_.semantics == Semantics::Published) {
      works = std::max(passed - jobs_[i].start_cost, Seconds(0));
    } else {
      const Seconds starting = std::min(state.cost_left, passed);
      state.cost_left -= starting;
      works -= starting;
    }
    state.steps_left -= works / state.round;
  }

  /// The time at which each running job ends if nothing changes.
  void predict_ends()
  {
    for (const auto& holding : holdings_) {
      if (holding.jobs.empty()) continue;
      std::vector<JobStepTimes> steps;
      for (const std::size_t i : holding.jobs) steps.push_back(steps_[i]);
      const Seconds round = shared_round_time(steps, rules_.form);
      for (const std::size_t i : holding.jobs) {
        State& state = states_[i];
        state.round = round;
        state.end = now_ + state.steps_left * round;
        if (rules_.semantics == Semantics::Corrected) state.end += state.cost_left;
      }
    }
  }

  void decide()
  {
    is_due_ = false;
    ++run_.decisions;
    const bool preempts = rules_.policy != Policy::Fifo && rules_.policy != Policy::Backfill;
    std::vector<Holding> next;
    FreeDevices free(nodes_);
    if (preempts) {
      sort_by_policy();
    } else {
      for (auto& holding : holdings_) {
        if (holding.jobs.empty()) continue;
        free.take(holding.devices);
        next.push_back(std::move(holding));
      }
    }
    for (auto& unit : units()) {
      if (!preempts && states_[unit.front()].runs) continue;
      auto devices = free.take(jobs_[unit.front()].devices);
      if (devices) {
        next.push_back({std::move(unit), std::move(*devices)});
      } else if (rules_.policy == Policy::Fifo) {
        break;
      }
    }
    give(std::move(next), free);
  }

  template <typename Key>
  void sort_by(Key key)
  {
    std::stable_sort(active_.begin(), active_.end(), [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
  }

  void sort_by_policy()
  {
    const auto time_left = [this](std::size_t i) { return states_[i].steps_left * steps_[i].alone; };
    if (orders_by_service() && rules_.semantics == Semantics::Published) {
      // A job enters a queue at its end, though it runs and others wait there.
      sort_by([this](std::size_t i) {
        return std::tuple(states_[i].queue, states_[i].has_entered_queue, !states_[i].runs);
      });
    } else if (orders_by_service()) {
      sort_by([this](std::size_t i) { return std::tuple(states_[i].queue, !states_[i].runs, i); });
    } else if (rules_.policy == Policy::Srtf) {
      sort_by(time_left);
    } else {
      sort_by([&](std::size_t i) { return time_left(i) * static_cast<double>(jobs_[i].devices); });
    }
  }

  /// The active jobs in their order, those that may share devices together.
  std::vector<std::vector<std::size_t>> units() const
  {
    std::size_t head = 0;  // jobs that may share
    std::vector<Candidate> candidates;
    if (shares_devices(rules_.policy)) {
      for (std::size_t demand = 0; head < active_.size() && demand < rules_.largest_group * devices_; ++head) {
        const std::size_t i = active_[head];
        candidates.push_back({jobs_[i].devices, steps_[i], states_[i].steps_left});
        demand += jobs_[i].devices;
      }
    }
    const auto gain = rules_.policy == Policy::Muri ? GroupGain::Efficiency : GroupGain::TimeSaved;
    auto found = group_jobs(candidates, devices_, {gain, rules_.form, rules_.largest_group});
    for (auto& group : found) {
      for (std::size_t& i : group) i = active_[i];
    }
    for (std::size_t i = head; i < active_.size(); ++i) found.push_back({active_[i]});
    return found;
  }

  void give(std::vector<Holding> next, const FreeDevices& free)
  {
    std::vector<bool> ran(jobs_.size());
    for (const std::size_t i : active_) {
      ran[i] = states_[i].runs;
      states_[i].runs = false;
      states_[i].has_entered_queue = false;
    }
    for (const auto& holding : next) {
      std::vector<std::size_t> nodes;
      for (const std::size_t device : holding.devices) {
        if (nodes.empty() || nodes.back() != free.node_of(device)) nodes.push_back(free.node_of(device));
      }
      for (const std::size_t i : holding.jobs) {
        State& state = states_[i];
        state.runs = true;
        if (!ran[i]) end_waiting(i);
        if (!ran[i] || (rules_.charges_moves && state.nodes != nodes)) {
          state.cost_left = jobs_[i].start_cost;
          ++run_.jobs[i].starts;
          if (holding.jobs.size() > 1) ++run_.shared_starts;
        }
        state.nodes = nodes;
      }
    }
    for (const std::size_t i : active_) {
      if (ran[i] && !states_[i].runs) states_[i].waits_since = now_;
    }
    holdings_ = std::move(next);
    if (on_decision_) on_decision_(now_, holdings_);
  }

  void end_waiting(std::size_t i)
  {
    JobRun& run = run_.jobs[i];
    const Seconds waited = now_ - states_[i].waits_since;
    if (run.starts == 0) run.first_start = now_;
    run.waiting += waited;
    run.longest_wait = std::max(run.longest_wait, waited);
  }

  const std::vector<Job>& jobs_;
  const std::vector<std::size_t>& nodes_;
  const ScheduleRules& rules_;
  const OnDecision& on_decision_;
  std::size_t devices_ = 0;
  std::vector<JobStepTimes> steps_;  // in a cluster
  std::vector<State> states_;
  std::vector<std::size_t> active_;  // arrived and not ended; in the order of the policy, which ties keep
  std::vector<Holding> holdings_;    // since the last decision, without jobs that ended since
  std::size_t arrived_ = 0;
  Seconds now_;
  bool is_due_ = false;  // something changed since the last decision
  ClusterRun run_;
};

}  // namespace

const std::vector<std::string>& policy_names()
{
  static const std::vector<std::string> names = {"fifo", "backfill", "srtf", "srsf", "tiresias", "muri", "crossover"};
  return names;
}

bool shares_devices(Policy policy)
{
  return policy == Policy::Muri || policy == Policy::Crossover;
}

std::string fault_of_gang(std::size_t devices, const std::vector<std::size_t>& nodes)
{
  const std::size_t all = std::accumulate(nodes.begin(), nodes.end(), std::size_t{0});
  if (devices <= all) return "";
  return fmt::format("needs {} of {}", counted(devices, "device"), all);
}

ClusterRun schedule_jobs(const std::vector<Job>& jobs, const std::vector<std::size_t>& nodes,
                         const ScheduleRules& rules, const OnDecision& on_decision)
{
  return Player(jobs, nodes, rules, on_decision).play();
}

}  // namespace isobar::allocators
