#pragma once

#include "core/order/order.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar {

/// The schedule of a plan: in which order the devices work on micro-batches. Its name is one of the registry in
/// schedules/orders, to which a user may add.
struct ScheduleChoice {
  std::string name = "1f1b";
  /// What the schedule is given besides its name: "warm_up" by device, "chunks". An empty list asks the allocator to
  /// choose ("auto"); a plan has numbers.
  std::map<std::string, std::vector<std::uint64_t>> numbers = {};
  std::map<std::string, Order> orders = {};  ///< by device, of schedules that take orders

  bool operator==(const ScheduleChoice&) const = default;
};

/// A key of ScheduleChoice::numbers, with the value 1: a forward of one micro-batch and a backward of another run layer
/// by layer together, so that each computes while tokens of the other are on their way to experts and back.
inline constexpr auto overlap_experts_key = "overlap_experts";
/// Whether a choice has it.
bool overlaps_experts(const ScheduleChoice& schedule);

/// As options, tables and baselines spell it: "gpipe", "interleaved(chunks=2)", "1f1b(warm_up=auto)",
/// "1f1b(warm_up=3/2/1/0)". Orders are left out.
std::string text_of(const ScheduleChoice& schedule);
/// True for a name of a schedule or of a number: a word of letters, digits, "-", "_" and ".", which neither options nor
/// tables read otherwise.
bool is_schedule_word(std::string_view text);
/// Parses what `text_of` writes. Does not check that there is a schedule of that name. @throws InputError.
ScheduleChoice schedule_from_text(std::string_view text);

/// Whether devices that divide the last layer compute the gradient of its input from the words that they have alone,
/// and scale it when they add it up: then they know what the loss needs to know of the others' words.
bool sums_loss_with_gradients(const ScheduleChoice& schedule);

/// Whether a plan has the orders of the schedule with that name, since they do not follow from its stages: "listed" has
/// those that a user wrote, "greedy" those that an allocator made.
bool takes_orders(std::string_view schedule);

/// The schedules of a chain of stages on distinct devices whose step has a recurrence (step_recurrence.hpp): those that
/// the exact searches, their bounds and their certificates know.
enum class ChainSchedule : std::uint8_t { Sequential, GPipe, OneForwardOneBackward };

std::string_view name_of(ChainSchedule schedule);  ///< "sequential", "gpipe", "1f1b"
std::vector<std::string> chain_schedule_names();
/// The schedule as one of those; none for other names, and for 1f1b with numbers.
std::optional<ChainSchedule> chain_schedule(const ScheduleChoice& schedule);
/// As `chain_schedule`. @throws std::logic_error where it gives none.
ChainSchedule require_chain_schedule(const ScheduleChoice& schedule);
/// A choice without numbers.
ScheduleChoice choice_of(ChainSchedule schedule);

}  // namespace isobar
