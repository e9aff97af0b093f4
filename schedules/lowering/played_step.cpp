#include "schedules/lowering/played_step.hpp"

#include "core/costs/nominal_rates.hpp"
#include "core/errors.hpp"
#include "core/program/walk.hpp"
#include "schedules/lowering/fold.hpp"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace isobar::schedules {

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
  const auto& step = std::get<FoldedStep>(folded);
  PlayedProgram played = play_program(*step.program, nominal_rates(plan, workload, cluster), periods);
  for (std::size_t rank = 0; rank < step.acts_for.size(); ++rank) {
    played.peak_memory[rank] = played.peak_memory[step.acts_for[rank]];
  }
  return played;
}

PlayedProgram play_steps(const Plan& plan, const Workload& workload, const Cluster& cluster, const Program& whole,
                         std::uint64_t periods)
{
  auto folded = play_folded(plan, workload, cluster, whole, periods);
  return folded ? std::move(*folded) : play_program(whole, nominal_rates(plan, workload, cluster), periods);
}

}  // namespace isobar::schedules
