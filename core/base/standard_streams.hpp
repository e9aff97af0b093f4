#pragma once

#include <functional>
#include <string>

namespace isobar {

/// Opens /dev/null in place of a standard input, output or error that this process was started without (`>&-`): the
/// next file that it opens would be taken for it, and get what is printed. Called first by main.
void open_standard_streams();

/// Prints "isobar: ", the lines and a newline on standard error. That nobody can read them there ends nothing.
void say(const std::string& lines);

/// A `say` for forked children too, whose own standard error this process reads (run_in_children).
std::function<void(const std::string& lines)> say_here();

}  // namespace isobar
