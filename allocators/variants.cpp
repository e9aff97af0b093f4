#include "allocators/variants.hpp"

#include "core/errors.hpp"
#include "core/model/sharding.hpp"
#include "core/plan/replica_exchanges.hpp"

#include <cstddef>
#include <optional>
#include <string>

namespace isobar::allocators {

namespace {

std::vector<ContextParallelism> contexts_of(const Workload& workload, const Cluster& cluster)
{
  std::vector<ContextParallelism> contexts = {workload.context};
  if (workload.context.divides()) return contexts;
  for (std::size_t degree = 2; degree <= cluster.devices.size(); ++degree) {
    for (const auto exchange : {ContextExchange::Ring, ContextExchange::AllGather, ContextExchange::AllToAll}) {
      const ContextParallelism context{degree, exchange};
      if (!why_not_divided(workload, context, 1)) contexts.push_back(context);
    }
  }
  return contexts;
}

std::vector<ExpertParallelism> experts_of(const Workload& workload, const Cluster& cluster, std::uint64_t microbatches)
{
  std::vector<ExpertParallelism> all = {workload.experts};
  if (workload.experts.divides()) return all;
  for (std::size_t degree = 2; degree <= cluster.devices.size() && degree <= microbatches; ++degree) {
    const ExpertParallelism experts{degree};
    if (microbatches % degree == 0 && !why_not_divided(workload, experts, 1)) all.push_back(experts);
  }
  return all;
}

/// Leaves those whose passes can overlap. @throws InputError if there are none.
void keep_overlapping(std::vector<Variant>& variants, const Workload& workload, const Goal& goal)
{
  if (!overlaps_experts(goal.schedule)) return;
  const Framework* const software = workload.framework.empty() ? nullptr : &framework_of(workload);
  std::string last_fault;
  std::erase_if(variants, [&](const Variant& variant) {
    const auto& recompute = variant.recomputes_all ? all_recomputed(workload) : workload.recompute;
    const auto fault = fault_of_overlap(goal.schedule, variant.experts, recompute, software);
    if (fault && !variant.recomputes_all) last_fault = *fault;
    return fault.has_value();
  });
  if (variants.empty()) throw InputError("schedule", last_fault);
}

}  // namespace

std::vector<Variant> variants_of(const Allocator* allocator, const Workload& workload, const Cluster& cluster,
                                 const Goal& goal, const SearchLimits& limits)
{
  const bool is_step = goal.objective == Objective::Step;
  const bool any_context = is_step && allocator != nullptr && allocator->takes_context && limits.grid.any_context;
  const bool any_experts = is_step && allocator != nullptr && allocator->takes_experts && !limits.grid.experts;
  const auto contexts = any_context ? contexts_of(workload, cluster) : std::vector{workload.context};
  std::vector<Variant> variants;
  for (const bool recomputes_all : {false, true}) {
    if (recomputes_all && !limits.chooses_recomputation) continue;
    for (const auto& context : contexts) {
      const std::uint64_t parts = goal.microbatches * (context == workload.context ? 1 : context.degree);
      if (parts > most_microbatches_by_recurrence) continue;
      const auto all_experts = any_experts ? experts_of(workload, cluster, parts) : std::vector{workload.experts};
      for (const auto& experts : all_experts) variants.push_back({context, experts, recomputes_all, parts});
    }
  }
  keep_overlapping(variants, workload, goal);
  return variants;
}

Workload as_variant(const Workload& workload, const Variant& variant)
{
  Workload result = variant.recomputes_all ? with_recomputation(workload, all_recomputed(workload)) : workload;
  if (variant.context != workload.context) result = with_context(result, variant.context);
  if (variant.experts != workload.experts) result = with_experts(result, variant.experts);
  return result;
}

}  // namespace isobar::allocators
