#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace isobar {

/// The kinds of files that users pass to the commands, and may mix up.
enum class FileKind { Platform, Workload, Plan, Result };

/// The kind of file that a text looks like, by its first element or keys; none if it looks like none of them.
std::optional<FileKind> file_kind_of(std::string_view text);

/// Refuses a text that looks like a file of another kind than `wanted`.
/// @throws InputError "name: is a plan; name a result (…)".
void require_file_kind(FileKind wanted, std::string_view text, const std::string& name);

}  // namespace isobar
