#include "exec/model/sequence_part.hpp"

#include <ATen/ATen.h>

namespace isobar::exec {

at::Tensor SequencePart::positions(std::int64_t length) const
{
  if (is_whole()) return at::arange(length, at::kLong);
  const std::int64_t chunk = length / static_cast<std::int64_t>(2 * parts);
  Tensors places;
  for (const std::size_t number : {0, 1}) {
    const std::int64_t begin = begin_of(number, chunk);
    places.push_back(at::arange(begin, begin + chunk, at::kLong));
  }
  return at::cat(places);
}

at::Tensor positions_by_part(std::size_t parts, std::int64_t length)
{
  Tensors places;
  for (std::size_t part = 0; part < parts; ++part) places.push_back(SequencePart{part, parts}.positions(length));
  return at::cat(places);
}

}  // namespace isobar::exec
