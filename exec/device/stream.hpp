#pragma once

#include "core/units.hpp"
#include "exec/device/memory_meter.hpp"

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace isobar::exec {

struct Message;

/// A point in a stream's queue of work. It has passed once the device has done the work before it; on the CPU, once it
/// is recorded.
class Event {
 public:
  Event() = default;  ///< an event that has passed, before all others
  explicit Event(Seconds passed_at) : passed_at_(passed_at) {}

  bool passed() const;
  /// Blocks the calling thread, and nothing else, until the device has passed the event. @throws Interrupted.
  void wait() const;
  /// Waits for the event and returns when it passed, by the steady clock. A GPU's times come from its own clock, which
  /// is aligned with the steady one when its first stream is made. They are accurate to about 10 us, and relative to
  /// each other to 1 us.
  /// @throws Interrupted.
  Seconds time() const;

 private:
  struct OnGpu;
  friend class Stream;
  friend Event event_of_this_thread(const std::string& device);

  Seconds passed_at_;
  std::shared_ptr<const OnGpu> on_gpu_;
};

/// Records an event on the stream of `device` that the calling thread currently uses.
Event event_of_this_thread(const std::string& device);

/// A sequence of work on a device. On the CPU a call returns when its work is done, on a GPU when it is queued.
///
/// LibTorch has 32 CUDA streams for computations and 32 for transfers; streams beyond that share them.
class Stream {
 public:
  enum class Kind { Computations, Transfers };

  /// `device` must be open. `meter` counts the memory that is allocated on the stream, and must outlive it.
  Stream(const std::string& device, Kind kind, MemoryMeter& meter);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();

  /// Whether the device is a GPU, so that work is done after its call returns.
  bool is_on_gpu() const;

  /// For its lifetime, what this thread computes on the device goes to the stream.
  class Scope {
   public:
    explicit Scope(Stream& stream);
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope();

   private:
    struct Guards;
    std::unique_ptr<Guards> guards_;
  };

  /// Orders work that is queued from now on after the work before the event.
  void await(const Event& event);
  /// The same after the work that makes the message, whose memory stays until the work queued from now on is done.
  void await(const Message& message);
  /// Records an event after the work queued so far.
  Event record();

  /// On a GPU, stretches the work that is queued between the two calls to `slowdown` times its time, by a kernel that
  /// waits for the rest. The GPU's other streams are not delayed. No effect on the CPU.
  void begin_slow_work();
  void end_slow_work(double slowdown);

 private:
  struct OnGpu;

  MemoryMeter& meter_;
  std::unique_ptr<OnGpu> on_gpu_;  // null on the CPU
};

/// A lane's stream, and its instructions that the device may not have ended. Thread-safe, except for the stream.
class DeviceLane {
 public:
  DeviceLane(const std::string& device, Stream::Kind kind, MemoryMeter& meter) : stream(device, kind, meter) {}

  /// Keeps the events before and after an instruction; with `is_timed` their times too.
  void ran(std::uint64_t step, std::uint64_t position, bool is_timed, const Event& begin, const Event& end);
  /// The event after an instruction; one that has passed if the device has ended it.
  Event end_of(std::uint64_t step, std::uint64_t position);
  /// Waits for the device. The begins and ends of the timed instructions, in their order.
  std::vector<std::pair<Seconds, Seconds>> times();

  Stream stream;

 private:
  struct Pending {
    std::uint64_t step;
    std::uint64_t position;
    bool is_timed;
    Event begin;
    Event end;
  };

  void resolve_first();

  std::mutex mutex_;
  std::deque<Pending> pending_;                     // in the order of the lane
  std::vector<std::pair<Seconds, Seconds>> ended_;  // begins and ends of timed instructions
};

}  // namespace isobar::exec
