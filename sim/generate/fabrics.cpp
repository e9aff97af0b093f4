#include "sim/generate/fabrics.hpp"

#include <algorithm>
#include <array>

namespace isobar::sim {

namespace {

constexpr double micro = 1e-6;

/// Latency of a ring step with protocol Simple, where no measured rows fit it (NCCL 2.28, src/graph/tuning.cc, hwLat).
constexpr Seconds nvlink_step(3.4 * micro);
constexpr Seconds start_on_h100(26 * micro);

struct FamilyFabric {
  std::string_view family;  ///< what names of device types begin with; empty: every type
  Topology topology;
  Fabric fabric;
};

/// The first that applies counts. tools/fit_collectives.py fits these constants to results/fidelity/collectives; what
/// it does not fit names its numbers.
const std::vector<FamilyFabric>& inside_fabrics()
{
  static const Fabric nvlink5 = {
      "NVSwitch of B200-SXM",
      0.747,
      Seconds(7.6 * micro),
      Seconds(23.6 * micro),
      false,
      "means of SimuMax's fits of all-reduce, all-gather and reduce-scatter (configs/system)"};
  static const std::vector<FamilyFabric> all = {
      {"A100-SXM4",
       Topology::Switch,
       {"NVSwitch of A100-SXM4", 0.728, Seconds(2.25 * micro), Seconds(38 * micro), false,
        "all-reduce over 4 to 8 GPUs (vTrain, Echo)"}},
      {"V100-SXM2",
       Topology::Switch,
       {"NVLink cube of V100-SXM2", 0.677, Seconds(0.5 * micro), Seconds(64 * micro), false,
        "all-reduce over 4, 7 and 8 GPUs (vTrain)"}},
      {"V100-SXM2",
       Topology::Mesh,
       {"NVLink pairs of V100-SXM2", 0.872, Seconds(16.25 * micro), Seconds(0), false,
        "all-reduce over 2 GPUs (vTrain), send/recv (Aceso)"}},
      {"A10G",
       Topology::Pcie,
       {"PCI Express of A10G", 0.057, Seconds(0.5 * micro), Seconds(182 * micro), false,
        "all-reduce over 2 to 8 GPUs, send/recv (Aceso)", 1.323}},
      {"B200", Topology::Switch, nvlink5},
      {"GB200", Topology::Switch, nvlink5},
      {"B300", Topology::Switch, nvlink5},
      {"GB300", Topology::Switch, nvlink5},
      {"",
       Topology::Switch,
       {"NVSwitch of H100-SXM5", 0.830, Seconds(0.5 * micro), start_on_h100, false,
        "all-reduce over 4 and 8 GPUs (Vidur)"}},
      {"",
       Topology::Mesh,
       {"NVLink pairs of GH200", 0.833, nvlink_step, start_on_h100, false, "send/recv, 125 of 150 GB/s (Sailor)"}},
      {"",
       Topology::Pcie,
       {"PCI Express of L4", 0.290, Seconds(4.0 * micro), Seconds(60 * micro), true,
        "all-reduce over 2 to 8 GPUs, send/recv (Aceso)"}},
  };
  return all;
}

}  // namespace

const std::vector<std::string>& topology_names()
{
  static const std::vector<std::string> names = {"switch", "mesh", "pcie"};
  return names;
}

const Fabric& inside_fabric(std::string_view device_type, Topology topology)
{
  const auto& all = inside_fabrics();
  const auto found = std::find_if(all.begin(), all.end(), [&](const FamilyFabric& candidate) {
    return candidate.topology == topology && device_type.starts_with(candidate.family);
  });
  return found->fabric;  // the last ones are for every type
}

const Fabric& outside_fabric()
{
  static const Fabric network = {"network",     0.9,   Seconds(4.75 * micro),
                                 start_on_h100, false, "send/recv between nodes of GH200, 22.9 of 25 GB/s (Sailor)"};
  return network;
}

BytesPerSecond attained(const Fabric& fabric, BytesPerSecond given, BytesPerSecond built_for)
{
  return std::min(given, fabric.attained_fraction * std::max(given, built_for));
}

BytesPerSecond line_rate(BytesPerSecond bandwidth)
{
  constexpr std::array gigabits_per_second = {1.0, 2.5, 5.0, 10.0, 25.0, 40.0, 50.0, 100.0, 200.0, 400.0, 800.0};
  for (const double rate : gigabits_per_second) {
    const BytesPerSecond bytes(rate * 1e9 / 8);
    if (bandwidth <= bytes) return bytes;
  }
  return bandwidth;
}

}  // namespace isobar::sim
