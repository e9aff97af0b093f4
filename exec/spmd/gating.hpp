#pragma once

#include "exec/device/tensors.hpp"

#include <cstdint>

namespace isobar::exec {

/// Chooses each token's experts and their slots.
///
/// The gates are the softmax over the experts of `tokens` · `weight`. A token goes to the expert with the largest gate,
/// and with `top_k` 2 also to the next. Each expert has `capacity` slots for each sample. First choices take them in
/// the order of the tokens; second choices follow, after as many slots as there are first choices. A choice beyond the
/// last slot is dropped. A token's weight for an expert is its gate with `top_k` 1 (Fedus et al., Switch Transformers,
/// 2021, section 2.1). With 2, both gates are divided by their sum, also if one choice is dropped (Lepikhin et al.,
/// GShard, 2020, algorithm 1; without its random drops of second choices, so that nothing is drawn).
///
/// @param tokens [samples, sequence, hidden]
/// @param weight [hidden, experts]
/// @param top_k 1 or 2
/// @returns two tensors [samples, sequence, experts, capacity]: 1 where a token has a slot and otherwise 0, without a
/// gradient; and the weights in its place, whose gradient is that of the gates. In the dtype of the tokens, computed in
/// float32 if that has 16 bits.
Tensors gating(const at::Tensor& tokens, const at::Tensor& weight, std::int64_t capacity, std::uint64_t top_k);

}  // namespace isobar::exec
