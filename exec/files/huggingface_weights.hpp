#pragma once

#include "core/model/workload.hpp"
#include "exec/files/tensor_source.hpp"
#include "exec/files/weight_files.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

/// Maps weights of Hugging Face models (transformers' BertForSequenceClassification, GPT2LMHeadModel, LlamaForCausalLM,
/// MistralForCausalLM, and decoders of exec/files/huggingface_decoders.hpp) to the parameters of Isobar's layers. Works
/// on bytes, without LibTorch.
namespace isobar::exec {

/// A parameter of one of our layers, and the tensor that holds it in a Hugging Face model.
struct WeightSource {
  std::string ours;                  ///< name within the layer, as in LayerModule::parameter_names(): "query.weight"
  std::vector<std::uint64_t> shape;  ///< our shape
  /// Possible names: first the one that transformers writes, then those of old files, or of the embedding that a head
  /// begins as. Each may lack its prefix ("bert.", "transformer.", "model.").
  std::vector<std::string> theirs;
  /// Instead of `theirs`: names of tensors that make ours one below the other, such as the matrices of experts.
  std::vector<std::string> stacked = {};
  bool transposed = false;  ///< theirs is [in, out], as in GPT-2's Conv1D
  bool is_new = false;      ///< belongs to a task's head, which keeps its initial values where the files lack it
};

/// The sources of all parameters of layer `layer`, in the layer's order.
/// @throws InputError when the workload's model is not bert, gpt, llama, or a decoder whose layers one of transformers'
/// computes.
std::vector<WeightSource> weight_sources(const Workload& workload, std::size_t layer);

/// The sources of the tensors that make a parameter: itself, or one for each of `stacked`, in their order.
std::vector<WeightSource> pieces_of(const WeightSource& source);

/// The first of `source.theirs`, with or without prefix, that exists in `weights`; "" when none does.
std::string name_in(const TensorSource& weights, const WeightSource& source);

/// Reads a parameter as float32 in our shape, from F32, F16, BF16 or F64. Returns false and leaves `into` unchanged
/// when the tensor is missing and `source.is_new`.
/// @throws InputError naming the tensor when it is missing otherwise, or has another shape or type.
bool read_weight(const TensorSource& weights, const WeightSource& source, std::span<float> into);

/// Checks, before any tensor is loaded, that the weights belong to the workload's model:
/// - every parameter exists, with its shape and a readable type;
/// - no other tensor exists, except buffers that transformers writes and BERT's pre-training heads;
/// - a `config.json` next to them agrees on what shapes do not show: heads, positions, epsilon, activation, a window of
///   attention that is not shorter than the sequence, and whether head and embedding are tied.
/// @throws InputError naming what differs.
void check_weights(const Workload& workload, const Weights& weights);

}  // namespace isobar::exec
