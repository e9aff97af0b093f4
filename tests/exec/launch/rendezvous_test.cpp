#include "exec/launch/rendezvous.hpp"

#include "core/errors.hpp"
#include "exec/links/tcp_world.hpp"
#include "exec/links/text_message.hpp"
#include "exec/net/connection_manager.hpp"
#include "tests/exec/links/tcp_ranks.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <dlfcn.h>
#include <netdb.h>
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

constexpr std::string_view late_name = "late.test";
std::atomic<int> failing_lookups = 0;  ///< of the late name, before it resolves to this machine

}  // namespace

/// Stands in for the system's resolver; Asio's calls it too.
extern "C" int getaddrinfo(const char* node, const char* service, const addrinfo* hints, addrinfo** found)
{
  static const auto system = reinterpret_cast<decltype(&::getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  const bool is_lookup = hints == nullptr || (hints->ai_flags & AI_NUMERICHOST) == 0;
  if (node == nullptr || node != late_name || !is_lookup) return system(node, service, hints, found);
  return failing_lookups-- > 0 ? EAI_NONAME : system("127.0.0.1", service, hints, found);
}

namespace isobar::exec::rendezvous_test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;

std::shared_ptr<const Secret> some_secret(const std::string& text = "known to the ranks of this test")
{
  return std::make_shared<const Secret>("test", text);
}

RankFacts facts_of(std::size_t rank)
{
  return {.host = fmt::format("host{}", rank),
          .plan_device = {},
          .device = "cpu",
          .device_name = "a processor",
          .memory = Bytes(1e9),
          .dtypes = {"float32"},
          .version = "0.1.0",
          .torch_version = "2.11.0",
          .plan_hash = "01",
          .workload_hash = "23",
          .data_hash = "",
          .settings = ""};
}

/// Outcome of one rank: a meeting, or the text of its failure.
struct Outcome {
  std::optional<Meeting> meeting;
  std::string input_fault;
  std::string environment_fault;
};

/// Ranks as threads that meet at a free port.
class Group {
 public:
  explicit Group(std::size_t count) : outcomes(count)
  {
    auto listener = quiet_listener("127.0.0.1");
    master = {.host = "127.0.0.1", .port = listener.port()};
    for (std::size_t rank = 0; rank < count; ++rank) {
      options.push_back(
          {.rank = rank, .ranks = count, .master = master, .secret = some_secret(), .bind = "", .deadline = plenty});
      facts.push_back(facts_of(rank));
      preflight.devices.push_back(std::string(1, static_cast<char>('a' + rank)));
    }
    preflight.peak_memory.resize(count);
    preflight.types.resize(count);
  }

  void start(std::size_t place)
  {
    threads.emplace_back([this, place] {
      auto& outcome = outcomes[place];
      try {
        outcome.meeting.emplace(meet(options[place], facts[place], preflight));
      } catch (const InputError& error) {
        outcome.input_fault = error.what();
      } catch (const EnvironmentError& error) {
        outcome.environment_fault = error.what();
      }
    });
  }

  void run()
  {
    for (std::size_t place = 0; place < options.size(); ++place) start(place);
    threads.clear();
  }

  std::vector<std::string> input_faults() const
  {
    std::vector<std::string> faults;
    for (const auto& outcome : outcomes) faults.push_back(outcome.input_fault);
    return faults;
  }

  std::vector<std::string> environment_faults() const
  {
    std::vector<std::string> faults;
    for (const auto& outcome : outcomes) faults.push_back(outcome.environment_fault);
    return faults;
  }

  Endpoint master;
  std::vector<RendezvousOptions> options;
  std::vector<RankFacts> facts;
  Preflight preflight;
  std::vector<Outcome> outcomes;
  std::vector<std::jthread> threads;
};

TEST(Rendezvous, TellsEveryRankWhereTheOthersListen)
{
  for (const bool tls : {false, true}) {
    Group run(3);
    for (auto& options : run.options) options.tls = tls;
    run.run();
    for (std::size_t rank = 0; rank < 3; ++rank) {
      const auto& meeting = run.outcomes[rank].meeting;
      ASSERT_TRUE(meeting) << run.outcomes[rank].input_fault << run.outcomes[rank].environment_fault;
      EXPECT_EQ(meeting->device, rank);
      ASSERT_EQ(meeting->endpoints.size(), 3);
      EXPECT_EQ(meeting->endpoints[rank].host, "127.0.0.1");
      EXPECT_EQ(meeting->endpoints[rank].port, meeting->listener.port());
    }
    EXPECT_THAT(run.outcomes[0].meeting->summary, StartsWith("rank 0 (host0) is the plan's a: cpu (a processor)"));
    EXPECT_EQ(run.outcomes[1].meeting->summary, "");
  }
}

TEST(Rendezvous, AssignsDevicesByHost)
{
  Group run(3);
  for (std::size_t rank = 0; rank < 3; ++rank) run.facts[rank].host = run.preflight.devices[2 - rank];
  run.run();
  for (std::size_t rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(run.outcomes[rank].meeting);
    EXPECT_EQ(run.outcomes[rank].meeting->device, 2 - rank);
    EXPECT_EQ(run.outcomes[0].meeting->endpoints[2 - rank].port, run.outcomes[rank].meeting->listener.port());
  }
}

TEST(Rendezvous, ListensOnTheBindAddress)
{
  Group run(3);
  run.options[1].bind = "127.0.0.2";
  run.options[2].bind = "0.0.0.0";
  run.run();
  const auto& meeting = run.outcomes[0].meeting;
  ASSERT_TRUE(meeting) << run.outcomes[0].environment_fault;
  EXPECT_EQ(meeting->endpoints[1].host, "127.0.0.2");
  EXPECT_EQ(meeting->endpoints[2].host, "127.0.0.1");
}

TEST(Rendezvous, OfOneRankSucceeds)
{
  Group run(1);
  run.run();
  ASSERT_TRUE(run.outcomes[0].meeting);
  EXPECT_EQ(run.outcomes[0].meeting->endpoints.size(), 1);
}

TEST(Rendezvous, WaitsForRankZeroWhenItStartsLast)
{
  Group run(3);
  run.start(1);
  run.start(2);
  pause(0.5);
  run.start(0);
  run.threads.clear();
  for (const auto& outcome : run.outcomes) EXPECT_TRUE(outcome.meeting) << outcome.environment_fault;
}

TEST(Rendezvous, NamesTheMissingRanksToAllOthers)
{
  Group run(5);
  for (auto& options : run.options) options.deadline = Seconds(2);
  for (const std::size_t rank : {0, 2, 4}) run.start(rank);
  run.threads.clear();
  for (const std::size_t rank : {0, 2, 4}) {
    EXPECT_EQ(run.outcomes[rank].environment_fault,
              fmt::format("of 5 ranks these have not connected to {} within 2 s (twice --deadline): 1, 3",
                          text_of(run.master)));
  }
}

TEST(Rendezvous, NamesTheMasterThatDoesNotAnswer)
{
  Group run(2);
  run.options[1].deadline = Seconds(0.5);
  run.start(1);
  run.threads.clear();
  EXPECT_EQ(run.outcomes[1].environment_fault,
            fmt::format("rank 1: rank 0 does not answer at {} within 0.5 s (twice --deadline): Connection refused",
                        text_of(run.master)));
}

TEST(Rendezvous, RefusesTwoProcessesThatClaimTheSameRank)
{
  Group run(3);
  run.options[2].rank = 1;
  run.run();
  EXPECT_EQ(run.outcomes[0].input_fault, "two processes claim to be rank 1; give each its own rank");
  // Rank 0 rejects the second process and sends its decision to the first, or each of them gets one of the two links.
  for (const std::size_t place : {1, 2}) {
    EXPECT_THAT(run.outcomes[place].input_fault,
                testing::AnyOf(HasSubstr("rejected by rank 0 at " + text_of(run.master) +
                                         ": rank 1 is already connected, from 127.0.0.1"),
                               "two processes claim to be rank 1; give each its own rank"));
  }
  EXPECT_THAT(run.input_faults(), Contains(HasSubstr("is already connected")));
}

/// Connects some links of rank 1 of three, and dies.
void connect_as_rank_one_and_die(const Endpoint& master, const std::vector<std::string>& ways)
{
  ConnectionManager manager(some_secret(), false);
  std::vector<Connection> connections;
  for (const auto& way : ways) {
    manager.connect(
        master, purpose_of(fmt::format("isobar 3: rank 1 of 3, {}, process 1", way)),
        [&](const Purpose&, Connection connection) { connections.push_back(std::move(connection)); },
        [](const std::string& reason) { ADD_FAILURE() << reason; });
  }
  while (connections.size() < ways.size()) manager.work(deadline_in(plenty));
  pause(0.2);
}

TEST(Rendezvous, AcceptsARestartedRankThatDiedBeforeAllWereConnected)
{
  for (const std::vector<std::string>& ways : {std::vector<std::string>{"up"}, {"down"}, {"up", "down"}}) {
    Group run(3);
    run.start(0);
    connect_as_rank_one_and_die(run.master, ways);
    run.start(1);
    run.start(2);
    run.threads.clear();
    for (const auto& outcome : run.outcomes) {
      EXPECT_TRUE(outcome.meeting) << outcome.input_fault << outcome.environment_fault;
    }
  }
}

TEST(Rendezvous, ReportsDifferentFirstStepsAsAnEnvironmentError)
{
  Group run(3);
  run.facts[2].first_step = 20;
  run.run();
  EXPECT_THAT(run.environment_faults(), Each("rank 2 (host2) begins at step 20, rank 0 at step 0"));
}

TEST(Rendezvous, ReportsADecisionAgainstTheRunBeforeTheRankWasAccepted)
{
  Group run(2);
  ConnectionManager rank_zero(some_secret(), false);
  std::vector<Connection> up;
  std::unique_ptr<TcpLink> down;
  rank_zero.listen(
      TcpListener(run.master), [](const Purpose&) { return ""; },
      [&](const Purpose& purpose, Connection connection) {
        if (text_of(purpose).find(", up, ") != std::string::npos) return up.push_back(std::move(connection));
        std::vector<Connection> connections;
        connections.push_back(std::move(connection));
        down = std::make_unique<TcpLink>(LinkName{0, 1, 1}, 0, "rendezvous", std::move(connections));
      });
  run.start(1);
  while (up.empty() || !down) rank_zero.work(deadline_in(plenty));
  send_text(*down, R"({"reasons": ["rank 2 is missing"], "is_the_machines_fault": true, "device_of_rank": [],
                       "endpoints": []})",
            plenty);
  run.threads.clear();
  EXPECT_EQ(run.outcomes[1].environment_fault, "rank 2 is missing");
}

TEST(Rendezvous, RefusesRanksOfAnotherNumberOfRanks)
{
  Group run(2);
  run.options[1].ranks = 3;
  run.run();
  EXPECT_THAT(run.outcomes[0].input_fault,
              AllOf(HasSubstr("a process connected as \"isobar 3: rank 1 of 3, "),
                    HasSubstr("this run expects connections such as \"isobar 3: rank 1 of 2, up\"")));
  EXPECT_EQ(
      run.outcomes[1].input_fault,
      fmt::format("rank 1: rejected by rank 0 at {}: it expects \"isobar 3: rank 1 of 2, up\"", text_of(run.master)));
}

TEST(Rendezvous, CountsARankWithAnotherSecretAsMissing)
{
  Group run(2);
  for (auto& options : run.options) options.deadline = Seconds(2);
  run.options[1].secret = some_secret("known to another run");
  run.run();
  EXPECT_THAT(run.outcomes[0].environment_fault,
              AllOf(StartsWith(fmt::format("of 2 ranks these have not connected to {} within 2 s (twice --deadline): 1",
                                           text_of(run.master))),
                    HasSubstr("did not prove the secret")));
  EXPECT_THAT(run.outcomes[1].environment_fault, StartsWith("rank 1: rank 0 does not answer at "));
}

TEST(Rendezvous, TellsEveryRankAllReasonsAgainstTheRun)
{
  Group run(3);
  run.facts[1].plan_hash = "45";
  run.facts[2].memory = Bytes(1);
  run.facts[2].version = "0.0.9";
  run.preflight.peak_memory.assign(3, Bytes(1e6));
  run.run();
  EXPECT_THAT(run.input_faults(), Each(AllOf(HasSubstr("rank 1 (host1): a plan with hash \"45\"; rank 0 has \"01\"\n"),
                                             HasSubstr("rank 2 (host2): Isobar \"0.0.9\"; rank 0 has \"0.1.0\"\n"),
                                             HasSubstr("rank 2 (host2): 1 B of memory on cpu"))));
}

TEST(Rendezvous, AcceptsTheClocksOfOneMachine)
{
  Group run(2);
  run.preflight.clock_skew = Seconds(0.2);
  run.run();
  EXPECT_THAT(run.input_faults(), Each(""));
}

TEST(Rendezvous, ReportsAMasterAddressThatIsNotRankZerosOwn)
{
  Group run(2);
  run.options[0].master = {.host = "192.0.2.1", .port = 20'000};  // RFC 5737: never assigned
  run.options[0].master_advice = "give all ranks another --master";
  run.start(0);
  run.threads.clear();
  EXPECT_EQ(run.outcomes[0].environment_fault,
            "cannot listen on 192.0.2.1:20000: Cannot assign requested address; give all ranks another --master");
}

TEST(Rendezvous, LooksUpTheMastersNameUntilItResolves)
{
  Group run(2);
  for (auto& options : run.options) options.master.host = late_name;
  failing_lookups = 3;
  run.run();
  for (const auto& outcome : run.outcomes) EXPECT_TRUE(outcome.meeting) << outcome.environment_fault;
  EXPECT_LE(failing_lookups, 0);
}

TEST(Rendezvous, NamesAMasterThatDoesNotResolveByTheDeadline)
{
  Group run(2);
  run.options[0].master.host = late_name;
  run.options[0].deadline = Seconds(0.5);
  run.options[0].master_advice = "give all ranks another --master";
  failing_lookups = 1'000'000;
  run.start(0);
  run.threads.clear();
  EXPECT_EQ(run.outcomes[0].environment_fault,
            "rank 0: the name late.test does not resolve within 0.5 s (twice --deadline); give all ranks another "
            "--master");
}

TEST(Rendezvous, SaysWhyRanksOnOtherMachinesMayBeMissing)
{
  Group run(2);
  run.options[0].deadline = Seconds(0.5);
  run.options[0].missing_advice = "other machines cannot reach MASTER_ADDR";
  run.start(0);
  run.threads.clear();
  EXPECT_EQ(run.outcomes[0].environment_fault,
            fmt::format("of 2 ranks these have not connected to {} within 0.5 s (twice --deadline): 1; other machines "
                        "cannot reach MASTER_ADDR",
                        text_of(run.master)));
}

}  // namespace
}  // namespace isobar::exec::rendezvous_test
