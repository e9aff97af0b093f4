#pragma once

#include "results/table.hpp"

#include <CLI/CLI.hpp>

namespace isobar::cli {

/// The option --wide of commands whose tables may be wider than a terminal.
struct TableOptions {
  bool wide = false;

  void add_to(CLI::App& command)
  {
    command.add_flag("--wide", wide, "print every column of the table (default: those that fit into 80 characters)");
  }
  results::TableWidth width() const { return wide ? results::TableWidth::Any : results::TableWidth::Terminal; }
};

}  // namespace isobar::cli
