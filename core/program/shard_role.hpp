#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace isobar {

/// A pass of a layer that collectives of shards stand before or after. A whole backward is both gradients.
enum class ShardPass : std::uint8_t { Forward, InputGradient, WeightGradient };

/// What a collective among shards is for.
enum class ShardRole : std::uint8_t {
  // Before a forward:
  NormSum,       ///< of what the layer's norm needs to know of all of a token
  InputGather,   ///< of the input of a product
  WeightGather,  ///< of its parameters
  // After it:
  OutputSum,   ///< of addends of its outputs; of a 1d head the loss terms are gathered instead
  LossGather,  ///< of what the loss needs to know of the other parts of the vocabulary
  // Before the gradient of the input is computed:
  GradientGather,     ///< of the gradient of the output
  WeightGatherAgain,  ///< as before the forward
  KeptInputGather,    ///< of the layer's input, of which each shard has kept its own part
  // After that:
  InputGradientSum,
  NormGradientSum,
  // Before the gradient of the parameters is computed:
  InputGatherAgain,
  // After that:
  WeightGradientSum,
  // Of devices that divide a sequence, for attention: before the forward, after it, before the gradient of the input is
  // computed, and after that.
  ExchangeInputs,
  ExchangeOutputs,
  ExchangeGradients,
  ExchangeInputGradients,
  // The same of devices that divide experts.
  DispatchTokens,
  CombineOutputs,
  DispatchGradients,
  CombineInputGradients
};
inline constexpr std::size_t shard_roles = 20;

/// The name of the lanes of a role: "gather inputs".
std::string_view name_of(ShardRole role);
ShardPass pass_of(ShardRole role);
/// Whether the pass needs what the collective brings, which otherwise needs what the pass makes.
bool is_before_pass(ShardRole role);
/// Whether it needs what comes from the neighbouring stage: the layer's input, or the gradient of its output.
bool needs_arrival(ShardRole role);
/// Whether devices that divide sequences or experts meet for it, each for its own micro-batch or part of one.
constexpr bool is_exchange(ShardRole role)
{
  return role >= ShardRole::ExchangeInputs;
}
/// Whether it is one of those for experts.
constexpr bool is_of_experts(ShardRole role)
{
  return role >= ShardRole::DispatchTokens;
}

}  // namespace isobar
