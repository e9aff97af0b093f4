#pragma once

#include "core/base/document.hpp"
#include "core/model/dtype.hpp"
#include "core/model/model_sizes.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar {

enum class Optimizer { Sgd, Momentum, Adam, AdamW };

/// How the memory of a stage is counted.
enum class MemoryModel {
  Training,  ///< parameters, gradients, optimizer state, activations x micro-batches in flight, buffers
  Sky        ///< Sky Computing's published estimator per unit; knows neither schedule nor micro-batches
};

std::string_view name_of(Optimizer optimizer);
std::string_view name_of(MemoryModel model);
std::optional<Optimizer> optimizer_from_name(std::string_view name);
std::optional<MemoryModel> memory_model_from_name(std::string_view name);
std::vector<std::string> optimizer_names();
std::vector<std::string> memory_model_names();

/// The smallest piece of a model that can be placed. Times and sizes are of one micro-batch.
struct Layer {
  std::string name;
  Flops forward;
  Flops backward;
  std::optional<Flops> update;  ///< measured; otherwise parameters x update_flops_per_parameter
  std::uint64_t parameters = 0;
  Bytes activations;                ///< kept from forward until backward, in the workload's dtype
  Bytes output;                     ///< what each layer that reads this one receives
  Bytes gradient;                   ///< what comes back for `output`
  Bytes sky_memory;                 ///< by Sky's estimator; 0 where the workload does not use it
  std::vector<std::size_t> inputs;  ///< layers that this one reads, all before it; empty: it reads the data
};

/// How a model learns. Placement does not depend on it, the executor does.
struct Training {
  double learning_rate = 0.01;
  double weight_decay = 0;          ///< adamw: apart from the gradient; the others: added to it
  double dropout = 0;               ///< of bert and gpt: the probability, below 1
  std::optional<double> clip_norm;  ///< largest norm of all gradients together, all stages'; none: not clipped
};

/// A model as a graph of layers, in an order in which each layer comes after its inputs, and how it is trained.
struct Workload {
  std::string name;
  std::vector<Layer> layers;
  std::uint64_t micro_batch = 1;  ///< samples of one forward pass
  std::uint64_t sequence = 1;     ///< tokens of a sample; 1 for models without sequences
  DType dtype = DType::Float32;
  Optimizer optimizer = Optimizer::Sgd;
  MemoryModel memory_model = MemoryModel::Training;
  Training training;
  ModelSizes model;
  Bytes input;  ///< data of one micro-batch
  /// Layers that compute their activations anew in the backward pass, ascending (see with_recomputation).
  std::vector<std::size_t> recompute;
  Bytes recompute_buffer;  ///< for the activations of one of them at a time, beyond what it keeps; every stage has it
};

/// True when all stages add up what they know of their gradients before the update: their norm is clipped, or fp16's
/// loss is scaled.
bool needs_gradient_sync(const Workload& workload);
/// What each stage brings then: the sum of squares and the number of gradients that are not finite, as doubles.
inline constexpr Bytes agreement_size{16};

/// Reads a workload file (docs/formats.md): a generator and its sizes, or a list of layers.
/// @throws InputError naming file, line and key of every fault.
Workload read_workload(const std::filesystem::path& file);
/// The same from text; `name` stands for the file in messages.
Workload workload_from_text(const std::string& text, const std::string& name);

/// Members that take the place of a workload file's, or are added to them, such as one run's of a sweep.
struct WorkloadOverrides {
  std::string file;  ///< where they stand
  std::string path;  ///< what stands before their keys in messages, such as "workload."
  int line = 0;      ///< of the workload there
  std::vector<DocumentNode::Member> members;
};
/// The workload with these members. A fault that they bring in names their file, and their line where it knows one.
/// @throws InputError also when the file is wrong without them.
Workload workload_from_text(const std::string& text, const std::string& name, const WorkloadOverrides& overrides);

/// The layers as JSON (schema isobar-workload/1, docs/formats.md): what an external allocator reads.
std::string workload_to_json(const Workload& workload);

/// The workload where `layers` (ascending) compute their activations anew in the backward pass: each keeps what it
/// reads alone, if that is less, and its backward work grows by its forward work. Whoever asks for work and memory
/// takes the result as any other workload. For memory_model training, and once. O(layers + edges).
/// Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016.
Workload with_recomputation(const Workload& workload, const std::vector<std::size_t>& layers);

/// The workload that the same generator makes with this many samples in a micro-batch, with the same recomputation.
/// Not for listed layers, nor for one whose layers have measured times: those would be lost. 1 to largest_micro_batch.
Workload with_micro_batch(const Workload& workload, std::uint64_t micro_batch);

/// Bytes per parameter that stay on the device between steps: the parameter, its gradient and the optimizer's state.
/// float32: 4 + 4 + (sgd 0, momentum 4, adam and adamw 8). bf16 and fp16: 2 + 2 + a float32 master copy of 4 + the same
/// state in float32, which makes adam's well-known 16 (Rajbhandari et al., ZeRO, 2020, section 3.1).
double bytes_per_parameter(DType dtype, Optimizer optimizer);

/// Work of the optimizer's step on a layer.
Flops update_work(const Workload& workload, const Layer& layer);

/// Floating-point operations of the optimizer's step per parameter: sgd 2, momentum 4, adam 12, adamw 14.
double update_flops_per_parameter(Optimizer optimizer);

}  // namespace isobar
