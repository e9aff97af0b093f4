#include "exec/outer/outer_optimizer.hpp"

#include "core/errors.hpp"
#include "exec/files/crc32c.hpp"
#include "exec/outer/parallel_parts.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace isobar::exec {

void outer_gradient(std::span<const float> outer, std::span<const float> own, std::span<float> gradient,
                    std::size_t threads)
{
  ensure(outer.size() == own.size() && own.size() == gradient.size(), "a gradient has as many values as parameters");
  in_parallel_parts(gradient.size(), threads, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) gradient[i] = outer[i] - own[i];
  });
}

void weighted_mean(std::span<const std::span<const float>> gradients, std::span<const double> weights,
                   std::span<float> mean, std::size_t threads)
{
  ensure(gradients.size() == weights.size(), "each gradient has a weight");
  double total = 0;
  for (std::size_t k = 0; k < gradients.size(); ++k) {
    ensure(gradients[k].size() == mean.size(), "gradients have as many values as their mean");
    ensure(std::isfinite(weights[k]) && weights[k] >= 0, "weights are finite and not negative");
    total += weights[k];
  }
  ensure(total > 0, "some gradient has a weight");
  in_parallel_parts(mean.size(), threads, [&](std::size_t begin, std::size_t end) {
    std::array<double, 1024> sums;  // in the cache
    for (; begin < end; begin += sums.size()) {
      const std::size_t count = std::min(sums.size(), end - begin);
      sums.fill(0);
      for (std::size_t k = 0; k < gradients.size(); ++k) {
        if (weights[k] == 0) continue;
        const float* const values = gradients[k].data() + begin;
        for (std::size_t i = 0; i < count; ++i) sums[i] += weights[k] * static_cast<double>(values[i]);
      }
      for (std::size_t i = 0; i < count; ++i) mean[begin + i] = static_cast<float>(sums[i] / total);
    }
  });
}

void mix(std::span<float> own, std::span<const float> outer, float kept, std::size_t threads)
{
  ensure(own.size() == outer.size(), "a worker has as many parameters as the outer optimizer");
  in_parallel_parts(own.size(), threads, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) own[i] = kept * own[i] + (1 - kept) * outer[i];
  });
}

OuterOptimizer::OuterOptimizer(std::vector<float> parameters, std::vector<float> velocity, const OuterRule& rule,
                               std::size_t threads)
    : parameters_(std::move(parameters)), velocity_(std::move(velocity)), rule_(rule), threads_(threads)
{
  ensure(parameters_.size() == velocity_.size(), "each parameter has a velocity");
}

void OuterOptimizer::update(std::size_t first, std::span<const float> gradient)
{
  ensure(first <= parameters_.size() && gradient.size() <= parameters_.size() - first, "a gradient is of parameters");
  in_parallel_parts(gradient.size(), threads_, [&](std::size_t begin, std::size_t end) {
    float* const parameter = parameters_.data() + first;
    float* const velocity = velocity_.data() + first;
    const auto [rate, momentum] = rule_;
    for (std::size_t i = begin; i < end; ++i) {
      velocity[i] = momentum * velocity[i] + gradient[i];
      parameter[i] -= rate * (gradient[i] + momentum * velocity[i]);
    }
  });
}

std::uint32_t OuterOptimizer::checksum() const
{
  return crc32c(std::as_bytes(std::span(parameters_)));
}

}  // namespace isobar::exec
