#pragma once

#include "core/cluster/cluster.hpp"
#include "core/costs/cost_model.hpp"
#include "core/plan/plan.hpp"
#include "core/program/program.hpp"
#include "results/device_count.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace isobar::results {

/// Constraints that bind a plan, and the gain from relaxing them (docs/explanations.md).
struct Explanation {
  /// The stage with the largest cost s_i.
  struct Bottleneck {
    std::optional<std::size_t> stage;  ///< none: the data server, which sends the input
    std::string device;                ///< its device, or the data server
    Seconds cost;
    Seconds compute;
    Seconds send;
    bool is_transfer = false;        ///< transfers are the cost, or most of it under serial communication
    std::vector<std::string> links;  ///< of its transfers, each once; none where transfers do not count
    std::size_t near = 0;            ///< other stages with at least 99 % of the cost
  };
  /// A part of the critical path of a step (critical_path.hpp).
  struct PathPart {
    enum class Kind { Compute, Data, Latency, Copy, Update };
    Kind kind = Kind::Compute;
    std::optional<std::size_t> stage;   ///< computes or sends; none: the data server
    std::optional<Payload> collective;  ///< what the collective carries that it belongs to, if any
    std::string from;                   ///< its device, or the data server
    std::string to;                     ///< the receiving device; empty for compute
    Seconds time;
    double fraction = 0;  ///< of the step
  };
  /// A device that waits although a micro-batch has arrived, because it holds as many as its schedule allows.
  struct FullStage {
    std::size_t stage = 0;
    std::string device;
    std::uint64_t in_flight = 0;  ///< most micro-batches that it holds
    std::uint64_t times = 0;      ///< waits on the critical path
    Seconds idle;                 ///< in the whole step
    /// Saved by one micro-batch more on it and on every stage before it, memory not considered; only for the most idle
    /// stages.
    std::optional<Seconds> saved_by_one_more;
  };
  /// Critical path of a step, summed by part.
  struct StepPath {
    std::vector<PathPart> parts;    ///< largest first; they sum to the step
    std::vector<FullStage> full;    ///< those on the path, most idle first
    Seconds saved_without_latency;  ///< by the same placement if transfers had no latency
  };
  /// Contribution of one device's compute, or of the transfers over one link, to the objective; for objective `step`,
  /// to its critical path. A transfer counts for each link of its route, so links may sum to more than the objective.
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
  /// This placement, evaluated again with one device or one link 10 % faster.
  struct Relaxation {
    std::string name;
    Seconds saves;
  };
  /// Price of a device, from its multiplier in a path certificate.
  struct ShadowPrice {
    std::string device;
    double multiplier = 0;  ///< seconds; for the bottleneck, its fraction of the sum (docs/explanations.md)
    Seconds saves;          ///< upper limit (bottleneck: estimate) of what one more such device takes off the bound
    bool is_idle = false;
  };

  std::optional<Bottleneck> bottleneck;  ///< by the formulas of docs/costs.md; none if a stage has several devices
  std::optional<StepPath> step;          ///< for objective `step`
  std::vector<Share> devices;            ///< all used devices, largest share first
  std::vector<Share> links;              ///< likewise; empty where transfers do not count
  std::vector<FullMemory> full;
  std::vector<Relaxation> faster_devices;  ///< the bottleneck's and the largest shares; most saved first
  std::vector<Relaxation> faster_links;
  std::vector<ShadowPrice> prices;           ///< largest first; only for certificate `path` with rungs
  std::vector<std::string> not_worth_using;  ///< idle devices with multiplier 0 at every rung
  Seconds gap;                               ///< objective minus bound: no placement that it holds for saves more
  std::size_t devices_used = 0;
  std::optional<DeviceCount> worth_using;  ///< under sequential, gpipe and 1f1b
};

/// Speed of a relaxed device or bandwidth of a relaxed link, relative to the original.
inline constexpr double relaxation = 1.1;

/// Explains a chain (is_chain) that has stages and is valid for these inputs. O(L + D log D + stages x (8 relaxations +
/// links of a route)) time for L layers and D devices; for objective `step`, also stages x micro-batches for each
/// relaxation.
Explanation explain(const Plan& plan, const Workload& workload, const Cluster& cluster);

/// The same for any plan, whose objective is the step that its program takes, which `program_on` makes for devices. It
/// tells the whole path of the step; which stages hold too few micro-batches it does not. O(instructions) for each
/// relaxation.
/// @throws InputError for a step that is too long to be played.
Explanation explain_by_playing(const Plan& plan,
                               const std::function<std::unique_ptr<Program>(const Cluster&)>& program_on,
                               const Workload& workload, const Cluster& cluster);

/// The object under `explanation` in a row of isobar-comparison/1 (docs/formats/comparison.md), on one line.
std::string explanation_to_json(const Explanation& explanation);

}  // namespace isobar::results
