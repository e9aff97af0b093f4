#pragma once

#include "core/model/workload.hpp"
#include "exec/files/tensor_source.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace isobar::exec {

/// The size of an exported model.
struct HuggingFaceModel {
  std::uint64_t parameters = 0;
  std::size_t files = 0;  ///< number of files with weights
};

/// Writes the parameters of a checkpoint (checkpoint_name()) into a new `folder` as a Hugging Face model: config.json
/// and model.safetensors, or shards with an index when they exceed `max_shard_bytes`. Holds one tensor at a time in
/// memory, or the experts of one layer. Head and embedding are two matrices (tie_word_embeddings: false), unless the
/// workload ties them.
/// @throws InputError when the checkpoint is for another model, EnvironmentError when a write fails.
HuggingFaceModel export_to_huggingface(const Workload& workload, const TensorSource& checkpoint,
                                       const std::filesystem::path& folder, std::uint64_t max_shard_bytes);

}  // namespace isobar::exec
