#include "core/compute/device_constants.hpp"

#include "core/cluster/device_types.hpp"
#include "core/compute/operator_table.hpp"
#include "core/errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

namespace isobar::compute {

namespace {

/// Products of float32 numbers without tensor cores: part of the peak (profiles/sailor/OPT-350_V100-16.json).
constexpr ProductConstants scalar_products = {0.9, 78};
/// The same of T4, whose clock falls at its power limit of 70 W: 3.2 and 3.9 TFLOP/s of 8.1 in the median, with all
/// extents from 1024 (sitar-lab/NeuSight, scripts/asplos/data, Tesla T4; baidu-research/DeepBench, DeepBench_NV_T4).
constexpr ProductConstants scalar_products_of_t4 = {0.44, 0};

/// What was measured of a type of device, as fractions of its data sheet.
struct Row {
  std::string_view type;
  ProductConstants products;
  bool are_products_alone;
  double fused_attention;
  double core_bandwidth;
  std::string_view source;
  DeviceSource known_by = DeviceSource::Tables;
  std::string_view fitted_as = {};
  ProductConstants scalar = scalar_products;
};

// Fitted by tools/fit_operators.py on results/fidelity/operators and by tools/fit_compute.py on calibration rows.
constexpr ProductConstants ampere = {0.780, 178};
constexpr ProductConstants hopper = {0.570, 104};
constexpr ProductConstants blackwell = {0.504, 41};
constexpr ProductConstants volta = {0.701, 78, 1.16};
constexpr ProductConstants slim_ampere = {1.024, 187};
constexpr double flash_ampere = 0.315;
constexpr double flash_hopper = 0.183;
constexpr double core_ampere = 0.583;
// Of memory, from NVIDIA's data sheet of the A100 (June 2021), SXM4.
constexpr double gb_per_s_of_a100_80 = 2039;
constexpr double gb_per_s_of_a100_40 = 1555;
constexpr double size_loss_of_a100_40 = ampere.size_loss * gb_per_s_of_a100_80 / gb_per_s_of_a100_40;

constexpr std::string_view of_b200 = "of B200-SXM-180GB, an earlier or smaller part of the same generation";
constexpr std::string_view without_source = "of B200-SXM-180GB, for want of measured products of AMD's devices";

constexpr Row rows[] = {
    {"A100-SXM4-80GB", ampere, false, flash_ampere, core_ampere,
     "fitted on calibration rows of mpt_a100_80, megatron_sc21 and megatron_seqsel together", DeviceSource::Runs},
    {"A100-SXM4-40GB",
     {ampere.efficiency, size_loss_of_a100_40},
     false,
     flash_ampere,
     0.63,
     "of A100-SXM4-80GB, the same chip, with a loss by size in proportion of the bandwidths; attention_core.csv "
     "(Aceso)",
     DeviceSource::SameChip,
     "A100-SXM4-80GB"},
    {"A100-PCIE-80GB",
     {0.779, 130},
     true,
     flash_ampere,
     core_ampere,
     "fitted on operators/products.csv (SimuMax); attention of A100-SXM4-80GB; in 16 bits products and fused attention "
     "as measured (operators/products.csv, operators/attention.csv)"},
    {"H100-SXM-80GB", hopper, false, flash_hopper, core_ampere,
     "fitted on calibration rows of mpt_h100; unfused attention of A100-SXM4-80GB", DeviceSource::Runs},
    {"H200-SXM-141GB", hopper, false, flash_hopper, core_ampere, "of H100-SXM-80GB, the same chip",
     DeviceSource::SameChip, "H100-SXM-80GB"},
    {"H800-SXM-80GB", hopper, false, flash_hopper, core_ampere, "of H100-SXM-80GB, the same chip",
     DeviceSource::SameChip, "H100-SXM-80GB"},
    {"H100-96GB-HBM2e", hopper, false, flash_hopper, core_ampere,
     "of H100-SXM-80GB, the same chip, whose clock falls at 500 W", DeviceSource::StandIn},
    {"GH200-96GB", hopper, false, flash_hopper, core_ampere, "of H100-SXM-80GB, the same chip", DeviceSource::SameChip,
     "H100-SXM-80GB"},
    {"B200-SXM-180GB", blackwell, true, flash_hopper, core_ampere,
     "fitted on operators/products.csv (SimuMax); fused attention of H100-SXM-80GB, unfused of A100-SXM4-80GB; in 16 "
     "bits products and fused attention as measured (operators/products.csv, operators/attention.csv)"},
    {"GB200", blackwell, true, flash_hopper, core_ampere, of_b200, DeviceSource::StandIn},
    {"B300-SXM-288GB", blackwell, true, flash_hopper, core_ampere, of_b200, DeviceSource::StandIn},
    {"GB300", blackwell, true, flash_hopper, core_ampere, of_b200, DeviceSource::StandIn},
    {"MI300X", blackwell, true, flash_hopper, core_ampere, without_source, DeviceSource::StandIn},
    {"MI325X", blackwell, true, flash_hopper, core_ampere, without_source, DeviceSource::StandIn},
    {"MI355X", blackwell, true, flash_hopper, core_ampere, without_source, DeviceSource::StandIn},
    {"V100-SXM2-32GB", volta, true, flash_ampere, 0.61,
     "fitted on operators/products.csv and attention_core.csv (Aceso); fused attention of A100-SXM4-80GB"},
    {"V100-SXM2-16GB", volta, true, flash_ampere, 0.61, "of V100-SXM2-32GB, the same chip"},
    {"T4",
     {0.37, 0},
     false,
     flash_ampere,
     0.74,
     "products: 24 TFLOP/s at the power limit of 70 W (forums.developer.nvidia.com/t/264462); unfused attention of L4; "
     "fused of A100-SXM4-80GB",
     DeviceSource::StandIn,
     {},
     scalar_products_of_t4},
    {"L4",
     {0.414, 0, 1.43},
     true,
     flash_ampere,
     0.74,
     "fitted on operators/products.csv and attention_core.csv (Aceso); fused attention of A100-SXM4-80GB"},
    {"A10G", slim_ampere, true, flash_ampere, 0.71,
     "fitted on operators/products.csv and attention_core.csv (Aceso); fused attention of A100-SXM4-80GB"},
    {"A40",
     {0.789, 66},
     true,
     flash_ampere,
     0.71,
     "fitted on operators/products.csv (Vidur); unfused attention of A10G, fused of A100-SXM4-80GB"},
    {"RTX-3090", slim_ampere, true, flash_ampere, 0.71, "of A10G, whose tensor cores add in float32 at half rate, too",
     DeviceSource::StandIn},
    {"RTX-2080", slim_ampere, true, flash_ampere, 0.71, "of A10G, whose tensor cores add in float32 at half rate, too",
     DeviceSource::StandIn},
    {"Titan-RTX", volta, true, flash_ampere, 0.61, "of V100-SXM2-32GB", DeviceSource::StandIn},
};

DeviceConstants constants_of_row(const Row& row)
{
  const DeviceType& sheet = device_type(row.type);
  DeviceConstants device;
  device.type = sheet.name;
  device.fp16 = sheet.fp16;
  device.has_bf16 = sheet.bf16.has_value();
  device.tf32 = sheet.tf32;
  device.fp32 = sheet.float32;
  device.fp8 = sheet.fp8;
  device.fp4 = sheet.fp4;
  device.memory_bandwidth = sheet.memory_bandwidth;
  device.products = row.products;
  device.scalar = row.scalar;
  device.are_products_alone = row.are_products_alone;
  device.fused_attention = row.fused_attention;
  device.core_bandwidth = row.core_bandwidth;
  device.source = row.source;
  device.known_by = row.known_by;
  device.fitted_as = row.fitted_as;
  return device;
}

const std::vector<DeviceConstants>& device_table()
{
  static const std::vector<DeviceConstants> devices = [] {
    std::vector<DeviceConstants> result;
    std::ranges::transform(rows, std::back_inserter(result), constants_of_row);
    return result;
  }();
  return devices;
}

}  // namespace

bool DeviceConstants::uses_tensor_cores(DType dtype, bool rounds) const
{
  switch (dtype) {
    case DType::Float16:
      return true;
    case DType::BFloat16:
      return has_bf16;
    case DType::Float32:
      return rounds && tf32.has_value();
  }
  return false;
}

FlopsPerSecond DeviceConstants::peak(DType dtype, bool rounds) const
{
  if (!uses_tensor_cores(dtype, rounds)) return fp32;
  return dtype == DType::Float32 ? *tf32 : fp16;
}

Seconds DeviceConstants::product_time(DType dtype, bool rounds, double m, double n, double k, bool of_gradients) const
{
  const auto time = [&](FlopsPerSecond peak, const ProductConstants& reached) {
    const double speed = reached.efficiency * (of_gradients ? reached.gradients : 1);
    return Flops(2 * m * n * k) / (peak * speed) * (1 + reached.size_loss * (1 / m + 1 / n + 1 / k));
  };
  if (!uses_tensor_cores(dtype, rounds)) return time(fp32, scalar);
  const Seconds on_tensor_cores = time(peak(dtype, rounds), products);
  return dtype == DType::Float32 ? std::min(on_tensor_cores, time(fp32, scalar)) : on_tensor_cores;
}

std::optional<FlopsPerSecond> DeviceConstants::peak(ProductRecipe recipe) const
{
  const RecipeCosts& costs = costs_of(recipe);
  if (costs.has_blocks && !fp4) return std::nullopt;
  return costs.is_4bit ? fp4 : fp8;
}

Seconds DeviceConstants::product_time(ProductRecipe recipe, double m, double n, double k, bool of_gradients) const
{
  constexpr double bytes_of_16bit = 2;
  const FlopsPerSecond own_peak = peak(recipe).value();
  const double faster = own_peak / fp16;
  const double operands = faster * costs_of(recipe).number / bytes_of_16bit;
  const double speed = products.efficiency * (of_gradients ? products.gradients : 1);
  const double loss = products.size_loss * (operands * (1 / m + 1 / n) + faster / k);
  return Flops(2 * m * n * k) / (own_peak * speed) * (1 + loss);
}

const DeviceConstants* find_device_constants(const std::string& type)
{
  const DeviceType* const known = find_device_type(type);
  if (known == nullptr) return nullptr;
  const auto found = std::ranges::find(device_table(), known->name, &DeviceConstants::type);
  return found == device_table().end() ? nullptr : &*found;
}

const DeviceConstants& device_constants(const std::string& type)
{
  if (const auto* found = find_device_constants(type)) return *found;
  throw InputError(
      "device " + type,
      fmt::format("has no constants; {} (for another type, measure a table with isobar profile --operators, "
                  "and name it with --profile)",
                  hint_for_device_type(type, device_constant_types())));
}

std::vector<std::string> device_constant_types()
{
  std::vector<std::string> types;
  for (const auto& device : device_table()) types.push_back(device.type);
  return types;
}

DeviceConstants constants_of(const OperatorTable& measured)
{
  if (const auto* known = find_device_constants(measured.device)) return *known;
  const auto copies = measured.memory_bound.find(BoundOperator::Copy);
  if (copies == measured.memory_bound.end()) {
    throw InputError("operators of " + measured.device,
                     "have no memory_bound.copy, and Isobar no constants of this type; add the bandwidth of copies");
  }
  DeviceConstants device = device_constants("A100-SXM4-80GB");
  device.type = measured.device;
  device.fp16 = FlopsPerSecond(0);
  for (const auto& [product, time] : measured.products) device.fp16 = std::max(device.fp16, product.work() / time);
  device.has_bf16 = true;
  device.tf32 = device.fp32 = device.fp16;
  device.fp8 = device.fp4 = std::nullopt;
  device.memory_bandwidth = copies->second.forward / copy_fraction;
  device.products = {1, 0};
  device.scalar = scalar_products;
  device.known_by = DeviceSource::Tables;
  device.fitted_as = "";
  device.source = "operators measured on it; attention of A100-SXM4-80GB where they lack it";
  return device;
}

}  // namespace isobar::compute
