#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/program/program.hpp"
#include "core/steps/step_player.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

/// What the checker of played plans finds of the replicas of a plan's stages. Internal to core/check.
namespace isobar {

/// What a device computes for one micro-batch, in seconds.
struct Times {
  double forward = 0;
  double backward = 0;
  double next_backward = 0;  // the part of the backward pass that the stage before waits for, if it is split
  double last_weight = 0;    // the rest of it, if it is split for every micro-batch

  double compute() const { return forward + backward; }
};

/// A shard of a replica.
struct Part {
  std::size_t rank = 0;
  double share = 1;
  std::uint64_t forwards = 0;  // by the program
  bool meets_before = false;   // exchanges data with another device over the cut before its stage
  bool meets_after = false;
  Times times;
  std::array<std::optional<double>, static_cast<std::size_t>(Opcode::Update)> seconds;  // by computation
};

/// A replica of a stage. Its times are those of its slowest shard; in a grid, where not all meet, of its quickest one.
struct Holder : Times {
  double slowest = 0;  // forward and backward of the slowest shard
  std::size_t stage = 0;
  std::uint64_t microbatches = 0;  // that it takes by the plan
  std::vector<Part> parts;
  PlayedTransfer input;    // of the first stage, to the part that has it first
  double forward_sum = 0;  // over the parts, after each forward
  double backward_sum = 0;

  bool is_on(std::size_t rank) const
  {
    return std::any_of(parts.begin(), parts.end(), [rank](const Part& part) { return part.rank == rank; });
  }
};

/// By stage and rank: the holder, and which of its parts.
using HoldersOfStages = std::vector<std::unordered_map<std::size_t, std::pair<std::size_t, std::size_t>>>;

const ShardGrid& grid_of(const Plan& plan, const Holder& holder);

/// Of what crosses a cut, each shard of a grid or of a sequence has one block.
double blocks_of(const Plan& plan, const Holder& holder);

/// The replicas of a plan's stages, in the order of stages and replicas, without times.
std::vector<Holder> holders_of(const Plan& plan);

/// The units of a layer (Split::units) that each part of a holder has outside of grids; all, if it has one part.
std::vector<double> units_of(const Holder& holder, const Layer& layer);

/// What a part of a holder takes for a layer on its device, in seconds.
struct PassTimes {
  double forward = 0;
  double backward = 0;
  double backward_weight = 0;  // of `backward`
};
PassTimes pass_times_of(const Plan& plan, const Holder& holder, const Part& part, const Workload& workload,
                        std::size_t layer, const Device& device);

/// What a shard has of `whole`, which belongs to all units of a layer. Numbers that are multiples of the units are
/// exact, since collectives round up to whole bytes.
double held_part(const Plan& plan, const Holder& holder, const Part& part, const Layer& layer, double whole);

/// The part of a layer that is divided by units, and that a shard has.
double fraction_of(const Plan& plan, const Holder& holder, const Part& part, const Layer& layer);

/// The parameters of a layer that a shard has. Those of a grid have a block each, rounded up; in 2.5d those of each
/// layer of the depth.
double parameters_of(const Plan& plan, const Holder& holder, const Part& part, const Layer& layer);

/// Those of them that are of the layer's experts.
double experts_of(const Plan& plan, const Holder& holder, const Part& part, const Layer& layer);

}  // namespace isobar
