#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/program/program.hpp"
#include "core/units.hpp"
#include "schedules/lowering/folded_links.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace isobar::schedules {

/// A step in which some of several equal devices act for all.
struct FoldedStep {
  Plan plan;          ///< the whole one; its devices are the ranks of the program
  Workload workload;  ///< likewise
  std::unique_ptr<Program> program;
  std::vector<LinkUsers> links;       ///< whose bandwidth is to be divided before the program is simulated
  std::vector<std::size_t> acts_for;  ///< by rank: the one that acts in its place, or itself
  std::string note = {};  ///< what it leaves out of the whole step, where that has too many instructions; else empty
};

/// Folds a plan of equal replicas, equal shards, or both: in the program, only the first replicas act, and of these
/// only the first shard. All other ranks have an empty compute lane and hold nothing. On the platform with its links
/// divided, the program takes as long as that of the whole plan (make_program), to the last digits but for rounding to
/// whole bytes; so it does in play_program with nominal_rates of the platform as it is, if no flows share links
/// (PlayerRates::shared_links). Events and memory are those of the ranks that act.
///
/// Where shards wait for each other between passes (TransferRules::blocking), their collectives may become work of the
/// one that acts: they have no events then, and stages of instructions are those of all layers of a device together.
///
/// Of replicas that divide sequences or experts, whole groups act. If that leaves more than most_played_instructions,
/// fewer act, and what they exchange for their passes takes what it takes alone, among all groups at once, without
/// flows: then transfers and exchanges do not slow down each other, as the note says.
///
/// One replica acts, or two, or those of the first two sites (by the first stage): the fewest whose flows meet on links
/// as those of the whole plan do (compare_flows). Micro-batches are numbered as if no others were taken.
///
/// What all ranks know of all gradients, once a step when nothing else is under way, comes in no time beyond its
/// latencies among the ranks that act; what it takes besides counts as work of their first update.
/// @returns the folded step, or why there is none, for people.
/// O(stages x devices + flows of a step's channels x links), and the program's own cost for the ranks that act.
/// `keeps_stages`: collectives stay as they are, and instructions name the stages of the plan.
/// `plan` is checked and feasible. @throws InputError as make_program does.
std::variant<FoldedStep, std::string> fold(const Plan& plan, const Workload& workload, const Cluster& cluster,
                                           bool keeps_stages = false);

/// The same with as few devices as can act: of replicas that divide sequences or experts, one acts, whatever the number
/// of instructions. For searches that compare many plans.
std::variant<FoldedStep, std::string> fold_most(const Plan& plan, const Workload& workload, const Cluster& cluster);

}  // namespace isobar::schedules
