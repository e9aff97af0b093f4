#include "exec/files/tensor_source.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace isobar::exec {

namespace {

struct Element {
  std::string_view name;
  std::uint64_t size;
};

constexpr std::array<Element, 15> elements = {{{"BOOL", 1},
                                               {"U8", 1},
                                               {"I8", 1},
                                               {"F8_E5M2", 1},
                                               {"F8_E4M3", 1},
                                               {"I16", 2},
                                               {"U16", 2},
                                               {"F16", 2},
                                               {"BF16", 2},
                                               {"I32", 4},
                                               {"U32", 4},
                                               {"F32", 4},
                                               {"F64", 8},
                                               {"I64", 8},
                                               {"U64", 8}}};

const Element& element(ElementType type)
{
  return elements.at(static_cast<std::size_t>(type));
}

}  // namespace

std::string_view name_of(ElementType type)
{
  return element(type).name;
}

std::uint64_t size_of(ElementType type)
{
  return element(type).size;
}

std::optional<ElementType> element_type_from_name(std::string_view name)
{
  const auto* found = std::find_if(elements.begin(), elements.end(), [&](const auto& e) { return e.name == name; });
  if (found == elements.end()) return std::nullopt;
  return static_cast<ElementType>(found - elements.begin());
}

std::vector<std::string> element_type_names()
{
  std::vector<std::string> names;
  for (const auto& [name, size] : elements) names.emplace_back(name);
  return names;
}

std::optional<std::uint64_t> TensorFacts::bytes_if_countable() const
{
  constexpr std::uint64_t most = std::uint64_t{1} << 63;
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::uint64_t bytes = size_of(type);
  for (const std::uint64_t extent : shape) {
    if (extent > most / bytes) return std::nullopt;
    bytes *= extent;
  }
  return bytes;
}

std::uint64_t TensorFacts::bytes() const
{
  const auto bytes = bytes_if_countable();
  if (!bytes) {
    throw InputError("tensor " + in_quotes(name), fmt::format("{} is more than 2^63 bytes", shape_in_words(shape)));
  }
  return *bytes;
}

std::string shape_in_words(const std::vector<std::uint64_t>& shape)
{
  constexpr std::size_t most = 8;  // number of dimensions shown
  const auto shown_part = std::span(shape).first(std::min(shape.size(), most));
  return fmt::format("[{}{}]", fmt::join(shown_part, ", "), shape.size() > most ? ", …" : "");
}

const TensorFacts& TensorSource::facts(const std::string& name) const
{
  const TensorFacts* found = find(name);
  if (!found) throw InputError(where(), fmt::format("has no tensor {}", in_quotes(name)));
  return *found;
}

StoredTensor TensorSource::read(const std::string& name) const
{
  StoredTensor tensor{facts(name), {}};
  tensor.data.resize(tensor.facts.bytes());
  read(name, tensor.data);
  return tensor;
}

}  // namespace isobar::exec
