// The collectives of a program: among replicas, shards and all ranks.

#include "schedules/lowering/pipeline_program.hpp"

#include "core/model/dtype.hpp"
#include "core/plan/placed_shards.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace isobar::schedules {

void PipelineProgram::divide_memory(const Workload& workload)
{
  const ParameterBytes bytes = parameter_bytes(workload.dtype, workload.optimizer);
  for (auto& work : works_) {
    const std::size_t replicas = patterns_[work.index].replicas();
    if (replicas == 1) continue;
    work.is_divided = true;
    work.update = work.update / static_cast<double>(replicas);
    if (workload.memory_model == MemoryModel::Sky) continue;  // whose memory is that of its layers alone
    const double parameters = work.parameters;
    work.resident -= Bytes(parameters * (bytes.all() - held_bytes(bytes, sharded_, replicas)));
    work.gathered = Bytes(parameters * gathered_parameter_bytes(bytes, sharded_, replicas));
    if (!is_training_) continue;
    work.unsummed_gradients = Bytes(parameters * unsummed_gradient_bytes(bytes, sharded_, replicas));
    const Order& order = orders_[work.rank];
    const auto opcode = order.count(Opcode::Backward, work.part) > 0 ? Opcode::Backward : Opcode::BackwardInput;
    work.first_backward = order.position_of(order.nth(opcode, work.part, 0));
  }
}

void PipelineProgram::find_shard_sums()
{
  output_sums_.resize(orders_.size());
  gradient_sums_.resize(orders_.size());
  for (std::size_t rank = 0; rank < orders_.size(); ++rank) {
    const auto& parts = parts_of_rank_[rank];
    if (shards_[works_[parts.front()].index] == 1) continue;
    output_sums_[rank].emplace();
    output_sums_[rank]->tasks =
        TaskSubset(orders_[rank], [](const Task& task) { return task.opcode == Opcode::Forward; });
    gradient_sums_[rank].emplace();
    gradient_sums_[rank]->tasks = TaskSubset(orders_[rank], [&](const Task& task) {
      const bool makes_gradient = task.opcode == Opcode::Backward || task.opcode == Opcode::BackwardInput;
      return makes_gradient && works_[parts[task.part]].index > 0;
    });
    for (const std::size_t part : parts) {
      StageWork& work = works_[part];
      const bool is_last = work.index + 1 == patterns_.size();
      if (is_last && !work.backwards.empty())
        work.gradient.source = {&work.forwards, compute_lane, &*output_sums_[rank]};
    }
  }
}

template <typename RecordOfRank>
std::vector<LaneId> PipelineProgram::add_shard_lanes(const char* name, RecordOfRank record_of_rank)
{
  std::vector<LaneId> lanes(orders_.size(), compute_lane);
  std::vector<bool> is_done(orders_.size(), false);
  for (std::size_t i = 0; i < works_.size(); i += shards_[works_[i].index]) {
    const std::size_t shards = shards_[works_[i].index];
    const bool has_any = shards > 1 && record_of_rank(works_[i].rank).length > 0;
    if (!has_any || is_done[works_[i].rank]) continue;
    Channel channel;
    for (std::size_t k = i; k < i + shards; ++k) {
      const std::size_t rank = works_[k].rank;
      is_done[rank] = true;
      lanes[rank] = add_lane(rank, {name, Engine::Network, channels_.size()}, record_of_rank(rank));
      channel.ends.push_back({rank, lanes[rank]});
    }
    channels_.push_back(std::move(channel));
  }
  return lanes;
}

void PipelineProgram::add_shard_sums(const char* name, Payload payload, std::vector<std::optional<ShardSums>>& sums)
{
  const auto lanes = add_shard_lanes(name, [&](std::size_t rank) {
    LaneRecord record;
    record.kind = LaneKind::ShardSum;
    record.payload = payload;
    record.length = sums[rank]->tasks.length();
    return record;
  });
  for (std::size_t rank = 0; rank < orders_.size(); ++rank) {
    if (sums[rank]) sums[rank]->lane = lanes[rank];
  }
}

void PipelineProgram::add_shared_gradient_sums()
{
  shared_sums_.resize(orders_.size());
  const auto lanes = add_shard_lanes("sum shared gradients", [&](std::size_t rank) {
    LaneRecord record;
    record.kind = LaneKind::SharedGradientSum;
    record.length = parts_of_rank_[rank].size();
    return record;
  });
  for (auto& work : works_) {
    if (shards_[work.index] == 1) continue;
    const std::uint64_t parts = parts_of_rank_[work.rank].size();
    const Wait sum = {lanes[work.rank], 0, parts - work.part};
    work.sync_waits.add(sum);
    work.update_waits.add(sum);
    shared_sums_[work.rank] = {lanes[work.rank], 0, parts};
  }
}

template <typename Added>
void PipelineProgram::add_collective(const Plan& plan, std::size_t stage, const char* name, LaneKind kind,
                                     std::size_t parts, Added added)
{
  constexpr double bytes_of_a_value = 4;
  for (std::size_t shard = 0; shard < shards_[stage]; ++shard) {
    Channel channel;
    channel.algorithm = plan.sync.algorithm;
    channel.sites = sites_of(plan.stages[stage], shard);
    for (std::size_t i = first_of_stage_[stage] + shard; i < first_of_stage_[stage + 1]; i += shards_[stage]) {
      StageWork& work = works_[i];
      LaneRecord record;
      record.kind = kind;
      record.work = static_cast<std::uint32_t>(i);
      record.length = 1;
      record.size = Bytes(work.parameters * bytes_of_a_value / static_cast<double>(parts));
      std::size_t alike = 0;  // lanes of this kind on the rank
      for (const std::size_t part : parts_of_rank_[work.rank]) {
        alike += patterns_[works_[part].index].replicas() > 1 ? 1U : 0U;
      }
      const std::string lane_name = alike > 1 ? fmt::format("{} {}", name, stage) : name;
      const LaneId lane = add_lane(work.rank, {lane_name, Engine::Network, channels_.size()}, record);
      channel.ends.push_back({work.rank, lane});
      added(work, lane);
    }
    channels_.push_back(std::move(channel));
  }
}

void PipelineProgram::add_gradient_syncs(const Plan& plan)
{
  last_sync_.resize(orders_.size());
  for (std::size_t stage = patterns_.size(); stage-- > 0;) {
    if (patterns_[stage].replicas() == 1) continue;
    add_collective(plan, stage, "sync gradients", LaneKind::GradientSync, 1, [&](StageWork& work, LaneId lane) {
      work.sync_waits.add(after_gradients(work));
      work.sync_waits.add(last_sync_[work.rank]);
      last_sync_[work.rank] = {lane, 0, 1};
      work.update_waits.add({lane, 0, 1});
    });
  }
}

void PipelineProgram::add_parameter_gathers(const Plan& plan)
{
  std::vector<Wait> last_gather(orders_.size());
  for (std::size_t stage = 0; stage < patterns_.size(); ++stage) {
    const std::size_t replicas = patterns_[stage].replicas();
    if (replicas == 1) continue;
    add_collective(plan, stage, "gather parameters", LaneKind::ParameterGather, replicas,
                   [&](StageWork& work, LaneId lane) {
                     work.gather = lane;
                     work.gather_waits = Wait{compute_lane, 0, orders_[work.rank].length() + work.part + 1};
                     work.gather_waits.add(last_gather[work.rank]);
                     last_gather[work.rank] = {lane, 0, 1};
                   });
  }
}

void PipelineProgram::add_gathers_for_tasks(const Plan& plan, const char* name, Series StageWork::*series,
                                            std::optional<LaneId> StageWork::*lane_of)
{
  for (std::size_t stage = 0; stage < patterns_.size(); ++stage) {
    const std::size_t replicas = patterns_[stage].replicas();
    const bool has_tasks = !(works_[first_of_stage_[stage]].*series).empty();
    if (replicas == 1 || !has_tasks) continue;
    add_collective(plan, stage, name, LaneKind::ParameterGather, replicas, [&](StageWork& work, LaneId lane) {
      work.*lane_of = lane;
      LaneRecord& record = records_[work.rank][lane];
      record.series = &(work.*series);
      record.length = record.series->length();
    });
  }
}

Wait PipelineProgram::after_gradients(const StageWork& work) const
{
  const Order& order = orders_[work.rank];
  const auto opcode = order.count(Opcode::Backward, work.part) > 0 ? Opcode::Backward : Opcode::BackwardWeight;
  return {compute_lane, 0, order.position_of(order.nth(opcode, work.part, work.microbatches - 1)) + 1};
}

void PipelineProgram::add_facts_sync()
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

void PipelineProgram::divide(const StageWork& stage, const Task& task, std::uint64_t position,
                             Instruction& instruction) const
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

Instruction PipelineProgram::sync(std::size_t rank, LaneId lane, const LaneRecord& record) const
{
  const bool is_of_facts = record.kind == LaneKind::FactsSync;
  const StageWork& work = works_[record.work];
  const bool is_divided = !is_of_facts && sharded_ != Sharding::None;
  Instruction instruction = work.make(is_divided ? Opcode::ReduceScatter : Opcode::AllReduce);
  instruction.payload = is_of_facts ? Payload::GradientFacts : Payload::ParameterGradient;
  instruction.lane = lane;
  instruction.size = record.size;
  instruction.waits = is_of_facts ? Waits(Wait{compute_lane, 0, orders_[rank].length()}) : work.sync_waits;
  if (is_of_facts) {
    instruction.waits.add(last_sync_[rank]);
    instruction.waits.add(shared_sums_[rank]);
  }
  if (is_divided) instruction.releases.size = work.unsummed_gradients;
  return instruction;
}

Instruction PipelineProgram::shard_sum(std::size_t rank, LaneId lane, const LaneRecord& record,
                                       std::uint64_t position) const
{
  const bool is_of_outputs = record.payload == Payload::Activation;
  const auto& sums = is_of_outputs ? output_sums_[rank] : gradient_sums_[rank];
  const std::uint64_t made_at = sums->tasks.position_of(position);
  const Task task = orders_[rank].at(made_at);
  const StageWork& work = works_[parts_of_rank_[rank][task.part]];
  Instruction instruction = work.make(is_of_outputs && work.gathers_output ? Opcode::AllGather : Opcode::AllReduce);
  instruction.payload = record.payload;
  instruction.lane = lane;
  instruction.microbatch = work.forwards.of_step(task.microbatch);
  instruction.size = is_of_outputs ? work.output : work.input_gradient;
  instruction.waits = Wait{compute_lane, 0, made_at + 1};
  return instruction;
}

Instruction PipelineProgram::shared_gradient_sum(std::size_t rank, LaneId lane, std::uint64_t position) const
{
  constexpr double bytes_of_a_value = 4;
  const auto& parts = parts_of_rank_[rank];
  const StageWork& work = works_[parts[parts.size() - 1 - position]];
  Instruction instruction = work.make(Opcode::AllReduce);
  instruction.payload = Payload::ParameterGradient;
  instruction.lane = lane;
  instruction.size = Bytes(work.shared_parameters * bytes_of_a_value);
  instruction.waits = after_gradients(work);
  return instruction;
}

Instruction PipelineProgram::gather(std::size_t rank, LaneId lane, const LaneRecord& record,
                                    std::uint64_t position) const
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

}  // namespace isobar::schedules
