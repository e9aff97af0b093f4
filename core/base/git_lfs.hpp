#pragma once

#include <string>
#include <string_view>

namespace isobar {

/// Refuses what git leaves in place of a large file that git-lfs has not fetched. `begin`: at least the first 64 bytes
/// of the file, or all. @throws InputError naming the file.
void refuse_lfs_pointer(std::string_view begin, const std::string& name);

}  // namespace isobar
