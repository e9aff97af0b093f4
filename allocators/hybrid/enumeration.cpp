#include "allocators/hybrid/enumeration.hpp"

#include "core/model/layer_graph.hpp"
#include "schedules/orders/schedule.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <numeric>

namespace isobar::allocators {

namespace {

constexpr double most_pipelines = 5'000;
constexpr std::size_t most_devices = 5;
constexpr std::uint64_t most_microbatches = 16;
constexpr double tolerance_of_sums = 1e-12;  // of sums of times

class Enumeration {
 public:
  Enumeration(const HybridProblem& problem, std::size_t most_replicas, Seconds incumbent, const PipelinePrice& price,
              const std::function<bool()>& stop)
      : goal_(problem.goal),
        cost_(problem.view.workload, problem.cluster),
        most_replicas_(most_replicas),
        least_(incumbent),
        price_(price),
        stop_(stop)
  {
    splits_backward_ = schedules::require_schedule(goal_.schedule.name).splits_backward;
  }

  std::optional<std::vector<Pipeline>> best()
  {
    add_pipelines({}, 0, 0);
    std::sort(pipelines_.begin(), pipelines_.end(),
              [](const Bounded& a, const Bounded& b) { return a.alone < b.alone; });
    add_to_set(0, 0);
    return std::move(best_);
  }

 private:
  /// A pipeline, and what no order of its passes is below.
  struct Bounded {
    std::vector<PipelineStage> stages;
    std::uint64_t devices = 0;    // bits
    Seconds alone;                // one micro-batch
    Seconds period;               // each further one
    std::vector<Seconds> others;  // by stage, before and after its passes
    std::vector<Seconds> passes;  // by stage, of each micro-batch

    Seconds least_step(std::uint64_t microbatches) const
    {
      Seconds least = alone + static_cast<double>(microbatches - 1) * period;
      for (std::size_t i = 0; i < passes.size(); ++i) {
        least = std::max(least, others[i] + static_cast<double>(microbatches) * passes[i]);
      }
      return least;
    }
  };

  void add_pipelines(std::vector<PipelineStage> stages, std::size_t first, std::uint64_t used)
  {
    if (first == cost_.layers()) {
      pipelines_.push_back(bounded(stages, used));
      return;
    }
    for (std::size_t device = 0; device < cost_.devices(); ++device) {
      const std::uint64_t bit = std::uint64_t{1} << device;
      if ((used & bit) != 0) continue;
      for (std::size_t last = first; last < cost_.layers(); ++last) {
        stages.push_back({{device}, first, last});
        add_pipelines(stages, last + 1, used | bit);
        stages.pop_back();
      }
    }
  }

  Bounded bounded(const std::vector<PipelineStage>& stages, std::uint64_t devices) const
  {
    const bool is_free = goal_.has_free_transfers();
    Bounded result{stages, devices, {}, {}, {}, {}};
    const TransferTimes input = is_free ? TransferTimes() : cost_.input_transfer(stages.front().devices.front());
    result.alone = input.total();
    result.period = input.data;
    Seconds there = input.total();
    Seconds back;
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const std::size_t device = stages[i].devices.front();
      const Seconds forward = cost_.forward_time(device, stages[i].first_layer, stages[i].last_layer);
      const Seconds backward = cost_.backward_time(device, stages[i].first_layer, stages[i].last_layer);
      // Split backward passes end a micro-batch sooner; then only the forwards are on its way.
      const Seconds on_the_way = splits_backward_ ? Seconds(0) : backward;
      result.others.push_back(there + back);
      result.passes.push_back(forward + backward);
      result.alone += forward + on_the_way;
      result.period = std::max({result.period, forward, on_the_way});
      there += forward;
      back += on_the_way;
      if (i + 1 == stages.size() || is_free) continue;
      const std::size_t next = stages[i + 1].devices.front();
      const TransferTimes output = cost_.output_transfer(device, next, stages[i + 1].first_layer);
      const TransferTimes gradient = cost_.gradient_transfer(device, next, stages[i + 1].first_layer);
      result.alone += output.total() + gradient.total();
      result.period = std::max({result.period, output.data, gradient.data});
      there += output.total();
      back += splits_backward_ ? Seconds(0) : gradient.total();
    }
    return result;
  }

  bool is_below(Seconds bound) const { return bound < least_ * (1 - tolerance_of_sums); }

  /// Adds further pipelines, from number `next` on, to the set, and tries each set.
  void add_to_set(std::size_t next, std::uint64_t used)
  {
    for (std::size_t i = next; i < pipelines_.size() && is_below(pipelines_[i].alone); ++i) {
      if ((pipelines_[i].devices & used) != 0) continue;
      set_.push_back(i);
      try_shares(0, goal_.microbatches);
      if (set_.size() < std::min<std::uint64_t>(most_replicas_, goal_.microbatches) && !is_over_) {
        add_to_set(i + 1, used | pipelines_[i].devices);
      }
      set_.pop_back();
      if (is_over_) return;
    }
  }

  void try_shares(std::size_t index, std::uint64_t left)
  {
    const Bounded& pipeline = pipelines_[set_[index]];
    const bool is_last = index + 1 == set_.size();
    const std::uint64_t others = set_.size() - 1 - index;
    for (std::uint64_t share = is_last ? left : 1; share + others <= left; ++share) {
      if (!is_below(pipeline.least_step(share)) || is_over_) return;
      shares_.push_back(share);
      if (is_last) {
        price_set();
      } else {
        try_shares(index + 1, left - share);
      }
      shares_.pop_back();
    }
  }

  void price_set()
  {
    std::vector<std::size_t> order(set_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    do {
      if (is_over_ = stop_(); is_over_) return;
      std::vector<Pipeline> pipelines;
      for (const std::size_t i : order) pipelines.push_back({shares_[i], pipelines_[set_[i]].stages});
      const auto step = price_(pipelines);
      if (!step || *step >= least_) continue;
      least_ = *step;
      best_ = std::move(pipelines);
    } while (std::next_permutation(std::next(order.begin()), order.end()));  // a ring begins anywhere
  }

  Goal goal_;
  CostModel cost_;
  std::size_t most_replicas_;
  Seconds least_;
  const PipelinePrice& price_;
  const std::function<bool()>& stop_;
  bool splits_backward_ = false;
  bool is_over_ = false;
  std::vector<Bounded> pipelines_;
  std::vector<std::size_t> set_;
  std::vector<std::uint64_t> shares_;
  std::optional<std::vector<Pipeline>> best_;
};

}  // namespace

bool are_few_pipelines(std::size_t layers, std::size_t devices, std::uint64_t microbatches)
{
  if (devices > most_devices || microbatches > most_microbatches) return false;
  double pipelines = 0;
  double of_length = 1;  // ordered devices x cuts
  for (std::size_t length = 1; length <= std::min(layers, devices) && pipelines <= most_pipelines; ++length) {
    of_length *= static_cast<double>(devices - length + 1);
    if (length > 1) of_length *= static_cast<double>(layers - length + 1) / static_cast<double>(length - 1);
    pipelines += of_length;
  }
  return pipelines <= most_pipelines;
}

std::optional<std::vector<Pipeline>> enumerate_pipelines(const HybridProblem& problem, std::size_t most_replicas,
                                                         Seconds incumbent, const PipelinePrice& price,
                                                         const std::function<bool()>& stop)
{
  return Enumeration(problem, most_replicas, incumbent, price, stop).best();
}

}  // namespace isobar::allocators
