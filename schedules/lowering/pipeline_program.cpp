#include "schedules/lowering/pipeline_program.hpp"

#include "core/costs/cost_model.hpp"
#include "core/costs/layer_times.hpp"
#include "core/costs/nominal_rates.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/sync_groups.hpp"
#include "core/plan/system_rules.hpp"
#include "core/plan/tied_copies.hpp"
#include "core/plan/transfer_rules.hpp"
#include "schedules/lowering/replicas.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace isobar::schedules {

namespace {

/// The pass that makes what a transfer carries.
ShardPass pass_that_makes(Payload payload)
{
  return payload == Payload::Activation ? ShardPass::Forward : ShardPass::InputGradient;
}

void set_times(StageWork& stage, const LayerTimes& times)
{
  stage.forward = times.forward;
  stage.backward = times.backward;
  stage.backward_input = times.backward - times.backward_weight;
  stage.backward_weight = times.backward_weight;
  stage.update = times.update;
}

/// Whether the parameters of a layer are elsewhere than on the device between passes.
bool passes(const Plan& plan, std::size_t layer)
{
  return std::any_of(plan.stages.begin(), plan.stages.end(), [&](const Stage& stage) {
    return stage.first_layer <= layer && layer <= stage.last_layer && stage.residence.parameters != Tier::Device;
  });
}

}  // namespace

PipelineProgram::PipelineProgram(const Plan& plan, const Workload& workload, const Cluster& cluster,
                                 std::vector<Order> orders, std::optional<std::size_t> replicas)
    : orders_(std::move(orders)),
      patterns_(microbatch_patterns(plan)),
      parts_of_rank_(orders_.size()),
      workspaces_(orders_.size()),
      is_blocking_(plan.transfers.blocking),
      is_sliced_(plan.transfers.sliced),
      replicas_(replicas)
{
  if (const auto fault = fault_of_transfers(plan)) throw InputError("transfers", *fault);
  ensure(orders_.size() == devices_of(plan).size(), "a program needs an order for each device of its plan");
  algorithm_ = plan.sync.algorithm;
  context_ = workload.context;
  experts_ = workload.experts;
  overlaps_experts_ = overlaps_experts(plan.goal.schedule);
  sums_loss_ = isobar::sums_loss_with_gradients(plan.goal.schedule);
  site_of_rank_.resize(orders_.size());
  for (const auto& placed : placed_shards(plan)) {
    site_of_rank_.at(placed.rank) = shard_of(plan, placed).site.value_or("");
  }
  add_works(plan, workload, cluster);
  find_tasks();
  is_training_ = !works_.front().backwards.empty();
  if (!is_training_) {
    for (auto& work : works_) work.activations = {};
  }
  lanes_.resize(orders_.size() + (plan.data_server ? 1 : 0));
  records_.resize(lanes_.size());
  for (std::size_t rank = 0; rank < lanes_.size(); ++rank) add_lane(rank, {"compute", Engine::Device, {}}, {});
  const Boundaries boundaries = boundaries_of(workload);
  find_shard_lanes(workload, boundaries);
  const auto hops = hops_of(boundaries, plan.data_server.has_value());
  add_shared_memory(workload, boundaries);
  channels_.resize(hops.size());
  add_lanes("send activation", Payload::Activation, true, hops);
  add_lanes("send gradient", Payload::Gradient, true, hops);
  add_lanes("receive activation", Payload::Activation, false, hops);
  add_lanes("receive gradient", Payload::Gradient, false, hops);
  add_shard_lanes();
  sharded_ = plan.sync.sharded;
  if (sharded_ != Sharding::None) divide_memory(workload);
  held_by_updates_.resize(orders_.size());
  for (const auto& work : works_) {
    const double update = parameter_bytes(workload).update;
    const bool is_whole = sharded_ == Sharding::None;
    const auto holders = static_cast<double>(is_whole ? 1 : replicas_of(work.index));
    const auto of_experts = static_cast<double>(is_whole ? 1 : copies_of(work.index));
    held_by_updates_[work.rank] += Bytes((work.parameters - work.expert_parameters) * update / holders +
                                         work.expert_parameters * update / of_experts);
  }
  overlaps_gathers_ = overlaps_gathers(plan);
  if (sharded_ == Sharding::Parameters) {
    add_gathers_for_tasks(plan, "for forwards", &StageWork::forwards, &StageWork::forward_gather);
    add_gathers_for_tasks(plan, "for backwards", &StageWork::backwards, &StageWork::backward_gather);
  }
  if (is_training_) add_syncs(plan, workload);
  add_tiers(plan, workload);
}

void PipelineProgram::add_syncs(const Plan& plan, const Workload& workload)
{
  const bool has_facts = needs_gradient_sync(workload) && (orders_.size() > 1 || replicas_of(0) > 1);
  add_shared_gradient_sums();
  syncs_each_microbatch_ = plan.sync.each_microbatch;
  syncs_each_microbatch_ ? add_microbatch_syncs(plan) : add_gradient_syncs(plan, workload);
  add_tied_sums(plan, workload);
  if (has_facts) add_facts_sync();
  if (sharded_ == Sharding::Optimizer || sharded_ == Sharding::Gradients) add_parameter_gathers(plan);
}

const std::vector<Lane>& PipelineProgram::lanes(std::size_t rank) const
{
  ensure(rank < ranks(), "a rank beyond the program's");
  return lanes_[rank];
}

Bytes PipelineProgram::resident(std::size_t rank, Tier tier) const
{
  ensure(rank < ranks(), "a rank beyond the program's");
  Bytes sum;
  if (rank >= parts_of_rank_.size()) return sum;
  if (tiers_[rank] != nullptr) return tier_memory_[rank][static_cast<std::size_t>(tier)];
  if (tier != Tier::Device) return sum;
  for (const std::size_t part : parts_of_rank_[rank]) sum += works_[part].resident;
  return sum + workspaces_[rank];
}

Instruction PipelineProgram::at(std::size_t rank, LaneId lane, std::uint64_t position) const
{
  const LaneRecord& record = record_of(rank, lane);
  ensure(position < record.length, "a position beyond the end of its lane");
  switch (record.kind) {
    case LaneKind::Compute:
      return compute(rank, position);
    case LaneKind::GradientSync:
    case LaneKind::FactsSync:
      return sync(rank, lane, record);
    case LaneKind::TiedSum:
      return tied_sum(lane, record);
    case LaneKind::MicrobatchSync:
      return microbatch_sync(rank, lane, record, position);
    case LaneKind::ParameterGather:
      return gather(rank, lane, record, position);
    case LaneKind::Tier:
      return tier(rank, lane, record, position);
    case LaneKind::Shards:
      return collective_of_shards(rank, lane, record, position);
    case LaneKind::SharedGradientSum:
      return shared_gradient_sum(rank, lane, position);
    default:
      return transfer(lane, record, position);
  }
}

void PipelineProgram::add_works(const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  const Cluster nowhere;  // the memory that a stage needs is the same on every device
  const CostModel costs(workload, nowhere);
  const auto device_of_rank = indices_of_devices(plan, cluster);
  const double bytes = bytes_per_parameter(workload);
  for (const auto& [stage, replica, shard, rank] : placed_shards(plan)) {
    if (replica == 0 && shard == 0) {
      first_of_stage_.push_back(works_.size());
      first_of_replica_.emplace_back();
      is_divided_alike_.push_back(are_divided_alike(plan.stages[stage]));
      grids_.push_back(plan.stages[stage].grid);
    }
    if (shard == 0) first_of_replica_.back().push_back(works_.size());
    StageWork work;
    work.index = static_cast<std::uint32_t>(stage);
    work.replica = replica;
    work.shard = shard;
    work.shards = plan.stages[stage].replicas[replica].shards.size();
    work.rank = rank;
    work.microbatches = patterns_[stage].count(replica);
    work.first_layer = plan.stages[stage].first_layer;
    work.last_layer = plan.stages[stage].last_layer;
    const Device& device = cluster.devices[device_of_rank[rank]];
    for (std::size_t k = work.first_layer; k <= work.last_layer; ++k) {
      const Layer& whole = workload.layers.at(k);
      std::optional<Layer> part;
      if (work.shards > 1) part = layer_of_shard(whole, plan.stages[stage], replica, shard);
      const Layer& each = part ? *part : whole;
      work.parameters += static_cast<double>(each.parameters);
      if (experts_.divides() && each.experts) work.expert_parameters += static_cast<double>(each.experts->parameters);
      if (!costs.memory_ignores_schedule()) work.activations += each.activations;
      work.workspace = std::max(work.workspace, each.workspace);
      if (!part) continue;
      ensure(work.first_layer == work.last_layer, "a stage of several shards has one layer");
      work.shared_parameters = static_cast<double>(shared_parameters(whole, grids_[stage]));
    }
    set_times(work, work.shards > 1
                        ? times_of_shard(workload, work.first_layer, device, plan.stages[stage], replica, shard)
                        : times_on(workload, work.first_layer, work.last_layer, device));
    if (plan.stages[stage].residence.optimizer != Tier::Device) {
      const Flops update(work.parameters * update_flops_per_parameter(workload.optimizer));
      work.update = update / machine_rates(plan, device, cluster).update_speed;
    }
    work.resident = costs.memory_ignores_schedule() ? costs.memory(work.first_layer, work.last_layer, 0)
                                                    : Bytes(work.parameters * bytes);
    work.part = static_cast<std::uint32_t>(parts_of_rank_[rank].size());
    parts_of_rank_[rank].push_back(works_.size());
    works_.push_back(std::move(work));
  }
  first_of_stage_.push_back(works_.size());
}

bool PipelineProgram::shares_parameters(std::uint32_t stage) const
{
  const auto begin = works_.begin() + static_cast<std::ptrdiff_t>(first_of_stage_.at(stage));
  const auto end = works_.begin() + static_cast<std::ptrdiff_t>(first_of_stage_.at(stage + 1));
  // Without shards, replicas have all parameters in common.
  return std::any_of(begin, end, [](const StageWork& work) { return work.shards == 1 || work.shared_parameters > 0; });
}

void PipelineProgram::find_tasks()
{
  for (std::size_t rank = 0; rank < orders_.size(); ++rank) {
    const Order& order = orders_[rank];
    const OrderSlots slots(order);
    std::uint64_t tasks = 0;
    for (std::uint32_t part = 0; part < parts_of_rank_[rank].size(); ++part) {
      StageWork& work = works_[parts_of_rank_[rank][part]];
      const MicrobatchPattern* divides = patterns_[work.index].replicas() > 1 ? &patterns_[work.index] : nullptr;
      work.forwards = Series::forwards(slots, part).of_replica(divides, work.replica);
      work.backwards = Series::backwards(slots, part).of_replica(divides, work.replica);
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

std::vector<Hop> PipelineProgram::hops_of(const Boundaries& boundaries, bool has_data_server)
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
        const bool goes_there = brings(from, to);
        const bool goes_back = brings(to, from);
        if (!goes_there && !goes_back) continue;
        if (!is_alike && !do_meet(from, to)) continue;
        if (works_[from].rank != works_[to].rank) {
          works_[from].has_transfers_after = true;
          works_[to].has_transfers_before = true;
        }
        const auto parts = static_cast<double>(parts_between(works_[from], works_[to]));
        if (goes_there) add_hop(hops, Payload::Activation, from, to, boundaries.output.at(layer) / parts, is_alike);
        if (goes_back && is_training_) {
          add_hop(hops, Payload::Gradient, to, from, boundaries.gradient.at(layer) / parts, is_alike);
        }
      }
    }
  }
  return hops;
}

bool PipelineProgram::brings(std::size_t from, std::size_t to) const
{
  const StageWork& sender = works_[from];
  const StageWork& receiver = works_[to];
  if (sender.shards != receiver.shards) {
    for (std::size_t i = from - sender.shard; i < from - sender.shard + sender.shards; ++i) {
      if (works_[i].rank == receiver.rank) return i == from;
    }
  }
  return sender.shard == receiver.shard % sender.shards;
}

void PipelineProgram::add_shared_memory(const Workload& workload, const Boundaries& boundaries)
{
  if (workload.memory_model == MemoryModel::Sky) return;
  for (auto& work : works_) {
    if (workload.memory_model == MemoryModel::System) {
      workspaces_[work.rank] = std::max(workspaces_[work.rank], workload.workspace + work.workspace);
      continue;
    }
    const auto blocks = static_cast<double>(grids_[work.index].blocks());
    work.resident += buffers_of(work, boundaries, true) / blocks;
    workspaces_[work.rank] = workload.workspace / blocks;  // the parts of a rank are in equal grids
  }
}

Bytes PipelineProgram::buffers_of(const StageWork& work, const Boundaries& boundaries, bool has_input) const
{
  Bytes buffers;
  if (work.index == 0 ? has_input : work.has_transfers_before) {
    buffers += boundaries.output.at(work.first_layer) + boundaries.gradient.at(work.first_layer);
  }
  if (work.has_transfers_after) {
    buffers += boundaries.output.at(work.last_layer + 1) + boundaries.gradient.at(work.last_layer + 1);
  }
  return buffers;
}

bool PipelineProgram::do_meet(std::size_t from, std::size_t to) const
{
  const Series& series = works_[from].forwards;
  for (std::uint64_t index = 0; index < series.length(); ++index) {
    if (patterns_[works_[to].index].replica_of(series.of_step(index)) == works_[to].replica) return true;
  }
  return false;
}

void PipelineProgram::add_routes(std::size_t stage)
{
  const auto add = [&](std::size_t of, std::size_t by, Input StageWork::*input) {
    for (std::size_t i = first_of_stage_[of]; i < first_of_stage_[of + 1]; ++i) {
      routes_.push_back({&patterns_[by], std::vector<Source>(patterns_[by].replicas())});
      (works_[i].*input).route = &routes_.back();
    }
  };
  add(stage, stage - 1, &StageWork::input);
  if (is_training_) add(stage - 1, stage, &StageWork::gradient);
}

void PipelineProgram::add_hop(std::vector<Hop>& hops, Payload payload, std::size_t from, std::size_t to, Bytes size,
                              bool is_alike)
{
  const Series& made = payload == Payload::Activation ? works_[from].forwards : works_[from].backwards;
  if (works_[from].rank == works_[to].rank) {
    source_of(payload, from, to) = {&made, compute_lane, works_[from].sharded(pass_that_makes(payload)).last};
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

Source& PipelineProgram::source_of(Payload payload, std::size_t from, std::size_t to)
{
  Input& input = payload == Payload::Activation ? works_[to].input : works_[to].gradient;
  if (input.route == nullptr) return input.source;
  return input.route->sources[works_[from].replica];
}

void PipelineProgram::add_lanes(const char* name, Payload payload, bool is_send, const std::vector<Hop>& hops)
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
      const StageWork& other = works_[is_send ? hop.to : hop.from];
      lane_name += fmt::format(".{}", other.replica);
      if (other.shards > 1) lane_name += fmt::format(".{}", other.shard);
    }
    const LaneId lane = add_lane(rank, {lane_name, Engine::Network, i}, record);
    channels_[i].ends.push_back({rank, lane});
    if (is_send && !is_input) works_[own].sends[payload == Payload::Activation ? 0 : 1].push_back(lane);
    if (!is_send) source_of(payload, hop.from, hop.to) = {hop.series, lane};
  }
}

LaneId PipelineProgram::add_lane(std::size_t rank, Lane lane, LaneRecord record)
{
  ensure(lanes_[rank].size() < std::numeric_limits<LaneId>::max(), "a rank with more lanes than a LaneId can count");
  lanes_[rank].push_back(std::move(lane));
  records_[rank].push_back(record);
  return static_cast<LaneId>(records_[rank].size() - 1);
}

Instruction PipelineProgram::compute(std::size_t rank, std::uint64_t position) const
{
  const Order& order = orders_[rank];
  const bool is_update = position >= order.length();
  const TierLanes* const tiers = tiers_[rank].get();
  Task task;
  if (is_update) {
    const std::uint64_t index = position - order.length();
    task = {Opcode::Update,
            tiers != nullptr ? tiers->parts_updated_on_device()[index] : static_cast<std::uint32_t>(index), 0};
  } else {
    task = order.at(position);
  }
  const StageWork& stage = works_[parts_of_rank_[rank][task.part]];
  Instruction instruction = stage.make(task.opcode);
  instruction.microbatch = stage.forwards.of_step(task.microbatch);
  const auto add_arrival = [&](const Input& input, ShardPass pass) {
    if (stage.is_sharded && stage.sharded(pass).has_arrival) return;
    const Wait arrival = arrival_of(input, stage.forwards, task.microbatch, position);
    if (arrival.lane != compute_lane) instruction.waits.add(arrival);
  };
  switch (task.opcode) {
    case Opcode::Forward:
      instruction.time = stage.forward;
      instruction.acquires.size = stage.activations;
      add_arrival(stage.input, ShardPass::Forward);
      add_sharded(stage, ShardPass::Forward, position, instruction);
      break;
    case Opcode::Backward:
      instruction.time = stage.backward;
      instruction.releases.size = stage.activations;
      add_arrival(stage.gradient, ShardPass::InputGradient);
      add_sharded(stage, ShardPass::InputGradient, position, instruction);
      add_sharded(stage, ShardPass::WeightGradient, position, instruction);
      break;
    case Opcode::BackwardInput:
      instruction.time = stage.backward_input;
      add_arrival(stage.gradient, ShardPass::InputGradient);
      add_sharded(stage, ShardPass::InputGradient, position, instruction);
      break;
    case Opcode::BackwardWeight:
      instruction.time = stage.backward_weight;
      instruction.releases.size = stage.activations;
      add_sharded(stage, ShardPass::WeightGradient, position, instruction);
      if (sums_loss_ && stage.index + 1 == patterns_.size()) instruction.waits.add(after_loss(stage, task.microbatch));
      break;
    default:
      instruction.time = stage.update;
      instruction.waits = stage.update_waits;
      if (position == order.length()) instruction.acquires.size += held_by_updates_[rank];
      if (position + 1 == order.length() + updates_of(rank)) instruction.releases.size += held_by_updates_[rank];
      break;
  }
  if (stage.is_divided) divide(stage, task, position, instruction);
  if (is_blocking_ && position > 0 && position <= order.length()) add_sends(rank, position, instruction);
  if (tiers != nullptr && !is_update) {
    for (const Wait& wait : tiers->waits_of(position)) instruction.waits.add(wait);
    instruction.acquires.size += stage.workspace;
    instruction.releases.size += stage.workspace;
    if (task.opcode == Opcode::Backward || task.opcode == Opcode::BackwardInput) {
      instruction.acquires.size += stage.own_gradient;
      instruction.releases.size += stage.later_gradient;
    }
  }
  return instruction;
}

void PipelineProgram::add_sends(std::size_t rank, std::uint64_t position, Instruction& instruction) const
{
  const Task made = orders_[rank].at(position - 1);
  if (made.opcode == Opcode::BackwardWeight) return;
  const StageWork& stage = works_[parts_of_rank_[rank][made.part]];
  const bool is_forward = made.opcode == Opcode::Forward;
  const Series& series = is_forward ? stage.forwards : stage.backwards;
  const auto& sends = stage.sends[is_forward ? 0 : 1];
  for (const LaneId lane : sends) instruction.waits.add({lane, 0, series.index_of(made) + 1});
  const ShardedPass& pass = stage.sharded(is_forward ? ShardPass::Forward : ShardPass::InputGradient);
  if (overlaps_experts_ && pass.combine != nullptr) return;
  if (sends.empty() && pass.last != nullptr) instruction.waits.add(pass.last->at(position - 1));
}

Instruction PipelineProgram::tier(std::size_t rank, LaneId lane, const LaneRecord& record, std::uint64_t position) const
{
  Instruction instruction = tiers_[rank]->lanes()[record.work].instructions[position];
  instruction.lane = lane;
  if (instruction.payload == Payload::Activation) {
    const std::size_t part = first_of_stage_[instruction.stage];
    for (std::size_t i = part; i < first_of_stage_[instruction.stage + 1]; ++i) {
      if (works_[i].rank == rank) instruction.microbatch = works_[i].forwards.of_step(instruction.microbatch);
    }
  }
  return instruction;
}

std::size_t PipelineProgram::updates_of(std::size_t rank) const
{
  if (!is_training_) return 0;
  return tiers_[rank] != nullptr ? tiers_[rank]->parts_updated_on_device().size() : parts_of_rank_[rank].size();
}

void PipelineProgram::add_tiers(const Plan& plan, const Workload& workload)
{
  tiers_.resize(orders_.size());
  tier_memory_.resize(orders_.size());
  const Boundaries boundaries = boundaries_of(workload);
  const ParameterBytes bytes = parameter_bytes(workload);
  for (std::size_t rank = 0; rank < orders_.size(); ++rank) {
    TieredRank tiered;
    bool is_tiered = false;
    Bytes buffers;
    std::map<std::size_t, std::uint64_t> taken_here;  // the micro-batches of the rank's stages
    for (const std::size_t index : parts_of_rank_[rank]) taken_here[works_[index].index] = works_[index].microbatches;
    for (const std::size_t index : parts_of_rank_[rank]) {
      StageWork& work = works_[index];
      TieredPart part;
      part.residence = plan.stages[work.index].residence;
      is_tiered = is_tiered || !part.residence.is_on_device();
      part.stage = work.index;
      part.first_layer = work.first_layer;
      part.last_layer = work.last_layer;
      part.parameters = Bytes(work.parameters * bytes.parameter);
      part.gradients = Bytes(work.parameters * bytes.gradient);
      part.optimizer = Bytes(work.parameters * bytes.optimizer);
      for (const std::size_t owner : matrices_of_earlier_layers(workload, work.first_layer, work.last_layer)) {
        if (!passes(plan, owner)) continue;
        part.tied += Bytes(static_cast<double>(workload.layers[owner].parameters) * bytes.parameter);
      }
      part.activations = work.activations;
      part.update = work.update;
      part.synced = work.synced;
      tiered.parts.push_back(part);
      // What crosses a cut between two parts of the rank is in the activations of the later one.
      const auto takes_as_many = [&](std::size_t stage) {
        const auto taken = taken_here.find(stage);
        return taken != taken_here.end() && taken->second == work.microbatches;
      };
      if (work.index > 0 && takes_as_many(work.index - 1)) work.own_gradient = boundaries.gradient[work.first_layer];
      if (takes_as_many(work.index + 1)) work.later_gradient = boundaries.gradient[work.last_layer + 1];
      buffers += buffers_of(work, boundaries, plan.data_server.has_value());
    }
    if (is_tiered) {
      tiered.first_lane = static_cast<LaneId>(lanes_[rank].size());
      tiered.needs_facts = needs_gradient_sync(workload);
      if (tiered.needs_facts && orders_.size() > 1)
        tiered.facts = works_[parts_of_rank_[rank].front()].update_waits.begin()[0];
      tiers_[rank] = std::make_unique<const TierLanes>(orders_[rank], tiered);
      tier_memory_[rank] = memory_of_tiers(tiered);
      tier_memory_[rank][static_cast<std::size_t>(Tier::Device)] += buffers;
      for (std::size_t i = 0; i < tiers_[rank]->lanes().size(); ++i) {
        const TierLane& lane = tiers_[rank]->lanes()[i];
        LaneRecord record;
        record.kind = LaneKind::Tier;
        record.work = static_cast<std::uint32_t>(i);
        record.length = lane.instructions.size();
        add_lane(rank, lane.lane, record);
      }
    }
    records_[rank][compute_lane].length = orders_[rank].length() + updates_of(rank);
  }
}

Instruction PipelineProgram::transfer(LaneId lane, const LaneRecord& record, std::uint64_t position) const
{
  const bool is_send = record.kind == LaneKind::Send || record.kind == LaneKind::SendOfInputs;
  const Task task = record.series->nth(position);
  Instruction instruction = works_[record.work].make(is_send ? Opcode::Send : Opcode::Recv);
  instruction.payload = record.payload;
  instruction.lane = lane;
  instruction.microbatch = record.series->of_step(task.microbatch);
  instruction.size = record.size;
  if (record.kind == LaneKind::Send) {
    const ShardLane* const sums = works_[record.work].sharded(pass_that_makes(record.payload)).last;
    instruction.waits.add(sums != nullptr ? sums->at(record.series->position_of(task)) : after(*record.series, task));
  }
  if (record.kind == LaneKind::RecvOfInputs) instruction.waits.add(after_earlier_input(*record.series, position));
  return instruction;
}

}  // namespace isobar::schedules
