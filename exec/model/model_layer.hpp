#pragma once

#include "exec/model/layer_module.hpp"

#include <optional>

/// What the layers of all models are made of. For exec/layers_*.cpp, layer_module.cpp and batch.cpp alone.
namespace isobar::exec {

/// Which layer is to be made, of what, and where.
struct LayerSetup {
  const Workload& workload;
  std::size_t layer;
  std::uint64_t seed;
  const std::string& device;
};

std::unique_ptr<LayerModule> make_layer(const LayerSetup& setup, const BertSizes& sizes);
std::unique_ptr<LayerModule> make_layer(const LayerSetup& setup, const GptSizes& sizes);
std::unique_ptr<LayerModule> make_layer(const LayerSetup& setup, const LlamaSizes& sizes);
std::unique_ptr<LayerModule> make_layer(const LayerSetup& setup, const ResnetSizes& sizes);

/// @throws InputError: listed layers say what they cost, not what they compute.
[[noreturn]] void refuse_listed_layers(const Workload& workload);

at::Tensor cast(const at::Tensor& tensor, DType dtype);

/// From [batch, sequence, heads · width] to [batch, heads, sequence, width], and back.
at::Tensor split_heads(const at::Tensor& tokens, std::uint64_t heads);
at::Tensor join_heads(const at::Tensor& heads);

/// What is added to the scores so that no token sees a later one: [sequence, sequence].
at::Tensor hides_later_tokens(const at::Tensor& query);
/// Keys or values that several query heads share, once for each of `heads`.
at::Tensor for_each_head(const at::Tensor& shared, std::uint64_t heads);
/// Attention by a kernel that keeps no scores, from and to [batch, heads, sequence, width]; `mask`, where there is one,
/// is added to them. @throws EnvironmentError where LibTorch has no such kernel, in whose place it would keep them.
at::Tensor attend_fused(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                        const std::optional<at::Tensor>& mask);
at::Tensor attend_fused_to_earlier(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values);

/// A layer's parameters, as plain tensors by index, and what all models compute with them.
class ModelLayer : public LayerModule {
 public:
  ~ModelLayer() override;
  const Tensors& parameters() const final { return parameters_; }
  const std::vector<std::string>& parameter_names() const final { return names_; }

 protected:
  /// Indices of parameters.
  struct Linear {
    std::size_t weight;
    std::optional<std::size_t> bias;
  };
  struct LayerNorm {
    std::size_t weight;
    std::size_t bias;
    double epsilon;
  };

  explicit ModelLayer(const LayerSetup& setup);

  std::size_t add_constant(const std::string& name, const std::vector<std::uint64_t>& shape, float value);
  /// Normal around 0. 0.02 is what BERT and GPT-2 begin with.
  std::size_t add_normal(const std::string& name, const std::vector<std::uint64_t>& shape, double deviation = 0.02);
  Linear add_linear(const std::string& name, std::uint64_t from, std::uint64_t to);
  Linear add_linear_without_bias(const std::string& name, std::uint64_t from, std::uint64_t to);
  LayerNorm add_layer_norm(const std::string& name, std::uint64_t width, double epsilon);

  const at::Tensor& parameter(std::size_t index) const;
  /// The rows of a table that the indices name; float32.
  at::Tensor look_up(std::size_t table, const at::Tensor& indices) const;
  at::Tensor apply(const Linear& linear, const at::Tensor& input) const;
  /// Normalises in float32, whether autocast is on or not.
  at::Tensor apply(const LayerNorm& norm, const at::Tensor& input) const;
  /// Sets a share of the elements to 0 and scales the others up. `which` tells the dropouts of a layer apart.
  at::Tensor drop_out(const at::Tensor& input, const RandomKey& key, std::uint64_t which) const;
  /// Attention by its formula, with dropout number 0 on its probabilities. `mask` is added to the scores.
  at::Tensor attend(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values, const at::Tensor& mask,
                    const RandomKey& key) const;
  /// Casts to the workload's dtype.
  at::Tensor in_dtype(const at::Tensor& tensor) const;
  double dropout() const { return dropout_; }

 private:
  std::size_t add(const std::string& name, const at::Tensor& values);

  Tensors parameters_;
  std::vector<std::string> names_;
  std::size_t layer_;
  std::uint64_t seed_;
  std::string device_;
  DType dtype_;
  double dropout_;
};

}  // namespace isobar::exec
