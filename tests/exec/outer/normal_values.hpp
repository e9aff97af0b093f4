#pragma once

#include <cstddef>
#include <random>
#include <vector>

namespace isobar::exec::testing_support {

/// Values of a normal distribution, the same for a seed.
inline std::vector<float> normal_values(std::size_t count, unsigned seed)
{
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (auto& value : values) value = normal(random);
  return values;
}

}  // namespace isobar::exec::testing_support
