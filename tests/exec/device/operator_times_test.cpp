#include "exec/device/operator_times.hpp"

#include "core/errors.hpp"
#include "core/model/framework.hpp"
#include "exec/device/device.hpp"
#include "tests/support/thrown_message.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <string>
#include <vector>

namespace isobar::exec::operator_times_test {
namespace {

using compute::BoundOperator;
using compute::OperatorTable;
using compute::Product;
using compute::ProductLayout;

Workload gpt(const std::string& more = "")
{
  return workload_from_text(
      "model: gpt\nlayers: 1\nhidden: 80\nheads: 2\nvocabulary: 500\nsequence: 24\nmicro_batch: 3\n" + more,
      "gpt.yaml");
}

/// Leaves out what takes longer than 2 ms.
OperatorTiming short_timing()
{
  OperatorTiming timing;
  timing.memory = Bytes(1e9);
  timing.repetitions = 3;
  timing.longest = Seconds(0.01);
  return timing;
}

OperatorTable table_of(const Workload& workload, const OperatorTiming& timing = short_timing())
{
  set_computing_threads(1);  // as measure_operators does
  OperatorTable table;
  table.device = "this processor";
  table.memory = timing.memory;
  time_operators(workload, timing, table);
  return table;
}

const compute::MeasuredProduct* measured(const OperatorTable& table, const Product& product)
{
  const auto found = std::find_if(table.products.begin(), table.products.end(), [&](const auto& entry) {
    const Product& other = entry.product;
    return other.layout == product.layout && other.m == product.m && other.n == product.n && other.k == product.k;
  });
  return found == table.products.end() ? nullptr : &*found;
}

TEST(TimeOperators, FillsATableThatCanBeWrittenAndRead)
{
  std::size_t parts = 0;
  OperatorTiming timing = short_timing();
  timing.on_part = [&] { ++parts; };
  const auto table = table_of(gpt(), timing);
  EXPECT_EQ(parts, operator_parts(gpt()));
  EXPECT_EQ(table.dtype, DType::Float32);
  EXPECT_FALSE(table.tf32);
  EXPECT_EQ(table.memory_bound.size(), 5U);
  EXPECT_EQ(table.attention.front().sequence, 24U);
  EXPECT_EQ(table.attention.front().heads, 2U);
  EXPECT_EQ(table.attention.front().width, 40U);
  EXPECT_GT(table.launch.value(), Seconds(0));
  // The reader refuses times and rates that are not positive.
  const std::string text = operator_table_to_json(table);
  EXPECT_EQ(operator_table_to_json(compute::operator_table_from_json(text, "t.json")), text);
}

TEST(TimeOperators, HasTheWorkloadsOwnProductsOnEachNumberOfShards)
{
  const auto table = table_of(gpt());
  const std::vector<Product> own = {
      {1, 72, 240, 80, ProductLayout::TN},  // queries, keys and values of 72 tokens
      {1, 72, 80, 240, ProductLayout::NN},  // the gradient of their input
      {1, 240, 80, 72, ProductLayout::NT},  // and of their parameters
      {1, 72, 120, 80, ProductLayout::TN},  // one of two heads
      {1, 72, 80, 40, ProductLayout::TN},   // what follows attention, of one head
      {1, 72, 500, 80, ProductLayout::TN},  // the head
  };
  for (const auto& product : own) {
    EXPECT_NE(measured(table, product), nullptr) << product.m << " x " << product.n << " x " << product.k;
  }
}

TEST(TimeOperators, PadsTheVocabularyAsTheFrameworkDoes)
{
  const auto table = table_of(gpt("compute: operators\nframework: megatron-lm-2021\n"));
  EXPECT_NE(measured(table, {1, 72, 512, 80, ProductLayout::TN}), nullptr);
  EXPECT_EQ(measured(table, {1, 72, 500, 80, ProductLayout::TN}), nullptr);
}

TEST(TimeOperators, LargerProductsAreNotMuchSlowerByTheirWork)
{
  const auto table = table_of(gpt());
  for (const auto layout : {ProductLayout::TN, ProductLayout::NN, ProductLayout::NT}) {
    const auto* small = measured(table, {1, 64, 64, 64, layout});
    const auto* large = measured(table, {1, 256, 64, 64, layout});
    ASSERT_NE(small, nullptr);
    ASSERT_NE(large, nullptr);
    EXPECT_GT(large->product.work() / large->time, 0.1 * (small->product.work() / small->time)) << name_of(layout);
  }
}

TEST(TimeOperators, LeavesOutWhatWouldTakeTooLong)
{
  OperatorTiming timing = short_timing();
  timing.longest = Seconds(1e-9);  // only what nothing is known about
  const auto table = table_of(gpt(), timing);
  ASSERT_EQ(table.products.size(), 3U);
  EXPECT_EQ(table.attention.size(), 1U);
  EXPECT_EQ(table.memory_bound.size(), 5U);
}

TEST(TimeOperators, LeavesOutWhatWouldFillTheMemory)
{
  OperatorTiming timing = short_timing();
  timing.memory = Bytes(10 * 4 * (3 * 64 * 64 + 1));
  for (const auto& [product, time] : table_of(gpt(), timing).products) {
    EXPECT_LE(product.m * product.n + product.m * product.k + product.n * product.k, 3U * 64 * 64 + 1);
  }
}

TEST(TimeOperators, MeasuresTheWorkloadsDtypeDropoutAndGates)
{
  const auto bf16 = table_of(gpt("dtype: bf16\ndropout: 0.1\n"));
  EXPECT_EQ(bf16.dtype, DType::BFloat16);
  EXPECT_EQ(bf16.memory_bound.size(), 5U);
  const auto llama = table_of(workload_from_text(
      "model: llama\nlayers: 1\nhidden: 64\nheads: 2\nkv_heads: 1\nintermediate: 96\nvocabulary: 300\nsequence: 24\n",
      "llama.yaml"));
  EXPECT_EQ(llama.memory_bound.size(), 5U);
  EXPECT_NE(measured(llama, {1, 24, 192, 64, ProductLayout::TN}), nullptr);  // both halves of what is gated
}

TEST(TimeOperators, RoundsProductsToTf32OnlyForItsWorkloads)
{
  EXPECT_TRUE(table_of(gpt("matmul_dtype: tf32\n")).tf32);
  EXPECT_EQ(at::globalContext().float32MatmulPrecision(), at::Float32MatmulPrecision::HIGHEST);
}

TEST(TimeOperators, RefusesWorkloadsWhoseOperatorsItDoesNotKnow)
{
  const Workload layers = workload_from_text(
      "model: layers\nmicro_batch: 1\nlayers:\n  - {name: a, forward: \"1 TFLOP\", parameters: 1, activations: \"1 "
      "GB\", "
      "output: \"0 B\"}\n",
      "listed.yaml");
  EXPECT_EQ(
      message_of([&] { table_of(layers); }),
      "InputError workload listed: has no operators that are known; compute: operators takes models bert, gpt, llama "
      "and decoder; use compute: rate");
}

}  // namespace
}  // namespace isobar::exec::operator_times_test
