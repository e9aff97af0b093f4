#include "exec/device/memory_meter.hpp"

#include "core/errors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <new>
#include <string>

namespace isobar::exec::memory_meter_test {
namespace {

TEST(MemoryMeter, CountsWhatItsThreadAllocatesAndAnotherFrees)
{
  meter_cpu_memory();
  MemoryMeter meter(Bytes(0));
  at::Tensor tensor;
  {
    const MeteredThread metered(meter);
    tensor = at::empty({1000}, at::kFloat);
  }
  EXPECT_EQ(meter.current(), Bytes(4000));
  const at::Tensor uncounted = at::empty({1000}, at::kFloat);
  EXPECT_EQ(meter.current(), Bytes(4000));
  tensor.reset();
  EXPECT_EQ(meter.current(), Bytes(0));
  EXPECT_EQ(meter.peak(), Bytes(4000));
}

// The sanitizers fail here if the count ends with the meter.
TEST(MemoryMeter, MayBeDestroyedBeforeTheMemoryThatItCounted)
{
  meter_cpu_memory();
  auto meter = std::make_unique<MemoryMeter>(Bytes(0));
  at::Tensor tensor;
  {
    const MeteredThread metered(*meter);
    tensor = at::ones({1000}, at::kFloat);
  }
  meter.reset();
  EXPECT_EQ(tensor.sum().item<float>(), 1000);
  tensor.reset();
}

TEST(MemoryMeter, RefusesAnAllocationBeyondTheCapAndCountsNothingOfIt)
{
  meter_cpu_memory();
  MemoryMeter meter(Bytes(4096));
  const MeteredThread metered(meter);
  const at::Tensor first = at::empty({512}, at::kFloat);
  try {
    at::empty({1024}, at::kFloat);
    FAIL() << "4 KiB in addition to 2 KiB, of 4 KiB";
  } catch (const EnvironmentError& error) {
    EXPECT_THAT(error.what(),
                testing::HasSubstr("out of memory: 4.00 KiB requested in addition to 2.00 KiB held, of 4.00 KiB"));
  }
  EXPECT_EQ(meter.current(), Bytes(2048));
  const std::string layer = "layer 3 (block)";
  const MemoryPlace place(layer);
  EXPECT_THAT([] { at::empty({1024}, at::kFloat); },
              testing::ThrowsMessage<EnvironmentError>(testing::HasSubstr("in layer 3 (block): 4.00 KiB")));
}

TEST(MemoryMeter, TellsOfAMachineThatHasNoMore)
{
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer ends a program that requests this much";
#endif
  meter_cpu_memory();
  MemoryMeter meter(Bytes(0));
  const MeteredThread metered(meter);
  const at::Tensor held = at::empty({1024}, at::kFloat);
  const std::string layer = "layer 3 (block)";
  const MemoryPlace place(layer);
  EXPECT_THAT([] { at::empty({std::int64_t{1} << 46}, at::kFloat); },
              testing::ThrowsMessage<EnvironmentError>(
                  testing::HasSubstr("out of memory in layer 3 (block): 256 TiB requested in addition to 4.00 KiB "
                                     "held; the machine has no more")));
  EXPECT_EQ(meter.current(), Bytes(4096));
}

TEST(MemoryPlace, KeepsTheInnermostPlaceThatAFailureLeft)
{
  const std::string outer = "the backward pass";
  const std::string inner = "layer 4 (head)";
  const auto fail = [&] {
    const MemoryPlace outer_place(outer);
    const MemoryPlace inner_place(inner);
    throw std::bad_alloc();
  };
  EXPECT_THROW(fail(), std::bad_alloc);
  EXPECT_EQ(place_of_failure(), " in layer 4 (head)");
  EXPECT_EQ(place_of_failure(), "");
}

}  // namespace
}  // namespace isobar::exec::memory_meter_test
