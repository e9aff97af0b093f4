#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace isobar::results {

/// Reads a whole file and decompresses it if it begins like a gzip file (RFC 1952).
/// @throws what read_file and unpack_gzip throw, naming the file.
std::string read_unpacked(const std::filesystem::path& file);

/// Decompresses a gzip file of one or more members. O(bytes).
/// @throws InputError without the file's name when it is damaged or decompresses to more than 4 GiB; Interrupted.
std::string unpack_gzip(std::string_view packed);

}  // namespace isobar::results
