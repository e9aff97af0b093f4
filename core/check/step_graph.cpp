#include "core/check/step_graph.hpp"

#include "core/errors.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace isobar {

namespace {

// Relative:
constexpr double same_rate = 1e-12;
constexpr double same_time = 1e-15;
constexpr double endless = std::numeric_limits<double>::infinity();

}  // namespace

std::size_t StepGraph::add_computation(double seconds)
{
  nodes_.push_back({Kind::Computation, 0, {}, seconds, 0});
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
  nodes_.push_back({Kind::Message, 0, {}, bytes, stream});
  streams_.at(stream).messages.push_back(nodes_.size() - 1);
  return nodes_.size() - 1;
}

std::size_t StepGraph::add_collective(std::vector<Round> rounds, std::vector<std::size_t> ends, double start)
{
  nodes_.push_back({Kind::Collective, 0, {}, 0, groups_.size()});
  groups_.push_back({std::move(rounds), std::move(ends), start, 0, 0});
  return nodes_.size() - 1;
}

void StepGraph::add_wait(std::size_t waiter, std::size_t awaited)
{
  ++nodes_.at(waiter).waits;
  nodes_.at(awaited).waiters.push_back(waiter);
}

double StepGraph::play()
{
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    if (nodes_[node].waits == 0) release(node);
  }
  double last = 0;
  std::vector<std::size_t> over;
  while (!events_.empty() || !data_.empty()) {
    double next = events_.empty() ? endless : events_.front().time;
    for (const Data& data : data_) next = std::min(next, now_ + data.left / data.rate);
    ensure(next < endless, "data that flow on end");
    const double limit = next * (1 + same_time);
    bool changes = false;
    over.clear();
    std::erase_if(data_, [&](Data& data) {
      const bool ends = now_ + data.left / data.rate <= limit;
      data.left = std::max(0.0, data.left - (next - now_) * data.rate);
      if (ends) over.push_back(data.node);
      return ends;
    });
    now_ = next;
    changes = !over.empty();
    for (const std::size_t node : over) data_ended(node);
    while (!events_.empty() && events_.front().time <= limit) {
      std::pop_heap(events_.begin(), events_.end(), std::greater<>());
      const Event event = events_.back();
      events_.pop_back();
      if (event.path == nullptr) {
        end(event.node);
      } else if (event.bytes <= 0) {
        data_ended(event.node);
      } else {
        data_.push_back({event.node, event.path, event.bytes, 0});
        changes = true;
      }
    }
    if (changes) set_rates();
    last = now_;
  }
  ensure(ended_ == nodes_.size(), "the parts of a step wait for each other");
  return last;
}

const StepGraph::Path& StepGraph::path(std::size_t from, std::size_t to)
{
  const auto [place, is_new] = known_.try_emplace((static_cast<std::uint64_t>(from) << 32) | to);
  Path& path = place->second;
  if (!is_new || !paths_ || from == to) return path;
  const GraphPath found = paths_(from, to);
  path.latency = found.latency;
  path.bandwidth = found.bandwidth;
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

void StepGraph::push(double time, std::size_t node, const Path* path, double bytes)
{
  events_.push_back({time, pushed_++, node, path, bytes});
  std::push_heap(events_.begin(), events_.end(), std::greater<>());
}

/// What a node waited for has ended.
void StepGraph::release(std::size_t number)
{
  Node& node = nodes_[number];
  if (node.kind == Kind::Computation) return push(now_ + node.size, number, nullptr, 0);
  if (node.kind == Kind::Collective) {
    if (!paths_ || groups_[node.detail].rounds.empty()) return push(now_, number, nullptr, 0);
    return begin_round(number);
  }
  Stream& stream = streams_[node.detail];
  node.waits = std::numeric_limits<std::size_t>::max();  // released
  while (stream.ready.size() < stream.messages.size()) {
    if (nodes_[stream.messages[stream.ready.size()]].waits != std::numeric_limits<std::size_t>::max()) break;
    stream.ready.push_back(now_);
  }
  begin_message(stream);
}

void StepGraph::end(std::size_t number)
{
  ++ended_;
  for (const std::size_t waiter : nodes_[number].waiters) {
    if (--nodes_[waiter].waits == 0) release(waiter);
  }
}

/// Lets the stream's next message arrive, if it is ready and none before it is on the way.
void StepGraph::begin_message(Stream& stream)
{
  if (stream.is_busy || stream.next == stream.ready.size()) return;
  stream.is_busy = true;
  const std::size_t number = stream.messages[stream.next];
  const Path& way = path(stream.from, stream.to);
  const double due = std::max(stream.ready[stream.next] + way.latency, stream.arrived);
  push(due, number, &way, way.bandwidth > 0 ? nodes_[number].size : 0);
}

void StepGraph::begin_round(std::size_t number)
{
  Group& group = groups_[nodes_[number].detail];
  const double time = now_ + (group.next_round == 0 ? group.start : 0);
  const Round& round = group.rounds[group.next_round++];
  group.flows_left = round.size();
  for (const Flow& flow : round) {
    const Path& way = path(group.ends.at(flow.from), group.ends.at(flow.to));
    const auto messages = static_cast<double>(flow.messages);
    push(time + messages * way.latency, number, &way, way.bandwidth > 0 ? messages * flow.message.value : 0);
  }
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
  Group& group = groups_[node.detail];
  if (--group.flows_left > 0) return;
  while (group.next_round < group.rounds.size() && group.rounds[group.next_round].empty()) ++group.next_round;
  if (group.next_round < group.rounds.size()) return begin_round(number);
  end(number);
}

double StepGraph::weight_of(const Path& path)
{
  return path.latency > 0 ? 1 / path.latency : 1;
}

/// Fills links step by step: each time the flows whose link, or own path, is full first.
void StepGraph::set_rates()
{
  for (LinkState& link : links_) {
    link.wanted = link.filling_weight = 0;
    link.least_weight = endless;
    link.free = link.bandwidth;
  }
  for (const Data& data : data_) {
    const double weight = weight_of(*data.path);
    for (const Part& part : data.path->parts) {
      LinkState& link = links_[part.link];
      link.wanted += part.passes * data.path->bandwidth;
      link.least_weight = std::min(link.least_weight, weight);
      const bool fills = data.path->bandwidth >= link.bandwidth * (1 - same_rate);
      if (fills) link.filling_weight = std::max(link.filling_weight, weight);
    }
  }
  for (LinkState& link : links_) {
    link.binds = link.is_fat_pipe ? link.least_weight < link.filling_weight * (1 - same_rate)
                                  : link.wanted > link.bandwidth * (1 + same_rate);
  }
  std::vector<Data*> open;
  for (Data& data : data_) {
    data.rate = data.path->bandwidth;
    const auto& parts = data.path->parts;
    const auto binds = [&](const Part& part) { return links_[part.link].binds; };
    if (std::any_of(parts.begin(), parts.end(), binds)) open.push_back(&data);
  }
  while (!open.empty()) {
    for (LinkState& link : links_) link.weight = 0;
    for (const Data* data : open) {
      const double weight = weight_of(*data->path);
      for (const Part& part : data->path->parts) {
        double& sum = links_[part.link].weight;
        sum = links_[part.link].is_fat_pipe ? std::max(sum, weight) : sum + part.passes * weight;
      }
    }
    // The rate for each unit of weight that data can have.
    const auto most_of = [&](const Data* data) {
      double most = data->path->bandwidth / weight_of(*data->path);
      for (const Part& part : data->path->parts) {
        const LinkState& link = links_[part.link];
        if (link.binds) most = std::min(most, std::max(link.free, 0.0) / link.weight);
      }
      return most;
    };
    double least = endless;
    for (const Data* data : open) least = std::min(least, most_of(data));
    std::vector<Data*> full;
    std::vector<Data*> rest;
    for (Data* data : open) (most_of(data) <= least * (1 + same_rate) ? full : rest).push_back(data);
    for (Data* data : full) {
      data->rate = std::min(data->path->bandwidth, least * weight_of(*data->path));
      for (const Part& part : data->path->parts) {
        LinkState& link = links_[part.link];
        if (link.binds && !link.is_fat_pipe) link.free -= part.passes * data->rate;
      }
    }
    open = std::move(rest);
  }
}

}  // namespace isobar
