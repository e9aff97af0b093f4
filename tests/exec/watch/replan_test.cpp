#include "exec/watch/replan.hpp"

#include "core/base/command_options.hpp"
#include "core/base/files.hpp"
#include "tests/exec/links/tcp_ranks.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace isobar::exec::replan_test {
namespace {

using testing::ElementsAre;

Plan plan_on(const std::vector<std::string>& devices)
{
  Plan plan;
  plan.allocator = "chain-dp";
  plan.goal = {Objective::Bottleneck, Communication::Serial, {"gpipe"}, 4};
  for (std::size_t i = 0; i < devices.size(); ++i) plan.stages.push_back(stage_on(devices[i], i, i));
  plan.platform = plan.workload = {"name", "hash", {}};
  return plan;
}

TEST(Replan, RequestsTheSamePlanWithoutOneMoreDevice)
{
  EXPECT_THAT(
      replan_arguments(plan_on({"a", "b"}), "b", {"p.xml", "w.yaml"}, "new.json"),
      ElementsAre("plan", "p.xml", "w.yaml", "--allocator", "chain-dp", "--objective", "bottleneck", "--communication",
                  "serial", "--schedule", "gpipe", "--microbatches", "4", "--without", "b", "--output", "new.json"));
  Plan plan = plan_on({"a", "b"});
  plan.without = {"c"};
  plan.recompute = {0, 1};
  plan.profile = {"live.profile.json", "hash"};
  plan.workload.set = {{"layers", "48"}, {"dtype", "bf16"}};
  const auto arguments = replan_arguments(plan, "a", {"p.xml", "w.yaml"}, "new.json");
  EXPECT_THAT((std::vector<std::string>(arguments.begin() + 13, arguments.end())),
              ElementsAre("--without", "c,a", "--output", "new.json", "--set", "dtype=bf16", "--set", "layers=48",
                          "--recompute", "0,1", "--profile", "live.profile.json"));
}

TEST(Replan, KeepsTheNumbersOfAScheduleExceptThoseByDevice)
{
  const auto schedule_of = [](const ScheduleChoice& schedule) {
    Plan plan = plan_on({"a", "b", "c"});
    plan.goal.schedule = schedule;
    return replan_arguments(plan, "b", {"p.xml", "w.yaml"}, "new.json")[10];
  };
  EXPECT_EQ(schedule_of({"interleaved", {{"chunks", {2}}}}), "interleaved(chunks=2)");
  EXPECT_EQ(schedule_of({"1f1b", {{"warm_up", {3, 2, 1}}}}), "1f1b(warm_up=auto)");
}

TEST(Replan, WritesNamesWithCommasAsTheOptionReadsThem)
{
  Plan plan = plan_on({"rack 1, slot 2", R"(b\)"});
  plan.without = {R"(a,\c)"};
  const auto arguments = replan_arguments(plan, "rack 1, slot 2", {"p.xml", "w.yaml"}, "new.json");
  EXPECT_EQ(arguments[14], R"(a\,\\c,rack 1\, slot 2)");
  EXPECT_THAT(names_from_list(arguments[14]), ElementsAre(R"(a,\c)", "rack 1, slot 2"));
}

TEST(Replan, NamesItsPlansAfterTheFirstOne)
{
  Plan plan = plan_on({"a", "b"});
  EXPECT_EQ(replanned_file("folder/plan.json", plan), "folder/plan.without-1.json");
  plan.without = {"a"};
  EXPECT_EQ(replanned_file("folder/plan.without-1.json", plan), "folder/plan.without-2.json");
  EXPECT_EQ(replanned_file("mine.json", plan), "mine.without-2.json");
}

TEST(Replan, RefusesOrdersThatAUserWroteBeforeTheRun)
{
  const auto file = std::filesystem::temp_directory_path() / "isobar_replan_listed_test.json";
  Plan plan = plan_on({"a"});
  plan.goal = Goal::with_defaults(Objective::Step);
  const isobar::Run rounds{8, {{{Opcode::Forward, 0, 0}}, {{Opcode::Backward, 0, 0}}}};
  plan.goal.schedule = {"listed", {}, {{"a", Order(std::vector<isobar::Run>{rounds})}}};
  write_file_atomically(file, plan_to_json(plan));
  EXPECT_EQ(error_of([&] {
              check_replan(file.string(), {"p.xml", "w.yaml"});
            }),
            "--replan: " + file.string() +
                " has schedule listed, and no allocator makes its orders for fewer devices; leave --replan out, or run "
                "a plan of another schedule, such as 1f1b or greedy");
  std::filesystem::remove(file);
}

TEST(Replan, RequiresALostDeviceAndOthersThatRemain)
{
  const auto file = std::filesystem::temp_directory_path() / "isobar_replan_test.json";
  const auto error = [&](const Plan& plan, const Failure& failure) {
    write_file_atomically(file, plan_to_json(plan));
    return error_of([&] { replan(file.string(), {"p.xml", "w.yaml"}, failure); });
  };
  const auto failure = [](Failure::Kind kind, std::optional<std::size_t> rank) {
    return Failure{kind, rank, ExitCode::EnvironmentError, "what has failed"};
  };
  using Kind = Failure::Kind;
  const std::string none = "what has failed; no device is known to be lost, so none can be left out";
  EXPECT_EQ(error(plan_on({"a", "b"}), failure(Kind::PeerClosed, 0)), none);
  EXPECT_EQ(error(plan_on({"a", "b"}), failure(Kind::Other, 1)), none);
  EXPECT_EQ(error(plan_on({"a", "b"}), failure(Kind::Died, std::nullopt)), none);
  EXPECT_EQ(error(plan_on({"a"}), failure(Kind::Died, 0)),
            "what has failed; it is the only device, so it cannot be left out");
  Plan served = plan_on({"a", "b"});
  served.data_server = "s";
  EXPECT_EQ(error(served, failure(Kind::Died, 2)), none);
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace isobar::exec::replan_test
