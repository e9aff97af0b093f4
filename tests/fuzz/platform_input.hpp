#pragma once

#include "core/utf8.hpp"
#include "sim/scan/prescan.hpp"
#include "sim/scan/radical.hpp"
#include "tests/fuzz/inputs.hpp"

#include <algorithm>

namespace isobar::fuzz {

/// A profile's name is used as its text, so that one input covers both.
inline void platform(const std::string& text)
{
  try {
    const auto scan = sim::scan_platform(text, "input", [](const std::string& file) { return file; });
    ensure(scan.hosts.size() <= sim::most_hosts, "a platform has a bounded number of hosts");
    ensure(scan.profile_speedup >= 1,
           "a profile's speedup is at least 1, since the nominal value holds until it begins");
    for (const auto& host : scan.hosts) {
      ensure(is_utf8(host.name) && std::none_of(host.name.begin(), host.name.end(), is_control),
             "names are plain text");
    }
    for (const auto& [name, link] : scan.profiled_links) {
      ensure(link.bandwidth.value > 0 && std::isfinite(link.bandwidth.value), "bandwidths are finite and more than 0");
      ensure(link.latency.value >= 0 && std::isfinite(link.latency.value), "latencies are finite and not negative");
    }
  } catch (const InputError& fault) {
    // A fault in a profile names the profile, whose name is text of the input here.
    const std::string_view message = fault.what();
    ensure(!message.empty() && message.find(':') != std::string_view::npos, "a fault has a place");
    ensure(is_utf8(message), "a message is UTF-8");
    for (const char character : message) {
      ensure(!is_control(character) || character == '\n', "a message holds no control characters");
    }
  }
}

}  // namespace isobar::fuzz
