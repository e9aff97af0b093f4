#pragma once

#include "core/compute/device_constants.hpp"
#include "core/compute/operator_table.hpp"
#include "core/compute/sailor_profile.hpp"
#include "core/model/dtype.hpp"

#include <optional>
#include <string>
#include <vector>

namespace isobar::compute {

/// What was measured of device types: tables of operators, and Sailor's times and sizes of a model's layers. None of it
/// has to be there.
class Measurements {
 public:
  Measurements() = default;
  /// Reads such files. Sizes of Sailor that lie beside its profiles (NAME_sizes.json) are read with them.
  /// @throws InputError for files that are neither.
  explicit Measurements(const std::vector<std::string>& files);

  struct Table {
    std::string file;
    OperatorTable table;
  };
  const std::vector<Table>& tables() const { return tables_; }
  /// Those of a device type; null: none.
  const SailorProfile* layers_of(const std::string& type) const;
  const OperatorTable* table_of(const std::string& type) const;
  /// The table of a type, or else what Isobar has measured of its operators in a dtype; null: nothing.
  const OperatorTable* operators_of(const std::string& type, DType dtype) const;
  /// Those of the table of a type, if it has one; else the known ones.
  DeviceConstants constants_of(const std::string& type) const;
  const SailorSizes* sizes() const { return sizes_ ? &*sizes_ : nullptr; }

  struct Measured {
    std::string file;
    std::string device;  ///< the type that it names
  };
  /// Those of none of these device types.
  std::vector<Measured> of_others(const std::vector<std::string>& types) const;

 private:
  std::vector<SailorProfile> layers_;
  std::vector<Table> tables_;
  std::optional<SailorSizes> sizes_;
};

}  // namespace isobar::compute
