#include "exec/device/device.hpp"

#include "core/base/child_process.hpp"
#include "core/base/clock.hpp"
#include "core/errors.hpp"
#include "exec/device/stream.hpp"
#include "exec/rank/interpreter.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

namespace isobar::exec::device_test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using testing::ThrowsMessage;

TEST(DeviceFromText, AcceptsTheCpuAndNumberedGpus)
{
  EXPECT_EQ(device_from_text("cpu"), "cpu");
  EXPECT_EQ(device_from_text("cuda"), "cuda:0");
  EXPECT_EQ(device_from_text("cuda:3"), "cuda:3");
  for (const char* name : {"", "gpu", "cuda:", "cuda:x", "cuda:1x", "cuda:-1", "cuda:128", "CPU"}) {
    EXPECT_THAT([&] { device_from_text(name); },
                ThrowsMessage<InputError>(HasSubstr("is not a device; write cpu, cuda, or cuda:N such as cuda:1")));
  }
}

TEST(OpenDevice, ReportsInOneLineWhyAGpuCannotBeUsed)
{
  open_device("cpu");
  const auto opened = run_in_child(
      [] {
        open_device("cuda:0");
        return std::string();
      },
      Seconds(120));
  if (!opened.failure) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(opened.failure->code, ExitCode::EnvironmentError);
  EXPECT_THAT(opened.failure->text, StartsWith("--device cuda: "));
  EXPECT_EQ(opened.failure->text.find('\n'), std::string::npos);
}

TEST(Stream, OnTheCpuHasDoneItsWorkWhenACallReturns)
{
  MemoryMeter meter(Bytes(0));
  meter_cpu_memory();
  Stream stream("cpu", Stream::Kind::Computations, meter);
  EXPECT_FALSE(stream.is_on_gpu());
  const Seconds before = steady_time();
  const Event event = stream.record();
  EXPECT_TRUE(event.passed());
  EXPECT_GE(event.time(), before);
  EXPECT_LE(event.time(), steady_time());
  const Stream::Scope scope(stream);
  const auto tensor = at::ones({1000}, at::kFloat);
  EXPECT_EQ(meter.current(), Bytes(4000));
  EXPECT_TRUE(on_cpu({tensor}).front().is_same(tensor));
  EXPECT_TRUE(on_device(tensor, "cpu").is_same(tensor));
}

TEST(MemoryMeter, RefusesAnExcessThatWasCountedElsewhere)
{
  MemoryMeter meter(Bytes(1000));
  meter.count()->add(800);
  meter.refuse_excess();
  meter.count()->add(1200);
  meter.count()->remove(2000);
  EXPECT_EQ(meter.current(), Bytes(0));
  EXPECT_THAT([&] { meter.refuse_excess(); }, ThrowsMessage<EnvironmentError>(StartsWith("out of memory: ")));
}

}  // namespace
}  // namespace isobar::exec::device_test
