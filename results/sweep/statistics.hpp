#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace isobar::results {

/// Mean of repeated measurements, and half the width of its 95 % confidence interval: Student's t for n − 1 degrees of
/// freedom × standard deviation / √n.
struct MeanInterval {
  std::size_t count = 0;
  double mean = 0;
  std::optional<double> half_width;  ///< none for fewer than two numbers
};

/// Mean and confidence interval of at least one number. O(n).
MeanInterval mean_interval(const std::vector<double>& numbers);

/// Two-sided quantile of Student's distribution: the t with P(|T| <= t) = `probability`, which is in (0, 1), for 1 or
/// more degrees of freedom. 12.706 for 0.95 and 1. O(degrees of freedom).
/// Source: Abramowitz, Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
double student_t(double probability, std::size_t degrees_of_freedom);

}  // namespace isobar::results
