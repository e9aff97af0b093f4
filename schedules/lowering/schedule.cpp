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
  const Series* made_by = nullptr;  // none: nothing to wait for
  LaneId lane = compute_lane;
};

/// The layers, work and memory of one stage, and where it runs.
struct StageWork {
  std::uint32_t index = 0;
  std::size_t rank = 0;
  std::size_t first_layer = 0;
  std::size_t last_layer = 0;
  Flops forward;
  Flops backward;
  Flops backward_weight;
  Flops update;
  Bytes resident;
  Bytes activations;  // held from a micro-batch's forward until its last backward
  Series forwards;
  Series backwards;
  Input input;
  Input gradient;
  Wait update_wait;

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

/// The transfers over one cut in one direction, or those of the data server. A boundary has the number of the stage
/// after it.
struct Hop {
  std::size_t boundary = 0;
  Payload payload = Payload::Activation;
  std::size_t from_rank = 0;
  std::size_t from_stage = 0;
  std::size_t to_rank = 0;
  std::size_t to_stage = 0;
  const Series* series = nullptr;  // message k carries what its task k makes
  Bytes size;
};

enum class LaneKind : std::uint8_t { Compute, Send, SendOfInputs, Recv, RecvOfInputs, Sync };

/// What the instructions of a lane have in common.
struct LaneRecord {
  LaneKind kind = LaneKind::Compute;
  Payload payload = Payload::Activation;
  std::uint32_t stage = 0;
  std::uint64_t length = 0;
  const Series* series = nullptr;  // of transfers, as in Hop
  Bytes size;                      // of transfers
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
      for (auto& stage : stages_) stage.activations = {};
    }
    lanes_.resize(shape.ranks() + (plan.data_server ? 1 : 0));
    records_.resize(lanes_.size());
    for (std::size_t rank = 0; rank < lanes_.size(); ++rank) add_lane(rank, {"compute", Engine::Device, {}}, {});
    for (std::size_t rank = 0; rank < orders_.size(); ++rank) {
      const std::size_t updates = is_training_ ? stages_of_rank_[rank].size() : 0;
      records_[rank][compute_lane].length = orders_[rank].length() + updates;
    }
    const auto hops = hops_of(boundaries_of(workload), plan.data_server.has_value());
    channels_.resize(hops.size());
    add_lanes("send activation", Payload::Activation, true, hops);
    add_lanes("send gradient", Payload::Gradient, true, hops);
    add_lanes("receive activation", Payload::Activation, false, hops);
    add_lanes("receive gradient", Payload::Gradient, false, hops);
    if (is_training_ && needs_gradient_sync(workload) && shape.ranks() > 1) add_gradient_sync();
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
    if (tier != Tier::Device || rank >= stages_of_rank_.size()) return sum;
    for (const std::size_t stage : stages_of_rank_[rank]) sum += stages_[stage].resident;
    return sum;
  }

  std::uint64_t length(std::size_t rank, LaneId lane) const override { return record_of(rank, lane).length; }

  Instruction at(std::size_t rank, LaneId lane, std::uint64_t position) const override
  {
    const LaneRecord& record = record_of(rank, lane);
    ensure(position < record.length, "a position beyond the end of its lane");
    if (record.kind == LaneKind::Compute) return compute(rank, position);
    return record.kind == LaneKind::Sync ? sync(rank, lane) : transfer(lane, record, position);
  }

 private:
  void add_stages(const Plan& plan, const Workload& workload, const PipelineShape& shape)
  {
    const Cluster nowhere;  // what a stage needs is the same on every device
    const CostModel costs(workload, nowhere);
    for (std::size_t i = 0; i < plan.stages.size(); ++i) {
      const Stage& stage = plan.stages[i];
      ensure(stage.is_on_one_device(), "a stage of several devices has no schedule yet");
      StageWork work;
      work.index = static_cast<std::uint32_t>(i);
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
        hops.push_back({i, Payload::Activation, orders_.size(), i, stage.rank, i, &stage.forwards, output});
      }
      if (i == 0) continue;
      StageWork& before = stages_[i - 1];
      if (before.rank == stage.rank) {
        stage.input.made_by = &before.forwards;
        if (is_training_) before.gradient.made_by = &stage.backwards;
        continue;
      }
      hops.push_back({i, Payload::Activation, before.rank, i - 1, stage.rank, i, &before.forwards, output});
      if (!is_training_) continue;
      hops.push_back({i, Payload::Gradient, stage.rank, i, before.rank, i - 1, &stage.backwards,
                      boundaries.gradient.at(stage.first_layer)});
    }
    return hops;
  }

  /// Adds the lanes of one kind, in the order of stages. The channel of a hop has its index.
  void add_lanes(const char* name, Payload payload, bool is_send, const std::vector<Hop>& hops)
  {
    std::vector<std::size_t> of_kind(ranks(), 0);
    for (const auto& hop : hops) {
      if (hop.payload == payload) ++of_kind[is_send ? hop.from_rank : hop.to_rank];
    }
    for (std::size_t i = 0; i < hops.size(); ++i) {
      const Hop& hop = hops[i];
      if (hop.payload != payload) continue;
      const bool is_input = hop.boundary == 0;
      LaneRecord record;
      record.kind = is_send ? LaneKind::Send : LaneKind::Recv;
      if (is_input) record.kind = is_send ? LaneKind::SendOfInputs : LaneKind::RecvOfInputs;
      record.payload = payload;
      record.stage = static_cast<std::uint32_t>(is_send ? hop.from_stage : hop.to_stage);
      record.length = microbatches_;
      record.series = hop.series;
      record.size = hop.size;
      const std::size_t rank = is_send ? hop.from_rank : hop.to_rank;
      const std::string suffix = of_kind[rank] > 1 ? " " + std::to_string(hop.boundary) : "";
      const LaneId lane = add_lane(rank, {name + suffix, Engine::Network, i}, record);
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
      record.kind = LaneKind::Sync;
      record.length = 1;
      const LaneId lane = add_lane(rank, {"sync", Engine::Network, channels_.size()}, record);
      channel.ends.push_back({rank, lane});
      for (const std::size_t stage : stages_of_rank_[rank]) stages_[stage].update_wait = {lane, 0, 1};
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
  Wait after_earlier_input(const Series& forwards, std::uint64_t index) const
  {
    constexpr std::uint64_t buffers = 2;
    const std::uint64_t missing = index < buffers ? buffers - index : 0;
    const std::uint64_t periods_back = (missing + microbatches_ - 1) / microbatches_;
    Wait wait = after(forwards, forwards.nth(index + periods_back * microbatches_ - buffers));
    wait.periods_back = static_cast<std::uint16_t>(periods_back);
    return wait;
  }

  /// The wait of the rank's task at `position` for what it reads; for no completion if the rank made it itself.
  static Wait arrival_of(const Input& input, std::uint64_t microbatch, std::uint64_t position)
  {
    if (input.made_by == nullptr) return {};
    const Task task = input.made_by->of(microbatch);
    if (input.lane != compute_lane) return {input.lane, 0, input.made_by->index_of(task) + 1};
    ensure(input.made_by->position_of(task) < position, "an order in which a task comes before its input");
    return {};
  }

  Instruction compute(std::size_t rank, std::uint64_t position) const
  {
    const Order& order = orders_[rank];
    const bool is_update = position >= order.length();
    const Task task =
        is_update ? Task{Opcode::Update, static_cast<std::uint32_t>(position - order.length()), 0} : order.at(position);
    const StageWork& stage = stages_[stages_of_rank_[rank][task.part]];
    Instruction instruction = stage.make(task.opcode);
    instruction.microbatch = task.microbatch;
    switch (task.opcode) {
      case Opcode::Forward:
        instruction.work = stage.forward;
        instruction.acquires.size = stage.activations;
        instruction.waits.add(arrival_of(stage.input, task.microbatch, position));
        break;
      case Opcode::Backward:
        instruction.work = stage.backward;
        instruction.releases.size = stage.activations;
        instruction.waits.add(arrival_of(stage.gradient, task.microbatch, position));
        break;
      case Opcode::BackwardInput:
        instruction.work = stage.backward - stage.backward_weight;
        instruction.waits.add(arrival_of(stage.gradient, task.microbatch, position));
        break;
      case Opcode::BackwardWeight:
        instruction.work = stage.backward_weight;
        instruction.releases.size = stage.activations;
        break;
      default:
        instruction.work = stage.update;
        instruction.waits.add(stage.update_wait);
        break;
    }
    return instruction;
  }

  Instruction transfer(LaneId lane, const LaneRecord& record, std::uint64_t position) const
  {
    const bool is_send = record.kind == LaneKind::Send || record.kind == LaneKind::SendOfInputs;
    const Task task = record.series->nth(position);
    Instruction instruction = stages_[record.stage].make(is_send ? Opcode::Send : Opcode::Recv);
    instruction.payload = record.payload;
    instruction.lane = lane;
    instruction.microbatch = task.microbatch;
    instruction.size = record.size;
    if (record.kind == LaneKind::Send) instruction.waits.add(after(*record.series, task));
    if (record.kind == LaneKind::RecvOfInputs) instruction.waits.add(after_earlier_input(*record.series, position));
    return instruction;
  }

  Instruction sync(std::size_t rank, LaneId lane) const
  {
    Instruction instruction = stages_[stages_of_rank_[rank].front()].make(Opcode::AllReduce);
    instruction.payload = Payload::GradientFacts;
    instruction.lane = lane;
    instruction.size = gradient_sync_size;
    instruction.waits = Wait{compute_lane, 0, orders_[rank].length()};
    return instruction;
  }

  std::uint64_t microbatches_;
  std::vector<Order> orders_;                             // by rank
  std::vector<std::vector<std::size_t>> stages_of_rank_;  // by part
  std::vector<StageWork> stages_;                         // others point to their series
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
