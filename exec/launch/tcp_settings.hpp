#pragma once

#include "core/units.hpp"
#include "exec/launch/link_probe.hpp"

#include <filesystem>
#include <optional>
#include <string>

namespace isobar::exec {

/// TCP settings of this system that matter for links with a long round trip: Linux's settings under net.ipv4.
struct TcpSettings {
  std::string congestion_control;  ///< tcp_congestion_control: "cubic"
  bool restarts_after_pause{};     ///< tcp_slow_start_after_idle; false for BBR, which ignores it
  Bytes send_buffer;               ///< tcp_wmem: maximum per connection
  Bytes receive_buffer;            ///< tcp_rmem: maximum per connection
};

/// Reads the settings from `folder`; nullopt where the system does not have them.
std::optional<TcpSettings> tcp_settings(const std::filesystem::path& folder = "/proc/sys/net/ipv4");

/// The settings for people: "cubic; …".
std::string text_of(const TcpSettings& settings);

/// Which of the settings limit messages over this link, by how much, and how to fix it; "" when none does.
std::string limiting_settings(const LinkMeasurement& link, const TcpSettings& settings);

}  // namespace isobar::exec
