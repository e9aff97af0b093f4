#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace isobar {

/// The whole file. @throws InputError when it cannot be read ("FILE: no such file").
std::string read_file(const std::filesystem::path& file);

/// Writes to a temporary name beside `file` and renames it, so that a fault never costs what was there before.
/// @throws EnvironmentError when the disk refuses.
void write_file_atomically(const std::filesystem::path& file, std::string_view content);

/// 64-bit FNV-1a, 16 hexadecimal digits: recognises the same content again; no protection against forgery.
std::string fingerprint(std::string_view content);

}  // namespace isobar
