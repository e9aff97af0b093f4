#include "exec/rank_failures.hpp"

#include "core/errors.hpp"
#include "exec/heartbeat.hpp"

#include <fmt/format.h>

#include <utility>

namespace isobar::exec {

std::vector<std::string> names_of_ranks(const Plan& plan)
{
  std::vector<std::string> names;
  for (const auto& stage : plan.stages)
    names.push_back(fmt::format("rank {} ({})", names.size(), shown(stage.device())));
  if (plan.data_server) names.push_back(fmt::format("rank {} (data server)", names.size()));
  return names;
}

std::string said_of(const std::string& name, const std::string& message)
{
  return message.starts_with(name) ? message : fmt::format("{}: {}", name, message);
}

std::optional<std::size_t> rank_blamed(const std::string& message, const std::vector<std::string>& names)
{
  for (std::size_t rank = 0; rank < names.size(); ++rank) {
    if (message.starts_with(names[rank])) return rank;
  }
  return std::nullopt;
}

RankFailures::Failure RankFailures::failure_of(std::size_t rank, const ChildResult& result) const
{
  using Status = ChildResult::Status;
  if (result.status == Status::TimedOut) return {Kind::Silence, false, names_[rank] + ": did not answer"};
  const auto blamed = rank_blamed(result.message, names_);
  if (blamed && *blamed != rank) return {Kind::OfAnother, false, result.message};
  const auto kind = follows_from_another(result.message) ? Kind::Consequence : Kind::Cause;
  return {kind, result.status == Status::InputFault, said_of(names_[rank], result.message)};
}

void RankFailures::ended(std::size_t rank, const ChildResult& result)
{
  if (result.status == ChildResult::Status::Done) return;
  Failure failure = failure_of(rank, result);
  if (!worst_ || failure.kind < worst_->kind) worst_ = std::move(failure);
}

void RankFailures::throw_if_any() const
{
  if (!worst_) return;
  if (worst_->of_input) throw InputError(worst_->message);
  throw EnvironmentError(worst_->message);
}

}  // namespace isobar::exec
