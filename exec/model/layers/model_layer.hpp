#pragma once

#include "core/spmd/operator_graph.hpp"
#include "exec/model/layer_module.hpp"
#include "exec/model/sequence_part.hpp"
#include "exec/spmd/tensor_block.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// Building blocks of all models' layers. Internal to exec/model: layers/, layer_module.cpp, batch.cpp
/// and block_attention.cpp.
namespace isobar::exec {

/// What make_layer needs to make a layer.
struct LayerSetup {
  const Workload& workload;
  std::size_t layer;
  std::uint64_t seed;
  const std::string& device;
  UnitRange units = {};
  const LayerModule* tied = nullptr;  ///< whose first parameter the layer uses, too; null: of no module that is known
  std::size_t first_parameter = 0;    ///< its number in a layer that holds this one
  UnitRange experts = {};             ///< the part of its experts
  SequencePart sequence = {};         ///< the part of each sequence
};

std::unique_ptr<LayerModule> make_layer(const LayerSetup& setup, const BertSizes& sizes);
std::unique_ptr<LayerModule> make_layer(const LayerSetup& setup, const GptSizes& sizes);
std::unique_ptr<LayerModule> make_layer(const LayerSetup& setup, const LlamaSizes& sizes);
std::unique_ptr<LayerModule> make_layer(const LayerSetup& setup, const ResnetSizes& sizes);
std::unique_ptr<LayerModule> make_layer(const LayerSetup& setup, const spmd::MoeSizes& sizes);
std::unique_ptr<LayerModule> make_layer(const LayerSetup& setup, const DecoderSizes& sizes);

/// How the parameters of a mixture of experts begin: weights are drawn from N(0, 0.02²), biases are 0 and the weights
/// of norms 1, as in BERT and GPT-2.
enum class FirstValues : std::uint8_t { Drawn, Zeros, Ones };
FirstValues first_values_of(const spmd::OperatorGraph& graph, const spmd::Operator& parameter);

/// A layer that consists of two, and has the parameters of both.
class JoinedLayers : public LayerModule {
 public:
  const Tensors& parameters() const final { return parameters_; }
  const std::vector<std::string>& parameter_names() const final { return names_; }
  const std::vector<TensorPart>& parameter_parts() const final { return parts_; }
  std::vector<TensorPart> parts_of(const UnitRange& units) const final;

 protected:
  /// The derived class keeps both.
  JoinedLayers(const LayerModule& first, const LayerModule& second);

 private:
  const LayerModule& first_;
  const LayerModule& second_;
  Tensors parameters_;
  std::vector<std::string> names_;
  std::vector<TensorPart> parts_;
};

/// @throws InputError: listed layers give their cost, not their computation.
[[noreturn]] void refuse_without_modules(const Workload& workload);

at::Tensor cast(const at::Tensor& tensor, DType dtype);

/// Converts [batch, sequence, heads · width] to [batch, heads, sequence, width], and back.
at::Tensor split_heads(const at::Tensor& tokens, std::uint64_t heads);
at::Tensor join_heads(const at::Tensor& heads);

/// Causal mask [sequence, sequence], added to the scores so that no token sees a later one.
at::Tensor causal_mask(const at::Tensor& query);
/// Repeats keys or values that several query heads share, once for each of the `heads`.
at::Tensor for_each_head(const at::Tensor& shared, std::uint64_t heads);
/// Attention by a fused kernel, which does not store the scores; from and to [batch, heads, sequence, width]. `mask`,
/// if any, is added to the scores. `scale` is of the scores; none: one over the root of the width.
/// @throws EnvironmentError when LibTorch has no fused kernel for them and would fall back to one that stores the
/// scores.
at::Tensor attend_fused(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                        const std::optional<at::Tensor>& mask, std::optional<double> scale = {});
/// The same with a causal mask.
at::Tensor attend_fused_causally(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                                 std::optional<double> scale = {});

/// @throws EnvironmentError when LibTorch has no fused kernel for them.
void require_fused_kernel(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                          const std::optional<at::Tensor>& mask, bool causal, std::optional<double> scale);

/// What some models do with the scores of attention.
struct ScoreRules {
  std::optional<double> scale = {};   ///< none: one over the root of the width
  double cap = 0;                     ///< scores are cap · tanh(score / cap); 0: as they are
  const at::Tensor* sinks = nullptr;  ///< of each head, a score that takes part in its softmax alone; null: none
  UnitRange heads = {};               ///< which of the layer's or its shard's heads these are
};

/// What a shard has of a parameter: all, the rows of its units, in each of several blocks of rows, or their columns. A
/// device that has some of the experts has this of the matrices of theirs, which lie one below the other.
struct Cut {
  enum class Kind { None, Rows, Columns };
  Kind kind = Kind::None;
  std::uint64_t blocks = 1;
  bool is_of_experts = false;
};
inline constexpr Cut by_rows = {Cut::Kind::Rows};
inline constexpr Cut by_columns = {Cut::Kind::Columns};

/// Base of all models' layers: parameters as plain tensors by index, and the operations on them.
class ModelLayer : public LayerModule {
 public:
  ~ModelLayer() override;
  const Tensors& parameters() const final { return parameters_; }
  const std::vector<std::string>& parameter_names() const final { return names_; }
  const std::vector<TensorPart>& parameter_parts() const final { return parts_; }
  const TensorPart* part_of_experts(std::size_t parameter) const final;
  std::vector<TensorPart> parts_of(const UnitRange& units) const final;

 protected:
  /// Indices of parameters.
  struct Linear {
    std::size_t weight;
    std::optional<std::size_t> bias;
    bool makes_addends = false;  ///< then only the first shard adds the bias
  };
  struct LayerNorm {
    std::size_t weight;
    std::size_t bias;
    double epsilon;
  };

  explicit ModelLayer(const LayerSetup& setup);

  std::size_t add_constant(const std::string& name, const std::vector<std::uint64_t>& shape, float value, Cut cut = {});
  static constexpr double usual_deviation = 0.02;  ///< of BERT and GPT-2
  /// Draws from a normal distribution around 0.
  std::size_t add_normal(const std::string& name, const std::vector<std::uint64_t>& shape,
                         double deviation = usual_deviation, Cut cut = {});
  std::size_t add_with(FirstValues values, const std::string& name, const std::vector<std::uint64_t>& shape);
  Linear add_linear(const std::string& name, std::uint64_t from, std::uint64_t to, Cut cut = {});
  Linear add_linear_without_bias(const std::string& name, std::uint64_t from, std::uint64_t to, Cut cut = {});
  /// Begins with the values of another layer's parameter.
  std::size_t add_copy(const std::string& name, const at::Tensor& whole, Cut cut) { return add(name, whole, cut); }
  LayerNorm add_layer_norm(const std::string& name, std::uint64_t width, double epsilon);

  /// Keeps only a slice of a parameter: some indices of one dimension.
  void keep(std::size_t index, const TensorBlock& slice);

  const at::Tensor& parameter(std::size_t index) const;
  /// The part of `whole` that belongs to the shard's units.
  std::uint64_t own_of(std::uint64_t whole) const { return units_.part_of(whole); }
  /// The sum of a residual connection and an addend. The first shard adds the former.
  at::Tensor add_residual(const at::Tensor& residual, const at::Tensor& addend) const;
  bool is_first_shard() const { return units_.begin == 0; }
  const UnitRange& units() const { return units_; }
  /// The part of the experts.
  const UnitRange& experts_of_device() const { return expert_range_; }
  /// Rows of an embedding table, by index; float32. Zeros for those of other shards.
  at::Tensor look_up(std::size_t table, const at::Tensor& indices) const;
  at::Tensor apply(const Linear& linear, const at::Tensor& input) const;
  /// Normalises in float32, with or without autocast.
  at::Tensor apply(const LayerNorm& norm, const at::Tensor& input) const;
  const SequencePart& sequence_part() const { return sequence_; }
  /// The places in their sequence of the tokens of a part, int64 on the device of `like`.
  at::Tensor positions(std::int64_t tokens, const at::Tensor& like) const;
  /// Applies dropout to [samples, tokens, …]: zeroes a fraction of the elements and scales the others up. `which`
  /// numbers a layer's dropouts. What a part of a sequence keeps is its part of what is kept of the whole.
  at::Tensor drop_out(const at::Tensor& input, const RandomKey& key, std::uint64_t which) const;
  /// The same for [batch, heads, …] of whole sequences and some of the shard's heads.
  at::Tensor drop_out_of_heads(const at::Tensor& input, const UnitRange& heads, const RandomKey& key,
                               std::uint64_t which) const;
  /// Which elements of that shape drop_out_of_heads keeps; undefined if it drops none.
  at::Tensor kept_of_heads(std::vector<std::int64_t> shape, const UnitRange& heads, const RandomKey& key,
                           std::uint64_t which) const;
  /// Attention by its formula, with the layer's dropout number 0 on the probabilities. `mask` is added to the scores.
  /// The heads are the shard's.
  at::Tensor attend(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values, const at::Tensor& mask,
                    const RandomKey& key, const ScoreRules& rules = {}) const;
  /// Casts to the workload's dtype.
  at::Tensor in_dtype(const at::Tensor& tensor) const;
  double dropout() const { return dropout_; }

 private:
  std::size_t add(const std::string& name, const at::Tensor& whole, Cut cut);
  /// Which elements of a tensor of that shape a dropout keeps.
  at::Tensor kept(const std::vector<std::int64_t>& shape, const RandomKey& key, std::uint64_t which) const;
  bool drops(const RandomKey& key) const { return dropout_ > 0 && key.drops; }

  Tensors parameters_;
  std::vector<std::string> names_;
  std::vector<TensorPart> parts_;
  std::vector<std::optional<TensorPart>> of_experts_;  // part_of_experts
  std::vector<Cut> cuts_;                              // of the parameters
  UnitRange units_;
  UnitRange expert_range_;
  SequencePart sequence_;
  std::size_t layer_;
  std::size_t first_parameter_;
  std::uint64_t seed_;
  std::string device_;
  DType dtype_;
  double dropout_;
};

}  // namespace isobar::exec
