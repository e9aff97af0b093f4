#pragma once

#include "core/child_process.hpp"
#include "core/plan.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace isobar::exec {

/// All ranks of a plan as messages call them: "rank 1 (b)" by its device, "rank 2 (data server)".
std::vector<std::string> names_of_ranks(const Plan& plan);

/// A message as one of a rank: with the rank's name before it, unless it begins with that.
std::string said_of(const std::string& name, const std::string& message);

/// The rank that a message begins with the name of: who is at fault.
std::optional<std::size_t> rank_blamed(const std::string& message, const std::vector<std::string>& names);

/// The rank that is lost by such a message, or has too little memory: where leaving it out may help. Not the one whose
/// disk is full, for one: the others' may be as full.
std::optional<std::size_t> rank_lost(const std::string& message, const std::vector<std::string>& names);

/// The failures of ranks that are processes of this machine, and which of them the others follow from.
class RankFailures {
 public:
  explicit RankFailures(std::vector<std::string> names) : names_(std::move(names)) {}

  /// A rank has ended. Called in the order of the ends.
  void ended(std::size_t rank, const ChildResult& result);
  /// The first failure of those that say most of the cause: what a rank says of itself, before what it says of
  /// another, before a connection that closed or a deadline that passed, before a rank that had to be ended.
  /// @throws InputError or EnvironmentError "rank 1 (b): …"; Interrupted.
  void throw_if_any() const;

 private:
  enum class Kind { Cause, OfAnother, Consequence, Silence };
  struct Failure {
    Kind kind;
    ChildResult::Status status;
    std::string message;
  };
  Failure failure_of(std::size_t rank, const ChildResult& result) const;

  std::vector<std::string> names_;
  std::optional<Failure> worst_;
};

}  // namespace isobar::exec
