#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar {

struct Workload;

/// What the replicas of a stage divide among them in equal parts, where they would each hold all of it. Each adds up
/// and updates its own part, and then receives the other parameters.
/// Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, 2020.
enum class Sharding : std::uint8_t {
  None,
  Optimizer,  ///< the optimizer's state (ZeRO stage 1)
  Gradients,  ///< also the gradients, from their sum to the update (stage 2)
  Parameters  ///< also the parameters, between their uses (stage 3)
};

/// "none", "optimizer", "gradients", "parameters".
std::string_view name_of(Sharding sharding);
std::optional<Sharding> sharding_from_name(std::string_view name);
std::vector<std::string> sharding_names();

/// How the devices that divide a sequence bring each other what attention needs of all of its tokens.
enum class ContextExchange : std::uint8_t {
  Ring,       ///< keys and values go around while scores are computed (Liu et al., Ring Attention, 2023)
  AllGather,  ///< each gathers all keys and values first (Grattafiori et al., The Llama 3 Herd of Models, 2024)
  AllToAll    ///< each takes all tokens of some heads (Jacobs et al., DeepSpeed-Ulysses, 2023)
};

/// "ring", "all-gather", "all-to-all".
std::string_view name_of(ContextExchange exchange);
std::optional<ContextExchange> context_exchange_from_name(std::string_view name);
std::vector<std::string> context_exchange_names();

/// Context parallelism: `degree` devices, or groups of shards, take a part each of every sequence through all layers,
/// with all parameters. Part i has chunks i and 2 x degree - 1 - i of the 2 x degree of a sequence, so that causal
/// attention takes each of them equally long.
struct ContextParallelism {
  std::size_t degree = 1;
  ContextExchange exchange = ContextExchange::Ring;

  bool divides() const { return degree > 1; }
  bool operator==(const ContextParallelism&) const = default;
};

/// "4 parts (ring)".
std::string text_of(const ContextParallelism& context);

/// Expert parallelism: `degree` devices, or groups of shards, have an equal part each of the routed experts of every
/// layer that has some. They bring each other the tokens of these experts before a pass of the layer, and what comes of
/// them after it; all else each computes for its own tokens.
/// Sources: Lepikhin et al., GShard: Scaling Giant Models with Conditional Computation and Automatic Sharding, 2020; of
/// whole experts Liu et al., MoE Parallel Folding, 2025.
struct ExpertParallelism {
  std::size_t degree = 1;
  /// The shards of a group have whole experts, `degree` x shards parts of all; else each has a part of every expert of
  /// the group.
  bool are_whole = false;

  /// How many parts of them devices have whose groups have `shards` shards.
  std::size_t parts(std::size_t shards) const { return degree * (are_whole ? shards : 1); }
  bool divides() const { return degree > 1 || are_whole; }
  bool operator==(const ExpertParallelism&) const = default;
};

/// How unevenly tokens come to experts that devices divide: as much as is given, or as drawn.
struct ExpertImbalance {
  double most = 1;         ///< the most that come to the experts of a device in a pass, over the mean
  double spread = 0;       ///< if positive, `most` is drawn: standard deviation of an expert's tokens, over their mean
  std::uint64_t seed = 1;  ///< of the drawn ones
};

/// "groups of 8 replicas", "groups of 8 replicas with whole experts on each shard".
std::string text_of(const ExpertParallelism& experts);

/// The numbers of a token that attention exchanges.
struct AttentionWidths {
  double queries = 0;  ///< or outputs
  double keys = 0;     ///< or values
};
/// Those of a layer that is an attention of a gpt, llama or decoder with unit: operator; none of other layers.
std::optional<AttentionWidths> attention_widths(const Workload& workload, std::size_t layer);

/// Why the sequences of a workload cannot be divided so among groups of `shards` shards; none if they can.
std::optional<std::string> why_not_divided(const Workload& workload, const ContextParallelism& context,
                                           std::size_t shards);

/// The workload of a part of each sequence: a micro-batch is then `workload.micro_batch` parts. Each layer has an equal
/// part of its work, activations and outputs, and all of its parameters. Requires that the sequences can be divided.
/// Like with_micro_batch, it makes the layers again.
Workload with_context(const Workload& workload, const ContextParallelism& context);

/// Why the experts of a workload cannot be divided so among groups of `shards` shards; none if they can.
std::optional<std::string> why_not_divided(const Workload& workload, const ExpertParallelism& experts,
                                           std::size_t shards);

/// The workload of a device that has a part of the experts of each layer. Their work and activations are those of the
/// tokens that come to it, as unevenly as `Workload::expert_imbalance` says. Requires experts that can be divided,
/// and are not yet. Like with_micro_batch, it makes layers again, except listed ones.
Workload with_experts(const Workload& workload, const ExpertParallelism& experts);

/// The most tokens that come to one of `parts` devices in a pass of a layer, over the mean. Each has as many of the
/// layer's `experts`, neighbours in their order. Drawn loads of experts are log-normal, apart for each layer, and the
/// same for every number of devices and all micro-batches of a step. O(experts). Deterministic.
double most_over_mean(const ExpertImbalance& imbalance, std::size_t layer, std::uint64_t experts, std::size_t parts);

/// Does this to a workload whose layers have all experts still, as `Workload::experts` says.
void divide_experts(Workload& workload);

}  // namespace isobar
