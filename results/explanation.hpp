#pragma once

#include "core/cluster/cluster.hpp"
#include "core/plan/cost_model.hpp"
#include "core/plan/device_count.hpp"
#include "core/plan/plan.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace isobar::results {

/// What binds a plan, and what relaxing it is worth (docs/allocators.md).
struct Explanation {
  /// The stage with the largest cost s_i.
  struct Bottleneck {
    std::optional<std::size_t> stage;  ///< none: the data server, which sends the input
    std::string device;                ///< or the data server
    Seconds cost;
    Seconds compute;
    Seconds send;
    bool is_transfer = false;        ///< the transfer makes the cost, or most of it under serial communication
    std::vector<std::string> links;  ///< that its transfers pass, each once; none where transfers do not count
    std::size_t near = 0;            ///< other stages with at least 99 % of the cost
  };
  /// A part of the critical path of a step (critical_path.hpp).
  struct PathPart {
    enum class Kind { Compute, Data, Latency };
    Kind kind = Kind::Compute;
    std::optional<std::size_t> stage;  ///< that computes or sends; none: the data server
    std::string from;                  ///< its device, or the data server
    std::string to;                    ///< the device that receives; empty for compute
    Seconds time;
    double fraction = 0;  ///< of the step
  };
  /// A device that waits although a micro-batch is there, because it holds as many as its schedule lets it.
  struct FullStage {
    std::size_t stage = 0;
    std::string device;
    std::uint64_t in_flight = 0;  ///< micro-batches that it holds at most
    std::uint64_t times = 0;      ///< on the critical path
    Seconds idle;                 ///< in the whole step
    /// By one micro-batch more on it and on every stage before it, wherever memory is for that; of the most idle ones.
    std::optional<Seconds> saved_by_one_more;
  };
  /// What the step waits for.
  struct StepPath {
    std::vector<PathPart> parts;    ///< largest first; they sum to the step
    std::vector<FullStage> full;    ///< those on the path, most idle first
    Seconds saved_without_latency;  ///< by the same placement if no transfer had a latency
  };
  /// What one device's compute, or the transfers over one link, put into the objective; for objective `step`, into its
  /// critical path. A transfer counts for each link of its route, so links may add up to more than the objective.
  struct Share {
    std::string name;
    Seconds time;
    double fraction = 0;  ///< of the objective
  };
  struct FullMemory {
    std::string device;
    Bytes used;
    Bytes has;
  };
  /// This placement, evaluated anew with one device or one link 10 % faster.
  struct Relaxation {
    std::string name;
    Seconds saves;
  };
  /// From the multiplier of a device in a path certificate.
  struct ShadowPrice {
    std::string device;
    double multiplier = 0;  ///< seconds; for the bottleneck a fraction of all devices' (docs/allocators.md)
    Seconds saves;          ///< what one more device like it takes off the bound at most (bottleneck: about); not all
    bool is_idle = false;
  };

  Bottleneck bottleneck;         ///< of the formulas
  std::optional<StepPath> step;  ///< for objective `step`
  std::vector<Share> devices;    ///< all that are used, largest share first
  std::vector<Share> links;      ///< likewise; empty where transfers do not count
  std::vector<FullMemory> full;
  std::vector<Relaxation> faster_devices;  ///< the bottleneck's and those of the largest shares; most saved first
  std::vector<Relaxation> faster_links;
  std::vector<ShadowPrice> prices;           ///< largest first; of certificate `path` with rungs
  std::vector<std::string> not_worth_using;  ///< idle, with multiplier 0 at every rung
  Seconds gap;                               ///< no placement's objective is further below this plan's
  std::size_t devices_used = 0;
  DeviceCount worth_using;
};

/// How much faster a relaxed device or link is.
inline constexpr double relaxation = 1.1;

/// The plan has stages and holds on these inputs. O(L + D log D + stages x (8 relaxations + links of a route)), and for
/// objective `step` stages x micro-batches for each relaxation.
Explanation explain(const Plan& plan, const Workload& workload, const Cluster& cluster);

/// The object under `explanation` of a row of isobar-comparison/1 (docs/formats.md), on one line.
std::string explanation_to_json(const Explanation& explanation);

}  // namespace isobar::results
