#include "allocators/folding.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace isobar::allocators {

namespace {

/// Work of the passes over all stages, in visited stages.
constexpr std::size_t most_visits = 40'000'000;

/// How well a chain is cut; less is better. Times are relative to that of devices in perfect balance, memory to what
/// the device has.
struct Imbalance {
  double excess = 0;  ///< of memory, sum over the devices
  double peak = 0;    ///< sum of a high power of the devices' times: the largest ones count
  double spread = 0;  ///< sum of the squares of the devices' times, and of those of their parts

  bool is_less_than(const Imbalance& other) const
  {
    constexpr double tolerance = 1e-9;
    if (std::abs(excess - other.excess) > tolerance) return excess < other.excess;
    if (std::abs(peak - other.peak) > tolerance * other.peak) return peak < other.peak;
    return spread < other.spread * (1 - tolerance);
  }
};

double high_power(double value)
{
  const double square = value * value;
  const double fourth = square * square;
  return fourth * fourth * fourth * fourth;
}

/// The cuts of a folded chain, and what its devices have.
class FoldedChain {
 public:
  FoldedChain(const CostModel& cost, const Fold& how)
      : cost_(cost), how_(how), stages_(how.devices.size() * how.parts), weights_(stages_), devices_(how.devices.size())
  {
    std::vector<std::size_t> parts(devices_.size(), 0);  // of each rank so far
    for (std::size_t stage = 0; stage < stages_; ++stage) {
      ranks_.push_back(schedules::rank_of_stage(how.folding, stage, devices_.size()));
      parts_.push_back(parts[ranks_.back()]++);
    }
  }

  /// False if a device has fewer layers than parts.
  bool cut_by_layers()
  {
    cuts_ = {0};
    for (std::size_t stage = 0; stage < stages_; ++stage) {
      const std::size_t layers = how_.layers[ranks_[stage]];
      if (layers < how_.parts) return false;
      cuts_.push_back(cuts_.back() + layers / how_.parts + (parts_[stage] < layers % how_.parts ? 1 : 0));
    }
    return true;
  }

  void cut_by_speeds()
  {
    FlopsPerSecond all_speed;
    for (const std::size_t device : how_.devices) all_speed += cost_.speed(device);
    const Flops all_work = work_before(cost_.layers());
    unit_ = all_work.value > 0 ? all_work / all_speed : Seconds(1);
    cuts_ = {0};
    Flops target;
    for (std::size_t stage = 0; stage + 1 < stages_; ++stage) {
      target += unit_ * cost_.speed(device_of(stage)) / static_cast<double>(how_.parts);
      const std::size_t furthest = cost_.layers() - (stages_ - 1 - stage);  // leaves a layer for each stage after it
      std::size_t cut = cuts_.back() + 1;
      while (cut < furthest && work_before(cut + 1) + work_before(cut) <= 2.0 * target) ++cut;
      cuts_.push_back(cut);
    }
    cuts_.push_back(cost_.layers());
  }

  void improve()
  {
    const std::size_t most_passes = 1 + most_visits / (stages_ * stages_);
    bool is_better = true;
    for (std::size_t pass = 0; pass < most_passes && is_better; ++pass) {
      is_better = false;
      for (std::size_t stage = 0; stage < stages_; ++stage) {
        is_better = pass_on(stage, Direction::Forward) || is_better;
        is_better = pass_on(stage, Direction::Backward) || is_better;
      }
    }
  }

  std::vector<StagePlacement> stages() const
  {
    std::vector<StagePlacement> stages;
    for (std::size_t stage = 0; stage < stages_; ++stage) {
      stages.push_back({device_of(stage), cuts_[stage], cuts_[stage + 1] - 1});
    }
    return stages;
  }

 private:
  enum class Direction { Forward, Backward };
  /// The relative compute time and memory of a stage or of a device.
  struct Weight {
    double time = 0;
    double memory = 0;
  };

  std::size_t device_of(std::size_t stage) const { return how_.devices[ranks_[stage]]; }

  Flops work_before(std::size_t layer) const
  {
    return layer == 0 ? Flops(0) : cost_.forward_work(0, layer - 1) + cost_.backward_work(0, layer - 1);
  }

  Weight weight_of(std::size_t stage) const
  {
    const std::size_t device = device_of(stage);
    const std::size_t last = cuts_[stage + 1] - 1;
    const Bytes needed = cost_.memory(cuts_[stage], last, how_.in_flight[ranks_[stage]][parts_[stage]]);
    return {cost_.compute_time(device, cuts_[stage], last) / unit_,
            (needed - shared_with_parts_before(stage)) / cost_.cluster().devices[device].memory};
  }

  /// What a further part of a rank does not need besides the parts before it: the workspace, and buffers for what comes
  /// from the rank itself.
  Bytes shared_with_parts_before(std::size_t stage) const
  {
    if (parts_[stage] == 0) return Bytes(0);
    return cost_.workspace() + (ranks_[stage] == ranks_[stage - 1] ? 2 * cost_.buffers(cuts_[stage]) : Bytes(0));
  }

  void count_device(const Weight& device, double sign)
  {
    imbalance_.excess += sign * std::max(0.0, device.memory - 1);
    imbalance_.peak += sign * high_power(device.time);
    imbalance_.spread += sign * device.time * device.time;
  }

  void set_weight(std::size_t stage, Weight weight)
  {
    Weight& device = devices_[ranks_[stage]];
    Weight& former = weights_[stage];
    count_device(device, -1);
    device.time += weight.time - former.time;
    device.memory += weight.memory - former.memory;
    count_device(device, 1);
    imbalance_.spread += static_cast<double>(how_.parts) * (weight.time * weight.time - former.time * former.time);
    former = weight;
  }

  /// Without the rounding errors of many changes.
  void weigh_all()
  {
    imbalance_ = {};
    std::fill(weights_.begin(), weights_.end(), Weight{});
    std::fill(devices_.begin(), devices_.end(), Weight{});
    for (std::size_t stage = 0; stage < stages_; ++stage) set_weight(stage, weight_of(stage));
  }

  /// Moves the cut before a stage by one layer.
  void move_cut(std::size_t stage, Direction direction)
  {
    cuts_[stage] = direction == Direction::Forward ? cuts_[stage] - 1 : cuts_[stage] + 1;
    set_weight(stage - 1, weight_of(stage - 1));
    set_weight(stage, weight_of(stage));
  }

  /// Passes a layer of a stage on to the stage where that is best; the stages between pass on one of their own each.
  bool pass_on(std::size_t from, Direction direction)
  {
    if (cuts_[from + 1] - cuts_[from] < 2) return false;
    const bool is_forward = direction == Direction::Forward;
    const auto cut_at = [&](std::size_t step) { return is_forward ? from + step : from + 1 - step; };
    weigh_all();
    const Imbalance before = imbalance_;
    Imbalance best = before;
    std::size_t best_step = 0;
    const std::size_t steps = is_forward ? stages_ - 1 - from : from;
    for (std::size_t step = 1; step <= steps; ++step) {
      move_cut(cut_at(step), direction);
      if (!imbalance_.is_less_than(best)) continue;
      best = imbalance_;
      best_step = step;
    }
    const Direction back = is_forward ? Direction::Backward : Direction::Forward;
    for (std::size_t step = steps; step > best_step; --step) move_cut(cut_at(step), back);
    if (best_step == 0) return false;
    weigh_all();
    if (imbalance_.is_less_than(before)) return true;
    for (std::size_t step = best_step; step > 0; --step) move_cut(cut_at(step), back);
    return false;
  }

  const CostModel& cost_;
  const Fold& how_;
  std::size_t stages_;
  Seconds unit_ = Seconds(1);
  std::vector<std::size_t> ranks_;  // by stage
  std::vector<std::size_t> parts_;  // likewise
  std::vector<std::size_t> cuts_;   // before each stage, and the end
  std::vector<Weight> weights_;     // by stage
  std::vector<Weight> devices_;     // by rank
  Imbalance imbalance_;
};

}  // namespace

std::vector<StagePlacement> fold(const CostModel& cost, const Fold& how)
{
  if (how.devices.empty() || cost.layers() < how.devices.size() * how.parts) return {};
  FoldedChain chain(cost, how);
  if (!how.layers.empty()) return chain.cut_by_layers() ? chain.stages() : std::vector<StagePlacement>{};
  chain.cut_by_speeds();
  chain.improve();
  return chain.stages();
}

}  // namespace isobar::allocators
