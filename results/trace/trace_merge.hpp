#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace isobar::results {

/// Two traces of one plan as one (schema isobar-merged-trace/1, docs/formats.md): each device has its predicted process
/// and below it the measured one, and step `step` of both begins at the same moment. By default that of the median time
/// of each, the first left out where there are more. `step` is taken of each trace that has so many, else its last.
/// @throws InputError when one is no trace of ours, or they are not of the same instructions on the same devices.
std::string merged_trace(const std::filesystem::path& predicted, const std::filesystem::path& measured,
                         const std::optional<std::uint64_t>& step);

}  // namespace isobar::results
