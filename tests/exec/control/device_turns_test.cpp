#include "exec/control/device_turns.hpp"

#include "core/base/clock.hpp"
#include "core/failure.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <new>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace isobar::exec::device_turns_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr Seconds long_time(30);

using Places = std::vector<std::vector<std::size_t>>;

Mix mix_of(std::size_t jobs, Discipline discipline = Discipline::Strict)
{
  Mix mix;
  mix.discipline = discipline;
  for (std::size_t job = 0; job < jobs; ++job) {
    mix.jobs.push_back({.name = std::string(1, static_cast<char>('a' + job)), .plan = "", .workload = "", .start = {}});
    mix.turns.push_back({job, 1});
  }
  return mix;
}

DeviceTurns::Jobs at(Places places, std::size_t devices, std::uint64_t collectives = 0)
{
  DeviceTurns::Jobs jobs;
  for (const auto& of_job : places) jobs.collectives.emplace_back(of_job.size(), collectives);
  jobs.places = std::move(places);
  jobs.devices = devices;
  return jobs;
}

void take(DeviceTurns& turns, std::size_t job, std::size_t device)
{
  turns.ask(job, device);
  turns.await_device(job, device, long_time);
}

std::string failure_text(const std::function<void()>& work)
{
  try {
    work();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

/// Forks a child that runs `work` until it is killed.
pid_t child_of(const std::function<void()>& work)
{
  const pid_t child = fork();
  if (child != 0) return child;
  work();
  _exit(0);
}

void kill_now(pid_t child)
{
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST(DeviceTurns, ThreadsComputeInTheOrderOfTheRotation)
{
  DeviceTurns turns(mix_of(3), at({{0}, {0}, {0}}, 1), false);
  std::mutex mutex;
  std::vector<std::size_t> order;
  {
    std::vector<std::jthread> threads;
    for (std::size_t job = 0; job < 3; ++job) {
      threads.emplace_back([&, job] {
        for (int step = 0; step < 3; ++step) {
          take(turns, job, 0);
          {
            const std::lock_guard lock(mutex);
            order.push_back(job);
          }
          turns.give_back(job, 0, true);
        }
        turns.leave(job, 0);
      });
    }
  }
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 0, 1, 2, 0, 1, 2));
}

TEST(DeviceTurns, TheNumberOfATurnIsEqualOnAllDevicesOfAJob)
{
  for (const Discipline discipline : {Discipline::Strict, Discipline::Conserving}) {
    DeviceTurns turns(mix_of(2, discipline), at({{0, 1}, {0, 1}}, 2), false);
    EXPECT_EQ(turns.ask(0, 0), 0);
    EXPECT_EQ(turns.ask(1, 1), 1);
    EXPECT_EQ(turns.ask(0, 1), 0);
    EXPECT_EQ(turns.ask(1, 0), 1);
  }
}

TEST(DeviceTurns, WithoutDisciplineNoJobWaits)
{
  DeviceTurns turns(mix_of(2, Discipline::None), at({{0}, {0}}, 1), false);
  EXPECT_EQ(turns.ask(0, 0), std::nullopt);
  take(turns, 0, 0);
  take(turns, 1, 0);
  turns.give_back(0, 0, true);
  turns.leave(0);
}

TEST(DeviceTurns, AWaitEndsAtItsDeadlineWhenItIsCancelledAndByItsCheck)
{
  DeviceTurns turns(mix_of(2), at({{0}, {0}}, 1), false);
  take(turns, 0, 0);
  turns.ask(1, 0);
  EXPECT_THAT(failure_text([&] { turns.await_device(1, 0, Seconds(0.05)); }),
              testing::MatchesRegex("job b: no turn on its device after .* s: deadline passed"));
  EXPECT_EQ(
      failure_text([&] { turns.await_device(1, 0, long_time, [] { throw std::runtime_error("another order"); }); }),
      "another order");
  const std::jthread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    turns.cancel(1);
  });
  EXPECT_EQ(failure_text([&] { turns.await_device(1, 0, long_time); }), "job b: cancelled");
}

TEST(DeviceTurns, AJobThatLeavesWhileItHoldsTheDeviceGivesItToTheNext)
{
  DeviceTurns turns(mix_of(2), at({{0}, {0}}, 1), false);
  take(turns, 0, 0);
  turns.ask(1, 0);
  turns.leave(0, 0);
  turns.leave(0, 0);
  turns.await_device(1, 0, long_time);
}

TEST(DeviceTurns, AJobJoinsOnceItsStartHasPassedSinceTheFirstTurn)
{
  Mix mix = mix_of(2);
  mix.jobs[0].start = Seconds(5);
  mix.jobs[1].start = Seconds(5.2);
  DeviceTurns turns(mix, at({{0}, {0}}, 1), false);
  std::atomic<bool> joined = false;
  const std::jthread later([&] {
    turns.join(1);
    turns.join(1);
    joined = true;
    take(turns, 1, 0);
    turns.leave(1);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_FALSE(joined);  // no turn has begun
  const auto began = Clock::now();
  while (!joined) {
    take(turns, 0, 0);
    turns.give_back(0, 0, true);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_GE(time_since(began), Seconds(0.19));
  turns.leave(0);
}

TEST(DeviceTurns, AJobThatIsToStopDoesNotWaitForItsStart)
{
  Mix mix = mix_of(2);
  mix.jobs[1].start = Seconds(1000);
  DeviceTurns turns(mix, at({{0}, {0}}, 1), false);
  turns.join(1, [] { return true; });
  turns.leave(0);
  take(turns, 1, 0);
}

TEST(DeviceTurns, AJobThatJoinsLaterDoesNotWaitForOneThatHasFailed)
{
  Mix mix = mix_of(2);
  mix.jobs[1].start = Seconds(0.01);
  DeviceTurns turns(mix, at({{0}, {0}}, 1), false);
  turns.leave(0);
  turns.join(1);
  take(turns, 1, 0);
}

TEST(DeviceTurns, CollectivesOfTheJobsFollowEachOtherInTheOrderOfTheirTurns)
{
  DeviceTurns turns(mix_of(2), at({{0}, {0}}, 1, 2), true);
  take(turns, 0, 0);
  turns.give_back(0, 0, true);
  take(turns, 1, 0);
  turns.give_back(1, 0, true);
  turns.await_links(0, 0, 0, long_time);
  turns.collective_done(0, 0, 0);
  EXPECT_THAT(failure_text([&] { turns.await_links(1, 0, 0, Seconds(0.05)); }),
              HasSubstr("job b: no turn on the links of its device after"));
  turns.await_links(0, 0, 0, long_time);
  turns.collective_done(0, 0, 0);
  turns.await_links(1, 0, 0, long_time);
  turns.collective_done(1, 0, 0);
  EXPECT_THAT(failure_text([&] { turns.await_links(0, 0, 1, Seconds(0.05)); }),
              HasSubstr("job a: no turn on the links"));
  turns.leave(1);
  turns.await_links(0, 0, 1, long_time);
}

/// What processes share in these tests.
struct Counts {
  std::atomic<int> inside = 0;
  std::atomic<int> most_inside = 0;
  std::atomic<std::uint64_t> steps[3] = {};
};

class SharedCounts {
 public:
  SharedCounts()
      : counts_(new (mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Counts)
  {
  }
  SharedCounts(const SharedCounts&) = delete;
  SharedCounts& operator=(const SharedCounts&) = delete;
  ~SharedCounts() { munmap(counts_, sizeof(Counts)); }
  Counts* operator->() const { return counts_; }

 private:
  Counts* counts_;
};

void compute(DeviceTurns& turns, const SharedCounts& counts, std::size_t job)
{
  take(turns, job, 0);
  const int inside = ++counts->inside;
  if (inside > counts->most_inside) counts->most_inside = inside;
  ++counts->steps[job];
  --counts->inside;
  turns.give_back(job, 0, true);
}

TEST(DeviceTurns, ProcessesComputeOneAtATime)
{
  for (const Discipline discipline : {Discipline::Strict, Discipline::Conserving}) {
    DeviceTurns turns(mix_of(3, discipline), at({{0}, {0}, {0}}, 1), false);
    const SharedCounts counts;
    std::vector<pid_t> children;
    for (std::size_t job = 0; job < 3; ++job) {
      children.push_back(child_of([&, job] {
        for (int step = 0; step < 300; ++step) compute(turns, counts, job);
        turns.leave(job);
      }));
    }
    for (const pid_t child : children) waitpid(child, nullptr, 0);
    for (const auto& steps : counts->steps) EXPECT_EQ(steps, 300);
    EXPECT_EQ(counts->most_inside, 1);
  }
}

/// The child changes the state all the time, so most kills are within a change.
TEST(DeviceTurns, AProcessMayBeKilledAtAnyInstruction)
{
  std::mt19937 random(7);
  for (int kills = 0; kills < 100; ++kills) {
    DeviceTurns turns(mix_of(2, Discipline::Conserving), at({{0, 1}, {0, 1}}, 2, 1), true);
    const SharedCounts counts;
    const pid_t child = child_of([&] {
      for (std::uint64_t turn = 0;; ++turn, ++counts->steps[0]) {
        for (const std::size_t device : {0, 1}) {
          take(turns, 0, device);
          turns.give_back(0, device, true);
          turns.await_links(0, device, turn, long_time);
          turns.collective_done(0, device, turn);
        }
      }
    });
    while (counts->steps[0] == 0) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    kill_now(child);
    turns.leave(0);
    for (std::uint64_t turn = 0; turn < 2; ++turn) {
      for (const std::size_t device : {0, 1}) {
        take(turns, 1, device);
        turns.give_back(1, device, true);
        turns.await_links(1, device, turn, long_time);
        turns.collective_done(1, device, turn);
      }
    }
  }
}

TEST(DeviceTurns, ThoseThatShareADeviceWithAKilledProcessGoOn)
{
  std::mt19937 random(11);
  for (int kills = 0; kills < 20; ++kills) {
    const Discipline discipline = kills % 2 == 0 ? Discipline::Strict : Discipline::Conserving;
    DeviceTurns turns(mix_of(3, discipline), at({{0}, {0}, {0}}, 1), false);
    const SharedCounts counts;
    std::vector<pid_t> children;
    for (std::size_t job = 0; job < 3; ++job) {
      children.push_back(child_of([&, job] {
        while (job == 1 || counts->steps[job] < 500) compute(turns, counts, job);
        turns.leave(job);
      }));
    }
    while (counts->steps[1] < 3) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
    kill_now(children[1]);
    turns.leave(1);
    for (const std::size_t job : {0, 2}) waitpid(children[job], nullptr, 0);
    EXPECT_EQ(counts->steps[0], 500);
    EXPECT_EQ(counts->steps[2], 500);
  }
}

}  // namespace
}  // namespace isobar::exec::device_turns_test
