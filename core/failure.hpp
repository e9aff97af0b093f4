#pragma once

#include "core/errors.hpp"

#include <cstddef>
#include <exception>
#include <optional>
#include <string>
#include <string_view>

namespace isobar {

/// What has failed, as a value that travels between threads, processes and ranks. Whoever decides by it (whether to
/// start again, whom to blame, which device to leave out) looks at kind, rank and code, and never at the text.
struct Failure {
  enum class Kind {
    Other,
    PeerClosed,      ///< a connection whose other end has closed it
    DeadlinePassed,  ///< a wait that took longer than its limit
    Cancelled,       ///< given up because something else has failed
    Died,            ///< a process that a signal or an exit of its own ended, or that is gone
    Silent,          ///< a process that gave no sign of life, or no answer, within its limit
    OutOfMemory,
    BadInput
  };
  Kind kind = Kind::Other;
  std::optional<std::size_t> rank;  ///< at fault, and then named in the text; nothing where nobody is known to be
  ExitCode code = ExitCode::EnvironmentError;
  std::string text;
};

/// What the machine or the network is to blame for: an EnvironmentError.
Failure environment_failure(Failure::Kind kind, std::string text, std::optional<std::size_t> rank = {});

/// The failure that an exception carries; for one that carries none, what its type says: std::bad_alloc is out of
/// memory, a file system's error the environment's fault (or bad input, where a name is too long), and what is none of
/// ours a bug.
Failure failure_of(const std::exception& error);
Failure failure_of(const std::exception_ptr& error);

/// What a command says of the failure that ends it: the text, "interrupted", or that it is a bug of ours.
std::string line_of(const Failure& failure);

/// Throws what carries the failure and is, by its code, an InputError, Interrupted, std::logic_error (a bug) or else an
/// EnvironmentError. Its what() is the text.
[[noreturn]] void throw_failure(const Failure& failure);

/// As one line of text, and back; nothing of what is no such line, whoever sent it.
std::string word_of(const Failure& failure);
std::optional<Failure> failure_from_word(std::string_view word);

/// For tests that show that nothing depends on a text: from now on every text of a failure that is thrown, found or
/// received in this process, or a child of it, is what `reword` makes of it.
void reword_failures(std::string (*reword)(const std::string& text));

}  // namespace isobar
