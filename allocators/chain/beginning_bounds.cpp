#include "allocators/chain/beginning_bounds.hpp"

#include <algorithm>

namespace isobar::allocators::chain_dp {

BeginningBounds::BeginningBounds(const CostModel& cost, Communication communication, const MemoryReach& reach)
    : cost_(cost),
      communication_(communication),
      reach_(reach),
      layers_(cost.layers()),
      devices_(cost.devices()),
      best_path_(devices_, AffinePath{infinity, infinity}),
      front_(devices_),
      furthest_end_(devices_),
      least_before_(devices_ * layers_)
{
  for (std::size_t device = 0; device < devices_; ++device) {
    seconds_per_flop_.push_back(1 / cost.speed(device).value);
  }
}

void BeginningBounds::add_path(std::size_t from, const AffinePath& path)
{
  best_path_[from].latency = std::min(best_path_[from].latency, path.latency);
  best_path_[from].per_byte = std::min(best_path_[from].per_byte, path.per_byte);
}

double BeginningBounds::work(std::size_t first, std::size_t end) const
{
  return (cost_.forward_work(first, end - 1) + cost_.backward_work(first, end - 1)).value;
}

void BeginningBounds::open_fronts()
{
  std::fill(front_.begin(), front_.end(), layers_);
  std::fill(furthest_end_.begin(), furthest_end_.end(), layers_);
}

double BeginningBounds::find_fronts(double limit)
{
  double next_limit = infinity;
  std::size_t front = 0;
  for (std::size_t device = 0; device < devices_; ++device) {
    front_[device] = front;
    if (front == layers_) {
      furthest_end_[device] = layers_;
      continue;
    }
    // Nearer beginnings reach less far in work, so the furthest beginning bounds them all.
    std::size_t low = front;
    std::size_t high = reach_.furthest_up_to(device, front);
    while (low < high) {
      const std::size_t end = (low + high + 1) / 2;
      const double compute = work(front, end) * seconds_per_flop_[device];
      if (compute <= limit) {
        low = end;
      } else {
        next_limit = std::min(next_limit, compute);
        high = end - 1;
      }
    }
    furthest_end_[device] = low;
    front = std::max(front, low);
  }
  return next_limit;
}

void BeginningBounds::find_least_sums(double limit)
{
  const bool is_serial = communication_ == Communication::Serial;
  std::vector<Filling> fillings;
  double least_input = infinity;
  for (std::size_t device = 0; device < devices_; ++device) {
    least_input = std::min(least_input, CostModel::counted(communication_, cost_.input_transfer(device)).value);
    double output = infinity;    // least over a cut so far
    double gradient = infinity;  // likewise
    double left_out = 0;
    double full_work = 0;  // of the devices that are full
    double full_time = 0;
    std::size_t full = 0;
    for (std::size_t cut = 1; cut < layers_; ++cut) {
      const double cut_output = cost_.boundary_output(cut).value;
      const double cut_gradient = cost_.boundary_gradient(cut).value;
      const bool is_cheaper = cut_output < output || cut_gradient < gradient;
      if (cut == 1 || (is_serial && is_cheaper)) {
        output = std::min(output, cut_output);
        gradient = std::min(gradient, cut_gradient);
        left_out = fill_devices(limit, device, output, gradient, fillings);
        full_work = full_time = 0;
        full = 0;
      }
      const double work_before = work(0, cut) - left_out;
      while (full < fillings.size() && work_before - full_work > fillings[full].most_work) {
        full_work += fillings[full].most_work;
        full_time += limit;
        ++full;
      }
      const double rest = std::max(0.0, work_before - full_work);
      double least = full_time;
      if (full < fillings.size()) {
        least += rest * fillings[full].seconds_per_flop;
      } else if (rest > resolution * work_before) {
        least = infinity;
      }
      least_before_[device * layers_ + cut] = (least_input + least) * (1 - resolution);
    }
  }
}

/// Lists the fillings of devices 0..last, quickest first. Returns the work that the first stage can hold in addition.
double BeginningBounds::fill_devices(double limit, std::size_t last, double output, double gradient,
                                     std::vector<Filling>& fillings) const
{
  fillings.clear();
  double most_left_out = 0;
  for (std::size_t device = 0; device <= last; ++device) {
    double transfers = 0;
    if (communication_ == Communication::Serial && devices_ > 1) {
      const double back = best_path_[device].time(gradient);
      transfers = best_path_[device].time(output) + back;
      most_left_out = std::max(most_left_out, back / seconds_per_flop_[device]);
    }
    if (transfers >= limit) continue;
    const double compute_fraction = limit < infinity ? 1 - transfers / limit : 1;
    fillings.push_back({(limit - transfers) / seconds_per_flop_[device], seconds_per_flop_[device] / compute_fraction});
  }
  std::sort(fillings.begin(), fillings.end(),
            [](const Filling& a, const Filling& b) { return a.seconds_per_flop < b.seconds_per_flop; });
  return most_left_out;
}

}  // namespace isobar::allocators::chain_dp
