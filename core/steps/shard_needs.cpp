#include "core/steps/shard_needs.hpp"

#include "core/errors.hpp"
#include "core/model/dtype.hpp"

#include <algorithm>
#include <variant>

namespace isobar {

namespace {

constexpr double bytes_of_a_sum = 4;  // of a norm, for a token

// Lanes. Those of a product have its number added.
constexpr std::size_t most_products = 1000;
enum class NeedLane : std::uint8_t {
  Norm,
  Input,
  Weight,
  Output,
  Loss,
  Gradient,
  WeightAgain,
  KeptInput,
  InputGradient,
  NormGradient,
  InputAgain,
  WeightGradient,
  Exchange,  // of attention; its number is that of a collective
  Dispatch   // of tokens to experts, likewise
};
std::size_t number_of(NeedLane lane, std::size_t product = 0)
{
  return static_cast<std::size_t>(lane) * most_products + product;
}

/// The needs of a layer of shards that have all of its input and output, or, with the sequence divided, a part of them.
class RowOfShards {
 public:
  RowOfShards(const Workload& workload, const Boundaries& cuts, std::size_t layer, const ShardGrid& grid,
              std::size_t shards)
      : split_(*workload.layers[layer].split),
        output_(cuts.output.at(layer + 1).value),
        gradient_(cuts.gradient.at(layer + 1).value),
        input_(cuts.output.at(layer).value),
        input_gradient_(cuts.gradient.at(layer).value),
        has_input_(layer > 0),
        has_parts_(grid.form == ShardGrid::Form::Sequence),
        shards_(shards)
  {
  }

  std::vector<ShardNeed> needs() &&
  {
    if (has_parts_ && has_input_) gather(NeedOf::Forward, Payload::Activation, NeedLane::Input, input_, true);
    if (split_.gathered) {
      const NeedLane lane = has_parts_ ? NeedLane::Loss : NeedLane::Output;
      after(NeedOf::Forward, Opcode::AllGather, Payload::Activation, lane, split_.gathered->value);
    } else {
      after(NeedOf::Forward, sum(), Payload::Activation, NeedLane::Output, output_);
      if (has_parts_) gather(NeedOf::InputGradient, Payload::Gradient, NeedLane::Gradient, gradient_, true);
    }
    if (has_parts_ && has_input_)
      gather(NeedOf::InputGradient, Payload::Activation, NeedLane::KeptInput, input_, false);
    if (has_input_) after(NeedOf::InputGradient, sum(), Payload::Gradient, NeedLane::InputGradient, input_gradient_);
    return std::move(needs_);
  }

 private:
  Opcode sum() const { return has_parts_ ? Opcode::ReduceScatter : Opcode::AllReduce; }

  void gather(NeedOf pass, Payload payload, NeedLane lane, double whole, bool on_arrival)
  {
    const double part = split_.exchanged_fraction * whole / static_cast<double>(shards_);
    needs_.push_back(
        {pass, true, on_arrival, Opcode::AllGather, payload, number_of(lane), ShardAxis{1, shards_}, part});
  }
  void after(NeedOf pass, Opcode opcode, Payload payload, NeedLane lane, double bytes)
  {
    needs_.push_back({pass, false, false, opcode, payload, number_of(lane), ShardAxis{1, shards_},
                      split_.exchanged_fraction * bytes});
  }

  const Split& split_;
  double output_;
  double gradient_;
  double input_;
  double input_gradient_;
  bool has_input_;
  bool has_parts_;
  std::size_t shards_;
  std::vector<ShardNeed> needs_;
};

/// The needs of a layer in a grid (docs/costs.md, "Grids of shards").
class GridOfShards {
 public:
  GridOfShards(const Workload& workload, const Boundaries& cuts, std::size_t layer, const ShardGrid& grid)
      : split_(*workload.layers[layer].split),
        output_(cuts.output.at(layer + 1).value),
        gradient_(cuts.gradient.at(layer + 1).value),
        has_input_(layer > 0),
        is_3d_(grid.form == ShardGrid::Form::ThreeD),
        tokens_(static_cast<double>(workload.micro_batch * workload.sequence)),
        number_bytes_(size_of(workload.dtype)),
        side_(static_cast<double>(grid.side)),
        blocks_(static_cast<double>(grid.blocks())),
        parameter_blocks_(static_cast<double>(grid.parameter_blocks())),
        row_{1, grid.side},
        column_{grid.side, grid.side},
        depth_{grid.side * grid.side, grid.depth}
  {
  }

  std::vector<ShardNeed> needs() &&
  {
    add_forward();
    add_input_gradient();
    if (!is_3d_) {
      for (std::size_t p = products(); p-- > 0;) {
        add(NeedOf::WeightGradient, true, false, Opcode::AllGather, Payload::Activation,
            number_of(NeedLane::InputAgain, p), input_axis(p), inputs(p) / blocks_);
      }
    }
    for (std::size_t p = products(); p-- > 0;) {
      add(NeedOf::WeightGradient, false, false, Opcode::ReduceScatter, Payload::ParameterGradient,
          number_of(NeedLane::WeightGradient, p), weight_axis(), side_ * weights(p) / parameter_blocks_);
    }
    return std::move(needs_);
  }

 private:
  void add_forward()
  {
    add_norm(NeedOf::Forward, true, Payload::Activation, NeedLane::Norm);
    for (std::size_t p = 0; p < products(); ++p) {
      add(NeedOf::Forward, true, true, Opcode::AllGather, Payload::Activation, number_of(NeedLane::Input, p),
          input_axis(p), inputs(p) / blocks_);
    }
    for (std::size_t p = 0; p < products(); ++p) {
      add(NeedOf::Forward, true, false, Opcode::AllGather, Payload::Parameter, number_of(NeedLane::Weight, p),
          weight_axis(), weights(p) / parameter_blocks_);
    }
    for (std::size_t p = 0; is_3d_ && p < products(); ++p) {
      add(NeedOf::Forward, false, false, Opcode::ReduceScatter, Payload::Activation, number_of(NeedLane::Output, p),
          output_axis(p), side_ * outputs(p) / blocks_);
    }
    if (products() == 0) {
      add(NeedOf::Forward, false, false, Opcode::ReduceScatter, Payload::Activation, number_of(NeedLane::Output, 1),
          axis_of_rows_looked_up(), side_ * output_ / blocks_);
    }
    if (split_.gathered) {
      add(NeedOf::Forward, false, false, Opcode::AllGather, Payload::Activation, number_of(NeedLane::Loss), row_,
          split_.gathered->value * (side_ / blocks_));
    }
  }

  void add_input_gradient()
  {
    if (products() == 0) {
      add(NeedOf::InputGradient, true, true, Opcode::AllGather, Payload::Gradient, number_of(NeedLane::Gradient, 1),
          axis_of_rows_looked_up(), gradient_ / blocks_);
    }
    for (std::size_t p = products(); p-- > 0;) {
      if (is_3d_) {
        add(NeedOf::InputGradient, true, true, Opcode::AllGather, Payload::Gradient, number_of(NeedLane::Gradient, p),
            output_axis(p), outputs(p) / blocks_);
      } else {
        add(NeedOf::InputGradient, true, false, Opcode::AllGather, Payload::Parameter,
            number_of(NeedLane::WeightAgain, p), weight_axis(), weights(p) / parameter_blocks_);
      }
    }
    if (!has_input_) return;
    for (std::size_t p = products(); p-- > 0;) {
      add(NeedOf::InputGradient, false, false, Opcode::ReduceScatter, Payload::Gradient,
          number_of(NeedLane::InputGradient, p), input_axis(p), side_ * inputs(p) / blocks_);
    }
    add_norm(NeedOf::InputGradient, false, Payload::Gradient, NeedLane::NormGradient);
  }

  void add_norm(NeedOf pass, bool is_before, Payload payload, NeedLane lane)
  {
    if (split_.norm_sums == 0) return;
    const double bytes = bytes_of_a_sum * static_cast<double>(split_.norm_sums) * tokens_ * (side_ / blocks_);
    add(pass, is_before, is_before, Opcode::AllReduce, payload, number_of(lane), is_3d_ ? column_ : row_, bytes);
  }

  void add(NeedOf pass, bool is_before, bool on_arrival, Opcode opcode, Payload payload, std::size_t lane,
           const ShardAxis& axis, double bytes)
  {
    needs_.push_back({pass, is_before, on_arrival, opcode, payload, lane, axis, bytes});
  }

  std::size_t products() const { return split_.products.size(); }
  // What a 3d product adds up along an axis, the next one gathers along it.
  ShardAxis input_axis(std::size_t p) const { return is_3d_ && p % 2 == 1 ? column_ : row_; }
  ShardAxis output_axis(std::size_t p) const { return p % 2 == 1 ? row_ : column_; }  // of 3d
  ShardAxis weight_axis() const { return is_3d_ ? depth_ : column_; }
  ShardAxis axis_of_rows_looked_up() const { return is_3d_ ? row_ : column_; }
  // Bytes of whole matrices:
  double inputs(std::size_t p) const
  {
    return number_bytes_ * tokens_ * static_cast<double>(split_.products[p].inputs);
  }
  double outputs(std::size_t p) const
  {
    return number_bytes_ * tokens_ * static_cast<double>(split_.products[p].outputs);
  }
  double weights(std::size_t p) const
  {
    return number_bytes_ * static_cast<double>(split_.products[p].inputs) *
           static_cast<double>(split_.products[p].outputs);
  }

  const Split& split_;
  double output_;
  double gradient_;
  bool has_input_;
  bool is_3d_;
  double tokens_;
  double number_bytes_;
  double side_;
  double blocks_;
  double parameter_blocks_;
  ShardAxis row_, column_, depth_;
  std::vector<ShardNeed> needs_;
};

/// Numbers of a token: of its queries, and of its keys, in the layer.
struct TokenNumbers {
  double queries = 0;
  double keys = 0;
};

TokenNumbers numbers_of_token(const DecoderSizes& sizes, std::size_t layer)
{
  const auto [kind, index] = decoder_layer(layer, sizes);
  if (kind != DecoderLayer::Kind::Attention) return {};
  const auto heads = static_cast<double>(sizes.heads);
  if (decoder_block(sizes, index).mixer == Mixer::Latent) {  // queries and keys are as wide, values not
    const double all = heads * static_cast<double>(sizes.latent.nope + sizes.latent.rope + sizes.latent.value);
    return {all / 2, all / 2};
  }
  const auto width = static_cast<double>(sizes.head_width);
  const double keys = static_cast<double>(sizes.kv_heads) * width;  // as many values, or the same ones
  return {heads * width, sizes.has_shared_kv ? keys / 2 : keys};
}

TokenNumbers numbers_of_token(const Workload& workload, std::size_t layer)
{
  if (const auto* decoder = std::get_if<DecoderSizes>(&workload.model)) return numbers_of_token(*decoder, layer);
  // Blocks follow the embedding, two layers each; the head is last.
  const bool is_attention = layer % 2 == 1 && layer + 1 < workload.layers.size();
  if (!is_attention) return {};
  if (const auto* gpt = std::get_if<GptSizes>(&workload.model)) {
    return {static_cast<double>(gpt->hidden), static_cast<double>(gpt->hidden)};
  }
  const auto* llama = std::get_if<LlamaSizes>(&workload.model);
  ensure(llama != nullptr, "sequences of a gpt, llama or decoder are divided");
  const double hidden = static_cast<double>(llama->hidden);
  return {hidden, hidden * static_cast<double>(llama->kv_heads) / static_cast<double>(llama->heads)};
}

}  // namespace

namespace {

bool repeats_forward(const Workload& workload, std::size_t layer)
{
  return std::find(workload.recompute.begin(), workload.recompute.end(), layer) != workload.recompute.end();
}

void add_needs_of_attention(const Workload& workload, std::size_t layer, std::size_t shards,
                            std::vector<ShardNeed>& needs)
{
  const TokenNumbers numbers = workload.context.divides() ? numbers_of_token(workload, layer) : TokenNumbers{};
  if (numbers.queries == 0) return;
  const auto parts = static_cast<double>(workload.context.degree);
  const double tokens = static_cast<double>(workload.micro_batch) * static_cast<double>(workload.sequence) / parts;
  const double each = tokens * size_of(workload.dtype) / static_cast<double>(shards);
  const double queries = each * numbers.queries;
  const double keys = each * numbers.keys;
  const bool repeats = repeats_forward(workload, layer);
  const bool goes_around = workload.context.exchange == ContextExchange::Ring;
  const auto add = [&](NeedOf pass, bool is_before, Opcode opcode, double bytes) {
    const Payload payload = pass == NeedOf::Forward ? Payload::Activation : Payload::Gradient;
    needs.push_back({pass, is_before, is_before, opcode, payload, number_of(NeedLane::Exchange, needs.size()),
                     ShardAxis{}, bytes, workload.context.degree, goes_around});
  };
  switch (workload.context.exchange) {
    case ContextExchange::AllToAll:
      // Outputs go back; in the backward pass, their gradients come, and those of queries, keys and values go back.
      add(NeedOf::Forward, false, Opcode::AllToAll, queries);
      for (const double bytes : {queries, keys, keys}) add(NeedOf::InputGradient, false, Opcode::AllToAll, bytes);
      for (const double bytes : {queries, keys, keys}) add(NeedOf::Forward, true, Opcode::AllToAll, bytes);
      for (const double bytes : {queries, keys, keys, queries}) {
        if (repeats) add(NeedOf::InputGradient, true, Opcode::AllToAll, bytes);
      }
      add(NeedOf::InputGradient, true, Opcode::AllToAll, queries);
      break;
    case ContextExchange::AllGather:
      add(NeedOf::InputGradient, false, Opcode::ReduceScatter, 2 * keys * parts);
      add(NeedOf::Forward, true, Opcode::AllGather, 2 * keys);
      if (repeats) add(NeedOf::InputGradient, true, Opcode::AllGather, 2 * keys);
      add(NeedOf::InputGradient, true, Opcode::AllGather, 2 * keys);
      break;
    case ContextExchange::Ring:
      add(NeedOf::Forward, true, Opcode::AllGather, 2 * keys);
      if (repeats) add(NeedOf::InputGradient, true, Opcode::AllGather, 2 * keys);
      add(NeedOf::InputGradient, true, Opcode::AllGather, 4 * keys);
      break;
  }
}

/// Before each pass the tokens, or the gradients of what came of them, go to their experts, and after it come back. Of
/// each replica's, every shard carries an equal part over. The shards of the other one collect them if each has a part
/// of every expert.
void add_needs_of_experts(const Workload& workload, std::size_t layer, std::size_t shards,
                          std::vector<ShardNeed>& needs)
{
  const auto& experts = workload.layers.at(layer).experts;
  const bool has_peers = workload.experts.degree > 1 || (workload.experts.are_whole && shards > 1);
  if (!has_peers || !experts) return;
  const double all = experts->dispatched.value;
  const double part = all / static_cast<double>(shards);
  const double sent = experts->exchanged_fraction * part;
  const auto add = [&](NeedOf pass, bool is_before, bool is_across, Opcode opcode, double bytes) {
    if (!is_across && (shards == 1 || workload.experts.are_whole)) return;
    const bool is_among_all = is_across && workload.experts.are_whole;
    const Payload payload = pass == NeedOf::Forward ? Payload::Activation : Payload::Gradient;
    needs.push_back({pass, is_before, is_before, opcode, payload, number_of(NeedLane::Dispatch, needs.size()),
                     is_across && !is_among_all ? ShardAxis{} : ShardAxis{1, shards}, bytes,
                     is_across ? workload.experts.degree : 1, false, true});
  };
  const auto come = [&](NeedOf pass) {
    add(pass, true, true, Opcode::AllToAll, sent);
    add(pass, true, false, Opcode::AllGather, part);
  };
  const auto go_back = [&](NeedOf pass, bool is_before) {
    add(pass, is_before, false, Opcode::ReduceScatter, all);
    add(pass, is_before, true, Opcode::AllToAll, sent);
  };
  go_back(NeedOf::Forward, false);
  go_back(NeedOf::InputGradient, false);
  come(NeedOf::Forward);
  if (repeats_forward(workload, layer)) {
    come(NeedOf::InputGradient);
    go_back(NeedOf::InputGradient, true);
  }
  come(NeedOf::InputGradient);
}

}  // namespace

std::vector<ShardNeed> replica_needs(const Workload& workload, std::size_t layer, std::size_t shards)
{
  std::vector<ShardNeed> needs;
  add_needs_of_attention(workload, layer, shards, needs);
  add_needs_of_experts(workload, layer, shards, needs);
  std::stable_partition(needs.begin(), needs.end(), [](const ShardNeed& need) { return !need.is_before; });
  return needs;
}

std::vector<ShardNeed> shard_needs(const Workload& workload, const Boundaries& cuts, std::size_t layer,
                                   const ShardGrid& grid, std::size_t shards)
{
  ensure(workload.layers.at(layer).split.has_value(), "a layer of several shards has a split");
  if (grid.is_grid()) return GridOfShards(workload, cuts, layer, grid).needs();
  return RowOfShards(workload, cuts, layer, grid, shards).needs();
}

ShardAxis axis_of_copies(const ShardGrid& grid, std::size_t shards)
{
  if (!grid.is_grid()) return {1, shards};
  if (grid.form == ShardGrid::Form::TwoAndAHalfD) return {grid.side * grid.side, grid.depth};
  return {};
}

}  // namespace isobar
