#include "sim/generate/device_groups.hpp"

#include "core/cluster/device_types.hpp"
#include "core/errors.hpp"

#include <fmt/format.h>
#include <charconv>
#include <stdexcept>

namespace isobar::sim {

namespace {

std::string fault_of(std::string_view part, const std::string& what)
{
  return in_quotes(part) + " " + what;
}

DeviceGroup device_group_from_text(std::string_view part)
{
  DeviceGroup group;
  const char* const end = part.data() + part.size();
  const auto [rest, failure] = std::from_chars(part.data(), end, group.count);
  const bool counted = failure == std::errc() && group.count > 0 && (rest == end || *rest == 'x');
  if (!counted) {
    throw std::invalid_argument(
        fault_of(part, "is not a number of devices; write COUNTxTYPE, such as \"8xA100-SXM4-40GB\""));
  }
  if (rest == end) return group.type.clear(), group;
  group.type = std::string(rest + 1, end);
  require_device_type(group.type);
  return group;
}

/// Refuses "2x4xT4", in which the nodes are counted like devices.
void require_one_count(std::string_view part)
{
  const auto first = part.find('x');
  if (first == std::string_view::npos) return;
  const auto second = part.find('x', first + 1);
  const auto is_count = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  };
  if (second == std::string_view::npos || !is_count(part.substr(0, first)) ||
      !is_count(part.substr(first + 1, second - first - 1))) {
    return;
  }
  throw std::invalid_argument(
      fault_of(part, fmt::format("has two numbers of devices; write {}*{} for {} nodes", part.substr(0, first),
                                 part.substr(first + 1), part.substr(0, first))));
}

NodeGroup node_group_from_text(std::string_view part)
{
  const auto star = part.find('*');
  if (star == std::string_view::npos) {
    require_one_count(part);
    return {1, device_group_from_text(part)};
  }
  NodeGroup group;
  const char* const end = part.data() + star;
  const auto [rest, failure] = std::from_chars(part.data(), end, group.count);
  if (failure != std::errc() || group.count == 0 || rest != end) {
    throw std::invalid_argument(fault_of(part.substr(0, star),
                                         "is not a number of nodes; write NODES*COUNTxTYPE, such as "
                                         "\"4*8xA100-SXM4-40GB\""));
  }
  group.devices = device_group_from_text(part.substr(star + 1));
  return group;
}

/// The groups of "A+B+C".
template <typename Group>
std::vector<Group> groups_from_text(std::string_view text, Group (*group_from_text)(std::string_view))
{
  std::vector<Group> groups;
  while (true) {
    const auto plus = text.find('+');
    groups.push_back(group_from_text(text.substr(0, plus)));
    if (plus == std::string_view::npos) return groups;
    text.remove_prefix(plus + 1);
  }
}

std::string text_of_group(const DeviceGroup& group)
{
  return fmt::format("{}{}{}", group.count, group.type.empty() ? "" : "x", group.type);
}

std::string text_of_group(const NodeGroup& group)
{
  return fmt::format("{}*{}", group.count, text_of_group(group.devices));
}

template <typename Group>
std::string joined_texts(const std::vector<Group>& groups)
{
  std::string text;
  for (const auto& group : groups) text += (text.empty() ? "" : "+") + text_of_group(group);
  return text;
}

}  // namespace

void require_device_type(const std::string& name)
{
  if (find_device_type(name) != nullptr) return;
  throw std::invalid_argument(fault_of(
      name, fmt::format("is not a device type; {} (for another one, write a similar type, and its props device, "
                        "memory and speed.* in a file for --devices)",
                        hint_for_device_type(name, device_type_names()))));
}

std::vector<DeviceGroup> device_groups_from_text(std::string_view text)
{
  return groups_from_text<DeviceGroup>(text, device_group_from_text);
}

std::string text_of(const std::vector<DeviceGroup>& groups)
{
  return joined_texts(groups);
}

std::vector<NodeGroup> node_groups_from_text(std::string_view text)
{
  return groups_from_text<NodeGroup>(text, node_group_from_text);
}

std::string text_of(const std::vector<NodeGroup>& groups)
{
  return joined_texts(groups);
}

}  // namespace isobar::sim
