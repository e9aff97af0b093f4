#pragma once

#include "core/order/microbatch_pattern.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/plan.hpp"
#include "core/plan/sync_groups.hpp"
#include "exec/stage/stage_model.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace isobar::exec {

/// A stage of a rank, of which it has one shard of one replica.
struct RankStage {
  PlacedShard placed;
  std::size_t first_layer = 0;
  std::size_t last_layer = 0;
  Residence residence;
  std::unique_ptr<StageModel> model;
  std::vector<SyncGroup> sync_groups;  ///< none if the replicas are divided alike
};

/// The stages of a rank by index, in the order of the plan, and where all shards of all stages are.
struct RankStages {
  RankStages(const Plan& plan, std::size_t rank);

  StageModel& model(std::uint32_t stage) const { return *own.at(stage).model; }
  /// The stage, of those that have models, with a layer; null if there is none.
  StageModel* model_of_layer(std::size_t layer) const;
  bool is_last(std::uint32_t stage) const { return stage + 1 == ranks.size(); }
  /// The ranks of the shards of this rank's replica.
  const std::vector<std::size_t>& shards(std::uint32_t stage) const
  {
    return ranks[stage][own.at(stage).placed.replica];
  }
  bool is_divided(std::uint32_t stage) const { return shards(stage).size() > 1; }

  std::map<std::uint32_t, RankStage> own;  ///< by stage, without models at first; none on a data server
  std::vector<std::vector<std::vector<std::size_t>>> ranks;  ///< by stage, replica and shard
  std::vector<MicrobatchPattern> patterns;  ///< by stage; none if each replica takes samples of all micro-batches
};

}  // namespace isobar::exec
