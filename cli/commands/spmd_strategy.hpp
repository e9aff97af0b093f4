#pragma once

#include "cli/inputs.hpp"
#include "core/errors.hpp"

#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace isobar::cli {

/// Options of allocator spmd, which divides every operator and makes no plan so far.
struct SpmdOptions {
  std::optional<std::string> cost;
  std::string parity_profile;

  void add_to(CLI::App& command);
  /// @throws InputError if one of them is given to another allocator.
  void refuse_with(const std::string& allocator) const;
};

/// Prints the strategy that allocator spmd finds for the operators of a workload, with the rates of a profile instead
/// of the platform's. `command` is the one that took the options.
/// @throws InputError for a workload without operators, and for an option that would have no effect.
ExitCode plan_strategy(const CLI::App& command, const InputOptions& inputs, const SpmdOptions& options, bool json);

}  // namespace isobar::cli
