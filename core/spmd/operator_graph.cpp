#include "core/spmd/operator_graph.hpp"

#include "core/names.hpp"

#include <algorithm>
#include <cmath>

namespace isobar::spmd {

namespace {

constexpr NameTable<OperatorKind, 32> operator_names = {{{OperatorKind::Data, "data"},
                                                         {OperatorKind::Parameter, "parameter"},
                                                         {OperatorKind::Positions, "positions"},
                                                         {OperatorKind::CausalMask, "causal_mask"},
                                                         {OperatorKind::Transpose, "transpose"},
                                                         {OperatorKind::Flatten, "flatten"},
                                                         {OperatorKind::SplitHeads, "split_heads"},
                                                         {OperatorKind::MergeHeads, "merge_heads"},
                                                         {OperatorKind::PrependClass, "prepend_class"},
                                                         {OperatorKind::TakeClass, "take_class"},
                                                         {OperatorKind::Scale, "scale"},
                                                         {OperatorKind::Mask, "mask"},
                                                         {OperatorKind::Relu, "relu"},
                                                         {OperatorKind::Dropout, "dropout"},
                                                         {OperatorKind::Add, "add"},
                                                         {OperatorKind::Softmax, "softmax"},
                                                         {OperatorKind::LogSoftmax, "log_softmax"},
                                                         {OperatorKind::LayerNorm, "layer_norm"},
                                                         {OperatorKind::Linear, "linear"},
                                                         {OperatorKind::QkvLinear, "qkv_linear"},
                                                         {OperatorKind::Scores, "scores"},
                                                         {OperatorKind::Context, "context"},
                                                         {OperatorKind::Dispatch, "dispatch"},
                                                         {OperatorKind::Expert, "expert"},
                                                         {OperatorKind::Combine, "combine"},
                                                         {OperatorKind::Convolution, "convolution"},
                                                         {OperatorKind::Attention, "attention"},
                                                         {OperatorKind::Embedding, "embedding"},
                                                         {OperatorKind::Gating, "gating"},
                                                         {OperatorKind::NllSum, "nll_sum"},
                                                         {OperatorKind::Sum, "sum"},
                                                         {OperatorKind::Output, "output"}}};

}  // namespace

std::string_view name_of(OperatorKind kind)
{
  return name_in(operator_names, kind);
}

bool is_product(OperatorKind kind)
{
  using Kind = OperatorKind;
  return kind == Kind::Linear || kind == Kind::QkvLinear || kind == Kind::Scores || kind == Kind::Context ||
         kind == Kind::Dispatch || kind == Kind::Expert || kind == Kind::Combine || kind == Kind::Convolution;
}

double elements_of(const Tensor& tensor)
{
  double elements = 1;
  for (const auto side : tensor.shape) elements *= static_cast<double>(side);
  return elements;
}

bool is_source(OperatorKind kind)
{
  return kind == OperatorKind::Data || kind == OperatorKind::Parameter || kind == OperatorKind::Positions ||
         kind == OperatorKind::CausalMask;
}

bool OperatorGraph::has_gradient(std::size_t tensor) const
{
  const Operator& producer = operators[tensors[tensor].producer];
  if (producer.kind == OperatorKind::Gating) return tensor == producer.outputs[1];
  return producer.kind == OperatorKind::Parameter || !is_source(producer.kind);
}

std::vector<std::vector<std::size_t>> OperatorGraph::readers() const
{
  std::vector<std::vector<std::size_t>> readers(tensors.size());
  for (std::size_t i = 0; i < operators.size(); ++i) {
    for (const auto input : operators[i].inputs) {
      if (readers[input].empty() || readers[input].back() != i) readers[input].push_back(i);
    }
  }
  return readers;
}

std::uint64_t OperatorGraph::parameters() const
{
  double elements = 0;  // below 2^53
  for (const auto& node : operators) {
    if (node.kind == OperatorKind::Parameter) elements += elements_of(tensors[node.outputs[0]]);
  }
  return static_cast<std::uint64_t>(elements);
}

std::uint64_t capacity_of(const MoeSizes& sizes)
{
  // Slots are few, so that a whole number of them survives the rounding of the factor.
  constexpr double tolerance = 1e-9;
  constexpr double least_of_group = 4;
  const Routing& routing = sizes.routing;
  const bool is_of_sample = routing == Routing{};
  const std::uint64_t tokens =
      is_of_sample && sizes.trunk == Trunk::Vit ? patches_of(sizes) : routing.capacity_samples * sizes.sequence;
  const double factor = routing.by_index ? 1 : sizes.capacity_factor;
  const double slots = factor * static_cast<double>(sizes.top_k * tokens) / static_cast<double>(sizes.experts);
  const bool rounds_up = sizes.rounds_up || !is_of_sample;
  const double whole = rounds_up ? std::ceil(slots - tolerance) : std::floor(slots + tolerance);
  return static_cast<std::uint64_t>(is_of_sample || routing.by_index ? whole : std::max(least_of_group, whole));
}

std::size_t layers_of(const MoeSizes& sizes)
{
  return sizes.layers + 2;
}

}  // namespace isobar::spmd
