#include "schedules/lowering/played_step.hpp"

#include "core/costs/nominal_rates.hpp"
#include "core/errors.hpp"
#include "core/program/walk.hpp"
#include "schedules/lowering/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace isobar::schedules {

PlayerRates rates_of(const FoldedStep& step, const Cluster& cluster)
{
  PlayerRates rates = nominal_rates(step.plan, cluster);
  if (!rates.shared_links) return rates;
  std::unordered_map<std::string, double> users;
  for (const auto& link : step.links) users.emplace(link.link, link.users);
  const auto divided = [whole = std::move(rates.shared_links), users = std::move(users)](std::size_t from,
                                                                                         std::size_t to) {
    auto links = whole(from, to);
    for (auto& link : links) {
      const auto found = users.find(std::string(link.name));
      if (found != users.end()) link.bandwidth = link.bandwidth / found->second;
    }
    return links;
  };
  rates.transfer = [alone = std::move(rates.transfer), divided](std::size_t from, std::size_t to, Bytes size) {
    TransferTimes times = alone(from, to, size);
    for (const auto& link : divided(from, to)) times.data = std::max(times.data, link.passes * size / link.bandwidth);
    return times;
  };
  rates.shared_links = divided;
  return rates;
}

namespace {

/// The played steps of those that act, with the memory of all.
PlayedProgram played_for_all(const FoldedStep& step, const Cluster& cluster, std::uint64_t periods)
{
  PlayedProgram played = play_program(*step.program, rates_of(step, cluster), periods);
  for (std::size_t rank = 0; rank < step.acts_for.size(); ++rank) {
    played.peak_memory[rank] = played.peak_memory[step.acts_for[rank]];
  }
  return played;
}

}  // namespace

std::optional<PlayedProgram> play_folded(const Plan& plan, const Workload& workload, const Cluster& cluster,
                                         const Program& whole, std::uint64_t periods)
{
  const std::uint64_t instructions = instructions_of(whole);
  if (instructions <= most_played_instructions) return std::nullopt;
  auto folded = fold(plan, workload, cluster);
  if (const auto* reason = std::get_if<std::string>(&folded)) {
    throw InputError(
        fmt::format("program: {} instructions in a period; at most {} can be played, and no devices act for others: {}",
                    instructions, most_played_instructions, *reason));
  }
  return played_for_all(std::get<FoldedStep>(folded), cluster, periods);
}

PlayedProgram play_steps(const Plan& plan, const Workload& workload, const Cluster& cluster, const Program& whole,
                         std::uint64_t periods)
{
  auto folded = play_folded(plan, workload, cluster, whole, periods);
  return folded ? std::move(*folded) : play_program(whole, nominal_rates(plan, cluster), periods);
}

PlayedProgram play_acting(const Plan& plan, const Workload& workload, const Cluster& cluster, std::uint64_t periods)
{
  const auto folded = fold_most(plan, workload, cluster);
  if (const auto* step = std::get_if<FoldedStep>(&folded)) return played_for_all(*step, cluster, periods);
  return play_program(*make_program(plan, workload, cluster), nominal_rates(plan, cluster), periods);
}

}  // namespace isobar::schedules
