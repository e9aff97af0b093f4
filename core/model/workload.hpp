#pragma once

#include "core/model/dtype.hpp"
#include "core/model/framework.hpp"
#include "core/model/model_sizes.hpp"
#include "core/model/product_recipe.hpp"
#include "core/model/sharding.hpp"
#include "core/model/training.hpp"
#include "core/spmd/device_rates.hpp"
#include "core/text/document.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar {

/// The optimizers that an update can use.
enum class Optimizer { Sgd, Momentum, Adam, AdamW };

/// What a parameter needs on its device, in bytes.
struct ParameterBytes {
  double parameter = 0;
  double gradient = 0;
  double optimizer = 0;  ///< the optimizer's state, with the float32 master copy where there is one
  /// Of a parameter that replicas divide, while it is there for a pass; none: what the replica lacks of `parameter`.
  std::optional<double> gathered = {};
  double update = 0;  ///< more, from the first update of a device until the last one

  /// What it needs between steps.
  double all() const { return parameter + gradient + optimizer; }
};

/// float32: 4 + 4 + (sgd 0, momentum 4, adam and adamw 8). bf16 and fp16: 2 + 2 + a float32 master copy of 4 and the
/// same state in float32; for adam 16 in total (Rajbhandari et al., ZeRO, 2020, section 3.1).
ParameterBytes parameter_bytes(DType dtype, Optimizer optimizer);

/// How the memory of a stage is counted.
enum class MemoryModel {
  Training,  ///< parameters, gradients, optimizer state, activations x micro-batches in flight, buffers
  Sky,       ///< Sky Computing's published estimator per unit; ignores schedule and micro-batches
  System     ///< that of a plan's training system (core/compute/as_trained.hpp); no file names it
};

std::string_view name_of(Optimizer optimizer);
std::string_view name_of(MemoryModel model);
std::optional<Optimizer> optimizer_from_name(std::string_view name);
std::optional<MemoryModel> memory_model_from_name(std::string_view name);
std::vector<std::string> optimizer_names();
std::vector<std::string> memory_model_names();

/// How long layers take on devices.
enum class ComputeModel {
  Rate,      ///< their FLOPs over the device's rate
  Operators  ///< as their operators do on the device's type, by measured constants (core/compute)
};
std::string_view name_of(ComputeModel model);
std::optional<ComputeModel> compute_model_from_name(std::string_view name);
std::vector<std::string> compute_model_names();

/// A product of a layer with a matrix of parameters: of each token, `inputs` numbers become `outputs`.
struct MatrixProduct {
  std::uint64_t inputs = 0;
  std::uint64_t outputs = 0;
};

/// How several devices compute a layer together: each takes some of its units, with the parameters that belong to
/// them, and reads the whole input. What it computes is an addend of the output, and of the input's gradient, and an
/// AllReduce of each gives the sums to all of them (Shoeybi et al., Megatron-LM, 2019, section 3).
struct Split {
  std::string name;              ///< "heads", "columns", "vocabulary"
  std::uint64_t units = 1;       ///< heads, …; all work and `parameters` belong to them in equal parts
  std::uint64_t parameters = 0;  ///< the part of the layer's that is divided; each device has all others
  Bytes activations = {};        ///< the part of the layer's that is divided; each device keeps all others
  Bytes workspace = {};          ///< likewise
  /// What each device gathers from every other instead of the sum of the outputs: of a head, which divides the
  /// vocabulary, what the loss needs to know of its part.
  std::optional<Bytes> gathered = {};
  /// The part of the bytes that sums and gathers of the layer exchange. Less than 1 where measured passes, which have
  /// them in their times, show that they are faster than the platform says.
  double exchanged_fraction = 1;
  // For devices in a grid (core/plan/shard_grid.hpp), which divide everything:
  std::vector<MatrixProduct> products = {};  ///< one after another; none of a layer that looks up its outputs
  std::uint64_t norm_sums = 0;               ///< numbers of each token that the layer's norm sums up over all inputs
};

/// What a micro-batch takes in a layer, or in one of several equal shards of it, on a device.
struct ShardTimes {
  Seconds forward;
  Seconds backward;
  Seconds backward_weight;  ///< of `backward`
};

/// What a layer takes on a device: a micro-batch in it, and its update.
struct LayerTimes : ShardTimes {
  Seconds update;
  /// Of one of N equal shards, by N, where that is known; others take their part of the layer's times.
  std::map<std::size_t, ShardTimes> of_shards = {};

  /// Without times of shards.
  LayerTimes& operator+=(const LayerTimes& more);
};

/// Networks of a layer of which each token passes through a few, as its router says. Work and sizes are for one
/// micro-batch whose tokens come to all of them evenly.
struct Experts {
  std::uint64_t count = 1;       ///< routed ones of all devices; a shared one belongs to the rest of the layer
  std::uint64_t per_token = 1;   ///< through how many of them a token passes
  std::uint64_t parameters = 0;  ///< of all that the device has, among the layer's; of a split, among what it divides
  Flops forward;                 ///< of the layer's, likewise all following
  Flops backward;
  Flops backward_weight;
  Bytes activations;
  Bytes workspace = {};
  /// What comes to them if they are elsewhere: all tokens' hidden states, once for each expert of a token. As much
  /// comes back.
  Bytes dispatched;
  double imbalance = 1;  ///< where they are divided: the most tokens that come to those of a device, over the mean
  /// The part of `dispatched` that takes as long as what is sent: less where software sends a token to each node once.
  double exchanged_fraction = 1;
};

/// The smallest piece of a model that can be placed. Work and sizes are for one micro-batch.
struct Layer {
  std::string name;
  Flops forward;
  Flops backward;
  Flops backward_weight;        ///< of `backward`: the gradients of parameters, which a BackwardWeight computes
  std::optional<Flops> update;  ///< if measured; otherwise parameters x update_flops_per_parameter
  std::uint64_t parameters = 0;
  Bytes activations;                ///< kept from forward until backward, in the workload's dtype
  Bytes output;                     ///< what each layer that reads this one receives
  Bytes gradient;                   ///< what comes back for `output`
  Bytes sky_memory;                 ///< by Sky's estimator; 0 if the workload does not use it
  std::vector<std::size_t> inputs;  ///< layers that this one reads, all before it; empty: it reads the data
  std::optional<Split> split;       ///< none: one device computes it
  /// An earlier layer whose matrix this one uses, too (a tied head). The matrix is among the parameters of that layer,
  /// and also of this one if it has a copy.
  std::optional<std::size_t> tied_to = {};
  std::uint64_t tied_parameters = 0;  ///< of that matrix; a split divides them
  /// Whether this layer has a copy of it, since its devices do not have that layer (with_tied_copies).
  bool has_tied_copy = false;
  std::optional<Experts> experts = {};
  /// Memory beyond `activations` and gradients of inputs and outputs, while one of its passes runs: by formula or
  /// measured, and recomputed activations.
  Bytes workspace = {};
};

struct Workload;

/// Gives a workload the times that its layers take on each type of devices, and their memory.
class LayerPrices {
 public:
  LayerPrices() = default;
  LayerPrices(const LayerPrices&) = delete;
  LayerPrices& operator=(const LayerPrices&) = delete;
  virtual ~LayerPrices() = default;
  /// With the recomputation that the workload asks for. May be called again.
  virtual void apply(Workload& workload) const = 0;
};

/// A model as a graph of layers, each listed after its inputs, and how it is trained.
struct Workload {
  std::string name;
  std::vector<Layer> layers;
  std::uint64_t micro_batch = 1;  ///< samples of one forward pass
  std::uint64_t sequence = 1;     ///< tokens per sample; 1 for models without sequences
  /// Into how many parts sequences are divided: layers are then those of a part (with_context). No file names it.
  ContextParallelism context = {};
  /// Into how many parts the experts of each layer are divided: layers are then those of a device that has a part
  /// (with_experts). No file names it.
  ExpertParallelism experts = {};
  ExpertImbalance expert_imbalance = {};  ///< counts where experts are divided
  DType dtype = DType::Float32;
  bool has_tf32_products = false;              ///< matrix products of float32 numbers round them to TF32
  ProductRecipe recipe = ProductRecipe::None;  ///< of the products of linears; counts with ComputeModel::Operators
  ComputeModel compute = ComputeModel::Rate;
  std::string framework;  ///< the software that trains, whose constants ComputeModel::Operators takes; "": none named
  std::optional<Framework> changed_framework = {};  ///< its flags, where they are not those of the named one
  Optimizer optimizer = Optimizer::Sgd;
  MemoryModel memory_model = MemoryModel::Training;
  Training training;
  ModelSizes model;
  bool ties_apart = false;  ///< the model's head shares the embedding's matrix; here each has its own
  /// What the model has that Isobar's layers compute differently at the same cost. `isobar run` refuses it.
  std::vector<std::string> differences = {};
  Bytes input;  ///< data of one micro-batch
  /// Layers that recompute their activations in the backward pass (activation checkpointing), ascending; see
  /// with_recomputation.
  std::vector<std::size_t> recompute;
  /// By block of a gpt or llama, the operators that run again in the backward pass, where not all of them do; empty:
  /// none. With ComputeModel::Operators, whose times and memory count them.
  std::vector<BlockOperators> recompute_operators = {};
  /// Each device whose stages live on it has it once: the largest of a layer, measured or recomputed. Under
  /// MemoryModel::System the largest of the device's own layers comes in addition.
  Bytes workspace;
  /// What each layer takes, by type of devices where that is known; elsewhere its FLOPs over the device's speed
  /// (core/costs/layer_times.hpp).
  std::map<std::string, std::vector<LayerTimes>> times = {};
  /// What training software holds of a parameter; none: by dtype and optimizer.
  std::optional<ParameterBytes> state = {};
  /// How fast devices compute operators, by Device::type; others by FLOPs alone. Of layers that are operators.
  std::map<std::string, spmd::DeviceRates> operator_rates = {};
  /// Sets `times` of ComputeModel::Operators; null: FLOPs count. Other micro-batches and recomputation keep it.
  std::shared_ptr<const LayerPrices> prices = {};
};

/// The flags of the training software of a workload, which live as long as it.
/// @throws InputError if it names none, or one that is unknown.
const Framework& framework_of(const Workload& workload);

/// Samples of a micro-batch; of one that is a part of each of its sequences, that part of them.
double samples_of_microbatch(const Workload& workload);

/// True if the stages all-reduce statistics of their gradients before the update: the norm is clipped, or the loss is
/// scaled (fp16).
bool needs_gradient_sync(const Workload& workload);
/// Size of that all-reduce per stage: the sum of squares and the number of non-finite gradients, as doubles.
inline constexpr Bytes gradient_sync_size{16};

/// Reads a workload file (docs/formats/workload.md): a generator and its sizes, or a list of layers.
/// @throws InputError naming file, line and key of every fault.
Workload read_workload(const std::filesystem::path& file);
/// Parses a workload file; `name` stands for the file in messages.
Workload workload_from_text(const std::string& text, const std::string& name);

/// Members that replace or extend those of a workload file, such as those of one run of a sweep.
struct WorkloadOverrides {
  std::string file;  ///< the file that holds them
  std::string path;  ///< precedes their keys in messages, such as "workload."
  int line = 0;      ///< of the workload in that file
  std::vector<DocumentNode::Member> members;
};
/// Parses a workload file with overrides. A fault that they cause names their file and, if known, their line.
/// @throws InputError also if the workload file is wrong without them.
Workload workload_from_text(const std::string& text, const std::string& name, const WorkloadOverrides& overrides);

/// Values that replace or add keys of a workload file, by key. Each is the text of a YAML scalar or list, as option
/// --set takes it.
using WorkloadSettings = std::map<std::string, std::string>;
/// Parses a workload file with settings. A fault that they cause begins with `place`: the option, or the key of a plan.
/// @throws InputError also if the workload file is wrong without them.
Workload workload_from_text(const std::string& text, const std::string& name, const WorkloadSettings& settings,
                            const std::string& place = "--set");
/// The fingerprint of a workload file with settings: of its text, followed for each setting, in the order of the keys,
/// by a zero byte and KEY=VALUE.
std::string workload_fingerprint(const std::string& text, const WorkloadSettings& settings);

/// The layers as JSON (schema isobar-workload/1, docs/formats/workload.md): what an external allocator reads.
std::string workload_to_json(const Workload& workload);

/// The workload in which `layers` (ascending) recompute their activations in the backward pass (activation
/// checkpointing).
///
/// Each of them keeps only its inputs, if these are smaller than its activations, and its backward work grows by its
/// forward work, outside of `backward_weight`. The result can be used like any other workload. Requires memory_model
/// training and a workload without recomputation. O(layers + edges).
/// Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016.
Workload with_recomputation(const Workload& workload, const std::vector<std::size_t>& layers);
/// The layers that recompute where all do, ascending: with ComputeModel::Operators all but the first and the last,
/// since training software recomputes blocks.
std::vector<std::size_t> all_recomputed(const Workload& workload);
/// All but the first and the last, ascending.
std::vector<std::size_t> inner_layers(const Workload& workload);

/// The workload that the same generator makes with `micro_batch` samples (1 to largest_micro_batch) in a micro-batch,
/// with the same recomputation. Not for listed layers, and not for measured layers, whose times would be lost.
Workload with_micro_batch(const Workload& workload, std::uint64_t micro_batch);

/// Workload::state, or what its dtype and optimizer need.
ParameterBytes parameter_bytes(const Workload& workload);
/// Its sum.
double bytes_per_parameter(const Workload& workload);

/// The part of a layer's backward work that computes the gradients of parameters, if it is not known: half, as of a
/// matrix product with parameters, or none without parameters.
Flops default_backward_weight(const Layer& layer);

/// Work of the optimizer's update of a layer.
Flops update_work(const Workload& workload, const Layer& layer);

/// Workload::times of a type of devices; null: they are not known. O(log types).
const std::vector<LayerTimes>* known_times(const Workload& workload, const std::string& type);
/// The most by which a pass of a layer gains on one device over another beyond their usual ratio; bounds rely on it.
inline constexpr double most_gain_of_type = 1e6;
/// Gives devices of a type times of their own. A pass that takes less, such as none, takes that of `usual` /
/// most_gain_of_type.
void set_times(Workload& workload, const std::string& type, std::vector<LayerTimes> own,
               const std::vector<LayerTimes>& usual);

/// Floating-point operations of the optimizer's update per parameter: sgd 2, momentum 4, adam 12, adamw 14.
double update_flops_per_parameter(Optimizer optimizer);

}  // namespace isobar
