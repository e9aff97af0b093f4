#include "core/compute/measured_operators.hpp"

#include "core/cluster/device_types.hpp"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

namespace isobar::compute {

namespace {

constexpr double micro = 1e-6;

/// A row of products.csv: a product of an m x k and a k x n matrix.
struct ProductRow {
  std::string_view device;
  ProductLayout layout;
  std::uint64_t m;
  std::uint64_t n;
  std::uint64_t k;
  double time_us;
};
/// A row of attention.csv.
struct AttentionRow {
  std::string_view device;
  std::uint64_t batch;
  std::uint64_t sequence;
  std::uint64_t heads;
  std::uint64_t width;
  double forward_us;
  double backward_us;
};

constexpr ProductRow products[] = {
#include "generated/core/compute/measured_products.inc"
};
constexpr AttentionRow attention[] = {
#include "generated/core/compute/measured_attention.inc"
};

OperatorTable& table_of(std::string_view device, DType dtype, std::vector<OperatorTable>& tables)
{
  const auto found = std::ranges::find(tables, device, &OperatorTable::device);
  if (found != tables.end()) return *found;
  OperatorTable& table = tables.emplace_back();
  table.device = device;
  table.dtype = dtype;
  return table;
}

/// Those measured in bf16, which fp16 takes as long as.
std::vector<OperatorTable> tables_in(DType dtype)
{
  std::vector<OperatorTable> tables;
  for (const auto& row : products) {
    table_of(row.device, dtype, tables)
        .products.push_back({{1, row.m, row.n, row.k, row.layout}, Seconds(row.time_us * micro)});
  }
  for (const auto& row : attention) {
    table_of(row.device, dtype, tables)
        .attention.push_back({row.batch, row.heads, row.sequence, row.width, Seconds(row.forward_us * micro),
                              Seconds(row.backward_us * micro)});
  }
  return tables;
}

}  // namespace

const OperatorTable* measured_operators(const std::string& type, DType dtype)
{
  if (dtype == DType::Float32) return nullptr;
  static const std::vector<OperatorTable> in_bf16 = tables_in(DType::BFloat16);
  static const std::vector<OperatorTable> in_fp16 = tables_in(DType::Float16);
  const auto& tables = dtype == DType::BFloat16 ? in_bf16 : in_fp16;
  const auto found =
      std::ranges::find_if(tables, [&](const auto& table) { return is_same_device_type(table.device, type); });
  return found == tables.end() ? nullptr : &*found;
}

}  // namespace isobar::compute
