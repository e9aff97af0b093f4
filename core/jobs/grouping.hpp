#pragma once

#include "core/jobs/job.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar {

/// A job of which is known what a step takes, before it is decided with whom it shares devices.
struct JobProfile {
  std::string name;
  std::uint64_t steps = 1;
  std::size_t devices = 1;
  JobStepTimes step;
  Bytes resident;     ///< on each of its devices throughout
  Bytes activations;  ///< on each of its devices besides, from the begin of a turn to its end

  bool operator==(const JobProfile&) const = default;
};

/// The largest number of jobs that are grouped together.
inline constexpr std::size_t most_grouped_jobs = 4000;

/// Reads a table of jobs (CSV, docs/formats/groups.md).
/// @throws InputError with every fault, "file:line: column: what".
std::vector<JobProfile> read_job_profiles(const std::filesystem::path& file);

/// How many jobs may share a set of devices.
enum class GroupSize : std::uint8_t {
  Pairs,
  Triples,
  Auto  ///< up to four
};
std::string_view name_of(GroupSize size);  ///< "pairs", "triples", "auto"
const std::vector<std::string>& group_size_names();
std::optional<GroupSize> group_size_from_name(std::string_view name);
std::size_t most_jobs_of(GroupSize size);

/// Jobs that share a set of devices until each has made its steps.
struct JobGroup {
  std::vector<std::size_t> jobs;  ///< indices into Grouping::jobs
  Seconds round;                  ///< in which each makes a step
  Seconds time;                   ///< until the last one ends; of groups at once: `round`

  bool operator==(const JobGroup&) const = default;
};

/// Why no pairs of the jobs with one number of devices save more time: dual values of the matching, four times those of
/// the linear program, in units of `unit` seconds. A job's number is its place among the jobs with these devices.
///
/// `duals[u] + duals[v]` + the duals of the odd sets that hold both is at least four times the weight of each pair,
/// none is negative, and their sum, an odd set counted (size - 1) / 2 times, is four times `weight`. A pair weighs the
/// time that it saves, and `bonus` besides. Pairs at once: those whose round is at most the longest; without the
/// barrier's jobs, those with shorter rounds leave more odd components than the barrier has jobs, so no shorter longest
/// round lets every job have a partner (Tutte).
struct PairingProof {
  struct OddSet {
    std::vector<std::size_t> jobs;
    std::uint64_t dual = 0;

    bool operator==(const OddSet&) const = default;
  };
  std::size_t devices = 1;
  Seconds unit;
  std::uint64_t bonus = 0;
  std::uint64_t weight = 0;
  std::vector<std::uint64_t> duals;
  std::vector<OddSet> odd_sets;
  std::vector<std::size_t> barrier = {};  ///< of pairs at once

  bool operator==(const PairingProof&) const = default;
};

/// What another rule would make of the same jobs.
struct GroupingBaseline {
  std::string rule;
  Seconds total;
  Seconds longest;

  bool operator==(const GroupingBaseline&) const = default;
};

/// Who shares devices with whom.
///
/// Jobs of equal numbers of devices share sets of that many. One after the other: a set of each number, on which its
/// groups take turns. At once: each group has a set of its own, and every job makes one step.
struct Grouping {
  GroupSize size{};
  bool at_once = false;
  std::optional<Bytes> memory = {};  ///< of a device; none: not counted
  std::vector<JobProfile> jobs;
  std::vector<JobGroup> groups;
  Seconds total;    ///< sum of the groups' times
  Seconds serial;   ///< sum of the times of all jobs alone
  Seconds longest;  ///< round of a group
  Seconds bound;    ///< no grouping of this size has a smaller total; at once, none with this longest round
  std::vector<PairingProof> proofs = {};  ///< of pairs, by devices
  std::vector<GroupingBaseline> baselines = {};

  bool operator==(const Grouping&) const = default;
};

/// Reads a file of schema isobar-groups/1 (docs/formats/groups.md). @throws InputError with every fault.
Grouping read_grouping(const std::filesystem::path& file);
std::string grouping_to_json(const Grouping& grouping);

}  // namespace isobar
