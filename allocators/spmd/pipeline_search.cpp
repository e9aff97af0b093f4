#include "allocators/spmd/pipeline_search.hpp"

#include "allocators/bounds/comparisons.hpp"
#include "core/base/interrupt.hpp"
#include "core/errors.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/program/collective.hpp"
#include "core/program/round_time.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

namespace isobar::allocators::spmd {

namespace {

using Devices = std::vector<std::size_t>;

/// Of a search with limits of memory. There are many, of which one counts in the end.
constexpr std::uint64_t most_pipeline_labels = 10'000;

/// A step of waves: the first one passes all groups, and the others leave the slowest of them one by one.
double cost_of_waves(std::uint64_t waves, double sum, double longest)
{
  return static_cast<double>(waves - 1) * longest + sum;
}

/// How long slices of the samples of a tensor take from a group to the next one, alone.
Seconds transfer_time(const Cluster& cluster, const Devices& from, const Devices& to, Bytes size)
{
  const auto begin_of = [&](std::size_t count, std::size_t i) {
    return static_cast<double>(i) / static_cast<double>(count);
  };
  Round round;
  for (std::size_t i = 0; i < from.size(); ++i) {
    for (std::size_t j = 0; j < to.size(); ++j) {
      const double begin = std::max(begin_of(from.size(), i), begin_of(to.size(), j));
      const double end = std::min(begin_of(from.size(), i + 1), begin_of(to.size(), j + 1));
      if (end > begin) round.push_back({from[i], to[j], (end - begin) * size});
    }
  }
  const EndNetwork network{[&](std::size_t a, std::size_t b, Bytes bytes) {
                             const Path path = cluster.path(a, b);
                             return TransferTimes{path.latency, path.data_time(bytes)};
                           },
                           [&](std::size_t a, std::size_t b) { return cluster.network->shared_links(a, b); }};
  return round_time(round, network);
}

/// The pipelines of one order of the groups.
class PipelineSearch {
 public:
  PipelineSearch(const Workload& workload, const Cluster& cluster, std::vector<Devices> groups,
                 std::uint64_t microbatches, SpmdOptions options)
      : workload_(workload),
        cluster_(cluster),
        groups_(std::move(groups)),
        options_(std::move(options)),
        wave_(micro_batches_of_wave(microbatches)),
        waves_(waves_of(microbatches)),
        graph_(operator_graph_of(workload, wave_ * workload.micro_batch)),
        cuts_(pipeline_cuts(graph_))
  {
    options_.microbatches = {wave_};
    options_.most_labels = std::min(options_.most_labels, most_pipeline_labels);
    cuts_.insert(cuts_.begin(), 0);
    cuts_.push_back(graph_.operators.size());
    for (const Devices& group : groups_) {
      std::size_t first = 0;
      while (!are_alike(groups_[first], group)) ++first;
      alike_.push_back(first);
    }
    for (std::size_t group = 0; group + 1 < groups_.size(); ++group) {
      auto& times = transfers_.emplace_back();
      for (const std::size_t cut : cuts_) times.push_back(transfer(group, cut));
    }
  }

  std::optional<SpmdPipeline> run()
  {
    constexpr int most_turns = 6;
    if (cuts_.size() < groups_.size() + 1 || !estimate()) return std::nullopt;
    std::optional<SpmdPipeline> best;
    std::set<std::vector<std::size_t>> known;
    for (int turn = 0; turn < most_turns; ++turn) {
      throw_if_interrupted();
      const auto ends = best_ends();
      if (!ends || !known.insert(*ends).second) break;
      auto pipeline = pipeline_of(*ends);
      if (pipeline && (!best || pipeline->cost < best->cost)) best = std::move(pipeline);
    }
    return best;
  }

 private:
  struct Label {
    double sum = 0;
    double longest = 0;
    std::size_t cut = 0;     // where the group begins, in cuts_
    std::size_t before = 0;  // label there
  };

  /// Whether the devices of two groups, and the paths between those of each, are the same but for their names.
  bool are_alike(const Devices& a, const Devices& b) const
  {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i) {
      const Device& one = cluster_.devices[a[i]];
      const Device& other = cluster_.devices[b[i]];
      if (operator_rates_of(workload_, one) != operator_rates_of(workload_, other)) return false;
      if (one.memory != other.memory || one.interference != other.interference) return false;
      if (one.collective_start != other.collective_start) return false;
      for (std::size_t j = 0; j < a.size(); ++j) {
        if (i == j) continue;
        const Path path = cluster_.path(a[i], a[j]);
        const Path its = cluster_.path(b[i], b[j]);
        if (path.latency != its.latency || path.bandwidth != its.bandwidth) return false;
      }
    }
    return true;
  }

  GroupRun run_of(std::size_t group, std::size_t begin, std::size_t end) const
  {
    return {cuts_[begin], cuts_[end], waves_, wave_ * std::min<std::uint64_t>(groups_.size() - group, waves_)};
  }

  /// Of a wave from a group to the next one, forward or backward.
  double transfer(std::size_t group, std::size_t cut) const
  {
    const auto crossing = crossing_tensors(graph_, cut);
    if (crossing.size() != 1) return infinity;
    return transfer_time(cluster_, groups_[group], groups_[group + 1], graph_.tensors[crossing.front()].size).value;
  }

  /// Finds the sums of estimated times of each group at the cuts, for devices that have enough memory.
  bool estimate()
  {
    Cluster roomy = cluster_;
    for (auto& device : roomy.devices) device.memory = Bytes(infinity);
    for (std::size_t group = 0; group < groups_.size(); ++group) {
      if (alike_[group] != group) {
        until_cut_.push_back(until_cut_[alike_[group]]);
        continue;
      }
      const auto plan = find_spmd_plan(graph_, workload_, roomy, Replicas{groups_[group]}, options_,
                                       run_of(group, 0, cuts_.size() - 1));
      if (!plan) return false;
      std::vector<double> until(graph_.operators.size() + 1, 0);
      for (std::size_t part = 0; part < plan->cuts.size(); ++part) {
        const std::size_t begin = plan->cuts[part];
        const std::size_t end = part + 1 < plan->cuts.size() ? plan->cuts[part + 1] : graph_.operators.size();
        Flops all;
        for (std::size_t i = begin; i < end; ++i) all += work_of(i);
        for (std::size_t i = begin; i < end; ++i) {
          const double weight = all > Flops(0) ? work_of(i) / all : 1 / static_cast<double>(end - begin);
          until[i + 1] = until[i] + weight * plan->part_costs[part].value;
        }
      }
      auto& sums = until_cut_.emplace_back();
      for (const std::size_t cut : cuts_) sums.push_back(until[cut]);
    }
    scales_.assign(groups_.size(), 1);
    too_long_.resize(groups_.size());
    return true;
  }

  Flops work_of(std::size_t index) const { return graph_.operators[index].forward + graph_.operators[index].backward; }

  double estimated(std::size_t group, std::size_t begin, std::size_t end) const
  {
    for (const auto& [first, last] : too_long_[group]) {
      if (begin <= first && last <= end) return infinity;
    }
    return scales_[group] * (until_cut_[group][end] - until_cut_[group][begin]);
  }

  /// Where each group ends, in cuts_, by the estimated times; none if no run of some group fits.
  std::optional<std::vector<std::size_t>> best_ends() const
  {
    std::vector<std::vector<std::vector<Label>>> labels;  // by group and the cut at which it ends
    for (std::size_t group = 0; group < groups_.size(); ++group) {
      const bool is_last = group + 1 == groups_.size();
      auto& its = labels.emplace_back(cuts_.size());
      for (std::size_t end = group + 1; end < cuts_.size(); ++end) {
        if (is_last != (end + 1 == cuts_.size())) continue;
        for (std::size_t begin = group; begin < end; ++begin) {
          const double time = estimated(group, begin, end);
          const double leave = is_last ? 0 : transfers_[group][end];
          if (time == infinity || leave == infinity) continue;
          if (group == 0) {
            if (begin == 0) insert(its[end], {time + 2 * leave, std::max(time, leave), 0, 0});
            continue;
          }
          for (std::size_t i = 0; i < labels[group - 1][begin].size(); ++i) {
            const Label& before = labels[group - 1][begin][i];
            insert(its[end], {before.sum + time + 2 * leave, std::max({before.longest, time, leave}), begin, i});
          }
        }
      }
    }
    const auto& last = labels.back().back();
    if (last.empty()) return std::nullopt;
    const Label* label = &*std::min_element(last.begin(), last.end(), [&](const Label& a, const Label& b) {
      return cost_of_waves(waves_, a.sum, a.longest) < cost_of_waves(waves_, b.sum, b.longest);
    });
    std::vector<std::size_t> ends(groups_.size(), cuts_.size() - 1);
    for (std::size_t group = groups_.size() - 1; group > 0; --group) {
      ends[group - 1] = label->cut;
      label = &labels[group - 1][label->cut][label->before];
    }
    return ends;
  }

  static void insert(std::vector<Label>& labels, const Label& label)
  {
    const auto is_no_worse = [](const Label& a, const Label& b) { return a.sum <= b.sum && a.longest <= b.longest; };
    for (const Label& other : labels) {
      if (is_no_worse(other, label)) return;
    }
    std::erase_if(labels, [&](const Label& other) { return is_no_worse(label, other); });
    labels.push_back(label);
  }

  /// The pipeline of groups that end at some cuts. Scales the estimates by what it finds.
  std::optional<SpmdPipeline> pipeline_of(const std::vector<std::size_t>& ends)
  {
    SpmdPipeline pipeline;
    pipeline.signatures.resize(graph_.operators.size());
    double sum = 0;
    double longest = 0;
    bool fits = true;
    for (std::size_t group = 0; group < groups_.size(); ++group) {
      const std::size_t begin = group == 0 ? 0 : ends[group - 1];
      const std::size_t end = ends[group];
      const auto& plan = plan_of(group, begin, end);
      if (!plan) {
        leave_out(group, begin, end);
        fits = false;
        continue;
      }
      const double time = plan->cost.value;
      const double estimate = until_cut_[group][end] - until_cut_[group][begin];
      if (estimate > 0) scales_[group] = time / estimate;
      const double leave = group + 1 < groups_.size() ? transfers_[group][end] : 0;
      sum += time + 2 * leave;
      longest = std::max({longest, time, leave});
      for (std::size_t i = 0; i < plan->signatures.size(); ++i) {
        const bool is_its = plan->signatures[i] != Signature{};
        if (is_its) pipeline.signatures[i] = plan->signatures[i];
      }
      pipeline.cuts.insert(pipeline.cuts.end(), plan->cuts.begin(), plan->cuts.end());
      pipeline.groups.push_back({groups_[group], plan->shares, pipeline.cuts.size()});
    }
    if (!fits) return std::nullopt;
    pipeline.cost = Seconds(cost_of_waves(waves_, sum, longest));
    return pipeline;
  }

  /// Remembers the shortest run within one that does not fit which does not, either: with its begin, or of the last
  /// group with its end.
  void leave_out(std::size_t group, std::size_t begin, std::size_t end)
  {
    const bool is_last = group + 1 == groups_.size();
    std::size_t fits = is_last ? end : begin;  // up to there, or from there on, it is empty or fits
    std::size_t fits_not = is_last ? begin : end;
    while (std::max(fits, fits_not) - std::min(fits, fits_not) > 1) {
      const std::size_t middle = (fits + fits_not) / 2;
      (plan_of(group, is_last ? middle : begin, is_last ? end : middle) ? fits : fits_not) = middle;
    }
    too_long_[group].emplace_back(is_last ? fits_not : begin, is_last ? end : fits_not);
  }

  const std::optional<SpmdPlan>& plan_of(std::size_t group, std::size_t begin, std::size_t end)
  {
    const GroupRun run = run_of(group, begin, end);
    const auto [place, is_new] = plans_.try_emplace({alike_[group], begin, end, run.held});
    if (is_new) place->second = find_spmd_plan(graph_, workload_, cluster_, Replicas{groups_[group]}, options_, run);
    return place->second;
  }

  const Workload& workload_;
  const Cluster& cluster_;
  std::vector<Devices> groups_;
  SpmdOptions options_;
  std::uint64_t wave_;  // micro-batches
  std::uint64_t waves_;
  OperatorGraph graph_;  // of a wave
  std::vector<std::size_t> cuts_;
  std::vector<std::size_t> alike_;              // of each group, the first one that is like it
  std::vector<std::vector<double>> transfers_;  // by group and cut
  std::vector<std::vector<double>> until_cut_;  // by group and cut: estimated time of all operators before
  std::vector<double> scales_;
  std::vector<std::vector<std::pair<std::size_t, std::size_t>>> too_long_;  // by group, runs that do not fit
  /// Of the first of groups that are alike, begin and end, and GroupRun::held.
  std::map<std::tuple<std::size_t, std::size_t, std::size_t, std::uint64_t>, std::optional<SpmdPlan>> plans_;
};

FlopsPerSecond speed_of(const Workload& workload, const Cluster& cluster, const Devices& group)
{
  FlopsPerSecond speed;
  for (const std::size_t device : group) speed += cluster.devices[device].speed_at(workload.dtype);
  return speed;
}

/// The orders of groups to try, each once.
std::vector<std::vector<Devices>> orders_of(const Workload& workload, const Cluster& cluster,
                                            std::vector<Devices> groups)
{
  std::stable_sort(groups.begin(), groups.end(), [&](const Devices& a, const Devices& b) {
    return speed_of(workload, cluster, a) > speed_of(workload, cluster, b);
  });
  std::vector<std::vector<Devices>> orders = {groups};
  std::vector<Devices> chain = {groups.front()};
  groups.erase(groups.begin());
  while (!groups.empty()) {
    const auto bandwidth_to = [&](const Devices& group) {
      return cluster.path(chain.back().front(), group.front()).bandwidth;
    };
    const auto next = std::max_element(groups.begin(), groups.end(), [&](const Devices& a, const Devices& b) {
      return bandwidth_to(a) < bandwidth_to(b);
    });
    chain.push_back(std::move(*next));
    groups.erase(next);
  }
  if (chain != orders.front()) orders.push_back(std::move(chain));
  return orders;
}

}  // namespace

std::vector<std::size_t> pipeline_cuts(const OperatorGraph& graph)
{
  const auto samples = sample_dimensions(graph);
  std::vector<std::size_t> cuts;
  std::vector<bool> is_read_together(graph.operators.size(), false);  // by cut
  const auto readers = graph.readers();
  for (std::size_t tensor = 0; tensor < graph.tensors.size(); ++tensor) {
    const auto kind = graph.operators[graph.tensors[tensor].producer].kind;
    if (!is_source(kind) || kind == OperatorKind::CausalMask || readers[tensor].empty()) continue;
    const bool is_parameter = kind == OperatorKind::Parameter;
    const std::size_t first = is_parameter ? graph.tensors[tensor].producer : readers[tensor].front();
    for (std::size_t cut = first + 1; cut <= readers[tensor].back(); ++cut) is_read_together[cut] = true;
  }
  for (std::size_t cut = 1; cut < graph.operators.size(); ++cut) {
    if (is_read_together[cut]) continue;
    const auto crossing = crossing_tensors(graph, cut);
    if (crossing.size() != 1 || !graph.has_gradient(crossing.front())) continue;
    if (samples[crossing.front()] == std::uint8_t{0}) cuts.push_back(cut);
  }
  return cuts;
}

std::optional<SpmdPipeline> find_spmd_pipeline(const Workload& workload, const Cluster& cluster,
                                               const std::vector<std::vector<std::size_t>>& groups,
                                               std::uint64_t microbatches, const SpmdOptions& options)
{
  ensure(groups.size() > 1, "a pipeline has several groups");
  std::optional<SpmdPipeline> best;
  for (auto& order : orders_of(workload, cluster, groups)) {
    auto found = PipelineSearch(workload, cluster, std::move(order), microbatches, options).run();
    if (found && (!best || found->cost < best->cost)) best = std::move(found);
  }
  return best;
}

}  // namespace isobar::allocators::spmd
