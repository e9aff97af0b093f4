#pragma once

#include "core/errors.hpp"
#include "core/model/dtype.hpp"
#include "core/model/layer_graph.hpp"
#include "core/order/microbatch_pattern.hpp"
#include "core/order/order.hpp"
#include "core/plan/plan.hpp"
#include "core/plan/replica_exchanges.hpp"
#include "core/plan/shard_collectives.hpp"
#include "core/program/program.hpp"
#include "schedules/lowering/series.hpp"
#include "schedules/lowering/task_subset.hpp"
#include "schedules/lowering/tiers.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// The Program of a plan. Internal to schedules/lowering.
namespace isobar::schedules {

/// Collectives of shards with one lane on each of them: of a role and a product.
using ShardKind = std::pair<ShardRole, std::size_t>;

/// The collectives of one kind among shards that meet: number k is for task k of the subset.
struct ShardLane {
  struct Each {
    Opcode opcode = Opcode::AllReduce;
    Bytes size;
    Bytes held;
    const ShardLane* before = nullptr;  // whose collective for the same task it follows
  };

  ShardRole role = ShardRole::OutputSum;
  Payload payload = Payload::Activation;
  GridAxis axis = GridAxis::All;
  std::vector<std::optional<Each>> of_part;  // of the rank
  TaskSubset tasks;
  LaneId lane = compute_lane;

  /// The wait for what is for the task at a position of the rank's order.
  Wait at(std::uint64_t position) const { return {lane, 0, tasks.index_at(position) + 1}; }
};

/// What the collectives of shards mean to a pass of a stage.
struct ShardedPass {
  std::vector<const ShardLane*> needed;  // the last ones before it, of each kind of data
  bool has_arrival = false;              // those wait for what the pass reads from a neighbouring stage
  const ShardLane* last = nullptr;       // of what it makes
  // The last ones that exchange tokens before it and after it, where replicas divide experts.
  const ShardLane* dispatch = nullptr;
  const ShardLane* combine = nullptr;
  Bytes released;  // at its end: the room for blocks of others
};

/// Where a task finds its input: made by a series, and brought by a lane of receives. The compute lane brings nothing:
/// the input comes from an earlier task of the same rank, or of all its shards.
struct Source {
  const Series* made_by = nullptr;  // none: nothing to wait for
  LaneId lane = compute_lane;
  const ShardLane* sums = nullptr;  // of the same rank
};

/// Where the tasks of a replica find their inputs if the neighbouring stage divides the micro-batches in another way.
struct Route {
  const MicrobatchPattern* pattern = nullptr;  // of the neighbouring stage
  std::vector<Source> sources;                 // by its replica
};

struct Input {
  Source source;           // of all tasks, without a route
  Route* route = nullptr;  // in the program's routes
};

/// The layers, times and memory of a shard of a replica of a stage, and where it runs.
struct StageWork {
  // What most instructions look up comes first, to spare cache misses.
  std::size_t first_layer = 0;
  std::size_t last_layer = 0;
  Seconds forward;
  Seconds backward;
  Seconds backward_input;
  Seconds backward_weight;
  Bytes activations;  // held from a micro-batch's forward until its last backward
  // Of a rank that uses its machine:
  Bytes workspace;          // held during a pass
  Bytes later_gradient;     // of a micro-batch's outputs, from a part of the rank; held until the backward for it ends
  Bytes own_gradient;       // of its inputs, for a part of the rank
  std::uint32_t index = 0;  // of the stage
  std::uint32_t part = 0;   // of the rank
  bool is_divided = false;  // among the replicas, as Sync::sharded says
  bool is_sharded = false;  // meets others for its passes: other shards, or replicas that divide sequences or experts
  Input input;
  Input gradient;
  Series forwards;
  Series backwards;
  std::size_t replica = 0;
  std::size_t shard = 0;
  std::size_t shards = 1;  // of its replica
  std::size_t rank = 0;
  std::uint64_t microbatches = 0;
  bool has_transfers_before = false;  // with another rank, over the cut before its layers
  bool has_transfers_after = false;
  double parameters = 0;
  double expert_parameters = 0;               // of those, where replicas divide experts: fewer replicas have the same
  double shared_parameters = 0;               // that several shards have, and of whose gradients each has an addend
  std::array<ShardedPass, 3> sharded_passes;  // by ShardPass
  Seconds update;
  Bytes resident;
  Bytes unsummed_gradients;          // held from the first backward until the sum of the gradients
  Bytes unsummed_experts;            // likewise, of its experts
  std::uint64_t first_backward = 0;  // its position in the compute lane
  Wait synced;                       // for its gradient sync; of no completion without one
  Waits sync_waits;                  // of what adds up its gradients over the replicas
  Waits update_waits;
  // Lanes that gather its parameters: after the update, or for each forward and each backward. Of two, the one that
  // follows the other.
  std::optional<LaneId> gather;
  std::optional<LaneId> forward_gather;
  std::optional<LaneId> backward_gather;
  std::array<std::vector<LaneId>, 2> sends;  // of its outputs, and of gradients of its inputs, to other stages
  Bytes gathered;                            // held from a gather for a task to the end of the task
  Bytes gathered_experts;                    // likewise, of its experts

  ShardedPass& sharded(ShardPass pass) { return sharded_passes[static_cast<std::size_t>(pass)]; }
  const ShardedPass& sharded(ShardPass pass) const { return sharded_passes[static_cast<std::size_t>(pass)]; }

  /// An instruction of the stage without time, data and waits.
  Instruction make(Opcode opcode) const
  {
    Instruction instruction;
    instruction.opcode = opcode;
    instruction.stage = index;
    instruction.first_layer = first_layer;
    instruction.last_layer = last_layer;
    return instruction;
  }
};

/// The transfers over one cut between two shards in one direction, or those of the data server. A boundary has the
/// number of the stage after it.
struct Hop {
  std::size_t boundary = 0;
  Payload payload = Payload::Activation;
  std::size_t from_rank = 0;
  std::size_t from = 0;  // index of the shard's StageWork; of the data server that of the receiver
  std::size_t to_rank = 0;
  std::size_t to = 0;
  const Series* series = nullptr;  // message k carries what its task k makes
  Bytes size;
};

enum class LaneKind : std::uint8_t {
  Compute,
  Send,
  SendOfInputs,
  Recv,
  RecvOfInputs,
  GradientSync,
  TiedSum,
  MicrobatchSync,
  FactsSync,
  ParameterGather,
  Tier,
  Shards,
  SharedGradientSum
};

/// What the instructions of a lane have in common.
struct LaneRecord {
  LaneKind kind = LaneKind::Compute;
  Payload payload = Payload::Activation;
  std::uint32_t work = 0;  // index of the shard's StageWork
  std::uint64_t length = 0;
  const Series* series = nullptr;     // of transfers, as in Hop
  const ShardLane* shards = nullptr;  // of collectives of shards
  const Waits* waits = nullptr;       // of syncs of gradients, and of gathers after updates
  std::size_t last_layer = 0;         // of syncs of gradients, which may be those of stages after it too
  bool is_of_experts = false;         // of syncs and gathers: of the experts, which fewer replicas have
  std::optional<LaneId> follows;      // of syncs and gathers for tasks: the lane of the same task that it comes after
  Bytes size;                         // of transfers and syncs
};

/// Pipelines of stages: the compute lanes follow the orders, and all other lanes follow from those.
class PipelineProgram : public Program {
 public:
  /// `replicas`: how many equal ones each stage has, of which the plan has the first; none: those of the plan are all.
  /// The first ones have their parts of what all divide; their collectives have no ends for the others.
  /// @throws InputError for rules of transfers that it cannot keep (fault_of_transfers).
  PipelineProgram(const Plan& plan, const Workload& workload, const Cluster& cluster, std::vector<Order> orders,
                  std::optional<std::size_t> replicas = {});

  std::size_t ranks() const override { return lanes_.size(); }
  const std::vector<Lane>& lanes(std::size_t rank) const override;
  const std::vector<Channel>& channels() const override { return channels_; }
  const std::vector<std::vector<std::size_t>>& grids() const override { return grid_ranks_; }

  bool shares_parameters(std::uint32_t stage) const override;

  const std::vector<std::vector<std::uint32_t>>& tied_stages() const override { return tied_stages_; }

  bool sums_loss_with_gradients() const override { return sums_loss_; }

  Bytes resident(std::size_t rank, Tier tier) const override;

  std::uint64_t length(std::size_t rank, LaneId lane) const override { return record_of(rank, lane).length; }

  Instruction at(std::size_t rank, LaneId lane, std::uint64_t position) const override;

  /// Along which axis a lane's collectives for passes meet; none for other lanes.
  std::optional<GridAxis> axis_of(std::size_t rank, LaneId lane) const
  {
    const ShardLane* const shards = record_of(rank, lane).shards;
    return shards == nullptr ? std::nullopt : std::optional(shards->axis);
  }
  /// Whether a lane brings together those replicas only that have the same experts.
  bool is_of_experts(std::size_t rank, LaneId lane) const { return record_of(rank, lane).is_of_experts; }

 private:
  void add_works(const Plan& plan, const Workload& workload, const Cluster& cluster);

  /// Adds the lanes on which replicas add up gradients, all ranks meet, and parameters are gathered after updates.
  void add_syncs(const Plan& plan, const Workload& workload);

  /// Adds the lanes of ranks of which a stage lives elsewhere than on the device, and finds what they hold throughout.
  void add_tiers(const Plan& plan, const Workload& workload);

  /// Finds before and after which tasks the shards of a replica that has several meet, and those of replicas that
  /// divide sequences or experts.
  void find_shard_lanes(const Workload& workload, const Boundaries& boundaries);

  /// Whether a part of a rank is the first one that it divides with as many others.
  bool begins_group(const StageWork& work) const;

  /// The works of shards that meet along an axis, if the one at `first` is the first of its replica and of its group.
  std::vector<std::vector<std::size_t>> groups_at(std::size_t first, GridAxis axis) const;

  /// The lane of a rank for collectives of the kind of `collective`; made if there is none.
  ShardLane& shard_lane(std::size_t rank, const ShardCollective& collective);

  /// Adds the lanes on which they do.
  void add_shard_lanes();

  /// Lets the shards of each replica that have the same parameters add up their gradients, once a step and part, the
  /// last part first. Where the replicas are not divided alike, their syncs do.
  void add_shared_gradient_sums();

  /// Adds channels between shards that meet, and their lanes. The shards of a replica have all parts together that they
  /// divide, and those of replicas that divide sequences or experts have all parts. `record_of_rank`: what their lanes
  /// have in common; without a length there are none. `axis_of_rank`: along which they meet.
  template <typename RecordOfRank, typename AxisOfRank>
  std::vector<LaneId> connect_shards(const std::string& name, std::optional<ShardRole> role,
                                     RecordOfRank record_of_rank, AxisOfRank axis_of_rank);

  /// Finds the forwards and backwards of each replica in the orders, and checks that they are all there.
  void find_tasks();

  /// The transfers between ranks. Also sets the inputs that come from the same rank.
  std::vector<Hop> hops_of(const Boundaries& boundaries, bool has_data_server);

  /// Whether a shard brings its output, or the gradient of its input, to one of a neighbouring stage. Each shard of a
  /// replica has all of it: one that the same device has takes it from there, and the others take turns.
  bool brings(std::size_t from, std::size_t to) const;

  /// Into how many parts the data of a transfer between two shards are divided: each sends one of them.
  std::size_t parts_between(const StageWork& from, const StageWork& to) const
  {
    const std::size_t blocks = grids_[to.index].blocks();
    return blocks == 1 && is_sliced_ && from.shards == to.shards ? to.shards : blocks;
  }

  /// Adds to what stages hold throughout their buffers for transfers, and finds the workspaces of their devices, which
  /// have them once.
  void add_shared_memory(const Workload& workload, const Boundaries& boundaries);

  /// The buffers of a part for what it exchanges with others, and for the input of the first stage.
  Bytes buffers_of(const StageWork& work, const Boundaries& boundaries, bool has_input) const;

  /// Whether a micro-batch of one replica is one of another's, a stage before or after.
  bool do_meet(std::size_t from, std::size_t to) const;

  /// Lets the replicas of a stage and of the one before find their inputs by the other's pattern.
  void add_routes(std::size_t stage);

  /// Adds the transfers from one replica to another; on the same rank, only where their results are found.
  void add_hop(std::vector<Hop>& hops, Payload payload, std::size_t from, std::size_t to, Bytes size, bool is_alike);

  /// Where a replica finds what another one sends it.
  Source& source_of(Payload payload, std::size_t from, std::size_t to);

  /// Adds the lanes of one kind, in the order of stages. The channel of a hop has its index.
  void add_lanes(const char* name, Payload payload, bool is_send, const std::vector<Hop>& hops);

  /// Gives each replica of the stages that have several the update of its part only, and the memory that it holds.
  void divide_memory(const Workload& workload);

  /// Lets the replicas of the stages that have several add up their gradients once a step. The last stage comes first,
  /// since its gradients are complete first. The syncs of a rank come one after another, since they share its network.
  void add_gradient_syncs(const Plan& plan, const Workload& workload);

  /// How many instructions of which lanes of its rank complete the gradients of these stages, as a sum of them needs
  /// them: where transfers block, after what the last backward of `work`, of the first stage, sends.
  std::map<LaneId, std::uint64_t> completes_gradients(const StageWork& work, std::size_t last_stage) const;

  /// Lets the devices that have a copy of a matrix in other stages add up its gradients, after the syncs of their
  /// ranks: those of a replica and shard in each stage, of replicas that divide their gradients a part each.
  void add_tied_sums(const Plan& plan, const Workload& workload);

  /// Lets them add up the gradients of each micro-batch in place of that (Sync::each_microbatch).
  void add_microbatch_syncs(const Plan& plan);

  /// Neighbouring stages whose replicas add up their gradients together (Sync::bucket).
  struct Bucket {
    std::size_t first = 0;
    std::size_t last = 0;
    bool is_of_experts = false;
  };
  /// The last stages first. Experts have buckets of their own, after others that are complete with the same stage.
  std::vector<Bucket> buckets_of(const Plan& plan) const;
  std::vector<Bucket> buckets_of(const Plan& plan, bool is_of_experts) const;

  /// Lets the replicas of the stages that have several bring each other the parameters that they have updated, one
  /// stage of a rank after another.
  void add_parameter_gathers(const Plan& plan);

  /// Lets the replicas of the stages that have several bring each other their parts of the parameters for each task of
  /// a series.
  void add_gathers_for_tasks(const Plan& plan, const std::string& purpose, Series StageWork::*series,
                             std::optional<LaneId> StageWork::*lane_of);

  /// Adds a channel between shards of a stage's replicas, as indices in works_, and their lanes: a collective once a
  /// step of gradients or parameters, in float32, whatever the workload computes in.
  template <typename Added>
  void add_collective(const Plan& plan, const std::vector<std::size_t>& works, const std::string& name, LaneKind kind,
                      Added added);

  /// Adds one for each shard of a stage whose replicas are divided alike; of its experts, one for each group of
  /// replicas that have the same.
  template <typename Added>
  void add_collectives(const Plan& plan, std::size_t stage, const std::string& name, LaneKind kind, bool is_of_experts,
                       Added added);

  /// What one collective adds up of the gradients of a bucket.
  struct GradientSync {
    std::vector<std::size_t> works;  // of the first stage of the bucket
    std::string name;
    Bytes size;
  };
  std::vector<GradientSync> syncs_of(const Plan& plan, const Workload& workload, const Bucket& bucket) const;

  /// The name of a lane among replicas, with the stage if the rank has several that have replicas.
  std::string lane_of_replicas(std::size_t rank, const std::string& name, std::size_t stage) const;

  std::size_t work_at(std::size_t stage, std::size_t replica, std::size_t shard) const
  {
    return first_of_replica_[stage][replica] + shard;
  }

  /// The replicas of a stage, with those that the plan leaves out.
  std::size_t replicas_of(std::size_t stage) const { return replicas_.value_or(patterns_[stage].replicas()); }

  /// How many replicas of a stage have the same experts.
  std::size_t copies_of(std::size_t stage) const { return copies_of_experts(experts_, replicas_of(stage)); }
  /// Whether replicas add up the gradients of a stage's experts in groups of their own.
  bool syncs_experts(std::size_t stage) const
  {
    return copies_of(stage) > 1 && works_[first_of_stage_[stage]].expert_parameters > 0;
  }

  /// The size of a replica's gradients or parameters in a format: those of its experts, which other replicas have, or
  /// all others.
  static Bytes synced_bytes(const StageWork& work, bool is_of_experts, DType dtype = DType::Float32)
  {
    const double parameters = is_of_experts ? work.expert_parameters : work.parameters - work.expert_parameters;
    return Bytes(parameters * size_of(dtype));
  }

  /// The task that adds the gradients of a replica's parameters for the `index`-th time.
  Task gradient_task(const StageWork& work, std::uint64_t index) const;

  /// The wait for the last of those, or for its collective of shards.
  Wait after_gradients(const StageWork& work) const;

  /// Adds a lane for each rank, on which all agree on what clipping and loss scaling need to know once a step.
  void add_facts_sync();

  LaneId add_lane(std::size_t rank, Lane lane, LaneRecord record);

  const LaneRecord& record_of(std::size_t rank, LaneId lane) const
  {
    ensure(rank < ranks(), "a rank beyond the program's");
    const auto& records = records_[rank];
    ensure(lane < records.size(), "a lane beyond the rank's");
    return records[lane];
  }

  static Wait after(const Series& series, const Task& task) { return {compute_lane, 0, series.position_of(task) + 1}; }

  /// The input is double-buffered: one arrives while the previous one is processed. So input n waits for forward n-2,
  /// counted over all steps.
  static Wait after_earlier_input(const Series& forwards, std::uint64_t index)
  {
    constexpr std::uint64_t buffers = 2;
    const std::uint64_t microbatches = forwards.length();
    const std::uint64_t missing = index < buffers ? buffers - index : 0;
    const std::uint64_t periods_back = (missing + microbatches - 1) / microbatches;
    Wait wait = after(forwards, forwards.nth(index + periods_back * microbatches - buffers));
    wait.periods_back = static_cast<std::uint16_t>(periods_back);
    return wait;
  }

  /// The wait of a replica's task at `position` of its rank for what it reads; in the compute lane if the rank made
  /// that itself. `own` has the micro-batches of the replica.
  static Wait arrival_of(const Input& input, const Series& own, std::uint64_t microbatch, std::uint64_t position)
  {
    const Source* source = &input.source;
    if (input.route != nullptr) {
      const std::uint64_t of_step = own.of_step(microbatch);
      source = &input.route->sources[input.route->pattern->replica_of(of_step)];
      microbatch = input.route->pattern->index_of(of_step);
    }
    if (source->made_by == nullptr) return {};
    const Task task = source->made_by->of(microbatch);
    if (source->lane != compute_lane) return {source->lane, 0, source->made_by->index_of(task) + 1};
    const std::uint64_t made_at = source->made_by->position_of(task);
    ensure(made_at < position, "an order in which a task comes before its input");
    return source->sums == nullptr ? Wait{compute_lane, 0, made_at + 1} : source->sums->at(made_at);
  }

  Instruction compute(std::size_t rank, std::uint64_t position) const;

  /// What a task of divided replicas waits for and holds besides.
  void divide(const StageWork& stage, const Task& task, std::uint64_t position, Instruction& instruction) const;

  Instruction transfer(LaneId lane, const LaneRecord& record, std::uint64_t position) const;

  Instruction sync(std::size_t rank, LaneId lane, const LaneRecord& record) const;

  Instruction tied_sum(LaneId lane, const LaneRecord& record) const;

  Instruction microbatch_sync(std::size_t rank, LaneId lane, const LaneRecord& record, std::uint64_t position) const;

  /// Lets the computation at `position` wait until what the one before it made has been sent.
  void add_sends(std::size_t rank, std::uint64_t position, Instruction& instruction) const;

  /// What a pass of the task at `position` waits for and releases where several shards compute it.
  static void add_sharded(const StageWork& stage, ShardPass pass, std::uint64_t position, Instruction& instruction);

  /// The wait for the task before the one at `position`, during which what that needs can come; for the one right
  /// before `position`, if both are passes of the same stage, or the training system gathers nothing beside passes.
  Waits one_task_ahead(std::size_t rank, const StageWork& work, std::uint64_t position) const;

  /// The wait for what shards of the last layer tell each other after a forward.
  static Wait after_loss(const StageWork& work, std::uint64_t microbatch);

  Instruction collective_of_shards(std::size_t rank, LaneId lane, const LaneRecord& record,
                                   std::uint64_t position) const;

  // Where passes overlap, a device has one exchange of tokens under way, as with one stream for communication.

  /// An exchange before or after the task at a position of its rank.
  struct Exchange {
    std::uint64_t position = 0;
    bool is_before = false;

    bool operator==(const Exchange&) const = default;
  };
  /// The lane of an exchange, of several the last; null if the task exchanges nothing then.
  const ShardLane* lane_of(std::size_t rank, const Exchange& exchange) const;
  /// The position of the task of the same rank that makes what a task reads; none where another rank does.
  static std::optional<std::uint64_t> made_at(const StageWork& work, const Task& task);
  /// The next task of the same direction.
  std::optional<std::uint64_t> next_alike(std::size_t rank, std::uint64_t position) const;
  /// After how many tasks the exchange before a task has its turn: when its rank has made what the task reads and has
  /// computed the task of the same direction before it. What another rank makes has its turn right before the task.
  std::uint64_t done_before(std::size_t rank, std::uint64_t position) const;
  /// The exchanges whose turn comes with the end of the first `done` tasks of a rank, in their order: three at most.
  std::vector<Exchange> exchanges_after(std::size_t rank, std::uint64_t done) const;
  /// The wait for the exchange whose turn is before another one's; of no completion if there is none.
  Wait exchange_before(std::size_t rank, const Exchange& exchange) const;

  Instruction shared_gradient_sum(std::size_t rank, LaneId lane, std::uint64_t position) const;

  /// The parameters of a replica's part go to the others once they are updated, or for each task that uses them. Then
  /// they come while the task before runs, unless it is of the same stage.
  Instruction tier(std::size_t rank, LaneId lane, const LaneRecord& record, std::uint64_t position) const;

  /// The parts that the compute lane of a rank updates.
  std::size_t updates_of(std::size_t rank) const;

  Instruction gather(std::size_t rank, LaneId lane, const LaneRecord& record, std::uint64_t position) const;

  std::vector<Order> orders_;                                // by rank
  std::vector<MicrobatchPattern> patterns_;                  // by stage
  std::vector<std::vector<std::size_t>> parts_of_rank_;      // indices in works_
  std::vector<Bytes> workspaces_;                            // by rank, of its passes
  std::vector<StageWork> works_;                             // by stage, replica and shard; others point to them
  std::vector<std::size_t> first_of_stage_;                  // in works_, and their number
  std::vector<std::vector<std::size_t>> first_of_replica_;   // in works_, by stage
  std::vector<bool> is_divided_alike_;                       // by stage: all its replicas
  std::vector<std::vector<std::uint32_t>> tied_stages_;      // with a copy of a matrix each
  std::vector<ShardGrid> grids_;                             // by stage
  std::vector<std::vector<std::size_t>> grid_ranks_;         // of each replica with a grid
  std::vector<std::map<ShardKind, ShardLane>> shard_lanes_;  // by rank
  std::vector<std::vector<std::size_t>> summed_;  // by rank: indices in works_ of what its shared gradient sums are for
  std::vector<Waits> last_gradients_;             // by rank: for the last collectives of gradients among shards
  std::vector<std::unique_ptr<const TierLanes>> tiers_;     // by rank; null where all is on the device
  std::vector<std::array<Bytes, tier_count>> tier_memory_;  // by rank
  std::vector<Bytes> held_by_updates_;                      // by rank: ParameterBytes::update of all of its parameters
  std::deque<Waits> sync_waits_;                            // of records
  std::deque<Series> parts_of_series_;                      // of hops between stages with other patterns
  std::deque<Route> routes_;
  std::vector<Wait> last_sync_;           // of gradients, by rank; for no completion without one
  std::vector<TaskSubset> synced_tasks_;  // by rank: after each of which replicas add up gradients
  Sharding sharded_ = Sharding::None;
  bool syncs_each_microbatch_ = false;
  bool overlaps_gathers_ = true;
  Algorithm algorithm_ = Algorithm::Ring;  // of replicas
  ContextParallelism context_;
  ExpertParallelism experts_;
  bool overlaps_experts_ = false;  // passes of two micro-batches run together
  bool sums_loss_ = false;         // with the gradient of the last layer's input
  std::vector<std::string> site_of_rank_;
  bool is_blocking_ = false;
  bool is_sliced_ = false;
  std::optional<std::size_t> replicas_;  // of each stage; none: those of the plan
  bool is_training_ = true;
  std::vector<std::vector<Lane>> lanes_;          // by rank and LaneId
  std::vector<std::vector<LaneRecord>> records_;  // the same
  std::vector<Channel> channels_;
};

}  // namespace isobar::schedules
