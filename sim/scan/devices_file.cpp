#include "sim/scan/devices_file.hpp"

#include "core/text/document.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>

namespace isobar::sim {

namespace {

Props props_of(const std::string& pattern, const DocumentNode& node, FaultList& faults)
{
  Props props;
  for (const auto& [id, value] : node.members) {
    const std::string key = pattern + "." + id;
    if (value.kind != DocumentNode::Kind::Scalar) {
      faults.add(value.line, key, "is not a single value; write one, such as memory: 16 GiB");
      continue;
    }
    try {
      if (!read_prop(props, PropHolder::Host, id, value.scalar)) {
        faults.add(value.line, key,
                   fmt::format("unknown; a device has {}", fmt::join(prop_names(PropHolder::Host), ", ")));
      }
    } catch (const std::invalid_argument& fault) {
      faults.add(value.line, key, fault.what());
    }
  }
  return props;
}

}  // namespace

bool matches_pattern(const std::string& pattern, const std::string& text)
{
  std::size_t in_pattern = 0;
  std::size_t in_text = 0;
  std::size_t star = std::string::npos;  // the last one passed; it covers the text up to `covered`
  std::size_t covered = 0;
  while (in_text < text.size()) {
    if (in_pattern < pattern.size() && pattern[in_pattern] == '*') {
      star = in_pattern++;
      covered = in_text;
    } else if (in_pattern < pattern.size() && (pattern[in_pattern] == '?' || pattern[in_pattern] == text[in_text])) {
      ++in_pattern;
      ++in_text;
    } else if (star != std::string::npos) {
      in_pattern = star + 1;
      in_text = ++covered;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', in_pattern) == std::string::npos;
}

void apply_devices_file(std::vector<ScannedHost>& hosts, const std::string& text, const std::string& name)
{
  const DocumentNode root = parse_yaml(text, name);
  FaultList faults(name);
  if (root.kind != DocumentNode::Kind::Mapping) {
    faults.add(std::max(root.line, 1), "", "is not a mapping; write host-name patterns and their props");
  }
  for (const auto& [pattern, node] : root.members) {
    if (node.kind != DocumentNode::Kind::Mapping) {
      faults.add(node.line, pattern, "has no props; write them below it, such as memory: 16 GiB");
      continue;
    }
    const Props props = props_of(pattern, node, faults);
    bool matched = false;
    for (auto& host : hosts) {
      if (!matches_pattern(pattern, host.name)) continue;
      matched = true;
      overlay(host.props, props);
    }
    if (!matched) faults.add(node.line, pattern, "matches no host of the platform");
  }
  faults.throw_if_any();
}

}  // namespace isobar::sim
