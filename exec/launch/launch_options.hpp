#pragma once

#include "exec/launch/launch.hpp"
#include "exec/launch/preflight.hpp"

#include <optional>
#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming)
class App;
}  // namespace CLI

namespace isobar::exec {

/// Options by which a rank that a launcher started finds the others, except --rank.
struct LaunchOptions {
  std::optional<std::size_t> world;
  std::optional<std::string> master;
  std::optional<std::string> plan_device;
  std::optional<std::string> map;         ///< absent: auto
  std::optional<std::string> clock_skew;  ///< absent: 5 s

  bool any() const { return world || master || plan_device || map || clock_skew; }
};

/// Adds --world, --master, --plan-device, --map and --clock-skew.
void add_launch_options(CLI::App& command, LaunchOptions& options);

/// What the plan and the options require of the ranks. `emulate`: accept devices of any type.
/// @throws InputError when --clock-skew is not a time.
Preflight preflight_of(const Plan& plan, DType dtype, const LaunchOptions& options, bool emulate);

}  // namespace isobar::exec
