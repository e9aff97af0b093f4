#include "core/plan/shard_collectives.hpp"

#include "core/errors.hpp"
#include "core/model/dtype.hpp"
#include "core/model/split_text.hpp"
#include "core/program/collective.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

namespace isobar {

namespace {

using GridForm = ShardGrid::Form;

/// The collectives of one layer over a grid.
class GridLayer {
 public:
  GridLayer(const Workload& workload, const Boundaries& boundaries, std::size_t index, const ShardGrid& grid)
      : layer_(workload.layers.at(index)),
        boundaries_(boundaries),
        index_(index),
        grid_(grid),
        is_3d_(grid.form == GridForm::ThreeD),
        tokens_(static_cast<double>(workload.micro_batch * workload.sequence)),
        bytes_(size_of(workload.dtype))
  {
  }

  std::vector<ShardCollective> collectives() &&
  {
    const auto& products = layer_.split->products;
    const bool has_gradient = index_ > 0;  // of its input
    const auto each = [&](auto add_for) {
      for (std::size_t p = 0; p < products.size(); ++p) add_for(p);
    };
    const auto each_back = [&](auto add_for) {
      for (std::size_t p = products.size(); p-- > 0;) add_for(p);
    };
    add_norm_sum(ShardRole::NormSum, Payload::Activation);
    each([&](std::size_t p) { gather(ShardRole::InputGather, p, Payload::Activation, input_axis(p), inputs_of(p)); });
    each([&](std::size_t p) { gather(ShardRole::WeightGather, p, Payload::Parameter, weight_axis(), weights_of(p)); });
    if (is_3d_) {
      each([&](std::size_t p) { sum(ShardRole::OutputSum, p, Payload::Activation, output_axis(p), outputs_of(p)); });
    }
    if (products.empty()) look_up(ShardRole::OutputSum);
    if (layer_.split->gathered) {
      add({ShardRole::LossGather,
           0,
           Opcode::AllGather,
           Payload::Activation,
           GridAxis::Row,
           part_of_tokens(*layer_.split->gathered),
           {}});
    }
    if (products.empty()) look_up(ShardRole::GradientGather);
    if (is_3d_) {
      each_back([&](std::size_t p) {
        gather(ShardRole::GradientGather, p, Payload::Gradient, output_axis(p), outputs_of(p));
      });
    } else {
      each_back([&](std::size_t p) {
        gather(ShardRole::WeightGatherAgain, p, Payload::Parameter, weight_axis(), weights_of(p));
      });
    }
    if (has_gradient) {
      each_back(
          [&](std::size_t p) { sum(ShardRole::InputGradientSum, p, Payload::Gradient, input_axis(p), inputs_of(p)); });
      add_norm_sum(ShardRole::NormGradientSum, Payload::Gradient);
    }
    if (!is_3d_) {
      each_back([&](std::size_t p) {
        gather(ShardRole::InputGatherAgain, p, Payload::Activation, input_axis(p), inputs_of(p));
      });
    }
    each_back([&](std::size_t p) {
      sum(ShardRole::WeightGradientSum, p, Payload::ParameterGradient, weight_axis(), weights_of(p));
    });
    return std::move(collectives_);
  }

 private:
  // What a 3d product adds up along an axis is gathered along it by the next one.
  GridAxis input_axis(std::size_t product) const
  {
    return is_3d_ && product % 2 == 1 ? GridAxis::Column : GridAxis::Row;
  }
  GridAxis output_axis(std::size_t product) const
  {
    return input_axis(product) == GridAxis::Row ? GridAxis::Column : GridAxis::Row;
  }
  GridAxis weight_axis() const { return is_3d_ ? GridAxis::Depth : GridAxis::Column; }

  /// Bytes of a whole matrix.
  double inputs_of(std::size_t product) const
  {
    return bytes_ * tokens_ * static_cast<double>(layer_.split->products[product].inputs);
  }
  double outputs_of(std::size_t product) const
  {
    return bytes_ * tokens_ * static_cast<double>(layer_.split->products[product].outputs);
  }
  double weights_of(std::size_t product) const
  {
    const auto& [inputs, outputs] = layer_.split->products[product];
    return bytes_ * static_cast<double>(inputs) * static_cast<double>(outputs);
  }

  /// The block of a matrix that a shard has.
  double block_of(double whole, Payload payload) const
  {
    const bool is_of_parameters = payload == Payload::Parameter || payload == Payload::ParameterGradient;
    return whole / static_cast<double>(is_of_parameters ? grid_.parameter_blocks() : grid_.blocks());
  }
  /// The part of what all tokens have that the tokens of a shard have.
  Bytes part_of_tokens(Bytes all) const
  {
    return all * (static_cast<double>(grid_.side) / static_cast<double>(grid_.blocks()));
  }

  void add(const ShardCollective& collective) { collectives_.push_back(collective); }

  void gather(ShardRole role, std::size_t product, Payload payload, GridAxis axis, double whole)
  {
    const double block = block_of(whole, payload);
    add({role, product, Opcode::AllGather, payload, axis, Bytes(block), Bytes(room_for(role, block))});
  }

  /// In 3d all blocks stay. SUMMA has room for two at a time; those of the layer's largest matrix serve for all.
  double room_for(ShardRole role, double block)
  {
    if (is_3d_) return static_cast<double>(grid_.side - 1) * block;
    double& room = room_[static_cast<std::size_t>(role)];
    const double more = std::max(2 * block - room, 0.0);
    room += more;
    return more;
  }
  void sum(ShardRole role, std::size_t product, Payload payload, GridAxis axis, double whole)
  {
    const Bytes addend(static_cast<double>(grid_.side) * block_of(whole, payload));
    add({role, product, Opcode::ReduceScatter, payload, axis, addend, {}});
  }

  /// Each shard looks up what its part of the vocabulary has of the tokens of others.
  void look_up(ShardRole role)
  {
    const bool is_forward = role == ShardRole::OutputSum;
    const double whole = (is_forward ? boundaries_.output : boundaries_.gradient).at(index_ + 1).value;
    const GridAxis axis = is_3d_ ? GridAxis::Row : GridAxis::Column;
    constexpr std::size_t last_product = 1;  // whose outputs have that axis
    if (is_forward) {
      sum(role, last_product, Payload::Activation, axis, whole);
    } else {
      const double block = block_of(whole, Payload::Gradient);
      add({role, last_product, Opcode::AllGather, Payload::Gradient, axis, Bytes(block),
           Bytes(static_cast<double>(grid_.side - 1) * block)});
    }
  }

  void add_norm_sum(ShardRole role, Payload payload)
  {
    constexpr double bytes_of_a_sum = 4;
    const auto sums = static_cast<double>(layer_.split->norm_sums);
    if (sums == 0) return;
    const GridAxis axis = is_3d_ ? GridAxis::Column : GridAxis::Row;  // over which a token lies
    add({role, 0, Opcode::AllReduce, payload, axis, part_of_tokens(Bytes(bytes_of_a_sum * sums * tokens_)), {}});
  }

  const Layer& layer_;
  const Boundaries& boundaries_;
  std::size_t index_;
  const ShardGrid& grid_;
  bool is_3d_;
  double tokens_;
  double bytes_;
  std::array<double, shard_roles> room_ = {};  // so far, in 2d and 2.5d
  std::vector<ShardCollective> collectives_;
};

/// The collectives of one layer whose shards have a part of the sequence each between layers. Around it they gather
/// all tokens, and add up theirs.
std::vector<ShardCollective> sequence_collectives(const Layer& layer, const Boundaries& boundaries, std::size_t index,
                                                  double shards)
{
  std::vector<ShardCollective> collectives;
  const auto gather = [&](ShardRole role, Payload payload, Bytes whole) {
    const Bytes part = whole / shards;
    collectives.push_back({role, 0, Opcode::AllGather, payload, GridAxis::All, part, whole - part});
  };
  const auto sum = [&](ShardRole role, Payload payload, Bytes whole) {
    collectives.push_back({role, 0, Opcode::ReduceScatter, payload, GridAxis::All, whole, {}});
  };
  const bool has_input = index > 0;  // from other layers
  if (has_input) gather(ShardRole::InputGather, Payload::Activation, boundaries.output.at(index));
  if (const auto& gathered = layer.split->gathered) {
    collectives.push_back(
        {ShardRole::LossGather, 0, Opcode::AllGather, Payload::Activation, GridAxis::All, *gathered, {}});
  } else {
    sum(ShardRole::OutputSum, Payload::Activation, boundaries.output.at(index + 1));
    gather(ShardRole::GradientGather, Payload::Gradient, boundaries.gradient.at(index + 1));
  }
  if (has_input) {
    gather(ShardRole::KeptInputGather, Payload::Activation, boundaries.output.at(index));
    sum(ShardRole::InputGradientSum, Payload::Gradient, boundaries.gradient.at(index));
  }
  for (auto& collective : collectives) collective.size = collective.size * layer.split->exchanged_fraction;
  return collectives;
}

}  // namespace

std::vector<GridAxis> axes_of(const ShardGrid& grid)
{
  if (!grid.is_grid()) return {GridAxis::All};
  return {GridAxis::Row, GridAxis::Column, GridAxis::Depth};
}

std::optional<GridAxis> shared_axis(const ShardGrid& grid)
{
  if (!grid.is_grid()) return GridAxis::All;
  if (grid.form == GridForm::TwoAndAHalfD) return GridAxis::Depth;
  return std::nullopt;
}

std::vector<std::vector<std::size_t>> groups_along(const ShardGrid& grid, GridAxis axis, std::size_t shards)
{
  const std::size_t row = grid.side;
  const std::size_t layer = grid.side * grid.side;
  std::size_t stride = 1;
  std::size_t length = shards;
  if (axis != GridAxis::All) {
    stride = axis == GridAxis::Row ? 1 : axis == GridAxis::Column ? row : layer;
    length = axis == GridAxis::Depth ? grid.depth : grid.side;
  }
  std::vector<std::vector<std::size_t>> groups;
  for (std::size_t first = 0; first < shards; ++first) {
    if (first / stride % length != 0) continue;
    auto& group = groups.emplace_back();
    for (std::size_t i = 0; i < length; ++i) group.push_back(first + i * stride);
  }
  return groups;
}

std::vector<ShardCollective> shard_collectives(const Workload& workload, const Boundaries& boundaries,
                                               std::size_t layer, const ShardGrid& grid)
{
  const auto& split = workload.layers.at(layer).split;
  ensure(split.has_value(), "a layer of several shards has a split");
  if (grid.form == GridForm::Sequence) {
    return sequence_collectives(workload.layers[layer], boundaries, layer, static_cast<double>(grid.side));
  }
  if (grid.is_grid()) return GridLayer(workload, boundaries, layer, grid).collectives();
  std::vector<ShardCollective> collectives(1);
  collectives.front().opcode = split->gathered ? Opcode::AllGather : Opcode::AllReduce;
  collectives.front().size = split->gathered.value_or(boundaries.output.at(layer + 1));
  if (layer > 0) {
    collectives.push_back({ShardRole::InputGradientSum,
                           0,
                           Opcode::AllReduce,
                           Payload::Gradient,
                           GridAxis::All,
                           boundaries.gradient.at(layer),
                           {}});
  }
  for (auto& collective : collectives) collective.size = collective.size * split->exchanged_fraction;
  return collectives;
}

std::optional<std::string> why_not_divided(const Workload& workload, std::size_t index, const ShardGrid& grid)
{
  const Layer& layer = workload.layers.at(index);
  if (!grid.is_grid()) {
    const std::size_t parts = grid.blocks() * workload.context.degree;
    if (workload.sequence % parts == 0) return std::nullopt;
    return fmt::format("whose sequence of {} is to be a multiple of {}", workload.sequence, parts);
  }
  if (layer.tied_to) return "which uses the matrix of another layer, and a grid divides the two in other ways";
  if (std::binary_search(workload.recompute.begin(), workload.recompute.end(), index)) {
    return "which recomputes its activations, and a grid keeps them; leave it out of recompute";
  }
  if (!layer.split || (layer.split->products.empty() && !layer.inputs.empty())) {
    return fmt::format("which has no products to divide; {}", why_whole(workload));
  }
  const bool is_3d = grid.form == GridForm::ThreeD;
  const std::size_t samples = is_3d ? grid.side * grid.side : grid.side * grid.depth;
  if (workload.micro_batch % samples != 0) {
    return fmt::format("whose micro-batch of {} is to be a multiple of {}", workload.micro_batch, samples);
  }
  const std::size_t width = is_3d ? grid.side * grid.side : grid.side;
  for (const auto& product : layer.split->products) {
    if (product.inputs % width == 0) continue;
    return fmt::format("whose product of {} numbers of a token needs a multiple of {}", product.inputs, width);
  }
  const bool has_whole_units = layer.split->products.size() > 1;  // a vocabulary is filled up
  if (has_whole_units && layer.split->units % grid.side != 0) {
    return fmt::format("whose {} {} are to be a multiple of {}", layer.split->units,
                       units_in_words(workload, *layer.split), grid.side);
  }
  return std::nullopt;
}

Algorithm algorithm_of_shards(Algorithm of_replicas, const std::vector<std::string>& sites)
{
  const std::set<std::string> all(sites.begin(), sites.end());
  const bool has_several = all.size() > 1 && all.size() < sites.size();
  return of_replicas == Algorithm::Hierarchical && has_several && are_equal_sites(sites) ? of_replicas
                                                                                         : Algorithm::Ring;
}

Layer layer_of_grid(const Layer& layer, const ShardGrid& grid)
{
  const auto shards = static_cast<double>(grid.blocks());
  const std::uint64_t blocks = grid.parameter_blocks();
  Layer part = layer;
  part.forward = layer.forward / shards;
  part.backward = layer.backward / shards;
  part.backward_weight = layer.backward_weight / shards;
  part.parameters = (layer.parameters + blocks - 1) / blocks;
  if (layer.update) part.update = *layer.update / static_cast<double>(blocks);
  part.activations = layer.activations / shards;
  return part;
}

}  // namespace isobar
