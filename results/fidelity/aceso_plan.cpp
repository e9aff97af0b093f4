#include "results/fidelity/aceso_plan.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>

namespace isobar::results {

namespace {

/// The number that most of a list has.
std::size_t most_frequent(const std::vector<std::size_t>& numbers)
{
  std::map<std::size_t, std::size_t> counts;
  for (const std::size_t number : numbers) ++counts[number];
  return std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; })->first;
}

/// Lists by stage, of a number for each operator.
using OfOperators = std::vector<std::vector<std::size_t>>;

class PlanKeys {
 public:
  PlanKeys(const nlohmann::json& plan, const std::string& file) : plan_(plan), file_(file) {}

  std::vector<std::size_t> numbers(const char* key) const { return read<std::vector<std::size_t>>(key); }

  OfOperators of_operators(const char* key, const std::vector<std::size_t>& operators) const
  {
    auto lists = read<OfOperators>(key);
    if (lists.size() != operators.size()) {
      refuse(key, fmt::format("has {} lists; num_ops_in_each_stage has {}", lists.size(), operators.size()));
    }
    for (std::size_t stage = 0; stage < lists.size(); ++stage) {
      if (lists[stage].size() == operators[stage]) continue;
      refuse(key, fmt::format("has {} numbers for the {} operators of stage {}", lists[stage].size(), operators[stage],
                              stage));
    }
    return lists;
  }

  [[noreturn]] void refuse(const char* key, const std::string& what) const
  {
    throw InputError(file_, fmt::format("{}: {}", key, what));
  }

 private:
  /// Refuses numbers that are not whole, or below 0.
  void require_counts(const char* key, const nlohmann::json& value) const
  {
    for (const auto& each : value) {
      if (each.is_array()) {
        require_counts(key, each);
      } else if (each.is_number() && !each.is_number_unsigned()) {
        refuse(key, each.dump() + " is not a whole number, 0 or more");
      }
    }
  }

  template <typename Value>
  Value read(const char* key) const
  {
    const auto found = plan_.find(key);
    if (found == plan_.end()) refuse(key, "is missing");
    require_counts(key, *found);
    try {
      return found->get<Value>();
    } catch (const nlohmann::json::exception&) {
      refuse(key, "is not what Aceso writes; write lists of numbers by stage");
    }
  }

  const nlohmann::json& plan_;
  const std::string& file_;
};

}  // namespace

AcesoPlan read_aceso_plan(const std::string& file, double blocks)
{
  const auto json = nlohmann::json::parse(read_file(file), nullptr, false);
  if (!json.is_object()) throw InputError(file, "is no JSON object; write a plan of Aceso, or leave the column empty");
  const PlanKeys keys(json, file);
  const auto operators = keys.numbers("num_ops_in_each_stage");
  const auto devices = keys.numbers("num_gpus");
  const auto tensor = keys.of_operators("model_parallel_size_of_each_op", operators);
  const auto data = keys.of_operators("data_parallel_size_of_each_op", operators);
  const auto recomputed = keys.of_operators("recompute_ops", operators);
  if (devices.size() != operators.size()) {
    keys.refuse("num_gpus",
                fmt::format("has {} numbers; num_ops_in_each_stage has {}", devices.size(), operators.size()));
  }
  const BlockOperators uniform = BlockOperators::uniform();
  const std::size_t of_block = uniform.count();
  std::size_t all = 0;
  for (const std::size_t count : operators) all += count;
  const auto of_blocks = static_cast<std::size_t>(std::llround(blocks)) * of_block;
  constexpr std::size_t most_others = 4;  // embedding, last normalisation, head, loss
  if (all <= of_blocks || all > of_blocks + most_others) {
    keys.refuse("num_ops_in_each_stage", fmt::format("sum to {}; {:g} blocks have {}, and there are 1 to {} others",
                                                     all, blocks, of_blocks, most_others));
  }

  AcesoPlan plan;
  std::vector<bool> is_recomputed;  // by operator
  std::size_t begin = 0;
  double blocks_before = 0;
  for (std::size_t stage = 0; stage < operators.size(); ++stage) {
    if (operators[stage] == 0) keys.refuse("num_ops_in_each_stage", fmt::format("stage {} has none", stage));
    if (devices[stage] == 0) keys.refuse("num_gpus", fmt::format("stage {} has none", stage));
    plan.tensor.push_back(most_frequent(tensor[stage]));
    plan.data.push_back(most_frequent(data[stage]));
    if (plan.tensor.back() * plan.data.back() != devices[stage]) {
      keys.refuse("num_gpus", fmt::format("{} of stage {}; most of its operators have {} x {}", devices[stage], stage,
                                          plan.tensor.back(), plan.data.back()));
    }
    for (const std::size_t flag : recomputed[stage]) is_recomputed.push_back(flag != 0);
    begin += operators[stage];
    const bool is_last = stage + 1 == operators.size();
    const double through = is_last ? blocks : static_cast<double>(begin - 1) / static_cast<double>(of_block);
    plan.blocks.push_back(through - blocks_before);
    blocks_before = through;
  }
  for (std::size_t begin_block = 1; begin_block + of_block <= 1 + of_blocks; begin_block += of_block) {
    BlockOperators& operators_again = plan.recomputed.emplace_back();
    std::size_t next = begin_block;
    for (std::size_t which = 0; which < operators_of_block; ++which) {
      if (uniform.has(which) && is_recomputed[next++]) operators_again.add(which);
    }
  }
  return plan;
}

}  // namespace isobar::results
