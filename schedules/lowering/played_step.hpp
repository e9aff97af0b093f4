#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/program/player.hpp"
#include "core/program/program.hpp"
#include "schedules/lowering/fold.hpp"

#include <cstdint>
#include <optional>

namespace isobar::schedules {

/// The rates by which play_program takes as long for a folded step as for the whole one: nominal ones, with the links
/// divided. The step and the cluster must outlive them.
PlayerRates rates_of(const FoldedStep& step, const Cluster& cluster);

/// Plays `periods` steps of a plan in which some of several equal devices act for all (fold), if a step of its Program,
/// `whole`, has more than most_played_instructions; none: it has not. Memory is that of all ranks.
/// @throws InputError as play_program does, and for a long step that cannot be folded, with the reason.
std::optional<PlayedProgram> play_folded(const Plan& plan, const Workload& workload, const Cluster& cluster,
                                         const Program& whole, std::uint64_t periods);

/// Plays `periods` steps of a plan: its Program, `whole`, or a folded one if that is too long.
/// @throws InputError as play_folded does.
PlayedProgram play_steps(const Plan& plan, const Workload& workload, const Cluster& cluster, const Program& whole,
                         std::uint64_t periods);

/// Plays `periods` steps of a plan in which as few devices as possible act for all (fold_most), or all where none can:
/// a quick estimate of its step, which is that of the whole plan but for flows that share links.
/// @throws InputError as play_program does.
PlayedProgram play_acting(const Plan& plan, const Workload& workload, const Cluster& cluster, std::uint64_t periods);

}  // namespace isobar::schedules
