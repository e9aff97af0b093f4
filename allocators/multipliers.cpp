#include "allocators/multipliers.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace isobar::allocators {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
/// Steps without a better bound after which steps get shorter.
constexpr std::size_t patience = 8;
/// How much of the last direction goes on; damps the zigzag of subgradients.
constexpr double momentum = 0.6;

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
  return least - all;
}

void Multipliers::ascend(PathRelaxation& relaxation, double target, std::size_t steps)
{
  const bool is_ratio = tables_->weights().beta == 0;
  std::vector<double> count;
  double squares = 0;
  for (std::size_t kind = 0; kind < best_.size(); ++kind) {
    count.push_back(static_cast<double>(tables_->devices_of(kind).size()));
    squares += count.back() * count.back();
  }
  std::vector<double> current = best_;
  std::vector<double> direction(current.size(), 0);
  std::vector<std::uint32_t> uses;
  proven_ = -infinity;
  double best_score = -infinity;
  double length = 1;
  std::size_t since_better = 0;
  for (std::size_t step = 0; step <= steps; ++step) {
    const double least = relaxation.solve(current);
    const double score = least == infinity ? infinity : least - all_of(current);
    if (score > best_score) {
      const bool is_much = score > best_score + 1e-5 * std::abs(best_score);
      best_score = score;
      best_ = current;
      proven_ = value_of(least, current);
      if (is_much) since_better = 0;
    }
    if (proven_ >= target || score == infinity) return;
    if (++since_better > patience) {
      length /= 2;
      if (length < 1e-3) break;
      since_better = 0;
      current = best_;
      relaxation.solve(current);
      std::fill(direction.begin(), direction.end(), 0);
    }
    relaxation.count_uses(uses);
    // Multipliers of a ratio keep their sum: the step goes along that plane.
    double along = 0;
    if (is_ratio) {
      for (std::size_t kind = 0; kind < count.size(); ++kind) along += uses[kind] * count[kind];
      along /= squares;
    }
    double norm = 0;
    for (std::size_t kind = 0; kind < count.size(); ++kind) {
      double slope = uses[kind] - (is_ratio ? along * count[kind] : count[kind]);
      // Where a multiplier is 0 it cannot fall.
      if (current[kind] == 0 && slope < 0) slope = 0;
      direction[kind] = slope + momentum * direction[kind];
      norm += direction[kind] * direction[kind];
    }
    if (norm == 0) break;
    const double aim = is_ratio ? 0.002 : std::min(target, best_score + 0.02 * std::abs(best_score));
    const double stride = length * (aim - std::min(score, best_score)) / norm;
    for (std::size_t kind = 0; kind < count.size(); ++kind) {
      current[kind] = std::max(0.0, current[kind] + stride * direction[kind]);
    }
    if (is_ratio) {
      const double all = all_of(current);
      for (double& multiplier : current) multiplier /= all;
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
