#include "core/model/framework.hpp"

#include "core/errors.hpp"
#include "core/text/digits.hpp"

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

constexpr std::string_view separators = "-/_ ";

bool is_letter(char c)
{
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/// True for words and perhaps a version of digits and dots: "aceso/megatron", "megatron-core-0.12".
bool is_name(std::string_view name)
{
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = std::min(name.find_first_of(separators, begin), name.size());
    const std::string_view piece = name.substr(begin, end - begin);
    const bool is_last = end == name.size();
    const bool may_be_version = is_last && begin > 0;
    const bool is_word = !piece.empty() && is_letter(piece.front());
    const bool is_right = !piece.empty() && (is_word || may_be_version) && std::ranges::all_of(piece, [&](char c) {
      return is_digit(c) || c == '.' || (is_word && is_letter(c));
    });
    if (!is_right || is_last) return is_right;
    begin = end + 1;
  }
}

/// True if words of the name are this one.
bool has_word(std::string_view name, std::string_view word)
{
  const auto is_bound = [&](std::size_t at) { return separators.find(name[at]) != std::string_view::npos; };
  for (auto at = name.find(word); at != std::string_view::npos; at = name.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || is_bound(at - 1)) && (end == name.size() || is_bound(end))) return true;
  }
  return false;
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
  if (!is_name(name)) return nullptr;
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
  if (found == nullptr) throw InputError("framework", unknown_framework(name));
  if (found->name == name) return {found, ""};
  return {found, fmt::format("framework {} has no constants of its own; those of {} stand for them", shown(name),
                             found->name)};
}

std::string unknown_framework(const std::string& name)
{
  return fmt::format("{} is unknown; write one of {}", in_quotes(name), fmt::join(framework_names(), ", "));
}

std::vector<std::string> framework_names()
{
  std::vector<std::string> names;
  for (const auto& framework : built_in().frameworks) names.push_back(framework.name);
  return names;
}

}  // namespace isobar
