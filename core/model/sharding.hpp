#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar {

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

}  // namespace isobar
