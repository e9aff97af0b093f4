#pragma once

#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace isobar::testing_support {

/// A llama of 2 blocks with 16 heads of 64 numbers and 8 of keys and values, without times.
inline Workload small_llama(const std::string& more = "")
{
  return workload_from_text(
      "model: llama\nlayers: 2\nhidden: 1024\nheads: 16\nkv_heads: 8\nintermediate: 2816\nvocabulary: 4096\n"
      "sequence: 4096\nmicro_batch: 2\ndtype: bf16\noptimizer: adam\nunit: operator\ncompute: operators\n"
      "framework: megatron-core-0.8\n" +
          more,
      "llama.yaml");
}

/// The shape of a plan whose replicas divide sequences, experts or both.
struct ContextShape {
  std::size_t stages = 1;  ///< of the pipeline
  std::size_t groups = 1;
  std::size_t shards = 1;
  ContextParallelism context = {2, ContextExchange::Ring};
  ShardGrid::Form form = ShardGrid::Form::OneD;
  ExpertParallelism experts = {};
  bool is_v = false;  ///< each group has two stages: the chain goes down the groups and comes back

  std::size_t devices() const { return stages * groups * context.degree * shards; }
};

/// A plan of that shape for `microbatches` micro-batches of each group, on the devices with these names.
inline Plan plan_in_parts(const ContextShape& shape, std::size_t layers, std::uint64_t microbatches,
                          const std::vector<std::string>& names)
{
  Plan plan;
  plan.context = shape.context;
  plan.experts = shape.experts;
  const std::size_t replicas = shape.groups * shape.context.degree;
  plan.goal.microbatches = microbatches * replicas;
  std::size_t next = 0;
  std::vector<Stage> of_group;
  for (std::size_t i = 0; i < shape.stages; ++i) {
    Stage stage;
    if (shape.form == ShardGrid::Form::Sequence) stage.grid = {shape.form, shape.shards};
    for (std::size_t replica = 0; replica < replicas; ++replica) {
      Replica& own = stage.replicas.emplace_back();
      own.microbatches = microbatches;
      for (std::size_t shard = 0; shard < shape.shards; ++shard) {
        own.shards.push_back({names.at(next++), 1 / static_cast<double>(shape.shards)});
      }
    }
    of_group.push_back(std::move(stage));
  }
  const std::size_t chunks = shape.is_v ? 2 * shape.stages : shape.stages;
  for (std::size_t i = 0; i < chunks; ++i) {
    const std::size_t first = layers * i / chunks;
    for (std::size_t layer = first; layer < layers * (i + 1) / chunks; ++layer) {
      plan.stages.push_back(of_group[i < shape.stages ? i : chunks - 1 - i]);
      plan.stages.back().first_layer = plan.stages.back().last_layer = layer;
    }
    plan.stages[first].starts_chunk = shape.is_v && i == shape.stages;
  }
  return plan;
}

/// The devices d0, d1, … of a shape.
inline std::vector<std::string> names_for(const ContextShape& shape)
{
  std::vector<std::string> names;
  for (std::size_t i = 0; i < shape.devices(); ++i) names.push_back(fmt::format("d{}", i));
  return names;
}

}  // namespace isobar::testing_support
