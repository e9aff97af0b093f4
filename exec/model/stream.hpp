#pragma once

#include "core/units.hpp"
#include "exec/model/memory_meter.hpp"

#include <memory>
#include <string>

namespace isobar::exec {

struct Message;

/// A point in a queue's work that the device passes in its time; on the CPU it has passed when it is made.
class Event {
 public:
  Event() = default;  ///< passed before all others
  explicit Event(Seconds passed_at) : passed_at_(passed_at) {}

  bool passed() const;
  /// The calling thread sleeps until the device has passed it; nothing else waits.
  /// @throws Interrupted.
  void wait() const;
  /// When it was passed, by the steady clock, or waits until it is. Times on a GPU are those of its own clock, tied to
  /// the steady one when its first queue was made: right to some 10 us, of each other to 1 us.
  Seconds time() const;

 private:
  struct OnGpu;
  friend class Stream;
  friend Event event_of_this_thread(const std::string& device);

  Seconds passed_at_;
  std::shared_ptr<const OnGpu> on_gpu_;
};

/// A event in what the calling thread computes on `device`, wherever it is queued.
Event event_of_this_thread(const std::string& device);

/// Work on a device, one piece after the other. On the CPU a call returns when its work is done; on a GPU every queue
/// is a stream of its own, and calls return when their work is queued.
///
/// Torch has 32 streams for computations and as many for transfers; queues beyond share them.
class Stream {
 public:
  enum class Kind { Computations, Transfers };

  /// The device is open. What is made there in this queue counts for `meter`, which must outlive the queue.
  Stream(const std::string& device, Kind kind, MemoryMeter& meter);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();

  /// True where work is done later than its call returns.
  bool is_on_gpu() const;

  /// While it lives, what this thread computes on the device goes to the queue.
  class Scope {
   public:
    explicit Scope(Stream& queue);
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope();

   private:
    struct Inside;
    std::unique_ptr<Inside> inside_;
  };

  /// What is queued from now on comes after the work that made the message, and its memory stays until that is done.
  void await(const Message& message);
  Event record();

  /// On a GPU: what is queued between the two takes `slowdown` times its time, by a kernel that waits out the rest. The
  /// GPU's other queues go on meanwhile.
  void begin_slow_work();
  void end_slow_work(double slowdown);

 private:
  struct Handle;

  MemoryMeter& meter_;
  std::unique_ptr<Handle> handle_;  // none on the CPU
};

}  // namespace isobar::exec
