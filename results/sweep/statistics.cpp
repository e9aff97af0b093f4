#include "results/sweep/statistics.hpp"

#include "core/errors.hpp"

#include <cmath>
#include <numbers>
#include <numeric>

namespace isobar::results {

namespace {

/// P(|t| <= sqrt(degrees) tan(angle)), the handbook's A(t|ν).
double probability_within(double angle, std::size_t degrees)
{
  const bool odd = degrees % 2 == 1;
  const double cosine = std::cos(angle);
  double term = odd ? cosine : 1;
  double sum = degrees == 1 ? 0 : term;
  for (std::size_t power = odd ? 3 : 2; power + 2 <= degrees; power += 2) {
    term *= cosine * cosine * static_cast<double>(power - 1) / static_cast<double>(power);
    sum += term;
  }
  return odd ? 2 / std::numbers::pi * (angle + std::sin(angle) * sum) : std::sin(angle) * sum;
}

}  // namespace

double student_t(double probability, std::size_t degrees_of_freedom)
{
  ensure(degrees_of_freedom >= 1 && probability > 0 && probability < 1, "Student's t outside its range");
  double low = 0;
  double high = std::numbers::pi / 2;
  for (;;) {
    const double middle = low + (high - low) / 2;
    if (middle <= low || middle >= high) break;
    (probability_within(middle, degrees_of_freedom) < probability ? low : high) = middle;
  }
  return std::sqrt(static_cast<double>(degrees_of_freedom)) * std::tan(low);
}

MeanInterval mean_interval(const std::vector<double>& numbers)
{
  ensure(!numbers.empty(), "the mean of nothing");
  const auto count = static_cast<double>(numbers.size());
  // Sums differences from the first number, so that equal numbers have exactly that mean and no spread.
  const double origin = numbers.front();
  const double mean =
      origin + std::accumulate(numbers.begin(), numbers.end(), 0.0, [origin](double sum, double number) {
                 return sum + (number - origin);
               }) / count;
  if (numbers.size() < 2) return {1, mean, std::nullopt};
  double squares = 0;
  for (const double number : numbers) squares += (number - mean) * (number - mean);
  const double standard_error = std::sqrt(squares / (count - 1) / count);
  return {numbers.size(), mean, student_t(0.95, numbers.size() - 1) * standard_error};
}

}  // namespace isobar::results
