#include "core/compute/device_constants.hpp"

#include "core/compute/operator_table.hpp"
#include "core/errors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

namespace isobar::compute {

namespace {

/// Products of float32 numbers without tensor cores: part of the peak (profiles/sailor/OPT-350_V100-16.json).
constexpr ProductConstants scalar_products = {0.9, 78};

/// A row of the device_table: TFLOP/s, memory (GB in data sheets are GiB) and GB/s of the data sheets, then fractions.
struct Row {
  std::string_view type;
  double fp16;
  bool has_bf16;
  double tf32;  // 0: none
  double fp32;
  double memory;
  double bandwidth;
  ProductConstants products;
  double fused_attention;
  double core_bandwidth;
  std::string_view source;
};

// Fitted by tools/fit_operators.py on results/fidelity/operators and by tools/fit_compute.py on calibration rows.
constexpr ProductConstants ampere = {0.788, 172};
constexpr ProductConstants hopper = {0.574, 152};
constexpr ProductConstants volta = {0.701, 78};
constexpr ProductConstants slim_ampere = {1.024, 187};
constexpr double flash_ampere = 0.313;
constexpr double flash_hopper = 0.184;
constexpr double core_ampere = 0.604;

constexpr Row rows[] = {
    {"A100-SXM4-80GB", 312, true, 156, 19.5, 80, 2039, ampere, flash_ampere, core_ampere,
     "fitted on calibration rows of mpt_a100_80, megatron_sc21 and megatron_seqsel together"},
    {"A100-SXM4-40GB",
     312,
     true,
     156,
     19.5,
     40,
     1555,
     {0.883, 302},
     flash_ampere,
     0.63,
     "fitted on operators/products.csv and attention_core.csv (Aceso); fused attention of A100-SXM4-80GB"},
    {"A100-PCIE-80GB",
     312,
     true,
     156,
     19.5,
     80,
     1935,
     {0.779, 130},
     flash_ampere,
     core_ampere,
     "fitted on operators/products.csv (SimuMax); attention of A100-SXM4-80GB; in 16 bits products and fused attention "
     "as measured (operators/products.csv, operators/attention.csv)"},
    {"H100-SXM5-80GB", 989, true, 494, 67, 80, 3350, hopper, flash_hopper, core_ampere,
     "fitted on calibration rows of mpt_h100; unfused attention of A100-SXM4-80GB"},
    {"H100-SXM-80GB", 989, true, 494, 67, 80, 3350, hopper, flash_hopper, core_ampere,
     "of H100-SXM5-80GB, another name of it"},
    {"H200-SXM-141GB", 989, true, 494, 67, 141, 4800, hopper, flash_hopper, core_ampere,
     "of H100-SXM5-80GB, the same chip"},
    {"GH200-96GB", 989, true, 494, 67, 96, 4000, hopper, flash_hopper, core_ampere, "of H100-SXM5-80GB, the same chip"},
    {"B200-SXM",
     2250,
     true,
     1125,
     75,
     180,
     8000,
     {0.504, 41},
     flash_hopper,
     core_ampere,
     "fitted on operators/products.csv (SimuMax); fused attention of H100-SXM5-80GB, unfused of A100-SXM4-80GB; in 16 "
     "bits products and fused attention as measured (operators/products.csv, operators/attention.csv)"},
    {"V100-SXM2-32GB", 125, false, 0, 15.7, 32, 900, volta, flash_ampere, 0.61,
     "fitted on operators/products.csv and attention_core.csv (Aceso); fused attention of A100-SXM4-80GB"},
    {"V100-SXM2-16GB", 125, false, 0, 15.7, 16, 900, volta, flash_ampere, 0.61, "of V100-SXM2-32GB, the same chip"},
    {"T4-16GB",
     65,
     false,
     0,
     8.1,
     16,
     320,
     {0.37, 0},
     flash_ampere,
     0.74,
     "products: 24 TFLOP/s at the power limit of 70 W (forums.developer.nvidia.com/t/264462); unfused attention of L4; "
     "fused of A100-SXM4-80GB"},
    {"L4",
     121,
     true,
     60,
     30.3,
     24,
     300,
     {0.414, 0},
     flash_ampere,
     0.74,
     "fitted on operators/products.csv and attention_core.csv (Aceso); fused attention of A100-SXM4-80GB"},
    {"A10G", 70, true, 35, 35, 24, 600, slim_ampere, flash_ampere, 0.71,
     "fitted on operators/products.csv and attention_core.csv (Aceso); fused attention of A100-SXM4-80GB"},
    {"A40",
     149.7,
     true,
     74.8,
     37.4,
     48,
     696,
     {0.789, 66},
     flash_ampere,
     0.71,
     "fitted on operators/products.csv (Vidur); unfused attention of A10G, fused of A100-SXM4-80GB"},
    {"RTX-3090", 71, true, 35.6, 35.6, 24, 936, slim_ampere, flash_ampere, 0.71,
     "of A10G, whose tensor cores add in float32 at half rate, too"},
    {"RTX-2080", 53.8, false, 0, 13.4, 11, 616, slim_ampere, flash_ampere, 0.71,
     "of A10G, whose tensor cores add in float32 at half rate, too"},
    {"Titan-RTX", 130.5, false, 0, 16.3, 24, 672, volta, flash_ampere, 0.61, "of V100-SXM2-32GB"},
};

const std::vector<DeviceConstants>& device_table()
{
  static const std::vector<DeviceConstants> devices = [] {
    std::vector<DeviceConstants> result;
    for (const Row& row : rows) {
      constexpr double tera = 1e12;
      constexpr double giga = 1e9;
      constexpr double gib = 0x1p30;
      DeviceConstants device;
      device.type = row.type;
      device.fp16 = FlopsPerSecond(row.fp16 * tera);
      device.has_bf16 = row.has_bf16;
      if (row.tf32 > 0) device.tf32 = FlopsPerSecond(row.tf32 * tera);
      device.fp32 = FlopsPerSecond(row.fp32 * tera);
      device.memory = Bytes(row.memory * gib);
      device.memory_bandwidth = BytesPerSecond(row.bandwidth * giga);
      device.products = row.products;
      device.fused_attention = row.fused_attention;
      device.core_bandwidth = row.core_bandwidth;
      device.source = row.source;
      result.push_back(std::move(device));
    }
    return result;
  }();
  return devices;
}

/// True if `detailed` is `name`, or `name` with more details after a hyphen.
bool details(std::string_view detailed, std::string_view name)
{
  return detailed.starts_with(name) && (detailed.size() == name.size() || detailed[name.size()] == '-');
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

Seconds DeviceConstants::product_time(DType dtype, bool rounds, double m, double n, double k) const
{
  const auto time = [&](FlopsPerSecond peak, const ProductConstants& reached) {
    return Flops(2 * m * n * k) / (peak * reached.efficiency) * (1 + reached.size_loss * (1 / m + 1 / n + 1 / k));
  };
  if (!uses_tensor_cores(dtype, rounds)) return time(fp32, scalar_products);
  const Seconds on_tensor_cores = time(peak(dtype, rounds), products);
  return dtype == DType::Float32 ? std::min(on_tensor_cores, time(fp32, scalar_products)) : on_tensor_cores;
}

const DeviceConstants* find_device_constants(const std::string& type)
{
  const auto find = [&](auto matches) {
    return std::find_if(device_table().begin(), device_table().end(),
                        [&](const auto& device) { return matches(device.type); });
  };
  auto found = find([&](const auto& known) { return known == type; });
  if (found == device_table().end() && !type.empty()) {
    found = find([&](const auto& known) { return details(known, type) || details(type, known); });
  }
  return found == device_table().end() ? nullptr : &*found;
}

const DeviceConstants& device_constants(const std::string& type)
{
  if (const auto* found = find_device_constants(type)) return *found;
  const auto known = device_constant_types();
  const std::string nearest = nearest_word(type, known);
  throw InputError("device " + type, fmt::format("has no constants; {}known types: {}",
                                                 nearest.empty() ? "" : fmt::format("did you mean {}? ", nearest),
                                                 fmt::join(known, ", ")));
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
  device.memory = measured.memory;
  device.memory_bandwidth = copies->second.forward / copy_fraction;
  device.products = {1, 0};
  device.source = "operators measured on it; attention of A100-SXM4-80GB where they lack it";
  return device;
}

}  // namespace isobar::compute
