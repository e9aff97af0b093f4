#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar::sim {

// Numbers in the attributes of clusters and cabinets.

/// Most hosts of a platform.
constexpr std::size_t most_hosts = 100'000;

/// Splits a text at any of the separators; returns at least one part.
std::vector<std::string> split(std::string_view text, std::string_view separators);
/// The text without blanks at both ends.
std::string trimmed(const std::string& text);
/// Parses a number of digits only, below 2^64.
std::optional<std::uint64_t> whole_number(std::string_view text);

/// The numbers of a radical such as "0-3,7,9-11", in its order, at most `most`.
/// @throws std::invalid_argument with a message that names no place.
std::vector<std::uint64_t> numbers_of_radical(const std::string& radical, std::size_t most);

/// Number of hosts of a topology, with parameters as for SimGrid's TorusZone ("3,2,2"), FatTreeZone ("2;4,4;1,2;1,2")
/// and DragonflyZone ("3,4;3,2;3,1;2").
/// @throws std::invalid_argument with a message that names no place.
double places_of_topology(const std::string& topology, const std::string& parameters);

}  // namespace isobar::sim
