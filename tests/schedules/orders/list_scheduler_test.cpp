#include "schedules/orders/list_scheduler.hpp"

#include "core/base/pcg64.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace isobar::schedules::list_scheduler_test {
namespace {

/// Times in whole seconds, so that sums are exact.
class RandomTimes {
 public:
  explicit RandomTimes(std::uint64_t seed) : random_(seed) {}

  std::uint64_t number(std::uint64_t least, std::uint64_t most) { return least + random_.next() % (most - least + 1); }

  PipelineTimes draw(std::size_t devices, std::uint64_t microbatches, std::uint64_t longest_hop)
  {
    PipelineTimes times;
    times.microbatches = microbatches;
    times.splits_backward = number(0, 3) > 0;
    for (std::size_t i = 0; i < devices; ++i) {
      DeviceTimes device;
      device.forward = seconds(1, 6);
      device.backward_input = seconds(1, 6);
      if (times.splits_backward) device.backward_weight = seconds(1, 6);
      device.output = seconds(0, longest_hop);
      device.gradient = seconds(0, longest_hop);
      device.slots = number(1, microbatches);
      times.devices.push_back(device);
    }
    return times;
  }

 private:
  Seconds seconds(std::uint64_t least, std::uint64_t most) { return Seconds(static_cast<double>(number(least, most))); }

  Pcg64 random_;
};

/// The least makespan, by branching over all active schedules (Giffler and Thompson, 1960): one of them is optimal.
/// Micro-batches are alike, so each kind of task runs in their order.
class BruteForce {
 public:
  BruteForce(const PipelineTimes& times, double best) : times_(times), best_(best) {}

  double least()
  {
    State state;
    state.devices.resize(times_.devices.size());
    branch(state);
    return best_;
  }

 private:
  static constexpr double never = std::numeric_limits<double>::infinity();
  enum Kind : std::size_t { Forward, Backward, Weight };
  struct Device {
    double free = 0;
    std::vector<double> ends[3];
  };
  struct State {
    std::vector<Device> devices;
    double end = 0;
  };

  double duration(std::size_t i, std::size_t kind) const
  {
    const DeviceTimes& device = times_.devices[i];
    if (kind == Forward) return device.forward.value;
    return kind == Backward ? device.backward_input.value : device.backward_weight.value;
  }

  double ready(const State& state, std::size_t i, std::size_t kind) const
  {
    const Device& device = state.devices[i];
    const std::size_t m = device.ends[kind].size();
    if (m == times_.microbatches || (kind == Weight && !times_.splits_backward)) return never;
    const auto end_of = [m](const std::vector<double>& ends) { return m < ends.size() ? ends[m] : never; };
    if (kind == Weight) return end_of(device.ends[Backward]);
    if (kind == Backward) {
      const double own = end_of(device.ends[Forward]);
      if (i + 1 == state.devices.size()) return own;
      return std::max(own, end_of(state.devices[i + 1].ends[Backward]) + times_.devices[i].gradient.value);
    }
    const auto& releases = device.ends[times_.splits_backward ? Weight : Backward];
    if (m >= releases.size() + times_.devices[i].slots) return never;
    return i == 0 ? 0 : end_of(state.devices[i - 1].ends[Forward]) + times_.devices[i - 1].output.value;
  }

  double remaining(const State& state, std::size_t i) const
  {
    double work = 0;
    for (const std::size_t kind : {Forward, Backward, Weight}) {
      if (kind == Weight && !times_.splits_backward) continue;
      work += static_cast<double>(times_.microbatches - state.devices[i].ends[kind].size()) * duration(i, kind);
    }
    return work;
  }

  void branch(const State& state)
  {
    double first_end = never;
    std::size_t first_device = 0;
    bool done = true;
    for (std::size_t i = 0; i < state.devices.size(); ++i) {
      const double work = remaining(state, i);
      if (work > 0 && state.devices[i].free + work >= best_) return;
      done = done && work == 0;
      for (const std::size_t kind : {Forward, Backward, Weight}) {
        const double end = std::max(state.devices[i].free, ready(state, i, kind)) + duration(i, kind);
        if (end < first_end) {
          first_end = end;
          first_device = i;
        }
      }
    }
    if (done) {
      best_ = std::min(best_, state.end);
      return;
    }
    for (const std::size_t kind : {Forward, Backward, Weight}) {
      const double start = std::max(state.devices[first_device].free, ready(state, first_device, kind));
      if (start >= first_end) continue;
      State next = state;
      Device& device = next.devices[first_device];
      device.free = start + duration(first_device, kind);
      device.ends[kind].push_back(device.free);
      next.end = std::max(next.end, device.free);
      branch(next);
    }
  }

  const PipelineTimes& times_;
  double best_;
};

struct Quality {
  int cases = 0;
  int optimal = 0;
};

Quality quality_of_list_scheduling(std::uint64_t longest_hop)
{
  RandomTimes random(7 + longest_hop);
  Quality quality;
  for (int n = 0; n < 1000; ++n) {
    const std::size_t devices = random.number(1, 3);
    const PipelineTimes times = random.draw(devices, random.number(2, 4), longest_hop);
    const ListedOrders found = list_schedule(times);
    const double least = BruteForce(times, found.makespan.value).least();
    EXPECT_LE(makespan_bound(times).value, least) << "case " << n;
    ++quality.cases;
    quality.optimal += found.makespan.value == least ? 1 : 0;
  }
  return quality;
}

TEST(ListSchedule, IsOptimalInNineteenOfTwentySmallCasesAndItsBoundIsNeverAboveTheOptimum)
{
  const Quality quality = quality_of_list_scheduling(0);
  EXPECT_GE(quality.optimal * 20, quality.cases * 19) << quality.optimal << " of " << quality.cases;
}

TEST(ListSchedule, IsOptimalInNineteenOfTwentySmallCasesWithDelays)
{
  const Quality quality = quality_of_list_scheduling(3);
  EXPECT_GE(quality.optimal * 20, quality.cases * 19) << quality.optimal << " of " << quality.cases;
}

TEST(ListSchedule, OrdersTakeTheTimeThatItSays)
{
  RandomTimes random(3);
  for (int n = 0; n < 200; ++n) {
    PipelineTimes times = random.draw(random.number(1, 6), random.number(1, 9), 5);
    for (auto& device : times.devices) {
      device.output_data = device.output / 2;
      device.gradient_data = device.gradient;
    }
    const ListedOrders found = list_schedule(times);
    EXPECT_EQ(makespan_of(times, found.orders).value, found.makespan.value);
    EXPECT_LE(makespan_bound(times).value, found.makespan.value);
  }
}

TEST(ListSchedule, HoldsNoMoreMicroBatchesThanADeviceHasSlots)
{
  RandomTimes random(5);
  for (int n = 0; n < 200; ++n) {
    const PipelineTimes times = random.draw(random.number(1, 5), random.number(1, 9), 5);
    const ListedOrders found = list_schedule(times);
    for (std::size_t i = 0; i < times.devices.size(); ++i) {
      const Opcode last = times.splits_backward ? Opcode::BackwardWeight : Opcode::Backward;
      const Bytes most = found.orders[i].peak([last](const Task& task) {
        if (task.opcode == Opcode::Forward) return Bytes(1);
        return Bytes(task.opcode == last ? -1 : 0);
      });
      EXPECT_LE(most.value, static_cast<double>(times.devices[i].slots));
    }
  }
}

TEST(ListSchedule, SendsOneMessageAfterTheOtherOverALane)
{
  PipelineTimes times;
  times.microbatches = 3;
  times.devices = {{Seconds(1), Seconds(1), Seconds(0), Seconds(4), Seconds(0), 3},
                   {Seconds(1), Seconds(1), Seconds(0), Seconds(0), Seconds(0), 3}};
  // The second device begins after 5, works for 6, and the first one ends 1 later.
  EXPECT_EQ(list_schedule(times).makespan.value, 12);
  // Three messages end at 5, 9 and 13; the last micro-batch takes 3 more.
  times.devices[0].output_data = Seconds(4);
  const ListedOrders found = list_schedule(times);
  EXPECT_EQ(found.makespan.value, 16);
  EXPECT_EQ(makespan_of(times, found.orders).value, 16);
}

TEST(ListSchedule, ProvesUnevenPipelinesOfEightDevicesToOnePercentOnAverage)
{
  RandomTimes random(11);
  double gaps = 0;
  constexpr int cases = 40;
  for (int n = 0; n < cases; ++n) {
    PipelineTimes times = random.draw(8, 64, 0);
    times.splits_backward = true;
    for (auto& device : times.devices) {
      device.backward_weight = Seconds(static_cast<double>(random.number(1, 6)));
      device.slots = 8;
    }
    const Seconds makespan = list_schedule(times).makespan;
    gaps += 1 - makespan_bound(times) / makespan;
  }
  EXPECT_LE(gaps / cases, 0.01);
}

TEST(MakespanBound, IsTheTimeOfOneMicroBatchThereAndBack)
{
  PipelineTimes times;
  times.splits_backward = true;
  times.devices = {{Seconds(1), Seconds(2), Seconds(3), Seconds(10), Seconds(20), 1},
                   {Seconds(4), Seconds(5), Seconds(6), Seconds(0), Seconds(0), 1}};
  // 1 + 10 + 4 + 5 + 20 + 2 + 3, and on the second device only 1 + 10 + 4 + 5 + 6.
  EXPECT_EQ(makespan_bound(times).value, 45);
  EXPECT_EQ(list_schedule(times).makespan.value, 45);
}

TEST(MakespanBound, CountsTheIdleTimeOfFullSlots)
{
  PipelineTimes times;
  times.microbatches = 4;
  times.devices = {{Seconds(1), Seconds(1), Seconds(0), Seconds(5), Seconds(5), 2},
                   {Seconds(1), Seconds(1), Seconds(0), Seconds(0), Seconds(0), 4}};
  // Two rounds of 1 + 5 + 1 + 1 + 5 + 1.
  EXPECT_EQ(makespan_bound(times).value, 28);
}

TEST(MakespanBound, CountsTheMessagesOfTheSlowestLane)
{
  PipelineTimes times;
  times.microbatches = 3;
  times.devices = {{Seconds(1), Seconds(1), Seconds(0), Seconds(5), Seconds(6), 3, Seconds(4), Seconds(0)},
                   {Seconds(1), Seconds(1), Seconds(0), Seconds(0), Seconds(0), 3}};
  // One there and back takes 1 + 5 + 1 + 1 + 6 + 1; two messages of 4 are before it.
  EXPECT_EQ(makespan_bound(times).value, 15 + 2 * 4);
  EXPECT_EQ(list_schedule(times).makespan.value, 23);
  times.devices[0].gradient_data = Seconds(6);
  EXPECT_EQ(makespan_bound(times).value, 15 + 2 * 6);
  times.input_data = Seconds(7);
  EXPECT_EQ(makespan_bound(times).value, 15 + 2 * 7);
}

}  // namespace
}  // namespace isobar::schedules::list_scheduler_test
