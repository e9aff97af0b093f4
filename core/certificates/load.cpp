// The bound by the loads of devices (docs/certificates.md). Micro-batches are paths over runs of layers on devices; a
// device has time for a number of them within a step.

#include "core/certificates/proofs.hpp"
#include "core/costs/layer_times.hpp"
#include "core/model/layer_graph.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/sharding.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace isobar::proofs {

namespace {

/// The devices of a group, as one that is as good as any of them; or several that divide layers, as one as good as all.
struct Kind {
  double speed = 0;
  double memory = 0;
  double multiplier = 0;
  std::size_t devices = 0;
  double input_s = infinity;
  bool is_divided = false;
};

/// The best of the paths from one kind to another.
struct Link {
  double latency = infinity;
  double bandwidth = 0;

  void improve(const Path& path)
  {
    latency = std::min(latency, path.latency.value);
    bandwidth = std::max(bandwidth, path.bandwidth.value);
  }
};

/// One way to divide the parameters of a run, and what it allows.
struct Memory {
  double held = 0;  // micro-batches at a time
  double most = 0;  // micro-batches of a step
};

class Loads {
 public:
  Loads(const Plan& plan, const Workload& workload, const Cluster& cluster, const Chain& sums)
      : workload_(workload),
        cluster_(cluster),
        sums_(sums),
        microbatches_(static_cast<double>(plan.goal.microbatches)),
        is_shared_(has_shared_stages(plan)),
        takes_whole_runs_(takes_whole_runs(plan)),
        schedule_(chain_schedule(ScheduleChoice{.name = plan.goal.schedule.name})),
        counts_transfers_(!plan.goal.has_free_transfers())
  {
    const auto& rung = plan.certificate.rungs.front();
    limit_ = rung.limit->value * (1 + rounding);
    const bool may_divide = is_shared_ && sums.devices > 1;
    std::size_t divided_from = 0;  // the first cut from which on all layers can be divided, so far
    const auto work = work_of_layers(workload, reference_times(workload, cluster));
    double weights = 0;
    weights_.push_back(0);
    parameters_.push_back(0);
    divided_from_.push_back(0);
    for (std::size_t k = 0; k < sums.layers; ++k) {
      const Layer& layer = workload.layers[k];
      const bool can_divide = may_divide && layer.split && layer.split->units >= 2;
      has_divided_ = has_divided_ || can_divide;
      if (!can_divide) divided_from = k + 1;
      divided_from_.push_back(divided_from);
      if (!schedule_) weights += work[k].backward_weight.value;
      weights_.push_back(weights);
      parameters_.push_back(parameters_.back() + static_cast<double>(layer.parameters));
    }
    if (is_shared_) find_largest();
    collect_kinds(plan.certificate, rung);
    collect_links(plan.certificate);
  }

  /// Whether no step within the limit has room for all micro-batches.
  bool leave_no_room()
  {
    const auto layers = static_cast<std::uint64_t>(sums_.layers);
    const auto kinds = static_cast<std::uint64_t>(kinds_.size());
    sums_.effort.take(layers * layers * kinds * 2 + layers * kinds * kinds * 2);
    look_forward();
    look_beyond();
    std::vector<double> least(sums_.layers + 1, infinity);
    least[0] = 0;
    for (std::size_t end = 1; end <= sums_.layers; ++end) {
      for (std::size_t first = 0; first < end; ++first) {
        if (least[first] == infinity) continue;
        for (std::size_t kind = 0; kind < kinds_.size(); ++kind) {
          least[end] = std::min(least[end], least[first] + cost(first, end, kind));
        }
      }
    }
    double all = 0;
    for (const auto& kind : kinds_) all += kind.multiplier * static_cast<double>(kind.devices);
    return all * (1 + rounding) < microbatches_ * least.back();
  }

 private:
  void collect_kinds(const Certificate& certificate, const Certificate::Rung& rung)
  {
    kinds_.resize(rung.multipliers.size());
    for (std::size_t i = 0; i < sums_.devices; ++i) {
      Kind& kind = kinds_[group_of(certificate, i)];
      kind.speed = std::max(kind.speed, sums_.speed[i]);
      kind.memory = std::max(kind.memory, sums_.memory[i] * (1 + memory_tolerance));
      ++kind.devices;
    }
    for (std::size_t k = 0; k < kinds_.size(); ++k) kinds_[k].multiplier = rung.multipliers[k];
    if (!has_divided_) return;
    Kind all;
    all.is_divided = true;
    for (const auto& kind : kinds_) all.speed = std::max(all.speed, kind.speed);
    all.speed *= static_cast<double>(sums_.devices);
    kinds_.push_back(all);
  }

  /// Finds the layer with most parameters of each run.
  void find_largest()
  {
    Effort::ensure_room(sums_.layers * sums_.layers, sizeof(std::uint32_t), "the runs of layers");
    largest_.resize(sums_.layers * sums_.layers);
    for (std::size_t first = 0; first < sums_.layers; ++first) {
      std::size_t largest = first;
      for (std::size_t last = first; last < sums_.layers; ++last) {
        if (workload_.layers[last].parameters > workload_.layers[largest].parameters) largest = last;
        largest_[first * sums_.layers + last] = static_cast<std::uint32_t>(largest);
      }
    }
  }

  static std::size_t group_of(const Certificate& certificate, std::size_t device)
  {
    return certificate.groups.empty() ? 0 : certificate.groups[device];
  }

  void collect_links(const Certificate& certificate)
  {
    const double blocks = has_divided_ ? static_cast<double>(sums_.devices) : 1;
    links_.resize(kinds_.size() * kinds_.size());
    const std::size_t all = kinds_.size() - 1;
    for (std::size_t i = 0; i < sums_.devices; ++i) {
      double input = 0;
      if (cluster_.data_server && counts_transfers_) {
        const Path path = cluster_.path(cluster_.data_server_index(), i);
        input = path.latency.value + sums_.output.front() / blocks / path.bandwidth.value;
      }
      for (const std::size_t kind : {group_of(certificate, i), all}) {
        kinds_[kind].input_s = std::min(kinds_[kind].input_s, input);
      }
      if (!counts_transfers_) continue;
      sums_.effort.take(sums_.devices);
      for (std::size_t j = 0; j < sums_.devices; ++j) {
        if (i == j) continue;
        const Path path = cluster_.path(i, j);
        const std::size_t from = group_of(certificate, i);
        const std::size_t to = group_of(certificate, j);
        link(from, to).improve(path);
        if (!has_divided_) continue;
        link(from, all).improve(path);
        link(all, to).improve(path);
        link(all, all).improve(path);
      }
    }
  }

  Link& link(std::size_t from, std::size_t to) { return links_[from * kinds_.size() + to]; }

  double transfer(std::size_t from, std::size_t to, double bytes)
  {
    if (!counts_transfers_) return 0;
    const Link& best = link(from, to);
    if (best.latency == infinity) return infinity;  // there are no two such devices
    const bool in_blocks = kinds_[from].is_divided || kinds_[to].is_divided;
    return best.latency + bytes / (in_blocks ? static_cast<double>(sums_.devices) : 1) / best.bandwidth;
  }

  /// Micro-batches that `bytes` hold, if each takes `each`.
  double held_in(double bytes, double each) const
  {
    if (bytes < 0 || bytes < each) return 0;
    return each * microbatches_ <= bytes ? microbatches_ : std::floor(bytes / each * (1 + rounding));
  }

  /// What the memory of a kind allows for the layers between two cuts, by each way to divide parameters.
  std::vector<Memory> memories(std::size_t first, std::size_t end, std::size_t kind) const
  {
    if (kinds_[kind].is_divided) {
      if (divided_from_[end] > first) return {};
      return {{microbatches_, microbatches_}};
    }
    // Chain counts the least bytes of a parameter that any plan needs; here it depends on who divides it.
    const double parameters = parameters_[end] - parameters_[first];
    const ParameterBytes bytes = parameter_bytes(workload_);
    const double rest =
        sums_.is_sky ? sums_.need(first, end, 0) : sums_.buffer(first) + sums_.buffer(end) + sums_.workspace;
    const double activations = sums_.is_sky ? 0 : sums_.activations[end] - sums_.activations[first];
    const double left = kinds_[kind].memory - rest;
    const double whole = sums_.is_sky ? 0 : bytes.all();
    std::vector<Memory> ways = {{held_in(left - parameters * whole, activations), microbatches_}};
    const double most_replicas = std::min(static_cast<double>(sums_.devices), microbatches_);
    if (is_shared_ && !sums_.is_sky && most_replicas >= 2) {
      for (const bool divides_all : {false, true}) {
        const double divided = divides_all ? whole : bytes.gradient + bytes.optimizer;
        // While a layer's first gradients are computed, its device has all of them, and all of its parameters.
        const Layer& layer = workload_.layers[largest_[first * sums_.layers + end - 1]];
        const double gathered =
            static_cast<double>(layer.parameters) * (whole - bytes.optimizer - (divides_all ? 0 : bytes.parameter));
        const auto fits = [&](double replicas) {
          const double own = parameters * (whole - divided + divided / replicas);
          const double peak = gathered * (1 - 1 / replicas) + layer.activations.value;
          return own + std::max(activations, peak) <= left * (1 + rounding);
        };
        if (!fits(most_replicas)) continue;
        // The least number of replicas with which it fits.
        double low = 1;
        double high = most_replicas;
        while (high - low > 1) {
          const double middle = std::floor((low + high) / 2);
          (fits(middle) ? high : low) = middle;
        }
        const double held = held_in(left - parameters * (whole - divided + divided / most_replicas), activations);
        // Each other replica takes a micro-batch; where parameters are divided, all take as many.
        ways.push_back({held, divides_all ? std::floor(microbatches_ / high) : microbatches_ - high + 1});
      }
    }
    std::erase_if(ways, [](const Memory& way) { return way.held < 1; });
    return ways;
  }

  double forward_s(std::size_t first, std::size_t end, std::size_t kind) const
  {
    return (sums_.work.forward[end] - sums_.work.forward[first]) / kinds_[kind].speed;
  }
  double compute_s(std::size_t first, std::size_t end, std::size_t kind) const
  {
    return (sums_.work.both[end] - sums_.work.both[first]) / kinds_[kind].speed;
  }
  /// The part of the backward pass that the device before waits for.
  double input_gradient_s(std::size_t first, std::size_t end, std::size_t kind) const
  {
    return compute_s(first, end, kind) - forward_s(first, end, kind) -
           (weights_[end] - weights_[first]) / kinds_[kind].speed;
  }

  double& at(std::vector<double>& table, std::size_t cut, std::size_t kind) const
  {
    return table[cut * kinds_.size() + kind];
  }

  /// Times before the first forward on a kind at a cut, and after its last backward there.
  void look_forward()
  {
    before_.assign((sums_.layers + 1) * kinds_.size(), infinity);
    after_ = before_;
    std::vector<double> left(kinds_.size());      // when the layers before a cut can be forwarded, by kind
    std::vector<double> returned(kinds_.size());  // likewise from when their gradients are there
    for (std::size_t cut = 0; cut < sums_.layers; ++cut) {
      for (std::size_t kind = 0; kind < kinds_.size(); ++kind) {
        left[kind] = returned[kind] = infinity;
        for (std::size_t first = 0; first < cut; ++first) {
          if (at(before_, first, kind) == infinity || memories(first, cut, kind).empty()) continue;
          left[kind] = std::min(left[kind], at(before_, first, kind) + forward_s(first, cut, kind));
          returned[kind] = std::min(returned[kind], at(after_, first, kind) + input_gradient_s(first, cut, kind));
        }
      }
      for (std::size_t kind = 0; kind < kinds_.size(); ++kind) {
        if (cut == 0) {
          at(before_, cut, kind) = kinds_[kind].input_s;
          at(after_, cut, kind) = 0;
        }
        for (std::size_t other = 0; cut > 0 && other < kinds_.size(); ++other) {
          at(before_, cut, kind) =
              std::min(at(before_, cut, kind), left[other] + transfer(other, kind, sums_.output[cut]));
          at(after_, cut, kind) =
              std::min(at(after_, cut, kind), transfer(kind, other, sums_.gradient[cut]) + returned[other]);
        }
      }
    }
  }

  /// Times from a cut to the end and back.
  void look_beyond()
  {
    beyond_.assign((sums_.layers + 1) * kinds_.size(), infinity);
    for (std::size_t kind = 0; kind < kinds_.size(); ++kind) at(beyond_, sums_.layers, kind) = 0;
    for (std::size_t cut = sums_.layers; cut-- > 1;) {
      for (std::size_t other = 0; other < kinds_.size(); ++other) {
        double trip = infinity;
        for (std::size_t end = cut + 1; end <= sums_.layers; ++end) {
          if (memories(cut, end, other).empty()) continue;
          trip =
              std::min(trip, forward_s(cut, end, other) + at(beyond_, end, other) + input_gradient_s(cut, end, other));
        }
        for (std::size_t kind = 0; kind < kinds_.size(); ++kind) {
          const double both = transfer(kind, other, sums_.output[cut]) + transfer(other, kind, sums_.gradient[cut]);
          at(beyond_, cut, kind) = std::min(at(beyond_, cut, kind), both + trip);
        }
      }
    }
  }

  /// What a micro-batch takes of the devices that hold the layers between two cuts, by their multipliers.
  double cost(std::size_t first, std::size_t end, std::size_t index)
  {
    const Kind& kind = kinds_[index];
    const auto ways = memories(first, end, index);
    const double compute = compute_s(first, end, index);
    const double beyond = at(beyond_, end, index);
    const double time = limit_ - at(before_, first, index) - (schedule_ ? at(after_, first, index) : 0);
    if (ways.empty() || !(compute + beyond <= time)) return infinity;
    if (kind.is_divided) {
      double cheapest = infinity;
      for (const auto& one : kinds_) {
        if (!one.is_divided) cheapest = std::min(cheapest, one.multiplier / one.speed);
      }
      const double work = sums_.work.both[end] - sums_.work.both[first];
      return work <= 0 ? 0 : cheapest * work / (takes_whole_runs_ ? time : limit_);
    }
    if (!takes_whole_runs_) return kind.multiplier * compute / limit_;
    double most = 0;
    for (const auto& way : ways) {
      most = std::max(most, most_within(time, way, forward_s(first, end, index), compute, beyond));
    }
    if (!is_shared_) most = most >= microbatches_ ? microbatches_ : 0;
    return most >= 1 ? kind.multiplier / most : infinity;
  }

  /// The most micro-batches that a device computes within a time.
  double most_within(double time, const Memory& memory, double forward, double compute, double beyond) const
  {
    double most = memory.most;
    if (compute <= 0) return most;
    most = std::min(most, time / compute);
    if (schedule_ == ChainSchedule::GPipe) {
      // Its first backward is of the micro-batch that it forwards last, and then it holds all.
      most = std::min({most, memory.held, (time - beyond) / compute});
    } else {
      const double held = schedule_ == ChainSchedule::Sequential ? 1 : memory.held;
      // One place in its memory has one micro-batch at a time.
      most = std::min(most, held * std::floor(time / (compute + beyond) * (1 + rounding)));
      // From its first forward to its first backward, and from its last forward to its last backward, there is time for
      // `beyond`; memory for `held` micro-batches limits what it computes meanwhile. If it has more, the first of these
      // times ends before the second begins.
      const double backward = compute - forward;
      const double idle = std::max(0.0, beyond - (held - 1) * forward) + std::max(0.0, beyond - (held - 1) * backward);
      const double with_held = (time - idle) / compute;
      if (with_held >= held) {
        most = std::min(most, with_held);
      } else {
        most = std::min(most, held);
        if (backward > 0) most = std::min(most, (time - beyond - forward) / backward);
        if (forward > 0) most = std::min(most, (time - beyond - backward) / forward);
      }
    }
    return std::floor(most * (1 + rounding));
  }

  const Workload& workload_;
  const Cluster& cluster_;
  const Chain& sums_;
  double microbatches_;
  bool is_shared_;
  bool takes_whole_runs_;
  std::optional<ChainSchedule> schedule_;  // by its name; none: backward passes may be split
  bool counts_transfers_;
  double limit_ = 0;
  bool has_divided_ = false;
  std::vector<double> weights_;     // FLOP of gradients of parameters before each cut, where they may be apart
  std::vector<double> parameters_;  // before each cut
  std::vector<std::size_t> divided_from_;
  std::vector<std::uint32_t> largest_;  // [first layer][last]
  std::vector<Kind> kinds_;
  std::vector<Link> links_;
  std::vector<double> before_;  // [cut][kind]
  std::vector<double> after_;
  std::vector<double> beyond_;
};

}  // namespace

bool refutes_by_loads(const Plan& plan, const Workload& workload, const Cluster& cluster, Effort& effort)
{
  const Chain sums(workload, cluster, plan, effort);
  return Loads(plan, workload, cluster, sums).leave_no_room();
}

}  // namespace isobar::proofs
