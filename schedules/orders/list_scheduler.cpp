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

/// When a message has arrived that is ready then, behind another one that arrived at `before`.
double arrival(double ready, Seconds delay, Seconds data, double before)
{
  return std::max(ready + delay.value, before + data.value);
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
      device.outputs.reserve(microbatches);
      device.gradients.reserve(microbatches);
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
    std::vector<double> outputs;    // when they arrive on the next device
    std::vector<double> gradients;  // when they arrive on the device before
    std::uint64_t weights = 0;
    Candidate next;
    std::vector<Task> tasks;
  };

  /// When the input of the device's next forward, or of its next backward, is there.
  double forward_ready(std::size_t i) const
  {
    const std::size_t m = devices_[i].forward_ends.size();
    if (m == times_.microbatches) return never;
    if (i == 0) return 0;
    const auto& arrivals = devices_[i - 1].outputs;
    if (m >= arrivals.size()) return never;
    return arrivals[m];
  }
  double backward_ready(std::size_t i) const
  {
    const std::size_t m = devices_[i].gradients.size();
    if (m >= devices_[i].forward_ends.size()) return never;
    if (i + 1 == devices_.size()) return devices_[i].forward_ends[m];
    const auto& arrivals = devices_[i + 1].gradients;
    if (m >= arrivals.size()) return never;
    return arrivals[m];
  }

  bool may_forward(std::size_t i) const
  {
    const Device& device = devices_[i];
    const std::uint64_t forwards = device.forward_ends.size();
    const std::uint64_t released = times_.splits_backward ? device.weights : device.gradients.size();
    if (forwards - released >= times_.devices[i].slots) return false;
    return !variant_.few_ahead || forwards - device.gradients.size() < devices_.size() - i;
  }

  Candidate next_of(std::size_t i) const
  {
    const Device& device = devices_[i];
    const double backward = std::max(device.free, backward_ready(i));
    double forward = never;
    if (may_forward(i)) forward = std::max(device.free, forward_ready(i));
    const bool would_delay_backward =
        backward < never && backward < forward + times_.devices[i].forward.value && backward > forward;
    if (variant_.waits_for_backward && would_delay_backward) forward = never;
    const bool takes_forward = variant_.forward_first ? forward <= backward : forward < backward;
    const Candidate other =
        takes_forward ? Candidate{Opcode::Forward, forward} : Candidate{backward_opcode(), backward};
    if (!times_.splits_backward || device.weights == device.gradients.size()) return other;
    const double weight_end = device.free + times_.devices[i].backward_weight.value;
    if (variant_.weights_at_once || weight_end <= other.start) return {Opcode::BackwardWeight, device.free};
    return other;
  }

  Opcode backward_opcode() const { return times_.splits_backward ? Opcode::BackwardInput : Opcode::Backward; }

  void start(std::size_t i)
  {
    Device& device = devices_[i];
    const DeviceTimes& times = times_.devices[i];
    const DeviceTimes& hop = times_.devices[i > 0 ? i - 1 : 0];  // of gradients; the first device sends none
    const Candidate task = device.next;
    std::uint64_t microbatch = 0;
    switch (task.opcode) {
      case Opcode::Forward:
        microbatch = device.forward_ends.size();
        device.free = task.start + times.forward.value;
        device.forward_ends.push_back(device.free);
        device.outputs.push_back(arrival(device.free, times.output, times.output_data, last_of(device.outputs)));
        break;
      case Opcode::BackwardWeight:
        microbatch = device.weights++;
        device.free = task.start + times.backward_weight.value;
        break;
      default:
        microbatch = device.gradients.size();
        device.free = task.start + times.backward_input.value;
        device.gradients.push_back(arrival(device.free, hop.gradient, hop.gradient_data, last_of(device.gradients)));
        break;
    }
    device.tasks.push_back({task.opcode, 0, microbatch});
    end_ = std::max(end_, device.free);
  }

  static double last_of(const std::vector<double>& arrivals) { return arrivals.empty() ? 0 : arrivals.back(); }

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

/// Plays tasks by device, each in its order.
class OrderPlayer {
 public:
  OrderPlayer(const PipelineTimes& times, const std::vector<std::vector<Task>>& tasks)
      : times_(times),
        tasks_(tasks),
        microbatches_(static_cast<std::size_t>(times.microbatches)),
        devices_(times.devices.size()),
        forward_ends_(times.devices.size() * microbatches_, never),
        backward_ends_(forward_ends_),
        outputs_(forward_ends_),
        gradients_(forward_ends_)
  {
  }

  /// The makespan; `never` if devices wait for each other.
  double makespan()
  {
    for (bool moved = true; std::exchange(moved, false);) {
      for (std::size_t i = 0; i < devices_.size(); ++i) {
        while (start_next(i)) moved = true;
      }
    }
    double end = 0;
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      if (devices_[i].done < tasks_[i].size()) return never;
      end = std::max(end, devices_[i].free);
    }
    return end;
  }

 private:
  struct Device {
    std::size_t done = 0;  // of its tasks
    double free = 0;
    double last_output = 0;    // the arrival of its last message to the next device
    double last_gradient = 0;  // the same to the device before
  };

  /// Runs the next task of a device; false if there is none whose input is there.
  bool start_next(std::size_t i)
  {
    Device& device = devices_[i];
    if (device.done == tasks_[i].size()) return false;
    const Task& task = tasks_[i][device.done];
    const std::size_t at = i * microbatches_ + static_cast<std::size_t>(task.microbatch);
    const double ready = ready_time(i, task.opcode, at);
    if (ready == never) return false;
    ++device.done;
    device.free = std::max(device.free, ready);
    const DeviceTimes& times = times_.devices[i];
    if (task.opcode == Opcode::Forward) {
      device.free += times.forward.value;
      forward_ends_[at] = device.free;
      device.last_output = arrival(device.free, times.output, times.output_data, device.last_output);
      outputs_[at] = device.last_output;
    } else if (task.opcode == Opcode::BackwardWeight) {
      device.free += times.backward_weight.value;
    } else {
      device.free += times.backward_input.value;
      backward_ends_[at] = device.free;
      const DeviceTimes& hop = times_.devices[i > 0 ? i - 1 : 0];  // the first device sends nothing
      device.last_gradient = arrival(device.free, hop.gradient, hop.gradient_data, device.last_gradient);
      gradients_[at] = device.last_gradient;
    }
    return true;
  }

  double ready_time(std::size_t i, Opcode opcode, std::size_t at) const
  {
    if (opcode == Opcode::Forward) return i > 0 ? outputs_[at - microbatches_] : 0;
    if (opcode == Opcode::BackwardWeight) return backward_ends_[at];
    return i + 1 < devices_.size() ? std::max(forward_ends_[at], gradients_[at + microbatches_]) : forward_ends_[at];
  }

  const PipelineTimes& times_;
  const std::vector<std::vector<Task>>& tasks_;
  std::size_t microbatches_;
  std::vector<Device> devices_;
  // By device and micro-batch; outputs arrive on the next device, gradients on the one before.
  std::vector<double> forward_ends_;
  std::vector<double> backward_ends_;
  std::vector<double> outputs_;
  std::vector<double> gradients_;
};

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
          const double tried = has_slots(i) ? OrderPlayer(times_, tasks_).makespan() : never;
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
  double turn = times.input_data.value;
  for (const auto& device : devices) turn = std::max({turn, device.forward.value, device.backward_input.value});
  for (std::size_t i = 0; i + 1 < devices.size(); ++i) {
    turn = std::max({turn, devices[i].output_data.value, devices[i].gradient_data.value});
  }
  double bound = there_and_back.front() + last_weight + (microbatches - 1) * turn;
  double head = 0;
  double back = 0;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const DeviceTimes& device = devices[i];
    const double weight = times.splits_backward ? device.backward_weight.value : 0;
    const double both = device.forward.value + device.backward_input.value;
    const double busy = microbatches * (both + weight);
    const auto slots = static_cast<double>(device.slots);
    const std::uint64_t rounds = (times.microbatches + device.slots - 1) / device.slots;
    const double idle = there_and_back[i] - device.backward_input.value - slots * device.forward.value;
    bound = std::max({bound, head + busy + std::max(0.0, idle), head + microbatches * both + back + last_weight,
                      head + static_cast<double>(rounds) * (there_and_back[i] + weight)});
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
  const double makespan = OrderPlayer(times, tasks).makespan();
  if (makespan == never) throw InputError("devices wait for each other; order what they need first");
  return Seconds(makespan);
}

}  // namespace isobar::schedules
