#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace isobar {

/// What users hand to the commands, and mix up.
enum class FileKind { Platform, Workload, Plan, Result };

/// The kind of file that a text looks like, by its first element or keys; none where it looks like no one's.
std::optional<FileKind> file_kind_of(std::string_view text);

/// @throws InputError "name: is a plan; name a result (…)" for a text that looks like another kind than `wanted`.
void require_file_kind(FileKind wanted, std::string_view text, const std::string& name);

}  // namespace isobar
