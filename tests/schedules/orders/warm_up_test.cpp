#include "schedules/orders/warm_up.hpp"

#include "core/base/pcg64.hpp"
#include "schedules/orders/one_forward_one_backward.hpp"
#include "schedules/orders/zero_bubble.hpp"
#include "tests/schedules/orders/order_play.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <tuple>
#include <vector>

namespace isobar::schedules::warm_up_test {
namespace {

constexpr std::uint64_t many = 1'000'000;
constexpr std::uint64_t no_limit = std::numeric_limits<std::uint64_t>::max();

/// A chain in whole seconds, so that sums are exact, with the same times for the play.
struct Chain {
  std::vector<StageRhythm> stages;
  std::vector<PlayedStage> played;
  bool splits_backward = false;
};

class RandomChains {
 public:
  explicit RandomChains(std::uint64_t seed) : random_(seed) {}

  std::uint64_t number(std::uint64_t least, std::uint64_t most) { return least + random_.next() % (most - least + 1); }

  Chain draw(std::size_t stages)
  {
    Chain chain;
    chain.splits_backward = number(0, 1) == 0;
    for (std::size_t i = 0; i < stages; ++i) {
      PlayedStage times{seconds(1, 6), seconds(1, 6), 0, seldom(12), seldom(12), seldom(12), seldom(12)};
      if (chain.splits_backward) times.weight = seconds(1, 6);
      StageRhythm stage;
      stage.pass = Seconds(times.forward + times.backward);
      stage.weights = Seconds(times.weight);
      stage.output = {Seconds(times.output), Seconds(times.output_data)};
      stage.gradient = {Seconds(times.gradient), Seconds(times.gradient_data)};
      if (chain.splits_backward) stage.lag = number(0, 3);
      chain.stages.push_back(stage);
      chain.played.push_back(times);
    }
    return chain;
  }

 private:
  double seconds(std::uint64_t least, std::uint64_t most) { return static_cast<double>(number(least, most)); }
  double seldom(std::uint64_t most) { return number(0, 2) > 0 ? 0 : seconds(0, most); }

  Pcg64 random_;
};

std::vector<Order> orders_of(const Chain& chain, const std::vector<std::uint64_t>& forwards, std::uint64_t microbatches)
{
  std::vector<Order> orders;
  for (std::size_t i = 0; i < forwards.size(); ++i) {
    orders.push_back(chain.splits_backward ? zero_bubble_order(forwards[i], chain.stages[i].lag, microbatches)
                                           : one_forward_one_backward_order(forwards[i], microbatches));
  }
  return orders;
}

/// The time per micro-batch of a full pipeline: how much longer 2 M micro-batches take than M. A full pipeline may
/// repeat itself only after several micro-batches; M is a multiple of 1 to 6 of them.
double played_period(const Chain& chain, const std::vector<std::uint64_t>& forwards)
{
  const std::uint64_t M = 60 * (1 + *std::max_element(forwards.begin(), forwards.end()) / 20);
  const auto makespan = [&](std::uint64_t microbatches) {
    const PipelineShape shape = folded(Folding::OneEach, forwards.size(), 1, microbatches);
    return play(shape, orders_of(chain, forwards, microbatches), chain.played).makespan;
  };
  return (makespan(2 * M) - makespan(M)) / static_cast<double>(M);
}

/// The time of the slowest stage or lane.
double slowest(const std::vector<StageRhythm>& stages)
{
  double time = 0;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    time = std::max(time, (stages[i].pass + stages[i].weights).value);
    if (i + 1 < stages.size()) time = std::max({time, stages[i].output.data.value, stages[i].gradient.data.value});
  }
  return time;
}

/// The sums of the rule, one by one.
double there_and_back(const std::vector<StageRhythm>& stages, std::size_t i, std::size_t j)
{
  double sum = stages[i].weights.value;
  for (std::size_t k = i; k <= j; ++k) sum += stages[k].pass.value;
  for (std::size_t k = i; k < j; ++k) sum += (stages[k].output.total() + stages[k].gradient.total()).value;
  return sum;
}

/// The rule for a period that may be a sum over a whole number.
std::vector<std::uint64_t> forwards_for(const std::vector<StageRhythm>& stages, double period)
{
  std::vector<std::uint64_t> forwards(stages.size(), 0);
  for (std::size_t i = stages.size(); i-- > 0;) {
    for (std::size_t j = i + 1; j < stages.size(); ++j) {
      const double periods = std::ceil(there_and_back(stages, i, j) / period - 1e-9);
      forwards[i] = std::max(forwards[i], forwards[j] + static_cast<std::uint64_t>(periods) - 1);
    }
  }
  return forwards;
}

bool fits(const std::vector<StageRhythm>& stages, const std::vector<std::uint64_t>& forwards)
{
  for (std::size_t i = 0; i < stages.size(); ++i) {
    if (forwards[i] + stages[i].lag + 1 > stages[i].most_in_flight) return false;
  }
  return true;
}

std::vector<StageRhythm> equal_stages(std::size_t count, double pass, double latency, double data)
{
  StageRhythm stage;
  stage.pass = Seconds(pass);
  stage.output = {Seconds(latency), Seconds(data)};
  stage.gradient = stage.output;
  return std::vector<StageRhythm>(count, stage);
}

TEST(LeastWarmUp, IsThatOfOneForwardOneBackwardWithoutDelays)
{
  const auto warm_up = least_warm_up(equal_stages(5, 3, 0, 0), many).value();
  EXPECT_EQ(warm_up.forwards, (std::vector<std::uint64_t>{4, 3, 2, 1, 0}));
  EXPECT_EQ(warm_up.period, Seconds(3));
}

TEST(LeastWarmUp, GrowsByTheRoundTripOfEachHop)
{
  // Between equal stages: 1 + ceil(round trip / period).
  for (const auto& [latency, data, further] :
       {std::tuple{0.1, 0.05, 1U}, std::tuple{0.5, 0.0, 1U}, std::tuple{0.5, 0.25, 2U}, std::tuple{3.0, 0.5, 7U}}) {
    const auto warm_up = least_warm_up(equal_stages(4, 1, latency, data), many).value();
    const std::uint64_t hop = 1 + further;
    EXPECT_EQ(warm_up.forwards, (std::vector<std::uint64_t>{3 * hop, 2 * hop, hop, 0})) << latency << " " << data;
    EXPECT_EQ(warm_up.period, Seconds(1));
  }
}

TEST(LeastWarmUp, IsLimitedByTheSlowestStageOrLane)
{
  auto stages = equal_stages(3, 1, 0.5, 0.25);
  stages[1].pass = Seconds(2);
  EXPECT_EQ(least_warm_up(stages, many)->period, Seconds(2));
  stages[1].weights = Seconds(0.5);
  EXPECT_EQ(least_warm_up(stages, many)->period, Seconds(2.5));
  stages[0].gradient.data = Seconds(4);
  EXPECT_EQ(least_warm_up(stages, many)->period, Seconds(4));
  // The last stage has no hop, and latency occupies no lane.
  stages[2].output.data = Seconds(9);
  stages[1].output.latency = Seconds(9);
  EXPECT_EQ(least_warm_up(stages, many)->period, Seconds(4));
}

TEST(LeastWarmUp, HasNoMoreForwardsThanMicroBatches)
{
  const auto warm_up = least_warm_up(equal_stages(4, 1, 100, 0), 7).value();
  EXPECT_EQ(warm_up.forwards, (std::vector<std::uint64_t>{7, 7, 7, 0}));
}

TEST(LeastWarmUp, OfOneStageIsNone)
{
  const auto warm_up = least_warm_up(equal_stages(1, 1, 5, 5), 8).value();
  EXPECT_EQ(warm_up.forwards, (std::vector<std::uint64_t>{0}));
  EXPECT_EQ(warm_up.period, Seconds(1));
}

TEST(LeastWarmUp, ReachesThePeriodOfTheSlowestStageOrLaneAndNoShorterOneDoes)
{
  std::size_t lowered = 0;
  std::size_t limited_by_lane = 0;
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    RandomChains random(seed);
    const Chain chain = random.draw(random.number(2, 5));
    const auto warm_up = least_warm_up(chain.stages, many).value();
    const double period = slowest(chain.stages);
    EXPECT_EQ(warm_up.period, Seconds(period)) << "seed " << seed;
    EXPECT_NEAR(played_period(chain, warm_up.forwards), period, 1e-9) << "seed " << seed;
    for (std::size_t i = 0; i + 1 < chain.stages.size(); ++i) {
      auto fewer = warm_up.forwards;
      // Fewer than the next stage has would deadlock.
      if (fewer[i] == fewer[i + 1]) continue;
      --fewer[i];
      EXPECT_GT(played_period(chain, fewer), period + 1e-9) << fmt::format("seed {}, stage {}", seed, i);
      ++lowered;
    }
    const auto is_busy = [&](const StageRhythm& stage) { return (stage.pass + stage.weights).value == period; };
    if (std::none_of(chain.stages.begin(), chain.stages.end(), is_busy)) ++limited_by_lane;
  }
  EXPECT_GT(lowered, 1000U);
  EXPECT_GT(limited_by_lane, 100U);
}

TEST(LeastWarmUp, HasTheLeastPeriodThatTheMemoryAllows)
{
  std::size_t limited = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    RandomChains random(seed);
    Chain chain = random.draw(random.number(2, 5));
    for (auto& stage : chain.stages) {
      if (random.number(0, 1) == 0) stage.most_in_flight = stage.lag + random.number(1, 5);
    }
    // Forwards change only at periods that a whole number of times make one of the sums.
    const double least = slowest(chain.stages);
    std::vector<double> candidates = {least};
    for (std::size_t i = 0; i < chain.stages.size(); ++i) {
      for (std::size_t j = i + 1; j < chain.stages.size(); ++j) {
        for (int times = 1; times <= 40; ++times) {
          candidates.push_back(std::max(least, there_and_back(chain.stages, i, j) / times));
        }
      }
    }
    std::sort(candidates.begin(), candidates.end());
    const auto best = std::find_if(candidates.begin(), candidates.end(), [&](double period) {
      return fits(chain.stages, forwards_for(chain.stages, period));
    });
    ASSERT_NE(best, candidates.end());

    const auto warm_up = least_warm_up(chain.stages, many).value();
    EXPECT_NEAR(warm_up.period.value, *best, 1e-9) << "seed " << seed;
    EXPECT_EQ(warm_up.forwards, forwards_for(chain.stages, *best)) << "seed " << seed;
    EXPECT_LE(played_period(chain, warm_up.forwards), warm_up.period.value + 1e-9) << "seed " << seed;
    if (*best > least) ++limited;
  }
  EXPECT_GT(limited, 100U);
}

TEST(LeastWarmUp, IsNoneWhereNoMicroBatchFits)
{
  auto stages = equal_stages(3, 1, 0, 0);
  stages[1].most_in_flight = 0;
  EXPECT_FALSE(least_warm_up(stages, many).has_value());
  stages[1].most_in_flight = 2;
  stages[1].lag = 2;
  EXPECT_FALSE(least_warm_up(stages, many).has_value());
  // Two micro-batches in all fit at any warm-up and lag.
  EXPECT_TRUE(least_warm_up(stages, 2).has_value());
  stages[1].most_in_flight = no_limit;
  EXPECT_TRUE(least_warm_up(stages, many).has_value());
}

TEST(LeastWarmUp, RefusesNothing)
{
  EXPECT_THROW(least_warm_up({}, 1), std::logic_error);
  EXPECT_THROW(least_warm_up(equal_stages(2, 1, 0, 0), 0), std::logic_error);
  EXPECT_THROW(least_warm_up(equal_stages(2, 0, 0, 0), 1), std::logic_error);
}

TEST(LeastWarmUp, IsWhatTheSchedulesTake)
{
  RandomChains random(11);
  const Chain chain = random.draw(4);
  const auto warm_up = least_warm_up(chain.stages, 20).value();
  const PipelineShape shape = folded(Folding::OneEach, 4, 1, 20);
  for (const char* name : {"1f1b", "zero-bubble-h1", "zero-bubble-h2"}) {
    const auto orders = require_schedule(name).orders(shape, {name, {{"warm_up", warm_up.forwards}}});
    for (std::size_t i = 0; i < 4; ++i) {
      const std::uint64_t ahead = std::min<std::uint64_t>(warm_up.forwards[i], 19);
      EXPECT_EQ(orders[i].position_of({Opcode::Forward, 0, ahead}), ahead) << name;
    }
  }
}

}  // namespace
}  // namespace isobar::schedules::warm_up_test
