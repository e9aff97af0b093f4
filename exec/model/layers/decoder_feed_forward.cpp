#include "core/errors.hpp"
#include "exec/model/divided_experts.hpp"
#include "exec/model/layers/decoder_layer.hpp"

#include <ATen/ATen.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace isobar::exec {

namespace {

at::Tensor activated(Activation activation, const at::Tensor& input)
{
  switch (activation) {
    case Activation::Silu:
      return at::silu(input);
    case Activation::Gelu:
      return at::gelu(input);
    case Activation::GeluTanh:
      return at::gelu(input, "tanh");
    case Activation::Relu:
      return at::relu(input);
    default:
      return at::relu(input).square();
  }
}

/// What dense networks and mixtures of experts have in common.
class AnyFeedForward : public Sublayer {
 protected:
  AnyFeedForward(const LayerSetup& setup, const DecoderSizes& sizes)
      : Sublayer(setup, sizes, "feed_forward"), activation_(sizes.activation)
  {
    if (sizes.norm_place != NormPlace::Shared) add_input_norm();
  }

  /// A network of two products, or of three of which the first gates the second one's output.
  struct Network {
    std::optional<Linear> gate;
    Linear up;
    Linear down;
  };
  Network add_network(const DecoderSizes& sizes, const std::string& prefix, std::uint64_t inner)
  {
    const auto product = [&](const std::string& name, std::uint64_t from, std::uint64_t to, Cut cut) {
      return sizes.biases.mlp ? add_linear(prefix + name, from, to, cut)
                              : add_linear_without_bias(prefix + name, from, to, cut);
    };
    std::optional<Linear> gate;
    if (sizes.is_gated) gate = product("gate", sizes.hidden, inner, by_rows);
    const Linear up = product("up", sizes.hidden, inner, by_rows);
    return {gate, up, product("down", inner, sizes.hidden, by_columns)};
  }
  at::Tensor apply_network(const Network& network, const at::Tensor& input) const
  {
    if (!network.gate) return apply(network.down, activate(apply(network.up, input)));
    const auto gated = activate(apply(*network.gate, input)) * apply(network.up, input);
    return apply(network.down, gated);
  }
  at::Tensor activate(const at::Tensor& input) const { return activated(activation_, input); }

 private:
  Activation activation_;
};

class DenseFeedForward final : public AnyFeedForward {
 public:
  DenseFeedForward(const LayerSetup& setup, const DecoderSizes& sizes)
      : AnyFeedForward(setup, sizes), network_(add_network(sizes, "", sizes.intermediate))
  {
    add_output_norm();
  }

 protected:
  at::Tensor compute(const at::Tensor& input, const RandomKey& key) const override
  {
    return drop_out(apply_network(network_, input), key, 2);
  }

 private:
  Network network_;
};

/// A router that sends each token to a few experts (Shazeer et al. 2017, arXiv 1701.06538), without a limit of tokens
/// for each; and perhaps an expert for all tokens (DeepSeekMoE, arXiv 2401.06066).
class ExpertsFeedForward final : public AnyFeedForward, public DividedExperts {
 public:
  ExpertsFeedForward(const LayerSetup& setup, const DecoderSizes& sizes)
      : AnyFeedForward(setup, sizes),
        experts_(sizes.experts),
        own_(experts_of_device().part_of(experts_.count)),
        are_whole_(setup.workload.experts.are_whole && !experts_of_device().is_whole()),
        router_(sizes.biases.router ? add_linear("router", sizes.hidden, experts_.count)
                                    : add_linear_without_bias("router", sizes.hidden, experts_.count))
  {
    const std::uint64_t width = experts_.latent > 0 ? experts_.latent : sizes.hidden;
    const bool has_bias = sizes.biases.experts;
    if (experts_.latent > 0) latent_down_ = add_latent(sizes, "latent_down", sizes.hidden, width);
    if (sizes.is_gated) gate_ = add_stack("experts.gate", width, experts_.intermediate, has_bias, Cut::Kind::Rows);
    up_ = add_stack("experts.up", width, experts_.intermediate, has_bias, Cut::Kind::Rows);
    down_ = add_stack("experts.down", experts_.intermediate, width, has_bias, Cut::Kind::Columns);
    if (experts_.latent > 0) {
      latent_up_ = add_latent(sizes, "latent_up", width, sizes.hidden);
      // Of what a shard's part of each expert gives; where devices divide experts, shards have the sums for some
      // tokens.
      latent_up_->makes_addends = experts_of_device().is_whole();
    }
    if (experts_.shared > 0) shared_ = add_network(sizes, "shared.", experts_.shared);
    if (experts_.has_shared_gate) shared_gate_ = add_linear_without_bias("shared_gate", sizes.hidden, 1);
    add_output_norm();
  }

  const DividedExperts* experts() const override { return this; }

  RoutedTokens route(const at::Tensor& residual) const override
  {
    const auto tokens = input_of(residual).flatten(0, -2);
    const auto [begin, end] = own_tokens(tokens.size(0));
    RoutedTokens own = routed(tokens.narrow(0, begin, end - begin));
    own.tensors[RoutedTokens::Tokens] = tokens;
    return own;
  }

  ComputedExperts compute(const at::Tensor& rows, const at::Tensor& counts, const at::Tensor& tokens) const override
  {
    // Those of each device by expert become those of each expert, by device.
    const auto* const count = counts.const_data_ptr<std::int64_t>();
    const std::int64_t devices = counts.size(0);
    std::vector<std::int64_t> first(static_cast<std::size_t>(counts.numel()), 0);
    for (std::size_t i = 1; i < first.size(); ++i) first[i] = first[i - 1] + count[i - 1];
    Tensors places;
    const auto own = static_cast<std::int64_t>(own_);
    for (std::int64_t expert = 0; expert < own; ++expert) {
      for (std::int64_t device = 0; device < devices; ++device) {
        const std::int64_t which = device * own + expert;
        const std::int64_t begin = first[static_cast<std::size_t>(which)];
        places.push_back(at::arange(begin, begin + count[which], at::kLong));
      }
    }
    const auto by_expert = at::cat(places).to(rows.device());
    const auto computed = compute_experts(rows.index_select(0, by_expert), counts.sum(0));
    return {{computed.index_select(0, by_expert.argsort()), of_shared(tokens)}};
  }

  at::Tensor combine(const ComputedExperts& computed, const RoutedTokens& routed,
                     const at::Tensor& residual) const override
  {
    const std::int64_t tokens = residual.numel() / residual.size(-1);
    const auto [begin, end] = own_tokens(tokens);
    auto output = of_rows(computed, routed);
    if (end - begin < tokens) output = at::constant_pad_nd(output, {0, 0, begin, tokens - end});
    return output_of(residual, with_shared(output, computed).reshape_as(residual));
  }

 protected:
  at::Tensor compute(const at::Tensor& input, const RandomKey& /*key*/) const override
  {
    const auto tokens = routed(input.flatten(0, -2));
    const auto computed = compute_experts(tokens.tensors[RoutedTokens::Rows], tokens.tensors[RoutedTokens::Counts]);
    const ComputedExperts both = {{computed, of_shared(tokens.tensors[RoutedTokens::Tokens])}};
    return with_shared(of_rows(both, tokens), both).reshape_as(input);
  }

 private:
  /// The matrices of all experts, one below the other, and their biases.
  struct Stack {
    std::size_t weight;
    std::optional<std::size_t> bias;
  };

  Linear add_latent(const DecoderSizes& sizes, const std::string& name, std::uint64_t from, std::uint64_t to)
  {
    return sizes.biases.mlp ? add_linear(name, from, to) : add_linear_without_bias(name, from, to);
  }

  /// `of_shard`: how shards divide each matrix.
  Stack add_stack(const std::string& name, std::uint64_t from, std::uint64_t to, bool has_bias, Cut::Kind of_shard)
  {
    Cut cut = {are_whole_ ? Cut::Kind::None : of_shard, own_, true};
    const std::size_t weight = add_normal(name + ".weight", {experts_.count * to, from}, usual_deviation, cut);
    if (!has_bias) return {weight, std::nullopt};
    if (of_shard == Cut::Kind::Columns) cut.kind = Cut::Kind::None;
    return {weight, add_constant(name + ".bias", {experts_.count * to}, 0, cut)};
  }

  /// The matrix of each of the device's experts, in the workload's dtype.
  Tensors of_each(std::size_t stack) const
  {
    return in_dtype(parameter(stack)).unflatten(0, {static_cast<std::int64_t>(own_), -1}).unbind(0);
  }

  /// Of a replica's tokens, those that this shard routes where devices divide experts: begin and end.
  std::pair<std::int64_t, std::int64_t> own_tokens(std::int64_t tokens) const
  {
    const auto place = [&](std::uint64_t unit) {
      return tokens * static_cast<std::int64_t>(unit) / static_cast<std::int64_t>(units().all);
    };
    return {place(units().begin), place(units().end)};
  }

  /// @param tokens [tokens, hidden]
  RoutedTokens routed(const at::Tensor& tokens) const
  {
    const auto choices = static_cast<std::int64_t>(experts_.per_token);
    const auto [weights, chosen] = choose(tokens);
    const auto read = latent_down_ ? apply(*latent_down_, tokens) : tokens;
    // Each token once for each of its experts, in the order of the experts. Copies before the choice, so that the
    // backward pass adds up a token's gradients in a fixed order.
    const auto by_expert = chosen.flatten().argsort(/*stable=*/true, -1);
    const auto copies = read.unsqueeze(1).expand({-1, choices, -1}).flatten(0, 1).index_select(0, by_expert);
    const auto counts = at::bincount(chosen.flatten(), {}, static_cast<std::int64_t>(experts_.count)).cpu();
    return {{copies, counts, by_expert, tokens, weights}};
  }

  /// What the shared expert gives, if there is one; otherwise undefined.
  at::Tensor of_shared(const at::Tensor& tokens) const
  {
    if (!shared_) return {};
    const auto of_all = apply_network(*shared_, tokens);
    return shared_gate_ ? of_all * at::sigmoid(apply(*shared_gate_, tokens)) : of_all;
  }

  /// What the routed experts of each token add up to.
  at::Tensor of_rows(const ComputedExperts& computed, const RoutedTokens& routed) const
  {
    const auto choices = static_cast<std::int64_t>(experts_.per_token);
    const auto in_order = routed.tensors[RoutedTokens::Order].argsort();
    const auto of_tokens =
        computed.tensors[ComputedExperts::Rows].index_select(0, in_order).unflatten(0, {-1, choices});
    const auto sum = (of_tokens * in_dtype(routed.tensors[RoutedTokens::Weights]).unsqueeze(-1)).sum(1);
    return latent_up_ ? apply(*latent_up_, sum) : sum;
  }

  static at::Tensor with_shared(const at::Tensor& output, const ComputedExperts& computed)
  {
    const auto& shared = computed.tensors[ComputedExperts::Shared];
    return shared.defined() ? output + shared : output;
  }

  /// The weights of each token's experts, float32 [tokens, experts of a token], and which they are.
  std::pair<at::Tensor, at::Tensor> choose(const at::Tensor& tokens) const
  {
    const auto logits = apply(router_, tokens).to(at::kFloat);
    const auto scores = experts_.scores == RouterScores::Softmax ? at::softmax(logits, -1) : at::sigmoid(logits);
    auto [weights, chosen] = scores.topk(static_cast<std::int64_t>(experts_.per_token), -1);
    constexpr double not_zero = 1e-20;  // of sigmoids that all are 0; as transformers'
    if (experts_.normalizes) weights = weights / (weights.sum(-1, true) + not_zero);
    if (experts_.scale != 1) weights = weights * experts_.scale;
    return {weights, chosen};
  }

  /// @param rows [copies of tokens, width], by expert of this device
  /// @param counts of each expert's rows, on the CPU
  at::Tensor compute_experts(const at::Tensor& rows, const at::Tensor& counts) const
  {
    const auto gates = gate_ ? of_each(gate_->weight) : Tensors();
    const auto ups = of_each(up_->weight);
    const auto downs = of_each(down_->weight);
    const auto biases_of = [&](const std::optional<Stack>& stack) {
      return stack && stack->bias ? of_each(*stack->bias) : Tensors(own_);
    };
    const auto gate_biases = biases_of(gate_);
    const auto up_biases = biases_of(up_);
    const auto down_biases = is_first_shard() ? biases_of(down_) : Tensors(own_);
    const auto* const count = counts.const_data_ptr<std::int64_t>();
    const auto parts = rows.split_with_sizes({count, own_}, 0);
    Tensors computed;
    for (std::size_t expert = 0; expert < own_; ++expert) {
      const auto& own = parts[expert];
      if (own.size(0) == 0) continue;
      auto inner = at::linear(own, ups[expert], up_biases[expert]);
      inner = gate_ ? activate(at::linear(own, gates[expert], gate_biases[expert])) * inner : activate(inner);
      computed.push_back(at::linear(inner, downs[expert], down_biases[expert]));
    }
    return computed.empty() ? rows : at::cat(computed);
  }

  ExpertSizes experts_;
  std::uint64_t own_;  // experts of this device
  bool are_whole_;     // which are so on each shard
  Linear router_;
  std::optional<Linear> latent_down_, latent_up_;
  std::optional<Stack> gate_, up_, down_;
  std::optional<Network> shared_;
  std::optional<Linear> shared_gate_;
};

}  // namespace

std::unique_ptr<Sublayer> make_feed_forward(const LayerSetup& setup, const DecoderSizes& sizes,
                                            const DecoderBlock& block)
{
  switch (block.feed_forward) {
    case FeedForward::None:
      return nullptr;
    case FeedForward::Dense:
      return std::make_unique<DenseFeedForward>(setup, sizes);
    default:
      return std::make_unique<ExpertsFeedForward>(setup, sizes);
  }
}

}  // namespace isobar::exec
