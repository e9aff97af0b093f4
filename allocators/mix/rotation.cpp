#include "allocators/mix/rotation.hpp"

#include "allocators/mix/shared_round.hpp"
#include "core/errors.hpp"

#include <algorithm>
#include <numeric>

namespace isobar::allocators {

namespace {

constexpr std::size_t compute = 1;  // in step_resources
constexpr std::size_t network = 2;

}  // namespace

Seconds time_of_rounds(const std::vector<JobStepTimes>& steps, std::uint64_t rounds)
{
  ensure(rounds > 0 && !steps.empty(), "no round, or none of a job");
  Seconds computed;
  Seconds left;
  for (const auto& step : steps) left += step.busy[network];
  Seconds first;
  for (const auto& step : steps) {
    computed += step.busy[compute];
    first = std::max(first, computed + left);
    left -= step.busy[network];
  }
  return shared_round_time(steps, RoundForm::Overlap) * static_cast<double>(rounds - 1) + first;
}

std::vector<std::size_t> johnson_order(const std::vector<JobStepTimes>& steps)
{
  std::vector<std::size_t> order(steps.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto sends_more = [&](std::size_t job) { return steps[job].busy[compute] < steps[job].busy[network]; };
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    if (sends_more(a) != sends_more(b)) return sends_more(a);
    return sends_more(a) ? steps[a].busy[compute] < steps[b].busy[compute]
                         : steps[a].busy[network] > steps[b].busy[network];
  });
  return order;
}

Seconds exposed_sync(Seconds sync, Seconds backward, std::uint64_t buckets)
{
  ensure(buckets > 0, "a gradient sync has a bucket");
  const auto count = static_cast<double>(buckets);
  return std::max(sync / count, sync - backward * ((count - 1) / count));
}

Seconds round_with_turns(const JobStepTimes& a, const JobStepTimes& b, std::uint64_t turns)
{
  ensure(turns > 0, "a job without a turn");
  return shared_round_time({a, b}, RoundForm::Overlap) + a.alone * static_cast<double>(turns - 1);
}

double max_min_rate(const std::vector<JobStepTimes>& steps)
{
  double computes = 0;
  double sends = 0;
  for (const auto& step : steps) {
    const double share = step.busy[compute] / step.alone;
    computes += share;
    sends += 1 - share;
  }
  return 1 / std::max({computes, sends, 1.0});
}

JobStepTimes with_hand_over(const JobStepTimes& step, Seconds hand_over)
{
  JobStepTimes longer = step;
  longer.alone += hand_over;
  longer.busy[compute] += hand_over;
  return longer;
}

Seconds swap_time(Bytes out, Bytes in, BytesPerSecond bandwidth)
{
  return std::max(out, in) / bandwidth;
}

double sync_ratio_of(double speedup)
{
  ensure(speedup >= 1 && speedup <= 2, "two jobs on two resources gain a factor of 1 to 2");
  return speedup - 1;
}

}  // namespace isobar::allocators
