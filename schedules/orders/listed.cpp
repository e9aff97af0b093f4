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
    stages_by_rank_ = stages_by_rank(shape);
    std::vector<std::uint32_t> parts(shape.ranks(), 0);
    for (std::size_t stage = 0; stage < shape.stages(); ++stage) {
      auto& seats = seats_of_stage_.emplace_back();
      for (const std::size_t rank : shape.ranks_of(stage)) seats.push_back({rank, parts[rank]++});
    }
  }

  std::vector<OrderFault> faults()
  {
    for (std::size_t rank = 0; rank < shape_.ranks(); ++rank) check_limits(rank);
    if (faults_.empty()) check_completeness();
    if (faults_.empty()) check_precedence();
    for (std::size_t rank = 0; rank < shape_.ranks() && faults_.empty(); ++rank) check_overlaps(rank);
    if (faults_.empty()) check_crossings();
    if (faults_.empty()) check_meetings();
    if (faults_.empty()) check_circles();
    return std::move(faults_);
  }

 private:
  /// A task of a rank.
  struct RankTask {
    std::size_t rank = 0;
    Task task;
  };

  /// A stage on a rank, as part of it.
  struct Seat {
    std::size_t rank = 0;
    std::uint32_t part = 0;
  };

  const Order& order_of(const Seat& seat) const { return orders_[seat.rank]; }
  static Task task_of(const Seat& seat, Opcode opcode, std::uint64_t microbatch)
  {
    return {opcode, seat.part, microbatch};
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
      for (const Seat& seat : seats_of_stage_[stage]) check_completeness(stage, seat);
    }
  }

  void check_completeness(std::size_t stage, const Seat& seat)
  {
    const Order& order = order_of(seat);
    const bool has_whole = order.count(Opcode::Backward, seat.part) > 0;
    const bool has_inputs = order.count(Opcode::BackwardInput, seat.part) > 0;
    const bool has_weights = order.count(Opcode::BackwardWeight, seat.part) > 0;
    const BackwardKind kind = has_inputs || has_weights ? BackwardKind::Split : BackwardKind::Whole;
    if (kinds_.size() == stage) kinds_.push_back(kind);
    require_all(seat, Opcode::Forward);
    if (has_whole && (has_inputs || has_weights)) {
      const Task whole = order.nth(Opcode::Backward, seat.part, 0);
      const Task half = order.nth(has_inputs ? Opcode::BackwardInput : Opcode::BackwardWeight, seat.part, 0);
      add_fault(seat.rank, fmt::format("{} is a whole backward and {} a half; use B, or I and W, for all micro-batches "
                                       "of a stage",
                                       names_.task(seat.rank, whole), names_.task(seat.rank, half)));
      return;
    }
    if (kind != kinds_[stage]) {
      add_fault(seat.rank, fmt::format("has {} of stage {}, and {}, with which it divides the stage, has {}; use one "
                                       "kind on both",
                                       kind == BackwardKind::Split ? "halves of backwards" : "whole backwards", stage,
                                       names_.rank(seats_of_stage_[stage].front().rank),
                                       kind == BackwardKind::Split ? "whole ones" : "halves"));
      return;
    }
    require_all(seat, backward_of(stage));
    if (kind == BackwardKind::Split) require_all(seat, Opcode::BackwardWeight);
  }

  void require_all(const Seat& seat, Opcode opcode)
  {
    const Order& order = order_of(seat);
    const std::uint64_t count = order.count(opcode, seat.part);
    if (count == shape_.microbatches) return;
    // One of the first count + 1 is missing.
    std::uint64_t microbatch = 0;
    while (order.contains(task_of(seat, opcode, microbatch))) ++microbatch;
    add_fault(seat.rank, fmt::format("{} is missing; order it once", name_of(task_of(seat, opcode, microbatch))));
  }

  void check_precedence()
  {
    for (std::size_t stage = 0; stage < shape_.stages(); ++stage) {
      for (const Seat& seat : seats_of_stage_[stage]) {
        if (!check_pairs(seat, Opcode::Forward, backward_of(stage))) continue;
        if (kinds_[stage] == BackwardKind::Split) check_pairs(seat, Opcode::BackwardInput, Opcode::BackwardWeight);
      }
    }
  }

  /// True if each task with opcode `before` comes before that of the same micro-batch with opcode `after`.
  bool check_pairs(const Seat& seat, Opcode before, Opcode after)
  {
    const Order& order = order_of(seat);
    for (std::uint64_t index = 0; index < shape_.microbatches; ++index) {
      const Task later = order.nth(after, seat.part, index);
      const Task earlier = task_of(seat, before, later.microbatch);
      if (order.position_of(earlier) < order.position_of(later)) continue;
      add_fault(seat.rank, fmt::format("{} comes before {}; move it behind", names_.task(seat.rank, later),
                                       names_.task(seat.rank, earlier)));
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
      const auto& here = seats_of_stage_[stage];
      const auto& next = seats_of_stage_[stage + 1];
      for (const Seat& to : next) {
        if (const Seat* from = sender(here, to)) check_crossing(*from, Opcode::Forward, to, Opcode::Forward);
      }
      for (const Seat& to : here) {
        if (const Seat* from = sender(next, to)) check_crossing(*from, backward_of(stage + 1), to, backward_of(stage));
      }
    }
  }

  /// Which of the seats that have the same data sends it to one of a neighbouring stage; null if its rank has it.
  static const Seat* sender(const std::vector<Seat>& seats, const Seat& to)
  {
    const bool has_it = std::any_of(seats.begin(), seats.end(), [&](const Seat& seat) { return seat.rank == to.rank; });
    return has_it ? nullptr : &seats.front();
  }

  /// Transfers go from each task of a stage to that of the same micro-batch of another.
  void check_crossing(const Seat& from, Opcode sending, const Seat& to, Opcode receiving)
  {
    for (std::uint64_t index = 0; index < shape_.microbatches; ++index) {
      const Task sent = order_of(from).nth(sending, from.part, index);
      const Task received = order_of(to).nth(receiving, to.part, index);
      if (sent.microbatch == received.microbatch) continue;
      const auto named = [&](const Seat& seat, Opcode opcode, std::uint64_t microbatch) {
        return names_.task(seat.rank, task_of(seat, opcode, microbatch));
      };
      add_fault(std::nullopt,
                fmt::format("{} has {} before {} and {} has {} before {}, so their transfers cross; use one order for "
                            "both",
                            names_.rank(from.rank), named(from, sending, sent.microbatch),
                            named(from, sending, received.microbatch), names_.rank(to.rank),
                            named(to, receiving, received.microbatch), named(to, receiving, sent.microbatch)));
      return;
    }
  }

  /// The passes of a rank through stages that it divides with others.
  std::vector<RankTask> divided_passes(std::size_t rank) const
  {
    std::vector<RankTask> passes;
    for (const auto& [task, overlaps] : listed_tasks(orders_[rank])) {
      if (shape_.ranks_of(stages_by_rank_[rank][task.part]).size() > 1) passes.push_back({rank, task});
    }
    return passes;
  }

  /// Ranks meet after passes through stages that they divide, so they have these in one order.
  void check_meetings()
  {
    for (const auto& ranks : shape_.ranks_of_stage) {
      if (ranks.size() == 1) continue;
      const auto first = divided_passes(ranks.front());
      for (std::size_t i = 1; i < ranks.size(); ++i) {
        const auto own = divided_passes(ranks[i]);
        const auto differ = std::mismatch(first.begin(), first.end(), own.begin(), own.end(), [&](auto& a, auto& b) {
          return a.task.opcode == b.task.opcode && a.task.microbatch == b.task.microbatch &&
                 stages_by_rank_[a.rank][a.task.part] == stages_by_rank_[b.rank][b.task.part];
        });
        if (differ.first == first.end() || differ.second == own.end()) continue;
        add_fault(std::nullopt,
                  fmt::format("{} has {} where {} has {}; devices that divide stages have the passes "
                              "through these in one order",
                              names_.rank(ranks[i]), names_.task(ranks[i], differ.second->task),
                              names_.rank(ranks.front()), names_.task(ranks.front(), differ.first->task)));
        return;
      }
    }
  }

  /// The tasks, usually of other ranks, whose results a task needs; the ranks' orders have been checked by themselves.
  std::vector<RankTask> needed_by(std::size_t rank, const Task& task) const
  {
    const std::size_t stage = stages_by_rank_[rank][task.part];
    const auto of_all = [&](std::size_t other, Opcode opcode) {
      std::vector<RankTask> needed;
      for (const Seat& seat : seats_of_stage_[other]) {
        needed.push_back({seat.rank, task_of(seat, opcode, task.microbatch)});
      }
      return needed;
    };
    if (task.opcode == Opcode::BackwardWeight) return {};
    if (task.opcode == Opcode::Forward) {
      return stage == 0 ? std::vector<RankTask>() : of_all(stage - 1, Opcode::Forward);
    }
    // Of the last stage: what others that divide it know of the loss.
    if (stage + 1 == shape_.stages()) return of_all(stage, Opcode::Forward);
    return of_all(stage + 1, backward_of(stage + 1));
  }

  bool is_done(const RankTask& needed) const
  {
    return orders_[needed.rank].position_of(needed.task) < done_[needed.rank];
  }

  /// The first task that one at a position of a rank needs and that has not run.
  std::optional<RankTask> missing_for(std::size_t rank, std::uint64_t position) const
  {
    for (const RankTask& needed : needed_by(rank, orders_[rank].at(position))) {
      if (!is_done(needed)) return needed;
    }
    return std::nullopt;
  }

  /// The task for which a rank waits, if its next one cannot start. A forward that runs together with a backward ends
  /// when both can.
  std::optional<RankTask> awaited_by(std::size_t rank) const
  {
    const std::uint64_t next = done_[rank];
    if (next == orders_[rank].length()) return std::nullopt;
    if (auto missing = missing_for(rank, next)) return missing;
    return overlaps_[rank][next] ? missing_for(rank, next + 1) : std::nullopt;
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
  std::vector<std::vector<Seat>> seats_of_stage_;
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
