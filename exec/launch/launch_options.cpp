#include "exec/launch/launch_options.hpp"

#include "core/base/command_options.hpp"
#include "core/base/quantity_text.hpp"
#include "core/errors.hpp"

#include <CLI/CLI.hpp>

#include <map>
#include <stdexcept>

namespace isobar::exec {

namespace {

const std::map<std::string, AssignmentRule>& rules_by_name()
{
  static const std::map<std::string, AssignmentRule> rules = {
      {"auto", AssignmentRule::Automatic}, {"order", AssignmentRule::Order}, {"host", AssignmentRule::Host}};
  return rules;
}

}  // namespace

void add_launch_options(CLI::App& command, LaunchOptions& options)
{
  add_count(command, "--world", options.world, "how many ranks there are (default: the launcher says it)");
  command.add_option("--master", options.master,
                     "where rank 0 listens, HOST:PORT (default: ISOBAR_MASTER, or what the launcher says)");
  command.add_option("--plan-device", options.plan_device,
                     "under a launcher or with --world: which of the plan's devices this rank is");
  command
      .add_option(
          "--map", options.map,
          "under a launcher or with --world: which rank is which device: host (by its machine's name), order (rank "
          "i is the plan's device i), or auto: host where every machine has a device's name, else order (default)")
      ->check(CLI::IsMember({"auto", "host", "order"}));
  command.add_option("--clock-skew", options.clock_skew,
                     "under a launcher or with --world: ranks whose clocks differ from rank 0's by more are refused "
                     "(default: 5 s)");
}

Preflight preflight_of(const Plan& plan, DType dtype, const LaunchOptions& options, bool emulate)
{
  Preflight preflight = preflight_of(plan, dtype);
  if (emulate) preflight.types.assign(preflight.types.size(), "");
  preflight.rule = rules_by_name().at(options.map.value_or("auto"));
  try {
    preflight.clock_skew = seconds_from_text(options.clock_skew.value_or("5 s"));
  } catch (const std::invalid_argument& fault) {
    throw InputError("--clock-skew", fault.what());
  }
  return preflight;
}

}  // namespace isobar::exec
