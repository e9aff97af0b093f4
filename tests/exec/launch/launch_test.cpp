#include "exec/launch/launch.hpp"

#include "core/errors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace isobar::exec::launch_test {
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

/// Ranks 0 to 2 of a heterogeneous job with node n7 in its first component; as Slurm 22.05 sets its variables.
const Environment heterogeneous = both({{"SLURM_JOB_NODELIST_HET_GROUP_0", "n[7-8]"},
                                        {"SLURM_JOB_NODELIST_HET_GROUP_1", "n[4-5],m1"},
                                        {"SLURM_DISTRIBUTION", "cyclic"},
                                        {"SLURM_STEP_NODELIST", "m1,n[4-5,7-8]"}},
                                       slurm);

TEST(LaunchPlace, OfAHeterogeneousJobIsOnTheFirstNodeOfItsFirstComponent)
{
  EXPECT_EQ(launch_place(heterogeneous, {})->master.host, "n7");
  // srun sets other names where it makes the job itself.
  auto by_srun = without(without(heterogeneous, "SLURM_JOB_NODELIST_HET_GROUP_0"), "SLURM_JOB_NODELIST_HET_GROUP_1");
  by_srun["SLURM_JOB_NODELIST_PACK_GROUP_0"] = "n[7-8]";
  by_srun["SLURM_JOB_NODELIST_PACK_GROUP_1"] = "n[4-5],m1";
  EXPECT_EQ(launch_place(by_srun, {})->master.host, "n7");
}

TEST(LaunchPlace, OfAHeterogeneousJobIsOnANodeOfTheStep)
{
  EXPECT_EQ(launch_place(with(heterogeneous, "SLURM_STEP_NODELIST", "m1,n[4-5]"), {})->master.host, "n4");
  EXPECT_EQ(launch_place(with(heterogeneous, "SLURM_STEP_NODELIST", "n[4,8]"), {})->master.host, "n8");
  EXPECT_EQ(launch_place(with(heterogeneous, "SLURM_STEP_NODELIST", "n[1-2]"), {})->master.host, "n1");
  EXPECT_THAT(placing(with(heterogeneous, "SLURM_JOB_NODELIST_HET_GROUP_0", "(null)")),
              throws("SLURM_JOB_NODELIST_HET_GROUP_0: \"(null)\" is not a list of nodes, such as n[0-3,7],m1"));
}

TEST(LaunchPlace, OfSlurmMustBeGivenWhereItsVariablesDoNotNameTheNodeOfRankZero)
{
  EXPECT_THAT(placing(with(slurm, "SLURM_DISTRIBUTION", "arbitrary")),
              throws("SLURM_DISTRIBUTION: \"arbitrary\" does not say which node has rank 0; give --master HOST:PORT"));
  EXPECT_EQ(launch_place(with(slurm, "SLURM_DISTRIBUTION", "arbitrary"), {.rank = {}, .world = {}, .master = "n7:1"})
                ->master.host,
            "n7");
  // A heterogeneous step within one job: srun -w n7 … : -w n4 ….
  const auto rank_zero = with(slurm, "SLURM_PROCID", "0");
  EXPECT_EQ(launch_place(with(rank_zero, "SLURMD_NODENAME", "n4"), {})->master.host, "n4");
  EXPECT_THAT(placing(with(rank_zero, "SLURMD_NODENAME", "n7")),
              throws("SLURMD_NODENAME: rank 0 is on n7, but the other ranks expect it on n4, the first node of the "
                     "step; give all ranks --master n7:" +
                     std::to_string(launch_place(slurm, {})->master.port)));
}

TEST(LaunchPlace, SaysWhatToChangeWhenRankZeroCannotListenThere)
{
  const std::string other = "; give all ranks another address with --master or ISOBAR_MASTER";
  EXPECT_EQ(launch_place(torchrun, {})->master_advice,
            "the port is MASTER_PORT + 1, since torchrun's agent listens at MASTER_PORT" + other);
  EXPECT_EQ(launch_place(without(torchrun, "TORCHELASTIC_USE_AGENT_STORE"), {})->master_advice,
            "it comes from MASTER_ADDR and MASTER_PORT" + other);
  EXPECT_EQ(launch_place(slurm, {})->master_advice, "the address follows from the job" + other);
  EXPECT_EQ(launch_place(open_mpi, {})->master_advice, "the address follows from the job" + other);
  EXPECT_EQ(launch_place(pmi, {})->master_advice, "give all ranks another ISOBAR_MASTER");
  EXPECT_EQ(launch_place(pmi, {.rank = {}, .world = {}, .master = "a:1"})->master_advice,
            "give all ranks another --master");
}

TEST(LaunchPlace, SaysThatOtherMachinesCannotReachALoopbackAddressOfTheEnvironment)
{
  // As Kubeflow's PyTorchJob starts its master.
  const Environment job = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "23456"}};
  EXPECT_EQ(launch_place(job, {})->missing_advice,
            "other machines cannot reach MASTER_ADDR, which is localhost; for ranks there, give all ranks an address "
            "of rank 0's machine with --master or ISOBAR_MASTER");
  EXPECT_EQ(launch_place(with(job, "LOCAL_WORLD_SIZE", "2"), {})->missing_advice, "");
  EXPECT_EQ(launch_place(with(job, "MASTER_ADDR", "job-master-0"), {})->missing_advice, "");
  EXPECT_EQ(launch_place(with(job, "ISOBAR_MASTER", "localhost:1"), {})->missing_advice, "");
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

TEST(HostsOf, ReadsTheShortFormOfSlurm)
{
  using Hosts = std::vector<std::string>;
  const std::vector<std::pair<std::string, Hosts>> lists = {{"n0", {"n0"}},
                                                            {"b,a", {"b", "a"}},
                                                            {"n[0-2,7],m1", {"n0", "n1", "n2", "n7", "m1"}},
                                                            {"n[08-11]", {"n08", "n09", "n10", "n11"}},
                                                            {"r[1-2]n[3,5]x", {"r1n3x", "r1n5x", "r2n3x", "r2n5x"}},
                                                            {"[7-8]", {"7", "8"}},
                                                            {"node-1.site", {"node-1.site"}}};
  for (const auto& [list, hosts] : lists) EXPECT_EQ(hosts_of("X", list), hosts) << list;
}

TEST(HostsOf, RefusesTextsThatAreNotLists)
{
  for (const std::string wrong :
       {"", ",n0", "n0,", "n[", "n[]", "n[a-b]", "n]0", "n[0", "n 0", "n[-3]", "n[3-1]", "n[1,]", "n[[0]]", "a/b",
        "n[0-1000000]", "n[0-999]x[0-1000]", "n[0-18446744073709551614]", "n[0-999998],a,b"}) {
    EXPECT_THAT([&] { hosts_of("X", wrong); },
                throws("X: " + in_quotes(wrong) + " is not a list of nodes, such as n[0-3,7],m1"))
        << wrong;
  }
}

RC_GTEST_PROP(HostsOf, ReturnsHostsOrAnErrorForAnyText, ())
{
  const auto text = *rc::gen::container<std::string>(rc::gen::elementOf(std::string("n0129[],-a /")));
  try {
    const auto hosts = hosts_of("X", text);
    RC_ASSERT(!hosts.empty());
    for (const auto& host : hosts) {
      RC_ASSERT(!host.empty());
      RC_ASSERT(host.find_first_of("[],/ \n") == std::string::npos);
    }
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
}  // namespace isobar::exec::launch_test
