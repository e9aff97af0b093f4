#pragma once

#include "exec/device/tensors.hpp"

#include <cstdint>
#include <string_view>
#include <vector>

namespace isobar::exec {

/// Key of a dropout's random numbers, from the operator's name in its graph.
std::uint64_t dropout_key(std::uint64_t seed, std::uint64_t step, std::string_view name);

/// Sets elements to zero with a probability, below 1, and scales the others up.
///
/// Whether an element stays depends on the key and its index in the whole tensor only, not on how the tensor is divided
/// and on which device: it stays if the upper 53 bits of mixed({key, index...}) (exec/data/mixing.hpp) are at least
/// probability · 2^53. Keeps a byte per element for the backward pass; takes at most 64 MiB or, if that is more, 16
/// bytes per element of an index of the first dimension meanwhile.
/// @param begin the index in the whole tensor of the first element
at::Tensor dropped_out(const at::Tensor& input, const std::vector<std::int64_t>& begin, std::uint64_t key,
                       double probability);

}  // namespace isobar::exec
