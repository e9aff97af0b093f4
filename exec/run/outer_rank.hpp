#pragma once

#include "core/outer/outer.hpp"
#include "core/units.hpp"
#include "exec/links/network_options.hpp"
#include "exec/net/address.hpp"
#include "exec/net/secret.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace isobar::exec {

class RankExecutor;

/// Parameters that one rank of each worker updates: those of some layers.
struct SharedLayers {
  std::vector<std::size_t> ranks;  ///< by worker
  std::vector<std::size_t> layers;

  bool operator==(const SharedLayers&) const = default;
};

/// Why a worker's plan cannot take part in rounds that are run; "" if it can: its stages have a device each, which has
/// all of their parameters, and no two of them on different devices have the same matrix.
std::string why_not_run_in_rounds(const Plan& plan, const Workload& workload);

/// Who updates which layers, in the order of the layers. All plans can take part.
std::vector<SharedLayers> shared_layers(const std::vector<OuterWorker>& workers, std::size_t layers);

/// How a run takes part in rounds, as one of their workers.
struct OuterRun {
  OuterPlan plan;
  std::size_t worker = 0;
  std::uint64_t micro_batch = 1;  ///< samples, of plans that have none of their own
  /// Where the rank of each worker that has piece 0 of shared_layers listens; that of piece p does so p ports above.
  std::vector<Endpoint> addresses;
  NetworkOptions network;
  std::shared_ptr<const Secret> secret;
  std::size_t connections = 1;
  Seconds connect{60};    ///< until all workers are there
  Seconds patience{600};  ///< how long a sync waits for another worker
  std::size_t threads = 1;
  std::function<void(const std::string& line)> info = {};
};

/// What a rank does of the rounds of its worker, on behalf of the layers that it updates. At a snapshot it encodes how
/// far its parameters have moved; a thread of its own for each piece takes the mean of all workers' (exchange_mean) and
/// updates the outer parameters, which the rank takes `Outer::delay` steps later. So all workers have the same outer
/// parameters, bit by bit: they compare checksums after each update.
///
/// Rounds continue without workers that are lost, as long as more than half of the last ones are there.
class OuterRank {
 public:
  /// Connects with the other workers, and notes the parameters. `run` must outlive it.
  /// @throws EnvironmentError naming the workers that are missing.
  OuterRank(const OuterRun& run, std::size_t rank, RankExecutor& executor);
  OuterRank(const OuterRank&) = delete;
  OuterRank& operator=(const OuterRank&) = delete;
  ~OuterRank();

  /// After each step, between it and the next one on the compute lane: takes snapshots and updates.
  /// @throws EnvironmentError when too few workers are left, naming those that are lost, or when outer parameters are
  /// not those of another worker.
  void step_ended(std::uint64_t step, RankExecutor& executor);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace isobar::exec
