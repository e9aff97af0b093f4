#pragma once

#include "exec/launch/launch.hpp"
#include "exec/launch/preflight.hpp"

#include <optional>
#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming)
class App;
}  // namespace CLI

namespace isobar::exec {

/// How a rank that a launcher started finds the others, as the user says it; with --rank, which is another option's.
struct LaunchOptions {
  std::optional<std::size_t> world;
  std::optional<std::string> master;
  std::optional<std::string> plan_device;
  std::optional<std::string> map;         ///< absent: auto
  std::optional<std::string> clock_skew;  ///< absent: 5 s

  bool any() const { return world || master || plan_device || map || clock_skew; }
};

/// --world, --master, --plan-device, --map and --clock-skew.
void add_launch_options(CLI::App& command, LaunchOptions& options);

/// What the plan and the user ask of the ranks, of any type of device where they are to `emulate` the plan's.
/// @throws InputError for a --clock-skew that is no time.
Preflight preflight_of(const Plan& plan, DType dtype, const LaunchOptions& options, bool emulate);

}  // namespace isobar::exec
