#include "schedules/lowering/order_picture.hpp"

#include "core/errors.hpp"
#include "core/order/microbatch_pattern.hpp"
#include "core/order/order_text.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/text/quantity_text.hpp"
#include "core/utf8.hpp"
#include "schedules/lowering/replicas.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace isobar::schedules {

namespace {

constexpr std::string_view gap = " … ";
constexpr std::size_t gap_width = 3;

std::uint64_t units_of(Opcode opcode)
{
  return opcode == Opcode::Backward ? 2 : 1;
}

/// When each task of an order begins, in units of time.
class UnitPlay {
 public:
  UnitPlay(const Plan& plan, const std::vector<Order>& orders)
      : orders_(orders),
        patterns_(microbatch_patterns(plan)),
        parts_(orders.size()),
        rank_of_(plan.stages.size()),
        begins_(orders.size()),
        free_(orders.size())
  {
    for (const auto& placed : placed_shards(plan)) {
      parts_[placed.rank].push_back(placed);
      if (placed.shard == 0) rank_of_[placed.stage].emplace_back();
      rank_of_[placed.stage].back().push_back(placed.rank);
    }
    for (auto& ends : ends_) ends.assign(plan.stages.size(), std::vector<End>(plan.goal.microbatches));
    sums_loss_ = sums_loss_with_gradients(plan.goal.schedule);
    std::vector<std::size_t> ready;
    for (std::size_t rank = 0; rank < orders.size(); ++rank) ready.push_back(rank);
    while (!ready.empty()) {
      const std::size_t rank = ready.back();
      ready.pop_back();
      play(rank, ready);
    }
    for (std::size_t rank = 0; rank < orders.size(); ++rank) {
      ensure(begins_[rank].size() == orders[rank].length(), "orders in which no rank waits forever");
    }
  }

  /// When the tasks of a rank begin, by position.
  const std::vector<std::uint64_t>& begins(std::size_t rank) const { return begins_[rank]; }
  std::size_t parts(std::size_t rank) const { return parts_[rank].size(); }
  std::size_t stage_of(std::size_t rank, std::uint32_t part) const { return parts_[rank].at(part).stage; }
  /// The micro-batch of the step.
  std::uint64_t microbatch_of(std::size_t rank, const Task& task) const
  {
    const PlacedShard& placed = parts_[rank].at(task.part);
    return patterns_[placed.stage].nth(placed.replica, task.microbatch);
  }
  std::uint64_t end() const { return *std::max_element(free_.begin(), free_.end()); }

 private:
  /// When all shards of a replica have ended a task.
  struct End {
    std::uint64_t latest = 0;
    std::size_t shards = 0;  // that have ended it
  };

  /// Of a forward, or of a backward as far as the stage before waits for it.
  End& end_of(bool forward, std::size_t stage, std::uint64_t microbatch)
  {
    return ends_[forward ? 0 : 1].at(stage).at(microbatch);
  }

  /// When the inputs of a task on a micro-batch of the step are there; none if they have not ended.
  std::optional<std::uint64_t> ready_at(std::size_t stage, Opcode opcode, std::uint64_t microbatch)
  {
    std::uint64_t latest = 0;
    const auto wait_for = [&](bool forward, std::size_t other) {
      const End& end = end_of(forward, other, microbatch);
      latest = std::max(latest, end.latest);
      return end.shards == rank_of_[other][patterns_[other].replica_of(microbatch)].size();
    };
    bool is_ready = true;
    if (opcode == Opcode::Forward) {
      is_ready = stage == 0 || wait_for(true, stage - 1);
    } else if (opcode == Opcode::BackwardWeight) {
      is_ready = !sums_loss_ || stage + 1 < rank_of_.size() || wait_for(true, stage);
    } else if (stage + 1 < rank_of_.size()) {
      is_ready = wait_for(false, stage + 1);
    } else {
      is_ready = sums_loss_ || wait_for(true, stage);  // the others' parts of the loss
    }
    return is_ready ? std::optional(latest) : std::nullopt;
  }

  /// Plays the tasks of a rank until one must wait. Adds ranks that may have waited for them to `ready`.
  void play(std::size_t rank, std::vector<std::size_t>& ready)
  {
    while (begins_[rank].size() < orders_[rank].length()) {
      const Task task = orders_[rank].at(begins_[rank].size());
      const std::size_t stage = stage_of(rank, task.part);
      const std::uint64_t microbatch = microbatch_of(rank, task);
      const auto inputs = ready_at(stage, task.opcode, microbatch);
      if (!inputs) return;
      const std::uint64_t begin = std::max(free_[rank], *inputs);
      begins_[rank].push_back(begin);
      free_[rank] = begin + units_of(task.opcode);
      if (task.opcode == Opcode::BackwardWeight) continue;
      const bool forward = task.opcode == Opcode::Forward;
      End& end = end_of(forward, stage, microbatch);
      end.latest = std::max(end.latest, free_[rank]);
      ++end.shards;
      if (forward || stage > 0) {
        const bool is_last = stage + 1 == rank_of_.size();
        const std::size_t other = !forward ? stage - 1 : is_last ? stage : stage + 1;
        for (const std::size_t next : rank_of_[other][patterns_[other].replica_of(microbatch)]) {
          if (next != rank) ready.push_back(next);
        }
      }
    }
  }

  const std::vector<Order>& orders_;
  std::vector<MicrobatchPattern> patterns_;                     // by stage
  std::vector<std::vector<PlacedShard>> parts_;                 // by rank
  std::vector<std::vector<std::vector<std::size_t>>> rank_of_;  // by stage, replica and shard
  std::vector<std::vector<std::uint64_t>> begins_;
  std::vector<std::uint64_t> free_;  // by rank: when it has ended its tasks so far
  std::array<std::vector<std::vector<End>>, 2> ends_;
  bool sums_loss_ = false;  // as sums_loss_with_gradients
};

std::size_t digits_of(std::uint64_t number)
{
  return fmt::formatted_size("{}", number);
}

class Picture {
 public:
  Picture(const Plan& plan, const std::vector<Order>& orders, std::optional<std::size_t> width)
      : orders_(orders), play_(plan, orders), end_(play_.end())
  {
    for (std::size_t rank = 0; rank < orders.size(); ++rank) most_parts_ = std::max(most_parts_, play_.parts(rank));
    cell_ = 1 + digits_of(plan.goal.microbatches - 1) + (most_parts_ > 2 ? digits_of(plan.stages.size() - 1) : 0);
    for (const auto& device : devices_of(plan)) {
      labels_.push_back(shown(device, longest_label));
      label_ = std::max(label_, utf8_characters(labels_.back()) + 2);
    }
    left_ = end_;
    if (width && label_ + end_ * cell_ > *width) {
      const std::size_t room = *width > label_ + gap_width ? *width - label_ - gap_width : 0;
      const std::size_t cells = std::max<std::size_t>(2, room / cell_);
      left_ = std::min<std::uint64_t>(end_, (cells + 1) / 2);
      right_ = std::min<std::uint64_t>(end_ - left_, cells / 2);
    }
  }

  std::string text() const
  {
    std::string text;
    for (std::size_t rank = 0; rank < orders_.size(); ++rank) text += line_of(rank) + "\n";
    return text + legend();
  }

 private:
  bool is_cut() const { return left_ + right_ < end_; }

  std::string line_of(std::size_t rank) const
  {
    std::string line = labels_[rank] + std::string(label_ - utf8_characters(labels_[rank]), ' ') + span(rank, 0, left_);
    if (is_cut()) line += std::string(gap) + span(rank, end_ - right_, end_);
    line.erase(line.find_last_not_of(' ') + 1);
    return line;
  }

  /// The cells of a rank from one time to another.
  std::string span(std::size_t rank, std::uint64_t from, std::uint64_t to) const
  {
    std::string cells(static_cast<std::size_t>(to - from) * cell_, ' ');
    const auto& begins = play_.begins(rank);
    // A whole backward pass may have begun one unit before.
    auto position = std::lower_bound(begins.begin(), begins.end(), from > 0 ? from - 1 : 0) - begins.begin();
    for (; position < static_cast<std::ptrdiff_t>(begins.size()); ++position) {
      const auto at = static_cast<std::size_t>(position);
      if (begins[at] >= to) break;
      const Task task = orders_[rank].at(at);
      std::string text = text_of(rank, task);
      const bool is_long = units_of(task.opcode) > 1;
      text.resize(units_of(task.opcode) * cell_, is_long ? '-' : ' ');
      for (std::size_t i = 0; i < text.size(); ++i) {
        const std::uint64_t unit = begins[at] + i / cell_;
        if (unit >= from && unit < to) cells[static_cast<std::size_t>(unit - from) * cell_ + i % cell_] = text[i];
      }
    }
    return cells;
  }

  std::string text_of(std::size_t rank, const Task& task) const
  {
    const char letter = letter_of(task.opcode);
    const std::uint64_t microbatch = play_.microbatch_of(rank, task);
    if (most_parts_ > 2) return fmt::format("{}{}{}", play_.stage_of(rank, task.part), letter, microbatch);
    return fmt::format("{}{}", task.part == 0 ? letter : static_cast<char>(letter - 'A' + 'a'), microbatch);
  }

  std::string legend() const
  {
    std::string units;
    for (const auto opcode : {Opcode::Forward, Opcode::Backward, Opcode::BackwardInput, Opcode::BackwardWeight}) {
      if (std::none_of(orders_.begin(), orders_.end(), [&](const auto& order) { return has(order, opcode); })) continue;
      units += fmt::format("{}{} {}{}", units.empty() ? "" : ", ", letter_of(opcode), units.empty() ? "takes " : "",
                           units_of(opcode));
    }
    std::string text = fmt::format("{} units of time; {}\n", end_, units);
    if (most_parts_ == 2) text += "lower case: the second stage of a device\n";
    if (most_parts_ > 2) text += "2F0: the forward of micro-batch 0 on stage 2\n";
    if (is_cut()) text += fmt::format("…: {} units that are not shown\n", end_ - left_ - right_);
    return text;
  }

  bool has(const Order& order, Opcode opcode) const
  {
    for (std::uint32_t part = 0; part < most_parts_; ++part) {
      if (order.count(opcode, part) > 0) return true;
    }
    return false;
  }

  static constexpr std::size_t longest_label = 20;

  const std::vector<Order>& orders_;
  UnitPlay play_;
  std::uint64_t end_;
  std::size_t most_parts_ = 0;
  std::size_t cell_ = 0;  // columns of a unit of time
  std::vector<std::string> labels_;
  std::size_t label_ = 0;  // columns of the labels, with two blanks
  std::uint64_t left_ = 0;
  std::uint64_t right_ = 0;  // units that are shown at the beginning and at the end
};

/// A plan as its picture shows it: all devices that divide the operators of a stage together as shards of one replica,
/// since each computes a part of every micro-batch.
Plan pictured(Plan plan)
{
  if (!divides_operators(plan)) return plan;
  for (auto& stage : plan.stages) {
    Replica all;
    for (const auto& replica : stage.replicas) {
      all.shards.insert(all.shards.end(), replica.shards.begin(), replica.shards.end());
    }
    stage.replicas = {std::move(all)};
  }
  return plan;
}

}  // namespace

std::string picture_of(const Plan& plan, const std::vector<Order>& orders, std::optional<std::size_t> width)
{
  ensure(!orders.empty(), "a picture has a device");
  std::uint64_t tasks = 0;
  for (const auto& order : orders) tasks += order.length();
  const std::uint64_t pairs_fit = most_picture_tasks / std::max<std::uint64_t>(1, plan.stages.size());
  if (tasks > most_picture_tasks || plan.goal.microbatches > pairs_fit) {
    throw InputError("schedule",
                     fmt::format("{} and {} micro-batches are too many for a picture of at most {} tasks; "
                                 "use --json",
                                 counted(plan.stages.size(), "stage"), plan.goal.microbatches, most_picture_tasks));
  }
  return Picture(pictured(plan), orders, width).text();
}

}  // namespace isobar::schedules
