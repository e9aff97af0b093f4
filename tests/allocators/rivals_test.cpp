#include "allocators/rivals.hpp"

#include "allocators/registry.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace isobar::allocators::rivals_test {
namespace {

/// "even step", …: the rivals of an allocator for objective step under a schedule.
std::vector<std::string> rivals(const std::string& allocator, const std::string& schedule)
{
  Goal goal;
  goal.schedule = {.name = schedule};
  std::vector<std::string> texts;
  for (const auto& rival : rivals_of(allocator, goal)) {
    texts.push_back(rival.allocator + " " + std::string(name_of(rival.goal.objective)));
    EXPECT_EQ(rival.goal.schedule.name, schedule);
    EXPECT_TRUE(are_compatible(rival.goal.objective, rival.goal.communication)) << texts.back();
  }
  return texts;
}

using Texts = std::vector<std::string>;

const Texts of_other_objectives = {"chain-dp sequential",     "local-search sequential", "chain-dp bottleneck",
                                   "local-search bottleneck", "chain-dp pipeline",       "local-search pipeline"};

Texts joined(Texts first, const Texts& second)
{
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace

TEST(Rivals, OfAllocatorsOfChainsPlaceChains)
{
  EXPECT_EQ(rivals("even", "1f1b"),
            joined({"sky-dynamic step", "sky-dynamic-fixed step", "chain-dp step", "local-search step", "exact step"},
                   of_other_objectives));
  EXPECT_EQ(rivals("exec:program", "gpipe"), joined({"even step", "sky-dynamic step", "sky-dynamic-fixed step",
                                                     "chain-dp step", "local-search step", "exact step"},
                                                    of_other_objectives));
}

TEST(Rivals, OfAllocatorsOfReplicasPlaceReplicasAndChains)
{
  EXPECT_EQ(rivals("grid", "1f1b"),
            joined({"amp step", "dtfm step", "metis step", "even step", "sky-dynamic step", "sky-dynamic-fixed step",
                    "chain-dp step", "local-search step", "exact step"},
                   of_other_objectives));
}

TEST(Rivals, TakeTheSchedule)
{
  EXPECT_EQ(rivals("hybrid", "interleaved"), (Texts{"grid step", "even step", "sky-dynamic step",
                                                    "sky-dynamic-fixed step", "chain-dp step", "local-search step"}));
}

TEST(Rivals, OfAllocatorsThatDivideOperatorsDivideThem)
{
  EXPECT_EQ(rivals("dp-ev", "duplex"), (Texts{"ddp step", "dp-cp step", "horovod step", "spmd step"}));
  EXPECT_EQ(rivals("spmd", "sequential"), (Texts{"ddp step", "dp-cp step", "horovod step"}));
}

TEST(Rivals, AreNoneForTheCostOfDtFm)
{
  EXPECT_TRUE(rivals_of("grid", Goal::with_defaults(Objective::DtFm)).empty());
}

TEST(Rivals, ForOtherObjectivesThanStepHaveThatOfStep)
{
  std::set<std::string> objectives;
  for (const auto& rival : rivals_of("chain-dp", Goal::with_defaults(Objective::Pipeline))) {
    objectives.emplace(name_of(rival.goal.objective));
  }
  EXPECT_EQ(objectives, (std::set<std::string>{"bottleneck", "pipeline", "sequential", "step"}));
}

}  // namespace isobar::allocators::rivals_test
