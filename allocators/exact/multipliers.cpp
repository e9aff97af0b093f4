#include "allocators/exact/multipliers.hpp"

#include "allocators/bounds/comparisons.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace isobar::allocators {

namespace {

/// Steps without a better bound after which the search restarts from the best multipliers with a lower aim.
constexpr std::size_t patience = 7;
/// The share of the previous direction in each direction.
constexpr double inertia = 0.3;

double squared_length(const std::vector<double>& vector)
{
  double sum = 0;
  for (const double value : vector) sum += value * value;
  return sum;
}

}  // namespace

Multipliers::Multipliers(const StageTables& tables) : tables_(&tables), best_(tables.kinds(), 0)
{
  if (tables.weights().beta != 0) return;
  // For the bottleneck only ratios count: start with each device's share of the total speed.
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
  std::vector<double> current = best_;
  double least = relaxation.solve(current);
  proven_ = value_of(least, current);
  if (proven_ == infinity || proven_ >= target) return;
  double score = least - all_of(current);
  double best_score = score;
  // Aimed gain over the best value: the step has the length that would reach it if the relaxation were linear.
  double gain = 0.05 * (is_ratio ? 1 : std::abs(score));
  std::vector<std::uint32_t> uses;
  std::vector<double> gradient(kinds);
  std::vector<double> direction(kinds);
  bool is_fresh = true;
  std::size_t failures = 0;
  for (std::size_t step = 0; step < steps && gain > 1e-9 * (is_ratio ? 1 : std::abs(best_score)); ++step) {
    relaxation.count_uses(uses);
    // Multipliers of a ratio keep their sum: the step stays in that plane.
    double along = 1;
    if (is_ratio) {
      along = 0;
      for (std::size_t kind = 0; kind < kinds; ++kind) along += uses[kind] * count[kind] / squares;
    }
    for (std::size_t kind = 0; kind < kinds; ++kind) {
      gradient[kind] = uses[kind] - along * count[kind];
      if (current[kind] == 0 && gradient[kind] < 0) gradient[kind] = 0;
    }
    if (squared_length(gradient) <= 1e-12) break;  // the multipliers are optimal
    for (std::size_t kind = 0; kind < kinds; ++kind) {
      direction[kind] = is_fresh ? gradient[kind] : (1 - inertia) * gradient[kind] + inertia * direction[kind];
      if (current[kind] == 0 && direction[kind] < 0) direction[kind] = 0;
    }
    is_fresh = false;
    if (squared_length(direction) <= 1e-12) direction = gradient;
    const double aim = is_ratio ? std::min(0.005, best_score + gain) : std::min(target * (1 + 1e-9), best_score + gain);
    const double stride = (aim - score) / squared_length(direction);
    for (std::size_t kind = 0; kind < kinds; ++kind) {
      current[kind] = std::max(0.0, current[kind] + stride * direction[kind]);
    }
    if (is_ratio) {
      const double all = all_of(current);
      for (double& multiplier : current) multiplier /= all;
    }
    least = relaxation.solve(current);
    score = least - all_of(current);
    if (std::isnan(score)) break;  // infinite multipliers: nothing is within the limit
    if (score > best_score) {
      if (score > best_score + 0.3 * gain) gain *= 1.5;
      best_score = score;
      best_ = current;
      proven_ = value_of(least, current);
      failures = 0;
      if (proven_ == infinity || proven_ >= target) return;
    } else if (++failures == patience) {
      failures = 0;
      gain *= 0.5;
      is_fresh = true;
      current = best_;
      score = relaxation.solve(current) - all_of(current);
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
