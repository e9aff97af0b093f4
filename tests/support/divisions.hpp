#pragma once

#include "core/model/workload.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/plan/plan.hpp"
#include "core/spmd/division.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

/// Small mixtures of experts, and plans whose devices divide their operators.
namespace isobar::testing_support {

/// Two layers, the second with experts; `trunk` and what it needs are in `more`.
inline Workload small_moe(const std::string& more)
{
  return workload_from_text(
      "model: moe\nlayers: 2\nhidden: 12\nheads: 6\nintermediate: 24\nexperts: 6\nmicro_batch: 12\n"
      "optimizer: adam\n" +
          more,
      "x.yaml");
}

/// One of each trunk, by operators.
inline std::vector<Workload> moes_by_operators(const std::string& more = "")
{
  const std::string unit = "unit: operator\n" + more;
  return {small_moe("trunk: plain\nsequence: 12\ntop_k: 1\n" + unit),
          small_moe("trunk: bert\nsequence: 12\nvocabulary: 24\ntop_k: 2\n" + unit),
          small_moe("trunk: vit\nimage: 8\npatch: 4\nclasses: 12\ntop_k: 1\ncapacity_factor: 2\n" + unit)};
}

/// A random division of a graph whose groups but the first begin with these operators; none if the choices lead to an
/// end.
inline std::optional<spmd::Division> try_division(const spmd::OperatorGraph& graph, spmd::Rules rules,
                                                  std::mt19937_64& random, const std::vector<std::size_t>& cuts = {})
{
  spmd::Division division;
  std::vector<spmd::Form> made(graph.tensors.size());
  std::map<std::pair<std::size_t, std::size_t>, spmd::Form> reformed;  // by tensor and group
  const auto readers = graph.readers();
  const auto group_of = [&](std::size_t node) {
    return static_cast<std::size_t>(std::upper_bound(cuts.begin(), cuts.end(), node) - cuts.begin());
  };
  for (std::size_t i = 0; i < graph.operators.size(); ++i) {
    const auto& node = graph.operators[i];
    const bool begins_group = std::find(cuts.begin(), cuts.end(), i) != cuts.end();
    if (i == 0 || begins_group || random() % 4 == 0) division.parts.push_back(i);
    if (begins_group) division.groups.push_back(division.parts.size() - 1);
    const auto reads = [&](std::size_t tensor, spmd::Form needed) {
      const auto& producer = graph.tensors[tensor].producer;
      const bool is_source = spmd::is_source(graph.operators[producer].kind);
      const std::size_t passed = group_of(i) - group_of(producer);
      if (passed > 0 && graph.is_parameter(tensor)) return false;
      if (passed > 0 && !is_source && (passed > 1 || made[tensor].kind != spmd::Form::Kind::Gather)) return false;
      if (made[tensor] == needed) return true;
      if (const auto found = reformed.find({tensor, group_of(i)}); found != reformed.end())
        return found->second == needed;
      const bool exists = producer < division.parts.back() || is_source;
      return exists && spmd::reform_between(made[tensor], needed, rules) != nullptr;
    };
    const auto passes = [&](const spmd::Signature& signature) {
      for (std::size_t k = 0; k < node.outputs.size(); ++k) {
        const auto& all = readers[node.outputs[k]];
        const bool leaves = !spmd::is_source(node.kind) && !all.empty() && group_of(all.back()) > group_of(i);
        if (leaves && signature.outputs[k].kind != spmd::Form::Kind::Gather) return false;
      }
      return true;
    };
    std::vector<spmd::Signature> usable;
    for (int attempt = 0; attempt < 2 && usable.empty(); ++attempt) {
      if (attempt == 1) {
        if (division.parts.back() == i) return std::nullopt;
        division.parts.push_back(i);
      }
      for (const auto& signature : spmd::signatures_of(graph, node, rules)) {
        bool fits = passes(signature);
        for (std::size_t k = 0; k < node.inputs.size() && fits; ++k) fits = reads(node.inputs[k], signature.inputs[k]);
        if (fits) usable.push_back(signature);
      }
    }
    if (usable.empty()) return std::nullopt;
    const auto& chosen = usable[random() % usable.size()];
    for (std::size_t k = 0; k < node.inputs.size(); ++k) {
      if (made[node.inputs[k]] != chosen.inputs[k]) reformed[{node.inputs[k], group_of(i)}] = chosen.inputs[k];
    }
    for (std::size_t k = 0; k < node.outputs.size(); ++k) made[node.outputs[k]] = chosen.outputs[k];
    division.signatures.push_back(chosen);
  }
  if (!spmd::faults_of(graph, division, rules).empty()) return std::nullopt;  // of groups between which nothing passes
  return division;
}

/// A random division into so many groups.
inline spmd::Division random_division(const spmd::OperatorGraph& graph, spmd::Rules rules, std::mt19937_64& random,
                                      std::size_t groups = 1)
{
  while (true) {
    std::set<std::size_t> cuts;
    while (cuts.size() + 1 < groups) cuts.insert(1 + random() % (graph.operators.size() - 1));
    if (auto division = try_division(graph, rules, random, {cuts.begin(), cuts.end()})) return std::move(*division);
  }
}

inline std::vector<double> equal_shares(std::size_t devices)
{
  return std::vector<double>(devices, 1 / static_cast<double>(devices));
}

/// Replicas of devices with these shares, named from `first` on: d0, d1, …
inline std::vector<std::vector<Shard>> replicas_of(std::size_t replicas, const std::vector<double>& shares,
                                                   std::size_t first = 0)
{
  std::vector<std::vector<Shard>> devices(replicas);
  for (auto& shards : devices) {
    for (const double share : shares) shards.push_back({fmt::format("d{}", first++), share});
  }
  return devices;
}

/// A plan in which groups of replicas of devices with these shares, d0, d1, …, divide the operators.
inline Plan plan_of_groups(const spmd::OperatorGraph& graph, const spmd::Division& division,
                           const std::vector<std::vector<double>>& shares, const std::string& schedule,
                           std::uint64_t microbatches, std::size_t replicas = 1)
{
  Plan plan;
  plan.allocator = "spmd";
  plan.goal.schedule = {.name = schedule};
  plan.goal.microbatches = microbatches;
  std::vector<GroupDevices> groups;
  std::size_t devices = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    groups.push_back({division.end_of_group(i), replicas_of(replicas, shares[i], devices)});
    devices += replicas * shares[i].size();
  }
  plan.stages = stages_of(graph, division, groups);
  return plan;
}

/// The same, of one group.
inline Plan plan_of(const spmd::OperatorGraph& graph, const spmd::Division& division, const std::vector<double>& shares,
                    const std::string& schedule, std::uint64_t microbatches, std::size_t replicas = 1)
{
  return plan_of_groups(graph, division, {shares}, schedule, microbatches, replicas);
}

/// Joins the gradients of a plan's replicated parameters to random buckets; to none if it has no such parameters.
inline void add_random_buckets(Plan& plan, const Workload& workload, std::mt19937_64& random)
{
  const OperatorPlan divided = operator_plan_of(plan, workload);
  const auto order = replicas_in_backward(divided.graph, divided.reforms);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::size_t parameter = divided.graph.tensors[divided.reforms[order[i]].tensor].producer;
    const bool is_last = i + 1 == order.size() || divided.group_of(divided.reforms[order[i]].part) !=
                                                      divided.group_of(divided.reforms[order[i + 1]].part);
    if (is_last || random() % 3 == 0) plan.sync.bucket_ends.push_back(parameter);
  }
}

}  // namespace isobar::testing_support
