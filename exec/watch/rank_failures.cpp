#include "exec/watch/rank_failures.hpp"

#include <fmt/format.h>

#include <utility>

namespace isobar::exec {

Failure failure_of_rank(std::size_t rank, const std::string& name, Failure failure)
{
  if (failure.rank) return failure;
  failure.rank = rank;
  failure.text = fmt::format("{}: {}", name, failure.text);
  return failure;
}

bool follows_from_another(const Failure& failure)
{
  using Kind = Failure::Kind;
  if (failure.rank || failure.code != ExitCode::EnvironmentError) return false;
  return failure.kind == Kind::PeerClosed || failure.kind == Kind::DeadlinePassed || failure.kind == Kind::Cancelled;
}

std::optional<std::size_t> rank_lost(const Failure& failure)
{
  using Kind = Failure::Kind;
  const bool is_lost = failure.kind == Kind::Died || failure.kind == Kind::Silent || failure.kind == Kind::OutOfMemory;
  return is_lost ? failure.rank : std::nullopt;
}

RankFailures::Found RankFailures::found_of(std::size_t rank, const Failure& failure) const
{
  const std::string& name = names_[rank];
  if (failure.kind == Failure::Kind::Silent && !failure.rank) {
    return {Worth::Silence, {failure.kind, rank, failure.code, name + ": did not answer"}};
  }
  if (failure.rank && *failure.rank != rank) return {Worth::OfAnother, failure};
  const auto worth = follows_from_another(failure) ? Worth::Consequence : Worth::Cause;
  return {worth, failure_of_rank(rank, name, failure)};
}

void RankFailures::ended(std::size_t rank, const ChildResult& result)
{
  if (!result.failure) return;
  Found found = found_of(rank, *result.failure);
  if (!worst_ || found.worth < worst_->worth) worst_ = std::move(found);
}

void RankFailures::throw_if_any() const
{
  if (worst_) throw_failure(worst_->failure);
}

}  // namespace isobar::exec
