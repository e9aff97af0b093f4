#pragma once

#include "core/model/layer_graph.hpp"
#include "core/program/player.hpp"
#include "core/steps/holders.hpp"
#include "core/steps/planned_step.hpp"
#include "core/steps/shard_needs.hpp"
#include "core/steps/step_graph.hpp"
#include "core/steps/tier_needs.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

/// The graph of a plan's steps. Internal to core/check: planned_step.cpp is its only user.
namespace isobar {

/// Adds what a plan's devices do in a step to a StepGraph: their passes in the given order, and from the plan what
/// these wait for, send, gather and add up.
///
/// A seat is a shard of a replica of a stage. Of each pass, `made` is known when its output, or the gradient of its
/// input, may be sent; `weights` when it has added to the gradients of parameters.
class PipelineSteps {
 public:
  /// `stretch`: how much longer computations take. Refers to the other arguments.
  PipelineSteps(const Plan& plan, const Workload& workload, const Cluster& cluster,
                const std::vector<std::vector<StagePass>>& passes, double stretch);
  PipelineSteps(const PipelineSteps&) = delete;
  PipelineSteps& operator=(const PipelineSteps&) = delete;

  /// How long a step takes, in seconds. May be called once. @throws std::logic_error for passes that wait for each
  /// other.
  double play();

 private:
  using Node = std::size_t;  // of the graph
  /// Of what a micro-batch needs of a stage, in the passes of a rank.
  struct Positions {
    std::uint32_t forward = 0;
    std::uint32_t backward = 0;
    std::uint32_t gradient = 0;  // that adds to the gradients of parameters
  };
  struct Seat {
    std::size_t stage = 0;
    std::size_t replica = 0;
    std::size_t shard = 0;
    std::size_t shards = 1;
    std::size_t rank = 0;
    PassTimes times;
    double parameters = 0;
    double experts = 0;                  // of those, where replicas divide experts
    double shared = 0;                   // of those, which other shards have too
    std::map<std::size_t, double> tied;  // of those, in copies of matrices, by the layer that has it first
    std::vector<std::size_t> forwards;   // positions in the rank's passes
    std::vector<std::size_t> backwards;  // that the stage before waits for
    std::vector<std::size_t> gradients;  // that add to the gradients of parameters
    std::vector<Positions> own;          // by micro-batch, where they are others than those of the first shard
    std::optional<std::size_t> input;    // the stream from the data server
    std::vector<Node> taken;             // the forwards of all steps so far that wait for it
    // Of the step under construction:
    std::vector<Node> before_sum;  // what the sum over replicas waits for
    std::vector<Node> sums;        // what the update waits for
    std::optional<Node> update;
    // Of the step before:
    std::optional<Node> last_update;
    std::optional<Node> last_gather;  // of the parameters that others have updated; the last of two
  };
  struct RankPass {
    Opcode opcode = Opcode::Forward;
    std::size_t seat = 0;
    std::uint64_t microbatch = 0;
    Node node = 0;
    Node made = 0;
    Node weights = 0;
    std::vector<Node> takers;  // of what comes from the neighbouring stage; none: the pass
    std::vector<Node> sends;
  };
  /// What devices bring each other for experts before or after a pass, one after another.
  struct TokenExchange {
    Node first = 0;
    Node last = 0;
  };
  /// What the machine of a device does for it, of this step and the one before.
  struct RankTiers {
    TierNeeds needs;
    std::array<std::size_t, tier_lanes> ways{};  // of the graph, by lane of copies
    std::size_t backward_way = 0;                // of parameters for a backward pass
    std::optional<std::size_t> pace;             // of the machine's updates
    double update_speed = 0;
    std::array<std::vector<Node>, tier_lanes> nodes;
    std::array<std::vector<Node>, tier_lanes> nodes_before;
    std::array<std::optional<Node>, tier_lanes> last;  // of each lane
    std::vector<Node> passes_before;
  };
  struct Rank {
    std::size_t device = 0;           // its index in the cluster
    std::optional<std::size_t> pace;  // of its computations
    std::vector<std::size_t> seats;   // in the order of stages
    std::vector<RankPass> passes;
    std::optional<Node> ready;              // its last computation so far
    std::optional<Node> first_update;       // of the step under construction
    std::optional<Node> last_sum;           // over replicas
    std::vector<Node> last_gradients;       // that all of its gradients wait for
    std::optional<Node> last_after_update;  // the last gather of updated parameters
    std::optional<RankTiers> tiers;         // where a stage lives elsewhere than on the device
    /// Where passes overlap, those of the step under construction, by position, and 1 before the pass.
    std::map<std::pair<std::size_t, std::size_t>, TokenExchange> exchanges;
    std::optional<std::size_t> slows;  // the pace of the machine's updates
  };
  /// Which replica takes a micro-batch through a stage, and where in the passes of its first shard's rank.
  struct Taker {
    std::uint32_t replica = 0;
    Positions at;
  };
  using Ranks = std::vector<std::size_t>;

  // pipeline_steps.cpp
  void add_seats();
  void find_passes();
  void find_takers();
  void find_own_positions(Seat& seat) const;
  Positions positions_of(const Seat& seat, std::uint64_t microbatch) const
  {
    return seat.own.empty() ? takers_[seat.stage][microbatch].at : seat.own[microbatch];
  }
  bool brings(const Seat& from, const Seat& to) const;
  void build_step();
  double seconds_of(const RankPass& pass) const;
  Node add_next(Rank& rank, double seconds);
  void add_passes();
  void add_messages();
  void add_inputs();
  void add_messages_of(const Seat& from, std::size_t to_stage, bool is_forward);
  void arrive(Rank& rank, std::size_t position, Node node);
  void block();
  double parts_between(std::size_t stage) const;
  std::size_t seat_at(std::size_t stage, std::size_t replica, std::size_t shard) const
  {
    return first_seat_[stage][replica] + shard;
  }
  std::size_t replicas_of(std::size_t stage) const { return first_seat_[stage].size(); }
  bool is_divided(std::size_t stage) const;
  /// Seats of a stage that have the same parameters: those of its experts, or all others.
  struct Copies {
    std::vector<std::size_t> seats;
    bool are_experts = false;
  };
  /// The shards of all replicas; of experts, those of replicas that have the same.
  std::vector<Copies> copies_of(std::size_t stage, bool of_experts) const;
  /// First all others and then experts.
  std::vector<Copies> all_copies(std::size_t stage) const;
  bool adds_experts(std::size_t stage) const;
  double parameters_of(const Seat& seat, bool are_experts) const
  {
    return are_experts ? seat.experts : seat.parameters - seat.experts;
  }

  // pipeline_shards.cpp
  /// Shards that meet for a need.
  struct Meeting {
    std::size_t group = 0;  // of the graph
    std::size_t rounds = 0;
    std::vector<std::size_t> seats;
  };
  /// The needs of the shards of a replica of a stage, or of a group of replicas that divide sequences or experts.
  struct ReplicaNeeds {
    std::vector<ShardNeed> needs;
    std::vector<std::vector<Meeting>> meetings;  // of each
  };
  void find_needs();
  void add_meetings(const ShardNeed& need, std::size_t stage, std::size_t replica, std::vector<Meeting>& meetings);
  void add_meetings_of_replicas(const ShardNeed& need, std::size_t stage, std::size_t replica,
                                std::vector<Meeting>& meetings);
  Meeting meeting_of(const ShardNeed& need, std::vector<std::size_t> seats);
  void add_shard_collectives();
  void add_shard_collectives(std::size_t first_seat, std::size_t position);
  void add_meeting(const ShardNeed& need, const Meeting& meeting, std::size_t first_position,
                   std::vector<std::optional<Node>>& before);
  void order_exchanges();
  std::optional<std::size_t> made_at(const Rank& rank, std::size_t position) const;
  bool exchanges_tokens(const Seat& seat) const;
  Algorithm algorithm_among_shards(const Ranks& ranks) const;
  std::size_t position_of(const Seat& seat, const RankPass& pass, std::size_t position) const;
  void sum_loss_with_gradients();
  void add_shared_sums();
  std::optional<Node> one_task_ahead(const Rank& rank, std::size_t position) const;

  // pipeline_sums.cpp
  struct Sum {
    std::vector<std::size_t> seats;
    double bytes = 0;
  };
  std::size_t group_of(std::size_t lane, const Ranks& ranks);
  std::size_t rounds_for(Opcode opcode, const Ranks& ranks, double bytes, Algorithm algorithm);
  Node add_collective(std::size_t lane, Opcode opcode, const Ranks& ranks, double bytes, Algorithm algorithm);
  Ranks ranks_of(const std::vector<std::size_t>& seats) const;
  void add_gathers_for_passes();
  void add_gathers_for(std::size_t stage, std::vector<std::size_t> Seat::*passes);
  /// Neighbouring stages whose gradients, of experts or all others, are added up together.
  struct Bucket {
    std::vector<std::size_t> stages;  // the last first
    bool of_experts = false;
  };
  std::vector<Bucket> buckets() const;
  void add_buckets(bool of_experts, std::vector<Bucket>& all) const;
  std::vector<Sum> sums_of(const Bucket& bucket) const;
  void add_sums();
  void add_sum(const Sum& sum, const std::vector<std::size_t>& stages);
  void wait_for_sends_of_last(Node sum, const Seat& seat);
  void add_tied_sums();
  std::size_t stage_of_layer(std::size_t layer) const;
  void add_microbatch_sums();
  void add_facts();
  void add_updates();
  double update_seconds(const Seat& seat) const;
  void wait_for_updates();
  void add_gathers_after_updates();

  // pipeline_tiers.cpp
  void find_tiers();
  RankTiers tiers_of(const Rank& rank);
  void add_ways(RankTiers& tiers, const MachineRates& rates);
  const std::array<std::string, 3>& names_of_disk(std::size_t machine);
  Node add_task(const RankTiers& tiers, TierLane lane, const TierTask& task);
  MovedPart moved_part(const Seat& seat) const;
  bool passes_through(std::size_t layer) const;
  void keep_nodes_of_step();
  void add_tiers();
  void add_tier_tasks(Rank& rank);
  std::optional<Node> awaited(const Rank& rank, const TierWait& wait) const;
  void note(std::size_t rank, Node node);
  void end_step();

  const Plan& plan_;
  const Workload& workload_;
  const Cluster& cluster_;
  const std::vector<std::vector<StagePass>>& order_;
  const double stretch_;         // of computations
  const bool overlaps_gathers_;  // of parameters, by the plan's system
  const std::size_t group_;      // of neighbouring replicas that meet for passes
  const Boundaries cuts_;
  StepGraph graph_;
  std::vector<Holder> holders_;
  std::vector<Seat> seats_;                           // by stage, replica and shard
  std::vector<std::vector<std::size_t>> first_seat_;  // by stage and replica
  std::vector<bool> is_divided_alike_;                // by stage: its replicas have the same shards
  std::vector<ReplicaNeeds> needs_;                   // by the first seat of a replica or of a group of them
  std::vector<Rank> ranks_;
  std::vector<std::vector<Taker>> takers_;                       // by stage and micro-batch
  std::unordered_map<std::uint64_t, std::size_t> streams_;       // by seats, and direction
  std::map<std::pair<std::size_t, Ranks>, std::size_t> groups_;  // by lane and ranks
  std::map<std::tuple<Opcode, Algorithm, double, Ranks>, std::size_t> rounds_;
  std::optional<Node> facts_;
  std::optional<Node> last_facts_;                           // of the step before
  std::map<std::size_t, std::size_t> machine_pace_;          // of updates, by machine
  std::map<std::size_t, std::array<std::string, 3>> disks_;  // names for their links, by machine
  bool has_fences_ = false;                                  // several steps may be under way
  std::vector<std::vector<Node>> noted_;   // of the step under construction, by rank and the data server
  std::vector<std::vector<Node>> fences_;  // the end of each step so far
};

}  // namespace isobar
