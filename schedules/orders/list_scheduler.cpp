#include "schedules/orders/list_scheduler.hpp"

#include "core/errors.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <utility>

namespace isobar::schedules {

namespace {

constexpr double never = std::numeric_limits<double>::infinity();

void require_times(const PipelineTimes& times)
{
  ensure(!times.devices.empty() && times.microbatches > 0, "a pipeline has devices and micro-batches");
  for (const auto& device : times.devices) ensure(device.slots > 0, "a device holds at least one micro-batch");
}

/// One way of breaking the list scheduler's ties.
struct Variant {
  bool forward_first = false;       ///< at equal starts
  bool weights_at_once = false;     ///< instead of filling gaps
  bool few_ahead = false;           ///< forwards ahead of backwards: at most the devices from here to the end
  bool waits_for_backward = false;  ///< no forward during which a backward would arrive
};

/// Schedules one variant. Micro-batches are alike, so forwards, backwards and weight gradients each run in order.
class ListScheduler {
 public:
  ListScheduler(const PipelineTimes& times, Variant variant)
      : times_(times), variant_(variant), devices_(times.devices.size())
  {
    const auto microbatches = static_cast<std::size_t>(times.microbatches);
    for (auto& device : devices_) {
      device.forward_ends.reserve(microbatches);
      device.backward_ends.reserve(microbatches);
    }
    for (std::size_t i = 0; i < devices_.size(); ++i) devices_[i].next = next_of(i);
  }

  double run()
  {
    const std::uint64_t tasks = times_.devices.size() * times_.microbatches * (times_.splits_backward ? 3 : 2);
    for (std::uint64_t n = 0; n < tasks; ++n) {
      const auto first = std::min_element(devices_.begin(), devices_.end(),
                                          [](const Device& a, const Device& b) { return a.next.start < b.next.start; });
      const auto i = static_cast<std::size_t>(first - devices_.begin());
      ensure(first->next.start < never, "some device can always continue");
      start(i);
      if (i > 0) devices_[i - 1].next = next_of(i - 1);
      devices_[i].next = next_of(i);
      if (i + 1 < devices_.size()) devices_[i + 1].next = next_of(i + 1);
    }
    return end_;
  }

  std::vector<std::vector<Task>> tasks() const
  {
    std::vector<std::vector<Task>> tasks;
    for (const auto& device : devices_) tasks.push_back(device.tasks);
    return tasks;
  }

 private:
  struct Candidate {
    Opcode opcode = Opcode::Forward;
    double start = never;
  };
  struct Device {
    double free = 0;
    std::vector<double> forward_ends;
    std::vector<double> backward_ends;
    std::uint64_t weights = 0;
    Candidate next;
    std::vector<Task> tasks;
  };

  /// When the next device of the chain, or the one before, has ended what `device` needs.
  double forward_ready(std::size_t i) const
  {
    const std::size_t m = devices_[i].forward_ends.size();
    if (m == times_.microbatches) return never;
    if (i == 0) return 0;
    const auto& ends = devices_[i - 1].forward_ends;
    return m < ends.size() ? ends[m] + times_.devices[i - 1].output.value : never;
  }
  double backward_ready(std::size_t i) const
  {
    const std::size_t m = devices_[i].backward_ends.size();
    if (m >= devices_[i].forward_ends.size()) return never;
    if (i + 1 == devices_.size()) return devices_[i].forward_ends[m];
    const auto& ends = devices_[i + 1].backward_ends;
    return m < ends.size() ? ends[m] + times_.devices[i].gradient.value : never;
  }

  bool may_forward(std::size_t i) const
  {
    const Device& device = devices_[i];
    const std::uint64_t forwards = device.forward_ends.size();
    const std::uint64_t released = times_.splits_backward ? device.weights : device.backward_ends.size();
    if (forwards - released >= times_.devices[i].slots) return false;
    return !variant_.few_ahead || forwards - device.backward_ends.size() < devices_.size() - i;
  }

  Candidate next_of(std::size_t i) const
  {
    const Device& device = devices_[i];
    const double backward = std::max(device.free, backward_ready(i));
    double forward = may_forward(i) ? std::max(device.free, forward_ready(i)) : never;
    const bool would_delay_backward =
        backward < never && backward < forward + times_.devices[i].forward.value && backward > forward;
    if (variant_.waits_for_backward && would_delay_backward) forward = never;
    const bool takes_forward = variant_.forward_first ? forward <= backward : forward < backward;
    const Candidate other =
        takes_forward ? Candidate{Opcode::Forward, forward} : Candidate{backward_opcode(), backward};
    if (!times_.splits_backward || device.weights == device.backward_ends.size()) return other;
    const double weight_end = device.free + times_.devices[i].backward_weight.value;
    if (variant_.weights_at_once || weight_end <= other.start) return {Opcode::BackwardWeight, device.free};
    return other;
  }

  Opcode backward_opcode() const { return times_.splits_backward ? Opcode::BackwardInput : Opcode::Backward; }

  void start(std::size_t i)
  {
    Device& device = devices_[i];
    const DeviceTimes& times = times_.devices[i];
    const Candidate task = device.next;
    std::uint64_t microbatch = 0;
    switch (task.opcode) {
      case Opcode::Forward:
        microbatch = device.forward_ends.size();
        device.free = task.start + times.forward.value;
        device.forward_ends.push_back(device.free);
        break;
      case Opcode::BackwardWeight:
        microbatch = device.weights++;
        device.free = task.start + times.backward_weight.value;
        break;
      default:
        microbatch = device.backward_ends.size();
        device.free = task.start + times.backward_input.value;
        device.backward_ends.push_back(device.free);
        break;
    }
    device.tasks.push_back({task.opcode, 0, microbatch});
    end_ = std::max(end_, device.free);
  }

  const PipelineTimes& times_;
  Variant variant_;
  std::vector<Device> devices_;
  double end_ = 0;
};

std::vector<Variant> all_variants()
{
  std::vector<Variant> variants;
  for (unsigned bits = 0; bits < 16; ++bits) {
    variants.push_back({(bits & 1U) != 0, (bits & 2U) != 0, (bits & 4U) != 0, (bits & 8U) != 0});
  }
  return variants;
}

/// The makespan of tasks by device, each in its order; `never` if devices wait for each other.
double played_makespan(const PipelineTimes& times, const std::vector<std::vector<Task>>& tasks)
{
  const auto& devices = times.devices;
  const auto microbatches = static_cast<std::size_t>(times.microbatches);
  std::vector<std::size_t> position(devices.size());
  std::vector<double> free(devices.size());
  std::vector<double> forward(devices.size() * microbatches, never);  // ends, by device and micro-batch
  std::vector<double> backward = forward;
  double end = 0;
  std::size_t remaining = 0;
  for (const auto& list : tasks) remaining += list.size();
  for (bool moved = true; std::exchange(moved, false);) {
    for (std::size_t i = 0; i < devices.size(); ++i) {
      for (; position[i] < tasks[i].size(); ++position[i], --remaining, moved = true) {
        const Task& task = tasks[i][position[i]];
        const std::size_t at = i * microbatches + static_cast<std::size_t>(task.microbatch);
        double ready = 0;
        double duration = devices[i].backward_weight.value;
        double* ends = nullptr;
        if (task.opcode == Opcode::Forward) {
          if (i > 0) ready = forward[at - microbatches] + devices[i - 1].output.value;
          duration = devices[i].forward.value;
          ends = &forward[at];
        } else if (task.opcode == Opcode::BackwardWeight) {
          ready = backward[at];
        } else {
          ready = forward[at];
          if (i + 1 < devices.size()) ready = std::max(ready, backward[at + microbatches] + devices[i].gradient.value);
          duration = devices[i].backward_input.value;
          ends = &backward[at];
        }
        if (ready == never) break;
        free[i] = std::max(free[i], ready) + duration;
        if (ends != nullptr) *ends = free[i];
        end = std::max(end, free[i]);
      }
    }
  }
  return remaining == 0 ? end : never;
}

/// Exchanges neighbouring tasks of a device as long as that shortens the step.
class Improvement {
 public:
  Improvement(const PipelineTimes& times, std::vector<std::vector<Task>> tasks)
      : times_(times), tasks_(std::move(tasks))
  {
  }

  /// Tries every exchange until none helps or about `most_evaluations` tasks have been timed.
  double run(double makespan, std::uint64_t most_evaluations)
  {
    std::uint64_t evaluations = 0;
    for (bool shorter = true; std::exchange(shorter, false);) {
      for (std::size_t i = 0; i < tasks_.size(); ++i) {
        for (std::size_t position = 0; position + 1 < tasks_[i].size(); ++position) {
          if (evaluations >= most_evaluations) return makespan;
          Task& first = tasks_[i][position];
          Task& second = tasks_[i][position + 1];
          if (first.opcode == second.opcode || first.microbatch == second.microbatch) continue;
          std::swap(first, second);
          evaluations += tasks_.size() * tasks_[i].size();
          const double tried = has_slots(i) ? played_makespan(times_, tasks_) : never;
          if (tried < makespan) {
            makespan = tried;
            shorter = true;
          } else {
            std::swap(first, second);
          }
        }
      }
    }
    return makespan;
  }

  const std::vector<std::vector<Task>>& tasks() const { return tasks_; }

 private:
  bool has_slots(std::size_t device) const
  {
    const Opcode last = times_.splits_backward ? Opcode::BackwardWeight : Opcode::Backward;
    std::uint64_t in_flight = 0;
    for (const auto& task : tasks_[device]) {
      if (task.opcode == Opcode::Forward && ++in_flight > times_.devices[device].slots) return false;
      if (task.opcode == last) --in_flight;
    }
    return true;
  }

  const PipelineTimes& times_;
  std::vector<std::vector<Task>> tasks_;
};

}  // namespace

ListedOrders list_schedule(const PipelineTimes& times)
{
  constexpr std::uint64_t most_evaluations = 20'000'000;
  require_times(times);
  struct Found {
    double makespan = 0;
    std::vector<std::vector<Task>> tasks;
  };
  std::vector<Found> found;
  for (const Variant variant : all_variants()) {
    ListScheduler scheduler(times, variant);
    const double makespan = scheduler.run();
    found.push_back({makespan, scheduler.tasks()});
  }
  std::ranges::stable_sort(found, {}, &Found::makespan);
  Found& best = found.front();
  if (best.makespan > makespan_bound(times).value) {
    Improvement improvement(times, best.tasks);
    best.makespan = improvement.run(best.makespan, most_evaluations);
    best.tasks = improvement.tasks();
  }
  ListedOrders result;
  result.makespan = Seconds(best.makespan);
  for (const auto& tasks : best.tasks) {
    std::vector<Run> runs;
    for (const auto& task : tasks) runs.push_back({1, {{task, 1}}});
    result.orders.emplace_back(std::move(runs));
  }
  return result;
}

Seconds makespan_bound(const PipelineTimes& times)
{
  require_times(times);
  const auto& devices = times.devices;
  const auto microbatches = static_cast<double>(times.microbatches);
  const double last_weight = times.splits_backward ? devices.front().backward_weight.value : 0;
  std::vector<double> there_and_back(devices.size() + 1);  // from the start of a forward to the end of its backward
  for (std::size_t i = devices.size(); i-- > 0;) {
    const DeviceTimes& device = devices[i];
    there_and_back[i] = there_and_back[i + 1] + device.forward.value + device.backward_input.value;
    if (i + 1 < devices.size()) there_and_back[i] += device.output.value + device.gradient.value;
  }
  double bound = 0;
  double head = 0;
  double back = 0;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const DeviceTimes& device = devices[i];
    const double weight = times.splits_backward ? device.backward_weight.value : 0;
    const double both = device.forward.value + device.backward_input.value;
    const double busy = microbatches * (both + weight);
    const auto slots = static_cast<double>(device.slots);
    const auto rounds = static_cast<double>((times.microbatches + device.slots - 1) / device.slots);
    const double idle = there_and_back[i] - device.backward_input.value - slots * device.forward.value;
    bound = std::max({bound, head + busy + std::max(0.0, idle), head + microbatches * both + back + last_weight,
                      head + there_and_back[i] + back + last_weight, head + rounds * (there_and_back[i] + weight)});
    head += device.forward.value + device.output.value;
    back += device.gradient.value + device.backward_input.value;
  }
  return Seconds(bound);
}

Seconds makespan_of(const PipelineTimes& times, const std::vector<Order>& orders)
{
  require_times(times);
  ensure(orders.size() == times.devices.size(), "an order for each device");
  std::vector<std::vector<Task>> tasks(orders.size());
  for (std::size_t i = 0; i < orders.size(); ++i) {
    for (std::uint64_t position = 0; position < orders[i].length(); ++position) {
      tasks[i].push_back(orders[i].at(position));
    }
  }
  const double makespan = played_makespan(times, tasks);
  if (makespan == never) throw InputError("devices wait for each other; order what they need first");
  return Seconds(makespan);
}

}  // namespace isobar::schedules
