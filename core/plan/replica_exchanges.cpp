#include "core/plan/replica_exchanges.hpp"

#include "core/errors.hpp"
#include "core/model/dtype.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/sync_groups.hpp"
#include "core/plan/system_rules.hpp"
#include "core/program/collective.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <utility>

namespace isobar {

namespace {

/// `what`: which they divide.
std::optional<std::string> fault_of_stage(const Stage& stage, std::size_t number, std::size_t degree, const char* what)
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
    return fmt::format("stage {} has layers {} to {} as one part; each layer is a part where {} are divided", number,
                       stage.first_layer, stage.last_layer, what);
  }
  return std::nullopt;
}

/// The devices of each group, in all their stages.
std::optional<std::string> fault_of_groups(const Plan& plan, std::size_t degree)
{
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

/// What keeps groups of `degree` neighbouring replicas from dividing something.
std::optional<std::string> fault_of_division(const Plan& plan, std::size_t degree, const char* what)
{
  if (uses_machines(plan)) return "stages live elsewhere than on their devices; leave out residence";
  if (divides_operators(plan)) return "devices divide operators by signatures; leave it out";
  const auto numbers = numbers_in_file(plan);
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    if (auto fault = fault_of_stage(plan.stages[i], numbers[i], degree, what)) return fault;
  }
  return fault_of_groups(plan, degree);
}

/// Adds a collective, whose number is that among those of its role.
void add_numbered(ShardCollective collective, std::vector<ShardCollective>& collectives)
{
  const auto of_role = std::count_if(collectives.begin(), collectives.end(),
                                     [&](const ShardCollective& each) { return each.role == collective.role; });
  collective.product = static_cast<std::size_t>(of_role);
  collectives.push_back(collective);
}

/// What goes before a backward pass has the payload of gradients, whatever it is, so that it comes one after another.
Payload payload_of(ShardRole role)
{
  return pass_of(role) == ShardPass::Forward ? Payload::Activation : Payload::Gradient;
}

bool recomputes(const Workload& workload, std::size_t layer)
{
  return std::binary_search(workload.recompute.begin(), workload.recompute.end(), layer);
}

/// Collects the collectives of one layer for its attention.
class Exchanges {
 public:
  Exchanges(const Workload& workload, std::size_t layer, std::size_t shards)
      : exchange_(workload.context.exchange),
        parts_(static_cast<double>(workload.context.degree)),
        is_recomputed_(recomputes(workload, layer))
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
    add_numbered({role, 0, opcode, payload_of(role), GridAxis::Context, size, held}, collectives_);
  }

  ContextExchange exchange_;
  double parts_;
  bool is_recomputed_;
  Bytes queries_;  // of a shard's part, or outputs
  Bytes keys_;     // or values
  std::vector<ShardCollective> collectives_;
};

/// Collects those for its experts. Each of the shards of a replica sends a part of its tokens: to all shards that have
/// whole experts, or to the same shard of the other replicas, where all shards gather them.
class Dispatches {
 public:
  Dispatches(const Experts& experts, const ExpertParallelism& divided, std::size_t shards)
      : axis_(divided.are_whole && shards > 1 ? GridAxis::WholeExperts : GridAxis::Experts),
        parts_(static_cast<double>(divided.parts(shards))),
        shards_(static_cast<double>(shards)),
        tokens_(experts.dispatched),
        part_(experts.dispatched / shards_),
        sent_(experts.exchanged_fraction * part_)
  {
  }

  std::vector<ShardCollective> collectives(bool is_recomputed) &&
  {
    bring(ShardRole::DispatchTokens);
    bring_back(ShardRole::CombineOutputs);
    if (is_recomputed) {
      bring(ShardRole::DispatchGradients);
      bring_back(ShardRole::DispatchGradients);
    }
    bring(ShardRole::DispatchGradients);
    bring_back(ShardRole::CombineInputGradients);
    return std::move(collectives_);
  }

 private:
  void bring(ShardRole role)
  {
    add(role, Opcode::AllToAll, axis_, sent_, (parts_ - 1) / parts_ * part_);
    if (gathers()) add(role, Opcode::AllGather, GridAxis::All, part_, tokens_ - part_);
  }
  void bring_back(ShardRole role)
  {
    if (gathers()) add(role, Opcode::ReduceScatter, GridAxis::All, tokens_, {});
    add(role, Opcode::AllToAll, axis_, sent_, {});
  }
  bool gathers() const { return axis_ == GridAxis::Experts && shards_ > 1; }
  void add(ShardRole role, Opcode opcode, GridAxis axis, Bytes size, Bytes held)
  {
    add_numbered({role, 0, opcode, payload_of(role), axis, size, held}, collectives_);
  }

  GridAxis axis_;
  double parts_;
  double shards_;
  Bytes tokens_;  // of a replica, once for each of their experts
  Bytes part_;    // of a shard
  Bytes sent_;    // of it, what takes as long
  std::vector<ShardCollective> collectives_;
};

}  // namespace

bool has_exchanges(const Plan& plan)
{
  return plan.context.divides() || plan.experts.divides();
}

bool has_exchanges(const Workload& workload)
{
  return workload.context.divides() || workload.experts.divides();
}

std::size_t replicas_that_meet(const Workload& workload)
{
  return std::lcm(workload.context.degree, workload.experts.degree);
}

std::uint64_t whole_microbatches(const Plan& plan)
{
  return plan.goal.microbatches / plan.context.degree;
}

std::optional<std::string> fault_of_context(const Plan& plan)
{
  if (!plan.context.divides() || plan.stages.empty()) return std::nullopt;
  if (framework_of(plan) == nullptr && !uses_machines(plan) && !divides_operators(plan)) {
    return "needs training software, which knows attention; plan with compute: operators and a framework";
  }
  return fault_of_division(plan, plan.context.degree, "sequences");
}

std::optional<std::string> why_copies_are_not_divided(const Plan& plan)
{
  if (plan.sync.sharded == Sharding::None || plan.sync.algorithm != Algorithm::Hierarchical) return std::nullopt;
  const auto numbers = numbers_in_file(plan);
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const auto& replicas = plan.stages[i].replicas;
    for (std::size_t first = 0; first < plan.experts.degree; ++first) {
      std::vector<std::string> sites;
      for (std::size_t k = first; k < replicas.size(); k += plan.experts.degree) {
        sites.push_back(replicas[k].shards.front().site.value_or(""));
      }
      if (are_equal_sites(sites)) continue;
      return fmt::format(
          "stage {} has unequal numbers of copies of experts in its sites, which divide {} by algorithm hierarchical; "
          "use ring, tree or direct",
          numbers[i], name_of(plan.sync.sharded));
    }
  }
  return std::nullopt;
}

std::optional<std::string> fault_of_experts(const Plan& plan)
{
  if (!plan.experts.divides() || plan.stages.empty()) return std::nullopt;
  if (auto fault = fault_of_division(plan, plan.experts.degree, "experts")) return fault;
  return why_copies_are_not_divided(plan);
}

std::optional<std::string> fault_of_overlap(const ScheduleChoice& schedule, const ExpertParallelism& experts,
                                            const std::vector<std::size_t>& recompute, const Framework* software)
{
  if (!overlaps_experts(schedule)) return std::nullopt;
  if (!experts.divides()) {
    return fmt::format("{} is for replicas that divide experts; leave it out, or divide them", overlap_experts_key);
  }
  if (!recompute.empty()) {
    return fmt::format("layer {} recomputes its activations, and under {} passes keep theirs; leave one of them out",
                       recompute.front(), overlap_experts_key);
  }
  if (software != nullptr && software->hides_dispatches) {
    return fmt::format(
        "{} lets passes of two micro-batches hide exchanges, which overlap_dispatches of the training "
        "software counts as hidden already; leave one of them out",
        overlap_experts_key);
  }
  return std::nullopt;
}

std::optional<std::string> fault_of_overlap(const Plan& plan)
{
  if (plan.stages.empty()) return std::nullopt;
  return fault_of_overlap(plan.goal.schedule, plan.experts, plan.recompute, framework_of(plan));
}

namespace {

template <typename Division>
std::optional<std::string> why_not_divided_so(const Workload& workload, const Plan& plan, const Division& division)
{
  for (const auto& stage : plan.stages) {
    if (stage.replicas.empty()) continue;
    if (auto why = why_not_divided(workload, division, stage.replicas.front().shards.size())) return why;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> why_not_divided(const Workload& workload, const Plan& plan)
{
  return why_not_divided_so(workload, plan, plan.context);
}

std::optional<std::string> why_experts_are_not_divided(const Workload& workload, const Plan& plan)
{
  return why_not_divided_so(workload, plan, plan.experts);
}

std::size_t replicas_along(GridAxis axis, const Workload& workload)
{
  ensure(is_among_replicas(axis), "an axis along which replicas meet");
  return axis == GridAxis::Context ? workload.context.degree : workload.experts.degree;
}

std::vector<ShardCollective> replica_collectives(const Workload& workload, std::size_t layer, std::size_t shards)
{
  auto collectives = Exchanges(workload, layer, shards).collectives();
  const auto& experts = workload.layers.at(layer).experts;
  if (workload.experts.parts(shards) == 1 || !experts) return collectives;
  const auto of_experts = Dispatches(*experts, workload.experts, shards).collectives(recomputes(workload, layer));
  collectives.insert(collectives.end(), of_experts.begin(), of_experts.end());
  return collectives;
}

Algorithm algorithm_of_group(GridAxis axis, const ContextParallelism& context, Algorithm of_replicas,
                             const std::vector<std::string>& sites)
{
  if (axis == GridAxis::Context && context.exchange == ContextExchange::Ring) return Algorithm::Ring;
  return algorithm_of_shards(of_replicas, sites);
}

std::size_t copies_of_experts(const ExpertParallelism& experts, std::size_t replicas)
{
  return replicas / experts.degree;
}

}  // namespace isobar
