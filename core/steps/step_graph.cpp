#include "core/steps/step_graph.hpp"

#include "core/errors.hpp"

#include <algorithm>
#include <limits>

namespace isobar {

namespace {

// Relative:
constexpr double same_rate = 1e-12;
constexpr double same_time = 1e-15;
constexpr double endless = std::numeric_limits<double>::infinity();

}  // namespace

std::size_t StepGraph::add_pace(double factor, double at_once)
{
  paces_.push_back({factor, at_once, 0});
  return paces_.size() - 1;
}

std::size_t StepGraph::add_computation(double seconds, std::optional<std::size_t> pace,
                                       std::optional<std::size_t> slows)
{
  Node& node = nodes_.emplace_back();
  node.size = seconds;
  node.detail = pace ? static_cast<std::uint32_t>(*pace + 1) : 0;
  node.rounds = slows ? static_cast<std::uint32_t>(*slows + 1) : 0;
  return nodes_.size() - 1;
}

std::size_t StepGraph::add_stream(std::size_t from, std::size_t to)
{
  streams_.emplace_back();
  streams_.back().from = from;
  streams_.back().to = to;
  return streams_.size() - 1;
}

std::size_t StepGraph::add_message(std::size_t stream, double bytes)
{
  Node& node = nodes_.emplace_back();
  node.kind = Kind::Message;
  node.detail = static_cast<std::uint32_t>(stream);
  node.size = bytes;
  streams_.at(stream).messages.push_back(nodes_.size() - 1);
  return nodes_.size() - 1;
}

std::size_t StepGraph::add_way(const GraphPath& path, double delay)
{
  Path& way = ways_.emplace_back(path_over(path));
  way.latency += delay;
  return ways_.size() - 1;
}

std::size_t StepGraph::add_copy(std::size_t way, double bytes)
{
  Node& node = nodes_.emplace_back();
  node.kind = Kind::Copy;
  node.detail = static_cast<std::uint32_t>(way);
  node.size = bytes;
  return nodes_.size() - 1;
}

std::size_t StepGraph::add_group(std::vector<std::size_t> ends, double start, std::vector<std::size_t> slows)
{
  Group& group = groups_.emplace_back();
  group.ends = std::move(ends);
  group.start = start;
  group.slows = std::move(slows);
  return groups_.size() - 1;
}

std::size_t StepGraph::add_rounds(std::vector<Round> rounds)
{
  std::erase_if(rounds, [](const Round& round) { return round.empty(); });
  rounds_.push_back(std::move(rounds));
  return rounds_.size() - 1;
}

std::size_t StepGraph::add_collective(std::size_t group, std::size_t rounds)
{
  Node& node = nodes_.emplace_back();
  node.kind = Kind::Collective;
  node.detail = static_cast<std::uint32_t>(group);
  node.rounds = static_cast<std::uint32_t>(rounds);
  const std::size_t number = nodes_.size() - 1;
  if (const auto before = std::exchange(groups_.at(group).last, number)) add_wait(number, *before);
  return number;
}

void StepGraph::add_wait(std::size_t waiter, std::size_t awaited)
{
  ++nodes_.at(waiter).waits;
  waits_.emplace_back(static_cast<std::uint32_t>(awaited), static_cast<std::uint32_t>(waiter));
}

std::vector<double> StepGraph::play()
{
  ensure(nodes_.size() < std::numeric_limits<std::uint32_t>::max(), "a graph with more nodes than can be numbered");
  first_of_step_.push_back(nodes_.size());
  step_ends_.assign(first_of_step_.size(), 0);
  list_waiters();
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    if (nodes_[node].waits == 0) release(node);
  }
  while (!events_.empty()) {
    now_ = events_.front().time;
    const double limit = now_ * (1 + same_time);
    while (!events_.empty() && events_.front().time <= limit) {
      std::pop_heap(events_.begin(), events_.end(), std::greater<>());
      const Event event = events_.back();
      events_.pop_back();
      handle(event);
    }
    set_rates();
  }
  ensure(ended_ == nodes_.size(), "the parts of a step wait for each other");
  return step_ends_;
}

/// Sorts the waits by what they are for.
void StepGraph::list_waiters()
{
  first_waiter_.assign(nodes_.size() + 1, 0);
  for (const auto& [awaited, waiter] : waits_) ++first_waiter_.at(awaited + 1);
  for (std::size_t i = 0; i < nodes_.size(); ++i) first_waiter_[i + 1] += first_waiter_[i];
  waiters_.resize(waits_.size());
  std::vector<std::uint32_t> next(first_waiter_.begin(), first_waiter_.end() - 1);
  for (const auto& [awaited, waiter] : waits_) waiters_[next[awaited]++] = waiter;
  waits_ = {};
}

void StepGraph::push(double time, EventKind kind, std::size_t subject, std::uint64_t version)
{
  events_.push_back({time, pushed_++, version, static_cast<std::uint32_t>(subject), kind});
  std::push_heap(events_.begin(), events_.end(), std::greater<>());
}

void StepGraph::handle(const Event& event)
{
  switch (event.kind) {
    case EventKind::Ends:
      return end(event.subject);
    case EventKind::PacedEnds:
      if (end_paced(event)) end(event.subject);
      return;
    case EventKind::DataBegin:
      return begin_data(event.subject);
    case EventKind::DataEnd:
      if (data_[event.subject].flows && data_[event.subject].version == event.version) end_data(event.subject);
      return;
  }
}

/// What a node waited for has ended.
void StepGraph::release(std::size_t number)
{
  Node& node = nodes_[number];
  if (node.kind == Kind::Computation) return begin_computation(number);
  if (node.kind == Kind::Collective) return begin_collective(number);
  if (node.kind == Kind::Copy) {
    const Path& way = ways_[node.detail];
    return add_data(number, way, now_ + way.latency, node.size);
  }
  Stream& stream = streams_[node.detail];
  node.is_released = true;
  while (stream.ready.size() < stream.messages.size() && nodes_[stream.messages[stream.ready.size()]].is_released) {
    stream.ready.push_back(now_);
  }
  begin_message(stream);
}

void StepGraph::end(std::size_t number)
{
  ++ended_;
  const Node& node = nodes_[number];
  const auto step = std::upper_bound(first_of_step_.begin(), first_of_step_.end(), number) - first_of_step_.begin();
  double& last = step_ends_[static_cast<std::size_t>(step)];
  last = std::max(last, now_);
  if (node.kind == Kind::Computation && node.rounds > 0 && node.size > 0) slow(node.rounds - 1, false);
  if (node.kind == Kind::Collective) {
    for (const std::size_t pace : groups_[node.detail].slows) slow(pace, false);
  }
  for (std::uint32_t i = first_waiter_[number]; i < first_waiter_[number + 1]; ++i) {
    if (--nodes_[waiters_[i]].waits == 0) release(waiters_[i]);
  }
}

// --- computations ----------------------------------------------------------------------------------------------------

void StepGraph::begin_computation(std::size_t number)
{
  const Node& node = nodes_[number];
  if (node.rounds > 0 && node.size > 0) slow(node.rounds - 1, true);
  if (node.detail == 0 || node.size <= 0) return push(now_ + node.size, EventKind::Ends, number);
  Pace& pace = paces_[node.detail - 1];
  const double before = pace.rate();
  pace.under_way.push_back({number, node.size, now_, ++versions_});
  push(now_ + node.size / pace.rate(), EventKind::PacedEnds, number, versions_);
  change_rate(pace, before);
}

/// Ends a computation, unless it has got another rate since the event was made.
bool StepGraph::end_paced(const Event& event)
{
  Pace& pace = paces_[nodes_[event.subject].detail - 1];
  const auto found = std::find_if(pace.under_way.begin(), pace.under_way.end(),
                                  [&](const Paced& each) { return each.version == event.version; });
  if (found == pace.under_way.end()) return false;
  const double before = pace.rate();
  pace.under_way.erase(found);
  change_rate(pace, before);
  return true;
}

/// Something that slows a pace begins or ends.
void StepGraph::slow(std::size_t number, bool begins)
{
  Pace& pace = paces_[number];
  const double before = pace.rate();
  begins ? ++pace.slowed_by : --pace.slowed_by;
  change_rate(pace, before);
}

/// Lets what is under way at a pace continue at the rate that the pace has now.
void StepGraph::change_rate(Pace& pace, double before)
{
  const double rate = pace.rate();
  if (rate == before) return;
  for (Paced& each : pace.under_way) {
    each.left = std::max(0.0, each.left - (now_ - each.since) * before);
    each.since = now_;
    each.version = ++versions_;
    push(now_ + each.left / rate, EventKind::PacedEnds, each.node, each.version);
  }
}

// --- messages and collectives ----------------------------------------------------------------------------------------

const StepGraph::Path& StepGraph::path(std::size_t from, std::size_t to)
{
  const auto [place, is_new] = known_.try_emplace((static_cast<std::uint64_t>(from) << 32) | to);
  Path& path = place->second;
  if (!is_new || !paths_ || from == to) return path;
  return path = path_over(paths_(from, to));
}

StepGraph::Path StepGraph::path_over(const GraphPath& found)
{
  Path path;
  path.latency = found.latency;
  path.bandwidth = found.bandwidth;
  path.weight = path.latency > 0 ? 1 / path.latency : 1;
  for (const SharedLink& link : found.links) {
    const auto [number, is_first] = number_of_link_.try_emplace(link.name, links_.size());
    if (is_first) {
      links_.emplace_back();
      links_.back().bandwidth = link.bandwidth.value;
      links_.back().is_fat_pipe = link.is_fat_pipe;
    }
    path.parts.push_back({number->second, link.passes});
  }
  return path;
}

/// Lets the stream's next message arrive, if it is ready and none before it is on the way.
void StepGraph::begin_message(Stream& stream)
{
  if (stream.is_busy || stream.next == stream.ready.size()) return;
  stream.is_busy = true;
  const std::size_t number = stream.messages[stream.next];
  const Path& way = path(stream.from, stream.to);
  add_data(number, way, std::max(stream.ready[stream.next] + way.latency, stream.arrived), nodes_[number].size);
}

void StepGraph::begin_collective(std::size_t number)
{
  const Node& node = nodes_[number];
  Group& group = groups_[node.detail];
  for (const std::size_t pace : group.slows) slow(pace, true);
  if (!paths_ || rounds_[node.rounds].empty()) return push(now_, EventKind::Ends, number);
  group.next_round = 0;
  begin_round(number, now_ + group.start);
}

void StepGraph::begin_round(std::size_t number, double time)
{
  Group& group = groups_[nodes_[number].detail];
  const Round& round = rounds_[nodes_[number].rounds][group.next_round++];
  group.flows_left = round.size();
  for (const Flow& flow : round) {
    const Path& way = path(group.ends.at(flow.from), group.ends.at(flow.to));
    const auto messages = static_cast<double>(flow.messages);
    add_data(number, way, time + messages * way.latency, messages * flow.message.value);
  }
}

void StepGraph::add_data(std::size_t node, const Path& path, double time, double bytes)
{
  std::size_t number = data_.size();
  if (unused_.empty()) {
    data_.emplace_back();
  } else {
    number = unused_.back();
    unused_.pop_back();
  }
  Data& data = data_[number];
  data.node = node;
  data.path = &path;
  data.left = path.bandwidth > 0 ? bytes : 0;
  data.rate = 0;
  push(time, EventKind::DataBegin, number);
}

void StepGraph::begin_data(std::size_t number)
{
  Data& data = data_[number];
  if (data.left <= 0) {
    unused_.push_back(number);
    return data_ended(data.node);
  }
  data.flows = true;
  data.since = now_;
  for (const Part& part : data.path->parts) {
    LinkState& link = links_[part.link];
    link.data.push_back(number);
    link.wanted += part.passes * data.path->bandwidth;
    note_change(link);
  }
  changed_.push_back(number);
}

void StepGraph::end_data(std::size_t number)
{
  Data& data = data_[number];
  data.flows = false;
  for (const Part& part : data.path->parts) {
    LinkState& link = links_[part.link];
    link.data.erase(std::find(link.data.begin(), link.data.end(), number));
    link.wanted = link.data.empty() ? 0 : link.wanted - part.passes * data.path->bandwidth;
    note_change(link);
  }
  unused_.push_back(number);
  data_ended(data.node);
}

void StepGraph::data_ended(std::size_t number)
{
  const Node& node = nodes_[number];
  if (node.kind == Kind::Message) {
    Stream& stream = streams_[node.detail];
    stream.arrived = now_;
    stream.is_busy = false;
    ++stream.next;
    begin_message(stream);
    return end(number);
  }
  if (node.kind == Kind::Copy) return end(number);
  Group& group = groups_[node.detail];
  if (--group.flows_left > 0) return;
  if (group.next_round < rounds_[node.rounds].size()) return begin_round(number, now_);
  end(number);
}

// --- links -----------------------------------------------------------------------------------------------------------

bool StepGraph::does_bind(const LinkState& link, const std::vector<Data>& data)
{
  if (!link.is_fat_pipe) return link.wanted > link.bandwidth * (1 + same_rate);
  double least = endless;
  double most_that_fills = 0;
  for (const std::size_t number : link.data) {
    const Path& path = *data[number].path;
    least = std::min(least, path.weight);
    if (path.bandwidth >= link.bandwidth * (1 - same_rate)) most_that_fills = std::max(most_that_fills, path.weight);
  }
  return least < most_that_fills * (1 - same_rate);
}

/// Data of the link have begun or ended.
void StepGraph::note_change(LinkState& link)
{
  const bool bound = std::exchange(link.binds, does_bind(link, data_));
  if (bound || link.binds) changed_.insert(changed_.end(), link.data.begin(), link.data.end());
}

/// Gives the data whose links have changed, and those that share links with them, their rates.
void StepGraph::set_rates()
{
  const std::uint64_t before = visit_;
  for (const std::size_t number : changed_) {
    if (!data_[number].flows || data_[number].visit > before) continue;
    collect_sharing(number);
    share();
  }
  changed_.clear();
}

/// Collects what shares links that bind with some data, directly or by others.
void StepGraph::collect_sharing(std::size_t first)
{
  ++visit_;
  sharing_.assign({first});
  shared_links_.clear();
  data_[first].visit = visit_;
  for (std::size_t i = 0; i < sharing_.size(); ++i) {
    for (const Part& part : data_[sharing_[i]].path->parts) {
      LinkState& link = links_[part.link];
      if (!link.binds || link.visit == visit_) continue;
      link.visit = visit_;
      link.free = link.bandwidth;
      shared_links_.push_back(part.link);
      for (const std::size_t other : link.data) {
        if (std::exchange(data_[other].visit, visit_) != visit_) sharing_.push_back(other);
      }
    }
  }
}

/// Fills links step by step: each time the data whose link, or own path, is full first.
void StepGraph::share()
{
  while (!sharing_.empty()) {
    for (const std::size_t link : shared_links_) links_[link].weight = 0;
    for (const std::size_t number : sharing_) {
      const Path& path = *data_[number].path;
      for (const Part& part : path.parts) {
        LinkState& link = links_[part.link];
        link.weight = link.is_fat_pipe ? std::max(link.weight, path.weight) : link.weight + part.passes * path.weight;
      }
    }
    // The rate for each unit of weight that data can have.
    const auto most_of = [&](std::size_t number) {
      const Path& path = *data_[number].path;
      double most = path.bandwidth / path.weight;
      for (const Part& part : path.parts) {
        const LinkState& link = links_[part.link];
        if (link.binds) most = std::min(most, std::max(link.free, 0.0) / link.weight);
      }
      return most;
    };
    double least = endless;
    for (const std::size_t number : sharing_) least = std::min(least, most_of(number));
    const auto full = std::stable_partition(sharing_.begin(), sharing_.end(), [&](std::size_t number) {
      return most_of(number) > least * (1 + same_rate);
    });
    for (auto number = full; number != sharing_.end(); ++number) {
      const Path& path = *data_[*number].path;
      const double rate = std::min(path.bandwidth, least * path.weight);
      set_rate(*number, rate);
      for (const Part& part : path.parts) {
        LinkState& link = links_[part.link];
        if (link.binds && !link.is_fat_pipe) link.free -= part.passes * rate;
      }
    }
    sharing_.erase(full, sharing_.end());
  }
}

void StepGraph::set_rate(std::size_t number, double rate)
{
  Data& data = data_[number];
  if (data.rate == rate) return;
  data.left = std::max(0.0, data.left - (now_ - data.since) * data.rate);
  data.since = now_;
  data.rate = rate;
  data.version = ++versions_;
  if (rate > 0) push(now_ + data.left / rate, EventKind::DataEnd, number, data.version);
}

}  // namespace isobar
