#pragma once

#include "core/text/document.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// What the readers and the writer of plan files share.
namespace isobar {

/// The pattern of layers in "splits" that matches all.
inline constexpr auto all_layers = "*";

/// What a file with the plans of several workers says that it is (core/outer/outer.hpp).
inline constexpr auto rounds_schema = "isobar-rounds/1";

/// Reads a member that must be a mapping by `read`; a fault if it is missing or something else.
template <typename Value, typename Read>
Value read_mapping(MappingReader& parent, const std::string& key, FaultList& faults, Read read)
{
  const DocumentNode* node = parent.required(key);
  if (node == nullptr) return {};
  if (node->kind != DocumentNode::Kind::Mapping) {
    parent.add_fault(key, "is not an object; see docs/formats/plan.md");
    return {};
  }
  MappingReader reader(*node, parent.path_of(key) + ".", faults);
  Value value = read(reader);
  reader.refuse_unknown();
  return value;
}

/// Reads a whole number in [lowest, highest]; none, with a fault, if it is missing or something else.
inline std::optional<std::uint64_t> read_count(MappingReader& reader, const std::string& key, std::uint64_t lowest,
                                               std::uint64_t highest)
{
  if (!reader.has(key)) reader.required_count(key, lowest, highest);
  return reader.optional_count(key, lowest, highest);
}

/// The number of items of a list; none if the member is missing or something else.
inline std::optional<std::size_t> items_of(MappingReader& reader, const std::string& key)
{
  const DocumentNode* node = reader.optional(key);
  if (node == nullptr || node->kind != DocumentNode::Kind::Sequence) return std::nullopt;
  return node->items.size();
}

/// Reads each mapping of a sequence.
template <typename Value, typename Read>
std::vector<Value> read_objects(MappingReader& parent, const std::string& key, FaultList& faults, Read read)
{
  std::vector<Value> values;
  for (const auto& node : parent.required_sequence(key)) {
    const std::string path = fmt::format("{}[{}]", parent.path_of(key), values.size());
    if (node.kind != DocumentNode::Kind::Mapping) {
      faults.add(node.line, path, "is not an object; see docs/formats/plan.md");
      values.emplace_back();
      continue;
    }
    MappingReader reader(node, path + ".", faults);
    values.push_back(read(reader));
    reader.refuse_unknown();
  }
  return values;
}

/// Reads a list of single values, each as a member of its own, such as "multipliers[3]".
template <typename Value, typename Read>
std::vector<Value> read_list(MappingReader& parent, const std::string& key, FaultList& faults, Read read)
{
  std::vector<Value> values;
  for (const auto& item : parent.required_sequence(key)) {
    DocumentNode member;
    member.kind = DocumentNode::Kind::Mapping;
    member.line = item.line;
    const std::string name = fmt::format("{}[{}]", key, values.size());
    member.members.push_back({name, item});
    MappingReader reader(member, parent.path_of(""), faults);
    values.push_back(read(reader, name));
  }
  return values;
}

}  // namespace isobar
