#include "exec/launch/tcp_settings.hpp"

#include "tests/support/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace isobar::exec::tcp_settings_test {
namespace {

using testing::HasSubstr;

const TcpSettings usual{"cubic", true, Bytes(4 * 0x1p20), Bytes(6 * 0x1p20)};

LinkMeasurement link_of(double latency_s, double bytes_per_s, std::size_t connections)
{
  return {0, 1, connections, Seconds(latency_s), BytesPerSecond(bytes_per_s), {}};
}

TEST(TcpSettings, AreReportedWhenWindowsOpenSlowlyAfterAPause)
{
  // 12.5 MB/s over a round trip of 40 ms: 500 kB in flight, 34.5 initial windows; 1, 2, 4, … 64 of them.
  EXPECT_EQ(limiting_settings(link_of(0.02, 12.5e6, 1), usual),
            ": after a pause a message takes up to 6 round trips (240 ms) longer, because "
            "net.ipv4.tcp_slow_start_after_idle is 1; set it to 0, or use --flows 35 to avoid that");
  EXPECT_THAT(limiting_settings(link_of(0.02, 12.5e6, 20), usual), HasSubstr("up to 1 round trip (40.0 ms) longer"));
  EXPECT_EQ(limiting_settings(link_of(0.02, 12.5e6, 35), usual), "");
  EXPECT_THAT(limiting_settings(link_of(0.1, 9e6, 1), usual), HasSubstr("or use --flows 64 to reduce that"));
  TcpSettings stay_open = usual;
  stay_open.restarts_after_pause = false;
  EXPECT_EQ(limiting_settings(link_of(0.02, 12.5e6, 1), stay_open), "");
}

TEST(TcpSettings, AreReportedWhenBuffersLimitAConnection)
{
  TcpSettings settings = usual;
  settings.restarts_after_pause = false;
  // Half of 4 MiB in 200 ms: 10.5 MB/s.
  EXPECT_EQ(limiting_settings(link_of(0.1, 10e6, 1), settings),
            ": send buffers of 4.00 MiB and receive buffers of 6.00 MiB limit 1 connection to about 10.5 MB/s; raise "
            "net.ipv4.tcp_wmem and tcp_rmem, or use --flows 2");
  EXPECT_EQ(limiting_settings(link_of(0.1, 10e6, 4), settings), "");
}

TEST(TcpSettings, DoNotMatterForShortRoundTrips)
{
  EXPECT_EQ(limiting_settings(link_of(20e-6, 3e9, 1), usual), "");
  EXPECT_EQ(limiting_settings(link_of(0, 3e9, 1), usual), "");
}

TEST(TcpSettings, AreReadFromTheSystem)
{
  const testing_support::TemporaryFolder folder;
  EXPECT_EQ(tcp_settings(folder.path()), std::nullopt);
  folder.write("tcp_congestion_control", "cubic\n");
  folder.write("tcp_slow_start_after_idle", "1\n");
  folder.write("tcp_wmem", "4096\t16384\t4194304\n");
  folder.write("tcp_rmem", "4096\t131072\t33554432\n");
  const auto settings = tcp_settings(folder.path());
  ASSERT_TRUE(settings.has_value());
  EXPECT_EQ(text_of(*settings),
            "cubic; after a pause windows open again; buffers of at most 4.00 MiB to send, 32.0 MiB to receive");
  folder.write("tcp_congestion_control", "bbr\n");
  EXPECT_FALSE(tcp_settings(folder.path())->restarts_after_pause);
  folder.write("tcp_congestion_control", "reno\n");
  folder.write("tcp_slow_start_after_idle", "0\n");
  EXPECT_FALSE(tcp_settings(folder.path())->restarts_after_pause);
}

}  // namespace
}  // namespace isobar::exec::tcp_settings_test
