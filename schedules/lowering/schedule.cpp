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
  std::uint32_t index = 0;
  std::size_t rank = 0;
  std::size_t first_layer = 0;
  std::size_t last_layer = 0;
  Bytes resident;
  Series forwards;
  Series backwards;
  Input input;
  Input gradient;
  // Its instructions, but for micro-batches and waits for arrivals:
  Instruction forward;
  Instruction backward;
  Instruction backward_input;
  Instruction backward_weight;
  Instruction update;

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

  const Instruction& task(Opcode opcode) const
  {
    if (opcode == Opcode::Forward) return forward;
    if (opcode == Opcode::BackwardInput) return backward_input;
    return opcode == Opcode::BackwardWeight ? backward_weight : backward;
  }
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

/// What a lane's instructions wait for besides what they have in common.
enum class LaneKind : std::uint8_t {
  Compute,        // the arrival of what they read
  Sends,          // the task whose result they send
  ReceivesInput,  // the forward of the input before the previous one
  Other           // nothing
};

struct LaneRecord {
  LaneKind kind = LaneKind::Compute;
  std::uint64_t length = 0;
  Series series;            // of transfers, as in Hop
  Instruction instruction;  // of transfers and collectives, but for micro-batches and such waits
};

/// The lanes of a rank and their records, both by LaneId.
struct RankLanes {
  std::vector<Lane> lanes;
  std::vector<LaneRecord> records;

  LaneId add(Lane lane, LaneRecord record)
  {
    ensure(lanes.size() < std::numeric_limits<LaneId>::max(), "a rank with more lanes than a LaneId can count");
    const auto id = static_cast<LaneId>(lanes.size());
    record.instruction.lane = id;
    lanes.push_back(std::move(lane));
    records.push_back(std::move(record));
    return id;
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
    if (!is_training_) {
      for (auto& stage : stages_) stage.forward.acquires = {};
    }
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
    return record.kind == LaneKind::Compute ? compute(rank, position) : in_lane(record, position);
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
      work.index = static_cast<std::uint32_t>(i);
      work.rank = shape.rank_of_stage[i];
      work.first_layer = stage.first_layer;
      work.last_layer = stage.last_layer;
      work.forward = work.make(Opcode::Forward);
      work.backward = work.make(Opcode::Backward);
      work.backward_input = work.make(Opcode::BackwardInput);
      work.backward_weight = work.make(Opcode::BackwardWeight);
      work.update = work.make(Opcode::Update);
      Bytes activations;  // held from a micro-batch's forward until its last backward
      for (std::size_t layer = stage.first_layer; layer <= stage.last_layer; ++layer) {
        const Layer& each = workload.layers.at(layer);
        work.forward.work += each.forward;
        work.backward.work += each.backward;
        work.backward_weight.work += each.backward_weight;
        work.update.work += update_work(workload, each);
        if (!costs.memory_ignores_schedule()) activations += each.activations;
      }
      work.backward_input.work = work.backward.work - work.backward_weight.work;
      work.forward.acquires.size = work.backward.releases.size = work.backward_weight.releases.size = activations;
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
      const bool is_input = hop.boundary == 0;
      LaneRecord record;
      record.kind = LaneKind::Other;
      if (is_send && !is_input) record.kind = LaneKind::Sends;
      if (!is_send && is_input) record.kind = LaneKind::ReceivesInput;
      record.length = microbatches_;
      record.series = hop.series;
      record.instruction = stages_[is_send ? hop.from_stage : hop.to_stage].make(is_send ? Opcode::Send : Opcode::Recv);
      record.instruction.payload = payload;
      record.instruction.size = hop.size;
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
      record.kind = LaneKind::Other;
      record.length = 1;
      record.instruction = stages_[stages_of_rank_[rank].front()].make(Opcode::AllReduce);
      record.instruction.payload = Payload::GradientFacts;
      record.instruction.size = gradient_sync_size;
      record.instruction.waits = Wait{compute_lane, 0, orders_[rank].length()};
      const LaneId lane = ranks_[rank].add({"sync", Engine::Network, channels_.size()}, record);
      channel.ends.push_back({rank, lane});
      for (const std::size_t stage : stages_of_rank_[rank]) stages_[stage].update.waits = Wait{lane, 0, 1};
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

  Instruction compute(std::size_t rank, std::uint64_t position) const
  {
    const Order& order = orders_[rank];
    if (position >= order.length()) return stages_[stages_of_rank_[rank][position - order.length()]].update;
    const Task task = order.at(position);
    const StageWork& stage = stages_[stages_of_rank_[rank][task.part]];
    Instruction instruction = stage.task(task.opcode);
    instruction.microbatch = task.microbatch;
    if (task.opcode == Opcode::BackwardWeight) return instruction;
    const Input& input = task.opcode == Opcode::Forward ? stage.input : stage.gradient;
    instruction.waits = arrival_of(input, task.microbatch, position);
    return instruction;
  }

  Instruction in_lane(const LaneRecord& record, std::uint64_t position) const
  {
    Instruction instruction = record.instruction;
    if (record.series.empty()) return instruction;
    const Task task = record.series.nth(position);
    instruction.microbatch = task.microbatch;
    if (record.kind == LaneKind::Sends) instruction.waits = after(record.series, task);
    if (record.kind == LaneKind::ReceivesInput) instruction.waits = after_earlier_input(record.series, position);
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
