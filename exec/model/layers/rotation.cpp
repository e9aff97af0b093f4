#include "exec/model/layers/rotation.hpp"

#include <ATen/ATen.h>

#include <cmath>

namespace isobar::exec {

namespace {

at::Tensor scaled(const at::Tensor& speeds, const RopeScaling& scaling)
{
  if (scaling.type == RopeScaling::Type::None) return speeds;
  if (scaling.type == RopeScaling::Type::Linear) return speeds / scaling.factor;
  const double turns_of_one = static_cast<double>(scaling.original_positions) / (2 * M_PI);
  const at::Tensor turns = speeds * turns_of_one;
  const at::Tensor unscaled =
      ((turns - scaling.low_frequency) / (scaling.high_frequency - scaling.low_frequency)).clamp(0, 1);
  return speeds * unscaled + speeds / scaling.factor * (1 - unscaled);
}

}  // namespace

Rotation::Rotation(double base, const RopeScaling& scaling, const at::Tensor& positions, std::int64_t width,
                   const at::Tensor& like)
{
  const auto options = like.options().dtype(at::kFloat);
  const auto speeds = at::pow(base, at::arange(0, width, 2, options) * (-1.0 / static_cast<double>(width)));
  const auto angles = at::outer(positions.to(options), scaled(speeds, scaling));
  turns_ = {angles.cos(), angles.sin()};
}

at::Tensor Rotation::apply(const at::Tensor& heads) const
{
  const at::Tensor& cosine = turns_[0];
  const at::Tensor& sine = turns_[1];
  const std::int64_t width = 2 * cosine.size(1);
  if (heads.size(-1) > width) {
    return at::cat({apply(heads.narrow(-1, 0, width)), heads.narrow(-1, width, heads.size(-1) - width)}, -1);
  }
  const auto halves = heads.to(at::kFloat).chunk(2, -1);
  const auto rotated = at::cat({halves[0] * cosine - halves[1] * sine, halves[1] * cosine + halves[0] * sine}, -1);
  return rotated.to(heads.scalar_type());
}

}  // namespace isobar::exec
