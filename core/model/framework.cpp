#include "core/model/framework.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

namespace isobar {

namespace {

constexpr const char* systems_yaml =
#include "generated/core/model/systems.inc"
    ;

/// The file of systems that the program is built with.
const FrameworkFile& built_in()
{
  static const FrameworkFile file = frameworks_from_text(systems_yaml, "results/fidelity/systems.yaml");
  return file;
}

/// True if the name contains the word where a word begins.
bool has_word(const std::string& name, std::string_view word)
{
  const auto at = name.find(word);
  return at == 0 || (at != std::string::npos && std::string_view("-/_ ").find(name[at - 1]) != std::string_view::npos);
}

}  // namespace

std::vector<std::string> flag_keys()
{
  std::vector<std::string> keys;
  const Framework any;
  visit_flags([&](const FlagKey& key, const auto&) { keys.emplace_back(key.text); }, any);
  return keys;
}

bool have_same_flags(const Framework& a, const Framework& b)
{
  bool are_same = true;
  visit_flags([&](const FlagKey&, const auto& of_a, const auto& of_b) { are_same = are_same && of_a == of_b; }, a, b);
  return are_same;
}

bool TrainingSystem::operator==(const TrainingSystem& other) const
{
  if (name != other.name || changed.has_value() != other.changed.has_value()) return false;
  return !changed || have_same_flags(*changed, *other.changed);
}

const Framework* framework_of(const TrainingSystem& system)
{
  return system.changed ? &*system.changed : find_framework(system.name);
}

const Framework* find_framework(const std::string& name)
{
  const auto& known = built_in().frameworks;
  const auto found = std::find_if(known.begin(), known.end(), [&](const Framework& each) { return each.name == name; });
  return found == known.end() ? nullptr : &*found;
}

const Framework* standing_for(const std::string& name)
{
  if (const auto* known = find_framework(name)) return known;
  const auto& frameworks = built_in().frameworks;
  for (const auto& [word, family] : built_in().words) {
    if (!has_word(name, word)) continue;
    return &*std::find_if(frameworks.rbegin(), frameworks.rend(),
                          [&, of = family](const Framework& each) { return each.family == of; });
  }
  return nullptr;
}

FrameworkChoice framework_named(const std::string& name)
{
  const Framework* const found = standing_for(name);
  if (found == nullptr) {
    throw InputError("framework " + name,
                     fmt::format("is unknown; write one of {}", fmt::join(framework_names(), ", ")));
  }
  if (found->name == name) return {found, ""};
  return {found, fmt::format("framework {} has no constants of its own; those of {} stand for them", shown(name),
                             found->name)};
}

std::vector<std::string> framework_names()
{
  std::vector<std::string> names;
  for (const auto& framework : built_in().frameworks) names.push_back(framework.name);
  return names;
}

}  // namespace isobar
