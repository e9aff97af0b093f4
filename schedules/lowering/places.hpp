#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/plan.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

/// Internal to schedules/lowering.
namespace isobar::schedules {

using Ranks = std::vector<std::size_t>;

/// The ranks of a plan by their places in it, and why they are not all alike. Keeps references to its arguments.
class Places {
 public:
  Places(const Plan& plan, const Workload& workload, const Cluster& cluster);

  std::size_t devices() const { return devices_.size(); }
  std::size_t replicas() const { return ranks_.front().size(); }
  std::size_t shards() const { return ranks_.front().front().size(); }
  const std::vector<std::string>& names() const { return devices_; }
  /// Of devices and the data server, in the cluster.
  std::size_t endpoint_of(std::size_t rank) const { return endpoint_of_[rank]; }
  const Device& device(std::size_t rank) const { return cluster_.devices[endpoint_of_[rank]]; }
  bool is_device(std::size_t rank) const { return rank < devices_.size(); }

  /// The number of a rank's replica; none for the data server.
  std::optional<std::size_t> replica_of(std::size_t rank) const
  {
    return is_device(rank) ? std::optional(place_of_[rank]->replica) : std::nullopt;
  }
  std::size_t shard_of(std::size_t rank) const { return place_of_[rank]->shard; }
  /// The rank of another replica, and of the same or the first shard, that does what this one does.
  std::size_t counterpart(std::size_t rank, std::size_t replica, bool of_first_shard = false) const
  {
    if (!is_device(rank)) return rank;
    const PlacedShard& place = *place_of_[rank];
    return ranks_[place.stage][replica][of_first_shard ? 0 : place.shard];
  }

  /// The rank of another shard of the same replica.
  std::size_t other_shard(std::size_t rank, std::size_t shard) const
  {
    if (!is_device(rank)) return rank;
    return ranks_[place_of_[rank]->stage][place_of_[rank]->replica][shard];
  }
  /// The ranks of each replica, once.
  std::vector<Ranks> groups_of_shards() const;

  /// Why replicas may not stand for each other, nor shards; none if they may, as far as flows allow it.
  std::optional<std::string> why_not() const;

  /// Why the first shard may not stand for the others of its replica; none if it may, as far as flows allow it.
  std::optional<std::string> why_not_shards() const;

  /// How many replicas at the begin of the first stage are in the site of the first one.
  std::size_t replicas_in_site() const;

 private:
  std::optional<std::string> difference(std::size_t rank, std::size_t other) const;

  const Plan& plan_;
  const Workload& workload_;
  const Cluster& cluster_;
  std::vector<std::string> devices_;
  std::vector<std::size_t> endpoint_of_;              // by rank
  std::vector<std::vector<Ranks>> ranks_;             // by stage, replica and shard
  std::vector<std::optional<PlacedShard>> place_of_;  // by rank: the first
  std::optional<std::size_t> moved_;                  // a rank with other places later
};

}  // namespace isobar::schedules
