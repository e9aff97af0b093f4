#pragma once

#include "core/units.hpp"

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>

namespace isobar::exec {

/// Bytes that a meter has counted. Lives until the last counted piece of memory is freed. Thread-safe.
struct MemoryCount {
  std::atomic<std::size_t> current = 0;
  std::atomic<std::size_t> peak = 0;

  void add(std::size_t bytes) { raise_peak(current.fetch_add(bytes, std::memory_order_relaxed) + bytes); }
  void raise_peak(std::size_t to);
  void remove(std::size_t bytes) { current.fetch_sub(bytes, std::memory_order_relaxed); }
};

/// Counts the memory of a rank's tensors and refuses allocations beyond a cap.
///
/// Memory belongs to the rank whose thread allocated it, on whatever thread it is freed, and may outlive the meter.
/// Thread-safe.
class MemoryMeter {
 public:
  /// `cap`: most bytes held at once; 0: no cap.
  explicit MemoryMeter(Bytes cap) : cap_(static_cast<std::size_t>(cap.value)) {}
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;

  Bytes current() const { return Bytes(static_cast<double>(count_->current.load(std::memory_order_relaxed))); }
  Bytes peak() const { return Bytes(static_cast<double>(count_->peak.load(std::memory_order_relaxed))); }

  /// From now on, `peak` is that of the time after this call.
  void forget_peak() { count_->peak.store(count_->current.load(std::memory_order_relaxed), std::memory_order_relaxed); }

  /// Counts `bytes` as held; the caller that frees them removes them from the returned count.
  /// @throws an OutOfMemory failure, counting nothing, when they would exceed the cap.
  std::shared_ptr<MemoryCount> take(std::size_t bytes);

  /// Reports that the system could not give the calling thread `bytes` more. @throws an OutOfMemory failure.
  [[noreturn]] void refuse(std::size_t bytes) const;

  /// The count itself, for GPU memory, which cannot be refused on allocation: it is counted there and checked later.
  std::shared_ptr<MemoryCount> count() const { return count_; }
  /// Checks the peak. @throws an OutOfMemory failure when it exceeds the cap.
  void refuse_excess() const;

 private:
  std::size_t cap_;
  std::shared_ptr<MemoryCount> count_ = std::make_shared<MemoryCount>();
};

/// For its lifetime, `meter` counts the tensors that this thread allocates on the CPU. `meter` must outlive it.
class MeteredThread {
 public:
  explicit MeteredThread(MemoryMeter& meter);
  MeteredThread(const MeteredThread&) = delete;
  MeteredThread& operator=(const MeteredThread&) = delete;
  ~MeteredThread();

 private:
  MemoryMeter* before_;
};

/// For its lifetime, an out-of-memory failure on this thread names the place, such as "layer 3 (block)".
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

/// Returns and clears the innermost place that the exception just caught on this thread has left: " in layer 3
/// (block)", or "" if there was none.
std::string place_of_failure();

/// Counts every tensor that is allocated on the CPU from now on. The process then keeps freed memory, because each step
/// allocates the same sizes again and the system would clear fresh pages each time.
void meter_cpu_memory();

}  // namespace isobar::exec
