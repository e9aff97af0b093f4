#pragma once

#include "core/errors.hpp"

#include <cstddef>
#include <exception>
#include <optional>
#include <string>
#include <string_view>

namespace isobar {

/// A failure as a value that travels between threads, processes and ranks. Decisions that depend on it (whether to
/// restart, which rank to blame, which device to leave out) use kind, rank and code, never the text.
struct Failure {
  enum class Kind {
    Other,
    PeerClosed,      ///< the peer closed the connection
    DeadlinePassed,  ///< a wait took longer than its limit
    Cancelled,       ///< given up because something else failed
    Died,            ///< a process was ended by a signal, exited on its own, or is gone
    Silent,          ///< a process sent no heartbeat, or no answer, within its limit
    OutOfMemory,
    BadInput
  };
  Kind kind = Kind::Other;
  std::optional<std::size_t> rank;  ///< the rank at fault, which the text then names too; none if unknown
  ExitCode code = ExitCode::EnvironmentError;
  std::string text;
};

/// A failure of the machine or the network, with ExitCode::EnvironmentError.
Failure environment_failure(Failure::Kind kind, std::string text, std::optional<std::size_t> rank = {});

/// The failure that an exception carries, or else one that follows from the exception's type. std::bad_alloc is out of
/// memory. A file system error is an environment error, or bad input when a name is too long. An exception of an
/// unknown type is a bug.
Failure failure_of(const std::exception& error);
Failure failure_of(const std::exception_ptr& error);

/// The line that a command prints for the failure that ends it: the text, "interrupted", or a request to report a bug.
std::string line_of(const Failure& failure);

/// Throws an exception that carries the failure. Its type follows from the code: InputError, Interrupted,
/// std::logic_error (a bug) or else EnvironmentError. Its what() is the text.
[[noreturn]] void throw_failure(const Failure& failure);

/// Serializes a failure as one line of text, and parses it. Parsing untrusted text is safe: none for any other line.
std::string serialize_failure(const Failure& failure);
std::optional<Failure> parse_failure(std::string_view line);

/// For tests that show that nothing depends on a text: from now on, `reword` replaces the text of every failure that is
/// thrown, found or received in this process and its children.
void reword_failures(std::string (*reword)(const std::string& text));

}  // namespace isobar
