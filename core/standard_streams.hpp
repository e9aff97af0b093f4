#pragma once

#include <string>

namespace isobar {

/// Opens /dev/null in place of a standard input, output or error that this process was started without (`>&-`): the
/// next file that it opens would be taken for it, and get what is printed. Called first by main.
void open_standard_streams();

/// Prints "isobar: ", the lines and a newline on standard error. That nobody can read them there ends nothing.
void say(const std::string& lines);

}  // namespace isobar
