#include "core/program/shared_flows.hpp"

#include <algorithm>
#include <limits>

namespace isobar {

namespace {

/// Levels that differ by less are equal.
constexpr double rounding_of_rates = 1e-12;
/// Likewise times. A difference may grow from message to message.
constexpr double rounding_of_times = 1e-15;
constexpr double no_limit = std::numeric_limits<double>::infinity();

}  // namespace

std::size_t SharedFlows::way_over(const std::vector<SharedLink>& links)
{
  auto& way = ways_.emplace_back();
  for (const SharedLink& link : links) {
    const auto [place, is_new] = number_of_link_.try_emplace(link.name, links_.size());
    if (is_new) {
      links_.emplace_back();
      links_.back().bandwidth = link.bandwidth.value;
      links_.back().is_fat_pipe = link.is_fat_pipe;
    }
    way.push_back({place->second, link.passes});
  }
  return ways_.size() - 1;
}

void SharedFlows::begin(std::size_t owner, std::size_t way, double time, double bytes, double most, double weight)
{
  std::size_t number = flows_.size();
  if (unused_.empty()) {
    flows_.emplace_back();
  } else {
    number = unused_.back();
    unused_.pop_back();
  }
  Flow& flow = flows_[number];
  flow.owner = owner;
  flow.way = way;
  flow.left = bytes;
  flow.most = most;
  flow.weight = weight;
  flow.rate = 0;
  begins_.push({std::max(time, now_), number, ++flow.version});
}

/// Drops the ends of flows whose rates have changed since.
void SharedFlows::drop_outdated()
{
  while (!ends_.empty() && flows_[ends_.top().flow].version != ends_.top().version) ends_.pop();
}

double SharedFlows::next()
{
  drop_outdated();
  const double begin = begins_.empty() ? no_limit : begins_.top().time;
  return ends_.empty() ? begin : std::min(begin, ends_.top().time);
}

const std::vector<SharedFlows::End>& SharedFlows::advance()
{
  ended_.clear();
  changed_.clear();
  now_ = next();
  const double limit = now_ * (1 + rounding_of_times);
  for (; !ends_.empty() && ends_.top().time <= limit; drop_outdated()) {
    const Event end = ends_.top();
    ends_.pop();
    finish(end.flow, end.time);
  }
  while (!begins_.empty() && begins_.top().time <= limit) {
    const Event begin = begins_.top();
    begins_.pop();
    start(begin.flow);
  }
  const std::uint64_t first_visit = visit_;
  for (const std::size_t flow : changed_) {
    if (flows_[flow].visit > first_visit || !flows_[flow].is_under_way) continue;
    ++visit_;
    join_dependents(flow);
    share();
  }
  return ended_;
}

void SharedFlows::start(std::size_t number)
{
  Flow& flow = flows_[number];
  flow.since = now_;
  if (flow.left <= 0) {
    ended_.push_back({flow.owner, now_});
    unused_.push_back(number);
    return;
  }
  flow.is_under_way = true;
  for (const Load& load : ways_[flow.way]) {
    Link& link = links_[load.link];
    link.flows.push_back(number);
    link.most += load.passes * flow.most;
    link.is_contended = is_contended(link);
  }
  changed_.push_back(number);
}

void SharedFlows::finish(std::size_t number, double time)
{
  Flow& flow = flows_[number];
  ended_.push_back({flow.owner, time});
  for (const Load& load : ways_[flow.way]) {
    Link& link = links_[load.link];
    link.flows.erase(std::find(link.flows.begin(), link.flows.end(), number));
    link.most = link.flows.empty() ? 0 : link.most - load.passes * flow.most;
    if (!link.is_contended) continue;
    changed_.insert(changed_.end(), link.flows.begin(), link.flows.end());
    link.is_contended = is_contended(link);
  }
  ++flow.version;
  flow.is_under_way = false;
  unused_.push_back(number);
}

/// Whether the flows of a link take bandwidth from each other.
bool SharedFlows::is_contended(const Link& link) const
{
  if (!link.is_fat_pipe) return link.most > link.bandwidth * (1 + rounding_of_rates);
  double least = no_limit;
  double most_that_fills = 0;
  for (const std::size_t number : link.flows) {
    const Flow& flow = flows_[number];
    least = std::min(least, flow.weight);
    if (flow.most >= link.bandwidth * (1 - rounding_of_rates)) most_that_fills = std::max(most_that_fills, flow.weight);
  }
  return least < most_that_fills * (1 - rounding_of_rates);
}

/// Collects the flows that share contended links with a flow, directly or by others.
void SharedFlows::join_dependents(std::size_t flow)
{
  dependents_.assign({flow});
  their_links_.clear();
  flows_[flow].visit = visit_;
  for (std::size_t i = 0; i < dependents_.size(); ++i) {
    for (const Load& load : ways_[flows_[dependents_[i]].way]) {
      Link& link = links_[load.link];
      if (!link.is_contended || link.visit == visit_) continue;
      link.visit = visit_;
      their_links_.push_back(load.link);
      for (const std::size_t other : link.flows) {
        if (flows_[other].visit == visit_) continue;
        flows_[other].visit = visit_;
        dependents_.push_back(other);
      }
    }
  }
}

/// Gives the flows that depend on each other their rates.
void SharedFlows::share()
{
  for (const std::size_t link : their_links_) links_[link].free = links_[link].bandwidth;
  const auto level_of = [](const Link& link) { return std::max(link.free, 0.0) / link.weight; };
  while (!dependents_.empty()) {
    weigh();
    double level = no_limit;  // the rate of a flow of weight 1 at which a link or flow is full
    for (const std::size_t link : their_links_) {
      if (links_[link].weight > 0) level = std::min(level, level_of(links_[link]));
    }
    for (const std::size_t flow : dependents_) level = std::min(level, flows_[flow].most / flows_[flow].weight);
    const double limit = level * (1 + rounding_of_rates);
    const auto is_full = [&](std::size_t number) {
      const Flow& flow = flows_[number];
      const auto& way = ways_[flow.way];
      return flow.most / flow.weight <= limit || std::any_of(way.begin(), way.end(), [&](const Load& load) {
               return links_[load.link].is_contended && level_of(links_[load.link]) <= limit;
             });
    };
    const auto rest =
        std::stable_partition(dependents_.begin(), dependents_.end(), [&](std::size_t flow) { return !is_full(flow); });
    for (auto full = rest; full != dependents_.end(); ++full) {
      Flow& flow = flows_[*full];
      set_rate(flow, *full, std::min(flow.most, level * flow.weight));
      for (const Load& load : ways_[flow.way]) {
        Link& link = links_[load.link];
        if (!link.is_fat_pipe) link.free -= load.passes * flow.rate;
      }
    }
    dependents_.erase(rest, dependents_.end());
  }
}

/// Adds up the weights of the flows without a rate on each link.
void SharedFlows::weigh()
{
  for (const std::size_t link : their_links_) links_[link].weight = 0;
  for (const std::size_t number : dependents_) {
    const Flow& flow = flows_[number];
    for (const Load& load : ways_[flow.way]) {
      Link& link = links_[load.link];
      if (!link.is_contended) continue;
      link.weight = link.is_fat_pipe ? std::max(link.weight, flow.weight) : link.weight + load.passes * flow.weight;
    }
  }
}

void SharedFlows::set_rate(Flow& flow, std::size_t number, double rate)
{
  if (flow.rate == rate) return;
  flow.left -= (now_ - flow.since) * flow.rate;
  flow.since = now_;
  flow.rate = rate;
  // What is left of a flow that is about to end may be below 0, by rounding.
  const double end = rate > 0 ? now_ + std::max(flow.left, 0.0) / rate : no_limit;
  ends_.push({end, number, ++flow.version});
}

}  // namespace isobar
