#include "allocators/mix/shared_round.hpp"

#include "core/errors.hpp"

#include <algorithm>
#include <numeric>

namespace isobar::allocators {

namespace {

constexpr std::size_t resources = step_resources.size();

/// The sum of the slots when job `order[i]` begins at resource i. Numbers beyond the jobs stand for none.
Seconds slots_in(const std::vector<JobStepTimes>& steps, const std::vector<std::size_t>& order)
{
  Seconds sum;
  for (std::size_t slot = 0; slot < resources; ++slot) {
    std::array<Seconds, resources> busy{};
    for (std::size_t i = 0; i < order.size(); ++i) {
      const std::size_t resource = (slot + i) % resources;
      if (order[i] < steps.size()) busy[resource] += steps[order[i]].busy[resource];
    }
    sum += *std::max_element(busy.begin(), busy.end());
  }
  return sum;
}

Seconds best_slots(const std::vector<JobStepTimes>& steps)
{
  std::vector<std::size_t> order(std::max(steps.size(), resources));
  std::iota(order.begin(), order.end(), std::size_t{0});
  Seconds best = slots_in(steps, order);
  // Turning all jobs by one resource changes nothing, so the first job stays where it is.
  while (std::next_permutation(order.begin() + 1, order.end())) best = std::min(best, slots_in(steps, order));
  return best;
}

}  // namespace

Seconds shared_round_time(const std::vector<JobStepTimes>& steps, RoundForm form)
{
  ensure(!steps.empty(), "a round of no job");
  ensure(form == RoundForm::Overlap || steps.size() <= 6, "slots of more than six jobs");
  Seconds longest;
  std::array<Seconds, resources> busy{};
  for (const auto& step : steps) {
    longest = std::max(longest, step.alone);
    for (std::size_t i = 0; i < resources; ++i) busy[i] += step.busy[i];
  }
  if (steps.size() == 1) return longest;
  const Seconds shared = form == RoundForm::Slots ? best_slots(steps) : *std::max_element(busy.begin(), busy.end());
  return std::max(longest, shared);
}

}  // namespace isobar::allocators
