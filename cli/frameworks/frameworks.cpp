#include "cli/frameworks/frameworks.hpp"

#include "allocators/registry.hpp"
#include "cli/frameworks/model_items.hpp"
#include "core/errors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace isobar::cli {

namespace {

/// What a framework makes stages of.
enum class Units : std::uint8_t {
  Layers,         ///< the workload's
  BlocksIfAny,    ///< blocks of a workload that has some, else layers
  Blocks,         ///< without those of multi-token prediction
  MegatronBlocks  ///< with those, all in one stage
};

struct Target {
  std::string_view name;
  Conversion (*convert)(const Plan&, const Workload&, const Cluster&);
  Units units;
  std::vector<std::string> schedules;  ///< empty: any
};

const std::vector<Target>& targets()
{
  static const std::vector<Target> all = {
      {"deepspeed", to_deepspeed, Units::BlocksIfAny, {"1f1b"}},
      {"megatron", to_megatron, Units::MegatronBlocks, {"1f1b", "interleaved"}},
      {"torch", to_torch, Units::Layers, {}},
      {"torchtitan", to_torchtitan, Units::Blocks, {}},
  };
  return all;
}

const Target& target_named(const std::string& name)
{
  const auto found = std::ranges::find(targets(), name, &Target::name);
  ensure(found != targets().end(), "options name known frameworks");
  return *found;
}

}  // namespace

std::vector<std::string> framework_names()
{
  std::vector<std::string> names;
  for (const auto& target : targets()) names.emplace_back(target.name);
  return names;
}

void add_framework(CLI::App& command, std::string& framework)
{
  command
      .add_option("--for", framework,
                  fmt::format("framework that is to take the plan (isobar convert --to): {} (default: none)",
                              fmt::join(framework_names(), ", ")))
      ->check(CLI::IsMember(framework_names()));
}

Conversion convert_to(const std::string& framework, const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  return target_named(framework).convert(plan, workload, cluster);
}

allocators::PlanRules rules_of(const std::string& framework, const Workload& workload, const std::string& option)
{
  const auto& [name, convert, units, schedules] = target_named(framework);
  const auto items = units == Units::Layers ? std::vector<ModelItem>() : items_of(workload);
  const bool needs_blocks = units == Units::Blocks || units == Units::MegatronBlocks;
  if (needs_blocks && items.empty()) {
    throw InputError(option, fmt::format("{} places the blocks of a gpt, llama or decoder, and workload {} is none",
                                         name, shown(workload.name)));
  }
  allocators::PlanRules rules;
  rules.software = name;
  rules.faults = [conversion = convert](const Plan& plan, const Workload& of, const Cluster& cluster) {
    return conversion(plan, of, cluster).faults;
  };
  bool has_predictions = false;
  for (const auto& item : items) {
    if (units == Units::Blocks && item.letter == 'm') {
      throw InputError(option, fmt::format("{} has no blocks of multi-token prediction; add --set mtp_layers=0", name));
    }
    const bool joins_others = units == Units::MegatronBlocks && item.letter == 'm' && has_predictions;
    has_predictions = has_predictions || item.letter == 'm';
    if (!joins_others) rules.first_layers.push_back(item.first);
  }
  for (std::size_t layer = 0; items.empty() && layer < workload.layers.size(); ++layer) {
    rules.first_layers.push_back(layer);
  }
  return rules;
}

bool has_schedule(const std::string& framework, const ScheduleChoice& schedule)
{
  const auto& names = target_named(framework).schedules;
  return names.empty() || std::ranges::find(names, schedule.name) != names.end();
}

void require_framework(const std::string& framework, const std::string& allocator, const ScheduleChoice& schedule,
                       bool offloads, const std::string& option)
{
  using allocators::Allocator;
  if (!has_schedule(framework, schedule)) {
    throw InputError(
        option, fmt::format("{} has schedule {}, not {}", framework,
                            fmt::join(target_named(framework).schedules, " and "), on_one_line(text_of(schedule))));
  }
  if (offloads) throw InputError(option, framework + " keeps stages on their devices; leave out --offload");
  for (const auto property : {&Allocator::uses_machines, &Allocator::divides_operators}) {
    if (!allocators::has_property(allocator, property)) continue;
    throw InputError(
        option,
        fmt::format(
            "{} has no plans such as those of allocator {}, which {}; use another allocator", framework, allocator,
            property == &Allocator::uses_machines ? "keep layers in a machine" : "divide operators one by one"));
  }
}

}  // namespace isobar::cli
