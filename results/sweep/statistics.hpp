#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace isobar::results {

/// The mean of repeated measurements, and the half width of its 95 % confidence interval: Student's t for n − 1 degrees
/// of freedom × standard deviation / √n. None for fewer than two.
struct MeanInterval {
  std::size_t count = 0;
  double mean = 0;
  std::optional<double> half_width;
};

/// Of at least one number. O(n).
MeanInterval mean_interval(const std::vector<double>& numbers);

/// The t that a variable of Student's distribution with so many degrees of freedom (1 or more) is not further from 0
/// than with this probability in (0, 1): 12.706 for 0.95 and 1. O(degrees of freedom).
/// Source: Abramowitz, Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
double student_t(double probability, std::size_t degrees_of_freedom);

}  // namespace isobar::results
