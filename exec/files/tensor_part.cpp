#include "exec/files/tensor_part.hpp"

#include "exec/files/name_parts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <utility>

namespace isobar::exec {

namespace {

/// The number of elements of a shape; none if it cannot be counted.
std::optional<std::uint64_t> elements_of(const std::vector<std::uint64_t>& shape)
{
  std::uint64_t elements = 1;
  for (const std::uint64_t extent : shape) {
    if (extent > 0 && elements > std::numeric_limits<std::uint64_t>::max() / extent) return std::nullopt;
    elements *= extent;
  }
  return elements;
}

}  // namespace

TensorPart TensorPart::whole(std::vector<std::uint64_t> shape)
{
  const std::uint64_t elements = elements_of(shape).value();
  return range(0, elements, std::move(shape));
}

TensorPart TensorPart::range(std::uint64_t begin, std::uint64_t end, std::vector<std::uint64_t> shape)
{
  const std::uint64_t period = elements_of(shape).value();
  return {std::move(shape), begin, end, period};
}

std::uint64_t TensorPart::elements() const
{
  return period == 0 ? 0 : elements_of(shape).value() / period * (end - begin);
}

std::string part_name(std::string_view tensor, const TensorPart& part)
{
  if (part.is_whole()) return std::string(tensor);
  const bool is_range = part.period == elements_of(part.shape);
  return fmt::format("{}[{}:{}{} of {}]", tensor, part.begin, part.end, is_range ? "" : fmt::format(":{}", part.period),
                     fmt::join(part.shape, "x"));
}

std::optional<NamedPart> tensor_part_in_name(std::string_view name)
{
  const auto bracket = name.rfind('[');
  if (bracket == std::string_view::npos) return std::nullopt;
  std::string_view rest = name.substr(bracket + 1);
  const auto begin = take_number(rest);
  if (!begin || !take(":", rest)) return std::nullopt;
  const auto end = take_number(rest);
  if (!end || *begin >= *end) return std::nullopt;
  std::optional<std::uint64_t> period;
  if (take(":", rest)) {
    period = take_number(rest);
    if (!period) return std::nullopt;
  }
  if (!take(" of ", rest)) return std::nullopt;
  std::vector<std::uint64_t> shape;
  do {
    const auto extent = take_number(rest);
    if (!extent) return std::nullopt;
    shape.push_back(*extent);
  } while (take("x", rest));
  const auto elements = elements_of(shape);
  if (rest != "]" || !elements) return std::nullopt;
  const std::uint64_t of_each = period.value_or(*elements);
  if (of_each == 0 || *elements % of_each != 0 || *end > of_each) return std::nullopt;
  return NamedPart{std::string(name.substr(0, bracket)), {std::move(shape), *begin, *end, of_each}};
}

}  // namespace isobar::exec
