#include "cli/workload_variants.hpp"

#include "core/model/routing.hpp"
#include "core/text/quantity_text.hpp"
#include "core/text/separated.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <system_error>
#include <variant>

namespace isobar::cli {

namespace {

void require_layer(const std::string& where, std::size_t layer, const Workload& workload)
{
  if (layer < workload.layers.size()) return;
  throw InputError(
      where, fmt::format("layer {}; workload {} has layers 0 to {}", layer, workload.name, workload.layers.size() - 1));
}

/// "none", "all", "inner", or layers and ranges of them in order, such as "3-10,12".
std::vector<std::size_t> layers_from(const RecomputedLayers& recomputed, const Workload& workload)
{
  const std::string& text = recomputed.layers;
  std::vector<std::size_t> layers;
  if (text == "none") return layers;
  if (text == "all") return all_recomputed(workload);
  if (text == "inner") return inner_layers(workload);
  const auto ranges = ranges_from_text(text);
  if (!ranges) {
    throw InputError(
        recomputed.source,
        fmt::format("{} is neither none, all, inner, nor layers in order, such as 3-10,12", in_quotes(text)));
  }
  require_layer(recomputed.source, ranges->back().last, workload);
  for (const auto& [first, last] : *ranges) {
    for (std::size_t layer = first; layer <= last; ++layer) layers.push_back(layer);
  }
  return layers;
}

}  // namespace

Workload at_micro_batch(const Inputs& inputs, std::uint64_t micro_batch, const std::string& where)
{
  const Workload& workload = inputs.workload;
  if (micro_batch == workload.micro_batch) return workload;
  if (std::holds_alternative<std::monostate>(workload.model)) {
    throw InputError(where, fmt::format("workload {} lists its layers, for micro-batches of {}; other sizes "
                                        "need a generator, such as model: gpt",
                                        workload.name, counted(workload.micro_batch, "sample")));
  }
  if (inputs.has_measured_layers) {
    throw InputError(where, fmt::format("{} was measured with micro-batches of {}; leave --profile out",
                                        inputs.profile_fingerprint->name, counted(workload.micro_batch, "sample")));
  }
  if (const auto routing = routing_of(workload)) {
    const auto fault = fault_of_routing(workload, *routing, micro_batch);
    if (fault) throw InputError(where, *fault);
  }
  return with_micro_batch(workload, micro_batch);
}

Workload in_parts(const Inputs& inputs, Workload workload, const ContextParallelism& context, std::size_t shards,
                  const std::string& where)
{
  if (context == workload.context) return workload;
  if (inputs.has_measured_layers) {
    throw InputError(where, fmt::format("{} was measured with whole sequences; leave --profile out",
                                        inputs.profile_fingerprint->name));
  }
  if (const auto why_not = why_not_divided(workload, context, shards)) throw InputError(where, *why_not);
  return with_context(workload, context);
}

Workload with_divided_experts(const Inputs& inputs, Workload workload, const ExpertParallelism& experts,
                              std::size_t shards, const std::string& where)
{
  if (experts == workload.experts) return workload;
  if (inputs.has_measured_layers) {
    throw InputError(
        where, fmt::format("{} was measured with all experts; leave --profile out", inputs.profile_fingerprint->name));
  }
  if (const auto why_not = why_not_divided(workload, experts, shards)) throw InputError(where, *why_not);
  return with_experts(workload, experts);
}

namespace {

/// The workload with the micro-batch and the routing of a plan.
Workload at_planned_size(const Inputs& inputs, const Plan& plan, const std::string& place)
{
  const Workload& workload = inputs.workload;
  const std::uint64_t micro_batch = plan.micro_batch.value_or(workload.micro_batch);
  if (!plan.routing || plan.routing == routing_of(workload))
    return at_micro_batch(inputs, micro_batch, place + "micro_batch");
  const std::string where = place + "routing";
  if (inputs.has_measured_layers) {
    throw InputError(where, fmt::format("{} was measured with that of the workload; leave --profile out",
                                        inputs.profile_fingerprint->name));
  }
  if (const auto fault = fault_of_routing(workload, *plan.routing, micro_batch)) throw InputError(where, *fault);
  return with_routing(workload, *plan.routing, micro_batch);
}

}  // namespace

Workload as_planned(const Inputs& inputs, const Plan& plan, const std::string& place)
{
  const std::size_t shards = plan.stages.empty() ? 1 : plan.stages.front().replicas.front().shards.size();
  auto workload = at_planned_size(inputs, plan, place);
  if (workload.recompute != plan.recompute) recompute(workload, plan.recompute, place + "recompute");
  workload = in_parts(inputs, std::move(workload), plan.context, shards, place + "context");
  return with_divided_experts(inputs, std::move(workload), plan.experts, shards, place + "experts");
}

std::optional<std::string> note_of_routing(const Plan& plan, const Workload& workload)
{
  const auto own = routing_of(workload);
  if (!own || !plan.routing || *own == *plan.routing) return std::nullopt;
  return fmt::format("{}: experts take {}; by the workload {}, so that other tokens are dropped", plan.allocator,
                     text_of(*plan.routing, workload), text_of(*own, workload));
}

void recompute(Workload& workload, const std::vector<std::size_t>& layers, const std::string& where)
{
  if (layers.empty()) return;
  if (workload.memory_model == MemoryModel::Sky) {
    throw InputError(where, "memory_model sky does not model recomputation; write memory_model: training");
  }
  require_layer(where, layers.back(), workload);
  workload = with_recomputation(workload, layers);
}

void recompute_layers(Workload& workload, const RecomputedLayers& recomputed)
{
  recompute(workload, layers_from(recomputed, workload), recomputed.source);
}

}  // namespace isobar::cli
