#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace isobar::exec {

/// How many of a file's first bytes foreign_format needs.
inline constexpr std::size_t foreign_format_bytes = 4096;

/// What a file is that no reader of tokens knows, by its first bytes: "a Parquet file", "text". "" if it may be numbers
/// from the first byte on. Numbers look like one of these by chance about once in ten million files.
std::string foreign_format(std::string_view start);

}  // namespace isobar::exec
