#pragma once

#include "sim/platform/endpoints.hpp"
#include "sim/platform/routes.hpp"

#include <functional>
#include <string>

namespace isobar::sim {

/// Takes the fault to report if SimGrid ends the process before the next call.
using ExpectFault = std::function<void(const std::string& fault)>;

/// Looks up a route and checks that its latency and bandwidths are within limits. `place` is that of faults, `missing`
/// the whole fault without a route. @throws InputError.
Route checked_route(const Routes& routes, const ScannedHost& from, const ScannedHost& to, const std::string& place,
                    const std::string& missing, const ExpectFault& expect_fault);

/// Checks that SimGrid made each device and that its speed is a rate (sim/platform/limits.hpp).
/// @throws InputError "file:line: host NAME: …" for the first fault.
void check_speeds(const std::string& file, const Endpoints& endpoints);

/// Checks that routes exist and that their latencies and bandwidths are within limits.
///
/// On platforms of up to 16,384 pairs of endpoints, it checks all pairs. On larger ones, it checks each device with the
/// next one and with the data server. Then it checks one device per zone with those of the other zones, up to the same
/// number of pairs. A missing route that was not checked is found when its path is looked up.
/// @throws InputError "file:line: host NAME: …" for the first fault.
void check_routes(const std::string& file, const Endpoints& endpoints, const Routes& routes,
                  const ExpectFault& expect_fault);

}  // namespace isobar::sim
