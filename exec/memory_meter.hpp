#pragma once

#include "core/units.hpp"

#include <atomic>
#include <cstddef>
#include <string>

namespace isobar::exec {

/// Counts the memory that a rank's threads take for tensors on the CPU, and refuses what goes beyond a cap.
///
/// Memory belongs to the rank whose thread took it, wherever it is given back. Thread-safe.
class MemoryMeter {
 public:
  /// `cap`: 0 is none. `rank` names the rank in the refusal: "rank 1 (device b)".
  MemoryMeter(std::string rank, Bytes cap) : rank_(std::move(rank)), cap_(static_cast<std::size_t>(cap.value)) {}
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;

  Bytes current() const { return Bytes(static_cast<double>(current_.load(std::memory_order_relaxed))); }
  Bytes peak() const { return Bytes(static_cast<double>(peak_.load(std::memory_order_relaxed))); }

  /// @throws EnvironmentError where it would go beyond the cap; nothing is taken then.
  void take(std::size_t bytes);
  void give_back(std::size_t bytes) noexcept { current_.fetch_sub(bytes, std::memory_order_relaxed); }

 private:
  std::string rank_;
  std::size_t cap_;
  std::atomic<std::size_t> current_ = 0;
  std::atomic<std::size_t> peak_ = 0;
};

/// While it lives, tensors that this thread makes on the CPU count for `meter`, which must outlive them.
class MeteredThread {
 public:
  explicit MeteredThread(MemoryMeter& meter);
  MeteredThread(const MeteredThread&) = delete;
  MeteredThread& operator=(const MeteredThread&) = delete;
  ~MeteredThread();

 private:
  MemoryMeter* before_;
};

/// From now on every tensor on the CPU is counted; earlier ones never are.
void meter_cpu_memory();

}  // namespace isobar::exec
