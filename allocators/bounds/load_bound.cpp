#include "allocators/bounds/load_bound.hpp"

#include "allocators/bounds/comparisons.hpp"
#include "core/base/interrupt.hpp"
#include "core/compute/pricing.hpp"
#include "core/errors.hpp"
#include "core/plan/placed_shards.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>

namespace isobar::allocators {

namespace {

/// By which limits are relaxed here: more than the checker relaxes them, so that it proves what this claims.
constexpr double margin = 1e-11;
constexpr double memory_tolerance = 2e-9;

constexpr std::size_t most_kinds = 128;
constexpr std::size_t most_runs = 1'000'000;
/// Devices from which on transfers count as free: there are too many paths to read.
constexpr std::size_t most_devices_with_paths = 2'048;

/// Micro-batches of a device that holds a run of layers, for one way to divide its parameters.
struct Room {
  std::uint64_t held = 0;  ///< at most, in its memory at once
  std::uint64_t most = 0;  ///< of a step
};

/// Neighbouring layers on a device of a kind.
struct Run {
  std::uint32_t first = 0;  // cuts
  std::uint32_t end = 0;
  std::uint32_t kind = 0;
  double around = 0;   // least time before its first forward and after its last backward
  double beyond = 0;   // from the end of a forward to the begin of its backward
  double forward = 0;  // of a micro-batch
  double compute = 0;  // of a micro-batch
  std::array<Room, 3> rooms = {};
};

/// What a path takes of the devices of each kind.
struct LeastPath {
  double cost = 0;
  std::vector<double> use;  // by kind: the part of their step, for a micro-batch
};

/// Micro-batches as paths over runs of layers: how many of them fit into a step.
class LoadRelaxation {
 public:
  LoadRelaxation(const CostModel& cost, const Goal& goal, LoadScope scope) : cost_(cost), goal_(goal), scope_(scope)
  {
    const std::string& name = goal.schedule.name;
    const auto schedule = chain_schedule(ScheduleChoice{.name = name});
    splits_backward_ = !schedule;
    is_sequential_ = schedule == ChainSchedule::Sequential;
    is_gpipe_ = schedule == ChainSchedule::GPipe;
    layers_ = cost.layers();
    all_ = static_cast<double>(goal.microbatches);
    find_kinds();
    if (kinds_.size() > most_kinds || layers_ * layers_ / 2 > 100 * most_runs / kinds_.size()) {
      is_too_large_ = true;
      return;
    }
    add_layers();
    find_paths();
    find_runs();
    if (!is_too_large_) find_times();
  }

  bool is_too_large() const { return is_too_large_; }
  const std::vector<std::size_t>& kind_of_device() const { return kind_of_; }
  std::size_t kinds() const { return devices_of_.size(); }
  /// The multipliers of all devices of a kind together, in proportion to their speeds.
  std::vector<double> shares() const
  {
    std::vector<double> shares;
    double sum = 0;
    for (std::size_t k = 0; k < kinds(); ++k) {
      shares.push_back(devices_of_[k] * kinds_[k].speed);
      sum += shares.back();
    }
    for (double& share : shares) share /= sum;
    return shares;
  }
  double devices_of(std::size_t kind) const { return devices_of_[kind]; }

  /// Sets the step of the next calls of `least`.
  void set_step(double step)
  {
    loads_.clear();
    for (const Run& run : runs_) {
      const double load = load_of(run, step);
      if (load < infinity) loads_.push_back({run.first, run.end, run.kind, load});
    }
  }

  /// The least sum of multipliers x loads over the paths of a micro-batch. `prices`: of all devices of a kind together.
  LeastPath least(const std::vector<double>& prices) const
  {
    std::vector<double> price;  // of a device; then of a FLOP/s, of the cheapest kind
    std::size_t cheapest = 0;
    for (std::size_t k = 0; k < kinds(); ++k) price.push_back(prices[k] / devices_of_[k]);
    for (std::size_t k = 0; k < kinds(); ++k) {
      if (price[k] / kinds_[k].speed < price[cheapest] / kinds_[cheapest].speed) cheapest = k;
    }
    price.push_back(price[cheapest] / kinds_[cheapest].speed);
    std::vector<double> least(layers_ + 1, infinity);
    std::vector<const Load*> last(layers_ + 1, nullptr);
    least[0] = 0;
    for (const Load& load : loads_) {
      const double cost = least[load.first] + price[load.kind] * load.load;
      if (!(cost < least[load.end])) continue;
      least[load.end] = cost;
      last[load.end] = &load;
    }
    LeastPath path{least[layers_], std::vector<double>(kinds(), 0)};
    if (path.cost == infinity) return path;
    for (std::size_t cut = layers_; cut > 0; cut = last[cut]->first) {
      const bool is_divided = last[cut]->kind == kinds();
      const std::size_t kind = is_divided ? cheapest : last[cut]->kind;
      path.use[kind] += last[cut]->load / devices_of_[kind] / (is_divided ? kinds_[kind].speed : 1);
    }
    return path;
  }

 private:
  struct Kind {
    double speed = 0;
    double memory = infinity;
    double input = infinity;  // least time of the input
  };
  struct Load {
    std::uint32_t first = 0;
    std::uint32_t end = 0;
    std::uint32_t kind = 0;
    double load = 0;
  };

  void find_kinds()
  {
    const Cluster& cluster = cost_.cluster();
    std::map<std::tuple<double, double, std::string>, std::size_t> numbers;
    for (std::size_t i = 0; i < cost_.devices(); ++i) {
      const double speed = cost_.speed(i).value;
      const double memory = cluster.devices[i].memory.value;
      const auto [entry, is_new] = numbers.emplace(std::tuple(speed, memory, cluster.devices[i].site), kinds_.size());
      if (is_new) {
        kinds_.push_back({speed, memory, goal_.has_free_transfers() ? 0 : infinity});
        devices_of_.push_back(0);
      }
      kind_of_.push_back(entry->second);
      ++devices_of_[entry->second];
    }
  }

  /// Several devices that divide layers count as one more kind, as fast as all devices and with memory for all.
  void add_layers()
  {
    const Workload& workload = cost_.workload();
    const bool may_divide = scope_.shares_stages && cost_.devices() > 1;
    last_whole_.push_back(0);
    for (std::size_t i = 0; i < workload.layers.size(); ++i) {
      const Layer& layer = workload.layers[i];
      const LayerWork& work = cost_.layer_work(i);
      forward_.push_back(forward_.back() + work.forward.value);
      backward_.push_back(backward_.back() + work.backward.value);
      weights_.push_back(weights_.back() + (splits_backward_ ? work.backward_weight.value : 0));
      parameters_.push_back(parameters_.back() + static_cast<double>(layer.parameters));
      activations_.push_back(activations_.back() + layer.activations.value);
      const bool is_divided = may_divide && layer.split && layer.split->units > 1;
      has_divided_ = has_divided_ || is_divided;
      last_whole_.push_back(is_divided ? last_whole_.back() : forward_.size() - 1);
    }
    if (!has_divided_) return;
    double fastest = 0;
    for (const auto& kind : kinds_) fastest = std::max(fastest, kind.speed);
    kinds_.push_back({fastest * static_cast<double>(cost_.devices()), infinity, infinity});
  }

  /// The best path between two different devices of each pair of kinds.
  void find_paths()
  {
    const Path none{Seconds(infinity), BytesPerSecond(infinity)};
    const Path free{Seconds(0), BytesPerSecond(infinity)};
    const std::size_t devices = cost_.devices();
    const Cluster& cluster = cost_.cluster();
    const bool counts_paths = !goal_.has_free_transfers() && devices <= most_devices_with_paths;
    paths_.assign(kinds_.size() * kinds_.size(), counts_paths ? none : free);
    const auto improve = [&](std::size_t from, std::size_t to, const Path& path) {
      Path& best = paths_[from * kinds_.size() + to];
      const bool is_first = best.latency.value == infinity;
      best.latency = std::min(best.latency, path.latency);
      best.bandwidth = is_first ? path.bandwidth : std::max(best.bandwidth, path.bandwidth);
    };
    for (std::size_t i = 0; counts_paths && i < devices; ++i) {
      throw_if_interrupted();
      for (std::size_t j = 0; j < devices; ++j) {
        if (i == j) continue;
        const Path path = cluster.path(i, j);
        improve(kind_of_[i], kind_of_[j], path);
        if (!has_divided_) continue;
        const std::size_t all = kinds_.size() - 1;
        improve(all, kind_of_[j], path);
        improve(kind_of_[i], all, path);
        improve(all, all, path);
      }
    }
    const auto parts = static_cast<double>(has_divided_ ? devices : 1);  // in which devices may receive it
    for (std::size_t i = 0; i < devices; ++i) {
      const TransferTimes input = cost_.input_transfer(i);
      const double time = goal_.has_free_transfers() ? 0 : input.latency.value + input.data.value / parts;
      kinds_[kind_of_[i]].input = std::min(kinds_[kind_of_[i]].input, time);
      kinds_.back().input = std::min(kinds_.back().input, time);
    }
  }

  double compute_of(const std::vector<double>& sums, std::size_t first, std::size_t end, std::size_t kind) const
  {
    return (sums[end] - sums[first]) / kinds_[kind].speed;
  }

  std::uint64_t held_in(double memory, double resident, double activations) const
  {
    const double left = memory - resident;
    if (left < activations || left < 0) return 0;
    if (left >= activations * all_) return goal_.microbatches;
    return static_cast<std::uint64_t>(left / activations * (1 + margin));
  }

  /// How micro-batches fit on a device: with all parameters; and where several replicas divide gradients and
  /// optimizers, or parameters too. `largest` is the layer with most parameters: while its first gradients are
  /// computed, none of these is divided.
  std::array<Room, 3> rooms_of(const Run& run, std::size_t largest) const
  {
    std::array<Room, 3> rooms;
    const double memory = kinds_[run.kind].memory * (1 + memory_tolerance);
    const double resident = cost_.memory_beside_others(run.first, run.end - 1, 0).value;
    const double activations = cost_.memory_ignores_schedule() ? 0 : activations_[run.end] - activations_[run.first];
    rooms[0] = {held_in(memory, resident, activations), goal_.microbatches};
    const std::uint64_t most_replicas = std::min<std::uint64_t>(cost_.devices(), goal_.microbatches);
    const bool is_done = rooms[0].held == goal_.microbatches || most_replicas < 2;
    if (is_done || !scope_.shares_stages || cost_.memory_ignores_schedule()) return rooms;
    const ParameterBytes bytes = parameter_bytes(cost_.workload());
    const double parameters = parameters_[run.end] - parameters_[run.first];
    const Layer& layer = cost_.workload().layers[largest];
    const auto room = [&](double divided, double gathered) {
      const auto held_by = [&](std::uint64_t replicas) {
        const double of_others = 1 - 1 / static_cast<double>(replicas);
        const double own = resident - parameters * divided * of_others;
        const double peak = static_cast<double>(layer.parameters) * gathered * of_others + layer.activations.value;
        return own + peak <= memory ? held_in(memory, own, activations) : 0;
      };
      Room found{held_by(most_replicas), 2};
      if (found.held == 0) return found;
      for (std::uint64_t high = most_replicas; found.most < high;) {  // the least number with which it fits
        const std::uint64_t middle = (found.most + high) / 2;
        if (held_by(middle) > 0) {
          high = middle;
        } else {
          found.most = middle + 1;
        }
      }
      return found;
    };
    rooms[1] = room(bytes.gradient + bytes.optimizer, bytes.gradient);
    if (rooms[1].held > 0) rooms[1].most = goal_.microbatches - rooms[1].most + 1;  // each other replica takes one
    rooms[2] = room(bytes.all(), bytes.gradient + bytes.parameter);
    if (rooms[2].held > 0) rooms[2].most = goal_.microbatches / rooms[2].most;  // each takes as many
    return rooms;
  }

  /// Whether neither these layers nor these and more fit on the kind. Buffers count as nothing: they may shrink with
  /// another layer.
  bool never_fits(const Run& run) const
  {
    const double memory = kinds_[run.kind].memory * (1 + memory_tolerance);
    if (cost_.memory_ignores_schedule()) return cost_.memory_beside_others(run.first, run.end - 1, 0).value > memory;
    const double all = bytes_per_parameter(cost_.workload());
    const double parts = scope_.shares_stages ? std::min(static_cast<double>(cost_.devices()), all_) : 1;
    return (parameters_[run.end] - parameters_[run.first]) * all / parts + activations_[run.end] -
               activations_[run.first] >
           memory;
  }

  bool is_divided(std::size_t kind) const { return has_divided_ && kind + 1 == kinds_.size(); }

  void find_runs()
  {
    for (std::size_t first = 0; first < layers_; ++first) {
      for (std::size_t kind = 0; kind < kinds_.size(); ++kind) {
        std::size_t largest = first;
        for (std::size_t end = first + 1; end <= layers_; ++end) {
          const auto& layers = cost_.workload().layers;
          if (layers[end - 1].parameters > layers[largest].parameters) largest = end - 1;
          Run run;
          run.first = static_cast<std::uint32_t>(first);
          run.end = static_cast<std::uint32_t>(end);
          run.kind = static_cast<std::uint32_t>(kind);
          run.forward = compute_of(forward_, first, end, kind);
          run.compute = run.forward + compute_of(backward_, first, end, kind);
          if (is_divided(kind)) {
            if (last_whole_[end] > first) break;
          } else {
            run.rooms = rooms_of(run, largest);
            if (never_fits(run)) break;
            const bool fits = std::any_of(run.rooms.begin(), run.rooms.end(), [](auto& room) { return room.held > 0; });
            if (!fits) continue;
          }
          runs_.push_back(run);
          if (runs_.size() > most_runs) {
            is_too_large_ = true;
            return;
          }
        }
      }
    }
  }

  /// The times around and beyond each run.
  void find_times()
  {
    const std::size_t kinds = kinds_.size();
    const auto table = [&] { return std::vector<double>((layers_ + 1) * kinds, infinity); };
    std::vector<double> there = table();  // least time until a forward on a device of a kind can begin at a cut
    std::vector<double> back = table();   // from the end of its backward until the first stage's ends
    std::vector<double> beyond = table();
    std::vector<double> sent = table();  // the same before or after the transfer over the cut
    std::vector<double> returned = table();
    for (std::size_t k = 0; k < kinds; ++k) {
      there[k] = kinds_[k].input;
      back[k] = 0;
      beyond[layers_ * kinds + k] = 0;
    }
    const auto cross = [&](std::size_t from, std::size_t to, Bytes size) {
      const auto blocks = static_cast<double>(is_divided(from) || is_divided(to) ? cost_.devices() : 1);
      const Path& path = paths_[from * kinds + to];
      return path.latency.value + size.value / blocks / path.bandwidth.value;
    };
    // Runs are in the order of their first cuts.
    std::size_t next = 0;
    for (std::size_t cut = 0; cut < layers_; ++cut) {
      for (std::size_t to = 0; cut > 0 && to < kinds; ++to) {
        for (std::size_t from = 0; from < kinds; ++from) {
          double& least = there[cut * kinds + to];
          least = std::min(least, sent[cut * kinds + from] + cross(from, to, cost_.boundary_output(cut)));
          double& least_back = back[cut * kinds + to];
          least_back =
              std::min(least_back, returned[cut * kinds + from] + cross(to, from, cost_.boundary_gradient(cut)));
        }
      }
      for (; next < runs_.size() && runs_[next].first == cut; ++next) {
        const Run& run = runs_[next];
        double& least = sent[run.end * kinds + run.kind];
        least = std::min(least, there[cut * kinds + run.kind] + run.forward);
        double& least_back = returned[run.end * kinds + run.kind];
        least_back = std::min(least_back, back[cut * kinds + run.kind] + input_gradient(run));
      }
    }
    std::vector<double> trip = table();  // of a micro-batch from a cut to the end and back
    for (std::size_t i = runs_.size(), cut = layers_; cut-- > 0;) {
      for (; i > 0 && runs_[i - 1].first == cut; --i) {
        const Run& run = runs_[i - 1];
        double& least = trip[cut * kinds + run.kind];
        least = std::min(least, run.forward + input_gradient(run) + beyond[run.end * kinds + run.kind]);
      }
      for (std::size_t from = 0; from < kinds; ++from) {
        for (std::size_t to = 0; to < kinds; ++to) {
          double& least = beyond[cut * kinds + from];
          least = std::min(least, trip[cut * kinds + to] + cross(from, to, cost_.boundary_output(cut)) +
                                      cross(to, from, cost_.boundary_gradient(cut)));
        }
      }
    }
    for (Run& run : runs_) {
      run.around = there[run.first * kinds + run.kind] + (splits_backward_ ? 0 : back[run.first * kinds + run.kind]);
      run.beyond = beyond[run.end * kinds + run.kind];
    }
  }

  double input_gradient(const Run& run) const
  {
    return run.compute - run.forward - compute_of(weights_, run.first, run.end, run.kind);
  }

  /// The part of a device's step that a micro-batch takes; of devices that divide layers, of all their FLOP/s.
  double load_of(const Run& run, double step) const
  {
    const double slack = step * (1 + margin) - run.around;
    if (!(run.beyond + run.compute <= slack)) return infinity;
    if (is_divided(run.kind)) {
      return run.compute * kinds_[run.kind].speed / (scope_.takes_whole_runs ? slack : step * (1 + margin));
    }
    if (!scope_.takes_whole_runs) return run.compute / (step * (1 + margin));
    double most = 0;
    for (const Room& room : run.rooms) most = std::max(most, microbatches_in(run, room, slack));
    if (!scope_.shares_stages) return most >= all_ ? 1 / all_ : infinity;
    return most > 0 ? 1 / most : infinity;
  }

  /// The most micro-batches that a device computes in a time.
  double microbatches_in(const Run& run, const Room& room, double slack) const
  {
    if (room.held == 0) return 0;
    auto most = static_cast<double>(room.most);
    if (run.compute <= 0) return most;
    most = std::min(most, slack / run.compute);
    if (is_gpipe_) {
      return std::floor(std::min({most, static_cast<double>(room.held), (slack - run.beyond) / run.compute}) *
                        (1 + margin));
    }
    const double held = is_sequential_ ? 1 : static_cast<double>(room.held);
    // Each place in its memory has one at a time.
    most = std::min(most, held * std::floor(slack / (run.beyond + run.compute) * (1 + margin)));
    // Until its first backward it computes no more forwards than it can hold, and after its last forward no more
    // backwards. Both last at least as long as a micro-batch is away.
    const double backward = run.compute - run.forward;
    const double others = held - 1;
    const double idle =
        std::max(0.0, run.beyond - others * run.forward) + std::max(0.0, run.beyond - others * backward);
    const double with_all_held = (slack - idle) / run.compute;
    if (with_all_held >= held) {
      most = std::min(most, with_all_held);
    } else {
      most = std::min(most, held);
      const double present = slack - run.beyond;
      if (backward > 0) most = std::min(most, (present - run.forward) / backward);
      if (run.forward > 0) most = std::min(most, (present - backward) / run.forward);
    }
    return std::floor(most * (1 + margin));
  }

  const CostModel& cost_;
  const Goal& goal_;
  LoadScope scope_;
  bool splits_backward_ = false;
  bool is_sequential_ = false;
  bool is_gpipe_ = false;
  bool is_too_large_ = false;
  bool has_divided_ = false;
  std::size_t layers_ = 0;
  double all_ = 0;  // micro-batches
  std::vector<std::size_t> kind_of_;
  std::vector<double> devices_of_;  // by kind
  std::vector<Kind> kinds_;
  std::vector<Path> paths_;
  // Sums of the layers before each cut:
  std::vector<double> forward_ = {0};
  std::vector<double> backward_ = {0};
  std::vector<double> weights_ = {0};
  std::vector<double> parameters_ = {0};
  std::vector<double> activations_ = {0};
  std::vector<std::size_t> last_whole_;  // by cut: the cut after the last layer before it that cannot be divided
  std::vector<Run> runs_;
  std::vector<Load> loads_;
};

/// Looks for multipliers for which no step of that time has room for all micro-batches, from some that it changes.
bool refute(LoadRelaxation& relaxation, double step, double microbatches, std::vector<double>& prices)
{
  constexpr int most_tries = 24;
  constexpr double stride = 1.5;  // times the way to where this path would be dear enough
  const std::vector<double> shares = relaxation.shares();
  relaxation.set_step(step);
  for (int i = 0; i < most_tries; ++i) {
    const LeastPath path = relaxation.least(prices);
    const double missing = (1 + 2 * margin) / microbatches - path.cost;
    if (missing < 0) return true;
    // The multipliers keep their sum. Those of large kinds move more.
    double mean = 0;
    for (std::size_t k = 0; k < prices.size(); ++k) mean += shares[k] * path.use[k];
    double square = 0;
    for (std::size_t k = 0; k < prices.size(); ++k) {
      square += shares[k] * (path.use[k] - mean) * (path.use[k] - mean);
    }
    if (square <= 1e-20 * mean * mean) return false;  // no multipliers make the path dearer
    double sum = 0;
    for (std::size_t k = 0; k < prices.size(); ++k) {
      prices[k] = std::max(0.0, prices[k] + stride * missing / square * shares[k] * (path.use[k] - mean));
      sum += prices[k];
    }
    for (double& price : prices) price /= sum;
  }
  return false;
}

}  // namespace

std::optional<Bound> load_bound(const CostModel& cost, const Goal& goal, LoadScope scope, Seconds known, Seconds step)
{
  constexpr double resolution = 1e-3;
  std::optional<LoadRelaxation> made;
  try {
    made.emplace(cost, goal, scope);
  } catch (const InputError&) {
    return std::nullopt;  // two devices without a route, which plans may do without
  }
  LoadRelaxation& relaxation = *made;
  if (relaxation.is_too_large()) return std::nullopt;
  const auto microbatches = static_cast<double>(goal.microbatches);
  std::vector<double> prices = relaxation.shares();
  std::vector<double> proof;
  double low = known.value;
  double high = step.value;
  const auto try_at = [&](double middle) {
    std::vector<double> found = prices;
    if (refute(relaxation, middle, microbatches, found)) {
      low = middle;
      proof = prices = found;
    } else {
      high = middle;
      prices = found;
    }
  };
  try_at(high * (1 - 10 * margin));
  while (high - low > resolution * high) try_at(low + (high - low) / 2);
  if (proof.empty()) return std::nullopt;
  Certificate certificate{.kind = CertificateKind::Load};
  certificate.groups = relaxation.kind_of_device();
  Certificate::Rung& rung = certificate.rungs.emplace_back();
  rung.limit = Seconds(low * (1 - margin));
  for (std::size_t k = 0; k < relaxation.kinds(); ++k) {
    rung.multipliers.push_back(proof[k] / relaxation.devices_of(k));
  }
  return Bound{*rung.limit, std::move(certificate)};
}

void raise_bounds(std::vector<Plan>& plans, const Workload& workload, const Cluster& cluster)
{
  struct Found {
    std::uint64_t microbatches;
    std::string schedule;
    LoadScope scope;
    std::optional<Bound> bound;
  };
  std::vector<Found> all;
  const CostModel cost(workload, cluster);
  for (auto& plan : plans) {
    if (plan.stages.empty() || is_chain(plan) || plan.goal.objective != Objective::Step) continue;
    if (uses_machines(plan)) continue;  // memory does not limit what a device can do
    const LoadScope scope{has_shared_stages(plan), takes_whole_runs(plan)};
    auto found = std::find_if(all.begin(), all.end(), [&](const Found& other) {
      return other.microbatches == plan.goal.microbatches && other.schedule == plan.goal.schedule.name &&
             other.scope == scope;
    });
    if (found == all.end()) {
      std::optional<Bound> bound;
      try {
        bound = load_bound(cost, plan.goal, scope, *plan.objective_bound, *plan.objective);
      } catch (const Interrupted&) {
        return;
      }
      all.push_back({plan.goal.microbatches, plan.goal.schedule.name, scope, std::move(bound)});
      found = all.end() - 1;
    }
    if (!found->bound) continue;
    const Seconds value = compute::least_as_trained(plan, workload, cluster) * found->bound->value;
    if (value <= *plan.objective_bound) continue;
    plan.objective_bound = std::min(value, *plan.objective);
    plan.certificate = found->bound->certificate;
    if (*plan.objective_bound >= *plan.objective * (1 - tolerance)) plan.outcome = Outcome::Optimal;
  }
}

}  // namespace isobar::allocators
