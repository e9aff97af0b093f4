#include "exec/launch/launch.hpp"

#include "core/errors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace isobar::exec {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::ThrowsMessage;

const Environment torchrun = {{"RANK", "2"},
                              {"WORLD_SIZE", "4"},
                              {"LOCAL_RANK", "1"},
                              {"MASTER_ADDR", "10.0.0.1"},
                              {"MASTER_PORT", "29500"},
                              {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
const Environment slurm = {{"SLURM_PROCID", "1"},        {"SLURM_NTASKS", "3"},
                           {"SLURM_LOCALID", "0"},       {"SLURM_JOB_ID", "12"},
                           {"SLURM_STEP_ID", "0"},       {"SLURM_STEP_NUM_NODES", "3"},
                           {"SLURM_JOB_NODELIST", "m1"}, {"SLURM_STEP_NODELIST", "n[4-5,7],m1"}};
const Environment open_mpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                              {"OMPI_COMM_WORLD_SIZE", "2"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                              {"PMIX_NAMESPACE", "1558970369"}};
const Environment pmi = {{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}, {"ISOBAR_MASTER", "head:5000"}};

Environment both(Environment environment, const Environment& other)
{
  environment.insert(other.begin(), other.end());
  return environment;
}

Environment with(Environment environment, const std::string& name, const std::string& value)
{
  environment[name] = value;
  return environment;
}

Environment without(Environment environment, const std::string& name)
{
  environment.erase(name);
  return environment;
}

/// "rank/size local host:port by source".
std::string place(const Environment& environment, const LaunchFlags& flags = {})
{
  const auto found = launch_place(environment, flags);
  if (!found) return "none";
  return std::to_string(found->rank) + "/" + std::to_string(found->world_size) + " " +
         std::to_string(found->local_rank) + " " + found->master.host + ":" + std::to_string(found->master.port) +
         " by " + found->source;
}

testing::Matcher<std::function<void()>> throws(const std::string& text)
{
  return ThrowsMessage<InputError>(text);
}

std::function<void()> placing(const Environment& environment, const LaunchFlags& flags = {})
{
  return [=] { launch_place(environment, flags); };
}

TEST(LaunchPlace, IsNoneWithoutARank)
{
  EXPECT_EQ(place({}), "none");
  EXPECT_EQ(place({{"MASTER_ADDR", "a"}, {"ISOBAR_MASTER", "a:1"}, {"RANK", ""}}), "none");
}

TEST(LaunchPlace, OfTorchrunUsesThePortAfterTheStoreOfItsAgent)
{
  EXPECT_EQ(place(torchrun), "2/4 1 10.0.0.1:29501 by torchrun (RANK, WORLD_SIZE)");
  EXPECT_EQ(place(with(torchrun, "TORCHELASTIC_USE_AGENT_STORE", "False")),
            "2/4 1 10.0.0.1:29500 by torchrun (RANK, WORLD_SIZE)");
  EXPECT_EQ(place(without(torchrun, "TORCHELASTIC_USE_AGENT_STORE")),
            "2/4 1 10.0.0.1:29500 by torchrun (RANK, WORLD_SIZE)");
  EXPECT_THAT(placing(with(torchrun, "MASTER_PORT", "65535")),
              throws("MASTER_PORT: \"65535\" is not a whole number from 1 to 65534"));
}

TEST(LaunchPlace, OfSlurmIsOnTheFirstNodeAtAPortOfTheStep)
{
  const auto here = launch_place(slurm, {});
  EXPECT_EQ(here->rank, 1);
  EXPECT_EQ(here->world_size, 3);
  EXPECT_EQ(here->master.host, "n4");
  EXPECT_GE(here->master.port, 20'000);
  EXPECT_LT(here->master.port, 30'000);
  EXPECT_EQ(here->node, "");
  EXPECT_EQ(launch_place(with(slurm, "SLURMD_NODENAME", "n5"), {})->node, "n5");
  EXPECT_EQ(here->source, "Slurm (SLURM_PROCID, SLURM_NTASKS)");
  EXPECT_EQ(launch_place(with(slurm, "SLURM_PROCID", "2"), {})->master.port, here->master.port);
  EXPECT_NE(launch_place(with(slurm, "SLURM_STEP_ID", "1"), {})->master.port, here->master.port);
  EXPECT_NE(launch_place(with(slurm, "SLURM_JOB_ID", "13"), {})->master.port, here->master.port);
  EXPECT_EQ(launch_place(with(slurm, "SLURM_STEP_NUM_NODES", "1"), {})->master.host, "127.0.0.1");
  EXPECT_EQ(launch_place(without(slurm, "SLURM_STEP_NODELIST"), {})->master.host, "m1");
}

TEST(LaunchPlace, IsNoneForABatchScriptOfSlurm)
{
  EXPECT_EQ(place(without(slurm, "SLURM_STEP_ID")), "none");
}

TEST(LaunchPlace, OfOpenMpiIsOnTheLoopbackInterfaceWhenAllRanksAreOnThisMachine)
{
  const auto here = launch_place(open_mpi, {});
  EXPECT_EQ(here->rank, 1);
  EXPECT_EQ(here->world_size, 2);
  EXPECT_EQ(here->local_rank, 1);
  EXPECT_EQ(here->master.host, "127.0.0.1");
  EXPECT_NE(launch_place(with(open_mpi, "PMIX_NAMESPACE", "1"), {})->master.port, here->master.port);
  EXPECT_EQ(here->source, "Open MPI (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE)");
  const std::string nowhere =
      "the address of rank 0 is not set; give --master HOST:PORT to all ranks, or set ISOBAR_MASTER, or MASTER_ADDR "
      "and MASTER_PORT";
  EXPECT_THAT(placing(with(open_mpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "1")), throws(nowhere));
  EXPECT_THAT(placing(without(open_mpi, "PMIX_NAMESPACE")), throws(nowhere));
  EXPECT_THAT(placing(without(pmi, "ISOBAR_MASTER")), throws(nowhere));
}

TEST(LaunchPlace, OfAPmiRequiresAMaster)
{
  EXPECT_EQ(place(pmi), "1/3 0 head:5000 by PMI (PMI_RANK, PMI_SIZE), ISOBAR_MASTER");
  EXPECT_EQ(place(with(pmi, "MPI_LOCALRANKID", "1")), "1/3 1 head:5000 by PMI (PMI_RANK, PMI_SIZE), ISOBAR_MASTER");
}

TEST(LaunchPlace, IsThatOfTheInnermostLauncher)
{
  EXPECT_EQ(place(both(torchrun, slurm)), "2/4 1 10.0.0.1:29501 by torchrun (RANK, WORLD_SIZE), overriding Slurm");
  EXPECT_THAT(
      place(both(both(open_mpi, slurm), pmi)),
      EndsWith("by Open MPI (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE), ISOBAR_MASTER, overriding PMI and Slurm"));
  // Slurm has its own PMI, and names the first node.
  EXPECT_THAT(place(without(both(pmi, slurm), "ISOBAR_MASTER")), AllOf(HasSubstr(" n4:"), HasSubstr("by Slurm")));
  EXPECT_THAT(place(both(with(pmi, "PMI_RANK", "2"), slurm)), HasSubstr("2/3 0 head:5000 by PMI"));
}

TEST(LaunchPlace, IsThatOfTheFlagsBeforeTheEnvironment)
{
  EXPECT_EQ(place({}, {.rank = 0, .world = 2, .master = "a:1"}), "0/2 0 a:1 by --rank, --world, --master");
  EXPECT_EQ(place(torchrun, {.rank = 0, .world = 2, .master = "a:1"}),
            "0/2 0 a:1 by --rank, --world, --master, overriding torchrun");
  EXPECT_EQ(place(slurm, {.rank = {}, .world = {}, .master = "[::1]:7"}),
            "1/3 0 ::1:7 by --master, Slurm (SLURM_PROCID, SLURM_NTASKS)");
  EXPECT_EQ(place(torchrun, {.rank = 3, .world = {}, .master = {}}),
            "3/4 0 10.0.0.1:29501 by --rank, torchrun (RANK, WORLD_SIZE)");
  EXPECT_EQ(place(with(slurm, "ISOBAR_MASTER", "b:2"), {.rank = {}, .world = {}, .master = "a:1"}),
            "1/3 0 a:1 by --master, Slurm (SLURM_PROCID, SLURM_NTASKS)");
}

TEST(LaunchPlace, HasTheMasterOfTheEnvironmentBeforeThatOfTheLauncher)
{
  EXPECT_THAT(place(with(torchrun, "ISOBAR_MASTER", "b:2")),
              EndsWith(" b:2 by torchrun (RANK, WORLD_SIZE), ISOBAR_MASTER"));
  EXPECT_THAT(place(both(slurm, {{"MASTER_ADDR", "c"}, {"MASTER_PORT", "3"}})),
              EndsWith(" c:3 by Slurm (SLURM_PROCID, SLURM_NTASKS), MASTER_ADDR"));
}

TEST(LaunchPlace, NamesVariablesThatAreMissing)
{
  EXPECT_THAT(placing(without(torchrun, "WORLD_SIZE")),
              throws("WORLD_SIZE: not set; torchrun sets RANK and WORLD_SIZE together"));
  EXPECT_THAT(placing(without(torchrun, "RANK")), throws("RANK: not set; torchrun sets RANK and WORLD_SIZE together"));
  EXPECT_THAT(placing(without(torchrun, "MASTER_PORT")),
              throws("MASTER_PORT: not set; MASTER_ADDR and MASTER_PORT go together"));
  EXPECT_THAT(placing(with(torchrun, "MASTER_ADDR", "")),
              throws("MASTER_ADDR: not set; MASTER_ADDR and MASTER_PORT go together"));
  EXPECT_THAT(placing(without(slurm, "SLURM_NTASKS")),
              throws("SLURM_NTASKS: not set; Slurm sets SLURM_PROCID and SLURM_NTASKS together"));
  EXPECT_THAT(placing(without(slurm, "SLURM_JOB_ID")),
              throws("SLURM_JOB_ID: not set; Slurm's srun sets it; otherwise give --master HOST:PORT"));
  EXPECT_THAT(placing({}, {.rank = 1, .world = {}, .master = "a:1"}),
              throws("--rank requires --ranks, or --world and --master where no launcher sets them"));
}

TEST(LaunchPlace, NamesVariablesThatAreMalformed)
{
  for (const std::string wrong : {"x", "-1", "1.5", "1 ", "0x1", "99999999999999999999"}) {
    EXPECT_THAT(placing(with(torchrun, "RANK", wrong)),
                throws("RANK: \"" + wrong + "\" is not a whole number from 0 to 1000000"));
  }
  EXPECT_THAT(placing(with(torchrun, "WORLD_SIZE", "0")),
              throws("WORLD_SIZE: \"0\" is not a whole number from 1 to 1000000"));
  EXPECT_THAT(placing(with(torchrun, "RANK", "4")), throws("RANK: 4 is not below WORLD_SIZE, which is 4"));
  EXPECT_THAT(placing(with(torchrun, "LOCAL_RANK", "4")),
              throws("LOCAL_RANK: \"4\" is not a whole number from 0 to 3"));
  EXPECT_THAT(placing(with(torchrun, "MASTER_PORT", "http")),
              throws("MASTER_PORT: \"http\" is not a whole number from 1 to 65534"));
  EXPECT_THAT(placing(with(slurm, "ISOBAR_MASTER", "here")),
              throws("ISOBAR_MASTER: \"here\" is not an address; write host:port, such as 10.0.0.2:29500"));
  EXPECT_THAT(placing(with(slurm, "SLURM_STEP_NODELIST", "n[4-")),
              throws("SLURM_STEP_NODELIST: \"n[4-\" is not a list of nodes, such as n[0-3,7],m1"));
  EXPECT_THAT(placing(slurm, {.rank = 3, .world = 3, .master = {}}),
              throws("--rank: 3 is not below --world, which is 3"));
  EXPECT_THAT(placing(slurm, {.rank = 3, .world = {}, .master = {}}),
              throws("--rank: 3 is not below SLURM_NTASKS, which is 3"));
}

TEST(FirstHost, ReadsTheShortFormOfSlurm)
{
  const std::vector<std::pair<std::string, std::string>> lists = {{"n0", "n0"},
                                                                  {"a,b", "a"},
                                                                  {"n[0-3,7],m1", "n0"},
                                                                  {"n[08-11]", "n08"},
                                                                  {"r[1-2]n[3,5]x", "r1n3x"},
                                                                  {"[7-9]", "7"},
                                                                  {"node-1.site", "node-1.site"}};
  for (const auto& [list, first] : lists) EXPECT_EQ(first_host("X", list), first) << list;
}

TEST(FirstHost, RefusesTextsThatAreNotLists)
{
  for (const std::string wrong : {"", ",n0", "n[", "n[]", "n[a-b]", "n]0", "n[0", "n 0", "n[-3]", "n[[0]]", "a/b"}) {
    EXPECT_THAT([&] { first_host("X", wrong); }, ThrowsMessage<InputError>(HasSubstr(" is not a list of nodes")))
        << wrong;
  }
}

RC_GTEST_PROP(FirstHost, ReturnsAHostOrAnErrorForAnyText, (const std::string& text))
{
  try {
    const std::string host = first_host("X", text);
    RC_ASSERT(!host.empty());
    RC_ASSERT(host.find_first_of("[],/ \n") == std::string::npos);
  } catch (const InputError&) {
    RC_TAG("refused");
  }
}

TEST(EnvironmentOfThisProcess, HasAllVariablesExceptTheSecret)
{
  ::setenv("ISOBAR_TEST_VARIABLE", "a=b", 1);
  ::setenv("ISOBAR_SECRET", "must not be copied", 1);
  const auto environment = environment_of_this_process();
  EXPECT_EQ(environment.at("ISOBAR_TEST_VARIABLE"), "a=b");
  EXPECT_FALSE(environment.contains("ISOBAR_SECRET"));
}

}  // namespace
}  // namespace isobar::exec
