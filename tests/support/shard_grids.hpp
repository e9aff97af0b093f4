#pragma once

#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/plan/shard_grid.hpp"
#include "tests/support/shards.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

/// Stages whose layers a grid of devices divides.
namespace isobar::testing_support {

/// A gpt of two blocks that grids of 2 x 2 and of 3 x 3 can divide, and such grids with a depth of up to 3.
inline Workload gpt_for_grids(const std::string& more = "")
{
  return workload_from_text(
      "model: gpt\nlayers: 2\nhidden: 72\nheads: 12\nintermediate: 288\nvocabulary: 96\nmicro_batch: 36\nsequence: 4\n"
      "optimizer: adam\nunit: operator\n" +
          more,
      "x.yaml");
}

inline std::vector<ShardGrid> small_grids()
{
  using Form = ShardGrid::Form;
  return {{Form::TwoD, 2},
          {Form::TwoD, 3},
          {Form::TwoAndAHalfD, 2, 2},
          {Form::TwoAndAHalfD, 2, 3},
          {Form::TwoAndAHalfD, 3, 2},
          {Form::ThreeD, 2, 2},
          {Form::ThreeD, 3, 3}};
}

/// Such shards in a row, and grids.
inline std::vector<ShardGrid> small_rows_and_grids()
{
  auto all = small_grids();
  for (const std::size_t side : {2U, 4U}) all.push_back({ShardGrid::Form::Sequence, side});
  return all;
}

/// A stage of these layers whose replicas take so many micro-batches each, on the next of the devices, which it
/// removes.
inline Stage stage_of_grids(std::size_t first_layer, std::size_t last_layer, const ShardGrid& grid,
                            const std::vector<std::uint64_t>& microbatches, std::vector<std::string>& devices)
{
  Stage stage{first_layer, last_layer, {}, grid};
  for (const std::uint64_t count : microbatches) {
    Replica& replica = stage.replicas.emplace_back(Replica{count, {}});
    for (std::size_t i = 0; i < grid.blocks(); ++i) {
      replica.shards.push_back({devices.back(), 1 / static_cast<double>(grid.blocks())});
      devices.pop_back();
    }
  }
  return stage;
}

}  // namespace isobar::testing_support
