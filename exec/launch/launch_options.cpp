#include "exec/launch/launch_options.hpp"

#include "core/base/command_options.hpp"
#include "core/errors.hpp"
#include "core/text/quantity_text.hpp"

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
  constexpr auto group = "Launch";
  add_count(command, "--world", options.world, "number of ranks (default: as the launcher sets it)")->group(group);
  command
      .add_option("--master", options.master,
                  "address at which rank 0 listens, HOST:PORT (default: ISOBAR_MASTER, or as the launcher sets it)")
      ->group(group);
  command
      .add_option("--plan-device", options.plan_device,
                  "with a launcher or --world: the plan's device that this rank is (default: as --map assigns it)")
      ->group(group);
  command
      .add_option("--map", options.map,
                  "with a launcher or --world: how ranks get the plan's devices: host (the device with the name of the "
                  "rank's machine), order (rank i gets the plan's device i), or auto (host where every machine has a "
                  "device's name, else order) (default: auto)")
      ->check(CLI::IsMember({"auto", "host", "order"}))
      ->group(group);
  command
      .add_option("--clock-skew", options.clock_skew,
                  "with a launcher or --world: refuse ranks whose clock differs by more from that of rank 0, such as "
                  "500 ms (default: 5 s)")
      ->group(group);
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
