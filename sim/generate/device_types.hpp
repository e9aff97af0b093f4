#pragma once

#include "core/units.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar::sim {

/// What the vendor's data sheet says of a GPU: dense peak rates, no sparsity.
///
/// A sustained rate is lower, and depends on the model; a measured profile of the type takes precedence over these.
struct DeviceType {
  std::string name;                    ///< such as "V100-SXM2-16GB"
  FlopsPerSecond float32;              ///< outside tensor cores
  FlopsPerSecond fp16;                 ///< tensor cores where the type has them, accumulating in float32
  std::optional<FlopsPerSecond> bf16;  ///< tensor cores; absent where the type has none for it
  Bytes memory;        ///< the sheet's GB as powers of 1000, which leaves a margin for driver and context
  std::string source;  ///< the data sheet, by its title and date
};

/// The types that generators and importers know, oldest first.
const std::vector<DeviceType>& device_types();
/// The type of that name; std::logic_error without one (device_groups_from_text lets no unknown name pass).
const DeviceType& device_type(std::string_view name);

/// So many devices of one type. Without a type, speed and memory come from the generator's options.
struct DeviceGroup {
  std::size_t count = 1;
  std::string type;
};

/// Reads "8xA100-SXM4-40GB+8xT4", or a bare count such as "1024" for devices without a type.
/// @throws std::invalid_argument with the fault in words, without a place: the reader that knows the place adds it.
std::vector<DeviceGroup> device_groups_from_text(std::string_view text);
/// The same text again.
std::string text_of(const std::vector<DeviceGroup>& groups);

}  // namespace isobar::sim
