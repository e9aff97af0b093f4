#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/plan/plan.hpp"
#include "core/program/program.hpp"
#include "core/spmd/device_rates.hpp"
#include "core/spmd/form.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace isobar {

/// What a step of a plan whose devices divide operators needs, by sums of its own over the graph. `faults_of` must have
/// found no fault in its placement. Refers to its arguments. Internal to core/check.
class OperatorNeeds {
 public:
  /// What a rank takes for a part, in seconds.
  struct PartTimes {
    double forward = 0;
    double backward = 0;
    double update = 0;
  };
  /// Devices that divide some parts: those of each replica.
  struct Group {
    std::size_t first_part = 0;
    std::size_t end_part = 0;
    std::vector<double> shares;
    std::vector<std::vector<std::size_t>> replicas;  // ranks
  };

  /// Where a rank is.
  struct Place {
    std::size_t group = 0;
    std::size_t replica = 0;
    std::size_t position = 0;
  };

  /// A collective that a replica of a group needs, by what each of its ranks has before and afterwards.
  struct Collective {
    Opcode opcode{};
    Payload payload{};
    std::uint64_t times = 0;  // in a step
    std::vector<double> before;
    std::vector<double> after;
  };
  /// Messages of a payload from one rank to another.
  using Way = std::tuple<std::size_t, std::size_t, Payload>;

  OperatorNeeds(const Plan& plan, const Workload& workload, const Cluster& cluster);
  OperatorNeeds(const OperatorNeeds&) = delete;
  OperatorNeeds& operator=(const OperatorNeeds&) = delete;

  const OperatorPlan& divided() const { return divided_; }
  const std::vector<std::string>& devices() const { return devices_; }      ///< by rank
  const std::vector<std::size_t>& endpoints() const { return endpoints_; }  ///< by rank, in the cluster
  std::size_t replicas() const { return plan_.stages.front().replicas.size(); }
  const std::vector<Group>& groups() const { return groups_; }
  const std::vector<Place>& places() const { return places_; }  ///< by rank
  /// Reforms of replicated parameters, in the order of their gradients.
  const std::vector<std::size_t>& in_backward() const { return in_backward_; }
  const std::vector<std::vector<PartTimes>>& times() const { return times_; }  ///< by rank and part
  const std::vector<double>& resident() const { return resident_; }            ///< bytes, by rank
  /// By group, of each of its replicas.
  const std::vector<std::vector<Collective>>& collectives() const { return collectives_; }
  /// The bytes of a micro-batch that each device has to send to one of another group: of each tensor that one group
  /// makes and the other reads, the elements that both have. Gradients go back.
  const std::map<Way, double>& messages() const { return messages_; }

  /// The collective of a reform before the forward of a micro-batch, or, of the gradient, after the backward; none
  /// where devices need not meet for it. Sums of replicated parameters are in `bucket_sum`.
  std::optional<Collective> forward_of(std::size_t reform) const;
  std::optional<Collective> backward_of(std::size_t reform) const;
  /// The reforms of replicated parameters whose gradients are added up together, in the order of their gradients.
  const std::vector<std::vector<std::size_t>>& buckets() const { return buckets_; }
  /// The sum of the gradients of a bucket; none in a group of one device.
  std::optional<Collective> bucket_sum(const std::vector<std::size_t>& bucket) const;
  std::size_t group_of_part(std::size_t part) const;

  /// The gradients of a part's parameters, of which every replica has an addend, as a device of a group has them.
  double bytes_of_gradients(std::size_t part, const Place& place) const;
  /// The ranks at the position of a rank in all replicas.
  std::vector<std::size_t> counterparts(const Place& place) const;

 private:
  void list_groups();
  double part_of(std::size_t tensor, spmd::Form form, const Place& place) const;
  double part_of_work(std::size_t node, const Place& place) const;
  void add_times(std::size_t rank);
  void add_passes(PartTimes& times, std::size_t node, double part, const Place& place, const spmd::DeviceRates& rates);
  double bytes_of(std::size_t tensor, spmd::Form form, const Place& place) const;
  std::vector<double> bytes_of_all(std::size_t tensor, spmd::Form form, std::size_t group) const;
  void list_collectives();
  void list_buckets();
  std::pair<std::uint64_t, std::uint64_t> units_of(std::uint64_t units, const Place& place) const;
  void list_messages();

  const Plan& plan_;
  const Workload& workload_;
  const Cluster& cluster_;
  OperatorPlan divided_;
  std::vector<std::vector<std::uint64_t>> units_;  // of each dimension of each tensor
  std::vector<std::string> devices_;
  std::vector<std::size_t> in_backward_;
  std::vector<std::size_t> endpoints_;
  std::vector<std::vector<PartTimes>> times_;
  std::vector<double> resident_;
  std::vector<Group> groups_;
  std::vector<Place> places_;
  std::vector<std::vector<Collective>> collectives_;
  std::vector<std::vector<std::size_t>> buckets_;
  std::map<Way, double> messages_;
};

}  // namespace isobar
