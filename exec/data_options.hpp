#pragma once

#include "exec/dataset.hpp"

namespace CLI {
class App;
}

namespace isobar::exec {

/// Adds --data, --evaluate and --vocabulary. `options` outlives `command`.
void add_data_options(CLI::App& command, DataOptions& options);

}  // namespace isobar::exec
