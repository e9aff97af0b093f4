#pragma once

#include "exec/data/dataset.hpp"

namespace CLI {
class App;
}

namespace isobar::exec {

/// Adds --data, --data-type, --evaluate and --vocabulary, in the command's current group. `options` must outlive
/// `command`.
void add_data_options(CLI::App& command, DataOptions& options);

}  // namespace isobar::exec
