#include "cli/convert/imported_pipeline.hpp"

#include "allocators/registry.hpp"
#include "cli/frameworks/megatron_layout.hpp"
#include "cli/frameworks/model_items.hpp"
#include "cli/planning/planning.hpp"
#include "cli/workload_variants.hpp"
#include "core/check/plan_checker.hpp"
#include "core/compute/as_trained.hpp"
#include "core/compute/prediction_interval.hpp"
#include "core/errors.hpp"
#include "core/plan/replica_exchanges.hpp"
#include "core/text/quantity_text.hpp"
#include "core/text/separated.hpp"
#include "schedules/orders/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace isobar::cli {

namespace {

std::string name_of_letter(char letter)
{
  switch (letter) {
    case 'E':
      return "embedding";
    case 't':
      return "decoder layer";
    case 'm':
      return "layer of multi-token prediction";
    default:
      return "loss";
  }
}

std::vector<ModelItem> required_items(const Workload& workload, const std::string& place)
{
  auto items = items_of(workload);
  if (items.empty()) {
    throw InputError(place,
                     fmt::format("is of a gpt, llama or decoder, and workload {} is none", shown(workload.name)));
  }
  return items;
}

/// The devices of the ranks.
std::vector<std::string> devices_of_ranks(const ImportedPipeline& pipeline, const Cluster& cluster,
                                          const std::string& place)
{
  const std::size_t stages = pipeline.stages.size() / pipeline.chunks;
  const std::size_t needed = stages * pipeline.replicas * pipeline.context.degree * pipeline.shards;
  std::vector<std::string> ranks = pipeline.ranks;
  if (ranks.empty()) {
    for (const auto& device : cluster.devices) ranks.push_back(device.name);
    ranks.resize(std::min(ranks.size(), needed));
  }
  if (ranks.size() != needed) {
    throw InputError(pipeline.ranks.empty() ? place : "--ranks",
                     fmt::format("{}; {} in a pipeline with {} replicas, {} parts of sequences and {} shards need {}",
                                 counted(ranks.size(), "device"), counted(stages, "device"), pipeline.replicas,
                                 pipeline.context.degree, pipeline.shards, needed));
  }
  std::set<std::string> seen;
  for (const auto& name : ranks) {
    if (!cluster.device_index(name)) {
      throw InputError("--ranks", fmt::format("the platform has no device {}", in_quotes(name)));
    }
    if (!seen.insert(name).second) throw InputError("--ranks", fmt::format("{} is there twice", in_quotes(name)));
  }
  return ranks;
}

std::vector<Stage> placed_stages(const ImportedPipeline& pipeline, const Plan& plan, const Cluster& cluster,
                                 const std::vector<std::string>& ranks)
{
  const std::size_t depth = pipeline.stages.size() / pipeline.chunks;
  const std::size_t replicas = pipeline.replicas * pipeline.context.degree;
  const std::size_t width = replicas * pipeline.shards;
  const bool is_each_a_part = pipeline.shards > 1 || has_exchanges(plan);
  std::vector<Stage> stages;
  std::size_t before = ranks.size();
  for (std::size_t stage = 0; stage < pipeline.stages.size(); ++stage) {
    const std::size_t rank =
        pipeline.is_v ? schedules::rank_of_stage(schedules::Folding::V, stage, depth) : stage % depth;
    Stage made;
    for (std::size_t i = 0; i < replicas; ++i) {
      Replica& replica = made.replicas.emplace_back();
      replica.microbatches = replicas == 1 ? 0 : plan.goal.microbatches / replicas;
      for (std::size_t shard = 0; shard < pipeline.shards; ++shard) {
        const auto& name = ranks[rank * width + i * pipeline.shards + shard];
        const Device& device = cluster.devices[cluster.device_index(name).value()];
        Shard& own =
            replica.shards.emplace_back(Shard{.device = name, .share = 1.0 / static_cast<double>(pipeline.shards)});
        if (!device.site.empty()) own.site = device.site;
      }
    }
    if (pipeline.divides_sequences_among_shards && pipeline.shards > 1) {
      made.grid = {ShardGrid::Form::Sequence, pipeline.shards};
    }
    const auto [first, last] = pipeline.stages[stage];
    for (std::size_t begin = first; begin <= last; begin = made.last_layer + 1) {
      made.first_layer = begin;
      made.last_layer = is_each_a_part ? begin : last;
      made.starts_chunk = is_each_a_part && begin == first && rank == before;
      stages.push_back(made);
    }
    before = rank;
  }
  return stages;
}

}  // namespace

std::vector<LayerRange> stages_with_letters(const std::vector<std::string>& letters, const Workload& workload,
                                            const std::string& place)
{
  const auto items = required_items(workload, place);
  std::string written;
  for (const auto& stage : letters) written += stage;
  for (const char letter : layout_letters) {
    const auto found = static_cast<std::size_t>(std::ranges::count(written, letter));
    const auto wanted = static_cast<std::size_t>(std::ranges::count(items, letter, &ModelItem::letter));
    if (found == wanted) continue;
    throw InputError(place, fmt::format("has {} {} ({}); {} has {}", found, letter, name_of_letter(letter),
                                        shown(workload.name), wanted));
  }
  std::vector<LayerRange> stages;
  std::size_t next = 0;
  for (std::size_t stage = 0; stage < letters.size(); ++stage) {
    if (letters[stage].empty()) {
      throw InputError(place, fmt::format("stage {} is empty; a plan's stages have a layer or more", stage));
    }
    const std::size_t first = items[next].first;
    for (const char letter : letters[stage]) {
      if (items[next].letter != letter) {
        throw InputError(
            place, fmt::format("stage {}: {} ({}) where the model has {} ({})", stage, letter, name_of_letter(letter),
                               items[next].letter, name_of_letter(items[next].letter)));
      }
      ++next;
    }
    stages.emplace_back(first, items[next - 1].last);
  }
  return stages;
}

std::vector<LayerRange> stages_with_bounds(std::string_view text, const Workload& workload, const std::string& place)
{
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  std::vector<std::size_t> bounds;
  for (std::string_view number : texts_between(text, ',')) {
    while (number.starts_with(' ')) number.remove_prefix(1);
    while (number.ends_with(' ')) number.remove_suffix(1);
    const auto bound = count_from_text(number);
    if (!bound)
      throw InputError(place, fmt::format("{} is no bound; write numbers such as 0,5,9,14", in_quotes(number)));
    bounds.push_back(*bound);
  }
  auto items = items_of(workload);
  if (items.empty()) {
    for (std::size_t layer = 0; layer < workload.layers.size(); ++layer) items.push_back({'t', layer, layer});
  }
  if (bounds.size() < 2 || bounds.front() != 0 || bounds.back() != items.size()) {
    throw InputError(place, fmt::format("{} to {}; those of {} are 0 to {}", bounds.front(), bounds.back(),
                                        shown(workload.name), items.size()));
  }
  std::vector<LayerRange> stages;
  for (std::size_t i = 1; i < bounds.size(); ++i) {
    if (bounds[i] <= bounds[i - 1]) {
      throw InputError(place, fmt::format("{} follows {}; a stage has a layer or more", bounds[i], bounds[i - 1]));
    }
    stages.emplace_back(items[bounds[i - 1]].first, items[bounds[i] - 1].last);
  }
  return stages;
}

void set_orders(std::vector<Order> orders, const schedules::PipelineShape& shape, ImportedPipeline& pipeline)
{
  for (const auto& schedule : schedules::schedules()) {
    if (schedule.takes_orders) continue;
    ScheduleChoice choice{std::string(schedule.name)};
    if (schedule.takes("chunks")) choice.numbers["chunks"] = {pipeline.chunks};
    try {
      if (!have_same_tasks(schedule.orders(shape, choice), orders)) continue;
    } catch (const InputError&) {  // stages that do not lie as it needs
      continue;
    }
    pipeline.schedule = choice;
    return;
  }
  pipeline.schedule = {"listed"};
  pipeline.orders = std::move(orders);
}

Plan plan_of_import(const ImportedPipeline& pipeline, Inputs& inputs, const std::string& place)
{
  if (pipeline.stages.size() % pipeline.chunks != 0) {
    throw InputError(place, fmt::format("{} do not make {} of each device", counted(pipeline.stages.size(), "stage"),
                                        pipeline.chunks));
  }
  if (pipeline.microbatches % pipeline.replicas != 0) {
    throw InputError(place,
                     fmt::format("{} for {}, which take as many", counted(pipeline.microbatches, "micro-batch", "es"),
                                 counted(pipeline.replicas, "replica")));
  }
  inputs.workload = in_parts(inputs, inputs.workload, pipeline.context, pipeline.shards, "--context");
  inputs.workload = with_divided_experts(inputs, inputs.workload, pipeline.experts, pipeline.shards, "--experts");
  const Cluster& cluster = inputs.platform.cluster();
  Plan plan;
  plan.allocator = "imported";
  plan.goal = Goal::with_defaults(Objective::Step);
  plan.goal.schedule = pipeline.schedule;
  plan.goal.microbatches = pipeline.microbatches * pipeline.context.degree;
  plan.context = pipeline.context;
  plan.experts = pipeline.experts;
  plan.recompute = inputs.workload.recompute;
  plan.data_server = cluster.data_server;
  const auto ranks = devices_of_ranks(pipeline, cluster, place);
  const std::size_t width = ranks.size() * pipeline.chunks / pipeline.stages.size();
  for (std::size_t rank = 0; rank < pipeline.orders.size(); ++rank) {
    plan.goal.schedule.orders[ranks[rank * width]] = pipeline.orders[rank];
  }
  plan.stages = placed_stages(pipeline, plan, cluster, ranks);
  if (pipeline.replicas * pipeline.context.degree > 1) plan.sync.sharded = pipeline.sharded;
  record_inputs(plan, inputs, inputs.workload.micro_batch);
  compute::take_system(plan, inputs.workload);
  const auto refuse = [&](const std::string& fault) { throw InputError(place, fault); };
  if (plan.sync.sharded > compute::most_divided(inputs.workload)) {
    refuse(fmt::format("replicas divide {}; {} divides at most {}", name_of(plan.sync.sharded),
                       inputs.workload.framework, name_of(compute::most_divided(inputs.workload))));
  }
  if (const auto fault = fault_of_context(plan)) refuse(*fault);
  if (const auto fault = fault_of_experts(plan)) refuse(*fault);
  if (const auto fault = fault_of_overlap(plan)) refuse(*fault);
  if (!is_chain(plan)) {  // whose claims come with its faults; its stages are sound
    const auto faults = faults_of(plan, inputs.workload, cluster);
    if (!faults.empty()) refuse(faults.front());
  }
  Plan priced = allocators::priced_for(plan, inputs.workload, cluster);
  record_inputs(priced, inputs, inputs.workload.micro_batch);
  if (priced.predicted) {
    const Seconds step = priced.predicted->step_time;
    if (const auto basis = basis_of_step(inputs, priced, step))
      priced.predicted->interval = compute::interval_of(*basis, step);
  }
  return priced;
}

}  // namespace isobar::cli
