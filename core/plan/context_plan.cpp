#include "core/plan/context_plan.hpp"

#include "core/model/dtype.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/sync_groups.hpp"
#include "core/plan/system_rules.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace isobar {

namespace {

std::optional<std::string> fault_of_stage(const Stage& stage, std::size_t number, std::size_t degree)
{
  const auto& replicas = stage.replicas;
  if (stage.grid.is_grid()) {
    return fmt::format("stage {} is divided in a {}; use splits 1d or sequence", number, text_of(stage.grid));
  }
  if (replicas.size() % degree != 0) {
    return fmt::format("stage {} has {} for groups of {}; give it a multiple", number,
                       counted(replicas.size(), "replica"), degree);
  }
  const auto takes_as_many = [&](const Replica& replica) {
    return replica.microbatches == replicas.front().microbatches;
  };
  if (!std::all_of(replicas.begin(), replicas.end(), takes_as_many)) {
    return fmt::format("the replicas of stage {} take unequal numbers of micro-batches; give all the same", number);
  }
  const auto& first = replicas.front().shards;
  const auto has_its_share = [&](const Shard& shard) { return shard.share == first.front().share; };
  if (!are_divided_alike(stage) || !std::all_of(first.begin(), first.end(), has_its_share)) {
    return fmt::format("the shards of stage {} have unequal shares; give all the same", number);
  }
  if (stage.first_layer != stage.last_layer) {
    return fmt::format("stage {} has layers {} to {} as one part; each layer is a part where sequences are divided",
                       number, stage.first_layer, stage.last_layer);
  }
  return std::nullopt;
}

/// The devices of each group, in all their stages.
std::optional<std::string> fault_of_groups(const Plan& plan)
{
  const std::size_t degree = plan.context.degree;
  std::map<std::string, std::vector<std::string>> group_of;  // by device
  for (const auto& stage : plan.stages) {
    for (std::size_t replica = 0; replica < stage.replicas.size(); ++replica) {
      const auto& shards = stage.replicas[replica].shards;
      for (std::size_t shard = 0; shard < shards.size(); ++shard) {
        std::vector<std::string> group;
        for (std::size_t i = replica / degree * degree; i < (replica / degree + 1) * degree; ++i) {
          group.push_back(stage.replicas[i].shards[shard].device);
        }
        const auto [known, is_new] = group_of.emplace(shards[shard].device, group);
        if (is_new || known->second == group) continue;
        return fmt::format("device {} is in different groups in two stages; keep groups together",
                           shown(shards[shard].device));
      }
    }
  }
  const auto warm_up = plan.goal.schedule.numbers.find("warm_up");
  if (warm_up == plan.goal.schedule.numbers.end()) return std::nullopt;
  const auto devices = devices_of(plan);
  if (warm_up->second.size() != devices.size()) return std::nullopt;  // the schedule refuses it
  std::map<std::string, std::uint64_t> number_of;
  for (std::size_t i = 0; i < devices.size(); ++i) number_of[devices[i]] = warm_up->second[i];
  for (const auto& [device, group] : group_of) {
    if (number_of.at(device) == number_of.at(group.front())) continue;
    return fmt::format("devices {} and {} of a group have different numbers in warm_up; give them the same",
                       shown(group.front()), shown(device));
  }
  return std::nullopt;
}

/// Collects the collectives of one layer.
class Exchanges {
 public:
  Exchanges(const Workload& workload, std::size_t layer, std::size_t shards)
      : exchange_(workload.context.exchange),
        parts_(static_cast<double>(workload.context.degree)),
        is_recomputed_(std::binary_search(workload.recompute.begin(), workload.recompute.end(), layer))
  {
    const auto widths = attention_widths(workload, layer);
    if (!widths || !workload.context.divides()) return;
    const double tokens = samples_of_microbatch(workload) * static_cast<double>(workload.sequence);
    const double bytes = size_of(workload.dtype) * tokens / static_cast<double>(shards);
    queries_ = Bytes(bytes * widths->queries);
    keys_ = Bytes(bytes * widths->keys);
  }

  std::vector<ShardCollective> collectives() &&
  {
    if (queries_ == Bytes(0)) return {};
    exchange_ == ContextExchange::AllToAll ? exchange_heads() : exchange_keys();
    return std::move(collectives_);
  }

 private:
  void exchange_heads()
  {
    const std::array inputs = {queries_, keys_, keys_};
    const auto add_all = [&](ShardRole role, auto sizes) {
      for (const Bytes size : sizes) add(role, Opcode::AllToAll, size, (parts_ - 1) / parts_ * size);
    };
    add_all(ShardRole::ExchangeInputs, inputs);
    add(ShardRole::ExchangeOutputs, Opcode::AllToAll, queries_, {});
    if (is_recomputed_) {
      add_all(ShardRole::ExchangeGradients, inputs);
      add_all(ShardRole::ExchangeGradients, std::array{queries_});
    }
    add_all(ShardRole::ExchangeGradients, std::array{queries_});
    for (const Bytes size : inputs) add(ShardRole::ExchangeInputGradients, Opcode::AllToAll, size, {});
  }

  void exchange_keys()
  {
    const Bytes block = 2 * keys_;  // and values
    const bool is_ring = exchange_ == ContextExchange::Ring;
    // Of a ring one block is computed with while the next one comes.
    const double rooms = is_ring ? std::min(parts_ - 1, 2.0) : parts_ - 1;
    add(ShardRole::ExchangeInputs, Opcode::AllGather, block, rooms * block);
    if (is_recomputed_) add(ShardRole::ExchangeGradients, Opcode::AllGather, block, rooms * block);
    if (is_ring) {
      // Their gradients go around with them.
      add(ShardRole::ExchangeGradients, Opcode::AllGather, 2 * block, rooms * (2 * block));
    } else {
      add(ShardRole::ExchangeGradients, Opcode::AllGather, block, rooms * block);
      add(ShardRole::ExchangeInputGradients, Opcode::ReduceScatter, parts_ * block, {});
    }
  }

  void add(ShardRole role, Opcode opcode, Bytes size, Bytes held)
  {
    const bool is_forward = pass_of(role) == ShardPass::Forward;
    const auto of_role = std::count_if(collectives_.begin(), collectives_.end(),
                                       [role](const ShardCollective& each) { return each.role == role; });
    collectives_.push_back({role, static_cast<std::size_t>(of_role), opcode,
                            is_forward ? Payload::Activation : Payload::Gradient, GridAxis::Context, size, held});
  }

  ContextExchange exchange_;
  double parts_;
  bool is_recomputed_;
  Bytes queries_;  // of a shard's part, or outputs
  Bytes keys_;     // or values
  std::vector<ShardCollective> collectives_;
};

}  // namespace

std::optional<std::string> fault_of_context(const Plan& plan)
{
  if (!plan.context.divides() || plan.stages.empty()) return std::nullopt;
  if (uses_machines(plan)) return "stages live elsewhere than on their devices; leave out residence";
  if (divides_operators(plan)) return "devices divide operators by signatures; leave it out";
  if (framework_of(plan) == nullptr) {
    return "needs training software, which knows attention; plan with compute: operators and a framework";
  }
  const auto numbers = numbers_in_file(plan);
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    if (auto fault = fault_of_stage(plan.stages[i], numbers[i], plan.context.degree)) return fault;
  }
  return fault_of_groups(plan);
}

std::optional<std::string> why_not_divided(const Workload& workload, const Plan& plan)
{
  for (const auto& stage : plan.stages) {
    if (stage.replicas.empty()) continue;
    if (auto why = why_not_divided(workload, plan.context, stage.replicas.front().shards.size())) return why;
  }
  return std::nullopt;
}

std::vector<ShardCollective> context_collectives(const Workload& workload, std::size_t layer, std::size_t shards)
{
  return Exchanges(workload, layer, shards).collectives();
}

Algorithm algorithm_of_context(const ContextParallelism& context, Algorithm of_replicas,
                               const std::vector<std::string>& sites)
{
  if (context.exchange == ContextExchange::Ring) return Algorithm::Ring;
  return algorithm_of_shards(of_replicas, sites);
}

}  // namespace isobar
