#include "sim/platform/platform.hpp"
#include "sim/platform/simgrid_compat.hpp"

#include <fmt/format.h>

namespace isobar::sim {

std::string simgrid_version()
{
  int major = 0;
  int minor = 0;
  int patch = 0;
  sg_version_get(&major, &minor, &patch);
  return patch == 0 ? fmt::format("{}.{}", major, minor) : fmt::format("{}.{}.{}", major, minor, patch);
}

const std::vector<std::pair<std::string, std::string>>& network_settings()
{
  static const std::vector<std::pair<std::string, std::string>> settings = {
      {"host/model", host_model},
      {"cpu/model", "Cas01"},
      {"cpu/optim", "Lazy"},
      {"network/model", "CM02"},
      {"network/optim", "Lazy"},
      {"network/latency-factor", "0"},  // sim/play/streams.cpp adds latencies, and weighs flows by them
      {"network/bandwidth-factor", "1"},
      {"network/crosstraffic", "no"},
      {"network/TCP-gamma", "0"},
      {"network/weight-S", "0"},
      {"network/loopback-lat", "0"},
      {"network/loopback-bw", "1e18"},  // also on routes to gateways, which it must not narrow
      {"maxmin/concurrency-limit", "-1"},
      {timing_precision_option, "1e-13"},
      {work_precision_option, "1e-5"},
  };
  return settings;
}

}  // namespace isobar::sim
