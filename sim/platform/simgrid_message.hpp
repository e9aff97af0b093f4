#pragma once

#include <string>

namespace isobar::sim {

/// The first line of a message of SimGrid, without the addresses of its objects.
std::string first_line_of_simgrid(const std::string& message);

/// SimGrid's message about a faulty platform file as one of ours: "file:line: SimGrid: …", "file: SimGrid: …" where
/// SimGrid knows no line. `loaded` is the path that SimGrid read, `file` the name that the user knows.
std::string fault_of_simgrid(const std::string& file, const std::string& loaded, const std::string& message);

}  // namespace isobar::sim
