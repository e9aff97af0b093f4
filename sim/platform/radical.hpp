#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar::sim {

// What the attributes of clusters and cabinets count.

/// Hosts that a platform may have.
constexpr std::size_t most_hosts = 100'000;

/// The parts of a text between any of the separators, at least one.
std::vector<std::string> split(std::string_view text, std::string_view separators);
/// Without the blanks at both ends.
std::string trimmed(const std::string& text);
/// Digits and nothing else, below 2^64.
std::optional<std::uint64_t> whole_number(std::string_view text);

/// The numbers of a radical, "0-3,7,9-11", at most `most`, in its order.
/// @throws std::invalid_argument with the fault in words.
std::vector<std::uint64_t> numbers_of_radical(const std::string& radical, std::size_t most);

/// How many hosts a topology has places for. The forms are those of SimGrid's TorusZone ("3,2,2"), FatTreeZone
/// ("2;4,4;1,2;1,2") and DragonflyZone ("3,4;3,2;3,1;2").
/// @throws std::invalid_argument with the fault in words.
double places_of_topology(const std::string& topology, const std::string& parameters);

}  // namespace isobar::sim
