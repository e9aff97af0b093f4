#pragma once

#include "core/model/decoder/decoder_sizes.hpp"
#include "exec/device/tensors.hpp"

#include <cstdint>

namespace isobar::exec {

/// Rotary positions (Su et al. 2021, arXiv 2104.09864, section 3.2.2): turns elements i and i + width/2 of a head by
/// position · base^(-2i/width), scaled as `scaling` says. In float32, since bf16 cannot distinguish distant positions.
class Rotation {
 public:
  /// @param positions of the tokens, int64 [tokens]
  /// @param width how many numbers of a head turn, the first ones; even
  /// @param like a tensor on the same device
  Rotation(double base, const RopeScaling& scaling, const at::Tensor& positions, std::int64_t width,
           const at::Tensor& like);

  /// Turns [..., tokens, width or more].
  at::Tensor apply(const at::Tensor& heads) const;

 private:
  Tensors turns_;  // cosines and sines, [tokens, width/2]
};

}  // namespace isobar::exec
