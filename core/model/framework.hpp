#pragma once

#include "core/errors.hpp"
#include "core/model/dtype.hpp"
#include "core/model/sharding.hpp"
#include "core/text/document.hpp"
#include "core/units.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar {

/// Bytes that memory-bound operators move per element, in each pass.
struct BytesPerElement {
  double forward = 0;
  double backward = 0;
};

/// Bytes per parameter that training holds.
struct StateBytes {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;  ///< the optimizer's state, with the float32 master copy where it has one
  double update = 0;     ///< more while the update runs, once all activations are gone

  /// What it holds between steps.
  double all() const { return parameters + gradients + optimizer; }
};

/// Memory that a formula over the model does not give.
struct MemoryConstants {
  StateBytes state16 = {};  ///< of models in 16 bits
  StateBytes state32 = {};  ///< of models in float32
  double logit = 0;         ///< bytes per logit at the peak of the head: logits, a float32 copy, its gradient
  double activations = 1;   ///< allocated bytes per byte of activations that formulas give
  double reserved = 1;      ///< bytes that the allocator holds per allocated byte where there is room
  /// The device keeps a 16-bit gradient of each weight of one block, which fused accumulation does not use.
  bool keeps_block_gradients = false;
  Bytes context = {};  ///< the device reports so much more: context, communication buffers, kernels, workspaces
};

/// The flags of training software: its constants, and its rules of transfers, sums, recomputation and memory. Named
/// ones are those of results/fidelity/systems.yaml, which has the source of each number.
struct Framework {
  std::string name;    ///< "megatron-lm-2021"
  std::string family;  ///< "megatron-lm": the name without its year or version
  // Host: the least time in which it issues the kernels of a block of a transformer, in eager mode.
  Seconds host_forward;
  Seconds host_backward;
  Seconds host_shards;  ///< more for each pass where shards divide the block
  // Memory-bound operators that depend on the software.
  bool has_causal_softmax = false;   ///< one kernel scales, masks and normalizes 16-bit scores of causal attention
  BytesPerElement logit;             ///< of a logit: casts, loss and its gradient
  double product_speed = 1;          ///< products run so much faster than device constants say
  double attention_speed = 1;        ///< fused attention runs so much faster than device constants say
  double norm_speed = 1;             ///< normalization and dropout run so much faster than PyTorch's kernels
  double memory_speed = 1;           ///< what memory bandwidth limits runs so much faster than device constants say
  double fitted_product_speed = 1;   ///< likewise, where the device's constants are fitted to training runs
  double speed_in_training = 1;      ///< of products that were measured alone, the part of their speed in training
  Seconds kernel_start;              ///< between two kernels of a block on the device
  bool stops_recomputation = false;  ///< recomputation of a block ends before its last product, which no gradient needs
  /// Norms, up-projections of compressed queries, keys and values, and activations that recompute drop their outputs,
  /// which those who save them get again; otherwise such outputs are kept.
  bool drops_recomputed_outputs = false;
  double update = 0;     ///< bytes that an update moves per parameter that the device updates
  double gradients = 0;  ///< bytes that zeroing and clipping move per gradient of the device
  bool pads_vocabulary = false;
  // Communication.
  unsigned recomputed_collectives = 0;   ///< collectives among shards that recomputation of a block repeats
  bool hides_shard_sums = false;         ///< all-reduces of inputs' gradients run beside products of weights' gradients
  bool hides_shard_collectives = false;  ///< all collectives among shards run beside the products around them
  bool hides_dispatches = false;         ///< what goes to experts and back, beside the other passes of their layer
  bool dispatches_once_a_node = false;   ///< a token goes once to each node that has experts of it, and on from there
  bool blocking_transfers = false;       ///< computation waits for transfers between stages
  /// A device receives nothing while it computes or sends, as if receiving were its work.
  bool serial_transfers = false;
  Seconds pipeline_host = {};     ///< of the host for each micro-batch in a stage of a pipeline
  bool sliced_transfers = false;  ///< each shard sends its part of an activation; otherwise all of it
  /// Seconds per GB in which a shard that receives a slice makes room for the whole activation before it gathers the
  /// others; 0: in no time, and gathering takes none.
  double rebuild = 0;
  bool overlaps_gradient_sums = false;  ///< without a pipeline, replicas add up gradients beside backward passes
  bool overlaps_in_pipelines = false;   ///< with a pipeline, too
  /// What replicas gather travels beside the passes: parameters for the task after the next one, or those of an update
  /// beside the next step.
  bool overlaps_gathers = true;
  bool sums_each_microbatch = true;  ///< replicas that divide parameters add up the gradients of each micro-batch
  /// Gradients that overlap are added up together from this size on; 0: those of each stage of a plan by themselves.
  Bytes gradient_bucket = {};
  DType gradient_sums = DType::Float32;    ///< the type in which gradients of 16-bit models travel (others in float32)
  DType gathered = DType::Float32;         ///< the type in which divided parameters travel
  Sharding most_divided = Sharding::None;  ///< the most that replicas of its models can divide
  MemoryConstants memory;
  std::string source;  ///< where the constants come from
};

/// What a number may be: in seconds of times, in bytes of sizes.
struct FlagRange {
  double lowest = 0;
  double highest = 0;
};
inline constexpr FlagRange host_times = {0, 1000};
inline constexpr FlagRange factors = {0.001, 1000};
inline constexpr FlagRange moved_bytes = {0, 10'000};  ///< per logit or parameter
inline constexpr FlagRange repeated_collectives = {0, 64};
inline constexpr FlagRange times_per_size = {0, 1000};  ///< s/GB
inline constexpr FlagRange flag_sizes = {0, 1e18};

/// The key of a flag, as files spell it, and the range of those that are numbers.
struct FlagKey {
  std::string_view text;
  FlagRange range = {};
};

/// Calls visit(FlagKey, flag of each of `of`) for the rules that a plan has in its `transfers` and `sync`.
template <typename Visit, typename... Of>
void visit_rules(Visit&& visit, Of&... of)
{
  visit(FlagKey{"overlap_gradient_sums"}, of.overlaps_gradient_sums...);
  visit(FlagKey{"overlap_gradient_sums_in_pipelines"}, of.overlaps_in_pipelines...);
  visit(FlagKey{"gradient_bucket", flag_sizes}, of.gradient_bucket...);
  visit(FlagKey{"blocking_transfers"}, of.blocking_transfers...);
  visit(FlagKey{"sliced_transfers"}, of.sliced_transfers...);
  visit(FlagKey{"gradient_dtype"}, of.gradient_sums...);
  visit(FlagKey{"gather_dtype"}, of.gathered...);
  visit(FlagKey{"sums_each_microbatch"}, of.sums_each_microbatch...);
}

/// Calls visit(FlagKey, flag of each of `of`) for all flags.
template <typename Visit, typename... Of>
void visit_flags(Visit&& visit, Of&... of)
{
  visit(FlagKey{"host_forward", host_times}, of.host_forward...);
  visit(FlagKey{"host_backward", host_times}, of.host_backward...);
  visit(FlagKey{"host_shards", host_times}, of.host_shards...);
  visit(FlagKey{"host_pipeline", host_times}, of.pipeline_host...);
  visit(FlagKey{"causal_softmax"}, of.has_causal_softmax...);
  visit(FlagKey{"logit_bytes_forward", moved_bytes}, of.logit.forward...);
  visit(FlagKey{"logit_bytes_backward", moved_bytes}, of.logit.backward...);
  visit(FlagKey{"product_speed", factors}, of.product_speed...);
  visit(FlagKey{"fitted_product_speed", factors}, of.fitted_product_speed...);
  visit(FlagKey{"attention_speed", factors}, of.attention_speed...);
  visit(FlagKey{"norm_speed", factors}, of.norm_speed...);
  visit(FlagKey{"memory_speed", factors}, of.memory_speed...);
  visit(FlagKey{"speed_in_training", factors}, of.speed_in_training...);
  visit(FlagKey{"kernel_start", host_times}, of.kernel_start...);
  visit(FlagKey{"update_bytes", moved_bytes}, of.update...);
  visit(FlagKey{"gradient_bytes", moved_bytes}, of.gradients...);
  visit(FlagKey{"pads_vocabulary"}, of.pads_vocabulary...);
  visit(FlagKey{"recomputed_collectives", repeated_collectives}, of.recomputed_collectives...);
  visit(FlagKey{"stops_recomputation"}, of.stops_recomputation...);
  visit(FlagKey{"drops_recomputed_outputs"}, of.drops_recomputed_outputs...);
  visit(FlagKey{"overlap_shard_sums"}, of.hides_shard_sums...);
  visit(FlagKey{"overlap_shard_collectives"}, of.hides_shard_collectives...);
  visit(FlagKey{"overlap_dispatches"}, of.hides_dispatches...);
  visit(FlagKey{"dispatch_once_a_node"}, of.dispatches_once_a_node...);
  visit(FlagKey{"overlap_parameter_gathers"}, of.overlaps_gathers...);
  visit(FlagKey{"serial_receives"}, of.serial_transfers...);
  visit(FlagKey{"rebuild_s_per_gb", times_per_size}, of.rebuild...);
  visit(FlagKey{"most_divided"}, of.most_divided...);
  visit(FlagKey{"memory_parameter_bytes_16bit", moved_bytes}, of.memory.state16.parameters...);
  visit(FlagKey{"memory_gradient_bytes_16bit", moved_bytes}, of.memory.state16.gradients...);
  visit(FlagKey{"memory_optimizer_bytes_16bit", moved_bytes}, of.memory.state16.optimizer...);
  visit(FlagKey{"memory_update_bytes_16bit", moved_bytes}, of.memory.state16.update...);
  visit(FlagKey{"memory_parameter_bytes_32bit", moved_bytes}, of.memory.state32.parameters...);
  visit(FlagKey{"memory_gradient_bytes_32bit", moved_bytes}, of.memory.state32.gradients...);
  visit(FlagKey{"memory_optimizer_bytes_32bit", moved_bytes}, of.memory.state32.optimizer...);
  visit(FlagKey{"memory_logit_bytes", moved_bytes}, of.memory.logit...);
  visit(FlagKey{"memory_activations", factors}, of.memory.activations...);
  visit(FlagKey{"memory_reserve", factors}, of.memory.reserved...);
  visit(FlagKey{"memory_block_gradients"}, of.memory.keeps_block_gradients...);
  visit(FlagKey{"memory_context", flag_sizes}, of.memory.context...);
  visit_rules(visit, of...);
}

/// The keys of all flags.
std::vector<std::string> flag_keys();
/// True if all flags are equal; names and sources may differ.
bool have_same_flags(const Framework& a, const Framework& b);

/// How a file spells quantities: data and workloads as number and unit, `host_forward: 1.4 ms`, a plan as a number
/// whose key has the unit, `"host_forward_s": 0.0014`.
enum class FlagSpelling { Yaml, Json };
/// The key of a flag in a file: with "_s" or "_bytes" for quantities in JSON.
std::string key_of(const FlagKey& key, const Seconds& flag, FlagSpelling spelling);
std::string key_of(const FlagKey& key, const Bytes& flag, FlagSpelling spelling);
template <typename Flag>
std::string key_of(const FlagKey& key, const Flag&, FlagSpelling)
{
  return std::string(key.text);
}

/// Reads the flags that a mapping has into `framework`; all must be there with `needs_all`. Adds a fault to the reader
/// for each value that is wrong.
void read_flags(MappingReader& reader, FlagSpelling spelling, bool needs_all, Framework& framework);

/// Constants for a name in a `framework` column or key.
struct FrameworkChoice {
  const Framework* framework = nullptr;  ///< lives as long as the program
  std::string note;                      ///< "", or one sentence: which constants stand for the name's
};
/// The constants that stand for a name; null: it is unknown.
const Framework* standing_for(const std::string& name);
/// Finds the constants by name. An unknown year or version takes its family's latest, and a name that contains a
/// family, or a system that trains with one, that family's. A name is words and perhaps a version.
/// @throws InputError "framework: "NAME" is unknown; …" that lists the known names.
FrameworkChoice framework_named(const std::string& name);
/// Describes a name for which no constants stand: "\"NAME\" is unknown; write one of …".
std::string unknown_framework(const std::string& name);
/// The constants of exactly this name; null: it has none of its own.
const Framework* find_framework(const std::string& name);
/// All names with constants of their own, ascending.
std::vector<std::string> framework_names();

/// A training system as a plan has it.
struct TrainingSystem {
  std::string name;
  /// The flags of training software where they are not those of the named one.
  std::optional<Framework> changed = {};

  bool operator==(const TrainingSystem& other) const;
};
/// The flags of a system, which live as long as it; null: it is no training software, but only measured on a platform.
const Framework* framework_of(const TrainingSystem& system);

/// Reads a member that names a training system: a text, or a mapping of `name`, `version` (the rest of the name, if it
/// does not end with it) and flags. `changed` then has all flags of the system, even if none differs. A plan file,
/// which is JSON, knows training software by its exact name, and may name a system that is only measured on a platform.
/// Elsewhere a name is that of software, as framework_named finds it. None without the member, or if it is wrong.
std::optional<TrainingSystem> read_training_system(MappingReader& file, const std::string& key, FlagSpelling spelling,
                                                   FaultList& faults);

/// What a file of training systems has.
struct FrameworkFile {
  struct Word {
    std::string word;
    std::string family;
  };
  std::vector<Framework> frameworks;  ///< ascending by name
  std::vector<Word> words;  ///< what a name without constants of its own may contain, the first that counts first
};
/// Parses a file of training systems, such as results/fidelity/systems.yaml; `name` stands for it in messages.
/// @throws InputError naming file, line and key of every fault.
FrameworkFile frameworks_from_text(const std::string& text, const std::string& name);

}  // namespace isobar
