#include "core/spmd/operator_graph.hpp"

#include "core/names.hpp"

#include <cmath>

namespace isobar::spmd {

namespace {

constexpr NameTable<OperatorKind, 32> names = {{{OperatorKind::Data, "data"},
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
  return name_in(names, kind);
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
  if (producer.kind == OperatorKind::Gating) return tensor != producer.outputs.front();
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
  const std::uint64_t tokens = sizes.trunk == Trunk::Vit ? patches_of(sizes) : sizes.sequence;
  const double slots =
      sizes.capacity_factor * static_cast<double>(sizes.top_k * tokens) / static_cast<double>(sizes.experts);
  return static_cast<std::uint64_t>(sizes.rounds_up ? std::ceil(slots - tolerance) : std::floor(slots + tolerance));
}

std::size_t layers_of(const MoeSizes& sizes)
{
  return sizes.layers + 2;
}

}  // namespace isobar::spmd
