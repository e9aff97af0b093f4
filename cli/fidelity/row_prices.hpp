#pragma once

#include "cli/fidelity/row_problem.hpp"
#include "core/cluster/cluster.hpp"
#include "core/compute/device_constants.hpp"
#include "core/compute/layer_time.hpp"
#include "core/units.hpp"
#include "results/fidelity/prediction.hpp"

#include <optional>
#include <string>
#include <vector>

namespace isobar::cli {

/// What was measured of the devices of a row, if anything: profiles of the model's layers, or tables of operators.
class RowProfiles {
 public:
  /// Reads the files of a row. @throws InputError for files that are neither.
  explicit RowProfiles(const std::vector<std::string>& files);

  bool empty() const { return layers_.empty() && tables_.empty(); }
  /// Those of a device type; null: none.
  const compute::SailorProfile* layers_of(const std::string& type) const;
  const compute::OperatorTable* table_of(const std::string& type) const;
  /// Those of the table of the type, if it has one; else the known ones.
  compute::DeviceConstants constants_of(const std::string& type) const;
  const compute::SailorSizes* sizes() const { return sizes_ ? &*sizes_ : nullptr; }

 private:
  std::vector<compute::SailorProfile> layers_;
  std::vector<compute::OperatorTable> tables_;
  std::optional<compute::SailorSizes> sizes_;
};

/// A problem whose layers have the work of the devices in their stage.
struct PricedRow {
  Workload workload;
  Cluster cluster;  ///< with the speed that each device of the plan has in its stages
  std::vector<results::RowParts>
      parts;  ///< by stage of the pipeline: of one micro-batch, on the slowest of its devices
};

/// Gives the layers of a row their work. `problem.workload` has been made to recompute what the plan says.
/// @throws Unsupported for what profiles do not have, and InputError for a device type without constants.
PricedRow price_row(const RowProblem& problem, const Cluster& cluster, const compute::Framework& framework,
                    const RowProfiles& profiles);

}  // namespace isobar::cli
