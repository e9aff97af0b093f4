#pragma once

#include "core/costs/cost_model.hpp"
#include "core/order/microbatch_pattern.hpp"
#include "core/order/order.hpp"
#include "core/plan/plan.hpp"

#include <cstddef>
#include <vector>

namespace isobar::allocators {

/// The costs of a plan's replicas, each on a device or on several that divide its layers, under orders by rank: what no
/// order is below, and the formulas of docs/costs.md. Transfers take no time if they are free
/// (Goal::has_free_transfers). A replica takes as long as its slowest shard, and what its shards add up as long as over
/// their slowest link; of the transfers between the shards of two replicas, the quickest counts. Other collectives, and
/// all in a grid of shards, take no time.
class ReplicaCosts {
 public:
  /// O(replicas + layers) time; where neighbouring stages divide the micro-batches in different ways, also in
  /// proportion to them.
  ReplicaCosts(const Plan& plan, const std::vector<Order>& orders, const CostModel& cost);

  /// A time that no order of the same work on the same devices is below. A micro-batch takes the quickest way there
  /// and back while the busiest lane works on the others of its replica. A device begins when its first input can be
  /// there, computes all that it has, and after its last backward pass a gradient travels back to the first stage. What
  /// shards add up after forwards follows each other, and so does what they add up after backwards.
  Seconds least_step() const;
  /// What the busiest device computes in a step: no step is shorter, whatever it shares with those before and after.
  Seconds busiest_device() const;

  /// The formulas, for devices in place of stages: the bottleneck is what a device takes per micro-batch of the step,
  /// and sums are over the replicas that take the first micro-batch.
  Predicted formulas() const;

 private:
  /// Transfers between a replica and one of the next stage.
  struct Way {
    std::size_t to = 0;       // index of the other replica
    double microbatches = 0;  // of a step, over this way
    TransferTimes output;     // there
    TransferTimes gradient;   // back
  };
  /// Times of a device for one micro-batch.
  struct Times {
    Seconds forward;
    Seconds backward;
    Seconds weights;  // the part of the backward pass that no other stage waits for

    Seconds compute() const { return forward + backward; }
    Seconds input_gradient() const { return backward - weights; }
  };
  struct Shard {
    std::size_t rank = 0;
    std::size_t device = 0;
    Times times;
  };
  /// Times for one micro-batch: of the slowest shard, except for `weights`, of the quickest. In a grid all but
  /// `slowest` are of the quickest.
  struct Replica {
    std::size_t stage = 0;
    double microbatches = 0;  // of a step
    std::vector<Shard> shards;
    Seconds forward;
    Seconds backward;
    Seconds input_gradient;
    Seconds weights;
    Seconds slowest;             // forward and backward
    TransferTimes input;         // of a replica of the first stage
    Seconds output_sum;          // over its shards, after each forward
    Seconds input_gradient_sum;  // after each backward
    std::vector<Way> ways;
  };
  /// The least times before, between and after the passes of a replica for one micro-batch.
  struct Detour {
    Seconds there;  // until its forward can begin
    Seconds round;  // from the end of its forward until its backward can begin
    Seconds back;   // from the end of its backward until that of the first stage ends
  };

  static void add_sums(const Stage& stage, Algorithm of_replicas, Replica& replica, const CostModel& cost);
  void add_ways(const Plan& plan, const std::vector<MicrobatchPattern>& patterns, const CostModel& cost);
  std::vector<Detour> detours() const;
  Seconds counted(Seconds time) const { return goal_.has_free_transfers() ? Seconds(0) : time; }

  Goal goal_;
  std::size_t ranks_ = 0;
  std::vector<Replica> replicas_;  // by stage and replica
  std::vector<std::size_t> of_first_microbatch_;
};

}  // namespace isobar::allocators
