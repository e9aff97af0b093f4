#include "core/program/round_time.hpp"

#include "core/program/channel_rounds.hpp"

#include <algorithm>
#include <limits>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace isobar {

namespace {

/// Levels and times that differ by less are equal.
constexpr double rounding_of_rates = 1e-12;
constexpr double unlimited = std::numeric_limits<double>::infinity();

/// The flows of a round on their way.
class SharedRound {
 public:
  SharedRound(const Round& round, const EndNetwork& network)
  {
    std::unordered_map<SharedLink, std::size_t, NameHash, IsSame> number_of;
    flows_.reserve(round.size());
    for (const Flow& flow : round) {
      const TransferTimes alone = network.transfer(flow.from, flow.to, flow.size());
      FlowState& state = flows_.emplace_back();
      state.begin = static_cast<double>(flow.messages) * alone.latency.value;
      state.end = state.begin + alone.data.value;
      if (!(alone.data > Seconds(0))) continue;
      state.left = flow.size().value;
      state.most = state.left / alone.data.value;
      state.weight = alone.latency > Seconds(0) ? 1 / alone.latency.value : 1;
      for (const SharedLink& link : network.shared_links(flow.from, flow.to)) {
        const auto [place, is_new] = number_of.try_emplace(link, links_.size());
        if (is_new) links_.push_back({link.bandwidth.value, link.is_fat_pipe});
        state.loads.push_back({place->second, link.passes});
        LinkState& of_link = links_[place->second];
        of_link.most += link.passes * state.most;
        of_link.least_weight = std::min(of_link.least_weight, state.weight);
        of_link.most_weight = std::max(of_link.most_weight, state.weight);
      }
    }
  }

  std::vector<Seconds> ends()
  {
    if (is_contended()) play();
    std::vector<Seconds> ends;
    ends.reserve(flows_.size());
    for (const auto& flow : flows_) ends.emplace_back(flow.end);
    return ends;
  }

 private:
  struct NameHash {
    std::size_t operator()(const SharedLink& link) const
    {
      return std::hash<std::string_view>()(link.name) + 31 * link.sharer;
    }
  };
  struct IsSame {
    bool operator()(const SharedLink& one, const SharedLink& other) const { return one.is_same(other); }
  };
  struct LinkLoad {
    std::size_t link = 0;
    double passes = 1;
  };
  struct FlowState {
    double begin = 0;  // of its data
    double end = 0;    // alone, until it is known
    double left = 0;   // bytes
    double most = 0;   // bytes per second
    double weight = 1;
    double rate = 0;
    std::vector<LinkLoad> loads;
  };
  struct LinkState {
    double bandwidth = 0;
    bool is_fat_pipe = false;
    double most = 0;  // that all flows would take
    double least_weight = unlimited;
    double most_weight = 0;
    double free = 0;    // while rates are given
    double weight = 0;  // of the flows that have no rate yet: their sum, of a fat pipe the largest
  };

  bool is_contended() const
  {
    return std::any_of(links_.begin(), links_.end(), [](const LinkState& link) {
      return link.is_fat_pipe ? link.least_weight < link.most_weight * (1 - rounding_of_rates)
                              : link.most > link.bandwidth * (1 + rounding_of_rates);
    });
  }

  void play()
  {
    std::vector<FlowState*> waiting;  // the next one last
    for (auto& flow : flows_) {
      if (flow.left > 0) waiting.push_back(&flow);
    }
    std::stable_sort(waiting.begin(), waiting.end(),
                     [](const FlowState* a, const FlowState* b) { return a->begin > b->begin; });
    std::vector<FlowState*> active;
    double now = 0;
    while (!waiting.empty() || !active.empty()) {
      while (!waiting.empty() && (active.empty() || waiting.back()->begin <= now * (1 + rounding_of_rates))) {
        now = std::max(now, waiting.back()->begin);
        active.push_back(waiting.back());
        waiting.pop_back();
      }
      share(active);
      double next = unlimited;
      if (!waiting.empty()) next = waiting.back()->begin;
      for (const auto* flow : active) next = std::min(next, now + flow->left / flow->rate);
      std::erase_if(active, [&](FlowState* flow) {
        const double end = now + flow->left / flow->rate;
        flow->left -= (next - now) * flow->rate;
        if (end > next * (1 + rounding_of_rates)) return false;
        flow->end = end;
        return true;
      });
      now = next;
    }
  }

  /// Gives the flows their rates.
  void share(const std::vector<FlowState*>& active)
  {
    for (auto& link : links_) link.free = link.bandwidth;
    std::vector<FlowState*> left = active;
    while (!left.empty()) {
      weigh(left);
      double level = unlimited;  // the rate of a flow of weight 1 at which a link or flow is full
      for (const auto* flow : left) {
        level = std::min(level, flow->most / flow->weight);
        for (const auto& load : flow->loads) level = std::min(level, level_of(links_[load.link]));
      }
      const double limit = level * (1 + rounding_of_rates);
      const auto is_full = [&](const FlowState* flow) {
        return flow->most / flow->weight <= limit ||
               std::any_of(flow->loads.begin(), flow->loads.end(),
                           [&](const LinkLoad& load) { return level_of(links_[load.link]) <= limit; });
      };
      const auto rest = std::stable_partition(left.begin(), left.end(), [&](auto* flow) { return !is_full(flow); });
      for (auto full = rest; full != left.end(); ++full) {
        FlowState& flow = **full;
        flow.rate = std::min(flow.most, level * flow.weight);
        for (const auto& load : flow.loads) {
          LinkState& link = links_[load.link];
          if (!link.is_fat_pipe) link.free -= load.passes * flow.rate;
        }
      }
      left.erase(rest, left.end());
    }
  }

  void weigh(const std::vector<FlowState*>& flows)
  {
    for (auto& link : links_) link.weight = 0;
    for (const auto* flow : flows) {
      for (const auto& load : flow->loads) {
        LinkState& link = links_[load.link];
        link.weight = link.is_fat_pipe ? std::max(link.weight, flow->weight) : link.weight + load.passes * flow->weight;
      }
    }
  }

  static double level_of(const LinkState& link) { return std::max(link.free, 0.0) / link.weight; }

  std::vector<FlowState> flows_;
  std::vector<LinkState> links_;
};

}  // namespace

EndNetwork network_between(std::vector<std::size_t> ends, const EndNetwork& whole)
{
  EndNetwork network;
  if (whole.transfer) {
    network.transfer = [ends, &whole](std::size_t from, std::size_t to, Bytes size) {
      return whole.transfer(ends.at(from), ends.at(to), size);
    };
  }
  if (whole.shared_links) {
    network.shared_links = [ends, &whole](std::size_t from, std::size_t to) {
      return whole.shared_links(ends.at(from), ends.at(to));
    };
  }
  if (whole.start) {
    network.start = [ends = std::move(ends), &whole](std::size_t end) { return whole.start(ends.at(end)); };
  }
  return network;
}

std::function<std::vector<SharedLink>(std::size_t from, std::size_t to)> shared_by_own_flows(
    std::function<std::vector<SharedLink>(std::size_t from, std::size_t to)> shared_links)
{
  return [shared_links = std::move(shared_links)](std::size_t from, std::size_t to) {
    std::vector<SharedLink> own;
    for (const SharedLink& link : shared_links(from, to)) {
      for (const std::size_t end : {from, to}) {
        own.push_back(link);
        own.back().sharer = end;
      }
    }
    return own;
  };
}

namespace {

const Lane& lane_at(const Program& program, const End& end)
{
  return program.lanes(end.rank)[end.lane];
}

/// The ranks of the channels that run beside one, by their ends.
std::vector<std::vector<std::size_t>> beside(const Program& program, std::size_t channel)
{
  std::vector<std::vector<std::size_t>> found;
  const Channel& own = program.channels()[channel];
  const Lane& lane = lane_at(program, own.ends.front());
  if (lane.role) return found;
  const auto& grids = program.grids();
  const auto holds_all = [](const std::vector<std::size_t>& grid, const Channel& each) {
    const auto ranks = ranks_of(each);
    return std::all_of(ranks.begin(), ranks.end(),
                       [&](std::size_t rank) { return std::find(grid.begin(), grid.end(), rank) != grid.end(); });
  };
  const auto grid = std::find_if(grids.begin(), grids.end(), [&](const auto& each) { return holds_all(each, own); });
  if (grid == grids.end()) return found;
  for (const Channel& other : program.channels()) {
    const bool is_alike = &other != &own && ranks_of(other).size() == ranks_of(own).size() &&
                          lane_at(program, other.ends.front()).name == lane.name;
    if (is_alike && holds_all(*grid, other)) found.push_back(ranks_of(other));
  }
  return found;
}

}  // namespace

EndNetwork network_of_channel(const Program& program, std::size_t channel, const EndNetwork& whole)
{
  EndNetwork network = network_between(ranks_of(program.channels()[channel]), whole);
  auto others = whole.shared_links ? beside(program, channel) : std::vector<std::vector<std::size_t>>();
  if (others.empty()) return network;
  network.shared_links = [own = std::move(network.shared_links), others = std::move(others), &whole](std::size_t from,
                                                                                                     std::size_t to) {
    std::vector<SharedLink> links = own(from, to);
    for (const auto& ranks : others) {
      for (const SharedLink& link : whole.shared_links(ranks.at(from), ranks.at(to))) {
        const auto same =
            std::find_if(links.begin(), links.end(), [&](const auto& each) { return each.is_same(link); });
        if (same != links.end()) same->passes += link.passes;
      }
    }
    return links;
  };
  return network;
}

std::vector<Seconds> ends_of_flows(const Round& round, const EndNetwork& network)
{
  if (!network.transfer) return std::vector<Seconds>(round.size());
  if (network.shared_links) return SharedRound(round, network).ends();
  std::vector<Seconds> ends;
  ends.reserve(round.size());
  for (const Flow& flow : round) {
    const TransferTimes alone = network.transfer(flow.from, flow.to, flow.size());
    ends.push_back(static_cast<double>(flow.messages) * alone.latency + alone.data);
  }
  return ends;
}

Seconds round_time(const Round& round, const EndNetwork& network)
{
  Seconds last;
  for (const Seconds end : ends_of_flows(round, network)) last = std::max(last, end);
  return last;
}

Seconds collective_start(const std::vector<Round>& rounds, const EndNetwork& network)
{
  Seconds longest;
  if (!network.start) return longest;
  for (const Round& round : rounds) {
    for (const Flow& flow : round) longest = std::max({longest, network.start(flow.from), network.start(flow.to)});
  }
  return longest;
}

Seconds collective_time(const std::vector<Round>& rounds, const EndNetwork& network)
{
  Seconds time = collective_start(rounds, network);
  for (const Round& round : rounds) time += round_time(round, network);
  return time;
}

}  // namespace isobar
