#include "allocators/external.hpp"

#include "allocators/memory_fit.hpp"
#include "allocators/plan_stages.hpp"
#include "allocators/schedule_numbers.hpp"
#include "core/base/child_process.hpp"
#include "core/check/plan_checker.hpp"
#include "core/errors.hpp"
#include "core/model/layer_graph.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/plan_file_2.hpp"
#include "core/plan/system_rules.hpp"
#include "core/text/document.hpp"
#include "core/text/json_text.hpp"
#include "schedules/orders/schedule.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <unordered_map>

namespace isobar::allocators {

namespace {

constexpr Seconds default_time_limit(300);
constexpr std::size_t longest_reason = 500;

std::string problem_to_json(const Problem& problem)
{
  using Json = nlohmann::ordered_json;
  const Goal& goal = problem.goal;
  const SearchLimits& limits = problem.limits;
  const Json document = {{"schema", "isobar-problem/1"},
                         {"cluster", Json::parse(cluster_to_json(problem.cost.cluster()))},
                         {"workload", Json::parse(workload_to_json(problem.cost.workload()))},
                         {"goal",
                          {{"objective", name_of(goal.objective)},
                           {"communication", name_of(goal.communication)},
                           {"schedule", name_of(require_chain_schedule(goal.schedule))},
                           {"microbatches", goal.microbatches}}},
                         {"limits",
                          {{"budget", limits.budget ? Json(*limits.budget) : Json(nullptr)},
                           {"time_limit_s", limits.time_limit ? Json(limits.time_limit->value) : Json(nullptr)},
                           {"seed", limits.seed}}}};
  return json_line(document) + "\n";
}

/// Reads an answer and maps it to the problem's devices; every fault names the program and the line of its answer.
class AnswerReader {
 public:
  AnswerReader(const std::string& name, const Problem& problem, const ChainView& view)
      : problem_(problem), view_(view), name_(name), faults_(name)
  {
    const auto& devices = problem.cost.cluster().devices;
    for (std::size_t i = 0; i < devices.size(); ++i) index_of_.emplace(devices[i].name, i);
  }

  ExternalAnswer read(const std::string& text)
  {
    const DocumentNode document = parse_json(text, name_);
    if (document.kind != DocumentNode::Kind::Mapping) {
      throw InputError(name_, "the answer is not a JSON object; print one with \"stages\" (docs/own_allocator.md)");
    }
    MappingReader reader(document, "", faults_);
    // The other keys of a plan file are claims, which are computed here instead, and what the call has set.
    for (const char* claim : {"allocator",    "objective",    "communication",    "schedule",
                              "microbatches", "predicted",    "objective_s",      "objective_bound_s",
                              "gap_fraction", "step_bound_s", "schedule_bound_s", "certificate",
                              "inputs",       "recompute",    "system",           "micro_batch",
                              "without",      "data_server",  "simulated",        "stamp",
                              "wall"}) {
      reader.optional(claim);
    }
    ExternalAnswer answer;
    answer.program = name_;
    is_plan_file_ = reader.optional_text("schema").value_or("").starts_with("isobar-plan/");
    const auto outcome = reader.optional_choice("outcome", outcome_names());
    if (outcome) answer.outcome = outcome_from_name(*outcome).value_or(Outcome::Feasible);
    if (answer.outcome == Outcome::Optimal) answer.outcome = Outcome::Feasible;
    answer.reason = shown(reader.optional_text("reason").value_or(""), longest_reason);
    const bool may_lack_stages = answer.outcome == Outcome::Infeasible || answer.outcome == Outcome::TimedOut;
    if (is_plan_2(reader)) {
      Plan& plan = answer.plan;
      plan.stages = read_stages_2(reader, problem_.goal.microbatches, {}, faults_);
      plan.sync = read_sync_2(reader, plan.stages, faults_);
      plan.transfers = read_transfers_2(reader, plan.stages, faults_);
      read_system(reader, plan, faults_);
    } else if (!may_lack_stages || reader.has("stages")) {
      read_stages(reader);
    }
    reader.refuse_unknown();
    faults_.throw_if_any();
    check_outcome(answer);
    number_layers(answer);
    return answer;
  }

 private:
  /// Whether the first stage is written as isobar-plan/2 has it.
  static bool is_plan_2(MappingReader& reader)
  {
    const DocumentNode* const stages = reader.optional("stages");
    if (stages == nullptr || stages->items.empty()) return false;
    const auto& members = stages->items.front().members;
    return std::any_of(members.begin(), members.end(), [](const auto& member) { return member.key == "replicas"; });
  }

  void read_stages(MappingReader& reader)
  {
    for (const auto& node : reader.required_sequence("stages")) {
      const std::string path = fmt::format("stages[{}]", stages_.size());
      stages_.emplace_back();
      if (node.kind != DocumentNode::Kind::Mapping) {
        faults_.add(node.line, path,
                    R"(is not an object; write {"device": "NAME", "first_layer": 0, "last_layer": 3})");
        continue;
      }
      MappingReader stage(node, path + ".", faults_);
      read_device(stage);
      read_layers(stage);
      stage.refuse_unknown();
    }
  }

  void read_device(MappingReader& stage)
  {
    std::string key = "device";
    std::string device;
    if (!stage.has("devices")) {
      device = stage.required_text("device");
    } else {
      key = "devices";
      const auto& devices = stage.required_sequence("devices");
      if (devices.size() != 1 || devices.front().kind != DocumentNode::Kind::Mapping) {
        stage.add_fault(key, R"(is not one device; write one, such as [{"name": "NAME"}])");
        return;
      }
      MappingReader member(devices.front(), stage.path_of("devices[0]."), faults_);
      device = member.required_text("name");
      for (const char* ours : {"share", "slowdown", "memory_bytes"}) member.optional_number(ours);
      member.optional_text("type");
      member.refuse_unknown();
    }
    if (device.empty()) return;  // a fault already
    const auto index = index_of_.find(device);
    if (index == index_of_.end()) {
      stage.add_fault(key, fmt::format("{} is not on platform {}", in_quotes(device), problem_.cost.cluster().name));
      return;
    }
    const auto [first_use, is_new] = stage_of_device_.emplace(index->second, stages_.size() - 1);
    if (!is_new) {
      stage.add_fault(key, fmt::format("{} already runs stages[{}]; each device runs one stage", in_quotes(device),
                                       first_use->second));
    }
    stages_.back().device = index->second;
  }

  void read_layers(MappingReader& stage)
  {
    const std::size_t layers = numbered_layers();
    auto& placed = stages_.back();
    placed.first_layer = stage.required_count("first_layer", 0, layers - 1);
    placed.last_layer = stage.required_count("last_layer", 0, layers - 1);
    if (!faults_.empty()) return;  // further faults of layers could be consequences of the first one
    if (placed.first_layer != next_layer_) {
      const std::string before = next_layer_ == 0 ? "the first stage starts at layer 0"
                                                  : fmt::format("the previous stage ends at layer {}", next_layer_ - 1);
      stage.add_fault("first_layer", fmt::format("{} leaves a gap or an overlap: {}; write {}", placed.first_layer,
                                                 before, next_layer_));
    }
    if (placed.last_layer < placed.first_layer) {
      stage.add_fault("last_layer", fmt::format("{} is before first_layer {}", placed.last_layer, placed.first_layer));
    }
    next_layer_ = placed.last_layer + 1;
  }

  void check_outcome(const ExternalAnswer& answer) const
  {
    const std::size_t layers = numbered_layers();
    const bool is_empty = stages_.empty() && answer.plan.stages.empty();
    if (answer.outcome == Outcome::Infeasible && !is_empty) {
      throw InputError(name_, "outcome: infeasible, but there are stages; omit one of them");
    }
    if (is_empty && answer.outcome == Outcome::Feasible) {
      throw InputError(name_, "stages: empty; place every layer");
    }
    if (is_empty && answer.reason.empty()) {
      throw InputError(name_, "reason: missing; an answer without stages needs one");
    }
    for (std::size_t i = 0; i < answer.plan.stages.size(); ++i) check_devices(answer.plan.stages[i], i);
    if (!stages_.empty() && next_layer_ != layers) {
      throw InputError(name_,
                       fmt::format("stages: layers {}..{} are not placed; place every layer", next_layer_, layers - 1));
    }
  }

  /// The number of layers that the answer numbers.
  std::size_t numbered_layers() const { return is_plan_file_ ? view_.first_layer.back() : problem_.cost.layers(); }

  std::vector<StagePlacement> over_chain(const std::vector<StagePlacement>& stages) const
  {
    const auto& rules = problem_.limits.rules;
    if (!rules) return over_chain_of(view_, stages, name_);
    return over_chain_of(view_, stages, name_, rules->software + " begins no stage");
  }

  /// Converts a chain to layers of the chain, and other stages to those of the workload.
  void number_layers(ExternalAnswer& answer) const
  {
    answer.chain = is_plan_file_ ? over_chain(stages_) : stages_;
    for (Stage& stage : answer.plan.stages) {
      const std::size_t highest = std::max(stage.first_layer, stage.last_layer);
      if (highest >= numbered_layers()) {
        throw InputError(name_, fmt::format("stages: layer {} of {}; layers count from 0{}", highest, numbered_layers(),
                                            is_plan_file_ ? "" : " in the chain that the program reads"));
      }
      if (is_plan_file_) continue;
      const auto placed = over_layers_of(view_, {{0, stage.first_layer, stage.last_layer}}).front();
      stage.first_layer = placed.first_layer;
      stage.last_layer = placed.last_layer;
    }
    const auto stage_of = pipeline_stages(answer.plan);
    for (std::size_t i = 1; i < stage_of.size(); ++i) {
      const std::size_t first = answer.plan.stages[i].first_layer;
      const bool is_cut = stage_of[i] != stage_of[i - 1];
      if (!is_cut || std::binary_search(view_.first_layer.begin(), view_.first_layer.end(), first)) continue;
      throw InputError(name_, fmt::format("stages: one begins at layer {}, where more than one tensor crosses; cut "
                                          "stages only where one tensor crosses",
                                          first));
    }
  }

  void check_devices(const Stage& stage, std::size_t number) const
  {
    for (std::size_t i = 0; i < stage.replicas.size(); ++i) {
      for (std::size_t k = 0; k < stage.replicas[i].shards.size(); ++k) {
        const std::string& device = stage.replicas[i].shards[k].device;
        if (index_of_.contains(device)) continue;
        throw InputError(name_, fmt::format("stages[{}].replicas[{}].shards[{}].device: {} is not on platform {}",
                                            number, i, k, in_quotes(device), problem_.cost.cluster().name));
      }
    }
  }

  const Problem& problem_;
  const ChainView& view_;
  std::string name_;
  FaultList faults_;
  std::unordered_map<std::string, std::size_t> index_of_;
  std::unordered_map<std::size_t, std::size_t> stage_of_device_;
  std::vector<StagePlacement> stages_;
  std::size_t next_layer_ = 0;
  bool is_plan_file_ = false;
};

}  // namespace

ExternalAnswer ask_program(const std::string& program, const Problem& problem, const ChainView& view)
{
  const std::string name = "exec:" + program;
  const ChildLimit limit(problem.limits.time_limit.value_or(default_time_limit), "--time-limit");
  const auto result = run_command({program}, problem_to_json(problem), limit);
  if (result.failure) throw EnvironmentError(name, result.failure->text);
  return AnswerReader(name, problem, view).read(result.output);
}

Placement placement_of(const ExternalAnswer& answer, const Problem& problem)
{
  if (auto reason = overfull_stage(problem.cost, problem.goal, answer.chain)) {
    return {Outcome::Infeasible, {}, std::move(*reason), {}, {}};
  }
  return {answer.outcome, answer.chain, answer.reason, {}, {}};
}

Proposals proposals_of(const ExternalAnswer& answer, const HybridProblem& problem)
{
  const CostModel cost(problem.workload, problem.cluster);
  Plan plan = answer.plan;
  plan.goal = problem.goal;
  plan.goal.schedule = given_part_of(problem.goal.schedule);
  plan.outcome = answer.outcome;
  plan.recompute = problem.workload.recompute;
  plan.data_server = problem.cluster.data_server;
  plan.stages.clear();
  for (const Stage& stage : answer.plan.stages) {
    Stage each = stage;
    for (Replica& replica : each.replicas) {
      for (Shard& shard : replica.shards) {
        const double share = shard.share;
        shard = shard_on(cost, problem.cluster.device_index(shard.device).value());
        shard.share = share;
      }
    }
    if (!has_shards({each})) {
      plan.stages.push_back(std::move(each));
      continue;
    }
    for (std::size_t layer = each.first_layer; layer <= each.last_layer; ++layer) {
      Stage& of_layer = plan.stages.emplace_back(each);
      of_layer.first_layer = of_layer.last_layer = layer;
    }
  }
  if (schedules::require_schedule(plan.goal.schedule).takes(chunks_key)) {
    const std::size_t devices = devices_of(plan).size();
    plan.goal.schedule.numbers.try_emplace(chunks_key, 1, placed_shards(plan).size() / devices);
  }
  std::vector<std::string> faults = placement_faults_of(plan, problem.workload, problem.cluster);
  for (auto& fault : faults) fault = fmt::format("{}: {}", answer.program, fault);
  if (!faults.empty()) throw InputError(faults);
  return {{std::move(plan)}};
}

}  // namespace isobar::allocators
