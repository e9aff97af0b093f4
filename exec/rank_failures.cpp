#include "exec/rank_failures.hpp"

#include "core/errors.hpp"
#include "exec/heartbeat.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string_view>
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

std::optional<std::size_t> rank_lost(const std::string& message, const std::vector<std::string>& names)
{
  constexpr std::array<std::string_view, 6> losses = {
      " is gone",         ": died of signal ",      ": exited with code ",
      ": did not answer", ": no sign of life for ", ": out of memory"};
  const auto rank = rank_blamed(message, names);
  if (!rank) return std::nullopt;
  const std::string_view what = std::string_view(message).substr(names[*rank].size());
  const bool is_lost = std::any_of(losses.begin(), losses.end(), [&](auto loss) { return what.starts_with(loss); });
  return is_lost ? rank : std::nullopt;
}

RankFailures::Failure RankFailures::failure_of(std::size_t rank, const ChildResult& result) const
{
  using Status = ChildResult::Status;
  if (result.status == Status::TimedOut) return {Kind::Silence, result.status, names_[rank] + ": did not answer"};
  const auto blamed = rank_blamed(result.message, names_);
  if (blamed && *blamed != rank) return {Kind::OfAnother, result.status, result.message};
  const auto kind = follows_from_another(result.message) ? Kind::Consequence : Kind::Cause;
  return {kind, result.status, said_of(names_[rank], result.message)};
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
  using Status = ChildResult::Status;
  if (worst_->status == Status::InputFault) throw InputError(worst_->message);
  if (worst_->status == Status::Interrupted) throw Interrupted();
  if (worst_->status == Status::Bug) throw std::logic_error(worst_->message);
  throw EnvironmentError(worst_->message);
}

}  // namespace isobar::exec
