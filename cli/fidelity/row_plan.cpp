#include "cli/fidelity/row_plan.hpp"

#include "core/base/files.hpp"
#include "core/compute/as_trained.hpp"
#include "core/compute/layer_time.hpp"
#include "core/compute/pricing.hpp"
#include "core/compute/recompute_modules.hpp"
#include "core/compute/transformer.hpp"
#include "core/errors.hpp"
#include "core/model/model_sizes.hpp"
#include "core/model/split_text.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/replica_exchanges.hpp"
#include "core/program/collective.hpp"
#include "core/text/document.hpp"
#include "core/text/separated.hpp"
#include "results/fidelity/row_devices.hpp"
#include "schedules/orders/schedule.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <variant>

namespace isobar::cli {

namespace {

using results::MeasuredRow;
using results::Recomputation;
using results::Unsupported;

/// Whether attention is fused, by the settings or else the text of a workload file.
bool has_fused_attention(const std::string& text, const std::string& name, const WorkloadSettings& settings)
{
  const auto set = settings.find("attention");
  if (set != settings.end()) return attention_from_name(set->second) == Attention::Fused;
  return std::ranges::any_of(parse_yaml(text, name).members, [](const DocumentNode::Member& member) {
    return member.key == "attention" && attention_from_name(member.value.scalar) == Attention::Fused;
  });
}

/// Takes the key dropout out of a workload file and of its settings. The lines of other keys stay where they are.
void leave_out_dropout(std::string& text, WorkloadSettings& settings)
{
  std::string others;
  for (const auto line : texts_between(text, '\n')) {
    if (!line.starts_with("dropout:")) others += line;
    others += '\n';
  }
  text = std::move(others);
  settings.erase("dropout");
}

constexpr std::string_view module_of_experts = "moe";

struct RowWorkload {
  std::string text;
  WorkloadSettings settings;
  Workload workload;
};

/// `recomputed` is by block; empty: as the choice says.
RowWorkload workload_of(const MeasuredRow& row, const RowChoice& choice, std::size_t most_shards,
                        const std::vector<BlockOperators>& recomputed = {})
{
  RowWorkload made;
  made.text = read_file(row.workload);
  auto& settings = made.settings;
  for (const auto& [key, value] : row.overrides) settings[key] = value;
  settings["unit"] = "operator";
  settings["compute"] = "operators";
  settings["framework"] = row.framework;
  settings["micro_batch"] = fmt::to_string(choice.micro_batch);
  if (has_fused_attention(made.text, row.workload, settings)) {
    // Readers refuse dropout in fused attention, since no run repeats what it draws.
    leave_out_dropout(made.text, settings);
  } else if (choice.recompute == Recomputation::Selective) {
    settings["attention"] = "recomputed";
  }
  if (const auto texts = text_of(recomputed); !texts.empty()) {
    settings["recompute_operators"] = fmt::format("[\"{}\"]", fmt::join(texts, "\", \""));
  }
  const auto read = [&] { made.workload = workload_from_text(made.text, row.workload, settings, "overrides"); };
  read();
  if (!framework_named(row.framework).framework->pads_vocabulary) return made;
  std::uint64_t vocabulary = 0;
  if (const auto* sizes = std::get_if<GptSizes>(&made.workload.model)) vocabulary = sizes->vocabulary;
  if (const auto* sizes = std::get_if<LlamaSizes>(&made.workload.model)) vocabulary = sizes->vocabulary;
  if (const auto* sizes = std::get_if<DecoderSizes>(&made.workload.model)) vocabulary = sizes->vocabulary;
  settings["vocabulary"] = fmt::to_string(compute::padded_vocabulary(vocabulary, most_shards));
  read();
  return made;
}

Sharding sharding_of(std::size_t zero_stage)
{
  constexpr std::array stages = {Sharding::None, Sharding::Optimizer, Sharding::Gradients, Sharding::Parameters};
  return stages.at(zero_stage);
}

/// Adds the stages of a plan for layers first..last on the devices of a pipeline stage, which divide them by what a
/// column says.
void add_stages(Plan& plan, const Workload& workload, const results::DevicesOfStage& places, std::size_t first,
                std::size_t last, const MeasuredRow& row, std::string_view column = "tp")
{
  const std::size_t shards = places.front().size();
  for (std::size_t layer = first; shards > 1 && layer <= last; ++layer) {
    const auto& split = workload.layers[layer].split;
    if (split && split->units % shards == 0) continue;
    throw Unsupported(fmt::format("{}: {} shards of layer {}, which has {} {}; software divides them evenly", column,
                                  shards, workload.layers[layer].name, split ? split->units : 0,
                                  split ? units_in_words(workload, *split) : "parts"));
  }
  Stage made;
  for (const auto& own : places) {
    Replica& replica = made.replicas.emplace_back();
    replica.microbatches = places.size() == 1 ? 0 : plan.goal.microbatches / places.size();
    for (const Device* device : own) {
      Shard shard{.device = device->name, .share = 1.0 / static_cast<double>(shards)};
      if (!device->type.empty()) shard.type = device->type;
      if (!device->site.empty()) shard.site = device->site;
      replica.shards.push_back(std::move(shard));
    }
  }
  if (row.sequence_parallel && shards > 1) made.grid = {ShardGrid::Form::Sequence, shards};
  // A layer of several shards, or whose replicas divide sequences or experts, is a stage, and so is a block whose
  // parameters are gathered for it.
  const bool gathers = row.zero_stage >= 2 && places.size() > 1;
  for (std::size_t begin = first; begin <= last; begin = made.last_layer + 1) {
    made.first_layer = begin;
    const bool is_each = shards > 1 || has_exchanges(plan);
    made.last_layer = is_each ? begin : last;
    const bool is_block = begin > 0 && begin + 2 < workload.layers.size();
    if (!is_each && gathers) made.last_layer = is_block ? std::min(begin + 1, last) : begin;
    plan.stages.push_back(made);
  }
}

/// Whether the schedule of a row is one whose devices divide the first and the last layer.
/// @throws Unsupported where they would divide other layers too, or have other stages.
bool divides_ends(const MeasuredRow& row, const RowChoice& choice, const results::RowDegrees& degrees)
{
  const auto* schedule = schedules::find_schedule(row.schedule);
  if (schedule == nullptr || schedule->folding != schedules::Folding::DividedEnds) return false;
  const auto is_one = [](std::size_t degree) { return degree == 1; };
  const bool has_other_groups = row.context_degree > 1 || row.expert_degree > 1 || row.sequence_parallel;
  if (!std::ranges::all_of(degrees.tensor, is_one) || has_other_groups || choice.virtual_stages > 1) {
    throw Unsupported(fmt::format("schedule: {} with tp, cp, ep, sequence_parallel or virtual_stages", row.schedule));
  }
  if (row.pipeline_degree == 1) throw Unsupported(fmt::format("schedule: {} of one stage", row.schedule));
  return true;
}

/// The devices that divide the ends of a model: in each replica, those of all stages.
results::DevicesOfStage devices_of_ends(const std::vector<results::DevicesOfStage>& places)
{
  results::DevicesOfStage ends(places.front().size());
  for (const auto& stage : places) {
    if (stage.size() != ends.size()) throw Unsupported("dp: another number of replicas in each stage");
    for (std::size_t replica = 0; replica < ends.size(); ++replica) ends[replica].push_back(stage[replica].front());
  }
  return ends;
}

/// How devices add up: over nodes with several of them in each, NCCL's rings use all NICs, as the hierarchical
/// algorithm does. Replicas that divide parameters need as many in each node for it.
Algorithm algorithm_of(const Plan& plan, bool divides)
{
  bool spans = false;
  bool is_even = true;
  const auto add = [&](const std::vector<std::string>& sites) {
    const std::set<std::string> nodes(sites.begin(), sites.end());
    spans = spans || (nodes.size() > 1 && nodes.size() < sites.size());
  };
  for (const auto& stage : plan.stages) {
    const auto of_replicas = sites_of(stage, 0);
    add(of_replicas);
    for (const auto& replica : stage.replicas) {
      std::vector<std::string> of_shards;
      for (const auto& shard : replica.shards) of_shards.push_back(shard.site.value_or(""));
      add(of_shards);
    }
    is_even = is_even && are_equal_sites(of_replicas);
  }
  return spans && (is_even || !divides) ? Algorithm::Hierarchical : Algorithm::Ring;
}

void require_supported(const MeasuredRow& row, const RowChoice& choice)
{
  if (row.context_degree > 1 && !row.plan.empty()) {
    throw Unsupported(fmt::format("cp: {}; the plan says how sequences are divided", row.context_degree));
  }
  if (row.expert_degree > 1 && !row.plan.empty()) {
    throw Unsupported(fmt::format("ep: {}; the plan says how experts are divided", row.expert_degree));
  }
  if (choice.virtual_stages > 1 && row.pipeline_degree == 1) {
    throw Unsupported("virtual_stages: of a pipeline of one stage");
  }
  if (choice.recompute == Recomputation::Planned && row.plan.empty()) {
    throw Unsupported("recompute: is plan; name one in the column plan");
  }
  if (choice.recompute == Recomputation::Modules && !row.plan.empty()) {
    throw Unsupported("recompute: names modules, and the plan says what recomputes; write plan");
  }
  const std::size_t replicas = *std::ranges::max_element(row.data_degrees);
  if (row.global_batch < replicas) {
    throw Unsupported(fmt::format("global_batch: {} samples for {} replicas", row.global_batch, replicas));
  }
}

/// The operators that a row's modules repeat in each block; `moe` is of layers.
std::vector<BlockOperators> operators_of_modules(const std::vector<std::string>& modules, const ModelSizes& model)
{
  std::vector<BlockOperators> recomputed;
  for (const auto& module : modules) {
    const auto of_blocks = compute::operators_of_module(module, model);
    if (std::ranges::none_of(of_blocks, &BlockOperators::any)) {
      throw Unsupported(fmt::format("recompute: no block has {}", module));
    }
    if (module == module_of_experts) continue;
    recomputed.resize(of_blocks.size());
    for (std::size_t block = 0; block < of_blocks.size(); ++block) recomputed[block] |= of_blocks[block];
  }
  return recomputed;
}

bool has_isobar_plan(const MeasuredRow& row)
{
  return !row.plan.empty() && read_file(row.plan).find("\"isobar-plan/") != std::string::npos;
}

/// Gives the layers their times by the software and what was measured, and the plan the system's rules.
RowPlan priced(const MeasuredRow& row, RowWorkload made, Plan plan, const Cluster& cluster)
{
  compute::Measurements measurements(row.profiles);
  std::set<std::string> types;
  for (const auto& device : cluster.devices) types.insert(device.type);
  for (const auto& other : measurements.of_others({types.begin(), types.end()})) {
    throw Unsupported(
        fmt::format("profiles: {} is of {}, and the machine has {}", other.file, other.device, fmt::join(types, ", ")));
  }
  if (!plan.recompute.empty()) made.workload = with_recomputation(made.workload, plan.recompute);
  compute::price(made.workload, cluster, measurements);
  if (!plan.system) compute::take_system(plan, made.workload);
  return {std::move(made.text), std::move(made.settings), std::move(made.workload), std::move(plan)};
}

/// A row with a plan of Isobar, whose layers are those of unit operator.
RowPlan of_isobar_plan(const MeasuredRow& row, const RowChoice& choice, const Cluster& cluster)
{
  Plan plan = read_plan(row.plan);
  if (plan.stages.empty()) throw Unsupported("plan: has no placement");
  if (has_exchanges(plan))
    throw Unsupported("plan: its replicas divide sequences or experts; use the columns cp and ep");
  std::size_t most_shards = 1;
  for (const auto& stage : plan.stages) most_shards = std::max(most_shards, stage.replicas.front().shards.size());
  RowWorkload made = workload_of(row, choice, most_shards);
  const std::size_t layers = made.workload.layers.size();
  if (plan.stages.back().last_layer + 1 != layers) {
    throw Unsupported(fmt::format("plan: of {} layers; the model has {} of unit operator",
                                  plan.stages.back().last_layer + 1, layers));
  }
  for (const auto& device : devices_of(plan)) {
    if (!cluster.device_index(device)) throw Unsupported(fmt::format("plan: the machine has no device {}", device));
  }
  const std::uint64_t samples = plan.goal.microbatches * choice.micro_batch;
  if (row.global_batch > samples) {
    throw Unsupported(fmt::format("plan: its {} micro-batches of {} are fewer samples than global_batch, {}",
                                  plan.goal.microbatches, choice.micro_batch, row.global_batch));
  }
  if (row.global_batch < samples) plan.samples = row.global_batch;
  return priced(row, std::move(made), std::move(plan), cluster);
}

}  // namespace

std::vector<RowChoice> choices_of(const MeasuredRow& row)
{
  const auto replicas = static_cast<double>(*std::ranges::max_element(row.data_degrees));
  const auto samples = static_cast<std::uint64_t>(std::ceil(static_cast<double>(row.global_batch) / replicas));
  std::vector<std::uint64_t> micro_batches;
  if (row.micro_batch) {
    micro_batches = {std::min(*row.micro_batch, samples)};
  } else {
    for (std::uint64_t size = 1; size <= std::min<std::uint64_t>(samples, 8); size *= 2) {
      if (samples % size == 0) micro_batches.push_back(size);
    }
  }
  std::vector<std::size_t> virtual_stages = {row.virtual_stages.value_or(1)};
  if (!row.virtual_stages && row.pipeline_degree > 1) {
    if (row.schedule.empty()) virtual_stages = {1, 2, 3, 4, 6, 8};
    if (row.schedule == "interleaved") virtual_stages = {2, 3, 4, 6, 8};
  }
  std::vector<Recomputation> recomputations = {row.recompute.value_or(Recomputation::None)};
  if (!row.recompute) recomputations.push_back(Recomputation::Full);
  std::vector<ContextExchange> exchanges = {row.context_exchange.value_or(ContextExchange::Ring)};
  if (row.context_degree > 1 && !row.context_exchange) {
    exchanges = {ContextExchange::Ring, ContextExchange::AllGather, ContextExchange::AllToAll};
  }
  std::vector<RowChoice> choices;
  for (const auto micro_batch : micro_batches) {
    for (const auto chunks : virtual_stages) {
      for (const auto recompute : recomputations) {
        for (const auto exchange : exchanges) choices.push_back({micro_batch, chunks, recompute, exchange});
      }
    }
  }
  return choices;
}

RowPlan plan_of(const MeasuredRow& row, const RowChoice& choice, const Cluster& cluster)
{
  require_supported(row, choice);
  if (has_isobar_plan(row)) return of_isobar_plan(row, choice, cluster);
  RowWorkload made = workload_of(row, choice, 1);
  const std::vector<std::size_t> ends = compute::ends_of_blocks(made.workload);
  if (ends.empty()) throw Unsupported(fmt::format("workload: {} is no gpt, llama or decoder", made.workload.name));
  const auto blocks = static_cast<double>(ends.size());
  const results::RowDegrees degrees = results::degrees_of(row, blocks, choice.virtual_stages);
  const std::size_t most_shards = *std::ranges::max_element(degrees.tensor);
  auto recomputed = operators_of_modules(row.recompute_modules, made.workload.model);
  if (choice.recompute == Recomputation::Planned) recomputed = degrees.recomputed;
  if (most_shards > 1 || !recomputed.empty()) made = workload_of(row, choice, most_shards, recomputed);
  Plan plan;
  if (row.context_degree > 1) {
    plan.context = {row.context_degree, choice.exchange};
    if (const auto why_not = why_not_divided(made.workload, plan.context, most_shards)) {
      throw Unsupported("cp: " + *why_not);
    }
    made.workload = with_context(made.workload, plan.context);
  }
  plan.experts = results::experts_of(row, most_shards);
  if (const auto why_not = why_not_divided(made.workload, plan.experts, most_shards))
    throw Unsupported("ep: " + *why_not);
  if (plan.experts.divides()) made.workload = with_experts(made.workload, plan.experts);
  const std::size_t layers = made.workload.layers.size();
  const double placed = std::accumulate(degrees.blocks.begin(), degrees.blocks.end(), 0.0);
  if (std::abs(placed - blocks) > 0.05) {
    throw Unsupported(fmt::format("layers: of {:g} blocks; the model has {:g}", placed, blocks));
  }

  // Micro-batches: the most that one of the replicas takes, in each stage. Of divided sequences they are parts.
  const std::size_t replicas = *std::ranges::max_element(degrees.data);
  const std::uint64_t all_samples = row.global_batch * plan.context.degree;  // of parts
  const double samples = static_cast<double>(all_samples) / static_cast<double>(replicas);
  const auto each = static_cast<std::uint64_t>(std::ceil(samples / static_cast<double>(choice.micro_batch) - 1e-9));
  plan.goal.microbatches = each * replicas;
  if (all_samples < plan.goal.microbatches * choice.micro_batch) plan.samples = row.global_batch;
  for (const std::size_t data : degrees.data) {
    if (plan.goal.microbatches % data != 0) {
      throw Unsupported(fmt::format("dp: {} replicas of a stage for {} micro-batches", data, plan.goal.microbatches));
    }
  }
  plan.allocator = "measured";
  plan.goal.schedule.name = row.schedule.empty() ? (choice.virtual_stages > 1 ? "interleaved" : "1f1b") : row.schedule;
  if (choice.virtual_stages > 1) plan.goal.schedule.numbers["chunks"] = {choice.virtual_stages};
  if (schedules::find_schedule(plan.goal.schedule.name) == nullptr) {
    throw Unsupported(fmt::format("schedule: {} is none that plans have", plan.goal.schedule.name));
  }

  const auto places = results::devices_of_row(row, degrees, cluster.devices);
  const bool has_divided_ends = divides_ends(row, choice, degrees);
  const auto add_end = [&](std::size_t layer) {
    if (has_divided_ends) add_stages(plan, made.workload, devices_of_ends(places), layer, layer, row, "schedule");
  };
  add_end(0);
  double end = 0;
  std::size_t begin_layer = has_divided_ends ? 1 : 0;
  const std::size_t end_layer = has_divided_ends ? layers - 1 : layers;
  for (std::size_t chunk = 0; chunk < degrees.blocks.size(); ++chunk) {
    end += degrees.blocks[chunk];
    const bool is_last = chunk + 1 == degrees.blocks.size();
    const std::size_t last = is_last ? end_layer - 1 : results::layer_before(ends, end);
    if (last < begin_layer) throw Unsupported("layers: a stage of no layer");
    add_stages(plan, made.workload, places[chunk % places.size()], begin_layer, last, row);
    begin_layer = last + 1;
  }
  add_end(layers - 1);

  const bool repeats_experts =
      std::ranges::find(row.recompute_modules, module_of_experts) != row.recompute_modules.end();
  for (std::size_t layer = 1; layer + 1 < layers; ++layer) {
    const bool has_experts = made.workload.layers[layer].experts.has_value();
    if (choice.recompute == Recomputation::Full || (repeats_experts && has_experts)) plan.recompute.push_back(layer);
  }
  plan.sync.algorithm = algorithm_of(plan, replicas > 1 && row.zero_stage > 0);
  if (replicas > 1) plan.sync.sharded = sharding_of(row.zero_stage);
  if (why_copies_are_not_divided(plan)) plan.sync.algorithm = Algorithm::Ring;
  if (const auto fault = fault_of_experts(plan)) throw Unsupported("ep: " + *fault);
  return priced(row, std::move(made), std::move(plan), cluster);
}

}  // namespace isobar::cli
