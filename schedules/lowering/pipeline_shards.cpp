// The collectives of a program among shards, and among replicas that exchange around a layer.

#include "schedules/lowering/pipeline_program.hpp"

#include "core/plan/placed_shards.hpp"
#include "core/plan/replica_exchanges.hpp"
#include "core/program/collective.hpp"

#include <fmt/format.h>

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
      const ShardLane* const loss = sums_loss_ ? nullptr : work.sharded(ShardPass::Forward).last;
      work.gradient.source = {&work.forwards, compute_lane, loss};
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
    if (grids_[works_[i].index].blocks() == 1 || !begins_group(works_[i])) continue;
    auto& ranks = grid_ranks_.emplace_back();
    for (std::size_t k = i; k < i + works_[i].shards; ++k) ranks.push_back(works_[k].rank);
  }
}

bool PipelineProgram::begins_group(const StageWork& work) const
{
  const auto& parts = parts_of_rank_[work.rank];
  const auto first =
      std::find_if(parts.begin(), parts.end(), [&](std::size_t part) { return works_[part].shards == work.shards; });
  return &works_[*first] == &work;
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
    if (!begins_group(works_[i]) || record_of_rank(first).length == 0) continue;
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
  const bool scales = own.role == ShardRole::InputGradientSum && work.index + 1 == patterns_.size();
  if (sums_loss_ && scales) instruction.waits.add(after_loss(work, task.microbatch));
  const bool is_first = each.before == nullptr || !isobar::is_of_experts(each.before->role);
  if (overlaps_experts_ && isobar::is_of_experts(own.role) && is_first) {
    instruction.waits.add(exchange_before(rank, {at, is_before_pass(own.role)}));
  }
  return instruction;
}

Wait PipelineProgram::after_loss(const StageWork& work, std::uint64_t microbatch)
{
  return work.sharded(ShardPass::Forward).last->at(work.forwards.position_of(work.forwards.of(microbatch)));
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
  if (syncs_each_microbatch_ && work.synced.count > 0) {
    // What replicas have added up, of which each has its part.
    instruction.size = instruction.size / static_cast<double>(replicas_of(work.index));
    instruction.waits = work.synced;
  }
  return instruction;
}

}  // namespace isobar::schedules
