#include "exec/control/device_turns.hpp"

#include "core/base/clock.hpp"
#include "core/base/interrupt.hpp"
#include "core/errors.hpp"
#include "core/failure.hpp"

#include <fmt/format.h>

#include <linux/futex.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <limits>
#include <new>
#include <type_traits>
#include <utility>

namespace isobar::exec {

namespace {

constexpr double nanoseconds = 1e9;
/// Turns of a job whose collectives some of its devices have done and others have not, at most.
constexpr std::size_t open_turns = 16;
/// Longest sleep of a wait, because a signal wakes no waiting thread, and a process may die before it wakes others.
constexpr Seconds next_look(0.1);

/// The collectives of a job on a device.
struct Links {
  std::uint64_t done = 0;               ///< turns whose collectives are all done
  std::uint64_t made[open_turns] = {};  ///< collectives of later turns, by turn
};
constexpr std::size_t links_words = sizeof(Links) / sizeof(std::uint64_t);

std::uint64_t now_ns()
{
  return static_cast<std::uint64_t>(steady_time().value * nanoseconds);
}

}  // namespace

/// The head of the shared memory. The two copies of the state follow it.
struct DeviceTurns::Shared {
  pthread_mutex_t mutex;
  std::atomic<std::uint32_t> changes;  // a futex
  std::atomic<std::uint32_t> current;  // which copy of the state is valid
  std::atomic<std::uint64_t> works;
  std::uint64_t words[1];
};

/// One copy of the state.
struct DeviceTurns::State {
  std::uint64_t& began;             // when the first turn did; 0: not yet
  std::span<std::uint64_t> joined;  // by job
  std::span<Links> links;           // by index_of
  TurnOrder* turns;
};

/// Holds the mutex. That its owner has died is no harm, since the current copy of the state is whole. Nothing else can
/// keep it from being locked.
class DeviceTurns::Lock {
 public:
  explicit Lock(pthread_mutex_t& mutex) : mutex_(mutex)
  {
    const int result = pthread_mutex_lock(&mutex_);
    if (result == EOWNERDEAD) pthread_mutex_consistent(&mutex_);
    if (result != 0 && result != EOWNERDEAD) std::abort();
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  ~Lock() { pthread_mutex_unlock(&mutex_); }

 private:
  pthread_mutex_t& mutex_;
};

DeviceTurns::DeviceTurns(const Mix& mix, Jobs jobs, bool orders_collectives)
    : mix_(mix),
      jobs_(std::move(jobs)),
      has_turns_(mix.discipline != Discipline::None),
      orders_collectives_(orders_collectives),
      collectives_(mix.jobs.size() * jobs_.devices)
{
  ensure(has_turns_ || !orders_collectives_, "collectives follow the order of turns");
  static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free);
  const std::size_t count = mix.jobs.size();
  Seconds earliest(std::numeric_limits<double>::infinity());
  for (const auto& job : mix_.jobs) earliest = std::min(earliest, job.start);
  for (std::size_t job = 0; job < count; ++job) {
    mix_.jobs[job].start = mix_.jobs[job].start - earliest;
    for (std::size_t i = 0; i < jobs_.places.at(job).size(); ++i) {
      collectives_[index_of(job, jobs_.places[job][i])] = jobs_.collectives.at(job).at(i);
    }
    cancelled_.push_back(std::make_unique<std::atomic<bool>>(false));
  }
  const std::size_t turn_words = TurnOrder::words(count, jobs_.devices);
  state_words_ = 1 + count + count * jobs_.devices * links_words + turn_words;
  mapped_bytes_ = sizeof(Shared) + 2 * state_words_ * sizeof(std::uint64_t);
  void* memory = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw EnvironmentError(fmt::format("cannot share memory: {}", std::strerror(errno)));
  shared_ = new (memory) Shared{};
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&shared_->mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
  for (std::size_t copy = 0; copy < 2 && has_turns_; ++copy) {
    const std::span words(shared_->words + copy * state_words_, state_words_);
    turns_.emplace_back(mix_, jobs_.places, jobs_.devices, words.last(turn_words));
  }
  for (std::size_t job = 0; job < count; ++job) {
    if (mix_.jobs[job].start == Seconds(0)) join(job);
  }
}

DeviceTurns::~DeviceTurns()
{
  munmap(shared_, mapped_bytes_);
}

DeviceTurns::State DeviceTurns::state_in(std::size_t copy)
{
  std::uint64_t* words = shared_->words + copy * state_words_;
  const std::size_t count = mix_.jobs.size();
  auto* links = std::launder(reinterpret_cast<Links*>(words + 1 + count));
  return {words[0], {words + 1, count}, {links, count * jobs_.devices}, has_turns_ ? &turns_[copy] : nullptr};
}

/// Makes a change to the state, and wakes those that wait for one. Nothing is changed if `make` throws.
template <typename Change>
auto DeviceTurns::change(Change make)
{
  const auto changed = [&] {
    const Lock lock(shared_->mutex);
    const std::uint32_t valid = shared_->current.load();
    const std::uint32_t spare = 1 - valid;
    std::copy_n(shared_->words + valid * state_words_, state_words_, shared_->words + spare * state_words_);
    State state = state_in(spare);
    if constexpr (std::is_void_v<decltype(make(state))>) {
      make(state);
      shared_->current.store(spare);
      return true;
    } else {
      auto result = make(state);
      shared_->current.store(spare);
      return result;
    }
  }();
  wake();
  return changed;
}

void DeviceTurns::wake() noexcept
{
  shared_->changes.fetch_add(1);
  syscall(SYS_futex, &shared_->changes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

/// Waits until `reached`, which gets the state, under the lock.
template <typename Reached>
void DeviceTurns::wait(std::size_t job, const char* what, Deadline deadline, const std::function<void()>& check,
                       Reached reached)
{
  const auto began = Clock::now();
  while (true) {
    const std::uint32_t seen = shared_->changes.load();
    {
      const Lock lock(shared_->mutex);
      State state = state_in(shared_->current.load());
      if (reached(state)) return;
    }
    const auto fail = [&](Failure::Kind kind, const std::string& why) {
      throw_failure(environment_failure(kind, fmt::format("job {}: {}", mix_.jobs[job].name, why)));
    };
    if (cancelled_[job]->load()) fail(Failure::Kind::Cancelled, "cancelled");
    throw_if_interrupted();
    if (check) check();
    const Seconds left = deadline.left();
    if (!(left > Seconds(0))) {
      fail(Failure::Kind::DeadlinePassed,
           fmt::format("no {} after {}: deadline passed", what, in_seconds(time_since(began))));
    }
    const timespec sleep = {0, static_cast<long>(std::min(left, next_look).value * nanoseconds)};
    syscall(SYS_futex, &shared_->changes, FUTEX_WAIT, seen, &sleep, nullptr, 0);
  }
}

/// Zeros what a job has made, when it joins.
void DeviceTurns::begin_collectives(State& state, std::size_t job)
{
  for (const std::size_t device : jobs_.places[job]) {
    state.links[index_of(job, device)] = Links{};
  }
}

void DeviceTurns::join(std::size_t job, const std::function<bool()>& stop_requested)
{
  const Seconds start = mix_.jobs[job].start;
  if (start > Seconds(0)) {
    const auto start_ns = static_cast<std::uint64_t>(start.value * nanoseconds);
    wait(job, "start of the mix", Deadline(Seconds(std::numeric_limits<double>::infinity())), {}, [&](State& state) {
      return (state.began != 0 && now_ns() >= state.began + start_ns) || (stop_requested && stop_requested());
    });
  }
  change([&](State& state) {
    if (std::exchange(state.joined[job], 1) != 0) return;
    begin_collectives(state, job);
    if (state.turns) state.turns->join(job);
  });
}

void DeviceTurns::leave(std::size_t job, std::size_t device) noexcept
{
  change([&](State& state) {
    if (state.began == 0) state.began = now_ns();  // a job that failed before its first turn delays no other
    if (!state.turns) return;
    state.turns->leave(job, device);
    state.turns->grant(device);
  });
}

void DeviceTurns::leave(std::size_t job) noexcept
{
  for (const std::size_t device : jobs_.places[job]) leave(job, device);
}

std::optional<std::uint64_t> DeviceTurns::ask(std::size_t job, std::size_t device)
{
  return change([&](State& state) -> std::optional<std::uint64_t> {
    if (state.began == 0) state.began = now_ns();
    if (!state.turns) return std::nullopt;
    TurnOrder& turns = *state.turns;
    turns.ask(job, device);
    std::optional<std::uint64_t> number;
    if (mix_.hand_over == HandOver::Step) number = turns.turn_number(job, device);
    turns.grant(device);
    return number;
  });
}

void DeviceTurns::await_device(std::size_t job, std::size_t device, Deadline deadline,
                               const std::function<void()>& check)
{
  if (!has_turns_) return;
  wait(job, "turn on its device", std::move(deadline), check,
       [&](State& state) { return state.turns->holder(device) == job; });
}

void DeviceTurns::give_back(std::size_t job, std::size_t device, bool ends_step)
{
  change([&](State& state) {
    if (!state.turns) return;
    state.turns->give_back(job, device, ends_step);
    state.turns->grant(device);
  });
}

bool DeviceTurns::may_use_links(State& state, std::size_t job, std::size_t device, std::uint64_t turn)
{
  const std::uint64_t number = state.turns->number_of(job, turn).value();
  for (std::size_t other = 0; other < mix_.jobs.size(); ++other) {
    const std::size_t index = index_of(other, device);
    if (other == job || collectives_[index] == 0 || !state.turns->takes_part(other, device)) continue;
    const auto next = state.turns->number_of(other, state.links[index].done);
    if (next && *next < number) return false;
  }
  return true;
}

void DeviceTurns::await_links(std::size_t job, std::size_t device, std::uint64_t turn, Deadline deadline,
                              const std::function<void()>& check)
{
  if (!orders_collectives_) return;
  change([&](State& state) { state.turns->number(job, turn); });
  wait(job, "turn on the links of its device", std::move(deadline), check,
       [&](State& state) { return may_use_links(state, job, device, turn); });
}

void DeviceTurns::collective_done(std::size_t job, std::size_t device, std::uint64_t turn)
{
  if (!orders_collectives_) return;
  change([&](State& state) {
    const std::size_t index = index_of(job, device);
    Links& links = state.links[index];
    ensure(turn >= links.done && turn < links.done + open_turns, "the collectives of a turn are made once");
    ++links.made[turn % open_turns];
    while (links.made[links.done % open_turns] == collectives_[index]) {
      links.made[links.done++ % open_turns] = 0;
    }
  });
}

std::uint64_t DeviceTurns::activity() const
{
  return shared_->changes.load() + shared_->works.load();
}

void DeviceTurns::works()
{
  shared_->works.fetch_add(1);
}

void DeviceTurns::cancel(std::size_t job) noexcept
{
  cancelled_[job]->store(true);
  wake();
}

}  // namespace isobar::exec
