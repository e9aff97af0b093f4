#include "exec/links/network_options.hpp"

#include "tests/exec/links/tcp_ranks.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <CLI/CLI.hpp>

#include <cstdlib>

namespace isobar::exec::network_options_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::vector<Endpoint> on_loopback = {{"127.0.0.1", 1}, {"localhost", 2}, {"::1", 3}, {"127.8.8.8", 4}};
const std::vector<Endpoint> on_two_machines = {{"127.0.0.1", 1}, {"10.0.0.2", 2}};

TEST(NetworkOptions, EncryptConnectionsBetweenMachinesByDefault)
{
  NetworkOptions options;
  EXPECT_FALSE(uses_tls(options, on_loopback));
  EXPECT_TRUE(uses_tls(options, on_two_machines));
  EXPECT_TRUE(uses_tls(options, {{"localhost.example.org", 1}}));
  options.tls = true;
  EXPECT_TRUE(uses_tls(options, on_loopback));
  options.tls = false;
  options.plain_text = true;
  EXPECT_FALSE(uses_tls(options, on_two_machines));
}

TEST(NetworkOptions, FindTheAddressOfAnInterface)
{
  EXPECT_EQ(bind_address_of("lo", "10.0.0.1"), "127.0.0.1");
  EXPECT_EQ(bind_address_of("0.0.0.0", ""), "0.0.0.0");
  EXPECT_EQ(bind_address_of("::", ""), "::");
  EXPECT_EQ(bind_address_of("192.0.2.7", ""), "192.0.2.7");
  EXPECT_THAT(error_of([] { bind_address_of("wg\n9", ""); }),
              AllOf(testing::StartsWith(
                        "--bind: \"wg\\x0a9\" is neither an address nor an interface of this machine, which has "),
                    HasSubstr("lo")));
}

TEST(NetworkOptions, OpenNoPortToTheNetworkForRanksOnLoopback)
{
  NetworkOptions options;
  options.bind = "0.0.0.0";
  EXPECT_EQ(error_of([&] { tcp_options_of(options, test_secret(), 0, on_loopback); }),
            "--bind: 0.0.0.0 is open to other machines, but rank 0 is at 127.0.0.1, which only this machine reaches; "
            "change the address in --ranks, or omit --bind");
  EXPECT_EQ(tcp_options_of(options, test_secret(), 1, on_two_machines).bind_address, "0.0.0.0");
  options.bind = "";
  EXPECT_EQ(tcp_options_of(options, test_secret(), 1, on_two_machines).bind_address, std::nullopt);
}

TEST(NetworkOptions, OpenNoPortToTheNetworkForAMasterOnLoopback)
{
  const auto refusal = [](const std::string& bind, const std::string& master) {
    NetworkOptions options;
    options.bind = bind;
    return error_of([&] { refuse_open_bind(options, master, "the master", "--master"); });
  };
  EXPECT_EQ(refusal("0.0.0.0", "127.0.0.1"),
            "--bind: 0.0.0.0 is open to other machines, but the master is at 127.0.0.1, which only this machine "
            "reaches; change the address in --master, or omit --bind");
  EXPECT_EQ(refusal("0.0.0.0", "10.0.0.2"), "");
  EXPECT_EQ(refusal("lo", "localhost"), "");
  EXPECT_EQ(refusal("", "127.0.0.1"), "");
}

TEST(NetworkOptions, RequireASecret)
{
  ::unsetenv(Secret::variable);
  EXPECT_EQ(error_of([] { secret_of({}); }),
            "no secret: give --secret-file FILE or the environment variable ISOBAR_SECRET, the same to all ranks; "
            "create one with: (umask 077; head -c 32 /dev/urandom | base64 > FILE)");
  ::setenv(Secret::variable, "what the ranks of the tests share", 1);
  EXPECT_NE(secret_of({}), nullptr);
  EXPECT_EQ(::getenv(Secret::variable), nullptr);
}

TEST(NetworkOptions, AreRefusedForRanksOfThisProcess)
{
  EXPECT_NE(tcp_options_of_own_ranks({}).secret, nullptr);
  NetworkOptions options;
  options.secret_file = "secret";
  EXPECT_EQ(error_of([&] { tcp_options_of_own_ranks(options); }),
            "--secret-file: requires --rank; the ranks of --spawn get a random secret");
  options.secret_file = "";
  options.bind = "lo";
  EXPECT_EQ(error_of([&] { tcp_options_of_own_ranks(options); }),
            "--bind: requires --rank; the ranks of --spawn listen on the loopback interface");
}

TEST(NetworkOptions, AreReadFromTheCommandLine)
{
  NetworkOptions options;
  CLI::App app;
  add_network_options(app, options);
  app.parse("--secret-file secret --bind wg0 --plain-text");
  EXPECT_EQ(options.secret_file, "secret");
  EXPECT_EQ(options.bind, "wg0");
  EXPECT_TRUE(options.plain_text);
  EXPECT_THROW(app.parse("--tls --plain-text"), CLI::ExcludesError);
}

}  // namespace
}  // namespace isobar::exec::network_options_test
