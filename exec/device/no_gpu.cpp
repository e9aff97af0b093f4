#include "core/errors.hpp"
#include "exec/device/gpu.hpp"

namespace isobar::exec::gpu {

namespace {

[[noreturn]] void refuse()
{
  throw EnvironmentError("--device cuda: built without CUDA; build with a LibTorch for CUDA and nvcc of its version");
}

}  // namespace

void open(std::size_t /*index*/)
{
  refuse();
}

GpuFacts facts_of(std::size_t /*index*/)
{
  refuse();
}

void* handle_of(const c10::Stream& /*stream*/)
{
  refuse();
}

void count_memory(const void* /*stream*/, std::shared_ptr<MemoryCount> /*count*/)
{
  refuse();
}

void pin(void* /*memory*/, std::size_t /*bytes*/)
{
  refuse();
}

void unpin(void* /*memory*/) noexcept {}

void forbid_host_sync(bool /*forbidden*/) {}

bool has_failed()
{
  return false;
}

NamedRange::NamedRange(const std::string& /*name*/) {}

NamedRange::~NamedRange() = default;

void keep_time(std::uint64_t* /*begin*/, void* /*stream*/)
{
  refuse();
}

void stretch(const std::uint64_t* /*begin*/, double /*slowdown*/, void* /*stream*/)
{
  refuse();
}

}  // namespace isobar::exec::gpu
