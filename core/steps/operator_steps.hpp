#pragma once

#include "core/steps/operator_needs.hpp"
#include "core/steps/planned_step.hpp"
#include "core/steps/step_graph.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

/// The graph of a step whose devices divide operators. Internal to core/check: planned_step.cpp is its only user.
namespace isobar {

/// Adds what the devices do in a step to a StepGraph: the passes of their parts in the given order, and from the plan
/// the reforms and sums around them, and the messages between groups.
class OperatorSteps {
 public:
  /// `stretch`: how much longer computations take. Refers to the other arguments.
  OperatorSteps(const Plan& plan, const Workload& workload, const Cluster& cluster,
                const std::vector<std::vector<StagePass>>& passes, double stretch);
  OperatorSteps(const OperatorSteps&) = delete;
  OperatorSteps& operator=(const OperatorSteps&) = delete;

  /// How long the step takes, in seconds. May be called once. @throws std::logic_error for passes that wait for each
  /// other.
  double play();

 private:
  using Node = std::size_t;  // of the graph
  using Ranks = std::vector<std::size_t>;
  /// A part and a micro-batch.
  using Passage = std::pair<std::size_t, std::uint64_t>;
  struct Rank {
    std::optional<std::size_t> pace;
    std::vector<Node> passes;                          // in their order
    std::map<std::size_t, Node> updates;               // by part
    std::vector<std::vector<Node>> arrivals;           // of activations, by sender and index
    std::vector<std::vector<Node>> gradient_arrivals;  // likewise
    std::optional<Node> last_sum;                      // over replicas
  };
  /// A collective of the ranks of a replica, in its place among others.
  struct Placed {
    std::uint64_t position = 0;  // of the pass
    std::size_t kind = 0;        // before a pass; after it gradients of tensors, of parameters, and sums of these
    std::size_t number = 0;      // among those
    std::size_t reform = 0;
    std::optional<std::size_t> bucket;
    OperatorNeeds::Collective collective;
  };
  /// What the collectives of a replica are, by what waits for them.
  struct Collectives {
    std::map<Passage, Node> reformed;                   // the last one before a forward
    std::map<Passage, Node> returned;                   // after a backward: the gradients of what the part reads
    std::map<std::uint64_t, std::vector<Node>> takers;  // by micro-batch, of what comes from the group before
    // By part, of gradients of parameters:
    std::vector<std::vector<Node>> before_sum;
    std::vector<std::vector<Node>> before_update;
    std::optional<Node> last;
  };

  void add_passes(std::size_t group);
  std::vector<Placed> placed_collectives(std::size_t group) const;
  void add_collectives(std::size_t group);
  void add_collective(std::size_t group, std::size_t replica, const Placed& placed);
  void wait_for_collectives(std::size_t group);
  void add_reform(Node node, std::size_t group, std::size_t replica, const Placed& placed);
  void add_messages(std::size_t group);
  void add_messages(std::size_t from, std::size_t to, double bytes, bool is_forward);
  void add_sums(std::size_t group);
  void add_facts();
  Node collective(const Ranks& ranks, std::size_t lane, const OperatorNeeds::Collective& what, Algorithm algorithm);
  std::size_t rounds_for(const Ranks& ranks, const OperatorNeeds::Collective& what, Algorithm algorithm);
  std::uint64_t position_of(std::size_t group, Opcode opcode, std::size_t part, std::uint64_t microbatch) const;
  bool is_received(std::size_t reform) const;

  const Plan& plan_;
  const Workload& workload_;
  const Cluster& cluster_;
  const std::vector<std::vector<StagePass>>& order_;
  const double stretch_;  // of computations
  OperatorNeeds needs_;
  StepGraph graph_;
  std::vector<Rank> ranks_;
  std::vector<std::vector<Collectives>> collectives_;            // by group and replica
  std::map<std::pair<std::size_t, Ranks>, std::size_t> groups_;  // of the graph, by lane and ranks
  std::map<std::tuple<Opcode, Algorithm, std::vector<double>, std::vector<double>, Ranks>, std::size_t> rounds_;
  std::vector<std::map<std::pair<Opcode, Passage>, std::uint64_t>> positions_;  // by group
  std::vector<std::uint64_t> first_forward_;                                    // micro-batches, by part
  std::vector<std::uint64_t> last_backward_;
};

}  // namespace isobar
