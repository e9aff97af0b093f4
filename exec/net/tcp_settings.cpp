#include "exec/net/tcp_settings.hpp"

#include "core/base/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>

namespace isobar::exec {

namespace {

constexpr Bytes initial_window{10 * 1448.0};  // RFC 6928, in segments of Ethernet with time stamps
constexpr double most_flows = 64;
constexpr Seconds noticed{5e-3};
// A buffer holds the system's own notes too, and the receiver offers half of its own.
constexpr double used_of_buffer = 0.5;
constexpr double nearly = 0.8;

double flows_for(double wanted)
{
  return std::min(std::ceil(wanted), most_flows);
}

std::string of_window(const LinkMeasurement& link, Seconds round_trip)
{
  const double flows_wanted = link.bandwidth * round_trip / initial_window;
  const double rounds = std::ceil(std::log2(flows_wanted / static_cast<double>(link.flows)));
  if (rounds < 1 || rounds * round_trip < noticed) return "";
  const bool avoided = flows_wanted <= most_flows;
  return fmt::format(
      ": after a pause a message takes up to {} round trip{} ({}) longer, since net.ipv4.tcp_slow_start_after_idle is "
      "1; "
      "0 avoids it, --flows {:.0f} {} it",
      rounds, rounds > 1 ? "s" : "", isobar::text_of(rounds * round_trip), flows_for(flows_wanted),
      avoided ? "too avoids" : "lessens");
}

std::string of_buffers(const LinkMeasurement& link, const TcpSettings& settings, Seconds round_trip)
{
  const BytesPerSecond limit = used_of_buffer * std::min(settings.send_buffer, settings.receive_buffer) *
                               static_cast<double>(link.flows) / round_trip;
  if (link.bandwidth < nearly * limit) return "";
  return fmt::format(
      ": buffers of {} to send and {} to receive hold {} connection{} to about {}; larger net.ipv4.tcp_wmem and "
      "tcp_rmem, "
      "or --flows {:.0f}, would tell",
      isobar::text_of(settings.send_buffer), isobar::text_of(settings.receive_buffer), link.flows,
      link.flows > 1 ? "s" : "", isobar::text_of(limit), flows_for(2.0 * static_cast<double>(link.flows)));
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
                     settings.congestion_control, settings.restarts_after_pause ? "open anew" : "stay open",
                     isobar::text_of(settings.send_buffer), isobar::text_of(settings.receive_buffer));
}

std::string what_holds_up(const LinkMeasurement& link, const TcpSettings& settings)
{
  const Seconds round_trip = 2 * link.latency;
  if (round_trip <= Seconds(0)) return "";
  const std::string buffers = of_buffers(link, settings, round_trip);
  return settings.restarts_after_pause ? buffers + of_window(link, round_trip) : buffers;
}

}  // namespace isobar::exec
