#include "exec/model/device_queue.hpp"

#include "core/base/clock.hpp"
#include "core/base/interrupt.hpp"
#include "exec/model/device.hpp"
#include "exec/model/gpu.hpp"
#include "exec/model/message.hpp"

#include <torch/torch.h>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace isobar::exec {

namespace {

std::shared_ptr<c10::Event> event_on(const c10::Stream& stream)
{
  auto event = std::make_shared<c10::Event>(stream.device_type(), c10::EventFlag::BACKEND_DEFAULT);
  event->record(stream);
  return event;
}

/// Tells when a GPU passed an event, by the steady clock.
class DeviceClock {
 public:
  explicit DeviceClock(const c10::Stream& stream)
  {
    event_on(stream)->synchronize();  // the first event of all takes longer
    reference_ = event_on(stream);
    reference_->synchronize();
    reference_time_ = steady_time();
  }

  Seconds time_of(const std::shared_ptr<c10::Event>& passed)
  {
    const std::lock_guard lock(mutex_);
    const Seconds time = reference_time_ + Seconds(1e-3 * reference_->elapsedTime(*passed));
    // CUDA counts milliseconds in float32, which tells microseconds apart up to some seconds: the reference comes
    // along.
    constexpr Seconds longest(1);
    if (time - reference_time_ > longest) {
      reference_ = passed;
      reference_time_ = time;
    }
    return time;
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<c10::Event> reference_;
  Seconds reference_time_;
};

/// One for all queues of a device, so that their times compare.
std::shared_ptr<DeviceClock> clock_of(const c10::Stream& stream)
{
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, std::weak_ptr<DeviceClock>> clocks;
  const std::lock_guard lock(mutex);
  auto clock = clocks[stream.device_index()].lock();
  if (!clock) clocks[stream.device_index()] = clock = std::make_shared<DeviceClock>(stream);
  return clock;
}

}  // namespace

struct Mark::OnGpu {
  std::shared_ptr<c10::Event> event;
  std::shared_ptr<DeviceClock> clock;
};

bool Mark::passed() const
{
  return !on_gpu_ || on_gpu_->event->query();
}

void Mark::wait() const
{
  constexpr std::chrono::microseconds nap(20);
  while (!passed()) {
    throw_if_interrupted();
    std::this_thread::sleep_for(nap);
  }
}

Seconds Mark::time() const
{
  if (!on_gpu_) return passed_at_;
  wait();
  return on_gpu_->clock->time_of(on_gpu_->event);
}

struct DeviceQueue::Stream {
  Stream(const c10::Stream& of_torch, std::shared_ptr<DeviceClock> its_clock)
      : stream(of_torch), clock(std::move(its_clock))
  {
  }

  void* handle() const { return gpu::handle_of(stream); }
  std::uint64_t* begin_of_work() const { return static_cast<std::uint64_t*>(begin.mutable_data_ptr()); }

  c10::Stream stream;
  std::shared_ptr<DeviceClock> clock;
  at::Tensor begin;  // of slow work: 8 bytes, once there was some
};

Mark mark_of_this_thread(const std::string& device)
{
  if (!is_gpu(device)) return Mark(steady_time());
  const at::Device gpu(device);
  const c10::Stream stream = c10::impl::VirtualGuardImpl(gpu.type()).getStream(gpu);
  Mark mark;
  mark.on_gpu_ = std::make_shared<Mark::OnGpu>(Mark::OnGpu{event_on(stream), clock_of(stream)});
  return mark;
}

DeviceQueue::DeviceQueue(const std::string& device, Kind kind, MemoryMeter& meter) : meter_(meter)
{
  if (!is_gpu(device)) return;
  const at::Device gpu(device);
  // The streams of high priority are another pool, and no transfer takes one from a computation.
  const bool high_priority = kind == Kind::Computations;
  const auto stream = c10::impl::VirtualGuardImpl(gpu.type()).getStreamFromGlobalPool(gpu, high_priority);
  stream_ = std::make_unique<Stream>(stream, clock_of(stream));
  gpu::count_memory(stream_->handle(), meter.count());
}

DeviceQueue::~DeviceQueue() = default;

bool DeviceQueue::is_on_gpu() const
{
  return stream_ != nullptr;
}

struct DeviceQueue::Scope::Inside {
  std::optional<MeteredThread> metered;
  std::optional<c10::StreamGuard> on_stream;
};

DeviceQueue::Scope::Scope(DeviceQueue& queue) : inside_(std::make_unique<Inside>())
{
  if (queue.stream_) {
    inside_->on_stream.emplace(queue.stream_->stream);
  } else {
    inside_->metered.emplace(queue.meter_);
  }
}

DeviceQueue::Scope::~Scope() = default;

void DeviceQueue::await(const Message& message)
{
  if (!stream_) return;
  if (message.ready.on_gpu_) message.ready.on_gpu_->event->block(stream_->stream);
  for (const auto& tensor : message.tensors) {
    if (!tensor.is_cpu()) tensor.record_stream(stream_->stream);
  }
}

Mark DeviceQueue::mark()
{
  if (!stream_) return Mark(steady_time());
  Mark mark;
  mark.on_gpu_ = std::make_shared<Mark::OnGpu>(Mark::OnGpu{event_on(stream_->stream), stream_->clock});
  return mark;
}

void DeviceQueue::begin_slow_work()
{
  if (!stream_) return;
  if (!stream_->begin.defined()) {
    stream_->begin = at::empty({1}, at::TensorOptions(stream_->stream.device()).dtype(at::kLong));
  }
  gpu::keep_time(stream_->begin_of_work(), stream_->handle());
}

void DeviceQueue::end_slow_work(double slowdown)
{
  if (stream_) gpu::stretch(stream_->begin_of_work(), slowdown, stream_->handle());
}

}  // namespace isobar::exec
