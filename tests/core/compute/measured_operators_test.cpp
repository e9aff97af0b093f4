#include "core/compute/measured_operators.hpp"

#include "core/base/files.hpp"
#include "core/compute/pricing.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <sstream>
#include <string>
#include <vector>

namespace isobar::compute::measured_operators_test {
namespace {

/// The lines of a table of results/fidelity/operators that have a text.
std::vector<std::vector<std::string>> rows_of(const std::string& table, const std::string& text)
{
  std::istringstream lines(read_file(ISOBAR_SOURCE_DIR "/results/fidelity/operators/" + table));
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(lines, line);) {
    if (line.find(text) == std::string::npos) continue;
    auto& cells = rows.emplace_back();
    std::istringstream row(line);
    for (std::string cell; std::getline(row, cell, ',');) cells.push_back(cell);
  }
  return rows;
}

ProductLayout layout_of(const std::string& source)
{
  if (source.ends_with("TN")) return ProductLayout::TN;
  return source.ends_with("NN") ? ProductLayout::NN : ProductLayout::NT;
}

TEST(MeasuredOperators, AreTheRowsOfTheirTables)
{
  for (const std::string type : {"A100-PCIE-80GB", "B200-SXM"}) {
    const OperatorTable* const table = measured_operators(type, DType::BFloat16);
    ASSERT_NE(table, nullptr);
    const auto products = rows_of("products.csv", type + ",simumax");
    EXPECT_EQ(table->products.size(), products.size());
    for (const auto& row : products) {
      const Product product{1, std::stoul(row[2]), std::stoul(row[3]), std::stoul(row[4]), layout_of(row[1])};
      EXPECT_NEAR(table->time_of(product).value, std::stod(row[5]) * 1e-6, 1e-15);
    }
    EXPECT_EQ(table->attention.size(), rows_of("attention.csv", type).size());
  }
  EXPECT_EQ(measured_operators("A100-SXM4-80GB", DType::BFloat16), nullptr);
  EXPECT_EQ(measured_operators("B200-SXM", DType::Float32), nullptr);
}

/// A llama of the sizes of Llama 3 70B, on one device.
Seconds forward_of_a_block(const std::string& dtype)
{
  Workload workload = workload_from_text(
      fmt::format("model: llama\nlayers: 2\nhidden: 8192\nheads: 64\nkv_heads: 8\nintermediate: 28672\n"
                  "vocabulary: 128256\nsequence: 4096\nmicro_batch: 1\noptimizer: adam\nattention: fused\n"
                  "compute: operators\nframework: megatron-core-0.8\ndtype: {}\n",
                  dtype),
      "llama.yaml");
  Cluster cluster;
  cluster.devices.emplace_back().type = "B200-SXM";
  price(workload, cluster);
  return workload.times.at("B200-SXM")[1].forward;
}

TEST(MeasuredOperators, ReplaceTheConstantsOfTheirDevicesIn16Bits)
{
  const OperatorTable& table = *measured_operators("B200-SXM", DType::BFloat16);
  Seconds measured(280.35e-6);  // attention of 64 heads
  for (const Product& product : std::vector<Product>{
           {1, 4096, 10240, 8192}, {1, 4096, 8192, 8192}, {1, 4096, 57344, 8192}, {1, 4096, 8192, 28672}}) {
    measured += table.time_of(product);
  }
  const Seconds forward = forward_of_a_block("bf16");
  EXPECT_GT(forward, measured);
  EXPECT_LT(forward, 1.15 * measured) << "with memory-bound operators";
  EXPECT_EQ(forward_of_a_block("fp16"), forward);
  EXPECT_GT(forward_of_a_block("float32"), 2 * forward);
}

}  // namespace
}  // namespace isobar::compute::measured_operators_test
