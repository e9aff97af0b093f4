#include "exec/outer/outer_optimizer.hpp"

#include "core/errors.hpp"
#include "exec/outer/parallel_parts.hpp"
#include "tests/exec/outer/normal_values.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

namespace isobar::exec::outer_optimizer_test {
namespace {

using Floats = std::vector<float>;
using testing_support::normal_values;

std::vector<std::uint32_t> bits_of(std::span<const float> values)
{
  std::vector<std::uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<std::uint32_t>(value));
  return bits;
}

Floats mean_of(const std::vector<Floats>& gradients, const std::vector<double>& weights, std::size_t threads = 1)
{
  const std::vector<std::span<const float>> spans(gradients.begin(), gradients.end());
  Floats mean(gradients.at(0).size());
  weighted_mean(spans, weights, mean, threads);
  return mean;
}

/// Least squares of noisy rows, whose loss has its least value above 0. A batch is that of a worker and a step.
class LeastSquares {
 public:
  static constexpr std::size_t size = 24;
  static constexpr std::size_t batch = 4;

  Floats gradient(const Floats& at, std::size_t worker, std::size_t step) const
  {
    Floats sums(size);
    for (std::size_t row = 0; row < batch; ++row) {
      const auto seed = static_cast<unsigned>((step * 64 + worker) * batch + row);
      const Floats values = normal_values(size + 1, seed);
      float residual = -values[size];
      for (std::size_t i = 0; i < size; ++i) residual += values[i] * (at[i] - truth_[i]);
      for (std::size_t i = 0; i < size; ++i) sums[i] += residual * values[i] / batch;
    }
    return sums;
  }

  /// Over 500 rows that no step has seen.
  double loss(std::span<const float> at) const
  {
    double loss = 0;
    for (unsigned row = 0; row < 500; ++row) {
      const Floats values = normal_values(size + 1, 1'000'000 + row);
      double residual = -static_cast<double>(values[size]);
      for (std::size_t i = 0; i < size; ++i) residual += static_cast<double>(values[i] * (at[i] - truth_[i]));
      loss += residual * residual / 1000;
    }
    return loss;
  }

 private:
  Floats truth_ = normal_values(size, 77);
};

const LeastSquares problem;
constexpr std::size_t steps = 200;
constexpr float inner_rate = 0.02F;

void step_of_sgd(Floats& at, const Floats& gradient, float rate)
{
  for (std::size_t i = 0; i < at.size(); ++i) at[i] -= rate * gradient[i];
}

/// φ after rounds of `inner` steps of SGD on each of `workers`; all take the data of worker 0 if they are equal.
Floats diloco(std::size_t workers, std::size_t inner, const OuterRule& rule, bool are_equal = false)
{
  OuterOptimizer outer(Floats(LeastSquares::size), Floats(LeastSquares::size), rule);
  for (std::size_t round = 0; round < steps / inner; ++round) {
    std::vector<Floats> gradients;
    for (std::size_t worker = 0; worker < workers; ++worker) {
      Floats own(outer.parameters().begin(), outer.parameters().end());
      for (std::size_t step = round * inner; step < (round + 1) * inner; ++step) {
        step_of_sgd(own, problem.gradient(own, are_equal ? 0 : worker, step), inner_rate);
      }
      gradients.emplace_back(own.size());
      outer_gradient(outer.parameters(), own, gradients.back());
    }
    outer.update(0, mean_of(gradients, std::vector<double>(workers, 1)));
  }
  return {outer.parameters().begin(), outer.parameters().end()};
}

/// Synchronous data-parallel SGD with Nesterov's momentum, in double.
std::vector<double> data_parallel(std::size_t workers, double rate, double momentum)
{
  std::vector<double> at(LeastSquares::size);
  std::vector<double> velocity(LeastSquares::size);
  for (std::size_t step = 0; step < steps; ++step) {
    const Floats rounded(at.begin(), at.end());
    std::vector<double> mean(LeastSquares::size);
    for (std::size_t worker = 0; worker < workers; ++worker) {
      const Floats gradient = problem.gradient(rounded, worker, step);
      for (std::size_t i = 0; i < mean.size(); ++i)
        mean[i] += static_cast<double>(gradient[i]) / static_cast<double>(workers);
    }
    for (std::size_t i = 0; i < at.size(); ++i) {
      velocity[i] = momentum * velocity[i] + mean[i];
      at[i] -= rate * (mean[i] + momentum * velocity[i]);
    }
  }
  return at;
}

double relative_difference(double a, double b)
{
  return std::abs(a - b) / std::abs(b);
}

TEST(OuterOptimizer, OfOneWorkerThatAveragesIsPlainTraining)
{
  Floats plain(LeastSquares::size);
  for (std::size_t step = 0; step < steps; ++step) step_of_sgd(plain, problem.gradient(plain, 0, step), inner_rate);
  EXPECT_LT(problem.loss(plain), 0.1 * problem.loss(Floats(LeastSquares::size)));
  for (const std::size_t inner : {1, 10, 50, 200}) {
    const Floats outer = diloco(1, inner, {.learning_rate = 1, .momentum = 0});
    EXPECT_LE(relative_difference(problem.loss(outer), problem.loss(plain)), 1e-6) << inner;
  }
}

TEST(OuterOptimizer, AfterSingleStepsOfSgdIsDataParallelTraining)
{
  for (const std::size_t workers : {1, 2, 3, 4, 8}) {
    for (const auto& [rate, momentum] : std::vector<std::pair<float, float>>{{1, 0}, {0.7F, 0}, {0.7F, 0.9F}}) {
      const Floats outer = diloco(workers, 1, {.learning_rate = rate, .momentum = momentum});
      const auto exact = data_parallel(workers, static_cast<double>(inner_rate) * static_cast<double>(rate),
                                       static_cast<double>(momentum));
      const Floats rounded(exact.begin(), exact.end());
      EXPECT_LE(relative_difference(problem.loss(outer), problem.loss(rounded)), 1e-6)
          << workers << " workers, rate " << rate << ", momentum " << momentum;
    }
  }
}

TEST(OuterOptimizer, OfWorkersThatAreEqualIsThatOfOneToTheLastBit)
{
  const auto one = bits_of(diloco(1, 10, {.learning_rate = 1, .momentum = 0}));
  const auto one_with_momentum = bits_of(diloco(1, 10, {}));
  for (const std::size_t workers : {2, 3, 4, 8, 10}) {
    EXPECT_EQ(bits_of(diloco(workers, 10, {.learning_rate = 1, .momentum = 0}, true)), one) << workers;
    EXPECT_EQ(bits_of(diloco(workers, 10, {}, true)), one_with_momentum) << workers;
  }
}

TEST(OuterOptimizer, UpdatesAsItsFormulaSays)
{
  OuterOptimizer outer({1, 2, 3}, {0, 1, 0}, {.learning_rate = 0.5F, .momentum = 0.5F});
  outer.update(1, Floats{4, 8});
  EXPECT_THAT(outer.velocity(), testing::ElementsAre(0, 4.5F, 8));
  EXPECT_THAT(outer.parameters(), testing::ElementsAre(1, 2 - 0.5F * (4 + 2.25F), 3 - 0.5F * (8 + 4)));
  EXPECT_THAT(
      [&] {
        outer.update(2, Floats{1, 1});
      },
      testing::ThrowsMessage<std::logic_error>("a gradient is of parameters"));
}

TEST(OuterOptimizer, HasTheSameBitsForAnySplitAndAnyNumberOfThreads)
{
  constexpr std::size_t count = 300'001;
  const Floats begin = normal_values(count, 1);
  const std::vector<Floats> gradients = {normal_values(count, 2), normal_values(count, 3), normal_values(count, 4)};
  const std::vector<double> weights = {1, 2.5, 0.3};
  const auto result = [&](std::size_t threads, std::size_t pieces) {
    OuterOptimizer outer(begin, Floats(count), {}, threads);
    Floats own = normal_values(count, 5);
    for (int round = 0; round < 3; ++round) {
      for (std::size_t piece = 0; piece < pieces; ++piece) {
        const std::size_t first = count * piece / pieces;
        const std::size_t length = count * (piece + 1) / pieces - first;
        std::vector<std::span<const float>> parts;
        for (const auto& gradient : gradients) parts.push_back(std::span(gradient).subspan(first, length));
        Floats mean(length);
        weighted_mean(parts, weights, mean, threads);
        outer.update(first, mean);
        mix(std::span(own).subspan(first, length), outer.parameters().subspan(first, length), 0.25F, threads);
      }
    }
    auto bits = bits_of(outer.parameters());
    for (const std::uint32_t of_own : bits_of(own)) bits.push_back(of_own);
    return std::pair(bits, outer.checksum());
  };
  const auto expected = result(1, 1);
  for (const std::size_t threads : {1, 2, 3, 7, 64}) {
    for (const std::size_t pieces : {1, 2, 5, 97}) {
      const auto found = result(threads, pieces);
      EXPECT_TRUE(found == expected) << threads << " threads, " << pieces << " pieces";
    }
  }
}

TEST(OuterOptimizer, HasTheChecksumOfItsParameters)
{
  // RFC 3720, appendix B.4: 32 bytes of zeros.
  OuterOptimizer outer(Floats(8), Floats(8), {.learning_rate = 1, .momentum = 0});
  EXPECT_EQ(outer.checksum(), 0x8a9136aaU);
  outer.update(7, Floats{1e-30F});
  EXPECT_NE(outer.checksum(), 0x8a9136aaU);
}

TEST(WeightedMean, CountsWorkersByTheirWeights)
{
  EXPECT_EQ(mean_of({{1, 2}, {5, 6}}, {3, 1}), (Floats{2, 3}));
  EXPECT_EQ(mean_of({{1, 2}, {5, 6}}, {0, 1}), (Floats{5, 6}));
}

TEST(WeightedMean, DoesNotReadAGradientWithoutWeight)
{
  EXPECT_EQ(mean_of({{std::numeric_limits<float>::quiet_NaN()}, {5}}, {0, 0.5}), (Floats{5}));
}

TEST(WeightedMean, MayReplaceOneOfItsGradients)
{
  Floats first = {1, 2};
  const Floats second = {3, 6};
  const std::vector<std::span<const float>> gradients = {first, second};
  weighted_mean(gradients, std::vector<double>{1, 1}, first);
  EXPECT_EQ(first, (Floats{2, 4}));
}

TEST(WeightedMean, NeedsWeights)
{
  for (const std::vector<double>& weights : {std::vector<double>{0, 0}, {}}) {
    EXPECT_THROW(mean_of({{1}, {2}}, weights), std::logic_error);
  }
  EXPECT_THROW(mean_of({{1}, {2}}, {-1, 2}), std::logic_error);
  EXPECT_THROW(mean_of({{1}, {2}}, {std::numeric_limits<double>::infinity(), 2}), std::logic_error);
}

TEST(Mix, KeepsAPartOfTheWorkersOwnParameters)
{
  Floats own = {4, 8};
  mix(own, Floats{0, 4}, 0.25F);
  EXPECT_EQ(own, (Floats{1, 5}));
  mix(own, Floats{0.1F, 0.3F}, 0);
  EXPECT_EQ(own, (Floats{0.1F, 0.3F}));
}

TEST(ParallelParts, CoverAllValuesOnce)
{
  for (const std::size_t count : {0, 1, 65'536, 65'537, 1'000'000}) {
    for (const std::size_t threads : {0, 1, 2, 3, 40}) {
      std::mutex mutex;
      std::vector<std::pair<std::size_t, std::size_t>> parts;
      in_parallel_parts(count, threads, [&](std::size_t begin, std::size_t end) {
        const std::scoped_lock lock(mutex);
        parts.emplace_back(begin, end);
      });
      std::ranges::sort(parts);
      std::size_t covered = 0;
      for (const auto& [begin, end] : parts) {
        EXPECT_EQ(begin, covered);
        EXPECT_EQ(begin % 65'536, 0);
        covered = end;
      }
      EXPECT_EQ(covered, count);
      EXPECT_LE(parts.size(), std::max<std::size_t>(threads, 1));
    }
  }
}

TEST(ParallelParts, FinishBeforeTheFirstErrorIsThrown)
{
  std::atomic<int> finished = 0;
  const auto work = [&](std::size_t begin, std::size_t /*end*/) {
    ++finished;
    throw EnvironmentError("part from " + std::to_string(begin));
  };
  EXPECT_THAT([&] { in_parallel_parts(300'000, 3, work); }, testing::ThrowsMessage<EnvironmentError>("part from 0"));
  EXPECT_EQ(finished, 3);
}

}  // namespace
}  // namespace isobar::exec::outer_optimizer_test
