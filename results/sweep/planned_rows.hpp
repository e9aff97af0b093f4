#pragma once

#include "results/comparison.hpp"
#include "results/sweep/sweep.hpp"
#include "results/sweep/sweep_store.hpp"
#include "results/sweep/sweep_table.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace isobar::results {

/// A run that planned, by its number.
struct PlannedRun {
  std::size_t run = 0;
  ComparisonRow row;
};

/// A plan's row for the database: its members from `outcome` on.
SweepRow stored_row(const std::string& definition, const ComparisonRow& row);
/// Sets the members of a row from `outcome` on.
void fill_from(const SweepRow& stored, ComparisonRow& row);

/// The rows for tables. `recompute` is among what identifies them where allocators recompute by default.
std::vector<SweepResult> results_of(const Sweep& sweep, const std::vector<PlannedRun>& runs);

}  // namespace isobar::results
