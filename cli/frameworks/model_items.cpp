#include "cli/frameworks/model_items.hpp"

#include "core/compute/transformer.hpp"
#include "core/errors.hpp"

#include <fmt/format.h>

namespace isobar::cli {

std::vector<ModelItem> items_of(const Workload& workload)
{
  const auto blocks = compute::ends_of_blocks(workload).size();
  if (blocks == 0) return {};
  std::vector<ModelItem> items = {{'E', 0, 0}};
  const std::size_t head = workload.layers.size() - 1;
  while (items.back().last + 1 < head) {
    const auto [first, last] = compute::block_of(workload, items.back().last + 1);
    items.push_back({items.size() <= blocks ? 't' : 'm', first, last});
  }
  items.push_back({'L', head, head});
  return items;
}

bool recomputes_all_blocks(const Plan& plan, const Workload& workload)
{
  return plan.recompute == inner_layers(workload) || plan.recompute == all_recomputed(workload);
}

std::vector<std::string> letters_of_stages(const Workload& workload,
                                           const std::vector<std::pair<std::size_t, std::size_t>>& stages,
                                           const std::string& software, std::vector<std::string>& faults)
{
  const auto items = items_of(workload);
  if (items.empty()) {
    faults.push_back(fmt::format("workload: {} is no gpt, llama or decoder; {} places the blocks of these",
                                 shown(workload.name), software));
    return {};
  }
  const std::size_t faults_before = faults.size();
  std::vector<std::string> letters(stages.size());
  auto item = items.begin();
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    for (; item != items.end() && item->last <= stages[stage].second; ++item) letters[stage] += item->letter;
    if (item != items.end() && item->first <= stages[stage].second) {
      faults.push_back(
          fmt::format("stages: one begins at layer {}, within the block of layers {} to {}; {} has whole "
                      "blocks in a stage",
                      stages[stage].second + 1, item->first, item->last, software));
      letters[stage] += item->letter;
      ++item;
    }
  }
  return faults.size() == faults_before ? letters : std::vector<std::string>();
}

}  // namespace isobar::cli
