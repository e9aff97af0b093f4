#include "exec/device/memory_meter.hpp"

#include "core/failure.hpp"
#include "core/text/quantity_text.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <fmt/format.h>

#include <malloc.h>
#include <exception>
#include <new>
#include <utility>

namespace isobar::exec {

namespace {

thread_local MemoryMeter* meter_of_thread = nullptr;
thread_local const std::string* place_of_thread = nullptr;
thread_local std::string place_left_by_failure;

/// Precedes each piece of memory; its size is LibTorch's alignment on the CPU.
struct alignas(64) Header {
  std::shared_ptr<MemoryCount> count;  // null when the allocating thread has no meter
  std::size_t bytes;
};

/// The current place of this thread, such as " in layer 3 (block)"; "" without one.
std::string place_suffix()
{
  return place_of_thread == nullptr ? "" : " in " + *place_of_thread;
}

[[noreturn]] void throw_out_of_memory(const std::string& details)
{
  throw_failure(environment_failure(Failure::Kind::OutOfMemory, "out of memory" + details));
}

[[noreturn]] void refuse_uncounted(std::size_t bytes)
{
  throw_out_of_memory(fmt::format("{}: {} requested; the machine has no more", place_suffix(),
                                  text_of(Bytes(static_cast<double>(bytes)))));
}

void free_metered(void* data)
{
  if (data == nullptr) return;
  auto* header = static_cast<Header*>(data) - 1;
  if (header->count) header->count->remove(header->bytes);
  header->~Header();
  c10::free_cpu(header);
}

/// Allocates as LibTorch does on the CPU, plus a header that says whose memory it is.
class MeteringAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override
  {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &free_metered, cpu};
    std::shared_ptr<MemoryCount> count = meter_of_thread == nullptr ? nullptr : meter_of_thread->take(bytes);
    void* memory = nullptr;
    try {
      memory = c10::alloc_cpu(bytes + sizeof(Header));
    } catch (const c10::Error&) {
      if (!count) refuse_uncounted(bytes);
      count->remove(bytes);
      meter_of_thread->refuse(bytes);
    }
    auto* header = new (memory) Header{std::move(count), bytes};
    return {header + 1, header + 1, &free_metered, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_metered; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

}  // namespace

void MemoryCount::raise_peak(std::size_t to)
{
  std::size_t before = peak.load(std::memory_order_relaxed);
  while (to > before && !peak.compare_exchange_weak(before, to, std::memory_order_relaxed)) {
  }
}

std::shared_ptr<MemoryCount> MemoryMeter::take(std::size_t bytes)
{
  const std::size_t now = count_->current.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (cap_ != 0 && now > cap_) {
    count_->remove(bytes);
    throw_out_of_memory(fmt::format(
        "{}: {} requested in addition to {} held, of {}", place_suffix(), text_of(Bytes(static_cast<double>(bytes))),
        text_of(Bytes(static_cast<double>(now - bytes))), text_of(Bytes(static_cast<double>(cap_)))));
  }
  count_->raise_peak(now);
  return count_;
}

void MemoryMeter::refuse(std::size_t bytes) const
{
  throw_out_of_memory(fmt::format("{}: {} requested in addition to {} held; the machine has no more", place_suffix(),
                                  text_of(Bytes(static_cast<double>(bytes))), text_of(current())));
}

void MemoryMeter::refuse_excess() const
{
  if (cap_ == 0 || peak().value <= static_cast<double>(cap_)) return;
  throw_out_of_memory(
      fmt::format(": {} held at once, of {}", text_of(peak()), text_of(Bytes(static_cast<double>(cap_)))));
}

MeteredThread::MeteredThread(MemoryMeter& meter) : before_(meter_of_thread)
{
  meter_of_thread = &meter;
}
MeteredThread::~MeteredThread()
{
  meter_of_thread = before_;
}

MemoryPlace::MemoryPlace(const std::string& where) : before_(place_of_thread), exceptions_(std::uncaught_exceptions())
{
  place_of_thread = &where;
}
MemoryPlace::~MemoryPlace()
{
  if (std::uncaught_exceptions() > exceptions_ && place_left_by_failure.empty()) {
    place_left_by_failure = place_suffix();
  }
  place_of_thread = before_;
}

std::string place_of_failure()
{
  return std::exchange(place_left_by_failure, "");
}

void meter_cpu_memory()
{
#ifdef __GLIBC__
  constexpr int never = -1;
  constexpr int headroom_bytes = 64 << 20;
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, never);
  mallopt(M_TOP_PAD, headroom_bytes);
#endif
  static MeteringAllocator allocator;
  constexpr std::uint8_t above_the_default = 1;
  c10::SetAllocator(c10::DeviceType::CPU, &allocator, above_the_default);
}

}  // namespace isobar::exec
