// Proves again that no placement's largest cost is within a limit, by an integer program over the phases of a repeating
// chain (docs/certificates.md).
//
// If some order of devices covers the chain, it also does with each stage as long as its device allows. Such a stage is
// an arc between two cuts. Cuts inside the repeating part are merged into one node per phase, so a placement becomes a
// flow from the first cut to the last, with at most one arc per device, whose arcs cover all layers. Merging cuts only
// allows more flows, so a proof is valid whatever part is taken as repeating.

#include "core/certificates/proofs.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <numeric>
#include <unordered_map>
#include <utility>

namespace isobar::proofs {

namespace {

constexpr std::size_t most_states = 4'000'000;
constexpr std::size_t longest_period = 4;
// Approximate, with its share of the table.
constexpr std::uint64_t bytes_of_state = 112;
// Approximate, relative to one iteration of the innermost loop of a path's table.
constexpr std::uint64_t steps_of_arc = 50;

/// Each of the layers first..end-1, except the first `period`, equals the one `period` before it. Period 1 and no
/// layers if nothing repeats.
struct Repetition {
  std::size_t period = 1;
  std::size_t first = 0;
  std::size_t end = 0;
};

Repetition longest_repetition(const Chain& chain)
{
  const auto differ = [&](const std::vector<double>& sums, std::size_t a, std::size_t b) {
    const double of_a = sums[a + 1] - sums[a];
    const double of_b = sums[b + 1] - sums[b];
    return std::abs(of_a - of_b) > 1e-9 * std::max(of_a, of_b);
  };
  Repetition longest;
  for (std::size_t period = 1; period <= longest_period; ++period) {
    std::size_t first = 0;
    for (std::size_t k = period; k < chain.layers; ++k) {
      const bool takes_longer = std::any_of(chain.work_on.begin(), chain.work_on.end(),
                                            [&](const WorkSums* work) { return differ(work->both, k - period, k); });
      if (takes_longer || differ(chain.parameter_bytes, k - period, k) || differ(chain.activations, k - period, k) ||
          differ(chain.sky_memory, k - period, k)) {
        first = k - period + 1;
      }
      const std::size_t end = k + 1;
      if (end - first >= 2 * period && end - first > longest.end - longest.first) longest = {period, first, end};
    }
  }
  return longest;
}

struct Arc {
  std::size_t from = 0;
  std::size_t to = 0;
  double layers = 0;  // the most that it covers
};

/// Nodes: the phases first, then each cut outside the repeating part.
struct Flow {
  std::size_t phases = 0;
  std::size_t nodes = 0;
  std::size_t source = 0;
  std::size_t sink = 0;
  std::vector<std::vector<Arc>> arcs;  // of each device
};

Flow flow_within(const Chain& chain, double limit)
{
  const Repetition repetition = longest_repetition(chain);
  Flow flow;
  flow.phases = repetition.end > repetition.first ? repetition.period : 0;
  const auto node_of = [&](std::size_t cut) {
    if (cut < repetition.first) return flow.phases + cut;
    if (cut >= repetition.end) return flow.phases + cut - (repetition.end - repetition.first);
    return (cut - repetition.first) % repetition.period;
  };
  flow.source = node_of(0);
  flow.sink = node_of(chain.layers);
  flow.nodes = flow.sink + 1;
  const std::uint64_t held = chain.held_by(0);
  for (std::size_t i = 0; i < chain.devices; ++i) {
    chain.effort.take(chain.layers * steps_of_arc);
    const double memory = chain.memory[i] * (1 + memory_tolerance);
    auto& arcs = flow.arcs.emplace_back();
    std::unordered_map<std::size_t, std::size_t> arc_between;
    std::size_t reach = 0;
    for (std::size_t first = 0; first < chain.layers; ++first) {
      reach = std::max(reach, first);
      while (reach < chain.layers && chain.compute_s(i, first, reach + 1) <= limit &&
             chain.need(first, reach + 1, held) <= memory) {
        ++reach;
      }
      if (reach == first) continue;
      const Arc arc{node_of(first), node_of(reach), static_cast<double>(reach - first)};
      const auto [known, is_new] = arc_between.emplace(arc.from * flow.nodes + arc.to, arcs.size());
      if (is_new) {
        arcs.push_back(arc);
      } else {
        arcs[known->second].layers = std::max(arcs[known->second].layers, arc.layers);
      }
    }
  }
  return flow;
}

/// The nodes that paths from `start` reach, forward or backward along the arcs.
std::vector<bool> reached_from(const Flow& flow, std::size_t start, bool forward)
{
  std::vector<std::vector<std::size_t>> next(flow.nodes);
  for (const auto& arcs : flow.arcs) {
    for (const Arc& arc : arcs) next[forward ? arc.from : arc.to].push_back(forward ? arc.to : arc.from);
  }
  std::vector<bool> reached(flow.nodes);
  std::vector<std::size_t> open = {start};
  reached[start] = true;
  while (!open.empty()) {
    const std::size_t node = open.back();
    open.pop_back();
    for (const std::size_t other : next[node]) {
      if (!reached[other]) open.push_back(other);
      reached[other] = true;
    }
  }
  return reached;
}

/// Drops arcs and nodes that no flow from source to sink uses. False if there is no path at all.
bool trim(Flow& flow)
{
  const auto from_source = reached_from(flow, flow.source, true);
  const auto to_sink = reached_from(flow, flow.sink, false);
  if (!from_source[flow.sink]) return false;
  std::vector<std::size_t> number(flow.nodes);
  std::size_t kept = 0;
  for (std::size_t node = 0; node < flow.nodes; ++node) {
    number[node] = kept;
    if (node < flow.phases || (from_source[node] && to_sink[node])) ++kept;
  }
  for (auto& arcs : flow.arcs) {
    std::erase_if(arcs, [&](const Arc& arc) { return !from_source[arc.from] || !to_sink[arc.to]; });
    for (Arc& arc : arcs) arc = {number[arc.from], number[arc.to], arc.layers};
  }
  flow.source = number[flow.source];
  flow.sink = number[flow.sink];
  flow.nodes = kept;
  return true;
}

/// Prices of the nodes. With any prices, a flow covers at most the sum over devices of the best arc's layers
/// + price(from) - price(to), or 0, and price(sink) - price(source). Subgradient steps find prices with a small sum.
class Prices {
 public:
  Prices(const Flow& flow, double layers, Effort& effort) : flow_(flow), best_(flow.nodes, 0)
  {
    std::uint64_t steps = flow.nodes;
    for (const auto& arcs : flow.arcs) steps += 1 + arcs.size();
    std::vector<double> price(flow.nodes, 0);
    std::vector<double> slope(flow.nodes);
    best_sum_ = sum_at(price, slope);
    double step_scale = 1;
    std::size_t since_best = 0;
    for (int step = 0; step < 4000; ++step) {
      effort.take(steps);
      const double sum = sum_at(price, slope);
      if (sum < best_sum_ - 1e-9) {
        best_sum_ = sum;
        best_ = price;
        since_best = 0;
      } else if (++since_best > 30) {
        since_best = 0;
        step_scale *= 0.7;
        price = best_;
        sum_at(price, slope);
      }
      const double norm = std::inner_product(slope.begin(), slope.end(), slope.begin(), 0.0);
      if (norm == 0 || step_scale < 1e-7) break;
      const double length = step_scale * std::max(sum - layers + 1, 1.0) / norm;
      for (std::size_t node = 0; node < price.size(); ++node) price[node] -= length * slope[node];
    }
  }

  /// The most layers that a flow can cover.
  double most_layers() const { return best_sum_; }
  double worth(const Arc& arc) const { return arc.layers + best_[arc.from] - best_[arc.to]; }
  double of_ends() const { return best_[flow_.sink] - best_[flow_.source]; }
  double most_of(const std::vector<Arc>& arcs) const
  {
    double most = 0;
    for (const Arc& arc : arcs) most = std::max(most, worth(arc));
    return most;
  }

 private:
  double sum_at(const std::vector<double>& price, std::vector<double>& slope) const
  {
    std::fill(slope.begin(), slope.end(), 0);
    slope[flow_.sink] += 1;
    slope[flow_.source] -= 1;
    double sum = price[flow_.sink] - price[flow_.source];
    for (const auto& arcs : flow_.arcs) {
      const Arc* best = nullptr;
      double most = 0;
      for (const Arc& arc : arcs) {
        const double here = arc.layers + price[arc.from] - price[arc.to];
        if (here > most) {
          most = here;
          best = &arc;
        }
      }
      if (best == nullptr) continue;
      sum += most;
      slope[best->from] += 1;
      slope[best->to] -= 1;
    }
    return sum;
  }

  const Flow& flow_;
  std::vector<double> best_;
  double best_sum_ = 0;
};

/// Connected components of the phases: for each the lowest numbered node that arcs connect it with, `outside` for all
/// cuts that are not phases, `untouched` if no arc was there.
class Components {
 public:
  static constexpr char outside = 0;
  static constexpr char untouched = 100;

  /// In a state's key, one byte per phase.
  static void join(std::string& key, std::size_t phases, std::size_t a, std::size_t b)
  {
    const char of_a = touch(key, phases, a);
    const char of_b = touch(key, phases, b);
    for (std::size_t phase = 0; phase < phases; ++phase) {
      if (key[phase] == std::max(of_a, of_b)) key[phase] = std::min(of_a, of_b);
    }
  }

 private:
  static char touch(std::string& key, std::size_t phases, std::size_t node)
  {
    if (node >= phases) return outside;
    if (key[node] == untouched) key[node] = static_cast<char>(node + 1);
    return key[node];
  }
};

enum class Answer { Exists, None, TooManyStates };

/// Whether some flow covers all layers. Device by device, it keeps the most layers for each imbalance of the nodes and
/// each set of components, and drops states that cannot cover all layers at these prices.
Answer cover(const Flow& flow, double layers, Effort& effort)
{
  const Prices prices(flow, layers, effort);
  constexpr double rounding_of_sums = 1e-6;
  if (prices.most_layers() < layers - rounding_of_sums) return Answer::None;
  struct Turn {
    const std::vector<Arc>* arcs;
    double most;
  };
  std::vector<Turn> turns;
  for (const auto& arcs : flow.arcs) turns.push_back({&arcs, prices.most_of(arcs)});
  std::stable_sort(turns.begin(), turns.end(), [](const Turn& a, const Turn& b) { return a.most > b.most; });

  struct Value {
    double layers;
    double worth;
  };
  using States = std::unordered_map<std::string, Value>;
  // Bytes: the components of the phases, then for each node the number of arcs that end there less those that begin
  // there, with +1 for the source and -1 for the sink at first.
  std::string begin(flow.phases + flow.nodes, 0);
  std::fill_n(begin.begin(), flow.phases, Components::untouched);
  begin[flow.phases + flow.source] = 1;
  begin[flow.phases + flow.sink] = -1;
  States states = {{begin, {0, 0}}};
  double left =
      std::accumulate(turns.begin(), turns.end(), 0.0, [](double sum, const Turn& turn) { return sum + turn.most; });
  std::size_t turns_left = turns.size();
  for (const Turn& turn : turns) {
    left -= turn.most;
    --turns_left;
    States next;
    const auto keep = [&](const std::string& key, const Value& value) {
      if (value.worth + left + prices.of_ends() < layers - rounding_of_sums) return;
      std::size_t to_leave = 0;
      for (std::size_t node = 0; node < flow.nodes; ++node) {
        // A count, not a character.  NOLINTNEXTLINE(bugprone-signed-char-misuse)
        const auto excess = static_cast<int>(static_cast<signed char>(key[flow.phases + node]));
        if (std::abs(excess) > (node < flow.phases ? 120 : 1)) return;
        to_leave += static_cast<std::size_t>(std::max(excess, 0));
      }
      if (to_leave > turns_left) return;
      const auto [known, is_new] = next.emplace(key, value);
      if (!is_new && known->second.layers < value.layers) known->second = value;
    };
    for (const auto& [key, value] : states) {
      effort.take((1 + turn.arcs->size()) * (steps_of_arc + key.size()));
      Effort::ensure_room(states.size() + next.size(), bytes_of_state + key.size(), "the states of a flow");
      keep(key, value);
      for (const Arc& arc : *turn.arcs) {
        std::string with_arc = key;
        --with_arc[flow.phases + arc.from];
        ++with_arc[flow.phases + arc.to];
        Components::join(with_arc, flow.phases, arc.from, arc.to);
        keep(with_arc, {value.layers + arc.layers, value.worth + prices.worth(arc)});
      }
      if (next.size() > most_states) return Answer::TooManyStates;
    }
    states = std::move(next);
  }
  for (const auto& [key, value] : states) {
    const bool is_balanced = std::all_of(key.begin() + static_cast<std::ptrdiff_t>(flow.phases), key.end(),
                                         [](char excess) { return excess == 0; });
    const bool is_one_trail = std::all_of(
        key.begin(), key.begin() + static_cast<std::ptrdiff_t>(flow.phases),
        [](char component) { return component == Components::outside || component == Components::untouched; });
    if (is_balanced && is_one_trail && value.layers >= layers - rounding_of_sums) return Answer::Exists;
  }
  return Answer::None;
}

}  // namespace

double phase_flow_bound(const Chain& chain, const Certificate& certificate, std::vector<std::string>& faults)
{
  if (chain.goal.objective != Objective::Bottleneck || chain.goal.communication != Communication::None) {
    faults.push_back("certificate.kind: claims phase-flow; it is only for objective bottleneck without communication");
  } else if (!memory_is_hereditary(chain)) {
    faults.push_back("certificate.kind: claims phase-flow; it is only for memory that grows with every layer");
  } else if (certificate.rungs.size() != 1 || !certificate.rungs.front().limit ||
             !std::isfinite(certificate.rungs.front().limit->value)) {
    faults.push_back("certificate.limit_s: claims none; it is one number");
  }
  if (!faults.empty()) return 0;

  const double limit = certificate.rungs.front().limit->value;
  Flow flow = flow_within(chain, limit * (1 + rounding));
  const Answer answer = trim(flow) ? cover(flow, static_cast<double>(chain.layers), chain.effort) : Answer::None;
  if (answer == Answer::None) return limit;
  faults.push_back(answer == Answer::Exists
                       ? fmt::format("certificate.limit_s: claims {:.9g}; it is not proven, since a flow over the "
                                     "phases covers all layers within it",
                                     limit)
                       : fmt::format("certificate.limit_s: claims {:.9g}; it is not checked, since that takes more "
                                     "than {} states",
                                     limit, most_states));
  return 0;
}

}  // namespace isobar::proofs
