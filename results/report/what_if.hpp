#pragma once

#include "core/cluster/cluster.hpp"
#include "results/report/site_map.hpp"
#include "results/result.hpp"

#include <string>
#include <vector>

namespace isobar::results {

/// One change of a platform, whose effect another simulation shows.
struct WhatIf {
  enum class Property { Speed, Memory, UpdateSpeed, Bandwidth, Latency };
  std::string text;  ///< "+10 % bandwidth between Oregon and Tokyo"
  Property property = Property::Speed;
  std::vector<std::string> names;  ///< of the devices, machines or links that change; empty: all
  double factor = 1;
  bool needs_planning = false;  ///< cannot affect a plan that is kept
};

/// Changes to try for a simulated plan. In this order: all speeds; the devices that compute longest; the updates by
/// machines if the plan has some; all bandwidths; each pair of sites between which the plan sends, busiest first; the
/// busiest links; all latencies; all memory. The busiest links exclude one that is the only link between two sites.
std::vector<WhatIf> what_ifs_of(const Result& result, const SiteMap& map);

}  // namespace isobar::results
