#pragma once

#include <functional>
#include <string>

namespace isobar {

/// Opens /dev/null in place of a standard stream that this process was started without (`>&-`). Otherwise the next file
/// that the process opens would get that descriptor, and printed text would go into the file. Call it first in main.
void open_standard_streams();

/// Prints "isobar: ", the lines and a newline on standard error. Write errors are ignored.
void say(const std::string& lines);

/// A `say` that prints to this process's standard error from forked children too, whose own one is a pipe
/// (run_in_children).
std::function<void(const std::string& lines)> say_here();

}  // namespace isobar
