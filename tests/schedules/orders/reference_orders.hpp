#pragma once

#include "core/order/order.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
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

/// forward_backward_pipelining_with_interleaving of Megatron-LM: a table of (micro-batch, chunk), group by group of p
/// micro-batches, whose last group is shorter if M is no multiple of p.
inline std::vector<Task> megatron(std::size_t rank, std::size_t ranks, std::size_t chunks, std::uint64_t microbatches)
{
  struct Entry {
    std::uint64_t microbatch = 0;
    std::size_t chunk = 0;
  };
  std::vector<Entry> table;
  for (std::uint64_t begin = 0; begin < microbatches; begin += ranks) {
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
      for (std::uint64_t m = begin; m < std::min<std::uint64_t>(begin + ranks, microbatches); ++m) {
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
  const std::size_t warm_up = std::min(table.size(), (ranks - rank - 1) * 2 + (chunks - 1) * ranks);
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

}  // namespace isobar::schedules::reference
