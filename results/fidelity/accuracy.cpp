#include "results/fidelity/accuracy.hpp"

#include "core/errors.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace isobar::results {

namespace {

constexpr std::size_t fewest_ranked = 5;
constexpr double least_difference = 0.02;  // of measurements that have an order

/// Ranks from 1, equal numbers having the mean of theirs.
std::vector<double> ordinals_of(const std::vector<double>& numbers)
{
  std::vector<std::size_t> order(numbers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return numbers[i]; });
  std::vector<double> ranks(numbers.size());
  for (std::size_t begin = 0; begin < order.size();) {
    std::size_t end = begin;
    while (end < order.size() && numbers[order[end]] == numbers[order[begin]]) ++end;
    const double rank = static_cast<double>(begin + end + 1) / 2;
    for (; begin < end; ++begin) ranks[order[begin]] = rank;
  }
  return ranks;
}

std::optional<double> correlation(const std::vector<double>& a, const std::vector<double>& b)
{
  const auto count = static_cast<double>(a.size());
  const double mean_a = std::accumulate(a.begin(), a.end(), 0.0) / count;
  const double mean_b = std::accumulate(b.begin(), b.end(), 0.0) / count;
  double ab = 0;
  double aa = 0;
  double bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - mean_a) * (b[i] - mean_b);
    aa += (a[i] - mean_a) * (a[i] - mean_a);
    bb += (b[i] - mean_b) * (b[i] - mean_b);
  }
  if (aa == 0 || bb == 0) return std::nullopt;
  return ab / std::sqrt(aa * bb);
}

std::optional<double> mean_of(const std::vector<double>& numbers)
{
  if (numbers.empty()) return std::nullopt;
  return std::accumulate(numbers.begin(), numbers.end(), 0.0) / static_cast<double>(numbers.size());
}

/// Whether not all measurements are equal.
bool has_order(const std::vector<PredictedNumber>& group)
{
  return std::ranges::any_of(group, [&](const auto& one) { return one.measured != group.front().measured; });
}

double regret_of(const std::vector<PredictedNumber>& group)
{
  const auto& chosen = *std::ranges::min_element(group, {}, &PredictedNumber::predicted);
  const auto& best = *std::ranges::min_element(group, {}, &PredictedNumber::measured);
  return chosen.measured / best.measured - 1;
}

}  // namespace

ErrorFigures error_figures(const std::vector<PredictedNumber>& numbers)
{
  ensure(!numbers.empty(), "error figures of no number");
  ErrorFigures figures;
  figures.rows = numbers.size();
  std::vector<double> errors;
  for (const auto& number : numbers) {
    errors.push_back(std::abs(number.error()));
    figures.mean += errors.back();
    figures.signed_mean += number.error();
  }
  std::ranges::sort(errors);
  const std::size_t count = errors.size();
  figures.mean /= static_cast<double>(count);
  figures.signed_mean /= static_cast<double>(count);
  figures.median = count % 2 == 1 ? errors[count / 2] : (errors[count / 2 - 1] + errors[count / 2]) / 2;
  figures.p95 = errors[(count * 95 + 99) / 100 - 1];
  figures.max = errors.back();
  return figures;
}

std::optional<double> spearman(const std::vector<PredictedNumber>& numbers)
{
  ensure(numbers.size() > 1, "a rank correlation of fewer than two numbers");
  std::vector<double> predicted;
  std::vector<double> measured;
  for (const auto& number : numbers) {
    predicted.push_back(number.predicted);
    measured.push_back(number.measured);
  }
  return correlation(ordinals_of(predicted), ordinals_of(measured));
}

RankFigures rank_figures(const std::vector<std::vector<PredictedNumber>>& groups)
{
  RankFigures figures;
  std::vector<double> coefficients;
  std::vector<double> regrets;
  std::size_t ordered = 0;
  for (const auto& group : groups) {
    if (group.size() < 2) continue;
    if (group.size() >= fewest_ranked && has_order(group)) {
      // A model that predicts the same of all rows has no order.
      coefficients.push_back(spearman(group).value_or(0));
    }
    regrets.push_back(regret_of(group));
    for (std::size_t i = 0; i < group.size(); ++i) {
      for (std::size_t j = 0; j < group.size(); ++j) {
        if (group[i].measured * (1 + least_difference) >= group[j].measured) continue;
        ++figures.pairs;
        if (group[i].predicted < group[j].predicted) ++ordered;
      }
    }
  }
  figures.groups = coefficients.size();
  figures.spearman = mean_of(coefficients);
  figures.mean_regret = mean_of(regrets);
  if (!regrets.empty()) figures.max_regret = *std::ranges::max_element(regrets);
  if (figures.pairs > 0) figures.ordered_pairs = static_cast<double>(ordered) / static_cast<double>(figures.pairs);
  return figures;
}

}  // namespace isobar::results
