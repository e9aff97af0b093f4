#include "exec/device/stream.hpp"

#include "core/base/clock.hpp"
#include "core/base/interrupt.hpp"
#include "exec/device/device.hpp"
#include "exec/device/gpu.hpp"
#include "exec/device/message.hpp"

#include <ATen/ATen.h>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
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

/// Converts the events of one GPU to times of the steady clock.
class DeviceClock {
 public:
  explicit DeviceClock(const c10::Stream& stream)
  {
    event_on(stream)->synchronize();  // the first event takes longer
    reference_ = event_on(stream);
    reference_->synchronize();
    reference_time_ = steady_time();
  }

  Seconds time_of(const std::shared_ptr<c10::Event>& passed)
  {
    const std::lock_guard lock(mutex_);
    const Seconds time = reference_time_ + Seconds(1e-3 * reference_->elapsedTime(*passed));
    // CUDA returns milliseconds in float32, which resolve a microsecond only up to some seconds, so the reference
    // moves.
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

/// One clock for all streams of a device, so that their times are comparable.
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

struct Event::OnGpu {
  std::shared_ptr<c10::Event> event;
  std::shared_ptr<DeviceClock> clock;
};

bool Event::passed() const
{
  return !on_gpu_ || on_gpu_->event->query();
}

void Event::wait() const
{
  constexpr std::chrono::microseconds nap(20);
  while (!passed()) {
    throw_if_interrupted();
    std::this_thread::sleep_for(nap);
  }
}

Seconds Event::time() const
{
  if (!on_gpu_) return passed_at_;
  wait();
  return on_gpu_->clock->time_of(on_gpu_->event);
}

struct Stream::OnGpu {
  OnGpu(const c10::Stream& torch_stream, std::shared_ptr<DeviceClock> device_clock)
      : stream(torch_stream), clock(std::move(device_clock))
  {
  }

  void* handle() const { return gpu::handle_of(stream); }
  std::uint64_t* begin_of_work() const { return static_cast<std::uint64_t*>(begin.mutable_data_ptr()); }

  c10::Stream stream;
  std::shared_ptr<DeviceClock> clock;
  at::Tensor begin;  // when slow work began, in 8 bytes; made by the first such work
};

Event event_of_this_thread(const std::string& device)
{
  if (!is_gpu(device)) return Event(steady_time());
  const at::Device gpu(device);
  const c10::Stream stream = c10::impl::VirtualGuardImpl(gpu.type()).getStream(gpu);
  Event event;
  event.on_gpu_ = std::make_shared<Event::OnGpu>(Event::OnGpu{event_on(stream), clock_of(stream)});
  return event;
}

Stream::Stream(const std::string& device, Kind kind, MemoryMeter& meter) : meter_(meter)
{
  if (!is_gpu(device)) return;
  const at::Device gpu(device);
  // High-priority streams are a pool of their own, so no transfer shares a stream with a computation.
  const bool high_priority = kind == Kind::Computations;
  const auto stream = c10::impl::VirtualGuardImpl(gpu.type()).getStreamFromGlobalPool(gpu, high_priority);
  on_gpu_ = std::make_unique<OnGpu>(stream, clock_of(stream));
  gpu::count_memory(on_gpu_->handle(), meter.count());
}

Stream::~Stream() = default;

bool Stream::is_on_gpu() const
{
  return on_gpu_ != nullptr;
}

struct Stream::Scope::Guards {
  std::optional<MeteredThread> metered;
  std::optional<c10::StreamGuard> on_stream;
};

Stream::Scope::Scope(Stream& stream) : guards_(std::make_unique<Guards>())
{
  if (stream.on_gpu_) {
    guards_->on_stream.emplace(stream.on_gpu_->stream);
  } else {
    guards_->metered.emplace(stream.meter_);
  }
}

Stream::Scope::~Scope() = default;

void Stream::await(const Event& event)
{
  if (on_gpu_ && event.on_gpu_) event.on_gpu_->event->block(on_gpu_->stream);
}

void Stream::await(const Message& message)
{
  if (!on_gpu_) return;
  await(message.ready);
  for (const auto& tensor : message.tensors) {
    if (!tensor.is_cpu()) tensor.record_stream(on_gpu_->stream);
  }
}

Event Stream::record()
{
  if (!on_gpu_) return Event(steady_time());
  Event event;
  event.on_gpu_ = std::make_shared<Event::OnGpu>(Event::OnGpu{event_on(on_gpu_->stream), on_gpu_->clock});
  return event;
}

void Stream::begin_slow_work()
{
  if (!on_gpu_) return;
  if (!on_gpu_->begin.defined()) {
    on_gpu_->begin = at::empty({1}, at::TensorOptions(on_gpu_->stream.device()).dtype(at::kLong));
  }
  gpu::keep_time(on_gpu_->begin_of_work(), on_gpu_->handle());
}

void Stream::end_slow_work(double slowdown)
{
  if (on_gpu_) gpu::stretch(on_gpu_->begin_of_work(), slowdown, on_gpu_->handle());
}

void DeviceLane::ran(std::uint64_t step, std::uint64_t position, bool is_timed, const Event& begin, const Event& end)
{
  if (!stream.is_on_gpu()) return;
  const std::lock_guard lock(mutex_);
  pending_.push_back({step, position, is_timed, begin, end});
  while (!pending_.empty() && pending_.front().end.passed()) resolve_first();
}

Event DeviceLane::end_of(std::uint64_t step, std::uint64_t position)
{
  const std::lock_guard lock(mutex_);
  const auto found = std::lower_bound(
      pending_.begin(), pending_.end(), std::pair(step, position),
      [](const Pending& pending, const auto& place) { return std::pair(pending.step, pending.position) < place; });
  const bool is_pending = found != pending_.end() && found->step == step && found->position == position;
  return is_pending ? found->end : Event();
}

void DeviceLane::resolve_first()
{
  const Pending& first = pending_.front();
  if (first.is_timed) ended_.emplace_back(first.begin.time(), first.end.time());
  pending_.pop_front();
}

std::vector<std::pair<Seconds, Seconds>> DeviceLane::times()
{
  const std::lock_guard lock(mutex_);
  while (!pending_.empty()) resolve_first();
  return ended_;
}

}  // namespace isobar::exec
