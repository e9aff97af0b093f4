#pragma once

#include "allocators/allocator.hpp"
#include "allocators/hybrid/pipelines.hpp"
#include "core/costs/cost_model.hpp"
#include "core/units.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace isobar::allocators {

/// Gradients are added up in float32.
inline constexpr double bytes_of_a_gradient = 4;

/// Devices that a search does not tell apart: they have the same type, speed and memory and lie in one site or, where
/// the platform gives no sites, have the same paths to all others.
struct DeviceKind {
  std::vector<std::size_t> devices;  ///< in the order of the file
  /// Neighbours in that order which are joined by the best path of the kind, such as the GPUs of a node; 1 if no two
  /// devices are joined better than others.
  std::size_t node = 1;
};

/// The kinds of a cluster's devices, in the order of their first one. With sites O(devices x kinds); without
/// O(devices² x kinds).
std::vector<DeviceKind> kinds_of(const CostModel& cost);

/// A stage of a shape: neighbouring layers of the chain on some devices of one kind.
struct ShapeStage {
  std::size_t kind = 0;
  std::size_t tensor = 1;  ///< devices, which divide each layer
  std::size_t first_layer = 0;
  std::size_t last_layer = 0;  ///< inclusive

  auto operator<=>(const ShapeStage&) const = default;
};

/// Pipelines that are alike but for their devices.
struct Shape {
  std::size_t copies = 1;
  std::vector<ShapeStage> stages;

  auto operator<=>(const Shape&) const = default;
};

/// The number of copies of all shapes.
std::size_t copies_of(const std::vector<Shape>& shapes);

/// Whether a transfer has its path to itself, as in a prediction, or the copies of a shape send at the same time.
enum class Links { Alone, Shared };

/// The times of one copy of a shape, with nominal rates and the paths between the first devices of each kind.
struct ShapeTimes {
  Seconds alone;                     ///< one micro-batch there and back
  Seconds period;                    ///< each further one, under the goal's schedule
  std::vector<Seconds> backward;     ///< of each stage, for one micro-batch
  std::vector<Seconds> after_stage;  ///< from the end of a stage's last backward to that of the first stage
  /// Into the memory of its devices. Not if layers that share a matrix are divided among other numbers of them.
  bool fits = true;
};

/// What a search expects of shapes.
struct ShapeEstimate {
  Seconds step;
  /// Of each shape's copies; `fewer` of them take one less.
  std::vector<std::uint64_t> microbatches;
  std::vector<std::size_t> fewer;
};

/// Estimates the step of shapes in closed form: quick enough for each move of a search. The gradient sync of a stage's
/// replicas follows its last backward, by a ring or a hierarchical all-reduce, whichever takes less; that of equal
/// pipelines in parts. Replicas divide the optimizer's state where they need it to fit. Neither a bound nor a
/// prediction.
class ShapeCosts {
 public:
  /// `most_tensor`: the largest number of devices that divide a layer. Layers must be the workload's own where it is
  /// more than 1. Keeps references: `problem` must outlive it. O(kinds²) questions to the network.
  ShapeCosts(const HybridProblem& problem, std::size_t most_tensor, Links links);

  const std::vector<DeviceKind>& kinds() const { return kinds_; }
  const CostModel& cost() const { return parts_.front().cost; }
  /// The numbers of devices that can divide a layer, ascending from 1.
  std::vector<std::size_t> tensors() const;
  /// The compute time of layers on a kind's devices for one micro-batch.
  Seconds compute_time(const ShapeStage& stage) const;
  /// Whether a stage fits into its devices, with `stages_behind` stages behind it and `replicas` replicas of each
  /// layer.
  bool fits(const ShapeStage& stage, std::size_t stages_behind, std::size_t replicas) const
  {
    return need(stage, stages_behind, replicas) <= memory(stage.kind);
  }

  /// The times of shapes that together are a plan. O(stages²) for each.
  std::vector<ShapeTimes> times(const std::vector<Shape>& shapes) const;
  /// The best shares of the step's micro-batches, and the step; none if there are too few of these for all copies.
  /// `times` are of the shapes. O(shapes x cuts).
  std::optional<ShapeEstimate> estimate(const std::vector<Shape>& shapes, const std::vector<ShapeTimes>& times) const;

 private:
  /// The layers as one of several shards computes and holds them.
  struct Part {
    std::unique_ptr<Workload> workload;  // null: the chain's own
    CostModel cost;
    std::vector<double> parameters;          // prefix sums
    std::vector<std::vector<Seconds>> sums;  // by kind, prefix sums: to add up what the shards make of a micro-batch
  };
  /// A link of a path between two kinds, which others of their devices also use.
  struct SharedLink {
    BytesPerSecond bandwidth;
    double users = 0;  // devices that send or receive over it
  };
  struct KindPath {
    Path alone;
    std::vector<SharedLink> links;
  };
  struct Hop {
    Seconds there;
    Seconds back;
    Seconds busiest;  // lane
  };

  void add_part(std::size_t shards, const Workload& workload, std::unique_ptr<Workload> own);
  const Part& part(std::size_t shards) const { return parts_[static_cast<std::size_t>(std::bit_width(shards)) - 1]; }
  KindPath path_between(const DeviceKind& from, const DeviceKind& to) const;
  /// The path on which that many transfers between the kinds take place at a time.
  Path path(std::size_t from_kind, std::size_t to_kind, std::size_t transfers) const;
  /// Pipelines with a transfer from one kind to another, by the two kinds, ascending.
  using Transfers = std::vector<std::pair<std::pair<std::size_t, std::size_t>, std::size_t>>;
  Transfers transfers_of(const std::vector<Shape>& shapes) const;
  Hop hop(const ShapeStage& from, const ShapeStage& to, const Transfers& transfers) const;
  /// A layer, and an earlier one whose matrix it uses, too.
  struct Tie {
    std::size_t layer = 0;
    std::size_t owner = 0;
  };
  /// What all shapes of a plan have in common.
  struct Surroundings {
    std::size_t replicas = 0;
    Transfers transfers;
  };
  ShapeTimes times(const Shape& shape, const Surroundings& all) const;
  /// Whether stages with layers that use one matrix have as many shards each.
  bool divides_ties_alike(const Shape& shape) const;
  Bytes need(const ShapeStage& stage, std::size_t stages_behind, std::size_t replicas) const;
  Bytes memory(std::size_t kind) const { return problem_.cluster.devices[kinds_[kind].devices.front()].memory; }
  std::uint64_t in_flight(std::size_t stages_behind) const;
  /// Replicas of layers on the devices of a kind.
  struct KindReplicas {
    std::size_t count = 0;
    std::size_t shapes = 0;  // that they are of
  };
  Seconds sync_time(std::size_t first, std::size_t last, const std::vector<KindReplicas>& replicas_of_kind,
                    std::size_t shards, std::size_t syncs) const;

  const HybridProblem& problem_;
  Links links_;
  ParameterBytes bytes_;
  std::optional<ChainSchedule> schedule_;
  bool keeps_few_;  // micro-batches on their way
  std::vector<Tie> ties_;
  std::vector<DeviceKind> kinds_;
  std::vector<Part> parts_;            // of 1, 2, 4, … shards
  std::vector<KindPath> paths_;        // from kind to kind
  std::vector<Path> inside_nodes_;     // by kind
  std::vector<TransferTimes> inputs_;  // by kind
  std::vector<std::size_t> sites_;     // by kind, from 0
};

}  // namespace isobar::allocators
