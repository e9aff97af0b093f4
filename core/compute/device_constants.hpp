#pragma once

#include "core/model/dtype.hpp"
#include "core/model/product_recipe.hpp"
#include "core/units.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// How long operators take on real devices under real training software, and the memory that they need there.
/// Model, constants and sources: docs/fidelity.md.
namespace isobar::compute {

struct OperatorTable;

/// The part of a device's bandwidth that copies reach, by the tables of results/fidelity/operators.
inline constexpr double copy_fraction = 0.8;

/// A product of an m x k and a k x n matrix takes 2 m n k / (peak x efficiency) x (1 + size_loss (1/m + 1/n + 1/k)).
struct ProductConstants {
  double efficiency = 1;  ///< part of the peak that large products reach
  double size_loss = 0;   ///< an extent of this size costs as much again
  double gradients = 1;   ///< products of gradients run so much faster than those of forward passes
};

/// How the times of a type of device are known, the best known first.
enum class DeviceSource : std::uint8_t {
  Runs,       ///< constants are fitted to training runs on it
  Layers,     ///< its layers were measured in training
  SameChip,   ///< constants are those of the same chip with another memory, which are fitted to training runs
  Operators,  ///< its operators were measured
  Tables,     ///< constants are fitted to its operators, of which some are those of other types
  StandIn     ///< constants are those of another chip, or follow from data sheets
};

/// What is known of a type of device.
struct DeviceConstants {
  std::string type;  ///< name of a DeviceType, such as "A100-SXM4-80GB"; else as in Device::type
  // From the vendor's data sheet: dense peaks.
  FlopsPerSecond fp16;                 ///< also of bf16, where the device has it
  bool has_bf16 = false;               ///< a device without it computes bf16 at the rate of float32
  std::optional<FlopsPerSecond> tf32;  ///< none: the device computes TF32 at the rate of float32
  FlopsPerSecond fp32;                 ///< without tensor cores
  std::optional<FlopsPerSecond> fp8;   ///< none: the device has no products of 8 bits
  std::optional<FlopsPerSecond> fp4;   ///< none: it has none of 4 bits, and no scales of a few numbers
  BytesPerSecond memory_bandwidth;
  // Measured, as fractions.
  ProductConstants products;        ///< on tensor cores
  ProductConstants scalar;          ///< of float32 numbers without tensor cores
  bool are_products_alone = false;  ///< measured without training around them
  double fused_attention = 0;       ///< of the peak, over the FLOPs of causal attention, with kernels of 2023
  double core_bandwidth = 0;        ///< of the bandwidth, of operators on the scores of unfused attention
  std::string source;               ///< where the measured constants come from
  DeviceSource known_by = DeviceSource::Tables;
  std::string fitted_as;  ///< the type with the same chip to whose runs its constants are fitted; "": none

  /// Dense peak of products of numbers of this type. `rounds`: products of float32 numbers round them to TF32.
  FlopsPerSecond peak(DType dtype, bool rounds) const;
  /// True if these products run on tensor cores.
  bool uses_tensor_cores(DType dtype, bool rounds) const;
  /// Time of a product of an m x k and a k x n matrix, of a forward pass or of gradients.
  Seconds product_time(DType dtype, bool rounds, double m, double n, double k, bool of_gradients) const;
  /// Dense peak of the products of a recipe, which is not None; none: the device does not have them.
  std::optional<FlopsPerSecond> peak(ProductRecipe recipe) const;
  /// Time of a product by a recipe of which the device has the peak: the part of it that 16-bit products reach, and a
  /// loss by size in proportion of the bytes that operands and results move in the time of the product.
  Seconds product_time(ProductRecipe recipe, double m, double n, double k, bool of_gradients) const;
};

/// Constants of a device type, by any of its names (core/cluster/device_types.hpp).
/// @throws InputError "device TYPE: has no constants; …" that suggests or lists the types with constants.
const DeviceConstants& device_constants(const std::string& type);
/// The same; null if it has none.
const DeviceConstants* find_device_constants(const std::string& type);
/// The names of the types with constants.
std::vector<std::string> device_constant_types();

/// Constants of the device of a table: those of its type, or for a type without them what the table says. Then every
/// peak is the rate of its fastest product, and the bandwidth follows from that of copies; what the table lacks of
/// attention is as on A100-SXM4-80GB.
/// @throws InputError "operators of TYPE: …" for a type without constants and a table without copies.
DeviceConstants constants_of(const OperatorTable& table);

}  // namespace isobar::compute
