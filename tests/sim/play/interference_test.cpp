#include "core/base/child_process.hpp"
#include "tests/support/simulated.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

// Computations that are slower beside collectives.
namespace isobar::sim::interference_test {
namespace {

constexpr double exact = 1e-9;

/// Two devices of 1 GFLOP/s with a link of 100 MB/s and 10 ms in each direction.
void two_devices(PlatformFile& file)
{
  for (const auto& [from, to] : {std::pair("d0", "d1"), std::pair("d1", "d0")}) {
    file.device(from, "1Gf");
    file.link(fmt::format("{}-{}", from, to), "100MBps", "10ms");
    file.route(from, to, {fmt::format("{}-{}", from, to)});
  }
}

/// When the computations of rank 0 end.
std::vector<double> ends_of(const Program& program, const std::vector<double>& interference)
{
  auto ranks = on_hosts(names(program.ranks()));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) ranks[rank].interference = interference[rank];
  EventList trace;
  PlatformFile file;
  two_devices(file);
  simulate(file.load(), program, ranks, 1, &trace);
  std::vector<double> ends;
  for (const auto& event : trace.events) {
    if (event.rank == 0 && is_computation(event.instruction.opcode)) ends.push_back(event.end.value);
  }
  return ends;
}

/// The first end, of a simulation in a process of its own.
double first_end(const std::function<void(ListedProgram&)>& add, const std::vector<double>& interference)
{
  const auto results = run_in_children({[&] {
                                         ListedProgram program(2);
                                         add(program);
                                         return fmt::format("{:.17g}", ends_of(program, interference).at(0));
                                       }},
                                       1, Seconds(60));
  EXPECT_FALSE(results.at(0).failure);
  return results.at(0).failure ? 0 : std::stod(results.at(0).output);
}

TEST(Interference, SlowsDownAComputationWhileACollectiveLasts)
{
  for (const double interference : {1.0, 1.14, 2.0}) {
    for (const double collective : {0.02, 0.5, 1.14, 3.0}) {  // with two latencies
      const auto add = [&](ListedProgram& program) {
        program.collective(Opcode::AllReduce, {0, 1}, Bytes(1e8 * (collective - 0.02)));
        program.compute(0, Seconds(1));
      };
      const double expected = interference <= collective ? interference : collective + (1 - collective / interference);
      EXPECT_NEAR(first_end(add, {interference, 1}), expected, 1e-7) << interference << " " << collective;
    }
  }
}

TEST(Interference, BeginsWhenAllEndsHaveReachedTheCollective)
{
  const auto add = [](ListedProgram& program) {
    program.collective(Opcode::AllReduce, {0, 1}, Bytes(48e6));  // 0.5 s
    program.instruction(1, 1, 0).waits.add(after_compute(1));
    program.compute(0, Seconds(2));
    program.compute(1, Seconds(1));
  };
  EXPECT_NEAR(first_end(add, {1.25, 1}), 2 + 0.5 - 0.5 / 1.25, exact);
  EXPECT_NEAR(first_end(add, {1, 1.25}), 2, exact) << "of another device";
}

TEST(Interference, LastsAsLongAsAnyOfSeveralCollectives)
{
  const auto add = [](ListedProgram& program) {
    program.collective(Opcode::AllReduce, {0, 1}, Bytes(0), {}, Algorithm::Tree);  // 20 ms
    program.collective(Opcode::AllGather, {0, 1}, Bytes(49e6));                    // 0.5 s
    program.compute(0, Seconds(2));
  };
  EXPECT_NEAR(first_end(add, {1.25, 1}), 2 + 0.5 - 0.5 / 1.25, exact);
}

TEST(Interference, KeepsTheWorkOfAComputationOverManyCollectives)
{
  const auto add = [](ListedProgram& program) {
    for (std::uint64_t i = 0; i < 100; ++i) {
      program.collective(Opcode::AllGather, {0, 1}, Bytes(1e6));  // 20 ms each
    }
    program.compute(0, Seconds(4));
  };
  EXPECT_NEAR(first_end(add, {1.25, 1}), 4 + 2 - 2 / 1.25, 1e-8);
}

}  // namespace
}  // namespace isobar::sim::interference_test
