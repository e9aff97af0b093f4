#pragma once

#include <array>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace isobar {

/// The names of an enumeration's values, as files and options spell them.
template <typename Value, std::size_t Count>
using NameTable = std::array<std::pair<Value, std::string_view>, Count>;

/// The name of `value`. @throws std::logic_error when the table lacks it.
template <typename Value, std::size_t Count>
constexpr std::string_view name_in(const NameTable<Value, Count>& table, Value value)
{
  for (const auto& [candidate, name] : table) {
    if (candidate == value) return name;
  }
  throw std::logic_error("a value without a name");
}

/// The value named `wanted`; none when the table lacks it.
template <typename Value, std::size_t Count>
constexpr std::optional<Value> value_in(const NameTable<Value, Count>& table, std::string_view wanted)
{
  for (const auto& [value, name] : table) {
    if (name == wanted) return value;
  }
  return std::nullopt;
}

/// All names, in the order of the table.
template <typename Value, std::size_t Count>
std::vector<std::string> names_in(const NameTable<Value, Count>& table)
{
  std::vector<std::string> names;
  for (const auto& entry : table) names.emplace_back(entry.second);
  return names;
}

}  // namespace isobar
