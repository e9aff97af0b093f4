#include "core/base/files.hpp"
#include "core/costs/nominal_rates.hpp"
#include "core/program/round_time.hpp"
#include "sim/generate/machine_file.hpp"
#include "sim/platform/platform.hpp"
#include "tests/support/temporary_folder.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <sstream>
#include <string>
#include <vector>

// Collectives as the simulator plays them over the links of machines, against measured times. docs/fidelity.md has the
// same figures.
namespace isobar::sim::measured_collectives_test {
namespace {

/// A row of results/fidelity/collectives/nccl.csv.
struct MeasuredAllReduce {
  std::string source;
  std::string device;
  std::size_t ranks = 0;
  std::size_t nodes = 0;
  Bytes size;
  Seconds time;
};

std::vector<MeasuredAllReduce> measured_all_reduces()
{
  std::istringstream text(read_file(ISOBAR_SOURCE_DIR "/results/fidelity/collectives/nccl.csv"));
  std::vector<MeasuredAllReduce> rows;
  std::string line;
  std::getline(text, line);
  while (std::getline(text, line)) {
    std::istringstream cells(line);
    std::vector<std::string> cell;
    for (std::string each; std::getline(cells, each, ',');) cell.push_back(each);
    if (cell.at(5) != "all_reduce") continue;
    rows.push_back({cell[0], cell[1], std::stoul(cell[3]), std::stoul(cell[4]), Bytes(std::stod(cell[6])),
                    Seconds(std::stod(cell[7]) * 1e-6)});
  }
  return rows;
}

Cluster machine_of(const std::string& device, std::size_t nodes, double inside_gb_per_second)
{
  static const testing_support::TemporaryFolder folder;
  const auto file = folder.write(
      "m.yaml", fmt::format("nodes: {}\ngpus_per_node: 8\ndevice: {}\ninside: {{bandwidth_per_gpu: {} GB/s}}\n"
                            "outside: {{nics_per_node: 8, bandwidth_per_nic: 200 Gbit/s}}\n",
                            nodes, device, inside_gb_per_second));
  return Platform::from_text(machine_to_xml(read_machine(file.string())), "m").cluster();
}

/// An all-reduce over the first `ranks` devices, alone: a ring inside a node, rings within and across several.
Seconds played(const Cluster& cluster, std::size_t ranks, Bytes size, Algorithm algorithm)
{
  std::vector<std::string> sites;
  for (std::size_t i = 0; i < ranks; ++i) sites.push_back(cluster.devices.at(i).site);
  const auto rounds = rounds_of(Opcode::AllReduce, std::vector(ranks, size), algorithm,
                                algorithm == Algorithm::Hierarchical ? sites : std::vector<std::string>{});
  return collective_time(rounds, network_of(cluster));
}

/// Mean of |played / measured - 1| over the rows of one node (`nodes` 1) or several, from `least` bytes.
double mean_error(const Cluster& cluster, const std::string& source, const std::string& device, bool is_one_node,
                  Bytes least)
{
  double sum = 0;
  std::size_t count = 0;
  for (const auto& row : measured_all_reduces()) {
    const bool is_asked = row.source == source && row.device == device && (row.nodes == 1) == is_one_node;
    if (!is_asked || row.ranks < 2 || row.size < least) continue;
    const auto algorithm = is_one_node ? Algorithm::Ring : Algorithm::Hierarchical;
    sum += std::abs(played(cluster, row.ranks, row.size, algorithm) / row.time - 1);
    ++count;
  }
  EXPECT_GT(count, 5u);
  return sum / static_cast<double>(count);
}

constexpr Bytes mebibyte(1 << 20);
constexpr double rounding = 0.0005;  // of the figures of the documentation

TEST(MeasuredCollectives, OfA100InsideANodeArePlayedThisWell)
{
  const Cluster cluster = machine_of("A100-SXM4-80GB", 1, 300);
  EXPECT_NEAR(mean_error(cluster, "vtrain", "A100-SXM4", true, 16 * mebibyte), 0.05, rounding);
  EXPECT_NEAR(mean_error(cluster, "vtrain", "A100-SXM4", true, mebibyte), 0.059, rounding);
  EXPECT_NEAR(mean_error(cluster, "echo", "A100-SXM4-40GB", true, 16 * mebibyte), 0.066, rounding);
  EXPECT_NEAR(mean_error(cluster, "vidur", "A100-SXM4-80GB", true, 16 * mebibyte), 0.167, rounding);
  EXPECT_NEAR(mean_error(cluster, "vidur", "A100-SXM4-80GB", true, mebibyte / 16), 0.33, rounding);
}

TEST(MeasuredCollectives, OfH100InsideANodeArePlayedThisWell)
{
  const Cluster cluster = machine_of("H100-SXM5-80GB", 1, 450);
  EXPECT_NEAR(mean_error(cluster, "vidur", "H100-SXM5-80GB", true, 16 * mebibyte), 0.063, rounding);
  EXPECT_NEAR(mean_error(cluster, "vidur", "H100-SXM5-80GB", true, mebibyte), 0.087, rounding);
  EXPECT_NEAR(mean_error(cluster, "vidur", "H100-SXM5-80GB", true, mebibyte / 16), 0.227, rounding);
}

TEST(MeasuredCollectives, OfTwoToSixteenNodesArePlayedThisWell)
{
  const Cluster cluster = machine_of("A100-SXM4-40GB", 16, 300);
  EXPECT_NEAR(mean_error(cluster, "echo", "A100-SXM4-40GB", false, 16 * mebibyte), 0.091, rounding);
  EXPECT_NEAR(mean_error(cluster, "echo", "A100-SXM4-40GB", false, mebibyte), 0.101, rounding);
  EXPECT_NEAR(mean_error(cluster, "echo", "A100-SXM4-40GB", false, mebibyte / 16), 0.111, rounding);
}

}  // namespace
}  // namespace isobar::sim::measured_collectives_test
