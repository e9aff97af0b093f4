#include "sim/scan/radical.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <stdexcept>
#include <unordered_set>

namespace isobar::sim {

namespace {

/// Most switches and links of a topology, besides its hosts.
constexpr double most_topology = 1e6;

}  // namespace

std::vector<std::string> split(std::string_view text, std::string_view separators)
{
  std::vector<std::string> parts;
  while (true) {
    const auto end = text.find_first_of(separators);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string trimmed(const std::string& text)
{
  const auto first = text.find_first_not_of(" \t\r\n");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

std::optional<std::uint64_t> whole_number(std::string_view text)
{
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return number;
}

std::vector<std::uint64_t> numbers_of_radical(const std::string& radical, std::size_t most)
{
  std::vector<std::uint64_t> numbers;
  std::unordered_set<std::uint64_t> seen;
  for (const auto& group : split(radical, ",")) {
    const auto ends = split(group, "-");
    const auto first = whole_number(ends.front());
    const auto last = whole_number(ends.back());
    if (ends.size() > 2 || !first || !last) {
      throw std::invalid_argument(
          fmt::format("\"{}\" is not a list of numbers; write ranges and numbers, such as \"0-3,7\"", radical));
    }
    if (*last < *first) throw std::invalid_argument(fmt::format("\"{}\" ends before it begins", group));
    if (*last - *first >= most - numbers.size()) {
      throw std::invalid_argument(
          fmt::format("\"{}\" makes more hosts than the {} that a platform may have", radical, most_hosts));
    }
    if (*last > std::numeric_limits<std::int32_t>::max()) {
      throw std::invalid_argument(fmt::format("\"{}\" exceeds SimGrid's limit, 2147483647", group));
    }
    for (std::uint64_t number = *first; number <= *last; ++number) {
      if (!seen.insert(number).second) throw std::invalid_argument(fmt::format("\"{}\" has {} twice", radical, number));
      numbers.push_back(number);
    }
  }
  return numbers;
}

double places_of_topology(const std::string& topology, const std::string& parameters)
{
  const auto refuse = [&](const char* form) -> double {
    throw std::invalid_argument(fmt::format("topo_parameters \"{}\" do not describe a {}", parameters, form));
  };
  std::vector<std::vector<double>> groups;
  double elements = 1;
  for (const auto& group : split(parameters, ";")) {
    groups.emplace_back();
    for (const auto& part : split(group, ",")) {
      groups.back().push_back(static_cast<double>(whole_number(trimmed(part)).value_or(0)));
      elements *= groups.back().back();
    }
  }
  if (elements <= 0) refuse("topology; write whole numbers, 1 or more, such as \"3,2,2\"");
  if (elements > most_topology) refuse("topology within the limit of 1,000,000 links");
  const auto product = [](const std::vector<double>& factors) {
    double result = 1;
    for (const double factor : factors) result *= factor;
    return result;
  };
  if (topology == "TORUS") {
    return groups.size() == 1 ? product(groups[0]) : refuse("torus; write its dimensions, such as \"3,2,2\"");
  }
  if (topology == "FAT_TREE") {
    const bool whole = groups.size() == 4 && groups[0].size() == 1 &&
                       std::all_of(groups.begin() + 1, groups.end(), [&groups](const std::vector<double>& group) {
                         return static_cast<double>(group.size()) == groups[0][0];
                       });
    return whole ? product(groups[1])
                 : refuse("fat tree; write levels;down;up;parallel links, such as \"2;4,4;1,2;1,2\"");
  }
  if (topology == "DRAGONFLY") {
    const bool whole = groups.size() == 4 && groups[0].size() == 2 && groups[1].size() == 2 && groups[2].size() == 2 &&
                       groups[3].size() == 1;
    return whole ? groups[0][0] * groups[1][0] * groups[2][0] * groups[3][0]
                 : refuse("dragonfly; write groups,links;chassis,links;routers,links;nodes, such as \"3,4;3,2;3,1;2\"");
  }
  throw std::invalid_argument(
      fmt::format("unknown topology \"{}\"; write FLAT, TORUS, FAT_TREE or DRAGONFLY", topology));
}

}  // namespace isobar::sim
