#include "core/plan/transfer_rules.hpp"

#include "core/plan/placed_shards.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace isobar {

std::optional<std::string> fault_of_transfers(const Plan& plan)
{
  constexpr std::size_t most_sends = 2;
  if (!plan.transfers.blocking) return std::nullopt;
  const auto& stages = plan.stages;
  const auto number = numbers_in_file(plan);
  if (is_partly_divided(stages)) {
    return "blocking needs devices that divide all of their stages or none, and some have a stage alone beside others "
           "that they divide";
  }
  for (std::size_t i = 0; i < stages.size(); ++i) {
    if (stages[i].grid.is_grid()) {
      return fmt::format("blocking needs shards in no grid, and those of stages[{}] are in a {}", number[i],
                         text_of(stages[i].grid));
    }
    if (i == 0 || has_same_devices(stages[i - 1], stages[i])) continue;
    const auto& before = stages[i - 1].replicas;
    const auto& after = stages[i].replicas;
    const auto takes_as_many = [](const Replica& a, const Replica& b) { return a.microbatches == b.microbatches; };
    const bool have_one = before.size() == 1 && after.size() == 1;
    if (!have_one && !std::equal(before.begin(), before.end(), after.begin(), after.end(), takes_as_many)) {
      return fmt::format(
          "blocking needs neighbouring stages that divide the micro-batches alike, and stages[{}] has "
          "other replicas than stages[{}]",
          number[i], number[i - 1]);
    }
    for (std::size_t k = 0; k < after.size(); ++k) {
      const auto [few, many] = std::minmax({before[k].shards.size(), after[k].shards.size()});
      if (many <= most_sends * few) continue;
      return fmt::format(
          "blocking needs shards that send to {} others at most, and between stages[{}] and stages[{}] "
          "{} meet {}",
          most_sends, number[i - 1], number[i], few, many);
    }
  }
  return std::nullopt;
}

}  // namespace isobar
