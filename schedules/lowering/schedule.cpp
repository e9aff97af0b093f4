#include "schedules/lowering/schedule.hpp"

#include "core/errors.hpp"
#include "core/model/layer_graph.hpp"
#include "core/plan/cost_model.hpp"
#include "schedules/lowering/series.hpp"
#include "schedules/orders/schedule.hpp"

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace isobar::schedules {

namespace {

/// Where a task finds its input: made by a series, and brought by a lane of receives. The compute lane brings nothing:
/// the input comes from an earlier task of the same rank.
struct Input {
  Series made_by;  // empty: nothing to wait for
  LaneId lane = compute_lane;
};

/// The layers, work and memory of one stage, and where it runs.
struct StageWork {
  std::size_t rank = 0;
  std::size_t first_layer = 0;
  std::size_t last_layer = 0;
  Flops forward;
  Flops backward;
  Flops backward_weight;  // of `backward`
  Flops update;
  Bytes resident;
  Bytes activations;  // held from a micro-batch's forward until its last backward
  Series forwards;
  Series backwards;
  Input input;
  Input gradient;
};

/// The transfers over one cut in one direction, or those of the data server. A boundary has the number of the stage
/// after it.
struct Hop {
  std::size_t boundary = 0;
  Payload payload = Payload::Activation;
  std::size_t from_rank = 0;
  std::size_t from_stage = 0;
  std::size_t to_rank = 0;
  std::size_t to_stage = 0;
  Series series;  // message k carries what its task k makes
  Bytes size;
};

enum class Role : std::uint8_t { Compute, Send, SendInput, Receive, ReceiveInput, Sync };

/// What the instructions of a lane have in common.
struct LaneRecord {
  Role role = Role::Compute;
  Payload payload = Payload::Activation;
  std::size_t stage = 0;
  std::uint64_t length = 0;
  Series series;  // of transfers, as in Hop
  Bytes size;
};

/// The lanes of a rank and their records, both by LaneId.
struct RankLanes {
  std::vector<Lane> lanes;
  std::vector<LaneRecord> records;
  LaneId sync = compute_lane;  // the compute lane if there is none

  LaneId add(Lane lane, const LaneRecord& record)
  {
    ensure(lanes.size() < std::numeric_limits<LaneId>::max(), "a rank with more lanes than a LaneId can count");
    lanes.push_back(std::move(lane));
    records.push_back(record);
    return static_cast<LaneId>(lanes.size() - 1);
  }
};

/// A pipeline of stages: the compute lanes follow the orders, and all other lanes follow from those.
class PipelineProgram : public Program {
 public:
  PipelineProgram(const Plan& plan, const Workload& workload, const PipelineShape& shape, std::vector<Order> orders)
      : microbatches_(plan.goal.microbatches), orders_(std::move(orders)), stages_of_rank_(stages_by_rank(shape))
  {
    ensure(orders_.size() == shape.ranks(), "a program needs an order for each device of its plan");
    add_stages(plan, workload, shape);
    find_tasks();
    is_training_ = !stages_.front().backwards.empty();
    ranks_.resize(shape.ranks() + (plan.data_server ? 1 : 0));
    for (auto& rank : ranks_) rank.add({"compute", Engine::Device, {}}, {});
    for (std::size_t rank = 0; rank < orders_.size(); ++rank) {
      const std::size_t updates = is_training_ ? stages_of_rank_[rank].size() : 0;
      ranks_[rank].records[compute_lane].length = orders_[rank].length() + updates;
    }
    const auto hops = hops_of(boundaries_of(workload), plan.data_server.has_value());
    channels_.resize(hops.size());
    add_lanes("send activation", Payload::Activation, true, hops);
    add_lanes("send gradient", Payload::Gradient, true, hops);
    add_lanes("receive activation", Payload::Activation, false, hops);
    add_lanes("receive gradient", Payload::Gradient, false, hops);
    if (is_training_ && needs_gradient_sync(workload) && shape.ranks() > 1) add_gradient_sync();
  }

  std::size_t ranks() const override { return ranks_.size(); }
  const std::vector<Lane>& lanes(std::size_t rank) const override { return of_rank(rank).lanes; }
  const std::vector<Channel>& channels() const override { return channels_; }

  Bytes resident(std::size_t rank, Tier tier) const override
  {
    ensure(rank < ranks(), "a rank beyond the program's");
    Bytes sum;
    if (tier != Tier::Device || rank >= stages_of_rank_.size()) return sum;
    for (const std::size_t stage : stages_of_rank_[rank]) sum += stages_[stage].resident;
    return sum;
  }

  std::uint64_t length(std::size_t rank, LaneId lane) const override { return record_of(rank, lane).length; }

  Instruction at(std::size_t rank, LaneId lane, std::uint64_t position) const override
  {
    const LaneRecord& record = record_of(rank, lane);
    ensure(position < record.length, "a position beyond the end of its lane");
    switch (record.role) {
      case Role::Compute:
        return compute(rank, position);
      case Role::Send: {
        const Task task = record.series.nth(position);
        return transfer(Opcode::Send, lane, record, task, after(record.series, task));
      }
      case Role::SendInput:
        return transfer(Opcode::Send, lane, record, record.series.nth(position), {});
      case Role::Receive:
        return transfer(Opcode::Recv, lane, record, record.series.nth(position), {});
      case Role::ReceiveInput:
        return transfer(Opcode::Recv, lane, record, record.series.nth(position),
                        after_earlier_input(record.series, position));
      case Role::Sync: {
        Instruction sync = of_stage(record.stage, Opcode::AllReduce, lane, 0);
        sync.payload = record.payload;
        sync.size = record.size;
        sync.waits = Wait{compute_lane, 0, orders_[rank].length()};
        return sync;
      }
    }
    throw std::logic_error("a lane without a role");
  }

 private:
  void add_stages(const Plan& plan, const Workload& workload, const PipelineShape& shape)
  {
    const Cluster nowhere;  // what a stage needs is the same on every device
    const CostModel costs(workload, nowhere);
    for (std::size_t i = 0; i < plan.stages.size(); ++i) {
      const Stage& stage = plan.stages[i];
      ensure(stage.devices.size() == 1, "a stage of several devices has no schedule yet");
      StageWork work;
      work.rank = shape.rank_of_stage[i];
      work.first_layer = stage.first_layer;
      work.last_layer = stage.last_layer;
      for (std::size_t layer = stage.first_layer; layer <= stage.last_layer; ++layer) {
        const Layer& each = workload.layers.at(layer);
        work.forward += each.forward;
        work.backward += each.backward;
        work.backward_weight += each.backward_weight;
        work.update += update_work(workload, each);
        if (!costs.memory_ignores_schedule()) work.activations += each.activations;
      }
      work.resident = costs.memory(stage.first_layer, stage.last_layer, 0);
      stages_.push_back(work);
    }
  }

  /// Finds the forwards and backwards of each stage in the orders, and checks that they are all there.
  void find_tasks()
  {
    for (std::size_t rank = 0; rank < orders_.size(); ++rank) {
      const Order& order = orders_[rank];
      std::uint64_t tasks = 0;
      for (std::uint32_t part = 0; part < stages_of_rank_[rank].size(); ++part) {
        StageWork& stage = stages_[stages_of_rank_[rank][part]];
        stage.forwards = Series::forwards(order, part);
        stage.backwards = Series::backwards(order, part);
        const std::uint64_t inputs = order.count(Opcode::BackwardInput, part);
        const std::uint64_t weights = order.count(Opcode::BackwardWeight, part);
        const std::uint64_t backwards = stage.backwards.length();
        ensure(stage.forwards.length() == microbatches_, "an order without a forward of every micro-batch");
        ensure(stage.backwards.empty() || backwards == microbatches_,
               "an order without a backward of every micro-batch");
        ensure(inputs == weights && (inputs == 0 || order.count(Opcode::Backward, part) == 0),
               "an order with half of a backward, or with whole and split ones of a stage");
        tasks += microbatches_ + backwards + weights;
      }
      ensure(tasks == order.length(), "an order with tasks of stages that its device does not have");
    }
    for (const auto& stage : stages_) {
      ensure(stage.backwards.empty() == stages_.front().backwards.empty(), "orders with backwards of some stages only");
    }
  }

  /// The transfers between ranks. Also sets the inputs that come from the same rank.
  std::vector<Hop> hops_of(const Boundaries& boundaries, bool has_data_server)
  {
    std::vector<Hop> hops;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      StageWork& stage = stages_[i];
      const Bytes output = boundaries.output.at(stage.first_layer);
      // The data server has no stage; its sends carry the stage and layers that they feed.
      if (i == 0 && has_data_server) {
        hops.push_back({i, Payload::Activation, orders_.size(), i, stage.rank, i, stage.forwards, output});
      }
      if (i == 0) continue;
      StageWork& before = stages_[i - 1];
      if (before.rank == stage.rank) {
        stage.input.made_by = before.forwards;
        before.gradient.made_by = stage.backwards;
        continue;
      }
      hops.push_back({i, Payload::Activation, before.rank, i - 1, stage.rank, i, before.forwards, output});
      if (!is_training_) continue;
      hops.push_back({i, Payload::Gradient, stage.rank, i, before.rank, i - 1, stage.backwards,
                      boundaries.gradient.at(stage.first_layer)});
    }
    return hops;
  }

  /// Adds the lanes of one kind, in the order of stages. The channel of a hop has its index.
  void add_lanes(const char* name, Payload payload, bool is_send, const std::vector<Hop>& hops)
  {
    std::vector<std::size_t> of_kind(ranks_.size(), 0);
    for (const auto& hop : hops) {
      if (hop.payload == payload) ++of_kind[is_send ? hop.from_rank : hop.to_rank];
    }
    for (std::size_t i = 0; i < hops.size(); ++i) {
      const Hop& hop = hops[i];
      if (hop.payload != payload) continue;
      LaneRecord record;
      record.role = is_send ? Role::Send : Role::Receive;
      if (hop.boundary == 0) record.role = is_send ? Role::SendInput : Role::ReceiveInput;
      record.payload = payload;
      record.stage = is_send ? hop.from_stage : hop.to_stage;
      record.length = microbatches_;
      record.series = hop.series;
      record.size = hop.size;
      const std::size_t rank = is_send ? hop.from_rank : hop.to_rank;
      const std::string suffix = of_kind[rank] > 1 ? " " + std::to_string(hop.boundary) : "";
      const LaneId lane = ranks_[rank].add({name + suffix, Engine::Network, i}, record);
      channels_[i].ends.push_back({rank, lane});
      if (is_send) continue;
      StageWork& receiver = stages_[hop.to_stage];
      (payload == Payload::Activation ? receiver.input : receiver.gradient) = {hop.series, lane};
    }
  }

  void add_gradient_sync()
  {
    Channel channel;
    for (std::size_t rank = 0; rank < orders_.size(); ++rank) {
      LaneRecord record;
      record.role = Role::Sync;
      record.payload = Payload::GradientFacts;
      record.stage = stages_of_rank_[rank].front();
      record.length = 1;
      record.size = gradient_sync_size;
      ranks_[rank].sync = ranks_[rank].add({"sync", Engine::Network, channels_.size()}, record);
      channel.ends.push_back({rank, ranks_[rank].sync});
    }
    channels_.push_back(std::move(channel));
  }

  const RankLanes& of_rank(std::size_t rank) const
  {
    ensure(rank < ranks_.size(), "a rank beyond the program's");
    return ranks_[rank];
  }

  const LaneRecord& record_of(std::size_t rank, LaneId lane) const
  {
    const auto& records = of_rank(rank).records;
    ensure(lane < records.size(), "a lane beyond the rank's");
    return records[lane];
  }

  static Wait after(const Series& series, const Task& task) { return {compute_lane, 0, series.position_of(task) + 1}; }

  /// The input is double-buffered: one arrives while the previous one is processed. So input n waits for forward n-2,
  /// counted over all steps.
  Wait after_earlier_input(const Series& forwards, std::uint64_t index) const
  {
    constexpr std::uint64_t buffers = 2;
    const std::uint64_t missing = index < buffers ? buffers - index : 0;
    const std::uint64_t periods_back = (missing + microbatches_ - 1) / microbatches_;
    Wait wait = after(forwards, forwards.nth(index + periods_back * microbatches_ - buffers));
    wait.periods_back = static_cast<std::uint16_t>(periods_back);
    return wait;
  }

  /// The wait of the rank's task at `position` for what it reads.
  static Waits arrival_of(const Input& input, std::uint64_t microbatch, std::uint64_t position)
  {
    const Series& series = input.made_by;
    if (series.empty()) return {};
    const Task task = series.of(microbatch);
    if (input.lane != compute_lane) return Wait{input.lane, 0, series.index_of(task) + 1};
    ensure(series.position_of(task) < position, "an order in which a task comes before its input");
    return {};
  }

  Instruction of_stage(std::size_t index, Opcode opcode, LaneId lane, std::uint64_t microbatch) const
  {
    Instruction instruction;
    instruction.opcode = opcode;
    instruction.lane = lane;
    instruction.stage = static_cast<std::uint32_t>(index);
    instruction.microbatch = microbatch;
    instruction.first_layer = stages_[index].first_layer;
    instruction.last_layer = stages_[index].last_layer;
    return instruction;
  }

  Instruction compute(std::size_t rank, std::uint64_t position) const
  {
    const Order& order = orders_[rank];
    if (position >= order.length()) {
      const std::size_t index = stages_of_rank_[rank][position - order.length()];
      Instruction update = of_stage(index, Opcode::Update, compute_lane, 0);
      update.work = stages_[index].update;
      if (ranks_[rank].sync != compute_lane) update.waits = Wait{ranks_[rank].sync, 0, 1};
      return update;
    }
    const Task task = order.at(position);
    const std::size_t index = stages_of_rank_[rank][task.part];
    const StageWork& stage = stages_[index];
    Instruction instruction = of_stage(index, task.opcode, compute_lane, task.microbatch);
    if (task.opcode == Opcode::Forward) {
      instruction.waits = arrival_of(stage.input, task.microbatch, position);
      instruction.work = stage.forward;
      if (is_training_) instruction.acquires.size = stage.activations;
      return instruction;
    }
    if (task.opcode == Opcode::BackwardWeight) {
      instruction.work = stage.backward_weight;
    } else {
      instruction.waits = arrival_of(stage.gradient, task.microbatch, position);
      instruction.work = task.opcode == Opcode::Backward ? stage.backward : stage.backward - stage.backward_weight;
    }
    if (task.opcode != Opcode::BackwardInput) instruction.releases.size = stage.activations;
    return instruction;
  }

  Instruction transfer(Opcode opcode, LaneId lane, const LaneRecord& record, const Task& task, const Wait& wait) const
  {
    Instruction instruction = of_stage(record.stage, opcode, lane, task.microbatch);
    instruction.payload = record.payload;
    instruction.size = record.size;
    instruction.waits = wait;
    return instruction;
  }

  std::uint64_t microbatches_;
  std::vector<Order> orders_;                             // by rank
  std::vector<std::vector<std::size_t>> stages_of_rank_;  // by part
  std::vector<StageWork> stages_;
  bool is_training_ = true;
  std::vector<RankLanes> ranks_;
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
  const PipelineShape shape = shape_of(plan);
  const ScheduleChoice& choice = plan.goal.schedule;
  return std::make_unique<PipelineProgram>(plan, workload, shape, require_schedule(choice.name).orders(shape, choice));
}

std::unique_ptr<Program> make_program(const Plan& plan, const Workload& workload, std::vector<Order> orders)
{
  require_feasible(plan);
  return std::make_unique<PipelineProgram>(plan, workload, shape_of(plan), std::move(orders));
}

}  // namespace isobar::schedules
