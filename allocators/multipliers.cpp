#include "allocators/multipliers.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace isobar::allocators {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
/// Steps without a better bound after which steps get shorter.
constexpr std::size_t patience = 5;
}  // namespace

Multipliers::Multipliers(const StageTables& tables) : tables_(&tables), best_(tables.kinds(), 0)
{
  if (tables.weights().beta != 0) return;
  // For the bottleneck only ratios count: to begin with, what a device can take in the time of all of them.
  double speed = 0;
  for (std::size_t kind = 0; kind < tables.kinds(); ++kind) {
    speed += static_cast<double>(tables.devices_of(kind).size()) / tables.slowness(kind);
  }
  for (std::size_t kind = 0; kind < tables.kinds(); ++kind) best_[kind] = 1 / (tables.slowness(kind) * speed);
}

double Multipliers::all_of(const std::vector<double>& multipliers) const
{
  double sum = 0;
  for (std::size_t kind = 0; kind < multipliers.size(); ++kind) {
    sum += static_cast<double>(tables_->devices_of(kind).size()) * multipliers[kind];
  }
  return sum;
}

double Multipliers::value_of(double least, const std::vector<double>& multipliers) const
{
  if (least == infinity) return infinity;
  const double all = all_of(multipliers);
  if (tables_->weights().beta == 0) return least > all * (1 + 1e-9) ? infinity : 0;
  // Large multipliers cancel: what rounding may have added is not claimed.
  return least - all - 3e-12 * (least + all);
}

void Multipliers::ascend(PathRelaxation& relaxation, double target, std::size_t steps)
{
  const bool is_ratio = tables_->weights().beta == 0;
  const std::size_t kinds = best_.size();
  std::vector<double> count;
  double squares = 0;
  for (std::size_t kind = 0; kind < kinds; ++kind) {
    count.push_back(static_cast<double>(tables_->devices_of(kind).size()));
    squares += count.back() * count.back();
  }
  const auto score_of = [&](double least, const std::vector<double>& multipliers) {
    return least == infinity ? infinity : least - all_of(multipliers);
  };
  double least = relaxation.solve(best_);
  double best_score = score_of(least, best_);
  proven_ = value_of(least, best_);
  if (best_score == infinity || proven_ >= target) return;
  std::vector<std::uint32_t> uses;
  relaxation.count_uses(uses);
  std::vector<double> average(uses.begin(), uses.end());
  std::vector<double> direction(kinds);
  std::vector<double> current(kinds);
  double length = 0.5;
  double newest_share = 0.4;
  std::size_t failures = 0;
  for (std::size_t step = 0; step < steps && length > 1e-4; ++step) {
    // Multipliers of a ratio keep their sum: the step goes along that plane.
    double along = 1;
    if (is_ratio) {
      along = 0;
      for (std::size_t kind = 0; kind < kinds; ++kind) along += average[kind] * count[kind] / squares;
    }
    double norm = 0;
    for (std::size_t kind = 0; kind < kinds; ++kind) {
      direction[kind] = average[kind] - along * count[kind];
      if (best_[kind] == 0 && direction[kind] < 0) direction[kind] = 0;
      norm += direction[kind] * direction[kind];
    }
    if (norm <= 1e-12) break;
    const double aim = is_ratio ? 0.005 : std::min(target, best_score + 0.1 * std::abs(best_score)) * (1 + 1e-9);
    const double stride = length * (aim - best_score) / norm;
    for (std::size_t kind = 0; kind < kinds; ++kind) {
      current[kind] = std::max(0.0, best_[kind] + stride * direction[kind]);
    }
    if (is_ratio) {
      const double all = all_of(current);
      for (double& multiplier : current) multiplier /= all;
    }
    least = relaxation.solve(current);
    const double score = score_of(least, current);
    if (score == infinity) {
      best_ = current;
      proven_ = infinity;
      return;
    }
    relaxation.count_uses(uses);
    // The share of the newest uses by which the average comes closest to one use of each device.
    double across = 0;
    double gap = 0;
    double slope = 0;
    for (std::size_t kind = 0; kind < kinds; ++kind) {
      const double change = uses[kind] - average[kind];
      across -= change * (average[kind] - along * count[kind]);
      gap += change * change;
      slope += (uses[kind] - along * count[kind]) * direction[kind];
    }
    const double share = gap > 0 ? std::clamp(across / gap, newest_share / 10, newest_share) : newest_share;
    for (std::size_t kind = 0; kind < kinds; ++kind) average[kind] += share * (uses[kind] - average[kind]);
    if (score > best_score) {
      if (slope > 0) length = std::min(2.0, length * 1.3);
      best_score = score;
      best_ = current;
      proven_ = value_of(least, current);
      failures = 0;
      if (proven_ >= target) return;
    } else if (++failures % patience == 0) {
      length *= 0.6;
      newest_share = std::max(0.02, newest_share * 0.8);
    }
  }
  relaxation.solve(best_);
}

std::vector<double> Multipliers::by_device() const
{
  std::vector<double> multipliers;
  for (std::size_t device = 0; device < tables_->devices(); ++device) {
    multipliers.push_back(best_[tables_->kind_of(device)]);
  }
  return multipliers;
}

}  // namespace isobar::allocators
