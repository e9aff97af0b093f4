#pragma once

#include <filesystem>

namespace isobar::exec {

/// Returns when what `folder` names is on the disk: a renamed or new file is safe only then. Where the file system
/// knows no such thing, it has done its best. @throws EnvironmentError when the disk refuses.
void synchronise_folder(const std::filesystem::path& folder);

/// The folder that `file` lies in; "." where its name says none.
std::filesystem::path folder_of_file(const std::filesystem::path& file);

}  // namespace isobar::exec
