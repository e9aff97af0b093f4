#pragma once

#include "core/jobs/mix.hpp"
#include "core/units.hpp"
#include "results/result.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace isobar::results {

/// What takes the whole of a round at best.
enum class Binding : std::uint8_t { Device, Link, Job };
std::string_view name_of(Binding binding);  ///< "device", "link", "job"

/// The least time of a round (docs/costs.md).
struct RoundBound {
  Seconds time;
  Binding kind = Binding::Device;
  std::string name;  ///< of the device, link or job that takes that long
};

/// A job of a mix.
struct MixJobMetrics {
  std::string name;
  std::uint64_t steps_per_round = 1;
  std::uint64_t steps_done = 0;
  Seconds step_time;                         ///< time of a round / its steps in one
  Seconds solo_step_time;                    ///< alone on its devices
  double normalised_rate = 0;                ///< solo step time / step time
  Seconds longest_wait;                      ///< for a device, from asking for it to getting it
  std::map<std::string, Bytes> peak_memory;  ///< by device
};

/// A device of a mix.
struct MixDeviceMetrics {
  std::string name;
  Seconds compute;           ///< of all jobs, per round
  Seconds waiting;           ///< of jobs for the device, per round
  double busy_fraction = 0;  ///< of the whole time
  Bytes peak_memory;         ///< of all jobs at once
};

/// Result of simulating a mix: schema isobar-mix-result/1, docs/formats/mix.md.
struct MixResult {
  std::vector<Seconds> round_times;
  Seconds round_time;  ///< mean of the rounds after the first; of the first if it is the only one
  Seconds total;       ///< until the end of the last round
  Seconds serial;      ///< the steps of a round one after the other, alone
  RoundBound bound;
  std::vector<MixJobMetrics> jobs;
  std::vector<MixDeviceMetrics> devices;  ///< in the order of the cluster
  std::vector<LinkMetrics> links;         ///< bytes per round; busy fraction of the whole time
  std::uint64_t activities = 0;
  std::vector<std::pair<std::string, std::string>> network;
  std::string simgrid_version;
  Mix mix;
  Fingerprint platform;
  std::optional<std::string> devices_file;
  std::optional<Fingerprint> profile;
  Seconds simulate_time;  ///< wall time of the engine's run only; under "wall" in the file
};

/// Deterministic except for "wall".
std::string mix_result_to_json(const MixResult& result);

}  // namespace isobar::results
