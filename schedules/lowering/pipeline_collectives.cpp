// The collectives of a program: among replicas, shards and all ranks.

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
#include <set>
#include <string>
#include <tuple>
#include <utility>

namespace isobar::schedules {

namespace {

/// Adds what replicas that divide sequences or experts exchange to the collectives among shards, in the order of each
/// pass.
void add_exchanges(std::vector<ShardCollective> exchanges, std::vector<ShardCollective>& collectives)
{
  const auto first_before = std::stable_partition(exchanges.begin(), exchanges.end(),
                                                  [](const auto& exchange) { return !is_before_pass(exchange.role); });
  collectives.insert(collectives.begin(), exchanges.begin(), first_before);
  collectives.insert(collectives.end(), first_before, exchanges.end());
}

}  // namespace

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

ShardLane& PipelineProgram::shard_lane(std::size_t rank, const ShardCollective& collective)
{
  const auto [found, is_new] = shard_lanes_[rank].try_emplace({collective.role, collective.product});
  ShardLane& lane = found->second;
  if (!is_new) return lane;
  lane.role = collective.role;
  lane.payload = collective.payload;
  lane.axis = collective.axis;
  lane.of_part.resize(parts_of_rank_[rank].size());
  return lane;
}

void PipelineProgram::find_shard_lanes(const Workload& workload, const Boundaries& boundaries)
{
  shard_lanes_.resize(orders_.size());
  for (auto& work : works_) {
    const ShardGrid& grid = grids_[work.index];
    std::vector<ShardCollective> collectives;
    if (work.shards > 1) collectives = shard_collectives(workload, boundaries, work.first_layer, grid);
    if (has_exchanges(workload)) {
      add_exchanges(replica_collectives(workload, work.first_layer, work.shards), collectives);
    }
    work.is_sharded = !collectives.empty();
    std::map<std::tuple<ShardPass, bool, Payload>, const ShardLane*> last;
    for (const auto& collective : collectives) {
      const ShardPass pass = pass_of(collective.role);
      if (pass != ShardPass::Forward && !is_training_) continue;
      ShardLane& lane = shard_lane(work.rank, collective);
      ensure(lane.axis == collective.axis, "collectives of one role and product meet along one axis");
      const bool is_before = is_before_pass(collective.role);
      const ShardLane*& follows = last[{pass, is_before, collective.payload}];
      lane.of_part[work.part] = ShardLane::Each{collective.opcode, collective.size, collective.held, follows};
      follows = &lane;
      // What a 3d grid gathers stays until the gradient of the parameters is known, and what is gathered for it with
      // a divided sequence.
      const bool is_for_weights = grid.form == ShardGrid::Form::Sequence && pass == ShardPass::InputGradient;
      const bool stays = (grid.form == ShardGrid::Form::ThreeD || is_for_weights) && is_training_;
      work.sharded(stays ? ShardPass::WeightGradient : pass).released += collective.held;
      if (is_before && needs_arrival(collective.role)) work.sharded(pass).has_arrival = true;
      if (!is_before) work.sharded(pass).last = &lane;
      if (isobar::is_of_experts(collective.role)) {
        (is_before ? work.sharded(pass).dispatch : work.sharded(pass).combine) = &lane;
      }
    }
    for (const auto& [key, lane] : last) {
      const auto& [pass, is_before, payload] = key;
      if (is_before) work.sharded(pass).needed.push_back(lane);
    }
    const bool is_last = work.index + 1 == patterns_.size();
    if (is_last && is_training_ && (work.shards > 1 || work.is_sharded)) {
      work.gradient.source = {&work.forwards, compute_lane, work.sharded(ShardPass::Forward).last};
    }
  }
  for (std::size_t rank = 0; rank < orders_.size(); ++rank) {
    for (auto& [kind, shared] : shard_lanes_[rank]) {
      ShardLane& lane = shared;
      const ShardPass pass = pass_of(lane.role);
      lane.tasks = TaskSubset(orders_[rank], [&](const Task& task) {
        const bool is_forward = task.opcode == Opcode::Forward;
        const bool is_other_half =
            task.opcode == (pass == ShardPass::InputGradient ? Opcode::BackwardWeight : Opcode::BackwardInput);
        return lane.of_part[task.part] && is_forward == (pass == ShardPass::Forward) && !is_other_half;
      });
    }
  }
  for (std::size_t i = 0; i < works_.size(); i += works_[i].shards) {
    if (grids_[works_[i].index].blocks() == 1 || works_[i].part > 0) continue;
    auto& ranks = grid_ranks_.emplace_back();
    for (std::size_t k = i; k < i + works_[i].shards; ++k) ranks.push_back(works_[k].rank);
  }
}

std::vector<std::vector<std::size_t>> PipelineProgram::groups_at(std::size_t first, GridAxis axis) const
{
  const StageWork& work = works_[first];
  std::vector<std::vector<std::size_t>> groups;
  if (!is_among_replicas(axis)) {
    if (work.shards == 1) return groups;
    groups = groups_along(grids_[work.index], axis, work.shards);
    for (auto& group : groups) {
      for (std::size_t& member : group) member += first;
    }
    return groups;
  }
  const std::size_t degree = axis == GridAxis::Context ? context_.degree : experts_.degree;
  if (work.replica % degree != 0) return groups;
  const std::size_t members = std::min(degree, patterns_[work.index].replicas() - work.replica);
  if (axis == GridAxis::WholeExperts) {
    auto& group = groups.emplace_back();
    for (std::size_t i = 0; i < members; ++i) {
      for (std::size_t shard = 0; shard < work.shards; ++shard) {
        group.push_back(work_at(work.index, work.replica + i, shard));
      }
    }
    return groups;
  }
  for (std::size_t shard = 0; shard < work.shards; ++shard) {
    auto& group = groups.emplace_back();
    for (std::size_t i = 0; i < members; ++i) group.push_back(work_at(work.index, work.replica + i, shard));
  }
  return groups;
}

template <typename RecordOfRank, typename AxisOfRank>
std::vector<LaneId> PipelineProgram::connect_shards(const std::string& name, std::optional<ShardRole> role,
                                                    RecordOfRank record_of_rank, AxisOfRank axis_of_rank)
{
  std::vector<LaneId> lanes(orders_.size(), compute_lane);
  for (std::size_t i = 0; i < works_.size(); i += works_[i].shards) {
    const std::size_t first = works_[i].rank;
    if (works_[i].part > 0 || record_of_rank(first).length == 0) continue;
    const GridAxis axis = axis_of_rank(first);
    for (const auto& group : groups_at(i, axis)) {
      Channel channel;
      for (const std::size_t work : group) {
        const std::size_t rank = works_[work].rank;
        lanes[rank] = add_lane(rank, {name, Engine::Network, channels_.size(), role}, record_of_rank(rank));
        channel.ends.push_back({rank, lanes[rank]});
        channel.sites.push_back(site_of_rank_[rank]);
      }
      channel.algorithm = algorithm_of_group(axis, context_, algorithm_, channel.sites);
      if (channel.algorithm != Algorithm::Hierarchical) channel.sites.clear();
      channels_.push_back(std::move(channel));
    }
  }
  return lanes;
}

void PipelineProgram::add_shard_lanes()
{
  std::set<ShardKind> kinds;
  for (const auto& lanes : shard_lanes_) {
    for (const auto& [kind, lane] : lanes) kinds.insert(kind);
  }
  for (const auto& kind : kinds) {
    const auto record_of_rank = [&](std::size_t rank) {
      LaneRecord record;
      const auto found = shard_lanes_[rank].find(kind);
      if (found == shard_lanes_[rank].end()) return record;
      record.kind = LaneKind::Shards;
      record.payload = found->second.payload;
      record.length = found->second.tasks.length();
      record.shards = &found->second;
      return record;
    };
    const auto axis_of_rank = [&](std::size_t rank) { return shard_lanes_[rank].at(kind).axis; };
    const auto& [role, product] = kind;
    const std::string name = product == 0 ? std::string(name_of(role)) : fmt::format("{} {}", name_of(role), product);
    const auto lanes = connect_shards(name, role, record_of_rank, axis_of_rank);
    for (std::size_t rank = 0; rank < orders_.size(); ++rank) {
      if (lanes[rank] != compute_lane) shard_lanes_[rank].at(kind).lane = lanes[rank];
    }
  }
}

void PipelineProgram::add_shared_gradient_sums()
{
  last_gradients_.resize(orders_.size());
  summed_.resize(orders_.size());
  const bool has_shared =
      std::any_of(works_.begin(), works_.end(), [](const StageWork& work) { return work.shared_parameters > 0; });
  for (std::size_t i = works_.size(); i-- > 0;) {
    const auto& work = works_[i];
    const bool has_copies = has_shared && shared_axis(grids_[work.index]).has_value();
    if (work.shards > 1 && is_divided_alike_[work.index] && has_copies) summed_[work.rank].push_back(i);
  }
  const auto grid_of = [&](std::size_t rank) { return grids_[works_[parts_of_rank_[rank].front()].index]; };
  const auto lanes = connect_shards(
      "sum shared gradients", std::nullopt,
      [&](std::size_t rank) {
        LaneRecord record;
        record.kind = LaneKind::SharedGradientSum;
        record.length = summed_[rank].size();
        return record;
      },
      [&](std::size_t rank) { return shared_axis(grid_of(rank)).value(); });
  for (auto& work : works_) {
    const Wait after = after_gradients(work);
    if (after.lane != compute_lane && summed_[work.rank].empty()) work.update_waits.add(after);
  }
  for (std::size_t rank = 0; rank < orders_.size(); ++rank) {
    std::uint64_t sums = 0;
    for (const std::size_t index : summed_[rank]) {
      const Wait sum = {lanes[rank], 0, ++sums};
      works_[index].sync_waits.add(sum);
      works_[index].update_waits.add(sum);
    }
    last_gradients_[rank].add({lanes[rank], 0, sums});
    // The first product's come last.
    const auto found = shard_lanes_[rank].find({ShardRole::WeightGradientSum, 0});
    if (found == shard_lanes_[rank].end()) continue;
    last_gradients_[rank].add({found->second.lane, 0, found->second.tasks.length()});
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
    instruction.releases.size += stage.gathered + stage.gathered_experts;
  }
  const bool begins_a_sum = syncs_each_microbatch_ || position == stage.first_backward;
  if (is_backward && begins_a_sum) instruction.acquires.size = stage.unsummed_gradients + stage.unsummed_experts;
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
  instruction.waits = Wait{compute_lane, 0, at + 1};
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

void PipelineProgram::add_sharded(const StageWork& stage, ShardPass pass, std::uint64_t position,
                                  Instruction& instruction)
{
  if (!stage.is_sharded) return;
  for (const ShardLane* lane : stage.sharded(pass).needed) instruction.waits.add(lane->at(position));
  instruction.releases.size += stage.sharded(pass).released;
}

Instruction PipelineProgram::collective_of_shards(std::size_t rank, LaneId lane, const LaneRecord& record,
                                                  std::uint64_t position) const
{
  const ShardLane& own = *record.shards;
  const auto [at, task] = own.tasks.place_of(position);
  const StageWork& work = works_[parts_of_rank_[rank][task.part]];
  const ShardLane::Each& each = *own.of_part[task.part];
  Instruction instruction = work.make(each.opcode);
  instruction.payload = record.payload;
  instruction.lane = lane;
  instruction.microbatch = work.forwards.of_step(task.microbatch);
  instruction.size = each.size;
  instruction.acquires.size = each.held;
  if (is_before_pass(own.role) && !needs_arrival(own.role)) instruction.waits = one_task_ahead(rank, work, at);
  if (each.before != nullptr) {
    instruction.waits.add(each.before->at(at));
  } else if (!is_before_pass(own.role)) {
    instruction.waits = Wait{compute_lane, 0, at + 1};
  } else if (needs_arrival(own.role)) {
    const bool is_forward = task.opcode == Opcode::Forward;
    instruction.waits.add(arrival_of(is_forward ? work.input : work.gradient, work.forwards, task.microbatch, at));
  }
  const bool is_first = each.before == nullptr || !isobar::is_of_experts(each.before->role);
  if (overlaps_experts_ && isobar::is_of_experts(own.role) && is_first) {
    instruction.waits.add(exchange_before(rank, {at, is_before_pass(own.role)}));
  }
  return instruction;
}

std::optional<std::uint64_t> PipelineProgram::made_at(const StageWork& work, const Task& task)
{
  const Input& input = task.opcode == Opcode::Forward ? work.input : work.gradient;
  const Series* const made_by = input.source.made_by;
  if (input.route != nullptr || made_by == nullptr || input.source.lane != compute_lane) return std::nullopt;
  return made_by->position_of(made_by->of(task.microbatch));
}

const ShardLane* PipelineProgram::lane_of(std::size_t rank, const Exchange& exchange) const
{
  const Task task = orders_[rank].at(exchange.position);
  if (task.opcode == Opcode::BackwardWeight) return nullptr;
  const StageWork& work = works_[parts_of_rank_[rank][task.part]];
  const auto& pass = work.sharded(task.opcode == Opcode::Forward ? ShardPass::Forward : ShardPass::InputGradient);
  return exchange.is_before ? pass.dispatch : pass.combine;
}

std::optional<std::uint64_t> PipelineProgram::next_alike(std::size_t rank, std::uint64_t position) const
{
  const Order& order = orders_[rank];
  const bool is_forward = order.at(position).opcode == Opcode::Forward;
  while (++position < order.length()) {
    const Opcode opcode = order.at(position).opcode;
    if (opcode != Opcode::BackwardWeight && (opcode == Opcode::Forward) == is_forward) return position;
  }
  return std::nullopt;
}

std::uint64_t PipelineProgram::done_before(std::size_t rank, std::uint64_t position) const
{
  const Order& order = orders_[rank];
  const Task task = order.at(position);
  const auto made = made_at(works_[parts_of_rank_[rank][task.part]], task);
  if (!made) return position;
  const bool is_forward = task.opcode == Opcode::Forward;
  for (std::uint64_t before = position; before-- > *made + 1;) {
    const Opcode opcode = order.at(before).opcode;
    if (opcode != Opcode::BackwardWeight && (opcode == Opcode::Forward) == is_forward) return before + 1;
  }
  return *made + 1;
}

std::vector<PipelineProgram::Exchange> PipelineProgram::exchanges_after(std::size_t rank, std::uint64_t done) const
{
  const Order& order = orders_[rank];
  std::set<std::uint64_t> readers;  // positions of tasks that may have their turn
  if (done < order.length()) readers.insert(done);
  std::vector<Exchange> exchanges;
  const auto add = [&](const Exchange& exchange) {
    if (lane_of(rank, exchange) != nullptr) exchanges.push_back(exchange);
  };
  const Task made = done > 0 ? order.at(done - 1) : Task{Opcode::BackwardWeight, 0, 0};
  if (made.opcode != Opcode::BackwardWeight) {
    add({done - 1, false});
    if (const auto next = next_alike(rank, done - 1)) readers.insert(*next);
    const StageWork& maker = works_[parts_of_rank_[rank][made.part]];
    const bool is_loss = made.opcode == Opcode::Forward && maker.index + 1 == patterns_.size();
    if (is_loss && is_training_) readers.insert(maker.backwards.position_of(maker.backwards.of(made.microbatch)));
  }
  for (const std::uint64_t reader : readers) {
    if (done_before(rank, reader) == done) add({reader, true});
  }
  return exchanges;
}

Wait PipelineProgram::exchange_before(std::size_t rank, const Exchange& exchange) const
{
  std::uint64_t done = exchange.is_before ? done_before(rank, exchange.position) : exchange.position + 1;
  auto exchanges = exchanges_after(rank, done);
  exchanges.erase(std::find(exchanges.begin(), exchanges.end(), exchange), exchanges.end());
  while (exchanges.empty() && done > 0) exchanges = exchanges_after(rank, --done);
  return exchanges.empty() ? Wait{} : lane_of(rank, exchanges.back())->at(exchanges.back().position);
}

Instruction PipelineProgram::shared_gradient_sum(std::size_t rank, LaneId lane, std::uint64_t position) const
{
  constexpr double bytes_of_a_value = 4;
  const StageWork& work = works_[summed_[rank][position]];
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
