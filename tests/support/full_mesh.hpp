#pragma once

#include "core/model/workload.hpp"
#include "tests/support/simulated.hpp"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

/// Random platforms on which every pair of hosts has links of its own, and workloads for them.
namespace isobar::sim {

/// Adds devices d0, d1, … in two sites, and perhaps a data server, all with unequal rates. Each host has a link of its
/// own to each other host, with these attributes.
inline void full_mesh(PlatformFile& file, std::mt19937_64& random, std::size_t devices, bool has_data_server,
                      const std::string& link_attributes = "")
{
  const auto uniform = [&random](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  // Up to ten times the duration of a layer.
  const auto latency_ms = [&] {
    constexpr std::array most = {0.0, 100.0, 2000.0, 20000.0};
    return uniform(0, most.at(random() % most.size()));
  };
  std::vector<std::string> hosts = names(devices);
  for (std::size_t i = 0; i < devices; ++i) {
    file.device(hosts[i], fmt::format("{}Gf", uniform(0.5, 5)), "",
                fmt::format("<prop id=\"site\" value=\"s{}\"/>", i % 2));
  }
  if (has_data_server) {
    hosts.emplace_back("data");
    file.data_server("data");
  }
  for (const auto& from : hosts) {
    for (const auto& to : hosts) {
      if (from == to) continue;
      const std::string link = fmt::format("{}-{}", from, to);
      file.link(link, fmt::format("{}MBps", uniform(5, 500)), fmt::format("{}ms", latency_ms()), link_attributes);
      file.route(from, to, {link});
    }
  }
}

/// A whole number of bytes, sometimes 0 to 2.
inline Bytes random_bytes(std::mt19937_64& random)
{
  const std::uint64_t limit = random() % 5 == 0 ? 3 : 100'000'000;
  return Bytes(static_cast<double>(random() % limit));
}

/// A chain of layers, some without forward work, that take up to seconds on the devices of a full mesh.
inline Workload random_workload(std::mt19937_64& random, std::size_t layers)
{
  const auto uniform = [&random](double high) { return std::uniform_real_distribution<double>(0, high)(random); };
  Workload workload;
  workload.input = random_bytes(random);
  for (std::size_t i = 0; i < layers; ++i) {
    Layer layer;
    layer.forward = Flops(random() % 8 == 0 ? 0 : uniform(2e9));
    layer.backward = Flops(uniform(4e9));
    layer.backward_weight = layer.backward * uniform(0.9);
    layer.output = random_bytes(random);
    layer.gradient = random_bytes(random);
    layer.parameters = random() % 500'000'000;
    if (i > 0) layer.inputs = {i - 1};
    workload.layers.push_back(layer);
  }
  return workload;
}

}  // namespace isobar::sim
