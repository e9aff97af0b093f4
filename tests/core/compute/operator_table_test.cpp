#include "core/compute/operator_table.hpp"

#include "core/errors.hpp"
#include "tests/support/thrown_message.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>

namespace isobar::compute::operator_table_test {
namespace {

using testing::HasSubstr;

OperatorTable small_table()
{
  OperatorTable table;
  table.device = "RTX 9000";
  table.dtype = DType::BFloat16;
  table.memory = Bytes(24e9);
  table.products = {{{1, 1024, 1024, 1024, ProductLayout::TN}, Seconds(1e-3)},
                    {{1, 4096, 1024, 1024, ProductLayout::TN}, Seconds(2e-3)},
                    {{1, 1024, 1024, 1024, ProductLayout::NT}, Seconds(5e-3)}};
  table.memory_bound[BoundOperator::Norm] = {BytesPerSecond(1e11), BytesPerSecond(5e10)};
  table.attention = {{2, 16, 2048, 64, Seconds(1e-3), Seconds(3e-3)}};
  table.launch = Seconds(4e-6);
  return table;
}

/// The text with one piece replaced.
std::string edited(const std::string& from, const std::string& to)
{
  std::string text = operator_table_to_json(small_table());
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

std::string fault_of(const std::string& text)
{
  return message_of([&] { operator_table_from_json(text, "t.json"); });
}

TEST(OperatorTable, IsWrittenAndReadWithoutLoss)
{
  const std::string text = operator_table_to_json(small_table());
  const auto table = operator_table_from_json(text, "t.json");
  EXPECT_EQ(operator_table_to_json(table), text);
  EXPECT_EQ(table.device, "RTX 9000");
  EXPECT_EQ(table.dtype, DType::BFloat16);
  EXPECT_EQ(table.products.size(), 3U);
  EXPECT_EQ(table.products[2].product.layout, ProductLayout::NT);
  EXPECT_EQ(table.memory_bound.at(BoundOperator::Norm).backward, BytesPerSecond(5e10));
  EXPECT_EQ(table.attention[0].backward, Seconds(3e-3));
  EXPECT_EQ(table.launch, Seconds(4e-6));
}

TEST(OperatorTable, TakesTheTimeOfAMeasuredProductOfItsLayout)
{
  const auto table = small_table();
  EXPECT_EQ(table.time_of({1, 1024, 1024, 1024, ProductLayout::TN}), Seconds(1e-3));
  EXPECT_EQ(table.time_of({1, 1024, 1024, 1024, ProductLayout::NT}), Seconds(5e-3));
  EXPECT_EQ(table.time_of({1, 4096, 1024, 1024, ProductLayout::TN}), Seconds(2e-3));
}

TEST(OperatorTable, TakesOtherLayoutsWhereItHasNoneOfThisOne)
{
  OperatorTable table = small_table();
  table.products.pop_back();
  EXPECT_EQ(table.time_of({1, 1024, 1024, 1024, ProductLayout::NT}), Seconds(1e-3));
}

TEST(OperatorTable, InterpolatesRatesInLogarithms)
{
  OperatorTable table = small_table();
  table.products.pop_back();
  // Halfway between 1024 and 4096 rows: the geometric mean of both rates.
  const double rate = std::sqrt(0x1p31 / 1e-3 * 0x1p33 / 2e-3);
  EXPECT_NEAR(table.time_of({1, 2048, 1024, 1024, ProductLayout::TN}).value, 0x1p32 / rate, 1e-12);
}

TEST(OperatorTable, ScalesTheNearestShapeFarOutside)
{
  OperatorTable table = small_table();
  table.products.resize(1);
  EXPECT_NEAR(table.time_of({8, 1024, 1024, 1024, ProductLayout::TN}).value, 8e-3, 1e-12);
}

TEST(OperatorTable, RefusesWrongFilesByLineAndKey)
{
  const std::pair<std::string, std::pair<std::string, std::string>> faults[] = {
      {"t.json:2: schema: \"isobar-operators/2\" is not isobar-operators/1",
       {"isobar-operators/1", "isobar-operators/2"}},
      {"t.json:4: dtype: \"int8\" is not one of", {"\"bf16\"", "\"int8\""}},
      {"tf32: true for dtype bf16; only float32 products round to TF32", {"\"tf32\": false", "\"tf32\": true"}},
      {"memory_bytes: 0 is out of range; write 1e+00 to 1e+18", {"24000000000.0", "0"}},
      {"products[0].m: missing", {"\"m\": 1024,", ""}},
      {"products[0].layout: \"TT\" is not one of TN, NN, NT", {"\"TN\"", "\"TT\""}},
      {"products[0].time_s: 1e+07 is out of range; write 1e-09 to 1e+06", {"0.001", "1e7"}},
      {"memory_bound.noorm: unknown key", {"\"norm\"", "\"noorm\""}},
      {"attention[0].forward_s: 0 is out of range", {"\"forward_s\": 0.001", "\"forward_s\": 0"}},
      {"colour: unknown key", {"\"device\"", "\"colour\": 1, \"device\""}},
  };
  for (const auto& [fault, edit] : faults) {
    EXPECT_THAT(fault_of(edited(edit.first, edit.second)), HasSubstr(fault));
  }
  OperatorTable empty = small_table();
  empty.products.clear();
  EXPECT_THAT(fault_of(operator_table_to_json(empty)), HasSubstr("products: missing"));
  EXPECT_THAT(
      fault_of(
          R"({"schema": "isobar-operators/1", "device": "a", "dtype": "fp16", "memory_bytes": 1, "products": []})"),
      HasSubstr("t.json:1: products: is empty; list at least one product"));
}

}  // namespace
}  // namespace isobar::compute::operator_table_test
