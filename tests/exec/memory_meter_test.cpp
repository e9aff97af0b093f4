#include "exec/memory_meter.hpp"

#include "core/errors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace isobar::exec {
namespace {

TEST(MemoryMeter, CountsWhatItsThreadTakesAndWhatAnotherGivesBack)
{
  meter_cpu_memory();
  MemoryMeter meter("rank 0", Bytes(0));
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

// The sanitizers see it where the count is gone with the meter.
TEST(MemoryMeter, MayGoBeforeTheMemoryThatItCounted)
{
  meter_cpu_memory();
  auto meter = std::make_unique<MemoryMeter>("rank 0", Bytes(0));
  at::Tensor tensor;
  {
    const MeteredThread metered(*meter);
    tensor = at::ones({1000}, at::kFloat);
  }
  meter.reset();
  EXPECT_EQ(tensor.sum().item<float>(), 1000);
  tensor.reset();
}

TEST(MemoryMeter, RefusesWhatGoesBeyondTheCapAndHoldsNothingOfIt)
{
  meter_cpu_memory();
  MemoryMeter meter("rank 1 (b)", Bytes(4096));
  const MeteredThread metered(meter);
  const at::Tensor first = at::empty({512}, at::kFloat);
  try {
    at::empty({1024}, at::kFloat);
    FAIL() << "4 KiB beside 2 KiB, of 4 KiB";
  } catch (const EnvironmentError& error) {
    EXPECT_THAT(error.what(),
                testing::HasSubstr("rank 1 (b): out of memory: 4.00 KiB asked for beside 2.00 KiB held, of 4.00 KiB"));
  }
  EXPECT_EQ(meter.current(), Bytes(2048));
  const std::string layer = "layer 3 (block)";
  const MemoryPlace place(layer);
  EXPECT_THAT([] { at::empty({1024}, at::kFloat); },
              testing::ThrowsMessage<EnvironmentError>(testing::HasSubstr("in layer 3 (block): 4.00 KiB")));
}

}  // namespace
}  // namespace isobar::exec
