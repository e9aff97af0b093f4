#include "exec/model/block_attention.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

namespace isobar::exec::block_attention_test {
namespace {

constexpr std::int64_t length = 24;
constexpr std::int64_t heads = 4;
constexpr double tolerance = 2e-5;

TEST(SequenceParts, AreTwoChunksEachOfWhichTheSecondMirrorsTheFirst)
{
  const auto numbers = [](const at::Tensor& tensor) {
    return std::vector<std::int64_t>(tensor.const_data_ptr<std::int64_t>(),
                                     tensor.const_data_ptr<std::int64_t>() + tensor.numel());
  };
  EXPECT_EQ(numbers((SequencePart{0, 2}.positions(8))), (std::vector<std::int64_t>{0, 1, 6, 7}));
  EXPECT_EQ(numbers((SequencePart{1, 2}.positions(8))), (std::vector<std::int64_t>{2, 3, 4, 5}));
  EXPECT_EQ(numbers((SequencePart{2, 3}.positions(6))), (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(numbers((SequencePart{}.positions(3))), (std::vector<std::int64_t>{0, 1, 2}));
  for (const std::size_t parts : {1, 2, 3, 6}) {
    auto all = numbers(positions_by_part(parts, 12));
    std::sort(all.begin(), all.end());
    std::vector<std::int64_t> expected(12);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(all, expected) << parts;
  }
}

struct Attended {
  at::Tensor outputs, query, keys, values, sinks;  // gradients but for the first
};

/// By the formula, over whole sequences.
Attended by_formula(const BlockRules& rules, const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                    const at::Tensor& sinks, const at::Tensor& gradient)
{
  const auto leaf = [](const at::Tensor& tensor) { return tensor.detach().clone().requires_grad_(); };
  const auto q = leaf(query), k = leaf(keys), v = leaf(values);
  const auto shared = heads / keys.size(1);
  auto scores = at::matmul(q * rules.scale, k.repeat_interleave(shared, 1).transpose(-2, -1));
  if (rules.cap > 0) scores = at::tanh(scores / rules.cap) * rules.cap;
  const auto places = at::arange(length);
  const auto rows = places.unsqueeze(1);
  auto unseen = places > rows;
  if (rules.window > 0) unseen = unseen.logical_or(rows - places >= rules.window);
  if (rules.chunk > 0) {
    unseen = unseen.logical_or(at::div(rows, rules.chunk, "floor") != at::div(places, rules.chunk, "floor"));
  }
  scores = scores.masked_fill(unseen, -std::numeric_limits<double>::infinity());
  const auto s = sinks.defined() ? leaf(sinks) : at::Tensor();
  if (s.defined()) scores = at::cat({scores, s.view({1, -1, 1, 1}).expand({query.size(0), -1, length, 1})}, -1);
  const auto outputs = at::matmul(at::softmax(scores, -1).narrow(-1, 0, length), v.repeat_interleave(shared, 1));
  torch::autograd::backward({outputs}, {gradient});
  return {outputs.detach(), q.grad(), k.grad(), v.grad(), s.defined() ? s.grad() : s};
}

/// By parts, of which each attends to those of all.
Attended by_parts(const BlockRules& rules, std::size_t parts, const at::Tensor& query, const at::Tensor& keys,
                  const at::Tensor& values, const at::Tensor& sinks, const at::Tensor& gradient)
{
  Attended all = {at::zeros_like(gradient), at::zeros_like(query), at::zeros_like(keys), at::zeros_like(values),
                  sinks.defined() ? at::zeros_like(sinks) : sinks};
  const auto of_part = [&](const at::Tensor& whole, std::size_t part) {
    return whole.index_select(2, SequencePart{part, parts}.positions(length));
  };
  for (std::size_t part = 0; part < parts; ++part) {
    const auto positions = SequencePart{part, parts}.positions(length);
    BlockAttention attention(rules, {part, parts}, of_part(query, part), sinks, at::Tensor());
    for (std::size_t i = 0; i < parts; ++i) {
      const std::size_t other = (part + 1 + i) % parts;  // the own one last
      attention.add(of_part(keys, other), of_part(values, other), other);
    }
    all.outputs.index_copy_(2, positions, attention.outputs());
    attention.begin_backward(of_part(gradient, part));
    for (std::size_t other = 0; other < parts; ++other) {
      const auto [of_keys, of_values] = attention.add_backward(of_part(keys, other), of_part(values, other), other);
      all.keys.index_add_(2, SequencePart{other, parts}.positions(length), of_keys);
      all.values.index_add_(2, SequencePart{other, parts}.positions(length), of_values);
    }
    all.query.index_copy_(2, positions, attention.query_gradient());
    if (sinks.defined()) all.sinks += attention.sink_gradient();
  }
  return all;
}

TEST(BlockAttention, IsTheFormulasWhateverThePartsAre)
{
  at::manual_seed(3);
  const double scale = 1 / std::sqrt(6.0);
  const std::vector<BlockRules> all_rules = {
      {.scale = scale},
      {.scale = scale, .cap = 0.7},
      {.scale = scale, .window = 3},
      {.scale = scale, .window = 11},
      {.scale = scale, .chunk = 5},
      {.scale = scale, .window = 40, .is_fused = true},
      {.scale = scale, .window = 5, .is_fused = true},
      {.scale = scale, .chunk = 7, .is_fused = true},
  };
  for (const BlockRules& rules : all_rules) {
    for (const bool has_sinks : {false, true}) {
      if (has_sinks && rules.is_fused) continue;  // which layers refuse
      const auto query = at::randn({2, heads, length, 6});
      const auto keys = at::randn({2, 2, length, 6});
      const auto values = at::randn({2, 2, length, 5});
      const auto sinks = has_sinks ? at::randn({heads}) : at::Tensor();
      const auto gradient = at::randn({2, heads, length, 5});
      const Attended expected = by_formula(rules, query, keys, values, sinks, gradient);
      for (const std::size_t parts : {1, 2, 3, 6}) {
        SCOPED_TRACE(parts);
        const Attended found = by_parts(rules, parts, query, keys, values, sinks, gradient);
        EXPECT_TRUE(at::allclose(found.outputs, expected.outputs, tolerance, tolerance));
        EXPECT_TRUE(at::allclose(found.query, expected.query, tolerance, tolerance));
        EXPECT_TRUE(at::allclose(found.keys, expected.keys, tolerance, tolerance));
        EXPECT_TRUE(at::allclose(found.values, expected.values, tolerance, tolerance));
        if (has_sinks) {
          EXPECT_TRUE(at::allclose(found.sinks, expected.sinks, tolerance, tolerance));
        }
      }
    }
  }
}

}  // namespace
}  // namespace isobar::exec::block_attention_test
