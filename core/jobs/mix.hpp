#pragma once

#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar {

/// Who computes next on a device that several jobs share.
enum class Discipline : std::uint8_t {
  Strict,      ///< each job in its turn of the rotation; the device waits for the job whose turn it is
  Conserving,  ///< the job that asked first
  None         ///< all at once; they share the device
};

/// When a job gives a device to the next one.
enum class HandOver : std::uint8_t {
  Step,        ///< after the last backward pass of a step, before what remains of its gradient sync
  Instruction  ///< after each computation
};

/// How transfers of different jobs share a link.
enum class LinkSharing : std::uint8_t {
  Fifo,  ///< one job at a time, in the order in which they ask; a transfer takes all links of its route at once
  Fair   ///< all at once; the network shares the bandwidth
};

std::string_view name_of(Discipline discipline);  ///< "strict", "conserving", "none"
std::string_view name_of(HandOver hand_over);     ///< "step", "instruction"
std::string_view name_of(LinkSharing links);      ///< "fifo", "fair"

/// A job of a mix: a plan of a workload. Two jobs of a mix may have the same files.
struct MixJob {
  std::string name;                         ///< unique in the mix
  std::string plan;                         ///< file
  std::string workload;                     ///< file
  Seconds start;                            ///< when its first step may begin
  std::optional<std::uint64_t> steps = {};  ///< after which it ends; none: it takes part in all rounds

  bool operator==(const MixJob&) const = default;
};

/// Consecutive turns of one job: a step each.
struct MixTurn {
  std::size_t job = 0;  ///< index in Mix::jobs
  std::uint64_t steps = 1;

  bool operator==(const MixTurn&) const = default;
};

/// Several jobs that share devices or links. A round is the sequence of all turns; a device takes part in the turns of
/// the jobs that it has.
struct Mix {
  std::vector<MixJob> jobs;
  std::vector<MixTurn> turns;  ///< every job has at least one
  Discipline discipline = Discipline::Strict;
  HandOver hand_over = HandOver::Step;
  LinkSharing links = LinkSharing::Fifo;

  bool operator==(const Mix&) const = default;
};

/// Most jobs of a mix, and most steps of a turn.
inline constexpr std::size_t most_mix_jobs = 64;
inline constexpr std::uint64_t most_turn_steps = 1000;

/// Steps of a job in one round.
std::uint64_t steps_per_round(const Mix& mix, std::size_t job);

/// Reads a mix file, schema isobar-mix/1 (docs/formats/mix.md). Without `turns`, each job has a turn of one step, in
/// the order of the jobs. A relative path of a plan or a workload is one from the folder of the mix file, or, where
/// that folder has no such file, from the working folder; the result has paths from the working folder.
/// @throws InputError with every fault, "file:line: key: what".
Mix read_mix(const std::filesystem::path& file);

/// The text of a mix file, with the paths as they are.
std::string mix_to_json(const Mix& mix);

}  // namespace isobar
