#include "exec/launch/tcp_settings.hpp"

#include "core/text/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>

namespace isobar::exec {

namespace {

constexpr Bytes initial_window{10 * 1448.0};  // RFC 6928, in segments of Ethernet with time stamps
constexpr double most_connections = 64;
constexpr Seconds shortest_delay_reported{5e-3};
// The rest of a buffer holds the system's bookkeeping; the receiver offers half of its buffer as window.
constexpr double usable_part_of_buffer = 0.5;
constexpr double nearly = 0.8;

double connections_for(double wanted)
{
  return std::min(std::ceil(wanted), most_connections);
}

std::string window_limit(const LinkMeasurement& link, Seconds round_trip)
{
  const double wanted = link.bandwidth * round_trip / initial_window;
  const double rounds = std::ceil(std::log2(wanted / static_cast<double>(link.connections)));
  if (rounds < 1 || rounds * round_trip < shortest_delay_reported) return "";
  return fmt::format(
      ": after a pause a message takes up to {} round trip{} ({}) longer, because net.ipv4.tcp_slow_start_after_idle "
      "is 1; set it to 0, or use --flows {:.0f} to {} that",
      rounds, rounds > 1 ? "s" : "", isobar::text_of(rounds * round_trip), connections_for(wanted),
      wanted <= most_connections ? "avoid" : "reduce");
}

std::string buffer_limit(const LinkMeasurement& link, const TcpSettings& settings, Seconds round_trip)
{
  const auto connections = static_cast<double>(link.connections);
  const BytesPerSecond limit =
      usable_part_of_buffer * std::min(settings.send_buffer, settings.receive_buffer) * connections / round_trip;
  if (link.bandwidth < nearly * limit) return "";
  return fmt::format(
      ": send buffers of {} and receive buffers of {} limit {} connection{} to about {}; raise net.ipv4.tcp_wmem and "
      "tcp_rmem, or use --flows {:.0f}",
      isobar::text_of(settings.send_buffer), isobar::text_of(settings.receive_buffer), link.connections,
      link.connections > 1 ? "s" : "", isobar::text_of(limit), connections_for(2.0 * connections));
}

}  // namespace

std::optional<TcpSettings> tcp_settings(const std::filesystem::path& folder)
{
  TcpSettings settings;
  int restarts = 0;
  double least = 0;
  double usual = 0;
  std::ifstream(folder / "tcp_congestion_control") >> settings.congestion_control;
  std::ifstream(folder / "tcp_slow_start_after_idle") >> restarts;
  std::ifstream(folder / "tcp_wmem") >> least >> usual >> settings.send_buffer.value;
  std::ifstream(folder / "tcp_rmem") >> least >> usual >> settings.receive_buffer.value;
  const bool keeps_its_own_window = settings.congestion_control.starts_with("bbr");
  settings.restarts_after_pause = restarts != 0 && !keeps_its_own_window;
  if (settings.congestion_control.empty() || settings.send_buffer <= Bytes(0) || settings.receive_buffer <= Bytes(0)) {
    return std::nullopt;
  }
  return settings;
}

std::string text_of(const TcpSettings& settings)
{
  return fmt::format("{}; after a pause windows {}; buffers of at most {} to send, {} to receive",
                     settings.congestion_control, settings.restarts_after_pause ? "open again" : "stay open",
                     isobar::text_of(settings.send_buffer), isobar::text_of(settings.receive_buffer));
}

std::string limiting_settings(const LinkMeasurement& link, const TcpSettings& settings)
{
  const Seconds round_trip = 2 * link.latency;
  if (round_trip <= Seconds(0)) return "";
  const std::string text = buffer_limit(link, settings, round_trip);
  return settings.restarts_after_pause ? text + window_limit(link, round_trip) : text;
}

}  // namespace isobar::exec
