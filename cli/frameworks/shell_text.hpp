#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace isobar::cli {

/// An option of a program with its values; without some, a flag.
using Argument = std::pair<std::string, std::vector<std::string>>;

/// Arguments as an array of a shell script, an option a line, with quotes where a shell would read more than text.
/// `heading` are lines of comments.
std::string shell_array(const std::string& name, const std::vector<Argument>& arguments,
                        const std::vector<std::string>& heading);

/// The words of a text as a shell reads them: between blanks and line breaks, without the quotes around them or a
/// backslash before them, and without comments. @throws InputError naming `place` for quotes without an end.
std::vector<std::string> shell_words(std::string_view text, const std::string& place);

}  // namespace isobar::cli
