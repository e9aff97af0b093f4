#pragma once

#include "core/model/workload.hpp"
#include "exec/files/tensor_source.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace isobar::exec {

/// What was written.
struct HuggingFaceModel {
  std::uint64_t parameters = 0;
  std::size_t files = 0;  ///< with weights
};

/// Writes the parameters of a checkpoint (checkpoint_name()) into `folder` as a Hugging Face model: config.json and
/// model.safetensors, or shards with an index where they are more than `max_shard_bytes`. One tensor at a time is in
/// memory. Head and embedding are two matrices, and config.json says so.
/// @throws InputError when the checkpoint is of another model, EnvironmentError when the disk refuses.
HuggingFaceModel export_to_huggingface(const Workload& workload, const TensorSource& checkpoint,
                                       const std::filesystem::path& folder, std::uint64_t max_shard_bytes);

}  // namespace isobar::exec
