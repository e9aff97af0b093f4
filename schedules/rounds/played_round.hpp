#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/outer/outer.hpp"
#include "core/program/player.hpp"
#include "core/program/program.hpp"
#include "core/units.hpp"
#include "schedules/rounds/outer_pieces.hpp"

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace isobar::schedules {

/// The Program of the rounds of a plan, with what plays it.
struct BuiltRound {
  std::unique_ptr<Program> program;
  OuterDivision division;
  PlayerRates rates;                      ///< nominal ones
  std::vector<std::size_t> first_rank;    ///< by worker
  std::vector<std::string> devices = {};  ///< by rank; the data server's name where a rank is it
};

/// Whether long runs of steps are one computation of as many step times.
enum class RoundSteps { All, InOne };

/// What rounds are built from. Refers to it.
struct RoundInputs {
  const OuterPlan& plan;
  const Workload& workload;                 ///< whose parameters workers bring together
  const std::vector<Workload>& of_workers;  ///< with what the plan of each changes (Plan::micro_batch and others)
  const Cluster& cluster;
};

/// Builds the rounds of a plan. Devices compute as the systems of the workers' plans have them (compute::AsTrained).
/// @throws InputError where a plan has no Program, and for one without transfers.
BuiltRound build_round(const RoundInputs& inputs, RoundSteps steps);

/// What play_round finds.
struct PlayedRound {
  PredictedRound predicted;
  Seconds bound;                                ///< OuterPlan::round_bound
  std::map<std::string, Bytes> peak_memory;     ///< by device
  std::map<std::string, Bytes> machine_memory;  ///< that the ranks of a machine hold at most, by its name
};

/// Rounds that are played, of which the last one counts: in the first one nothing is on its way from one before.
inline constexpr std::uint64_t rounds_to_play = 3;

/// Instructions of a round up to which all its steps are played for a prediction.
inline constexpr std::uint64_t most_played_whole = std::uint64_t{1} << 18;

/// Predicts the rounds of a plan: plays their Program as the simulator does. In rounds of more than `most_whole`
/// instructions runs of steps are one computation, which is exact where a worker's steps follow each other as alone.
///
/// The bound: a rank takes as long as its computations, and without a delay the syncs of its parameters alone; and no
/// round is shorter than the syncs of one piece of parameters one after the other.
/// @throws InputError as build_round and play_program do.
PlayedRound play_round(const RoundInputs& inputs, std::uint64_t most_whole = most_played_whole);

/// The devices and machines that have too little memory for a played round, a line each.
std::vector<std::string> memory_faults_of(const PlayedRound& played, const Cluster& cluster);

}  // namespace isobar::schedules
