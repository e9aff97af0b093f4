#pragma once

#include "core/order/order.hpp"
#include "schedules/orders/schedule.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace isobar::schedules {

/// Stages folded onto devices d0, d1, …, `chunks` on each; where any folding will do, round robin.
inline PipelineShape folded(Folding folding, std::size_t ranks, std::size_t chunks, std::uint64_t microbatches)
{
  PipelineShape shape;
  shape.microbatches = microbatches;
  for (std::size_t rank = 0; rank < ranks; ++rank) shape.devices.push_back("d" + std::to_string(rank));
  for (std::size_t stage = 0; stage < chunks * ranks; ++stage) {
    shape.rank_of_stage.push_back(rank_of_stage(folding == Folding::Any ? Folding::RoundRobin : folding, stage, ranks));
  }
  return shape;
}

/// The times of a stage, and those of its transfers to the next stage and back, if that is on another device.
struct PlayedStage {
  double forward = 1;
  double backward = 1;  ///< the whole, or that of the input
  double weight = 1;
  double output = 0;         ///< the delay: from the end of a transfer on its lane until it has arrived
  double gradient = 0;       ///< the same on the way back
  double output_data = 0;    ///< for which a transfer occupies its lane
  double gradient_data = 0;  ///< the same on the way back
};

/// What came of playing orders.
struct Played {
  bool ends = false;
  double makespan = 0;  ///< from the first start to the last end
  double window = 0;    ///< the longest time from a device's first start to its last end
};

/// A lane of transfers: one after the other, each followed by a delay that occupies nothing.
class PlayedLane {
 public:
  /// When a transfer that is ready then has arrived.
  double arrival(double ready, double data, double delay)
  {
    free_ = std::max(free_, ready) + data;
    return free_ + delay;
  }

 private:
  double free_ = 0;
};

/// Plays orders task by task: a task starts when its device is free and its input has arrived.
inline Played play(const PipelineShape& shape, const std::vector<Order>& orders, const std::vector<PlayedStage>& stages)
{
  constexpr double never = std::numeric_limits<double>::infinity();
  const auto parts = stages_by_rank(shape);
  const std::vector<double> no_ends(shape.microbatches, never);
  std::vector<std::vector<double>> forwards(shape.stages(), no_ends);
  std::vector<std::vector<double>> backwards(shape.stages(), no_ends);
  std::vector<std::vector<double>> outputs(shape.stages(), no_ends);    // when the next stage has them
  std::vector<std::vector<double>> gradients(shape.stages(), no_ends);  // of outputs: when the stage has them
  std::vector<PlayedLane> output_lanes(shape.stages());
  std::vector<PlayedLane> gradient_lanes(shape.stages());
  std::vector<std::uint64_t> position(shape.ranks(), 0);
  std::vector<double> free(shape.ranks(), 0);
  std::vector<double> begin(shape.ranks(), never);

  const auto input_of = [&](std::size_t stage, const Task& task) -> double {
    if (task.opcode == Opcode::BackwardWeight) return backwards[stage][task.microbatch];
    if (task.opcode == Opcode::Forward) return stage == 0 ? 0 : outputs[stage - 1][task.microbatch];
    const double own = forwards[stage][task.microbatch];
    return stage + 1 == shape.stages() ? own : std::max(own, gradients[stage][task.microbatch]);
  };
  // Of a transfer between a stage and the next one.
  const auto arrival = [&](std::size_t stage, PlayedLane& lane, double ready, double data, double delay) {
    const bool stays = shape.rank_of_stage[stage] == shape.rank_of_stage[stage + 1];
    return stays ? ready : lane.arrival(ready, data, delay);
  };
  const auto send_output = [&](std::size_t stage, std::uint64_t microbatch) {
    outputs[stage][microbatch] = arrival(stage, output_lanes[stage], forwards[stage][microbatch],
                                         stages[stage].output_data, stages[stage].output);
  };
  const auto send_gradient = [&](std::size_t stage, std::uint64_t microbatch) {
    gradients[stage][microbatch] = arrival(stage, gradient_lanes[stage], backwards[stage + 1][microbatch],
                                           stages[stage].gradient_data, stages[stage].gradient);
  };

  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < shape.ranks(); ++rank) {
      for (; position[rank] < orders[rank].length(); ++position[rank]) {
        const Task task = orders[rank].at(position[rank]);
        const std::size_t stage = parts[rank].at(task.part);
        const double start = std::max(free[rank], input_of(stage, task));
        if (start == never) break;
        begin[rank] = std::min(begin[rank], start);
        const PlayedStage& times = stages[stage];
        free[rank] = start + (task.opcode == Opcode::Forward          ? times.forward
                              : task.opcode == Opcode::BackwardWeight ? times.weight
                                                                      : times.backward);
        if (task.opcode == Opcode::Forward) {
          forwards[stage][task.microbatch] = free[rank];
          if (stage + 1 < shape.stages()) send_output(stage, task.microbatch);
        } else if (task.opcode != Opcode::BackwardWeight) {
          backwards[stage][task.microbatch] = free[rank];
          if (stage > 0) send_gradient(stage - 1, task.microbatch);
        }
        moved = true;
      }
    }
  }

  Played played{true, 0, 0};
  for (std::size_t rank = 0; rank < shape.ranks(); ++rank) {
    played.ends = played.ends && position[rank] == orders[rank].length();
    played.makespan = std::max(played.makespan, free[rank]);
    played.window = std::max(played.window, free[rank] - begin[rank]);
  }
  return played;
}

/// With the same times for all stages.
inline Played play(const PipelineShape& shape, const std::vector<Order>& orders, const PlayedStage& stage = {})
{
  return play(shape, orders, std::vector<PlayedStage>(shape.stages(), stage));
}

// What of orders tests compare

inline std::vector<Task> tasks_of(const Order& order)
{
  std::vector<Task> tasks;
  for (std::uint64_t position = 0; position < order.length(); ++position) tasks.push_back(order.at(position));
  return tasks;
}

inline std::size_t slots_of(const Order& order)
{
  std::size_t slots = 0;
  for (const auto& run : order.runs()) slots += run.slots.size();
  return slots;
}

/// Of a schedule without numbers.
inline std::vector<Order> orders_of(const Schedule& schedule, const PipelineShape& shape)
{
  return schedule.orders(shape, {std::string(schedule.name)});
}

}  // namespace isobar::schedules
