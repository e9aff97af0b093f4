#include "tests/support/simulated.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace isobar::sim {
namespace {

/// Each rank computes, then all ranks join an AllReduce.
class ReducingProgram : public Program {
 public:
  ReducingProgram(std::size_t ranks, Bytes size, std::vector<Flops> work)
      : ranks_(ranks), size_(size), work_(std::move(work))
  {
  }

  std::size_t ranks() const override { return ranks_; }
  Bytes resident_memory(std::size_t) const override { return Bytes(0); }
  std::uint64_t length(std::size_t, Lane lane) const override { return lane == Lane::Compute ? 2 : 0; }
  Instruction at(std::size_t rank, Lane, std::uint64_t position) const override
  {
    Instruction instruction;
    if (position == 0) {
      instruction.work = work_[rank];
    } else {
      instruction.opcode = Opcode::AllReduce;
      instruction.size = size_;
      instruction.peer = (rank + 1) % ranks_;
    }
    return instruction;
  }

 private:
  std::size_t ranks_;
  Bytes size_;
  std::vector<Flops> work_;
};

/// d0 → d1 → … → d0, each over its own link.
void ring_of_devices(PlatformFile& file, std::size_t devices, const std::string& bandwidth, const std::string& latency)
{
  for (std::size_t i = 0; i < devices; ++i) file.device(fmt::format("d{}", i), "1Gf");
  for (std::size_t i = 0; i < devices; ++i) {
    const std::size_t next = (i + 1) % devices;
    file.link(fmt::format("on{}", i), bandwidth, latency);
    file.route(fmt::format("d{}", i), fmt::format("d{}", next), {fmt::format("on{}", i)});
  }
}

TEST(SimulatedAllReduce, TakesTheRoundsOfTheRingAfterTheLastRankJoins)
{
  for (const std::size_t ranks : {2U, 3U, 7U, 8U}) {
    for (const double size : {0.0, 1.0, 17.0, 100e6}) {
      SCOPED_TRACE(fmt::format("{} ranks, {} bytes", ranks, size));
      const double time = number_from_child([&] {
        PlatformFile file;
        ring_of_devices(file, ranks, "100MBps", "10ms");
        std::vector<Flops> work(ranks, Flops(1e9));
        work.back() = Flops(3e9);
        const ReducingProgram program(ranks, Bytes(size), work);
        return simulate(file.load(), program, at_one_gigaflop(names(ranks)), 1, nullptr).step_times.at(0).value;
      });
      const auto N = static_cast<double>(ranks);
      const double expected = 3 + 2 * (N - 1) * (0.01 + std::ceil(size / N) / 100e6);
      EXPECT_NEAR(time, expected, 1e-6 * expected);
    }
  }
}

TEST(SimulatedAllReduce, BeginsWhenTheLastRankJoinsAndEndsForAllAtOnce)
{
  PlatformFile file;
  ring_of_devices(file, 3, "100MBps", "10ms");
  const ReducingProgram program(3, Bytes(300e6), {Flops(1e9), Flops(2e9), Flops(3e9)});
  EventList trace;
  const auto report = simulate(file.load(), program, at_one_gigaflop(names(3)), 2, &trace);
  std::size_t reductions = 0;
  for (const auto& event : trace.events) {
    if (event.instruction.opcode != Opcode::AllReduce) continue;
    ++reductions;
    const double step_begin = event.step == 0 ? 0 : report.step_times[0].value;
    EXPECT_NEAR(event.begin.value, step_begin + 3, 1e-6);
    EXPECT_NEAR(event.end.value, step_begin + report.step_times[0].value, 1e-6);
  }
  EXPECT_EQ(reductions, 6U);
  // Each link carries a third of 300 MB in each of four rounds, in each of two steps.
  ASSERT_EQ(report.links.size(), 3U);
  for (const auto& link : report.links) {
    EXPECT_DOUBLE_EQ(link.bytes.value, 2 * 4 * 100e6);
    EXPECT_NEAR(link.busy_time.value, 2 * 4 * 1.0, 1e-5);
  }
}

TEST(SimulatedAllReduce, SpeedsUpWithItsLinks)
{
  PlatformFile file;
  for (const std::string host : {"d0", "d1"}) file.device(host, "1Gf");
  for (const std::string link : {"on0", "on1"}) {
    file.link(link, "100MBps", "0s", fmt::format("bandwidth_file=\"{}\"", file.profile(link, "1 200e6\n")));
  }
  file.route("d0", "d1", {"on0"});
  file.route("d1", "d0", {"on1"});
  const ReducingProgram program(2, Bytes(300e6), {Flops(0), Flops(0)});
  const auto report = simulate(file.load(), program, at_one_gigaflop(names(2)), 1, nullptr);
  // Two rounds of 150 MB: 100 MB in the first second, 200 MB/s after that.
  EXPECT_NEAR(report.step_times[0].value, 2, 1e-6);
}

TEST(SimulatedAllReduce, ComesBeforeTheUpdateWhereNormsAreClipped)
{
  const auto step = [](bool clipped) {
    return number_from_child([&] {
      PlatformFile file;
      ring_of_devices(file, 3, "100MBps", "10ms");
      Workload workload = equal_layers(3, Bytes(0), Bytes(0));
      if (clipped) workload.training.clip_norm = 1.0;
      const auto plan = one_layer_per_device(names(3), Schedule::Sequential, 1);
      return simulate_plan(file.load(), workload, plan).step_times.at(0).value;
    });
  };
  const double rounds = 4 * (0.01 + 6 / 100e6);
  EXPECT_NEAR(step(true) - step(false), rounds, 1e-6);
}

}  // namespace
}  // namespace isobar::sim
