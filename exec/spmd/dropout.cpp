#include "exec/spmd/dropout.hpp"

#include "exec/data/mixing.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace isobar::exec {

namespace {

constexpr std::int64_t bits_of_state = 64;
constexpr std::int64_t bits_of_fraction = 53;

/// Combines a state with itself shifted right; zeros come in, where the tensor's own shift repeats the sign.
at::Tensor shifted(const at::Tensor& state, std::int64_t bits)
{
  return at::bitwise_right_shift(state, bits).bitwise_and_((std::int64_t{1} << (bits_of_state - bits)) - 1);
}

/// Mixes each state with each word, as mixed() does: int64 [..., words].
at::Tensor mixed_with(const at::Tensor& states, const at::Tensor& words)
{
  at::Tensor state = states.unsqueeze(-1) + (words + static_cast<std::int64_t>(0x9e3779b97f4a7c15U));
  state.bitwise_xor_(shifted(state, 30)).mul_(static_cast<std::int64_t>(0xbf58476d1ce4e5b9U));
  state.bitwise_xor_(shifted(state, 27)).mul_(static_cast<std::int64_t>(0x94d049bb133111ebU));
  return state.bitwise_xor_(shifted(state, 31));
}

/// Which elements stay, bool; by indices of the first dimension, so that the states need little memory.
at::Tensor kept_elements(const at::Tensor& input, const std::vector<std::int64_t>& begin, std::uint64_t key,
                         double probability)
{
  constexpr std::int64_t most_states = std::int64_t{1} << 22;
  const auto options = input.options().dtype(at::kLong).requires_grad(false);
  const auto least = static_cast<std::int64_t>(std::ldexp(probability, bits_of_fraction));
  at::Tensor kept = at::empty(input.sizes(), options.dtype(at::kBool));
  if (kept.numel() == 0) return kept;
  const std::int64_t rows = input.size(0);
  const std::int64_t at_once = std::max<std::int64_t>(1, most_states / (kept.numel() / rows));
  for (std::int64_t row = 0; row < rows; row += at_once) {
    at::Tensor part = kept.narrow(0, row, std::min(at_once, rows - row));
    const at::Tensor of_key = at::full({}, static_cast<std::int64_t>(mixed({key})), options);
    at::Tensor states = mixed_with(of_key, at::arange(begin[0] + row, begin[0] + row + part.size(0), options));
    for (std::int64_t i = 1; i < part.dim(); ++i) {
      const std::int64_t first = begin[static_cast<std::size_t>(i)];
      states = mixed_with(states, at::arange(first, first + part.size(i), options));
    }
    part.copy_(shifted(states, bits_of_state - bits_of_fraction) >= least);
  }
  return kept;
}

}  // namespace

std::uint64_t dropout_key(std::uint64_t seed, std::uint64_t step, std::string_view name)
{
  std::uint64_t key = mixed({seed, step});
  for (const char letter : name) key = mixed({key, static_cast<std::uint64_t>(letter)});
  return key;
}

at::Tensor dropped_out(const at::Tensor& input, const std::vector<std::int64_t>& begin, std::uint64_t key,
                       double probability)
{
  return input * kept_elements(input, begin, key, probability) * (1 / (1 - probability));
}

}  // namespace isobar::exec
