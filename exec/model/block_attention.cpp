#include "exec/model/block_attention.hpp"

#include "exec/model/layers/model_layer.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace isobar::exec {

namespace {

constexpr double nothing = -std::numeric_limits<double>::infinity();

/// Pads the narrower ones of queries, keys and values, since fused kernels have one width.
at::Tensor padded(const at::Tensor& heads, std::int64_t width)
{
  return heads.size(-1) == width ? heads.contiguous() : at::constant_pad_nd(heads, {0, width - heads.size(-1)});
}

/// Adds up the gradients of keys or values that several heads share.
at::Tensor of_shared(const at::Tensor& gradients, std::int64_t heads)
{
  return gradients.size(1) == heads ? gradients : gradients.unflatten(1, {heads, -1}).sum(2);
}

}  // namespace

class BlockAttention::Impl {
 public:
  Impl(const BlockRules& rules, const SequencePart& part, const at::Tensor& query, const at::Tensor& sinks,
       const at::Tensor& kept);

  void add(const at::Tensor& keys, const at::Tensor& values, std::size_t part);
  at::Tensor outputs();
  void begin_backward(const at::Tensor& gradient);
  std::pair<at::Tensor, at::Tensor> add_backward(const at::Tensor& keys, const at::Tensor& values, std::size_t part);
  at::Tensor query_gradient() const;
  at::Tensor sink_gradient() const;

 private:
  /// A chunk of the part's queries, or the first ones of it, and one of keys that they see.
  struct Tile {
    std::int64_t row = 0;     // of the first query in the part
    std::int64_t rows = 0;    // each of which sees a key
    std::int64_t query = 0;   // place of the first query in the sequence
    std::int64_t column = 0;  // of the first key in its part
    std::int64_t columns = 0;
    std::int64_t key = 0;    // place of the first key in the sequence
    bool is_causal = false;  // queries and keys are of the same chunk
  };
  /// What a tile reads.
  struct Operands {
    at::Tensor query, keys, values;
  };

  template <typename Work>
  void for_each_tile(std::size_t part, const Work& work) const;
  Operands operands_of(const Tile& tile, const at::Tensor& keys, const at::Tensor& values) const;
  at::Tensor mask_of(const Tile& tile, const at::Tensor& like) const;
  at::Tensor scores_of(const Tile& tile, const Operands& operands) const;
  at::Tensor dropped(const Tile& tile, const at::Tensor& probabilities) const;
  std::pair<at::Tensor, at::Tensor> attended(const Tile& tile, const Operands& operands) const;
  std::pair<at::Tensor, at::Tensor> attended_fused(const Tile& tile, const Operands& operands) const;
  Operands gradients_of(const Tile& tile, const Operands& operands) const;
  Operands gradients_fused(const Tile& tile, const Operands& operands) const;
  bool needs_mask() const { return rules_.window > 0 || rules_.chunk > 0; }

  BlockRules rules_;
  SequencePart part_;
  at::Tensor query_;
  at::Tensor sinks_;
  at::Tensor kept_;
  std::int64_t length_;        // of a chunk
  at::Tensor sum_;             // float32, of the outputs so far
  at::Tensor log_sum_;         // float32 [samples, heads, tokens], of the exponentials of the scores so far
  at::Tensor gradient_;        // of the outputs
  at::Tensor mean_;            // float32, like log_sum_: of the gradients of the probabilities
  at::Tensor query_gradient_;  // float32
};

BlockAttention::Impl::Impl(const BlockRules& rules, const SequencePart& part, const at::Tensor& query,
                           const at::Tensor& sinks, const at::Tensor& kept)
    : rules_(rules),
      part_(part),
      query_(query),
      sinks_(sinks.defined() ? sinks.detach().to(at::kFloat).view({1, -1, 1}) : at::Tensor()),
      kept_(kept),
      length_(query_.size(2) / 2)
{
  const std::int64_t whole = part_.whole_length(query_.size(2));
  if (rules_.window >= whole) rules_.window = 0;
  if (rules_.chunk >= whole) rules_.chunk = 0;
  log_sum_ = at::full(query_.sizes().slice(0, 3), nothing, query_.options().dtype(at::kFloat));
}

/// Calls `work` with each pair of a chunk of queries and a chunk of keys of part `part` of which some see each other.
template <typename Work>
void BlockAttention::Impl::for_each_tile(std::size_t part, const Work& work) const
{
  const SequencePart of_keys = {part, part_.parts};
  for (const std::size_t row : {0, 1}) {
    for (const std::size_t column : {0, 1}) {
      Tile tile;
      tile.row = static_cast<std::int64_t>(row) * length_;
      tile.column = static_cast<std::int64_t>(column) * length_;
      tile.columns = length_;
      tile.query = part_.begin_of(row, length_);
      tile.key = of_keys.begin_of(column, length_);
      if (tile.key > tile.query) continue;
      tile.is_causal = tile.key == tile.query;
      // Of the queries after the keys, the last ones may see none of them.
      std::int64_t end = tile.query + length_;
      const std::int64_t last_key = tile.key + length_ - 1;
      if (rules_.window > 0) end = std::min(end, last_key + rules_.window);
      if (rules_.chunk > 0) end = std::min(end, (last_key / rules_.chunk + 1) * rules_.chunk);
      tile.rows = end - tile.query;
      if (tile.rows > 0) work(tile);
    }
  }
}

BlockAttention::Impl::Operands BlockAttention::Impl::operands_of(const Tile& tile, const at::Tensor& keys,
                                                                 const at::Tensor& values) const
{
  return {query_.narrow(2, tile.row, tile.rows), keys.narrow(2, tile.column, tile.columns),
          values.narrow(2, tile.column, tile.columns)};
}

/// [queries, keys], added to the scores; undefined if all queries see all keys.
at::Tensor BlockAttention::Impl::mask_of(const Tile& tile, const at::Tensor& like) const
{
  if (!tile.is_causal && !needs_mask()) return {};
  const auto places = like.options().dtype(at::kLong);
  const auto rows = at::arange(tile.query, tile.query + tile.rows, places).unsqueeze(1);
  const auto columns = at::arange(tile.key, tile.key + tile.columns, places);
  auto is_unseen = columns > rows;
  if (rules_.window > 0) is_unseen = is_unseen.logical_or(rows - columns >= rules_.window);
  if (rules_.chunk > 0) {
    is_unseen = is_unseen.logical_or(at::div(rows, rules_.chunk, "floor") != at::div(columns, rules_.chunk, "floor"));
  }
  return at::zeros({tile.rows, tile.columns}, like.options()).masked_fill(is_unseen, nothing);
}

/// Float32 [samples, heads, queries, keys].
at::Tensor BlockAttention::Impl::scores_of(const Tile& tile, const Operands& operands) const
{
  const auto keys = for_each_head(operands.keys, static_cast<std::uint64_t>(operands.query.size(1)));
  auto scores = at::matmul(operands.query * rules_.scale, keys.transpose(-2, -1)).to(at::kFloat);
  if (rules_.cap > 0) scores = at::tanh(scores / rules_.cap) * rules_.cap;
  const auto mask = mask_of(tile, scores);
  return mask.defined() ? scores + mask : scores;
}

/// Applies dropout to the probabilities of a tile.
at::Tensor BlockAttention::Impl::dropped(const Tile& tile, const at::Tensor& probabilities) const
{
  if (!kept_.defined()) return probabilities;
  const auto kept = kept_.narrow(2, tile.query, tile.rows).narrow(3, tile.key, tile.columns);
  return probabilities * kept * (1 / (1 - rules_.dropout));
}

/// The outputs of a tile by itself, and the logarithms of its sums of exponentials; float32.
std::pair<at::Tensor, at::Tensor> BlockAttention::Impl::attended(const Tile& tile, const Operands& operands) const
{
  if (rules_.is_fused) return attended_fused(tile, operands);
  const auto scores = scores_of(tile, operands);
  const auto log_sum = at::logsumexp(scores, -1);
  const auto probabilities = dropped(tile, at::exp(scores - log_sum.unsqueeze(-1)));
  const auto values = for_each_head(operands.values, static_cast<std::uint64_t>(operands.query.size(1)));
  return {at::matmul(probabilities.to(values.scalar_type()), values).to(at::kFloat), log_sum};
}

std::pair<at::Tensor, at::Tensor> BlockAttention::Impl::attended_fused(const Tile& tile, const Operands& operands) const
{
  const auto heads = static_cast<std::uint64_t>(operands.query.size(1));
  const std::int64_t width = std::max(operands.query.size(-1), operands.values.size(-1));
  const auto query = padded(operands.query, width);
  const auto keys = padded(for_each_head(operands.keys, heads), width);
  const auto values = padded(for_each_head(operands.values, heads), width);
  const bool is_causal = tile.is_causal && !needs_mask();
  std::optional<at::Tensor> mask;
  if (needs_mask()) mask = mask_of(tile, query);
  require_fused_kernel(query, keys, values, mask, is_causal, rules_.scale);
  const auto [outputs, log_sum] =
      at::_scaled_dot_product_flash_attention_for_cpu(query, keys, values, 0, is_causal, mask, rules_.scale);
  return {outputs.narrow(-1, 0, operands.values.size(-1)).to(at::kFloat), log_sum.to(at::kFloat)};
}

void BlockAttention::Impl::add(const at::Tensor& keys, const at::Tensor& values, std::size_t part)
{
  const at::NoGradGuard no_graph;
  if (!sum_.defined()) {
    auto shape = query_.sizes().vec();
    shape.back() = values.size(-1);
    sum_ = at::zeros(shape, query_.options().dtype(at::kFloat));
  }
  for_each_tile(part, [&](const Tile& tile) {
    const auto [outputs, log_sum] = attended(tile, operands_of(tile, keys, values));
    auto sum = sum_.narrow(2, tile.row, tile.rows);
    auto so_far = log_sum_.narrow(2, tile.row, tile.rows);
    const auto all = at::logaddexp(so_far, log_sum);
    sum.mul_(at::exp(so_far - all).unsqueeze(-1)).add_(outputs * at::exp(log_sum - all).unsqueeze(-1));
    so_far.copy_(all);
  });
}

at::Tensor BlockAttention::Impl::outputs()
{
  const at::NoGradGuard no_graph;
  if (sinks_.defined()) {
    const auto all = at::logaddexp(log_sum_, sinks_);
    sum_.mul_(at::exp(log_sum_ - all).unsqueeze(-1));
    log_sum_ = all;
  }
  return sum_.to(query_.scalar_type());
}

void BlockAttention::Impl::begin_backward(const at::Tensor& gradient)
{
  const at::NoGradGuard no_graph;
  gradient_ = gradient;
  mean_ = (gradient.to(at::kFloat) * sum_).sum(-1);
  query_gradient_ = at::zeros(query_.sizes(), query_.options().dtype(at::kFloat));
}

/// The gradient of a score is its probability times what the gradient of the probability is above their mean.
BlockAttention::Impl::Operands BlockAttention::Impl::gradients_of(const Tile& tile, const Operands& operands) const
{
  if (rules_.is_fused) return gradients_fused(tile, operands);
  const at::AutoGradMode with_graph(true);
  const Operands leaves = {operands.query.detach().requires_grad_(), operands.keys.detach().requires_grad_(),
                           operands.values.detach().requires_grad_()};
  const auto rows = [&](const at::Tensor& tensor) { return tensor.narrow(2, tile.row, tile.rows); };
  const auto probabilities = at::exp(scores_of(tile, leaves) - rows(log_sum_).unsqueeze(-1));
  const auto values = for_each_head(leaves.values, static_cast<std::uint64_t>(leaves.query.size(1)));
  const auto outputs = at::matmul(dropped(tile, probabilities).to(values.scalar_type()), values);
  torch::autograd::backward({outputs, probabilities.sum(-1)},
                            {rows(gradient_).to(outputs.scalar_type()), rows(mean_).neg()});
  return {leaves.query.grad(), leaves.keys.grad(), leaves.values.grad()};
}

BlockAttention::Impl::Operands BlockAttention::Impl::gradients_fused(const Tile& tile, const Operands& operands) const
{
  const auto heads = static_cast<std::uint64_t>(operands.query.size(1));
  const std::int64_t shared = operands.keys.size(1);
  const std::int64_t width = std::max(operands.query.size(-1), operands.values.size(-1));
  const bool is_causal = tile.is_causal && !needs_mask();
  std::optional<at::Tensor> mask;
  if (needs_mask()) mask = mask_of(tile, operands.query);
  const auto rows = [&](const at::Tensor& tensor) { return tensor.narrow(2, tile.row, tile.rows); };
  const auto [query, keys, values] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      padded(rows(gradient_).to(query_.scalar_type()), width), padded(operands.query, width),
      padded(for_each_head(operands.keys, heads), width), padded(for_each_head(operands.values, heads), width),
      padded(rows(sum_).to(query_.scalar_type()), width), rows(log_sum_).contiguous(), 0, is_causal, mask,
      rules_.scale);
  return {query.narrow(-1, 0, operands.query.size(-1)), of_shared(keys.narrow(-1, 0, operands.keys.size(-1)), shared),
          of_shared(values.narrow(-1, 0, operands.values.size(-1)), shared)};
}

std::pair<at::Tensor, at::Tensor> BlockAttention::Impl::add_backward(const at::Tensor& keys, const at::Tensor& values,
                                                                     std::size_t part)
{
  const at::NoGradGuard no_graph;
  const auto of_keys = at::zeros(keys.sizes(), keys.options().dtype(at::kFloat));
  const auto of_values = at::zeros(values.sizes(), values.options().dtype(at::kFloat));
  for_each_tile(part, [&](const Tile& tile) {
    const Operands gradients = gradients_of(tile, operands_of(tile, keys, values));
    query_gradient_.narrow(2, tile.row, tile.rows).add_(gradients.query);
    of_keys.narrow(2, tile.column, tile.columns).add_(gradients.keys);
    of_values.narrow(2, tile.column, tile.columns).add_(gradients.values);
  });
  return {of_keys.to(keys.scalar_type()), of_values.to(values.scalar_type())};
}

at::Tensor BlockAttention::Impl::query_gradient() const
{
  return query_gradient_.to(query_.scalar_type());
}

at::Tensor BlockAttention::Impl::sink_gradient() const
{
  if (!sinks_.defined()) return {};
  return (at::exp(sinks_ - log_sum_) * mean_).neg().sum(at::IntArrayRef({0, 2}));
}

BlockAttention::BlockAttention(const BlockRules& rules, const SequencePart& part, const at::Tensor& query,
                               const at::Tensor& sinks, const at::Tensor& kept)
    : impl_(std::make_unique<Impl>(rules, part, query, sinks, kept))
{
}
BlockAttention::~BlockAttention() = default;

void BlockAttention::add(const at::Tensor& keys, const at::Tensor& values, std::size_t part)
{
  impl_->add(keys, values, part);
}
at::Tensor BlockAttention::outputs()
{
  return impl_->outputs();
}
void BlockAttention::begin_backward(const at::Tensor& gradient)
{
  impl_->begin_backward(gradient);
}
std::pair<at::Tensor, at::Tensor> BlockAttention::add_backward(const at::Tensor& keys, const at::Tensor& values,
                                                               std::size_t part)
{
  return impl_->add_backward(keys, values, part);
}
at::Tensor BlockAttention::query_gradient() const
{
  return impl_->query_gradient();
}
at::Tensor BlockAttention::sink_gradient() const
{
  return impl_->sink_gradient();
}

}  // namespace isobar::exec
