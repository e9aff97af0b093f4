#pragma once

#include "core/order/order.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

/// The schedules as slow lists, task by task, as their sources write them.
namespace isobar::schedules::reference {

/// The tasks of a rank.
class TaskList {
 public:
  void forward(std::uint64_t microbatch, std::uint32_t part = 0) { add(Opcode::Forward, part, microbatch); }
  void backward(std::uint64_t microbatch, std::uint32_t part = 0) { add(Opcode::Backward, part, microbatch); }
  void input(std::uint64_t microbatch, std::uint32_t part = 0) { add(Opcode::BackwardInput, part, microbatch); }
  void weight(std::uint64_t microbatch, std::uint32_t part = 0) { add(Opcode::BackwardWeight, part, microbatch); }

  /// Without micro-batches beyond M.
  std::vector<Task> up_to(std::uint64_t microbatches) const
  {
    std::vector<Task> tasks;
    std::copy_if(tasks_.begin(), tasks_.end(), std::back_inserter(tasks),
                 [&](const Task& task) { return task.microbatch < microbatches; });
    return tasks;
  }
  const std::vector<Task>& all() const { return tasks_; }

 private:
  void add(Opcode opcode, std::uint32_t part, std::uint64_t microbatch)
  {
    tasks_.push_back({opcode, part, microbatch});
  }

  std::vector<Task> tasks_;
};

inline std::vector<Task> sequential(std::uint64_t microbatches)
{
  TaskList list;
  for (std::uint64_t m = 0; m < microbatches; ++m) {
    list.forward(m);
    list.backward(m);
  }
  return list.all();
}

inline std::vector<Task> gpipe(std::uint64_t microbatches)
{
  TaskList list;
  for (std::uint64_t m = 0; m < microbatches; ++m) list.forward(m);
  for (std::uint64_t m = microbatches; m-- > 0;) list.backward(m);
  return list.all();
}

/// Each micro-batch through a part before any goes through the next.
inline std::vector<Task> duplex(std::size_t parts, std::uint64_t microbatches)
{
  TaskList list;
  for (std::uint32_t part = 0; part < parts; ++part) {
    for (std::uint64_t m = 0; m < microbatches; ++m) list.forward(m, part);
  }
  for (auto part = static_cast<std::uint32_t>(parts); part-- > 0;) {
    for (std::uint64_t m = microbatches; m-- > 0;) list.backward(m, part);
  }
  return list.all();
}

/// The same of one device among others with neighbouring stages: two micro-batches at a time, by 1F1B.
inline std::vector<Task> duplex_waves(std::size_t parts, std::uint64_t microbatches, std::uint64_t warm_up)
{
  TaskList list;
  const std::uint64_t waves = (microbatches + 1) / 2;
  const auto forward = [&](std::uint64_t wave) {
    for (std::uint32_t part = 0; part < parts; ++part) {
      for (std::uint64_t m = 2 * wave; m < std::min(2 * wave + 2, microbatches); ++m) list.forward(m, part);
    }
  };
  const auto backward = [&](std::uint64_t wave) {
    for (auto part = static_cast<std::uint32_t>(parts); part-- > 0;) {
      for (std::uint64_t m = std::min(2 * wave + 2, microbatches); m-- > 2 * wave;) list.backward(m, part);
    }
  };
  std::uint64_t ahead = 0;
  while (ahead < std::min(warm_up, waves)) forward(ahead++);
  for (std::uint64_t wave = 0; wave < waves; ++wave) {
    if (ahead < waves) forward(ahead++);
    backward(wave);
  }
  return list.all();
}

/// forward_backward_pipelining_without_interleaving of Megatron-LM.
inline std::vector<Task> one_forward_one_backward(std::uint64_t warm_up, std::uint64_t microbatches)
{
  TaskList list;
  const std::uint64_t ahead = std::min(warm_up, microbatches);
  std::uint64_t forwards = 0;
  std::uint64_t backwards = 0;
  while (forwards < ahead) list.forward(forwards++);
  for (std::uint64_t round = 0; round < microbatches - ahead; ++round) {
    list.forward(forwards++);
    list.backward(backwards++);
  }
  while (backwards < microbatches) list.backward(backwards++);
  return list.all();
}

/// forward_backward_pipelining_with_interleaving of Megatron-LM: a table of (micro-batch, chunk), group by group of
/// microbatch_group_size_per_vp_stage micro-batches, whose last group is shorter if M is no multiple of that.
inline std::vector<Task> megatron(std::size_t rank, std::size_t ranks, std::size_t chunks, std::uint64_t microbatches,
                                  std::uint64_t group)
{
  struct Entry {
    std::uint64_t microbatch = 0;
    std::size_t chunk = 0;
  };
  std::vector<Entry> table;
  for (std::uint64_t begin = 0; begin < microbatches; begin += group) {
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
      for (std::uint64_t m = begin; m < std::min(begin + group, microbatches); ++m) {
        table.push_back({m, chunk});
      }
    }
  }
  TaskList list;
  const auto forward = [&](std::size_t n) {
    list.forward(table[n].microbatch, static_cast<std::uint32_t>(table[n].chunk));
  };
  const auto backward = [&](std::size_t n) {
    list.backward(table[n].microbatch, static_cast<std::uint32_t>(chunks - 1 - table[n].chunk));
  };
  const std::size_t warm_up = std::min(table.size(), (ranks - rank - 1) * 2 + (chunks - 1) * group);
  for (std::size_t n = 0; n < warm_up; ++n) forward(n);
  for (std::size_t n = 0; n < table.size() - warm_up; ++n) {
    forward(n + warm_up);
    backward(n);
  }
  for (std::size_t n = table.size() - warm_up; n < table.size(); ++n) backward(n);
  return list.all();
}

/// The rounds of the zero-bubble schedules.
inline std::vector<Task> zero_bubble(std::uint64_t warm_up, std::uint64_t lag, std::uint64_t microbatches)
{
  TaskList list;
  for (std::uint64_t m = 0; m < std::min(warm_up, microbatches); ++m) list.forward(m);
  for (std::uint64_t n = 0; n < microbatches; ++n) {
    if (warm_up + n < microbatches) list.forward(warm_up + n);
    list.input(n);
    if (n >= lag) list.weight(n - lag);
  }
  for (std::uint64_t m = microbatches - std::min(lag, microbatches); m < microbatches; ++m) list.weight(m);
  return list.all();
}

/// _calculate_single_rank_operations of ScheduleZBVZeroBubble in PyTorch, with its variables.
inline std::vector<Task> zero_bubble_v(std::size_t rank, std::size_t ranks, std::uint64_t microbatches)
{
  const std::uint64_t n_micro = std::max<std::uint64_t>(2 * ranks - 1, microbatches);
  std::uint64_t f0 = 0;
  std::uint64_t f1 = 0;
  std::uint64_t b0 = 0;
  std::uint64_t b1 = 0;
  TaskList list;
  for (std::size_t i = 0; i < 2 * (ranks - rank) - 1; ++i) list.forward(f0++, 0);
  for (std::size_t i = 0; i < rank; ++i) {
    list.forward(f1++, 1);
    list.forward(f0++, 0);
  }
  for (std::size_t i = 0; i < ranks - rank; ++i) {
    list.forward(f1++, 1);
    list.input(b1, 1);
    list.weight(b1++, 1);
  }
  while (f1 < f0 || f0 < n_micro) {
    if (f0 < n_micro) list.forward(f0++, 0);
    list.input(b0, 0);
    list.weight(b0++, 0);
    list.forward(f1++, 1);
    list.input(b1, 1);
    list.weight(b1++, 1);
  }
  std::uint64_t w0 = b0;
  std::uint64_t w1 = b1;
  for (std::size_t i = 0; i < rank; ++i) {
    list.input(b0++, 0);
    list.input(b1++, 1);
  }
  for (std::size_t i = 0; i < ranks - rank; ++i) {
    list.input(b0++, 0);
    list.weight(w0++, 0);
  }
  while (w1 < b1) list.weight(w1++, 1);
  while (w0 < b0) list.weight(w0++, 0);
  return list.up_to(microbatches);
}

/// _calculate_single_rank_operations of ScheduleDualPipeV in PyTorch, by its steps and with its variables. A whole
/// backward is its two halves.
inline std::vector<Task> dualpipe_v(std::size_t rank, std::size_t num_ranks, std::uint64_t microbatches)
{
  const std::uint64_t num_chunks = std::max<std::uint64_t>(2 * num_ranks, microbatches);
  std::uint64_t forwards[2] = {};
  std::uint64_t inputs[2] = {};
  std::vector<std::pair<std::uint32_t, std::uint64_t>> weight_queue;
  TaskList list;
  const auto forward = [&](std::uint32_t part) { list.forward(forwards[part]++, part); };
  const auto full_backward = [&](std::uint32_t part) {
    list.input(inputs[part], part);
    list.weight(inputs[part]++, part);
  };
  const auto backward_input = [&](std::uint32_t part) {
    weight_queue.emplace_back(part, inputs[part]);
    list.input(inputs[part]++, part);
  };
  const auto weight_if_pending = [&] {
    if (weight_queue.empty()) return;
    list.weight(weight_queue.front().second, weight_queue.front().first);
    weight_queue.erase(weight_queue.begin());
  };
  const auto overlap_f_b = [&](std::uint32_t forward_part, std::uint32_t backward_part) {
    forward(forward_part);
    full_backward(backward_part);
  };
  for (std::size_t i = 0; i < (num_ranks - rank - 1) * 2; ++i) forward(0);  // step 1
  for (std::size_t i = 0; i < rank + 1; ++i) {                              // step 2
    forward(0);
    forward(1);
  }
  for (std::size_t i = 0; i < num_ranks - rank - 1; ++i) {  // step 3
    backward_input(1);
    weight_if_pending();
    forward(1);
  }
  for (std::uint64_t i = 0; i < num_chunks - num_ranks * 2 + rank + 1; ++i) {  // step 4
    overlap_f_b(0, 1);
    overlap_f_b(1, 0);
  }
  for (std::size_t i = 0; i < num_ranks - rank - 1; ++i) {  // step 5
    full_backward(1);
    overlap_f_b(1, 0);
  }
  bool enable_zb = false;
  const auto backward = [&](std::uint32_t part) { enable_zb ? backward_input(part) : full_backward(part); };
  const std::size_t step_6 = rank + 1;
  for (std::size_t i = 0; i < step_6; ++i) {
    if (i == step_6 / 2 && rank % 2 == 1) enable_zb = true;
    backward(1);
    if (i == step_6 / 2 && rank % 2 == 0) enable_zb = true;
    backward(0);
  }
  for (std::size_t i = 0; i < num_ranks - rank - 1; ++i) {  // step 7
    weight_if_pending();
    backward(0);
  }
  for (std::size_t i = 0; i < rank + 1; ++i) weight_if_pending();  // step 8
  return list.up_to(microbatches);
}

/// A building block of Qi et al., Pipeline Parallelism with Controllable Memory, every six units: when a rank forwards
/// through parts 0 and 1, and takes back through parts 1 and 0. Weight gradients go into free units.
inline std::vector<Task> repeated_block(const std::vector<std::uint64_t>& begin, std::uint64_t microbatches)
{
  TaskList list;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> weights;
  const std::uint64_t end = begin.back() + 6 * microbatches;
  for (std::uint64_t unit = 0; unit < end || !weights.empty(); ++unit) {
    const auto microbatch_of = [&](std::size_t pass) { return (unit - begin[pass]) / 6; };
    const auto runs = [&](std::size_t pass) {
      return unit >= begin[pass] && (unit - begin[pass]) % 6 == 0 && microbatch_of(pass) < microbatches;
    };
    if (runs(0)) {
      list.forward(microbatch_of(0), 0);
    } else if (runs(1)) {
      list.forward(microbatch_of(1), 1);
    } else if (runs(2) || runs(3)) {
      const std::uint32_t part = runs(2) ? 1 : 0;
      list.input(microbatch_of(3 - part), part);
      weights.emplace_back(microbatch_of(3 - part), part);
    } else if (!weights.empty()) {
      list.weight(weights.front().first, weights.front().second);
      weights.erase(weights.begin());
    }
  }
  return list.all();
}

/// stable_pattern_v_half of the authors.
inline std::vector<Task> v_half(std::uint64_t i, std::uint64_t num_stages, std::uint64_t microbatches)
{
  const std::uint64_t interval = num_stages % 2 == 0 ? 3 : 0;
  return repeated_block(
      {i * 2, num_stages * 3 - i - 2, num_stages * 3 + interval + i * 2 - 1, num_stages * 6 + interval - i - 2},
      microbatches);
}

/// stable_pattern_v_min of the authors.
inline std::vector<Task> v_min(std::uint64_t i, std::uint64_t num_stages, std::uint64_t microbatches)
{
  const std::uint64_t interval = num_stages % 3 == 0 ? 2 : 0;
  return repeated_block({i, num_stages * 2 - i - 1, num_stages * 2 + interval + i, num_stages * 4 + interval - i - 1},
                        microbatches);
}

}  // namespace isobar::schedules::reference
