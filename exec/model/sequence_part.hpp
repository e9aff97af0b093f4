#pragma once

#include "exec/device/tensors.hpp"

#include <cstddef>
#include <cstdint>

namespace isobar::exec {

/// One of the parts in which devices divide each sequence (ContextParallelism): chunks `index` and 2 x `parts` - 1 -
/// `index` of the 2 x `parts`, in this order.
struct SequencePart {
  std::size_t index = 0;
  std::size_t parts = 1;

  bool is_whole() const { return parts == 1; }
  /// The length of a sequence of which the part has `tokens`.
  std::int64_t whole_length(std::int64_t tokens) const { return tokens * static_cast<std::int64_t>(parts); }
  /// The place in the sequence of the first token of chunk 0 or 1 of the part, which are `length` long.
  std::int64_t begin_of(std::size_t chunk, std::int64_t length) const
  {
    return static_cast<std::int64_t>(chunk == 0 ? index : 2 * parts - 1 - index) * length;
  }
  /// The places of its tokens in a sequence of `length`, ascending: int64 [length / parts].
  at::Tensor positions(std::int64_t length) const;
};

/// The places of the tokens of all parts, one after another: int64 [length].
at::Tensor positions_by_part(std::size_t parts, std::int64_t length);

}  // namespace isobar::exec
