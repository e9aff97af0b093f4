#pragma once

#include "core/outer/codec.hpp"
#include "core/plan/plan.hpp"
#include "core/program/program.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace isobar {

/// Most steps and fragments of a round.
inline constexpr std::uint64_t most_inner_steps = 100'000;
inline constexpr std::uint64_t most_fragments = 1'000;

/// How workers, each with all parameters, bring them together in rounds of steps of their own: DiLoCo (Douillard et
/// al., arXiv 2311.08105), and Streaming DiLoCo (arXiv 2501.18512) with several fragments or a delay.
///
/// Layer l belongs to fragment l mod `fragments`. A worker of H steps encodes the outer gradient of fragment f after
/// step ceil((f + 1) H / fragments), and takes the update by the mean of all workers `delay` steps later, from the next
/// round on if the round ends before. It computes meanwhile; without a delay it waits.
struct Outer {
  std::uint64_t steps = 100;    ///< of a round, of the workers with the most
  std::uint64_t fragments = 1;  ///< at most `steps`, and at most the layers
  std::uint64_t delay = 0;      ///< in steps; less than those of any worker
  Algorithm algorithm = Algorithm::Ring;
  Codec codec = {};            ///< of outer gradients
  double learning_rate = 0.7;  ///< of the outer optimizer: SGD with Nesterov's momentum
  double momentum = 0.9;
  double mixing = 0;  ///< the part that a worker keeps of its own parameters at an update: 0 to below 1

  bool operator==(const Outer&) const = default;
};

/// The devices of a site, or of several, that compute steps of a plan of their own with all parameters.
struct OuterWorker {
  std::string name;         ///< of its site; unique
  std::uint64_t steps = 1;  ///< of a round
  Plan plan;                ///< feasible; its `without` names all other devices
};

/// What passes from one worker to another in a round.
struct OuterTraffic {
  std::string from;
  std::string to;
  Bytes bytes;
};

/// A site without a worker.
struct LeftOutSite {
  std::string name;
  std::string reason;
};

/// The predicted times of rounds that follow each other.
struct PredictedRound {
  Seconds round_time;
  Seconds slowest_steps;  ///< the steps of a round of the worker that takes longest, without outer syncs
  std::vector<OuterTraffic> traffic = {};

  /// The part of a round in which the slowest worker computes steps.
  double utilization_fraction() const { return slowest_steps / round_time; }
};

/// Plans of workers, and how they bring their parameters together. Inputs are those of the workers' plans.
struct OuterPlan {
  std::string allocator = "diloco";
  Outer outer;
  std::vector<OuterWorker> workers;  ///< two or more, in the order of the ring and of sums
  std::vector<LeftOutSite> left_out = {};
  PredictedRound predicted;
  Seconds round_bound;  ///< no order of these workers' instructions has shorter rounds
  Seconds search_time;  ///< wall clock; under "wall" in the file
};

/// The names of the algorithms by which outer gradients can be summed.
std::vector<std::string> outer_algorithm_names();

/// The steps of a worker after which it encodes each fragment, by fragment: 1 to `steps`.
std::vector<std::uint64_t> snapshot_steps(std::uint64_t steps, std::uint64_t fragments);

/// Samples of all workers in a round, of micro-batches of `micro_batch` samples where a plan has no others.
std::uint64_t samples_of_round(const OuterPlan& plan, std::uint64_t micro_batch);

/// What rounds do to the result, for people: that samples per second of different rounds and steps do not compare by
/// loss, and what the codec changes.
std::string numerics_note(const Outer& outer);

/// A plan of rounds as JSON, schema isobar-rounds/1 (docs/formats/rounds.md). Deterministic except for "wall".
std::string outer_plan_to_json(const OuterPlan& plan);
/// Reads such a file. @throws InputError naming file, line and key of every fault.
OuterPlan read_outer_plan(const std::filesystem::path& file);
/// Whether a JSON file says that it is a plan of rounds. False for one that cannot be read or parsed.
bool is_outer_plan(const std::filesystem::path& file);

}  // namespace isobar
