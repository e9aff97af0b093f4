#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace isobar {

/// Exit codes of both commands.
enum class ExitCode : int {
  Done = 0,
  OurBug = 1,
  InputError = 2,
  EnvironmentError = 3,
  Infeasible = 4,
  CheckFailed = 5,
  Interrupted = 130
};

/// The user's file, option or plan is wrong. Each fault is one line: "where: what is there; what would be right".
class InputError : public std::runtime_error {
 public:
  explicit InputError(const std::string& fault) : std::runtime_error(fault) {}
  /// `where` may be a name that the user chose: it is shown on one line.
  InputError(const std::string& where, const std::string& what);
  /// All faults of a file, one line each, in the order of their lines.
  explicit InputError(const std::vector<std::string>& faults);
};

/// The machine failed: no such device, a full disk, a child process that died.
class EnvironmentError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  /// `where` may be a name that the user chose: it is shown on one line.
  EnvironmentError(const std::string& where, const std::string& what);
};

/// What an error says after its place: "is empty" of the fault "name: is empty" for the place "name"; the whole fault
/// if it has another place.
std::string without_place(const std::string& place, const InputError& fault);

/// The user or the system asked the process to stop (SIGINT, SIGTERM).
class Interrupted : public std::runtime_error {
 public:
  Interrupted() : std::runtime_error("interrupted") {}
};

/// Checks an invariant: throws std::logic_error (a bug in Isobar) unless `condition` holds. Never disabled.
inline void ensure(bool condition, const char* what)
{
  if (!condition) [[unlikely]]
    throw std::logic_error(what);
}

/// The candidate closest to a misspelt word, or "" when none is close (at most a third of its letters differ).
std::string nearest_word(const std::string& word, const std::vector<std::string>& candidates);

/// Escapes a user's text for a message: one line of at most `longest` bytes, with control characters and bytes that are
/// not UTF-8 as \xNN.
std::string shown(std::string_view text, std::size_t longest = 60);
/// The whole text on one line, escaped likewise.
std::string on_one_line(std::string_view text);
/// The whole text with its line breaks, each line escaped likewise: no escape sequence reaches a terminal.
std::string printable(std::string_view lines);
/// Like `shown`, in quotes.
std::string in_quotes(std::string_view text);

}  // namespace isobar
