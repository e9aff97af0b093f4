#include "core/base/child_process.hpp"
#include "core/costs/nominal_rates.hpp"
#include "core/program/player.hpp"
#include "tests/sim/platform/platform_files.hpp"
#include "tests/support/every_algorithm.hpp"
#include "tests/support/simulated.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

// Flows of a collective that share links, as simulated and as the player predicts them (core/program/round_time.hpp).
namespace isobar::sim::contention_test {
namespace {

/// Nodes of some devices each. Those of a node share its bus and its two links to a backbone that all nodes share.
/// Latencies and bandwidths are random; some links are not shared, some latencies are 0.
struct RandomNodes {
  explicit RandomNodes(unsigned seed) : random(seed)
  {
    const std::size_t nodes = 1 + random() % 3;
    file.link("backbone", bandwidth(), latency(), policy());
    for (std::size_t node = 0; node < nodes; ++node) {
      file.link(fmt::format("bus{}", node), bandwidth(), latency(), policy());
      for (const char* direction : {"out", "in"}) {
        file.link(fmt::format("{}{}", direction, node), bandwidth(), latency(), policy());
      }
      for (std::size_t i = 1 + random() % 4; i > 0; --i) {
        file.device(fmt::format("d{}", node_of.size()), "1Gf");
        node_of.push_back(node);
      }
    }
    for (std::size_t from = 0; from < node_of.size(); ++from) {
      for (std::size_t to = 0; to < node_of.size(); ++to) {
        if (from != to) file.route(fmt::format("d{}", from), fmt::format("d{}", to), links(node_of[from], node_of[to]));
      }
    }
  }

  std::string bandwidth() { return fmt::format("{}Bps", 1000000 * (1 + random() % 200)); }
  std::string latency() { return random() % 5 == 0 ? "0s" : fmt::format("{}us", 1 + random() % 10000); }
  std::string policy() { return random() % 4 == 0 ? "sharing_policy=\"FATPIPE\"" : ""; }

  static std::vector<std::string> links(std::size_t from, std::size_t to)
  {
    if (from == to) return {fmt::format("bus{}", from)};
    return {fmt::format("bus{}", from), fmt::format("out{}", from), "backbone", fmt::format("in{}", to),
            fmt::format("bus{}", to)};
  }

  std::mt19937_64 random;
  PlatformFile file;
  std::vector<std::size_t> node_of;  // of each device
};

/// The times of a random collective, as simulated and as played.
std::string times_of(Opcode opcode, Algorithm algorithm, unsigned seed)
{
  RandomNodes nodes(seed);
  const std::size_t devices = nodes.node_of.size();
  ListedProgram program(devices);
  std::vector<std::size_t> all(devices);
  std::iota(all.begin(), all.end(), std::size_t{0});
  program.collective(opcode, all, Bytes(static_cast<double>(devices * (1 + nodes.random() % 1000000))), {}, algorithm);
  const Platform platform = nodes.file.load();
  const Plan plan = one_layer_per_device(names(devices), ChainSchedule::Sequential, 1);
  const auto rates = nominal_rates(plan, platform.cluster());
  const Seconds played = play_program(program, rates).periods[0].end;
  const auto simulated = simulate(platform, program, on_hosts(names(devices)), 1, nullptr).step_times.at(0);
  PlayerRates alone = rates;
  alone.shared_links = {};
  const Seconds without = play_program(program, alone).periods[0].end;
  return fmt::format("{:.17g} {:.17g} {:.17g}", simulated.value, played.value, without.value);
}

TEST(SharedLinks, GiveTheFlowsOfACollectiveTheSameTimesSimulatedAndPlayed)
{
  constexpr unsigned seeds = 25;
  std::vector<std::function<std::string()>> work;
  std::vector<std::string> of;
  for (const auto opcode : {Opcode::AllReduce, Opcode::AllGather, Opcode::AllToAll, Opcode::Broadcast}) {
    for (const auto algorithm : every_algorithm()) {
      if (algorithm == Algorithm::Hierarchical) continue;  // which needs sites
      if (opcode != Opcode::AllReduce && algorithm != Algorithm::Ring) continue;
      for (unsigned seed = 0; seed < seeds; ++seed) {
        work.emplace_back([=] { return times_of(opcode, algorithm, seed); });
        of.push_back(fmt::format("{} {}, seed {}", name_of(opcode), name_of(algorithm), seed));
      }
    }
  }
  const auto results = run_in_children(work, 2, Seconds(60));
  std::size_t contended = 0;
  for (std::size_t i = 0; i < work.size(); ++i) {
    ASSERT_FALSE(results[i].failure) << of[i] << ": " << results[i].failure->text;
    std::istringstream text(results[i].output);
    double simulated = 0;
    double played = 0;
    double alone = 0;
    text >> simulated >> played >> alone;
    EXPECT_NEAR(played, simulated, 1e-9 * simulated) << of[i];
    EXPECT_GE(played, alone * (1 - 1e-12)) << of[i];
    if (played > 1.01 * alone) ++contended;
  }
  EXPECT_GT(contended, work.size() / 4);
}

/// The times of an AllReduce of 100 MB among `devices` hosts of a cluster, as simulated and as a pipeline predicts it.
std::string times_in_cluster(const std::string& sharing, Algorithm algorithm, std::size_t devices)
{
  const auto file = write_platform(fmt::format(
      "{}<platform version=\"4.1\"><cluster id=\"c\" prefix=\"d\" suffix=\"\" radical=\"0-{}\" speed=\"1Gf\" "
      "bw=\"10Gbps\" lat=\"10us\" sharing_policy=\"{}\"><prop id=\"memory\" value=\"1 GiB\"/></cluster></platform>",
      xml_head, devices - 1, sharing));
  const Platform platform = Platform::load(file);
  ListedProgram program(devices);
  std::vector<std::size_t> all(devices);
  std::iota(all.begin(), all.end(), std::size_t{0});
  program.collective(Opcode::AllReduce, all, Bytes(100e6), {}, algorithm);
  const Plan plan = one_layer_per_device(names(devices), ChainSchedule::Sequential, 1);
  const auto rates = nominal_rates(plan, platform.cluster());
  const Seconds played = play_program(program, rates).periods[0].end;
  const auto simulated = simulate(platform, program, on_hosts(names(devices)), 1, nullptr).step_times.at(0);
  return fmt::format("{:.17g} {:.17g}", simulated.value, played.value);
}

TEST(SharedLinks, GiveTheFlowsOfADeviceTheSameTimesSimulatedAndPredicted)
{
  for (const std::string sharing : {"SPLITDUPLEX", "SHARED", "FATPIPE"}) {
    for (const auto algorithm : {Algorithm::Ring, Algorithm::Tree, Algorithm::Direct, Algorithm::Server}) {
      for (const std::size_t devices : {2, 3, 4, 7}) {
        std::istringstream times(
            run_in_child([&] { return times_in_cluster(sharing, algorithm, devices); }, Seconds(60)).output_or_throw());
        double simulated = 0;
        double predicted = 0;
        times >> simulated >> predicted;
        EXPECT_NEAR(predicted, simulated, 1e-9 * simulated) << sharing << ' ' << name_of(algorithm) << ' ' << devices;
        if (sharing != "SPLITDUPLEX" || devices != 4) continue;
        if (algorithm == Algorithm::Direct) {
          EXPECT_NEAR(predicted, 2 * (60e-3 + 20e-6), 1e-9);
        }
        if (algorithm == Algorithm::Server) {
          EXPECT_NEAR(predicted, 2 * (240e-3 + 20e-6), 1e-9);
        }
      }
    }
  }
}

/// How long two opposite transfers of 100 MB take at once between two hosts of a cluster whose links have 100 MB/s.
double time_of_exchange(const std::string& attributes)
{
  const auto file = write_platform(fmt::format(
      "{}<platform version=\"4.1\"><zone id=\"all\" routing=\"Full\"><cluster id=\"c\" prefix=\"n\" suffix=\"\" "
      "radical=\"0-3\" speed=\"1Gf\" bw=\"100MBps\" lat=\"0s\" {}><prop id=\"memory\" value=\"1 "
      "GiB\"/></cluster></zone>"
      "</platform>",
      xml_head, attributes));
  return number_from_child([&file] {
    const auto platform = Platform::load(file);
    ListedProgram program(2);
    program.transfer(0, 1, Bytes(100e6));
    program.transfer(1, 0, Bytes(100e6));
    return simulate(platform, program, on_hosts({"n0", "n1"}), 1, nullptr).step_times.at(0).value;
  });
}

TEST(FatPipeClusters, GiveEachTransferTheWholeBandwidthOfTheirLinks)
{
  const std::string fat = "sharing_policy=\"FATPIPE\" ";
  for (const std::string topology :
       {"", "topology=\"FAT_TREE\" topo_parameters=\"1;4;1;1\" ", "topology=\"TORUS\" topo_parameters=\"2,2\" ",
        "topology=\"DRAGONFLY\" topo_parameters=\"1,1;1,1;1,1;4\" "}) {
    EXPECT_NEAR(time_of_exchange(topology + "sharing_policy=\"SHARED\""), 2, 1e-6) << topology;
    EXPECT_NEAR(time_of_exchange(topology + fat), 1, 1e-6) << topology;
    EXPECT_NEAR(time_of_exchange(topology + fat + "limiter_link=\"150MBps\""), 4.0 / 3, 1e-6) << topology;
  }
  EXPECT_NEAR(time_of_exchange(fat + "bb_bw=\"100MBps\" bb_lat=\"0s\""), 2, 1e-6);
  EXPECT_NEAR(time_of_exchange(fat + "bb_bw=\"100MBps\" bb_lat=\"0s\" bb_sharing_policy=\"FATPIPE\""), 1, 1e-6);
}

}  // namespace
}  // namespace isobar::sim::contention_test
