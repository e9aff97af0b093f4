#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace isobar::results {

/// Reads a whole file, and unpacks it when it begins as one that gzip packed (RFC 1952).
/// @throws as read_file and unpack_gzip, naming the file.
std::string read_unpacked(const std::filesystem::path& file);

/// Unpacks a file packed by gzip, of one member or several. O(bytes).
/// @throws InputError without the file's name when it is damaged or unpacks to more than 4 GiB; Interrupted.
std::string unpack_gzip(std::string_view packed);

}  // namespace isobar::results
