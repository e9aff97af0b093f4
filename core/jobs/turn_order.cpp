#include "core/jobs/turn_order.hpp"

#include "core/errors.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace isobar {

namespace {

/// The numbers of memory of a value. All states consist of these numbers alone, and zeros are their beginning.
template <typename State>
constexpr std::size_t words_in = sizeof(State) / sizeof(std::uint64_t);

template <typename State>
State& state_in(std::span<std::uint64_t> memory, std::size_t word)
{
  return *std::launder(reinterpret_cast<State*>(&memory[word]));
}

}  // namespace

TurnOrder::TurnOrder(const Mix& mix, std::vector<std::vector<std::size_t>> places, std::size_t devices,
                     std::span<std::uint64_t> memory)
    : discipline_(mix.discipline),
      hand_over_(mix.hand_over),
      devices_(devices),
      places_(std::move(places)),
      jobs_at_(devices),
      turns_(mix.jobs.size()),
      memory_(memory)
{
  ensure(discipline_ != Discipline::None, "jobs take turns under a discipline");
  ensure(places_.size() == mix.jobs.size(), "every job of a mix has places");
  ensure(memory_.size() >= words(mix.jobs.size(), devices), "the state of a turn order needs its memory");
  for (const auto& turn : mix.turns) {
    if (turns_.at(turn.job).empty()) {
      for (const std::size_t device : places_[turn.job]) jobs_at_.at(device).push_back(turn.job);
    }
    for (std::uint64_t step = 0; step < turn.steps; ++step) turns_[turn.job].push_back(round_length_++);
  }
  ensure(std::ranges::none_of(turns_, [](const auto& turns) { return turns.empty(); }), "every job has a turn");
}

std::size_t TurnOrder::words(std::size_t jobs, std::size_t devices)
{
  return words_in<Counters> + jobs * words_in<Job> + devices * words_in<Device> + jobs * devices * words_in<Place>;
}

TurnOrder::Counters& TurnOrder::counters() const
{
  return state_in<Counters>(memory_, 0);
}

TurnOrder::Job& TurnOrder::state_of(std::size_t job) const
{
  return state_in<Job>(memory_, words_in<Counters> + job * words_in<Job>);
}

TurnOrder::Device& TurnOrder::state_at(std::size_t device) const
{
  return state_in<Device>(memory_, words(places_.size(), 0) + device * words_in<Device>);
}

TurnOrder::Place& TurnOrder::place_of(std::size_t job, std::size_t device) const
{
  const std::size_t first = words(places_.size(), 0) + devices_ * words_in<Device>;
  return state_in<Place>(memory_, first + (job * devices_ + device) * words_in<Place>);
}

std::uint64_t TurnOrder::round_of(std::size_t job, std::uint64_t turn) const
{
  return state_of(job).first_round + turn / turns_[job].size();
}

void TurnOrder::join(std::size_t job)
{
  std::uint64_t round = 0;
  for (std::size_t other = 0; other < places_.size(); ++other) {
    for (const std::size_t device : places_[other]) {
      const Place& place = place_of(other, device);
      ensure(other != job || place.takes_part == 0, "a job joins that takes part already");
      const bool holds = holder(device) == other;
      if (place.takes_part == 0 || place.turns + (holds ? 1 : 0) == 0) continue;
      round = std::max(round, round_of(other, holds ? place.turns : place.turns - 1) + 1);
    }
  }
  state_of(job) = Job{.first_round = round};
  for (const std::size_t device : places_[job]) place_of(job, device) = Place{.takes_part = 1};
}

void TurnOrder::leave(std::size_t job, std::size_t device)
{
  place_of(job, device) = Place{};
  if (holder(device) == job) state_at(device).holder = 0;
}

void TurnOrder::leave(std::size_t job)
{
  for (const std::size_t device : places_[job]) leave(job, device);
}

bool TurnOrder::takes_part(std::size_t job, std::size_t device) const
{
  return place_of(job, device).takes_part != 0;
}

std::optional<std::size_t> TurnOrder::holder(std::size_t device) const
{
  const std::uint64_t holder = state_at(device).holder;
  if (holder == 0) return std::nullopt;
  return static_cast<std::size_t>(holder - 1);
}

std::optional<std::uint64_t> TurnOrder::number_of(std::size_t job, std::uint64_t turn) const
{
  const auto& turns = turns_[job];
  if (discipline_ == Discipline::Strict) return round_of(job, turn) * round_length_ + turns[turn % turns.size()];
  const Job& state = state_of(job);
  if (turn >= state.numbered) return std::nullopt;
  return state.numbers[turn % open_turns];
}

std::uint64_t TurnOrder::number(std::size_t job, std::uint64_t turn)
{
  while (!number_of(job, turn)) number_next_turn(job);
  return number_of(job, turn).value();
}

std::uint64_t TurnOrder::turn_number(std::size_t job, std::size_t device) const
{
  const Place& place = place_of(job, device);
  ensure(place.asked != 0 || holder(device) == job, "a turn on a device that the job does not want");
  return number_of(job, place.turns).value();
}

void TurnOrder::number_next_turn(std::size_t job)
{
  Job& state = state_of(job);
  for (const std::size_t device : places_[job]) {
    const Place& place = place_of(job, device);
    ensure(place.takes_part == 0 || state.numbered < place.turns + open_turns,
           "a device of a job is many turns ahead of another one");
  }
  state.numbers[state.numbered++ % open_turns] = counters().numbers++;
}

void TurnOrder::ask(std::size_t job, std::size_t device)
{
  Place& place = place_of(job, device);
  ensure(place.takes_part != 0 && holder(device) != job, "a job asks for a device that it shares and does not hold");
  if (place.asked != 0) return;
  place.asked = ++counters().asked;
  const bool numbers_turns = hand_over_ == HandOver::Step && discipline_ == Discipline::Conserving;
  if (numbers_turns && place.turns == state_of(job).numbered) number_next_turn(job);
}

/// The job with the first turn that has a number.
std::optional<std::size_t> TurnOrder::next_turn(std::size_t device) const
{
  std::optional<std::size_t> next;
  std::uint64_t least = 0;
  for (const std::size_t job : jobs_at_[device]) {
    const Place& place = place_of(job, device);
    if (place.takes_part == 0) continue;
    const auto number = number_of(job, place.turns);
    if (!number || (next && *number > least)) continue;
    next = job;
    least = *number;
  }
  return next;
}

std::optional<std::size_t> TurnOrder::first_asked(std::size_t device) const
{
  std::optional<std::size_t> first;
  for (const std::size_t job : jobs_at_[device]) {
    const std::uint64_t asked = place_of(job, device).asked;
    if (asked != 0 && (!first || asked < place_of(*first, device).asked)) first = job;
  }
  return first;
}

/// The next job of the rotation that has not ended its steps of the round.
std::optional<std::size_t> TurnOrder::next_instruction(std::size_t device) const
{
  const auto& jobs = jobs_at_[device];
  std::optional<std::uint64_t> round;
  for (const std::size_t job : jobs) {
    const Place& place = place_of(job, device);
    if (place.takes_part == 0) continue;
    const std::uint64_t own = round_of(job, place.turns);
    round = round ? std::min(*round, own) : own;
  }
  if (!round) return std::nullopt;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const std::size_t job = jobs[(state_at(device).next + i) % jobs.size()];
    const Place& place = place_of(job, device);
    if (place.takes_part != 0 && round_of(job, place.turns) == *round) return job;
  }
  return std::nullopt;
}

std::optional<std::size_t> TurnOrder::grant(std::size_t device)
{
  if (holder(device)) return std::nullopt;
  std::optional<std::size_t> next;
  if (hand_over_ == HandOver::Step) {
    next = next_turn(device);
  } else if (discipline_ == Discipline::Strict) {
    next = next_instruction(device);
  } else {
    next = first_asked(device);
  }
  if (!next || place_of(*next, device).asked == 0) return std::nullopt;
  place_of(*next, device).asked = 0;
  state_at(device).holder = *next + 1;
  return next;
}

void TurnOrder::give_back(std::size_t job, std::size_t device, bool ends_step)
{
  ensure(holder(device) == job, "a job gives back a device that it does not hold");
  ensure(ends_step || hand_over_ == HandOver::Instruction, "a turn of a step ends with the step");
  Device& state = state_at(device);
  state.holder = 0;
  const auto& jobs = jobs_at_[device];
  state.next = static_cast<std::uint64_t>(std::ranges::find(jobs, job) - jobs.begin()) + 1;
  if (ends_step) ++place_of(job, device).turns;
}

}  // namespace isobar
