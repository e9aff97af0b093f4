#include "schedules/lowering/schedule.hpp"

#include <fmt/format.h>
#include "core/errors.hpp"
#include "core/model/dtype.hpp"
#include "core/model/layer_graph.hpp"
#include "core/plan/cost_model.hpp"
#include "schedules/lowering/replicas.hpp"
#include "schedules/lowering/series.hpp"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace isobar::schedules {

namespace {

/// Where a task finds its input: made by a series, and brought by a lane of receives. The compute lane brings nothing:
/// the input comes from an earlier task of the same rank.
struct Source {
  const Series* made_by = nullptr;  // none: nothing to wait for
  LaneId lane = compute_lane;
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

/// The layers, work and memory of a replica of a stage, and where it runs.
struct StageWork {
  // What most instructions look up comes first, to spare cache misses.
  std::size_t first_layer = 0;
  std::size_t last_layer = 0;
  Flops forward;
  Flops backward;
  Flops backward_weight;
  Bytes activations;        // held from a micro-batch's forward until its last backward
  std::uint32_t index = 0;  // of the stage
  std::uint32_t part = 0;   // of the rank
  bool is_divided = false;  // among the replicas, as Sync::sharded says
  Input input;
  Input gradient;
  Series forwards;
  Series backwards;
  std::size_t replica = 0;
  std::size_t rank = 0;
  std::uint64_t microbatches = 0;
  Flops update;
  Bytes resident;
  Bytes unsummed_gradients;          // held from the first backward until the sum of the gradients
  std::uint64_t first_backward = 0;  // its position in the compute lane
  Waits sync_waits;
  Waits update_waits;
  // Lanes that gather its parameters: after the update, or for each forward and each backward.
  std::optional<LaneId> gather;
  std::optional<LaneId> forward_gather;
  std::optional<LaneId> backward_gather;
  Waits gather_waits;
  Bytes gathered;  // held from a gather for a task to the end of the task

  /// An instruction of the stage without work, data and waits.
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

/// The transfers over one cut between two replicas in one direction, or those of the data server. A boundary has the
/// number of the stage after it.
struct Hop {
  std::size_t boundary = 0;
  Payload payload = Payload::Activation;
  std::size_t from_rank = 0;
  std::size_t from = 0;  // index of the replica's StageWork; of the data server that of the receiver
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
  FactsSync,
  ParameterGather
};

/// What the instructions of a lane have in common.
struct LaneRecord {
  LaneKind kind = LaneKind::Compute;
  Payload payload = Payload::Activation;
  std::uint32_t work = 0;  // index of the replica's StageWork
  std::uint64_t length = 0;
  const Series* series = nullptr;  // of transfers, as in Hop
  Bytes size;                      // of transfers and syncs
};

/// Pipelines of stages: the compute lanes follow the orders, and all other lanes follow from those.
class PipelineProgram : public Program {
 public:
  PipelineProgram(const Plan& plan, const Workload& workload, std::vector<Order> orders)
      : orders_(std::move(orders)), patterns_(microbatch_patterns(plan)), parts_of_rank_(orders_.size())
  {
    ensure(orders_.size() == devices_of(plan).size(), "a program needs an order for each device of its plan");
    add_works(plan, workload);
    find_tasks();
    is_training_ = !works_.front().backwards.empty();
    if (!is_training_) {
      for (auto& work : works_) work.activations = {};
    }
    lanes_.resize(orders_.size() + (plan.data_server ? 1 : 0));
    records_.resize(lanes_.size());
    for (std::size_t rank = 0; rank < lanes_.size(); ++rank) add_lane(rank, {"compute", Engine::Device, {}}, {});
    for (std::size_t rank = 0; rank < orders_.size(); ++rank) {
      const std::size_t updates = is_training_ ? parts_of_rank_[rank].size() : 0;
      records_[rank][compute_lane].length = orders_[rank].length() + updates;
    }
    const auto hops = hops_of(boundaries_of(workload), plan.data_server.has_value());
    channels_.resize(hops.size());
    add_lanes("send activation", Payload::Activation, true, hops);
    add_lanes("send gradient", Payload::Gradient, true, hops);
    add_lanes("receive activation", Payload::Activation, false, hops);
    add_lanes("receive gradient", Payload::Gradient, false, hops);
    sharded_ = plan.sync.sharded;
    if (sharded_ != Sharding::None) divide_memory(workload);
    if (sharded_ == Sharding::Parameters) {
      add_gathers_for_tasks(plan, workload, "gather for forwards", &StageWork::forwards, &StageWork::forward_gather);
      add_gathers_for_tasks(plan, workload, "gather for backwards", &StageWork::backwards, &StageWork::backward_gather);
    }
    if (!is_training_) return;
    const bool has_facts = needs_gradient_sync(workload) && orders_.size() > 1;
    add_gradient_syncs(plan, workload);
    if (has_facts) add_facts_sync();
    if (sharded_ == Sharding::Optimizer || sharded_ == Sharding::Gradients) add_parameter_gathers(plan, workload);
  }

  std::size_t ranks() const override { return lanes_.size(); }
  const std::vector<Lane>& lanes(std::size_t rank) const override
  {
    ensure(rank < ranks(), "a rank beyond the program's");
    return lanes_[rank];
  }
  const std::vector<Channel>& channels() const override { return channels_; }

  Bytes resident(std::size_t rank, Tier tier) const override
  {
    ensure(rank < ranks(), "a rank beyond the program's");
    Bytes sum;
    if (tier != Tier::Device || rank >= parts_of_rank_.size()) return sum;
    for (const std::size_t part : parts_of_rank_[rank]) sum += works_[part].resident;
    return sum;
  }

  std::uint64_t length(std::size_t rank, LaneId lane) const override { return record_of(rank, lane).length; }

  Instruction at(std::size_t rank, LaneId lane, std::uint64_t position) const override
  {
    const LaneRecord& record = record_of(rank, lane);
    ensure(position < record.length, "a position beyond the end of its lane");
    switch (record.kind) {
      case LaneKind::Compute:
        return compute(rank, position);
      case LaneKind::GradientSync:
      case LaneKind::FactsSync:
        return sync(rank, lane, record);
      case LaneKind::ParameterGather:
        return gather(rank, lane, record, position);
      default:
        return transfer(lane, record, position);
    }
  }

 private:
  void add_works(const Plan& plan, const Workload& workload)
  {
    const Cluster nowhere;  // what a stage needs is the same on every device
    const CostModel costs(workload, nowhere);
    for (const auto& [stage, replica, rank] : placed_replicas(plan)) {
      if (replica == 0) first_of_stage_.push_back(works_.size());
      StageWork work;
      work.index = static_cast<std::uint32_t>(stage);
      work.replica = replica;
      work.rank = rank;
      work.microbatches = patterns_[stage].count(replica);
      work.first_layer = plan.stages[stage].first_layer;
      work.last_layer = plan.stages[stage].last_layer;
      for (std::size_t layer = work.first_layer; layer <= work.last_layer; ++layer) {
        const Layer& each = workload.layers.at(layer);
        work.forward += each.forward;
        work.backward += each.backward;
        work.backward_weight += each.backward_weight;
        work.update += update_work(workload, each);
        if (!costs.memory_ignores_schedule()) work.activations += each.activations;
      }
      work.resident = costs.memory(work.first_layer, work.last_layer, 0);
      work.part = static_cast<std::uint32_t>(parts_of_rank_[rank].size());
      parts_of_rank_[rank].push_back(works_.size());
      works_.push_back(std::move(work));
    }
    first_of_stage_.push_back(works_.size());
  }

  /// Finds the forwards and backwards of each replica in the orders, and checks that they are all there.
  void find_tasks()
  {
    for (std::size_t rank = 0; rank < orders_.size(); ++rank) {
      const Order& order = orders_[rank];
      std::uint64_t tasks = 0;
      for (std::uint32_t part = 0; part < parts_of_rank_[rank].size(); ++part) {
        StageWork& work = works_[parts_of_rank_[rank][part]];
        const MicrobatchPattern* divides = patterns_[work.index].replicas() > 1 ? &patterns_[work.index] : nullptr;
        work.forwards = Series::forwards(order, part).of_replica(divides, work.replica);
        work.backwards = Series::backwards(order, part).of_replica(divides, work.replica);
        const std::uint64_t inputs = order.count(Opcode::BackwardInput, part);
        const std::uint64_t weights = order.count(Opcode::BackwardWeight, part);
        const std::uint64_t backwards = work.backwards.length();
        ensure(work.forwards.length() == work.microbatches, "an order without a forward of every micro-batch");
        ensure(work.backwards.empty() || backwards == work.microbatches,
               "an order without a backward of every micro-batch");
        ensure(inputs == weights && (inputs == 0 || order.count(Opcode::Backward, part) == 0),
               "an order with half of a backward, or with whole and split ones of a stage");
        tasks += work.microbatches + backwards + weights;
      }
      ensure(tasks == order.length(), "an order with tasks of stages that its device does not have");
    }
    for (const auto& work : works_) {
      ensure(work.backwards.empty() == works_.front().backwards.empty(), "orders with backwards of some stages only");
    }
  }

  /// The transfers between ranks. Also sets the inputs that come from the same rank.
  std::vector<Hop> hops_of(const Boundaries& boundaries, bool has_data_server)
  {
    std::vector<Hop> hops;
    // The data server has no stage; its sends carry the stage and layers that they feed.
    for (std::size_t i = 0; has_data_server && i < first_of_stage_[1]; ++i) {
      hops.push_back(
          {0, Payload::Activation, orders_.size(), i, works_[i].rank, i, &works_[i].forwards, boundaries.output.at(0)});
    }
    for (std::size_t stage = 1; stage < patterns_.size(); ++stage) {
      const std::size_t layer = works_[first_of_stage_[stage]].first_layer;
      const bool is_alike = patterns_[stage - 1] == patterns_[stage];
      if (!is_alike) add_routes(stage);
      for (std::size_t from = first_of_stage_[stage - 1]; from < first_of_stage_[stage]; ++from) {
        for (std::size_t to = first_of_stage_[stage]; to < first_of_stage_[stage + 1]; ++to) {
          if (is_alike && works_[from].replica != works_[to].replica) continue;
          if (!is_alike && !do_meet(from, to)) continue;
          add_hop(hops, Payload::Activation, from, to, boundaries.output.at(layer), is_alike);
          if (is_training_) add_hop(hops, Payload::Gradient, to, from, boundaries.gradient.at(layer), is_alike);
        }
      }
    }
    return hops;
  }

  /// Whether a micro-batch of one replica is one of another's, a stage before or after.
  bool do_meet(std::size_t from, std::size_t to) const
  {
    const Series& series = works_[from].forwards;
    for (std::uint64_t index = 0; index < series.length(); ++index) {
      if (patterns_[works_[to].index].replica_of(series.of_step(index)) == works_[to].replica) return true;
    }
    return false;
  }

  /// Lets the replicas of a stage and of the one before find their inputs by the other's pattern.
  void add_routes(std::size_t stage)
  {
    const auto add = [&](std::size_t of, std::size_t by, Input StageWork::*input) {
      for (std::size_t i = first_of_stage_[of]; i < first_of_stage_[of + 1]; ++i) {
        routes_.push_back({&patterns_[by], std::vector<Source>(first_of_stage_[by + 1] - first_of_stage_[by])});
        (works_[i].*input).route = &routes_.back();
      }
    };
    add(stage, stage - 1, &StageWork::input);
    if (is_training_) add(stage - 1, stage, &StageWork::gradient);
  }

  /// Adds the transfers from one replica to another; on the same rank, only where their results are found.
  void add_hop(std::vector<Hop>& hops, Payload payload, std::size_t from, std::size_t to, Bytes size, bool is_alike)
  {
    const Series& made = payload == Payload::Activation ? works_[from].forwards : works_[from].backwards;
    if (works_[from].rank == works_[to].rank) {
      source_of(payload, from, to) = {&made, compute_lane};
      return;
    }
    const Series* sent = &made;
    if (!is_alike) {
      parts_of_series_.push_back(made.only([&](std::uint64_t index) {
        return patterns_[works_[to].index].replica_of(made.of_step(index)) == works_[to].replica;
      }));
      sent = &parts_of_series_.back();
    }
    const std::size_t boundary = std::max(works_[from].index, works_[to].index);
    hops.push_back({boundary, payload, works_[from].rank, from, works_[to].rank, to, sent, size});
  }

  /// Where a replica finds what another one sends it.
  Source& source_of(Payload payload, std::size_t from, std::size_t to)
  {
    Input& input = payload == Payload::Activation ? works_[to].input : works_[to].gradient;
    if (input.route == nullptr) return input.source;
    return input.route->sources[works_[from].replica];
  }

  /// Adds the lanes of one kind, in the order of stages. The channel of a hop has its index.
  void add_lanes(const char* name, Payload payload, bool is_send, const std::vector<Hop>& hops)
  {
    std::vector<std::size_t> of_kind(ranks(), 0);
    std::map<std::pair<std::size_t, std::size_t>, std::size_t> of_boundary;  // by rank and boundary
    for (const auto& hop : hops) {
      if (hop.payload != payload) continue;
      const std::size_t rank = is_send ? hop.from_rank : hop.to_rank;
      ++of_kind[rank];
      ++of_boundary[{rank, hop.boundary}];
    }
    for (std::size_t i = 0; i < hops.size(); ++i) {
      const Hop& hop = hops[i];
      if (hop.payload != payload) continue;
      const bool is_input = hop.boundary == 0;
      const std::size_t own = is_send ? hop.from : hop.to;
      LaneRecord record;
      record.kind = is_send ? LaneKind::Send : LaneKind::Recv;
      if (is_input) record.kind = is_send ? LaneKind::SendOfInputs : LaneKind::RecvOfInputs;
      record.payload = payload;
      record.work = static_cast<std::uint32_t>(own);
      record.length = hop.series->length();
      record.series = hop.series;
      record.size = hop.size;
      const std::size_t rank = is_send ? hop.from_rank : hop.to_rank;
      std::string lane_name = name;
      if (of_kind[rank] > 1) lane_name += fmt::format(" {}", hop.boundary);
      if (of_boundary.at({rank, hop.boundary}) > 1) {
        lane_name += fmt::format(".{}", works_[is_send ? hop.to : hop.from].replica);
      }
      const LaneId lane = add_lane(rank, {lane_name, Engine::Network, i}, record);
      channels_[i].ends.push_back({rank, lane});
      if (!is_send) source_of(payload, hop.from, hop.to) = {hop.series, lane};
    }
  }

  /// Gives each replica of the stages that have several the update of its part only, and the memory that it holds.
  void divide_memory(const Workload& workload)
  {
    const ParameterBytes bytes = parameter_bytes(workload.dtype, workload.optimizer);
    for (auto& work : works_) {
      const std::size_t replicas = patterns_[work.index].replicas();
      if (replicas == 1) continue;
      work.is_divided = true;
      work.update = work.update / static_cast<double>(replicas);
      if (workload.memory_model == MemoryModel::Sky) continue;  // whose memory is that of its layers alone
      const double parameters = parameters_of(workload, work);
      work.resident -= Bytes(parameters * (bytes.all() - held_bytes(bytes, sharded_, replicas)));
      work.gathered = Bytes(parameters * gathered_parameter_bytes(bytes, sharded_, replicas));
      if (!is_training_) continue;
      work.unsummed_gradients = Bytes(parameters * unsummed_gradient_bytes(bytes, sharded_, replicas));
      const Order& order = orders_[work.rank];
      const auto opcode = order.count(Opcode::Backward, work.part) > 0 ? Opcode::Backward : Opcode::BackwardInput;
      work.first_backward = order.position_of(order.nth(opcode, work.part, 0));
    }
  }

  /// Lets the replicas of the stages that have several add up their gradients once a step. The last stage comes first,
  /// since its gradients are complete first. The syncs of a rank come one after another, since they share its network.
  void add_gradient_syncs(const Plan& plan, const Workload& workload)
  {
    last_sync_.resize(orders_.size());
    for (std::size_t stage = patterns_.size(); stage-- > 0;) {
      if (patterns_[stage].replicas() == 1) continue;
      add_collective(plan, stage, "sync gradients", LaneKind::GradientSync, data_of(workload, stage),
                     [&](StageWork& work, LaneId lane) {
                       work.sync_waits.add(after_gradients(work));
                       work.sync_waits.add(last_sync_[work.rank]);
                       last_sync_[work.rank] = {lane, 0, 1};
                       work.update_waits.add({lane, 0, 1});
                     });
    }
  }

  /// Lets the replicas of the stages that have several bring each other the parameters that they have updated, one
  /// stage of a rank after another.
  void add_parameter_gathers(const Plan& plan, const Workload& workload)
  {
    std::vector<Wait> last_gather(orders_.size());
    for (std::size_t stage = 0; stage < patterns_.size(); ++stage) {
      const std::size_t replicas = patterns_[stage].replicas();
      if (replicas == 1) continue;
      add_collective(plan, stage, "gather parameters", LaneKind::ParameterGather,
                     data_of(workload, stage) / static_cast<double>(replicas), [&](StageWork& work, LaneId lane) {
                       work.gather = lane;
                       work.gather_waits = Wait{compute_lane, 0, orders_[work.rank].length() + work.part + 1};
                       work.gather_waits.add(last_gather[work.rank]);
                       last_gather[work.rank] = {lane, 0, 1};
                     });
    }
  }

  /// Lets the replicas of the stages that have several bring each other their parts of the parameters for each task of
  /// a series.
  void add_gathers_for_tasks(const Plan& plan, const Workload& workload, const char* name, Series StageWork::*series,
                             std::optional<LaneId> StageWork::*lane_of)
  {
    for (std::size_t stage = 0; stage < patterns_.size(); ++stage) {
      const std::size_t replicas = patterns_[stage].replicas();
      const bool has_tasks = !(works_[first_of_stage_[stage]].*series).empty();
      if (replicas == 1 || !has_tasks) continue;
      add_collective(plan, stage, name, LaneKind::ParameterGather,
                     data_of(workload, stage) / static_cast<double>(replicas), [&](StageWork& work, LaneId lane) {
                       work.*lane_of = lane;
                       LaneRecord& record = records_[work.rank][lane];
                       record.series = &(work.*series);
                       record.length = record.series->length();
                     });
    }
  }

  /// Adds a channel between the replicas of a stage, and their lanes: one collective of `size` once a step.
  template <typename Added>
  void add_collective(const Plan& plan, std::size_t stage, const char* name, LaneKind kind, Bytes size, Added added)
  {
    Channel channel;
    channel.algorithm = plan.sync.algorithm;
    for (std::size_t i = first_of_stage_[stage]; i < first_of_stage_[stage + 1]; ++i) {
      StageWork& work = works_[i];
      LaneRecord record;
      record.kind = kind;
      record.work = static_cast<std::uint32_t>(i);
      record.length = 1;
      record.size = size;
      std::size_t alike = 0;  // lanes of this kind on the rank
      for (const std::size_t part : parts_of_rank_[work.rank]) {
        alike += patterns_[works_[part].index].replicas() > 1 ? 1U : 0U;
      }
      const std::string lane_name = alike > 1 ? fmt::format("{} {}", name, stage) : name;
      const LaneId lane = add_lane(work.rank, {lane_name, Engine::Network, channels_.size()}, record);
      channel.ends.push_back({work.rank, lane});
      const auto& shard = plan.stages[stage].replicas[work.replica].shards.front();
      channel.sites.push_back(shard.site.value_or(""));
      added(work, lane);
    }
    channels_.push_back(std::move(channel));
  }

  /// The wait for the last task that adds to the gradients of a replica's parameters.
  Wait after_gradients(const StageWork& work) const
  {
    const Order& order = orders_[work.rank];
    const auto opcode = order.count(Opcode::Backward, work.part) > 0 ? Opcode::Backward : Opcode::BackwardWeight;
    return {compute_lane, 0, order.position_of(order.nth(opcode, work.part, work.microbatches - 1)) + 1};
  }

  /// The gradients or the parameters of a stage, as they are sent: float32, whatever the workload computes in.
  Bytes data_of(const Workload& workload, std::size_t stage) const
  {
    constexpr double bytes_of_a_value = 4;
    return Bytes(parameters_of(workload, works_[first_of_stage_[stage]]) * bytes_of_a_value);
  }

  static double parameters_of(const Workload& workload, const StageWork& work)
  {
    double parameters = 0;
    for (std::size_t layer = work.first_layer; layer <= work.last_layer; ++layer) {
      parameters += static_cast<double>(workload.layers[layer].parameters);
    }
    return parameters;
  }

  /// Adds a lane for each rank, on which all agree on what clipping and loss scaling need to know once a step.
  void add_facts_sync()
  {
    Channel channel;
    for (std::size_t rank = 0; rank < orders_.size(); ++rank) {
      LaneRecord record;
      record.kind = LaneKind::FactsSync;
      record.work = static_cast<std::uint32_t>(parts_of_rank_[rank].front());
      record.length = 1;
      record.size = gradient_sync_size;
      const LaneId lane = add_lane(rank, {"sync", Engine::Network, channels_.size()}, record);
      channel.ends.push_back({rank, lane});
      for (const std::size_t part : parts_of_rank_[rank]) works_[part].update_waits = Wait{lane, 0, 1};
    }
    channels_.push_back(std::move(channel));
  }

  LaneId add_lane(std::size_t rank, Lane lane, LaneRecord record)
  {
    ensure(lanes_[rank].size() < std::numeric_limits<LaneId>::max(), "a rank with more lanes than a LaneId can count");
    lanes_[rank].push_back(std::move(lane));
    records_[rank].push_back(record);
    return static_cast<LaneId>(records_[rank].size() - 1);
  }

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

  /// The wait of a replica's task at `position` of its rank for what it reads; for no completion if the rank made that
  /// itself. `own` has the micro-batches of the replica.
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
    ensure(source->made_by->position_of(task) < position, "an order in which a task comes before its input");
    return {};
  }

  Instruction compute(std::size_t rank, std::uint64_t position) const
  {
    const Order& order = orders_[rank];
    const bool is_update = position >= order.length();
    const Task task =
        is_update ? Task{Opcode::Update, static_cast<std::uint32_t>(position - order.length()), 0} : order.at(position);
    const StageWork& stage = works_[parts_of_rank_[rank][task.part]];
    Instruction instruction = stage.make(task.opcode);
    instruction.microbatch = stage.forwards.of_step(task.microbatch);
    switch (task.opcode) {
      case Opcode::Forward:
        instruction.work = stage.forward;
        instruction.acquires.size = stage.activations;
        instruction.waits.add(arrival_of(stage.input, stage.forwards, task.microbatch, position));
        break;
      case Opcode::Backward:
        instruction.work = stage.backward;
        instruction.releases.size = stage.activations;
        instruction.waits.add(arrival_of(stage.gradient, stage.forwards, task.microbatch, position));
        break;
      case Opcode::BackwardInput:
        instruction.work = stage.backward - stage.backward_weight;
        instruction.waits.add(arrival_of(stage.gradient, stage.forwards, task.microbatch, position));
        break;
      case Opcode::BackwardWeight:
        instruction.work = stage.backward_weight;
        instruction.releases.size = stage.activations;
        break;
      default:
        instruction.work = stage.update;
        instruction.waits = stage.update_waits;
        break;
    }
    if (stage.is_divided) divide(stage, task, position, instruction);
    return instruction;
  }

  /// What a task of divided replicas waits for and holds besides.
  void divide(const StageWork& stage, const Task& task, std::uint64_t position, Instruction& instruction) const
  {
    const bool is_forward = task.opcode == Opcode::Forward;
    const bool is_backward = task.opcode == Opcode::Backward || task.opcode == Opcode::BackwardInput;
    if (is_forward && stage.gather) instruction.waits.add({*stage.gather, 1, 1});
    const auto& gather = is_forward ? stage.forward_gather : stage.backward_gather;
    if (gather && (is_forward || is_backward)) {
      const Series& series = is_forward ? stage.forwards : stage.backwards;
      instruction.waits.add({*gather, 0, series.index_of(task) + 1});
      instruction.releases.size += stage.gathered;
    }
    if (is_backward && position == stage.first_backward) instruction.acquires.size = stage.unsummed_gradients;
  }

  Instruction transfer(LaneId lane, const LaneRecord& record, std::uint64_t position) const
  {
    const bool is_send = record.kind == LaneKind::Send || record.kind == LaneKind::SendOfInputs;
    const Task task = record.series->nth(position);
    Instruction instruction = works_[record.work].make(is_send ? Opcode::Send : Opcode::Recv);
    instruction.payload = record.payload;
    instruction.lane = lane;
    instruction.microbatch = record.series->of_step(task.microbatch);
    instruction.size = record.size;
    if (record.kind == LaneKind::Send) instruction.waits.add(after(*record.series, task));
    if (record.kind == LaneKind::RecvOfInputs) instruction.waits.add(after_earlier_input(*record.series, position));
    return instruction;
  }

  Instruction sync(std::size_t rank, LaneId lane, const LaneRecord& record) const
  {
    const bool is_of_facts = record.kind == LaneKind::FactsSync;
    const StageWork& work = works_[record.work];
    const bool is_divided = !is_of_facts && sharded_ != Sharding::None;
    Instruction instruction = work.make(is_divided ? Opcode::ReduceScatter : Opcode::AllReduce);
    instruction.payload = is_of_facts ? Payload::GradientFacts : Payload::ParameterGradient;
    instruction.lane = lane;
    instruction.size = record.size;
    instruction.waits = is_of_facts ? Waits(Wait{compute_lane, 0, orders_[rank].length()}) : work.sync_waits;
    if (is_of_facts) instruction.waits.add(last_sync_[rank]);
    if (is_divided) instruction.releases.size = work.unsummed_gradients;
    return instruction;
  }

  /// The parameters of a replica's part go to the others once they are updated, or for each task that uses them. Then
  /// they come while the task before runs, unless it is of the same stage.
  Instruction gather(std::size_t rank, LaneId lane, const LaneRecord& record, std::uint64_t position) const
  {
    const StageWork& work = works_[record.work];
    Instruction instruction = work.make(Opcode::AllGather);
    instruction.payload = Payload::Parameter;
    instruction.lane = lane;
    instruction.size = record.size;
    instruction.waits = work.gather_waits;
    if (record.series == nullptr) return instruction;
    const Task task = record.series->nth(position);
    instruction.microbatch = record.series->of_step(task.microbatch);
    instruction.acquires.size = work.gathered;
    const Order& order = orders_[rank];
    const std::uint64_t at = record.series->position_of(task);
    const bool follows_itself =
        at > 0 && order.at(at - 1).part == work.part && order.at(at - 1).opcode != Opcode::BackwardWeight;
    const std::uint64_t done = follows_itself ? at : std::max<std::uint64_t>(at, 1) - 1;
    if (done > 0) {
      instruction.waits = Wait{compute_lane, 0, done};
    } else if (is_training_) {
      instruction.waits = Wait{compute_lane, 1, order.length() + work.part + 1};  // its Update a period back
    }
    return instruction;
  }

  std::vector<Order> orders_;                            // by rank
  std::vector<MicrobatchPattern> patterns_;              // by stage
  std::vector<std::vector<std::size_t>> parts_of_rank_;  // indices in works_
  std::vector<StageWork> works_;                         // by stage and replica; others point to their series
  std::vector<std::size_t> first_of_stage_;              // in works_, and their number
  std::deque<Series> parts_of_series_;                   // of hops between stages with other patterns
  std::deque<Route> routes_;
  std::vector<Wait> last_sync_;  // of gradients, by rank; for no completion without one
  Sharding sharded_ = Sharding::None;
  bool is_training_ = true;
  std::vector<std::vector<Lane>> lanes_;          // by rank and LaneId
  std::vector<std::vector<LaneRecord>> records_;  // the same
  std::vector<Channel> channels_;
};

void require_feasible(const Plan& plan)
{
  ensure(!plan.stages.empty() && plan.goal.microbatches > 0, "a program needs a feasible plan");
}

}  // namespace

std::unique_ptr<Program> make_program(const Plan& plan, const Workload& workload)
{
  require_feasible(plan);
  return std::make_unique<PipelineProgram>(plan, workload, orders_of(plan));
}

std::unique_ptr<Program> make_program(const Plan& plan, const Workload& workload, std::vector<Order> orders)
{
  require_feasible(plan);
  return std::make_unique<PipelineProgram>(plan, workload, std::move(orders));
}

}  // namespace isobar::schedules
