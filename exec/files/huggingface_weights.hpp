#pragma once

#include "core/model/workload.hpp"
#include "exec/files/tensor_source.hpp"
#include "exec/files/weight_files.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

/// Weights of Hugging Face models (transformers' BertForSequenceClassification, GPT2LMHeadModel, LlamaForCausalLM) as
/// the parameters of our layers, and back. On bytes; no LibTorch.
namespace isobar::exec {

/// One parameter of a layer of ours, and the tensor it is in a Hugging Face model.
struct WeightSource {
  std::string ours;                  ///< within the layer, as LayerModule::parameter_names() has it: "query.weight"
  std::vector<std::uint64_t> shape;  ///< ours
  /// Names, the one that transformers writes first: then those of old files, or the embedding that a head is tied to.
  /// Each may lack its prefix ("bert.", "transformer.", "model.").
  std::vector<std::string> theirs;
  bool transposed = false;  ///< theirs is [in, out], as GPT-2's Conv1D has it
  bool is_new = false;      ///< of a task's head: where it is not there, what it was made with stays
};

/// Of all parameters of layer `layer`, in their order.
/// @throws InputError when the workload's model is no bert, gpt or llama.
std::vector<WeightSource> weight_sources(const Workload& workload, std::size_t layer);

/// The name among `source.theirs`, with or without prefix, that `weights` has; "" when it has none.
std::string name_in(const TensorSource& weights, const WeightSource& source);

/// Reads a parameter as float32 in our shape, from F32, F16, BF16 or F64. False when there is none and it `is_new`;
/// `into` is left alone then.
/// @throws InputError naming the tensor when it is missing otherwise, or has another shape or type.
bool read_weight(const TensorSource& weights, const WeightSource& source, std::span<float> into);

/// That these are the weights of the workload's model, before any is read: every parameter is there, in its shape and a
/// type that is read; no other tensor is, but buffers that transformers writes and BERT's heads of pre-training; and a
/// `config.json` beside them says nothing else of what shapes do not show: heads, positions, epsilon, activation,
/// whether head and embedding are one matrix.
/// @throws InputError naming what differs.
void check_weights(const Workload& workload, const Weights& weights);

}  // namespace isobar::exec
