#pragma once

#include "core/units.hpp"
#include "exec/net/link_probe.hpp"

#include <filesystem>
#include <optional>
#include <string>

namespace isobar::exec {

/// What this system's TCP does with messages that have far to go. Linux; each is a setting of net.ipv4.
struct TcpSettings {
  std::string congestion_control;  ///< tcp_congestion_control: "cubic"
  bool restarts_after_pause{};     ///< tcp_slow_start_after_idle, which BBR does not heed: windows open anew
  Bytes send_buffer;               ///< tcp_wmem: the most of a connection
  Bytes receive_buffer;            ///< tcp_rmem: the most of a connection
};

/// None where the system does not say.
std::optional<TcpSettings> tcp_settings(const std::filesystem::path& folder = "/proc/sys/net/ipv4");

/// "cubic; …": the settings in words.
std::string text_of(const TcpSettings& settings);

/// Which of the settings hold messages over this link up, by how much, and what would help; "" when none does.
std::string what_holds_up(const LinkMeasurement& link, const TcpSettings& settings);

}  // namespace isobar::exec
