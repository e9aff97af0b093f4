#include "exec/net/address.hpp"

#include "core/errors.hpp"
#include "exec/links/network_options.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

namespace isobar::exec::address_test {
namespace {

TEST(Address, DistinguishesNamesFromNumericAddresses)
{
  for (const auto* name : {"localhost", "n0", "gpu1.example.org"}) EXPECT_TRUE(is_host_name(name)) << name;
  for (const auto* numbers : {"127.0.0.1", "10.0.0.7", "::1", "fe80::1"})
    EXPECT_FALSE(is_host_name(numbers)) << numbers;
}

TEST(Address, OfAHostIsNumeric)
{
  EXPECT_TRUE(is_loopback(address_of_host("localhost")));
  EXPECT_EQ(address_of_host("10.0.0.7"), "10.0.0.7");
  EXPECT_EQ(address_of_host("no.such.host.invalid"), "");
}

TEST(Address, IsAwaitedUntilTheDeadline)
{
  EXPECT_TRUE(resolves_by(Clock::now(), "10.0.0.7"));
  const auto begin = Clock::now();
  EXPECT_FALSE(resolves_by(deadline_in(Seconds(0.5)), "no.such.host.invalid"));
  EXPECT_GE(time_since(begin).value, 0.5);
}

TEST(Address, OfAListenerIsTheOneItIsBoundTo)
{
  const TcpListener listener({.host = "127.0.0.1", .port = 0});
  EXPECT_EQ(local_address(listener.descriptor()), "127.0.0.1");
  EXPECT_THROW(peer_address(listener.descriptor()), EnvironmentError);
}

TEST(Address, IsRefusedForAFileThatIsNotASocket)
{
  EXPECT_THAT([] { local_address(STDIN_FILENO); },
              testing::ThrowsMessage<EnvironmentError>(testing::StartsWith("socket without an address: ")));
}

TEST(Address, ThisMachineHasAName)
{
  EXPECT_NE(host_name(), "");
}

}  // namespace
}  // namespace isobar::exec::address_test
