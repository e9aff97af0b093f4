#include "sim/play/simulation.hpp"

#include "core/errors.hpp"
#include "tests/support/simulated.hpp"
#include "tests/support/thrown_message.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

// Errors that end a simulation, except those of hosts and links that change (simulation_profile_test.cpp).
namespace isobar::sim::simulation_failure_test {
namespace {

/// The message of a program that deadlocks.
std::string message_of_deadlock(const Program& program, std::uint64_t iterations = 1)
{
  PlatformFile file;
  chain_of_devices(file, program.ranks(), "100MBps", "10ms");
  const Platform platform = file.load();
  return message_of([&] { simulate(platform, program, on_hosts(names(program.ranks())), iterations, nullptr); });
}

TEST(Simulate, NamesTheWaitingInstructionsOfADeadlock)
{
  ListedProgram program(2);
  program.compute(0, Seconds(1));
  program.compute(0, Seconds(1), Wait{program.receive_lane(1, 0), 0, 1});
  program.transfer(1, 0, Bytes(1), after_compute(1));
  program.compute(1, Seconds(1), Wait{program.send_lane(1, 0), 0, 1});
  EXPECT_EQ(message_of_deadlock(program),
            "bug the program deadlocks:\n"
            "  Forward of micro-batch 1 (rank 0, step 0) waits for 1 of its receive activation\n"
            "  Recv activation of micro-batch 0 (rank 0, step 0) waits for rank 1\n"
            "  Forward of micro-batch 0 (rank 1, step 0) waits for 1 of its send activation\n"
            "  Send activation of micro-batch 0 (rank 1, step 0) waits for 1 of its compute");
}

TEST(Simulate, NamesTheRanksThatACollectiveWaitsFor)
{
  const std::vector<std::size_t> all = {0, 1, 2, 3};
  ListedProgram program(4);
  for (const std::size_t rank : {0U, 1U}) program.compute(rank, Seconds(1));
  for (const std::size_t rank : {2U, 3U}) program.compute(rank, Seconds(1), Wait{program.sync_lane(rank, all), 0, 1});
  program.collective(Opcode::AllReduce, all, Bytes(1), after_compute(1));
  EXPECT_EQ(message_of_deadlock(program),
            "bug the program deadlocks:\n"
            "  AllReduce parameter gradient (rank 0, step 0) waits for ranks 2, 3\n"
            "  AllReduce parameter gradient (rank 1, step 0) waits for ranks 2, 3\n"
            "  Forward of micro-batch 0 (rank 2, step 0) waits for 1 of its sync\n"
            "  AllReduce parameter gradient (rank 2, step 0) waits for 1 of its compute\n"
            "  Forward of micro-batch 0 (rank 3, step 0) waits for 1 of its sync\n"
            "  AllReduce parameter gradient (rank 3, step 0) waits for 1 of its compute");
}

/// The message of a program in which rank 1 waits for itself, so that nothing arrives at rank 0.
std::string deadlock_without_arrivals(Waits waits_of_rank_0)
{
  ListedProgram program(2);
  program.compute(0, Seconds(1), waits_of_rank_0);
  program.compute(1, Seconds(1), Wait{program.send_lane(1, 0), 0, 1});
  program.transfer(1, 0, Bytes(1), after_compute(1));
  return message_of_deadlock(program, 3);
}

TEST(Simulate, NamesTheStepThatALaneWaitsForBeforeItEntersAnother)
{
  EXPECT_EQ(deadlock_without_arrivals({}),
            "bug the program deadlocks:\n"
            "  Forward of micro-batch 0 (rank 0, step 2) waits for the end of step 0 of its rank\n"
            "  Recv activation of micro-batch 0 (rank 0, step 0) waits for rank 1\n"
            "  Forward of micro-batch 0 (rank 1, step 0) waits for 1 of its send activation\n"
            "  Send activation of micro-batch 0 (rank 1, step 0) waits for 1 of its compute");
}

TEST(Simulate, NamesTheStepOfAWaitThatLooksBack)
{
  const LaneId receive_lane = 1;
  EXPECT_EQ(deadlock_without_arrivals(Wait{receive_lane, 1, 1}),
            "bug the program deadlocks:\n"
            "  Forward of micro-batch 0 (rank 0, step 1) waits for 1 of its receive activation in step 0\n"
            "  Recv activation of micro-batch 0 (rank 0, step 0) waits for rank 1\n"
            "  Forward of micro-batch 0 (rank 1, step 0) waits for 1 of its send activation\n"
            "  Send activation of micro-batch 0 (rank 1, step 0) waits for 1 of its compute");
}

TEST(Simulate, PassesOnWhatTheSinkThrows)
{
  class FullDisk : public TraceSink {
   public:
    void record(const TraceEvent&) override { throw EnvironmentError("disk full"); }
  };
  PlatformFile file;
  chain_of_devices(file, 2, "100MBps", "10ms");
  const Platform platform = file.load();
  FullDisk sink;
  EXPECT_THAT(
      [&] {
        simulate_plan(platform, equal_layers(2, Bytes(0), Bytes(0)),
                      one_layer_per_device(names(2), ChainSchedule::GPipe, 1), 1, &sink);
      },
      ::testing::ThrowsMessage<EnvironmentError>("disk full"));
}

TEST(Simulate, GivesUpAStepBeyondThePrecisionOfItsClock)
{
  PlatformFile file("slow");
  file.device("a", "1f");
  const Platform platform = file.load();
  Workload workload = equal_layers(1, Bytes(1), Bytes(1));
  workload.layers[0].forward = Flops(1e18);
  EXPECT_EQ(
      message_of([&] { simulate_plan(platform, workload, one_layer_per_device({"a"}, ChainSchedule::Sequential, 1)); }),
      "InputError slow: the simulation takes more than 1e+15 s of simulated time; check the units of speeds, "
      "bandwidths and work, or lower --iterations");
}

TEST(Simulate, RunsOncePerProcess)
{
  PlatformFile file;
  chain_of_devices(file, 1, "100MBps", "10ms");
  const Platform platform = file.load();
  const auto run = [&] {
    simulate_plan(platform, equal_layers(1, Bytes(0), Bytes(0)),
                  one_layer_per_device(names(1), ChainSchedule::GPipe, 1));
  };
  EXPECT_EQ(message_of(run), "no error");
  EXPECT_EQ(message_of(run), "bug SimGrid's clock and callbacks allow one simulation per process");
}

}  // namespace
}  // namespace isobar::sim::simulation_failure_test
