#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace isobar::results {

/// Merges two traces of one plan (schema isobar-merged-trace/1, docs/formats/trace.md).
///
/// Each device has its predicted process and, below it, the measured one. Step `step` of both begins at the same
/// moment; a trace without that many steps uses its last one. By default it is the step with the median time of each
/// trace, the first of several steps excluded.
/// @throws InputError when one is not a trace of Isobar, or when their instructions or devices differ.
std::string merged_trace(const std::filesystem::path& predicted, const std::filesystem::path& measured,
                         const std::optional<std::uint64_t>& step);

}  // namespace isobar::results
