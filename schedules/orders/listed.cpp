#include "schedules/orders/listed.hpp"

#include "core/errors.hpp"
#include "core/order/order_text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace isobar::schedules {

namespace {

constexpr std::string_view place_of_orders = "schedule.orders";

/// Whether a stage takes micro-batches back at once or in two halves.
enum class BackwardKind : std::uint8_t { Whole, Split };

/// Checks the orders of a pipeline.
class OrderChecker {
 public:
  OrderChecker(const PipelineShape& shape, const std::vector<Order>& orders, const OrderNames& names)
      : shape_(shape), orders_(orders), names_(names)
  {
    std::vector<std::uint32_t> parts(shape.ranks(), 0);
    for (const auto rank : shape.rank_of_stage) part_of_stage_.push_back(parts[rank]++);
    stages_by_rank_ = stages_by_rank(shape);
  }

  std::vector<OrderFault> faults()
  {
    for (std::size_t rank = 0; rank < shape_.ranks(); ++rank) check_limits(rank);
    if (faults_.empty()) check_completeness();
    if (faults_.empty()) check_precedence();
    for (std::size_t rank = 0; rank < shape_.ranks() && faults_.empty(); ++rank) check_overlaps(rank);
    if (faults_.empty()) check_crossings();
    if (faults_.empty()) check_circles();
    return std::move(faults_);
  }

 private:
  /// A task of a rank.
  struct RankTask {
    std::size_t rank = 0;
    Task task;
  };

  std::size_t rank_of(std::size_t stage) const { return shape_.rank_of_stage[stage]; }
  const Order& order_of(std::size_t stage) const { return orders_[rank_of(stage)]; }
  Task task_of(std::size_t stage, Opcode opcode, std::uint64_t microbatch) const
  {
    return {opcode, part_of_stage_[stage], microbatch};
  }
  /// The computation that gives the stage before its gradient.
  Opcode backward_of(std::size_t stage) const
  {
    return kinds_[stage] == BackwardKind::Whole ? Opcode::Backward : Opcode::BackwardInput;
  }

  void add_fault(std::optional<std::size_t> rank, const std::string& what) { faults_.push_back({rank, what}); }

  /// Finds the first task of a part or micro-batch that the rank does not have.
  void check_limits(std::size_t rank)
  {
    const Order& order = orders_[rank];
    const std::uint64_t microbatches = shape_.microbatches;
    const std::size_t parts = stages_by_rank_[rank].size();
    std::uint64_t position = 0;  // of the run
    for (const auto& run : order.runs()) {
      for (std::size_t i = 0; i < run.slots.size(); ++i) {
        const Task& first = run.slots[i].first;
        if (first.part >= parts) {
          add_fault(rank, fmt::format("{} is of part {}; number the device's stages, {} in all, from 0",
                                      names_.task(rank, first), first.part, parts));
          return;
        }
        const Task last = order.at(position + (run.times - 1) * run.slots.size() + i);
        for (const Task& task : {first, last}) {
          if (task.microbatch < microbatches) continue;
          add_fault(rank, fmt::format("{} is of micro-batch {}; number the step's micro-batches, {} in all, from 0",
                                      names_.task(rank, task), task.microbatch, microbatches));
          return;
        }
      }
      position += run.times * run.slots.size();
    }
  }

  /// All orders are within their limits and have no task twice, so the counts say whether one is missing.
  void check_completeness()
  {
    for (std::size_t stage = 0; stage < shape_.stages(); ++stage) {
      const Order& order = order_of(stage);
      const std::uint32_t part = part_of_stage_[stage];
      const bool has_whole = order.count(Opcode::Backward, part) > 0;
      const bool has_inputs = order.count(Opcode::BackwardInput, part) > 0;
      const bool has_weights = order.count(Opcode::BackwardWeight, part) > 0;
      kinds_.push_back(has_inputs || has_weights ? BackwardKind::Split : BackwardKind::Whole);
      require_all(stage, Opcode::Forward);
      if (has_whole && (has_inputs || has_weights)) {
        const Task whole = order.nth(Opcode::Backward, part, 0);
        const Task half = order.nth(has_inputs ? Opcode::BackwardInput : Opcode::BackwardWeight, part, 0);
        const std::size_t rank = rank_of(stage);
        add_fault(rank, fmt::format("{} is a whole backward and {} a half; use B, or I and W, for all micro-batches of "
                                    "a stage",
                                    names_.task(rank, whole), names_.task(rank, half)));
        continue;
      }
      require_all(stage, backward_of(stage));
      if (kinds_[stage] == BackwardKind::Split) require_all(stage, Opcode::BackwardWeight);
    }
  }

  void require_all(std::size_t stage, Opcode opcode)
  {
    const Order& order = order_of(stage);
    const std::uint64_t count = order.count(opcode, part_of_stage_[stage]);
    if (count == shape_.microbatches) return;
    // One of the first count + 1 is missing.
    std::uint64_t microbatch = 0;
    while (order.contains(task_of(stage, opcode, microbatch))) ++microbatch;
    add_fault(rank_of(stage), fmt::format("{} is missing; order it once", name_of(task_of(stage, opcode, microbatch))));
  }

  void check_precedence()
  {
    for (std::size_t stage = 0; stage < shape_.stages(); ++stage) {
      if (!check_pairs(stage, Opcode::Forward, backward_of(stage))) continue;
      if (kinds_[stage] == BackwardKind::Split) check_pairs(stage, Opcode::BackwardInput, Opcode::BackwardWeight);
    }
  }

  /// True if each task with opcode `before` comes before that of the same micro-batch with opcode `after`.
  bool check_pairs(std::size_t stage, Opcode before, Opcode after)
  {
    const std::size_t rank = rank_of(stage);
    const Order& order = orders_[rank];
    for (std::uint64_t index = 0; index < shape_.microbatches; ++index) {
      const Task later = order.nth(after, part_of_stage_[stage], index);
      const Task earlier = task_of(stage, before, later.microbatch);
      if (order.position_of(earlier) < order.position_of(later)) continue;
      add_fault(rank, fmt::format("{} comes before {}; move it behind", names_.task(rank, later),
                                  names_.task(rank, earlier)));
      return false;
    }
    return true;
  }

  /// Passes that run together are of two micro-batches, or of two stages.
  void check_overlaps(std::size_t rank)
  {
    auto& overlaps = overlaps_.emplace_back();
    const auto tasks = listed_tasks(orders_[rank]);
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      overlaps.push_back(tasks[i].overlaps);
      if (!tasks[i].overlaps) continue;
      const Task& forward = tasks[i].task;
      const Task& backward = tasks[i + 1].task;
      if (forward.part != backward.part || forward.microbatch != backward.microbatch) continue;
      add_fault(rank, fmt::format("{} and {} are of one micro-batch and cannot run together; leave the mark of the "
                                  "forward pass out",
                                  names_.task(rank, forward), names_.task(rank, backward)));
      return;
    }
  }

  void check_crossings()
  {
    for (std::size_t stage = 0; stage + 1 < shape_.stages(); ++stage) {
      if (rank_of(stage) == rank_of(stage + 1)) continue;
      check_crossing(stage, Opcode::Forward, stage + 1, Opcode::Forward);
      check_crossing(stage + 1, backward_of(stage + 1), stage, backward_of(stage));
    }
  }

  /// Transfers go from each task of a stage to that of the same micro-batch of another.
  void check_crossing(std::size_t from, Opcode sending, std::size_t to, Opcode receiving)
  {
    for (std::uint64_t index = 0; index < shape_.microbatches; ++index) {
      const Task sent = order_of(from).nth(sending, part_of_stage_[from], index);
      const Task received = order_of(to).nth(receiving, part_of_stage_[to], index);
      if (sent.microbatch == received.microbatch) continue;
      const auto named = [&](std::size_t stage, Opcode opcode, std::uint64_t microbatch) {
        return names_.task(rank_of(stage), task_of(stage, opcode, microbatch));
      };
      add_fault(std::nullopt,
                fmt::format("{} has {} before {} and {} has {} before {}, so their transfers cross; use one order for "
                            "both",
                            names_.rank(rank_of(from)), named(from, sending, sent.microbatch),
                            named(from, sending, received.microbatch), names_.rank(rank_of(to)),
                            named(to, receiving, received.microbatch), named(to, receiving, sent.microbatch)));
      return;
    }
  }

  /// The task, usually of another rank, whose result a task needs; the ranks' orders have been checked by themselves.
  std::optional<RankTask> needed_by(std::size_t rank, const Task& task) const
  {
    const std::size_t stage = stages_by_rank_[rank][task.part];
    if (task.opcode == Opcode::Forward) {
      if (stage == 0) return std::nullopt;
      return RankTask{rank_of(stage - 1), task_of(stage - 1, Opcode::Forward, task.microbatch)};
    }
    if (task.opcode == Opcode::BackwardWeight || stage + 1 == shape_.stages()) return std::nullopt;
    return RankTask{rank_of(stage + 1), task_of(stage + 1, backward_of(stage + 1), task.microbatch)};
  }

  bool is_done(const RankTask& needed) const
  {
    return orders_[needed.rank].position_of(needed.task) < done_[needed.rank];
  }

  /// The task for which a rank waits, if its next one cannot start. A forward that runs together with a backward ends
  /// when both can.
  std::optional<RankTask> awaited_by(std::size_t rank) const
  {
    const std::uint64_t next = done_[rank];
    if (next == orders_[rank].length()) return std::nullopt;
    auto needed = needed_by(rank, orders_[rank].at(next));
    if (needed && !is_done(*needed)) return needed;
    if (!overlaps_[rank][next]) return std::nullopt;
    needed = needed_by(rank, orders_[rank].at(next + 1));
    return needed && !is_done(*needed) ? needed : std::nullopt;
  }

  /// Kahn's algorithm over the orders and the transfers between them: a rank continues until it waits for another.
  void check_circles()
  {
    done_.assign(shape_.ranks(), 0);
    std::vector<std::vector<std::size_t>> waiting(shape_.ranks());  // for a task of this rank
    std::vector<std::size_t> ready;
    for (std::size_t rank = shape_.ranks(); rank-- > 0;) ready.push_back(rank);
    while (!ready.empty()) {
      const std::size_t rank = ready.back();
      ready.pop_back();
      const std::uint64_t before = done_[rank];
      std::optional<RankTask> awaited = awaited_by(rank);
      for (; !awaited && done_[rank] < orders_[rank].length(); awaited = awaited_by(rank)) ++done_[rank];
      if (awaited) waiting[awaited->rank].push_back(rank);
      if (done_[rank] > before) {
        ready.insert(ready.end(), waiting[rank].begin(), waiting[rank].end());
        waiting[rank].clear();
      }
    }
    std::size_t rank = 0;
    while (rank < shape_.ranks() && done_[rank] == orders_[rank].length()) ++rank;
    if (rank < shape_.ranks()) add_circle(rank);
  }

  /// Follows the ranks that wait for each other, from one that never ends.
  void add_circle(std::size_t rank)
  {
    std::vector<std::size_t> path;
    while (std::find(path.begin(), path.end(), rank) == path.end()) {
      path.push_back(rank);
      rank = awaited_by(rank)->rank;
    }
    path.erase(path.begin(), std::find(path.begin(), path.end(), rank));
    std::vector<std::string> links;
    for (const auto blocked : path) {
      const RankTask awaited = *awaited_by(blocked);
      links.push_back(fmt::format("{} of {} waits for {} of {}",
                                  names_.task(blocked, orders_[blocked].at(done_[blocked])), names_.rank(blocked),
                                  names_.task(awaited.rank, awaited.task), names_.rank(awaited.rank)));
    }
    add_fault(std::nullopt,
              fmt::format("{}, so none of them can run; move an awaited one forward", fmt::join(links, ", ")));
  }

  const PipelineShape& shape_;
  const std::vector<Order>& orders_;
  const OrderNames& names_;
  std::vector<std::uint32_t> part_of_stage_;
  std::vector<std::vector<std::size_t>> stages_by_rank_;
  std::vector<BackwardKind> kinds_;          // by stage
  std::vector<std::uint64_t> done_;          // by rank: the tasks of its order that have run
  std::vector<std::vector<bool>> overlaps_;  // by rank and task: it runs together with the next one
  std::vector<OrderFault> faults_;
};

std::vector<OrderFault> faults_by_rank(const PipelineShape& shape, const std::vector<Order>& orders,
                                       const OrderNames& names)
{
  ensure(orders.size() == shape.ranks(), "each rank has an order");
  return OrderChecker(shape, orders, names).faults();
}

/// Faults with their keys in a plan file.
std::vector<std::string> lines_of(const std::vector<OrderFault>& faults, const PipelineShape& shape)
{
  std::vector<std::string> lines;
  for (const auto& [rank, what] : faults) {
    lines.push_back(fmt::format("{}{}: {}", place_of_orders, rank ? "." + shown(shape.devices[*rank]) : "", what));
  }
  return lines;
}

}  // namespace

std::vector<std::string> faults_of_orders(const PipelineShape& shape, const std::vector<Order>& orders)
{
  return lines_of(faults_by_rank(shape, orders, names_in_plans(shape, orders)), shape);
}

OrderNames names_in_plans(const PipelineShape& shape, const std::vector<Order>& orders)
{
  return {.rank = [&shape](std::size_t rank) { return shown(shape.devices[rank]); },
          .task =
              [&orders](std::size_t rank, const Task& task) {
                return fmt::format("{} (position {})", name_of(task), orders[rank].position_of(task));
              }};
}

std::vector<OrderFault> faults_of_listed(const PipelineShape& shape, const std::vector<Order>& orders,
                                         const OrderNames& names)
{
  constexpr std::uint64_t most = std::uint64_t{1} << 22;
  std::uint64_t left = most;
  for (const auto& order : orders) {
    if (order.length() > left) {
      return {{std::nullopt, fmt::format("more than {} tasks on all devices together; use fewer micro-batches", most)}};
    }
    left -= order.length();
  }
  return faults_by_rank(shape, orders, names);
}

std::vector<Order> listed_orders(const PipelineShape& shape, const ScheduleChoice& choice)
{
  std::vector<std::string> faults;
  for (const auto& [device, order] : choice.orders) {
    if (std::find(shape.devices.begin(), shape.devices.end(), device) != shape.devices.end()) continue;
    std::vector<std::string> known;
    for (const auto& name : shape.devices) known.push_back(shown(name));
    faults.push_back(fmt::format("{}.{}: no stage is on this device; use {}", place_of_orders, shown(device),
                                 fmt::join(known, ", ")));
  }
  std::vector<Order> orders;
  for (const auto& device : shape.devices) {
    const auto order = choice.orders.find(device);
    if (order == choice.orders.end()) {
      faults.push_back(
          fmt::format("{}: {} has none; give each device of the stages an order", place_of_orders, shown(device)));
    } else {
      orders.push_back(order->second);
    }
  }
  const bool overlap = std::any_of(orders.begin(), orders.end(), has_overlaps);
  if (overlap != overlaps_experts(choice)) {
    faults.push_back(overlap ? fmt::format("{}: has passes that run together (&); write overlap_experts: 1 beside them",
                                           place_of_orders)
                             : fmt::format("schedule.{}: 1, and no passes of the orders run together (&); leave it out",
                                           overlap_experts_key));
  }
  if (faults.empty()) faults = lines_of(faults_of_listed(shape, orders, names_in_plans(shape, orders)), shape);
  if (!faults.empty()) throw InputError(faults);
  return orders;
}

}  // namespace isobar::schedules
