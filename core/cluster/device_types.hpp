#pragma once

#include "core/units.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar {

/// A type of GPU, with the dense peak rates (no sparsity) of its vendor's data sheet.
///
/// Sustained rates are lower and depend on the model. A measured profile of the type takes precedence.
struct DeviceType {
  std::string name;                      ///< such as "V100-SXM2-16GB"
  std::vector<std::string> other_names;  ///< as drivers and data sets spell it
  FlopsPerSecond float32;                ///< outside tensor cores
  std::optional<FlopsPerSecond> tf32;    ///< on tensor cores; absent for types without it
  FlopsPerSecond fp16;                   ///< on tensor cores if the type has them, accumulating in float32
  std::optional<FlopsPerSecond> bf16;    ///< on tensor cores; absent for types without it
  std::optional<FlopsPerSecond> fp8;     ///< likewise, accumulating in float32
  std::optional<FlopsPerSecond> fp4;     ///< likewise; such types apply scales of a few numbers
  Bytes memory;                          ///< that the driver reports in total
  BytesPerSecond memory_bandwidth;
  BytesPerSecond inside_bandwidth;  ///< to the other devices of its node, per direction: NVLink if it has it, else PCIe
  std::string source;               ///< title and date of the data sheet
  std::string memory_source;        ///< where the driver's report was published
};

/// All known types, oldest first.
const std::vector<DeviceType>& device_types();
/// The type that has this name, or has it as another name; null for any other.
const DeviceType* find_device_type(std::string_view name);
/// The same. @throws std::logic_error for any other name.
const DeviceType& device_type(std::string_view name);
/// Whether two names stand for one type of device: they are equal, or names of one known type.
bool is_same_device_type(std::string_view one, std::string_view other);
/// The names of all known types, in the order of `device_types`.
std::vector<std::string> device_type_names();
/// What to write instead of an unknown name: "did you mean …?" with those of `types` of the same model, else "the types
/// are …". Types of another model are not suggested: they are other devices, and no misspellings.
std::string hint_for_device_type(const std::string& name, const std::vector<std::string>& types);

}  // namespace isobar
