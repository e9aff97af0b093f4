#include "results/gate/baseline_meta.hpp"

#include "core/errors.hpp"
#include "tests/support/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace isobar::results::baseline_meta_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

const std::string grid = R"("grid": {"platforms": ["p.xml"], "workloads": ["w.yaml"], "allocators": ["even", "mine"], )"
                         R"("objectives": ["pipeline"]})";

std::string document(const std::string& more = "", const std::string& of_grid = grid)
{
  return "{\"schema\": \"isobar-baseline/1\",\n" + of_grid + (more.empty() ? "" : ",\n" + more) + "}";
}

std::string fault_of(const std::string& text)
{
  try {
    baseline_meta_from_json(text, "q.meta.json");
  } catch (const InputError& fault) {
    return fault.what();
  }
  return "";
}

Provenance provenance()
{
  return {"0.1.0", "3.32", "2.10.8", {{"network/model", "CM02"}}, {{"p.xml", "00"}, {"w.yaml", "11"}}};
}

TEST(BaselineMeta, SurvivesWritingAndReading)
{
  BaselineMeta meta;
  meta.platforms = {"p*.xml"};
  meta.workloads = {"w.yaml"};
  meta.allocators = {"even", "exec:./mine"};
  meta.objectives = {Objective::Sequential, Objective::Pipeline};
  meta.communication = Communication::None;
  meta.schedule = choice_of(ChainSchedule::GPipe);
  meta.microbatches = 4;
  meta.seed = 9;
  meta.budgets = {{"exec:./mine", 12}};
  meta.simulate = {{"even", 16}};
  meta.left_out = {{{"p1.xml"}, {}, {"exec:*"}, {}, "too slow"}};
  meta.plan_time_limits = {{"exec:./mine", 2.5}};
  meta.approved = provenance();
  const std::string text = baseline_meta_to_json(meta);
  EXPECT_EQ(baseline_meta_to_json(baseline_meta_from_json(text, "q.meta.json")), text);
}

TEST(BaselineMeta, RefusesUnknownKeysAndValues)
{
  EXPECT_EQ(fault_of("{}"),
            "q.meta.json:1: schema: missing; write isobar-baseline/1\nq.meta.json:1: grid: missing; write a value");
  EXPECT_EQ(fault_of(document("\"budget\": {}")), "q.meta.json:3: budget: unknown key; did you mean budgets?");
  EXPECT_EQ(fault_of(document("\"budgets\": {\"other\": 3}")),
            "q.meta.json:3: budgets.other: is not in grid.allocators");
  EXPECT_EQ(fault_of(document("\"simulate\": {\"other\": 3}")),
            "q.meta.json:3: simulate.other: is not in grid.allocators");
  EXPECT_EQ(fault_of(document("\"leave_out\": [{\"allocators\": [\"mine\"]}]")),
            "q.meta.json:3: leave_out[0].because: missing; write a string");
  EXPECT_EQ(fault_of(document(
                "", R"("grid": {"platforms": [], "workloads": [3], "allocators": ["even"], "objectives": ["fast"]})")),
            "q.meta.json:2: grid.platforms: is empty, so the grid has no rows; list at least one\n"
            "q.meta.json:2: grid.workloads: holds an entry that is not text; write a list such as [\"a\", \"b\"]\n"
            "q.meta.json:2: grid.objectives: \"fast\" is not one of step, dtfm, sequential, bottleneck, pipeline");
  EXPECT_EQ(fault_of(document("", R"("grid": {"platforms": ["p"], "workloads": ["w"], "allocators": ["even"], )"
                                  R"("objectives": ["step", "sequential"], "communication": "serial"})")),
            "q.meta.json:2: grid.communication: serial does not go with objective step");
  EXPECT_EQ(fault_of(document("", R"("grid": {"platforms": ["p"], "workloads": ["w"], "allocators": ["even"], )"
                                  R"grid("objectives": ["step"], "schedule": "interleaved(2)"})grid")),
            "q.meta.json:2: grid.schedule: \"2\" in \"interleaved(2)\" is not KEY=NUMBERS; write it as in "
            "interleaved(chunks=2)");
}

TEST(BaselineMeta, KeepsTheNumbersOfItsSchedule)
{
  const std::string text = document("", R"("grid": {"platforms": ["p"], "workloads": ["w"], "allocators": ["even"], )"
                                        R"grid("objectives": ["step"], "schedule": "1f1b(warm_up=auto)"})grid");
  const BaselineMeta meta = baseline_meta_from_json(text, "q.meta.json");
  const ScheduleChoice expected{"1f1b", {{"warm_up", {}}}};
  EXPECT_EQ(meta.schedule, expected);
}

TEST(BaselineMeta, HasTheNumberOfPlacementsToSimulateByAllocator)
{
  const BaselineMeta meta = baseline_meta_from_json(document("\"simulate\": {\"mine\": 16}"), "q.meta.json");
  EXPECT_THAT(meta.simulate, ElementsAre(Pair("mine", 16U)));
}

TEST(BaselineMeta, LimitsPlanTimesOnlyWhereEvenIsPlanned)
{
  const std::string without_even =
      R"("grid": {"platforms": ["p.xml"], "workloads": ["w.yaml"], "allocators": ["mine"], )"
      R"("objectives": ["pipeline"]})";
  EXPECT_EQ(fault_of(document("\"plan_time_limits\": {\"mine\": 3}", without_even)),
            "q.meta.json:3: plan_time_limits: are relative to the plan time of even; add even to grid.allocators");
}

TEST(BaselineMeta, HasTheKeysOfAllocatorsThatLetLayersPass)
{
  const auto grid_with = [](const std::string& more) {
    return document("", R"("grid": {"platforms": ["p.xml"], "workloads": ["w.yaml"], "allocators": ["exact"], )"
                        R"("objectives": ["step"], )" +
                            more + "}");
  };
  const BaselineMeta meta = baseline_meta_from_json(grid_with(R"("window": 4, "offload": "auto")"), "q.meta.json");
  EXPECT_EQ(meta.window, 4U);
  EXPECT_EQ(meta.offload, "auto");
  EXPECT_THAT(baseline_meta_to_json(meta), testing::HasSubstr("\"window\": 4,\n    \"offload\": \"auto\"\n"));
  EXPECT_EQ(fault_of(grid_with(R"("offload": "aut")")),
            "q.meta.json:2: grid.offload: \"aut\" is not one of auto, none; did you mean auto?");
}

class BaselineRows : public testing::Test {
 protected:
  BaselineRows()
  {
    for (const auto* file : {"a.xml", "b.xml", "w.yaml"}) folder_.write(file, "");
    meta_.name = "q.meta.json";
    meta_.platforms = {path("*.xml")};
    meta_.workloads = {path("w.yaml"), path("*.yaml")};
    meta_.allocators = {"mine", "even"};
    meta_.objectives = {Objective::Pipeline};
  }

  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  std::vector<ComparisonRow> all() const
  {
    return meta_.rows([](ComparisonRow& row) {
      row.goal = Goal::with_defaults(row.goal.objective);
      if (row.allocator == "mine") row.recompute = "inner";
    });
  }
  std::vector<std::string> rows() const
  {
    std::vector<std::string> names;
    for (const auto& row : all()) names.push_back(row.platform.substr(path("").size()) + " " + row.allocator);
    return names;
  }
  std::string fault() const
  {
    try {
      all();
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  }

  testing_support::TemporaryFolder folder_;
  BaselineMeta meta_;
};

TEST_F(BaselineRows, AreTheWholeGridEachOnce)
{
  EXPECT_THAT(rows(), ElementsAre("a.xml even", "a.xml mine", "b.xml even", "b.xml mine"));
}

TEST_F(BaselineRows, HaveTheDefaultsOfAllocatorAndObjectiveUnlessTheGridSaysOtherwise)
{
  meta_.microbatches = 3;
  meta_.objectives = {Objective::Sequential};
  const auto of_each = all();
  EXPECT_EQ(of_each.front().recompute, "none");
  EXPECT_EQ(of_each.back().recompute, "inner");
  meta_.recompute = "all";
  EXPECT_EQ(all().back().recompute, "all");
  const Goal goal = of_each.front().goal;
  EXPECT_EQ(goal.communication, Communication::Serial);
  EXPECT_EQ(goal.schedule, choice_of(ChainSchedule::Sequential));
  EXPECT_EQ(goal.microbatches, 3U);
}

TEST_F(BaselineRows, ExcludeWhatMatchesAllListsOfAnEntry)
{
  meta_.left_out = {{{"*/a.xml"}, {}, {"mi*"}, {}, "because"}};
  EXPECT_THAT(rows(), ElementsAre("a.xml even", "b.xml even", "b.xml mine"));
}

TEST_F(BaselineRows, RefuseAnEntryThatLeavesNothingOut)
{
  meta_.left_out = {{{"c.xml"}, {}, {}, {}, "because", 7}};
  EXPECT_EQ(fault(), "q.meta.json:7: leave_out[0]: matches no row of the grid; correct its patterns or delete it");
}

TEST_F(BaselineRows, RefuseAPatternWithoutFiles)
{
  meta_.workloads.emplace_back("none*.yaml");
  EXPECT_EQ(fault(),
            "q.meta.json: grid.workloads: \"none*.yaml\": no such file; names are read from the working folder");
}

TEST(ReasonsNotToCompare, AreOtherSimulatorsSolversAndNetworks)
{
  EXPECT_THAT(reasons_not_to_compare(provenance(), provenance()), IsEmpty());
  Provenance now = provenance();
  now.simgrid_version = "4.1";
  now.cbc_version.reset();
  now.network = {{"network/model", "LV08"}, {"network/weight-S", "0"}};
  EXPECT_THAT(reasons_not_to_compare(provenance(), now),
              ElementsAre("approved.simgrid_version: the rows were made with 3.32; this is 4.1",
                          "approved.cbc_version: the rows were made with 2.10.8; this is none",
                          "approved.network.network/model: the rows were made with CM02; this is LV08",
                          "approved.network.network/weight-S: the rows were made with none; this is 0"));
}

TEST(ReasonsNotToCompare, AreNotIsobarsVersionAndInputs)
{
  Provenance now = provenance();
  now.isobar_version = "0.2.0";
  now.inputs["p.xml"] = "22";
  now.inputs["new.xml"] = "33";
  EXPECT_THAT(reasons_not_to_compare(provenance(), now), IsEmpty());
  EXPECT_THAT(changed_inputs(provenance(), now), ElementsAre("p.xml: has changed since the rows were approved"));
}

}  // namespace
}  // namespace isobar::results::baseline_meta_test
