#include "schedules/lowering/folded_links.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <tuple>

namespace isobar::schedules {

namespace {

/// Amounts that differ by less than a billionth are equal.
std::int64_t rounded(double amount)
{
  constexpr double steps = 1e9;
  if (amount <= 0) return std::numeric_limits<std::int64_t>::min();
  if (std::isinf(amount)) return std::numeric_limits<std::int64_t>::max();
  return std::llround(std::log(amount) * steps);
}

class Refinement {
 public:
  Refinement(const std::vector<FlowKind>& kinds, KnownPaths& paths) : kinds_(kinds), links_(paths.links())
  {
    std::map<std::tuple<std::size_t, std::int64_t, std::int64_t>, std::size_t> classes;
    for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
      for (const bool is_folded : {false, true}) {
        const auto& groups = is_folded ? kinds[kind].folded : kinds[kind].whole;
        for (std::size_t group = 0; group < groups.size(); ++group) {
          for (const FlowEnds& ends : groups[group]) {
            const KnownPaths::Known& known = paths.between(ends.from, ends.to);
            const auto key = std::tuple(kind, rounded(known.path.latency.value), rounded(known.path.bandwidth.value));
            const std::size_t number = classes.try_emplace(key, classes.size()).first->second;
            flows_.push_back({&known, kind, group, is_folded, number});
          }
        }
      }
    }
    classes_ = classes.size();
    std::map<std::size_t, std::size_t> rounds;  // by collective
    for (const auto& kind : kinds) ++rounds[kind.collective];
    for (const auto& kind : kinds) has_own_view_.push_back(kind.chain || rounds[kind.collective] > 1);
    find_loads();
  }

  FoldedLinks compare()
  {
    while (refine()) {
    }
    return {users(), unlike_kind()};
  }

  /// The links of which flows of the folded program are fewer, by name.
  std::vector<LinkUsers> users() const
  {
    std::vector<LinkUsers> result;
    for (std::size_t link = 0; link < links_.size(); ++link) {
      if (std::abs(users_[link] - 1) > 1e-12) result.push_back({std::string(links_[link].name), users_[link]});
    }
    std::sort(result.begin(), result.end(), [](const LinkUsers& a, const LinkUsers& b) { return a.link < b.link; });
    return result;
  }

 private:
  struct FlowState {
    const KnownPaths::Known* known = nullptr;
    std::size_t kind = 0;
    std::size_t group = 0;
    bool is_folded = false;
    std::size_t number = 0;  // of its class
  };

  /// A link of the whole program, or of the folded one.
  std::size_t place_of(std::size_t link, bool is_folded) const { return link + (is_folded ? links_.size() : 0); }

  /// Finds which links can be full, and by how much the folded program has fewer flows over them.
  void find_loads()
  {
    struct Load {
      double demand = 0;  // bytes per second, of all flows
      double least_latency = std::numeric_limits<double>::infinity();
      double most_latency = 0;
    };
    std::vector<Load> loads(2 * links_.size());
    for (const FlowState& flow : flows_) {
      for (const auto& [link, passes] : flow.known->links) {
        Load& load = loads[place_of(link, flow.is_folded)];
        load.demand += passes * flow.known->path.bandwidth.value * static_cast<double>(kinds_[flow.kind].lanes);
        load.least_latency = std::min(load.least_latency, flow.known->path.latency.value);
        load.most_latency = std::max(load.most_latency, flow.known->path.latency.value);
      }
    }
    find_users();
    counts_.assign(links_.size(), false);
    constexpr double rounding = 1e-9;
    for (std::size_t link = 0; link < links_.size(); ++link) {
      const Load& whole = loads[link];
      const Load& folded = loads[place_of(link, true)];
      const double most = links_[link].bandwidth * (1 + rounding);
      if (links_[link].is_fat_pipe) {
        // Flows of other latencies, and so of other weights, leave each other less.
        counts_[link] = std::max(whole.most_latency, folded.most_latency) >
                        std::min(whole.least_latency, folded.least_latency) * (1 + rounding);
      } else if (whole.demand > most || folded.demand > most) {
        counts_[link] = true;
      }
      if (!counts_[link] || links_[link].is_fat_pipe) users_[link] = 1;
    }
  }

  /// Of each link, how many flows there are for one in the folded program: of the kinds that it has there.
  void find_users()
  {
    struct Flows {
      double whole = 0;
      double folded = 0;
    };
    std::vector<Flows> all(links_.size());
    std::vector<Flows> of_kind(links_.size());
    const auto count_kind = [&](auto begin, auto end) {
      std::set<std::size_t> passed;
      for (auto flow = begin; flow != end; ++flow) {
        for (const auto& [link, passes] : flow->known->links) {
          passed.insert(link);
          (flow->is_folded ? of_kind[link].folded : of_kind[link].whole) += passes;
        }
      }
      for (const std::size_t link : passed) {
        const Flows own = std::exchange(of_kind[link], {});
        if (own.folded == 0) continue;
        all[link].whole += own.whole;
        all[link].folded += own.folded;
      }
    };
    for (auto begin = flows_.begin(); begin != flows_.end();) {
      const auto end = std::find_if(begin, flows_.end(), [&](const auto& flow) { return flow.kind != begin->kind; });
      count_kind(begin, end);
      begin = end;
    }
    users_.assign(links_.size(), 1);
    for (std::size_t link = 0; link < links_.size(); ++link) {
      if (all[link].whole > 0 && all[link].folded > 0) users_[link] = all[link].whole / all[link].folded;
    }
  }

  /// What flows of each class take of a link's bandwidth.
  using Shares = std::vector<std::pair<std::size_t, double>>;
  using Signature = std::vector<std::pair<std::size_t, std::int64_t>>;

  /// Whether flows of two kinds are never under way together.
  bool excludes(std::size_t kind, std::size_t other) const
  {
    const FlowKind& a = kinds_[kind];
    const FlowKind& b = kinds_[other];
    if (a.chain && a.chain == b.chain && a.turn != b.turn) return true;
    return kind != other && a.collective == b.collective && a.lanes == 1;
  }

  /// The shares on a link of the flows that may be under way together with those of a kind.
  Signature signature_of(const Shares& sorted, std::size_t link, bool is_folded, std::size_t kind) const
  {
    Signature signature;
    const double bandwidth = links_[link].bandwidth / (is_folded ? users_[link] : 1);
    for (std::size_t i = 0; i < sorted.size();) {
      const std::size_t number = sorted[i].first;
      double passes = 0;
      for (; i < sorted.size() && sorted[i].first == number; ++i) passes += sorted[i].second;
      const std::size_t other = kind_of_class_[number];
      if (excludes(kind, other)) continue;
      if (links_[link].is_fat_pipe) passes = 1;
      signature.emplace_back(number, rounded(passes / bandwidth));
    }
    return signature;
  }

  /// What tells apart the flows that a kind meets on a link: nothing, or its number, if it does not meet all others.
  std::size_t view_of(std::size_t kind) const { return has_own_view_[kind] ? kind + 1 : 0; }

  /// Divides the classes by those of the links; false if they stay as they are.
  bool refine()
  {
    std::vector<Shares> shares(2 * links_.size());
    for (const FlowState& flow : flows_) {
      for (const auto& [link, passes] : flow.known->links) {
        if (counts_[link]) shares[place_of(link, flow.is_folded)].emplace_back(flow.number, passes);
      }
    }
    kind_of_class_.resize(classes_);
    for (const FlowState& flow : flows_) kind_of_class_[flow.number] = flow.kind;
    for (auto& each : shares) std::sort(each.begin(), each.end());
    std::map<Signature, std::size_t> link_classes;
    // By link and collective: those of one round each see the same of all others.
    std::unordered_map<std::uint64_t, std::size_t> class_of_link;
    const auto class_of = [&](std::size_t link, const FlowState& flow) {
      const std::size_t place = place_of(link, flow.is_folded);
      const std::uint64_t key = std::uint64_t{place} * (kinds_.size() + 1) + view_of(flow.kind);
      const auto [found, is_new] = class_of_link.try_emplace(key, 0);
      if (is_new) {
        const auto signature = signature_of(shares[place], link, flow.is_folded, flow.kind);
        found->second = link_classes.try_emplace(signature, link_classes.size()).first->second;
      }
      return found->second;
    };
    std::map<std::pair<std::size_t, Signature>, std::size_t> classes;
    for (FlowState& flow : flows_) {
      std::pair<std::size_t, Signature> key = {flow.number, {}};
      for (const auto& [link, passes] : flow.known->links) {
        if (counts_[link]) key.second.emplace_back(class_of(link, flow), rounded(passes));
      }
      std::sort(key.second.begin(), key.second.end());
      flow.number = classes.try_emplace(std::move(key), classes.size()).first->second;
    }
    return std::exchange(classes_, classes.size()) != classes.size();
  }

  /// The first kind of which a group has flows of other classes than the others; none if all are alike.
  std::optional<std::size_t> unlike_kind() const
  {
    std::map<std::tuple<std::size_t, bool, std::size_t>, std::set<std::size_t>> of_group;
    for (const FlowState& flow : flows_) of_group[{flow.kind, flow.is_folded, flow.group}].insert(flow.number);
    for (std::size_t kind = 0; kind < kinds_.size(); ++kind) {
      static const std::set<std::size_t> none;
      const std::set<std::size_t>* first = nullptr;
      for (const bool is_folded : {false, true}) {
        const std::size_t groups = is_folded ? kinds_[kind].folded.size() : kinds_[kind].whole.size();
        for (std::size_t group = 0; group < groups; ++group) {
          const auto found = of_group.find({kind, is_folded, group});
          const auto& own = found == of_group.end() ? none : found->second;
          if (first == nullptr) first = &own;
          if (own != *first) return kind;
        }
      }
    }
    return std::nullopt;
  }

  const std::vector<FlowKind>& kinds_;
  const std::vector<KnownPaths::Link>& links_;
  std::vector<FlowState> flows_;
  std::size_t classes_ = 0;
  std::vector<std::size_t> kind_of_class_;
  std::vector<bool> has_own_view_;  // by kind
  std::vector<double> users_;       // by link
  std::vector<bool> counts_;        // by link: whether it can be full
};

}  // namespace

const KnownPaths::Known& KnownPaths::between(std::size_t from, std::size_t to)
{
  constexpr unsigned half = 32;
  const auto [found, is_new] = known_.try_emplace((std::uint64_t{from} << half) | to);
  Known& known = found->second;
  if (!is_new) return known;
  known.path = network_.path(from, to);
  for (const SharedLink& link : network_.shared_links(from, to)) {
    const auto [number, is_first] = number_of_.try_emplace(link.name, links_.size());
    if (is_first) links_.push_back({link.name, link.bandwidth.value, link.is_fat_pipe});
    known.links.emplace_back(number->second, link.passes);
  }
  return known;
}

FoldedLinks compare_flows(const std::vector<FlowKind>& kinds, KnownPaths& paths)
{
  return Refinement(kinds, paths).compare();
}

std::vector<LinkUsers> users_of_links(const std::vector<FlowKind>& kinds, KnownPaths& paths)
{
  return Refinement(kinds, paths).users();
}

}  // namespace isobar::schedules
