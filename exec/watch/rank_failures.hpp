#pragma once

#include "core/base/child_process.hpp"
#include "core/failure.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace isobar::exec {

/// Attributes a failure to a rank and adds the rank's name to its text. Unchanged when it already has a rank.
Failure failure_of_rank(std::size_t rank, const std::string& name, Failure failure);

/// True for failures that a rank finds when another one is gone or late, or when it was cancelled. False once the
/// failure is attributed to a rank.
bool follows_from_another(const Failure& failure);

/// The rank that is dead, silent or out of memory, so that a plan without it may work; else nullopt. A full disk, for
/// example, does not count: those of the other ranks may be full too.
std::optional<std::size_t> rank_lost(const Failure& failure);

/// Finds, among the failures of ranks that are processes of this machine, the one that caused the others.
class RankFailures {
 public:
  explicit RankFailures(std::vector<std::string> names) : names_(std::move(names)) {}

  /// Adds the result of a rank that has ended. Call it in the order in which they end.
  void ended(std::size_t rank, const ChildResult& result);
  /// Throws the failure that says most about the cause (throw_failure), of the rank at fault. The order of preference
  /// is: a rank's own failure; a failure that it reports of another rank; a closed connection or a passed deadline; a
  /// rank that had to be killed. Among equals, the first wins.
  void throw_if_any() const;

 private:
  enum class Worth { Cause, OfAnother, Consequence, Silence };
  struct Found {
    Worth worth;
    Failure failure;
  };
  Found found_of(std::size_t rank, const Failure& failure) const;

  std::vector<std::string> names_;
  std::optional<Found> worst_;
};

}  // namespace isobar::exec
