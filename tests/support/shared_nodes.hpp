#pragma once

#include "tests/support/simulated.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <random>
#include <string>
#include <vector>

/// Random platforms whose hosts share links.
namespace isobar::sim {

/// Adds devices d0, d1, … in one to three nodes, and perhaps a data server, which is a node of its own. Those of a node
/// share its bus and its two links to a backbone that all nodes share. Rates are unequal; some links are fat pipes, and
/// some latencies are 0.
inline void shared_nodes(PlatformFile& file, std::mt19937_64& random, std::size_t devices, bool has_data_server)
{
  const auto bandwidth = [&] { return fmt::format("{}kBps", 1000 * (5 + random() % 500)); };
  const auto latency = [&] { return random() % 5 == 0 ? "0s" : fmt::format("{}us", 1 + random() % 100000); };
  const auto policy = [&] { return random() % 4 == 0 ? "sharing_policy=\"FATPIPE\"" : ""; };
  const std::size_t nodes = 1 + random() % 3;
  std::vector<std::string> hosts = names(devices);
  std::vector<std::size_t> node_of;
  for (std::size_t i = 0; i < devices; ++i) {
    node_of.push_back(random() % nodes);
    const double speed = std::uniform_real_distribution<double>(0.5, 5)(random);
    file.device(hosts[i], fmt::format("{}Gf", speed), "", fmt::format("<prop id=\"site\" value=\"s{}\"/>", i % 2));
  }
  if (has_data_server) {
    hosts.emplace_back("data");
    node_of.push_back(nodes);
    file.data_server("data");
  }
  file.link("backbone", bandwidth(), latency(), policy());
  for (std::size_t node = 0; node <= nodes; ++node) {
    for (const char* kind : {"bus", "out", "in"}) {
      file.link(fmt::format("{}{}", kind, node), bandwidth(), latency(), policy());
    }
  }
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    for (std::size_t j = 0; j < hosts.size(); ++j) {
      if (i == j) continue;
      const auto link = [](const char* kind, std::size_t node) { return fmt::format("{}{}", kind, node); };
      const std::size_t from = node_of[i];
      const std::size_t to = node_of[j];
      if (from == to) {
        file.route(hosts[i], hosts[j], {link("bus", from)});
      } else {
        file.route(hosts[i], hosts[j],
                   {link("bus", from), link("out", from), "backbone", link("in", to), link("bus", to)});
      }
    }
  }
}

}  // namespace isobar::sim
