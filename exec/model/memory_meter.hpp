#pragma once

#include "core/units.hpp"

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>

namespace isobar::exec {

/// What a meter has counted; lives as long as the last piece of memory that counts there. Thread-safe.
struct MemoryCount {
  std::atomic<std::size_t> current = 0;
  std::atomic<std::size_t> peak = 0;

  void add(std::size_t bytes) { raise_peak(current.fetch_add(bytes, std::memory_order_relaxed) + bytes); }
  void raise_peak(std::size_t to);
  void remove(std::size_t bytes) { current.fetch_sub(bytes, std::memory_order_relaxed); }
};

/// Counts the memory that a rank's tensors take, and refuses what goes beyond a cap.
///
/// Memory belongs to the rank whose thread took it, wherever it is given back, and may outlive the meter. Thread-safe.
class MemoryMeter {
 public:
  /// `cap`: 0 is none.
  explicit MemoryMeter(Bytes cap) : cap_(static_cast<std::size_t>(cap.value)) {}
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;

  Bytes current() const { return Bytes(static_cast<double>(count_->current.load(std::memory_order_relaxed))); }
  Bytes peak() const { return Bytes(static_cast<double>(count_->peak.load(std::memory_order_relaxed))); }

  /// Counts `bytes` as held; whoever gives them back takes them from the count.
  /// @throws a failure, OutOfMemory, where it would go beyond the cap; nothing is taken then.
  std::shared_ptr<MemoryCount> take(std::size_t bytes);

  /// @throws a failure, OutOfMemory: the machine has no `bytes` more for the calling thread.
  [[noreturn]] void refuse(std::size_t bytes) const;

  /// For memory that cannot be refused as it is taken, a GPU's: counted there, and looked at now and then.
  std::shared_ptr<MemoryCount> count() const { return count_; }
  /// @throws a failure, OutOfMemory, where the peak is beyond the cap.
  void refuse_excess() const;

 private:
  std::size_t cap_;
  std::shared_ptr<MemoryCount> count_ = std::make_shared<MemoryCount>();
};

/// While it lives, tensors that this thread makes on the CPU count for `meter`, which must outlive it.
class MeteredThread {
 public:
  explicit MeteredThread(MemoryMeter& meter);
  MeteredThread(const MeteredThread&) = delete;
  MeteredThread& operator=(const MeteredThread&) = delete;
  ~MeteredThread();

 private:
  MemoryMeter* before_;
};

/// While it lives, a refusal of memory on this thread says where it came: "layer 3 (block)".
class MemoryPlace {
 public:
  /// `where` must outlive it.
  explicit MemoryPlace(const std::string& where);
  MemoryPlace(const MemoryPlace&) = delete;
  MemoryPlace& operator=(const MemoryPlace&) = delete;
  ~MemoryPlace();

 private:
  const std::string* before_;
  int exceptions_;
};

/// Where an exception that this thread has just caught left the innermost place, " in layer 3 (block)"; "" where there
/// was none. Asked once.
std::string place_of_failure();

/// From now on every tensor on the CPU is counted; earlier ones never are. What is given back stays with the process: a
/// step takes the same memory as the one before, and pages from the system would have to be cleared each time.
void meter_cpu_memory();

}  // namespace isobar::exec
