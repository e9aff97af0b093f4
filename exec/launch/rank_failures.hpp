#pragma once

#include "core/base/child_process.hpp"
#include "core/failure.hpp"
#include "core/plan/plan.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace isobar::exec {

/// All ranks of a plan as messages call them: "rank 1 (b)" by its device, "rank 2 (data server)".
std::vector<std::string> names_of_ranks(const Plan& plan);

/// The failure as one of that rank, which its text names: as it is where it is one of a rank already.
Failure failure_of_rank(std::size_t rank, const std::string& name, Failure failure);

/// True of what a rank finds when another one is gone or late, or when it has given up itself; not once it is known
/// whose failure it is.
bool follows_from_another(const Failure& failure);

/// The rank that is dead, silent or out of memory, so that leaving it out may help. Not the one whose disk is full, for
/// one: the others' may be as full.
std::optional<std::size_t> rank_lost(const Failure& failure);

/// The failures of ranks that are processes of this machine, and which of them the others follow from.
class RankFailures {
 public:
  explicit RankFailures(std::vector<std::string> names) : names_(std::move(names)) {}

  /// A rank has ended. Called in the order of the ends.
  void ended(std::size_t rank, const ChildResult& result);
  /// The first failure of those that say most of the cause: what a rank says of itself, before what it says of
  /// another, before a connection that closed or a deadline that passed, before a rank that had to be ended.
  /// @throws that failure, of the rank that is at fault (throw_failure).
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
