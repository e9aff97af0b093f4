// The collectives of a program among replicas, and among all ranks.

#include "schedules/lowering/pipeline_program.hpp"

#include "core/model/dtype.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/replica_exchanges.hpp"
#include "core/plan/sync_groups.hpp"
#include "core/plan/tied_copies.hpp"
#include "core/program/collective.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace isobar::schedules {

void PipelineProgram::divide_memory(const Workload& workload)
{
  const ParameterBytes bytes = parameter_bytes(workload);
  for (auto& work : works_) {
    const std::size_t replicas = replicas_of(work.index);
    if (replicas == 1) continue;
    work.is_divided = true;
    const std::size_t copies = copies_of(work.index);
    work.update = work.expert_parameters == 0
                      ? work.update / static_cast<double>(replicas)
                      : divided_part(work.parameters, work.expert_parameters, replicas, copies) * work.update;
    if (workload.memory_model == MemoryModel::Sky) continue;  // whose memory is that of its layers alone
    const double parameters = work.parameters - work.expert_parameters;
    const double of_experts = work.expert_parameters;
    work.resident -= Bytes(parameters * (bytes.all() - held_bytes(bytes, sharded_, replicas)));
    work.gathered = Bytes(parameters * gathered_parameter_bytes(bytes, sharded_, replicas));
    if (copies > 1) {
      work.resident -= Bytes(of_experts * (bytes.all() - held_bytes(bytes, sharded_, copies)));
      work.gathered_experts = Bytes(of_experts * gathered_parameter_bytes(bytes, sharded_, copies));
    }
    if (!is_training_) continue;
    work.unsummed_gradients = Bytes(parameters * unsummed_gradient_bytes(bytes, sharded_, replicas));
    work.unsummed_experts = Bytes(of_experts * unsummed_gradient_bytes(bytes, sharded_, copies));
    const Order& order = orders_[work.rank];
    const auto opcode = order.count(Opcode::Backward, work.part) > 0 ? Opcode::Backward : Opcode::BackwardInput;
    work.first_backward = order.position_of(order.nth(opcode, work.part, 0));
  }
}

template <typename Added>
void PipelineProgram::add_collective(const Plan& plan, const std::vector<std::size_t>& works, const std::string& name,
                                     LaneKind kind, Added added)
{
  Channel channel;
  channel.algorithm = plan.sync.algorithm;
  for (const std::size_t i : works) {
    StageWork& work = works_[i];
    LaneRecord record;
    record.kind = kind;
    record.work = static_cast<std::uint32_t>(i);
    record.length = 1;
    const std::string lane_name = lane_of_replicas(work.rank, name, work.index);
    const LaneId lane = add_lane(work.rank, {lane_name, Engine::Network, channels_.size()}, record);
    channel.ends.push_back({work.rank, lane});
    channel.sites.push_back(plan.stages[work.index].replicas[work.replica].shards[work.shard].site.value_or(""));
    added(work, lane);
  }
  channels_.push_back(std::move(channel));
}

template <typename Added>
void PipelineProgram::add_collectives(const Plan& plan, std::size_t stage, const std::string& name, LaneKind kind,
                                      bool is_of_experts, Added added)
{
  ensure(is_divided_alike_[stage], "replicas that divide parameters have the same shards");
  const std::size_t stride = is_of_experts ? experts_.degree : 1;
  for (std::size_t shard = 0; shard < works_[first_of_stage_[stage]].shards; ++shard) {
    for (std::size_t first = 0; first < std::min(stride, patterns_[stage].replicas()); ++first) {
      std::vector<std::size_t> works;
      for (std::size_t i = first; i < patterns_[stage].replicas(); i += stride)
        works.push_back(work_at(stage, i, shard));
      add_collective(plan, works, name, kind, [&](StageWork& work, LaneId lane) {
        records_[work.rank][lane].is_of_experts = is_of_experts;
        added(work, lane);
      });
    }
  }
}

std::string PipelineProgram::lane_of_replicas(std::size_t rank, const std::string& name, std::size_t stage) const
{
  const auto& parts = parts_of_rank_[rank];
  const auto alike = std::count_if(parts.begin(), parts.end(),
                                   [&](const std::size_t part) { return replicas_of(works_[part].index) > 1; });
  return alike > 1 ? fmt::format("{} {}", name, stage) : name;
}

std::vector<PipelineProgram::Bucket> PipelineProgram::buckets_of(const Plan& plan) const
{
  auto buckets = buckets_of(plan, false);
  const auto of_experts = buckets_of(plan, true);
  buckets.insert(buckets.end(), of_experts.begin(), of_experts.end());
  std::stable_sort(buckets.begin(), buckets.end(), [](const Bucket& a, const Bucket& b) { return a.first > b.first; });
  return buckets;
}

std::vector<PipelineProgram::Bucket> PipelineProgram::buckets_of(const Plan& plan, bool is_of_experts) const
{
  const auto devices_of_stage = pipeline_stages(plan);
  std::vector<Bucket> buckets;
  Bytes filled;
  for (std::size_t stage = patterns_.size(); stage-- > 0;) {
    if (is_of_experts ? !syncs_experts(stage) : replicas_of(stage) == 1) continue;
    const bool continues = !buckets.empty() && filled < plan.sync.bucket &&
                           devices_of_stage[stage] == devices_of_stage[buckets.back().first];
    if (!continues) {
      buckets.push_back({stage, stage, is_of_experts});
      filled = {};
    }
    buckets.back().first = stage;
    Bytes largest;  // of its shards
    for (std::size_t i = first_of_stage_[stage]; i < first_of_stage_[stage + 1]; ++i) {
      largest = std::max(largest, synced_bytes(works_[i], is_of_experts));
    }
    filled += largest;
  }
  return buckets;
}

std::vector<PipelineProgram::GradientSync> PipelineProgram::syncs_of(const Plan& plan, const Workload& workload,
                                                                     const Bucket& bucket) const
{
  const double bytes_of_a_value = size_of(plan.sync.summed);
  const std::size_t first = bucket.first;
  const bool is_alike = is_divided_alike_[first];
  if (bucket.is_of_experts) {
    std::vector<GradientSync> syncs;
    for (std::size_t shard = 0; shard < works_[first_of_stage_[first]].shards; ++shard) {
      for (std::size_t part = 0; part < std::min(experts_.degree, patterns_[first].replicas()); ++part) {
        GradientSync& sync = syncs.emplace_back();
        sync.name = "sync gradients of experts";
        for (std::size_t i = part; i < patterns_[first].replicas(); i += experts_.degree) {
          sync.works.push_back(work_at(first, i, shard));
        }
        for (std::size_t stage = bucket.last + 1; stage-- > bucket.first;) {
          sync.size += synced_bytes(works_[work_at(stage, part, shard)], true, plan.sync.summed);
        }
      }
    }
    return syncs;
  }
  std::map<std::vector<std::size_t>, Bytes> sizes;  // by the shard of each replica
  Bytes shared;
  for (std::size_t stage = bucket.last + 1; stage-- > bucket.first;) {
    ensure(is_divided_alike_[stage] == is_alike, "the stages of a bucket are divided alike");
    if (is_alike) {
      const std::size_t shards = works_[first_of_stage_[stage]].shards;
      for (std::size_t shard = 0; shard < shards; ++shard) {
        sizes[std::vector(patterns_[stage].replicas(), shard)] +=
            synced_bytes(works_[work_at(stage, 0, shard)], false, plan.sync.summed);
      }
      continue;
    }
    const Layer& layer = workload.layers[works_[first_of_stage_[stage]].first_layer];
    for (const auto& [units, shards] : sync_groups(layer, plan.stages[stage])) {
      sizes[shards] += Bytes(static_cast<double>(units.part_of(layer.split->parameters)) * bytes_of_a_value);
    }
    shared += Bytes(static_cast<double>(shared_parameters(layer)) * bytes_of_a_value);
  }
  std::vector<GradientSync> syncs;
  if (!is_alike) {
    syncs.push_back({{}, "sync shared gradients", shared});
    for (std::size_t i = first_of_stage_[first]; i < first_of_stage_[first + 1]; ++i) syncs[0].works.push_back(i);
  }
  for (const auto& [shards, size] : sizes) {
    GradientSync& sync = syncs.emplace_back();
    sync.size = size;
    sync.name = "sync gradients";
    if (!is_alike) sync.name += fmt::format(" of {}", fmt::join(shards, "-"));
    for (std::size_t i = 0; i < shards.size(); ++i) sync.works.push_back(work_at(first, i, shards[i]));
  }
  return syncs;
}

std::map<LaneId, std::uint64_t> PipelineProgram::completes_gradients(const StageWork& work,
                                                                     std::size_t last_stage) const
{
  std::map<LaneId, std::uint64_t> awaited;
  const auto await = [&](const Wait& wait) { awaited[wait.lane] = std::max(awaited[wait.lane], wait.count); };
  for (std::size_t stage = last_stage + 1; stage-- > work.index;) {
    const StageWork& part = works_[work_at(stage, work.replica, work.shard)];
    for (const Wait& wait : part.sync_waits) await(wait);
    await(after_gradients(part));
  }
  if (!is_blocking_) return awaited;
  const Task last = gradient_task(work, work.microbatches - 1);
  const ShardLane* const sums = work.sharded(ShardPass::InputGradient).last;
  if (last.opcode != Opcode::Backward) {
    // Gradients of inputs have been sent long before.
  } else if (!work.sends[1].empty()) {
    awaited.erase(compute_lane);  // before the sends
    for (const LaneId send : work.sends[1]) await({send, 0, work.backwards.length()});
  } else if (sums != nullptr) {
    await(sums->at(orders_[work.rank].position_of(last)));
  }
  return awaited;
}

void PipelineProgram::add_gradient_syncs(const Plan& plan, const Workload& workload)
{
  last_sync_.resize(orders_.size());
  for (const auto& bucket : buckets_of(plan)) {
    for (const auto& sync : syncs_of(plan, workload, bucket)) {
      add_collective(plan, sync.works, sync.name, LaneKind::GradientSync, [&](StageWork& work, LaneId lane) {
        Waits& waits = sync_waits_.emplace_back();
        for (const auto& [awaited, count] : completes_gradients(work, bucket.last)) waits.add({awaited, 0, count});
        waits.add(last_sync_[work.rank]);
        last_sync_[work.rank] = {lane, 0, 1};
        LaneRecord& record = records_[work.rank][lane];
        record.last_layer = works_[first_of_stage_[bucket.last]].last_layer;
        record.is_of_experts = bucket.is_of_experts;
        record.size = sync.size;
        record.waits = &waits;
      });
    }
    // The syncs of a rank come one after another.
    for (std::size_t i = first_of_stage_[bucket.first]; i < first_of_stage_[bucket.last + 1]; ++i) {
      works_[i].update_waits.add(last_sync_[works_[i].rank]);
      works_[i].synced = last_sync_[works_[i].rank];
    }
  }
}

void PipelineProgram::add_tied_sums(const Plan& plan, const Workload& workload)
{
  const auto matrices = tied_matrices(workload, plan);
  for (const TiedMatrix& matrix : matrices) {
    tied_stages_.emplace_back(matrix.stages.begin(), matrix.stages.end());
    const std::size_t last = matrix.stages.back();
    const double parts = sharded_ == Sharding::None ? 1 : static_cast<double>(replicas_of(last));
    for (std::size_t i = first_of_stage_[last]; i < first_of_stage_[last + 1]; ++i) {
      const auto& [replica, shard] = std::pair(works_[i].replica, works_[i].shard);
      const Layer part = layer_of_shard(workload.layers[matrix.layers.back()], plan.stages[last], replica, shard);
      const double parameters = static_cast<double>(part.tied_parameters) / parts;
      Channel channel;
      for (const std::size_t stage : matrix.stages) {
        StageWork& work = works_[work_at(stage, replica, shard)];
        Waits& waits = sync_waits_.emplace_back();
        for (const auto& [awaited, count] : completes_gradients(work, stage)) waits.add({awaited, 0, count});
        waits.add(last_sync_[work.rank]);
        LaneRecord record;
        record.kind = LaneKind::TiedSum;
        record.work = static_cast<std::uint32_t>(work_at(stage, replica, shard));
        record.length = 1;
        record.size = Bytes(parameters * size_of(plan.sync.summed));
        record.waits = &waits;
        std::string name = "sum tied gradients";
        if (matrices.size() > 1) name += fmt::format(" {}", matrix.layers.front());
        const LaneId lane = add_lane(work.rank, {name, Engine::Network, channels_.size()}, record);
        channel.ends.push_back({work.rank, lane});
        last_sync_[work.rank] = {lane, 0, 1};
        work.update_waits.add(last_sync_[work.rank]);
      }
      channels_.push_back(std::move(channel));
    }
  }
}

void PipelineProgram::add_microbatch_syncs(const Plan& plan)
{
  last_sync_.resize(orders_.size());
  for (std::size_t stage = patterns_.size(); stage-- > 0;) {
    if (replicas_of(stage) == 1) continue;
    const auto add = [&](const char* name, bool is_of_experts) {
      add_collectives(plan, stage, name, LaneKind::MicrobatchSync, is_of_experts, [&](StageWork& work, LaneId lane) {
        LaneRecord& record = records_[work.rank][lane];
        record.size = synced_bytes(work, is_of_experts, plan.sync.summed);
        record.length = work.microbatches;
        if (is_of_experts) record.follows = work.synced.lane;
        work.synced = {lane, 0, record.length};
        work.update_waits.add(work.synced);
      });
    };
    add("sync gradients", false);
    if (syncs_experts(stage)) add("sync gradients of experts", true);
  }
  for (std::size_t rank = 0; rank < orders_.size(); ++rank) {
    const auto& parts = parts_of_rank_[rank];
    const auto& tasks = synced_tasks_.emplace_back(orders_[rank], [&](const Task& task) {
      const StageWork& work = works_[parts[task.part]];
      return work.synced.count > 0 && task.opcode == gradient_task(work, 0).opcode;
    });
    if (tasks.length() == 0) continue;
    last_sync_[rank] = works_[parts[tasks.place_of(tasks.length() - 1).task.part]].synced;
  }
}

void PipelineProgram::add_parameter_gathers(const Plan& plan)
{
  std::vector<Wait> last_gather(orders_.size());
  for (std::size_t stage = 0; stage < patterns_.size(); ++stage) {
    if (replicas_of(stage) == 1) continue;
    const auto add = [&](const char* name, bool is_of_experts, std::size_t replicas) {
      add_collectives(plan, stage, name, LaneKind::ParameterGather, is_of_experts, [&](StageWork& work, LaneId lane) {
        Waits& waits = sync_waits_.emplace_back(Wait{compute_lane, 0, orders_[work.rank].length() + work.part + 1});
        waits.add(last_gather[work.rank]);
        last_gather[work.rank] = {lane, 0, 1};
        work.gather = lane;
        LaneRecord& record = records_[work.rank][lane];
        record.size = synced_bytes(work, is_of_experts) / static_cast<double>(replicas);
        record.waits = &waits;
      });
    };
    add("gather parameters", false, replicas_of(stage));
    if (syncs_experts(stage)) add("gather experts", true, copies_of(stage));
  }
}

void PipelineProgram::add_gathers_for_tasks(const Plan& plan, const std::string& purpose, Series StageWork::*series,
                                            std::optional<LaneId> StageWork::*lane_of)
{
  for (std::size_t stage = 0; stage < patterns_.size(); ++stage) {
    const bool has_tasks = !(works_[first_of_stage_[stage]].*series).empty();
    if (replicas_of(stage) == 1 || !has_tasks) continue;
    const auto add = [&](const std::string& name, bool is_of_experts, std::size_t replicas) {
      add_collectives(plan, stage, name, LaneKind::ParameterGather, is_of_experts, [&](StageWork& work, LaneId lane) {
        LaneRecord& record = records_[work.rank][lane];
        record.size = synced_bytes(work, is_of_experts, plan.sync.gathered) / static_cast<double>(replicas);
        record.series = &(work.*series);
        record.length = record.series->length();
        if (is_of_experts) record.follows = work.*lane_of;
        work.*lane_of = lane;
      });
    };
    add("gather " + purpose, false, replicas_of(stage));
    if (syncs_experts(stage)) add("gather experts " + purpose, true, copies_of(stage));
  }
}

Task PipelineProgram::gradient_task(const StageWork& work, std::uint64_t index) const
{
  const Order& order = orders_[work.rank];
  const auto opcode = order.count(Opcode::Backward, work.part) > 0 ? Opcode::Backward : Opcode::BackwardWeight;
  return order.nth(opcode, work.part, index);
}

Wait PipelineProgram::after_gradients(const StageWork& work) const
{
  const std::uint64_t last = orders_[work.rank].position_of(gradient_task(work, work.microbatches - 1));
  const ShardLane* const sums = work.sharded(ShardPass::WeightGradient).last;
  return sums != nullptr ? sums->at(last) : Wait{compute_lane, 0, last + 1};
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

Instruction PipelineProgram::sync(std::size_t rank, LaneId lane, const LaneRecord& record) const
{
  const bool is_of_facts = record.kind == LaneKind::FactsSync;
  const StageWork& work = works_[record.work];
  const bool is_divided = !is_of_facts && sharded_ != Sharding::None;
  Instruction instruction = work.make(is_divided ? Opcode::ReduceScatter : Opcode::AllReduce);
  instruction.payload = is_of_facts ? Payload::GradientFacts : Payload::ParameterGradient;
  instruction.lane = lane;
  instruction.size = record.size;
  if (!is_of_facts) instruction.last_layer = record.last_layer;
  instruction.waits = is_of_facts ? Waits(Wait{compute_lane, 0, orders_[rank].length()}) : *record.waits;
  if (is_of_facts) {
    instruction.waits.add(last_sync_[rank]);
    for (const Wait& wait : last_gradients_[rank]) instruction.waits.add(wait);
  }
  if (is_divided) instruction.releases.size = record.is_of_experts ? work.unsummed_experts : work.unsummed_gradients;
  return instruction;
}

Instruction PipelineProgram::tied_sum(LaneId lane, const LaneRecord& record) const
{
  Instruction instruction = works_[record.work].make(Opcode::AllReduce);
  instruction.payload = Payload::TiedGradient;
  instruction.lane = lane;
  instruction.size = record.size;
  instruction.waits = *record.waits;
  return instruction;
}

Instruction PipelineProgram::microbatch_sync(std::size_t rank, LaneId lane, const LaneRecord& record,
                                             std::uint64_t position) const
{
  const StageWork& work = works_[record.work];
  const Task task = gradient_task(work, position);
  Instruction instruction = work.make(Opcode::ReduceScatter);
  instruction.payload = Payload::ParameterGradient;
  instruction.lane = lane;
  instruction.microbatch = work.forwards.of_step(task.microbatch);
  instruction.size = record.size;
  instruction.releases.size = record.is_of_experts ? work.unsummed_experts : work.unsummed_gradients;
  const std::uint64_t at = orders_[rank].position_of(task);
  const ShardLane* const sums = work.sharded(ShardPass::WeightGradient).last;
  instruction.waits = sums != nullptr ? sums->at(at) : Wait{compute_lane, 0, at + 1};
  if (record.follows) {
    instruction.waits.add({*record.follows, 0, position + 1});
    return instruction;
  }
  // The syncs of a rank come one after another, since they share its network.
  const TaskSubset& tasks = synced_tasks_[rank];
  const std::uint64_t number = tasks.index_at(at);
  if (number == 0) return instruction;
  const Task before = tasks.place_of(number - 1).task;
  const Wait& synced = works_[parts_of_rank_[rank][before.part]].synced;
  instruction.waits.add({synced.lane, 0, orders_[rank].index_of(before) + 1});
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
  if (record.series == nullptr) {
    instruction.waits = *record.waits;
    return instruction;
  }
  const Task task = record.series->nth(position);
  instruction.microbatch = record.series->of_step(task.microbatch);
  instruction.acquires.size = record.is_of_experts ? work.gathered_experts : work.gathered;
  instruction.waits = one_task_ahead(rank, work, record.series->position_of(task));
  if (record.follows) instruction.waits.add({*record.follows, 0, position + 1});
  return instruction;
}

Waits PipelineProgram::one_task_ahead(std::size_t rank, const StageWork& work, std::uint64_t position) const
{
  const Order& order = orders_[rank];
  const bool follows_itself = position > 0 && order.at(position - 1).part == work.part &&
                              order.at(position - 1).opcode != Opcode::BackwardWeight;
  const bool waits = follows_itself || !overlaps_gathers_;
  const std::uint64_t done = waits ? position : std::max<std::uint64_t>(position, 1) - 1;
  if (done > 0) return Wait{compute_lane, 0, done};
  if (is_training_) return Wait{compute_lane, 1, order.length() + work.part + 1};  // its Update a period back
  return {};
}

}  // namespace isobar::schedules
