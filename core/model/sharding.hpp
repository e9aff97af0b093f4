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

}  // namespace isobar
