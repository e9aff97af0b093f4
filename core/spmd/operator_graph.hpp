#pragma once

#include "core/spmd/form.hpp"
#include "core/spmd/moe_sizes.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace isobar::spmd {

enum class OperatorKind : std::uint8_t {
  // Without inputs.
  Data,
  Parameter,
  Positions,   ///< sinusoids: no parameters, no gradient
  CausalMask,  ///< as a tensor; only in the published graph
  // Those that move numbers.
  Transpose,
  Flatten,       ///< height and width of a convolution's output become tokens
  SplitHeads,    ///< projected q, k, v -> three tensors by heads
  MergeHeads,    ///< heads next to each other
  PrependClass,  ///< the class token before the patches
  TakeClass,     ///< the class token
  // Those by element.
  Scale,
  Mask,  ///< adds the causal mask
  Relu,
  Dropout,
  Add,
  // Those along a dimension.
  Softmax,
  LogSoftmax,
  LayerNorm,
  // Products.
  Linear,
  QkvLinear,  ///< weights [3, heads·width, hidden], so that a split of dimension 1 is by heads
  Scores,     ///< q · k
  Context,    ///< probabilities · v
  Dispatch,   ///< tokens -> slots of the experts
  Expert,     ///< one of the two matrices of all experts
  Combine,    ///< slots -> tokens
  Convolution,
  // All others.
  Attention,  ///< a whole multi-head attention with its projections, as one node of the published graph
  Embedding,
  Gating,  ///< chooses each token's experts and slots
  NllSum,  ///< negative log likelihood
  Sum,
  Output
};

std::string_view name_of(OperatorKind kind);
/// Whether the operator multiplies matrices, or tensors like them.
bool is_product(OperatorKind kind);

/// A tensor between operators, of the whole batch.
struct Tensor {
  std::string name;
  std::vector<std::uint64_t> shape;
  std::size_t producer = 0;  ///< operator
  Bytes size;
};

/// Product of a tensor's shape.
double elements_of(const Tensor& tensor);

/// A node of an operator graph. Work and sizes are for the whole batch on one device.
struct Operator {
  std::string name;
  OperatorKind kind{};
  std::size_t layer = 0;             ///< layer of the workload that it belongs to
  std::vector<std::size_t> inputs;   ///< tensors
  std::vector<std::size_t> outputs;  ///< tensors
  /// The dimensions of inputs and outputs by letter, such as "bsi,oi,o->bso": which of them are the same. Only small
  /// letters may be divided. Empty if it has no inputs.
  std::string dimensions;
  Flops forward;
  Flops backward;
  Flops backward_weight;  ///< of `backward`: gradients of parameters
  /// Bytes kept from forward to backward: inputs of products and norms, outputs of softmax and relu, and 1 byte per
  /// element of a dropout mask. A tensor counts for the first operator that keeps it; parameters do not count.
  Bytes kept;
  std::vector<std::size_t> keeps;  ///< the tensors among these, also where they count for another operator
};

/// Whether an operator has no work and no inputs, so that its outputs exist from the beginning: parameters, data.
bool is_source(OperatorKind kind);

/// The operators of a model, each after those that it reads. A parameter is an operator without inputs and work.
struct OperatorGraph {
  std::vector<Operator> operators;
  std::vector<Tensor> tensors;

  /// Operators that read each tensor, ascending.
  std::vector<std::vector<std::size_t>> readers() const;
  /// Numbers in all parameters.
  std::uint64_t parameters() const;
  bool is_parameter(std::size_t tensor) const
  {
    return operators[tensors[tensor].producer].kind == OperatorKind::Parameter;
  }
  /// Whether backward makes a gradient of a tensor: of all but data, positions, masks, whether a token is in a slot,
  /// and how many tokens an expert has.
  bool has_gradient(std::size_t tensor) const;
};

/// The operators of a mixture-of-experts transformer over `batch` samples, with `element_bytes` for each number.
///
/// Work: two FLOPs per multiply-add of products, nothing else. Backward is twice forward; once for `dispatch`, whose
/// mask has no gradient, and for a product of the data. Layer 0 of the workload is the embedding, the last one the
/// head.
///
/// Slots are for groups of `sizes.routing.capacity_samples` samples, which divide the batch. With
/// `sizes.routing.by_index` tokens are copied to experts and back, which is no product: gating gives each token's
/// experts and their weights, and for each group the number of tokens of each expert, in 8 bytes, which the experts
/// read. They have equally many.
///
/// With `sizes.parity`, the published graph: attention is one node, its projections cost nothing, a product takes three
/// FLOPs per multiply-add, other operators some per element, and backward is always twice forward.
OperatorGraph make_operator_graph(const MoeSizes& sizes, std::uint64_t batch, double element_bytes);

/// Whose tables hold for the operators of a model.
constexpr Rules rules_of(const MoeSizes& sizes)
{
  return sizes.parity ? Rules::Published : Rules::Corrected;
}

/// Layers of the workload: embedding, `sizes.layers` blocks, head.
std::size_t layers_of(const MoeSizes& sizes);

}  // namespace isobar::spmd
