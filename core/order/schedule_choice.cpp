#include "core/order/schedule_choice.hpp"

#include "core/errors.hpp"
#include "core/names.hpp"
#include "core/text/separated.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <system_error>

namespace isobar {

namespace {

constexpr NameTable<ChainSchedule, 3> chain_schedules = {{{ChainSchedule::Sequential, "sequential"},
                                                          {ChainSchedule::GPipe, "gpipe"},
                                                          {ChainSchedule::OneForwardOneBackward, "1f1b"}}};
constexpr std::string_view chosen_by_allocator = "auto";

/// Parses "auto" or numbers such as "3/2/1/0". @throws InputError.
std::vector<std::uint64_t> numbers_from(std::string_view key, std::string_view text)
{
  std::vector<std::uint64_t> numbers;
  if (text == chosen_by_allocator) return numbers;
  if (text.empty()) {
    throw InputError("schedule", fmt::format("{} has no value; write auto, or numbers as in 3/2/1/0", shown(key)));
  }
  for (const auto piece : texts_between(text, '/')) {
    const auto number = count_from_text(piece);
    if (!number) {
      throw InputError("schedule", fmt::format("{}: {} is neither auto nor numbers; write them as in 3/2/1/0",
                                               shown(key), in_quotes(text)));
    }
    numbers.push_back(*number);
  }
  return numbers;
}

}  // namespace

bool overlaps_experts(const ScheduleChoice& schedule)
{
  return schedule.numbers.contains(overlap_experts_key);
}

bool is_schedule_word(std::string_view text)
{
  constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
  return !text.empty() && text.find_first_not_of(letters) == std::string_view::npos;
}

std::string text_of(const ScheduleChoice& schedule)
{
  std::vector<std::string> numbers;
  for (const auto& [key, values] : schedule.numbers) {
    numbers.push_back(fmt::format(
        "{}={}", key, values.empty() ? std::string(chosen_by_allocator) : fmt::format("{}", fmt::join(values, "/"))));
  }
  return numbers.empty() ? schedule.name : fmt::format("{}({})", schedule.name, fmt::join(numbers, ";"));
}

ScheduleChoice schedule_from_text(std::string_view text)
{
  const std::size_t open = text.find('(');
  ScheduleChoice schedule;
  schedule.name = text.substr(0, open);
  if (!is_schedule_word(schedule.name)) {
    throw InputError("schedule", fmt::format("{} is no schedule; write a name, and numbers in parentheses, such as "
                                             "interleaved(chunks=2)",
                                             in_quotes(text)));
  }
  if (open == std::string_view::npos) return schedule;
  if (!text.ends_with(')')) {
    throw InputError("schedule", fmt::format("{} has no closing parenthesis at its end; write {}(KEY=NUMBERS), with / "
                                             "between numbers and ; between keys",
                                             in_quotes(text), schedule.name));
  }
  const std::string_view inside = text.substr(open + 1, text.size() - open - 2);
  if (inside.empty()) {
    throw InputError("schedule", fmt::format("{} has nothing in its parentheses; leave them out, or write "
                                             "{}(KEY=NUMBERS)",
                                             in_quotes(text), schedule.name));
  }
  if (inside.find(',') != std::string_view::npos) {
    throw InputError(
        "schedule",
        fmt::format("{} has a comma; write / between numbers, as in 3/2/1/0, and ; between keys", in_quotes(text)));
  }
  for (const auto part : texts_between(inside, ';')) {
    const std::size_t equals = part.find('=');
    const std::string_view key = part.substr(0, equals);
    if (equals == std::string_view::npos || !is_schedule_word(key)) {
      throw InputError("schedule", fmt::format("{} in {} is not KEY=NUMBERS; write it as in interleaved(chunks=2)",
                                               in_quotes(part), in_quotes(text)));
    }
    const bool is_new = schedule.numbers.emplace(key, numbers_from(key, part.substr(equals + 1))).second;
    if (!is_new) {
      throw InputError("schedule", fmt::format("{} has {} twice; write it once", in_quotes(text), key));
    }
  }
  return schedule;
}

bool sums_loss_with_gradients(const ScheduleChoice& schedule)
{
  return schedule.name == "1f1b-vocab-2";
}

bool takes_orders(std::string_view schedule)
{
  return schedule == "listed" || schedule == "greedy";
}

std::string_view name_of(ChainSchedule schedule)
{
  return name_in(chain_schedules, schedule);
}

std::vector<std::string> chain_schedule_names()
{
  return names_in(chain_schedules);
}

std::optional<ChainSchedule> chain_schedule(const ScheduleChoice& schedule)
{
  if (!schedule.numbers.empty() || !schedule.orders.empty()) return std::nullopt;
  return value_in(chain_schedules, schedule.name);
}

ChainSchedule require_chain_schedule(const ScheduleChoice& schedule)
{
  const auto chain = chain_schedule(schedule);
  ensure(chain.has_value(), "a schedule of a chain");
  return *chain;
}

ScheduleChoice choice_of(ChainSchedule schedule)
{
  return {.name = std::string(name_of(schedule))};
}

}  // namespace isobar
