#include "schedules/lowering/plan_file.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "tests/schedules/lowering/sample_programs.hpp"
#include "tests/support/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace isobar::schedules::plan_file_test {
namespace {

/// A step of two micro-batches on two devices.
Plan plan_with(ScheduleChoice schedule, const std::vector<std::size_t>& device_of_stage = {0, 1})
{
  Plan plan = plan_on(device_of_stage, std::move(schedule), 2);
  plan.allocator = "by hand";
  plan.platform = plan.workload = {"name", "hash"};
  return plan;
}

/// The refusal of a file with that plan, without its folder; "" if it is read.
std::string fault_of(const Plan& plan)
{
  const testing_support::TemporaryFolder folder;
  const std::string file = (folder.path() / "plan.json").string();
  write_file_atomically(file, plan_to_json(plan));
  try {
    EXPECT_EQ(plan_to_json(read_scheduled_plan(file)), plan_to_json(plan));
  } catch (const InputError& fault) {
    std::string text = fault.what();
    for (auto at = text.find(file); at != std::string::npos; at = text.find(file)) text.replace(at, file.size(), "F");
    return text;
  }
  return "";
}

TEST(ReadScheduledPlan, ReadsPlansWhoseSchedulesHaveOrders)
{
  EXPECT_EQ(fault_of(plan_with({"1f1b"})), "");
  EXPECT_EQ(fault_of(plan_with({"1f1b", {{"warm_up", {1, 0}}}})), "");
  EXPECT_EQ(fault_of(plan_with({"interleaved", {{"chunks", {2}}}}, {0, 1, 0, 1})), "");
}

TEST(ReadScheduledPlan, NamesFileAndLineOfRulesThatAProgramCannotKeep)
{
  Plan plan = plan_with({"1f1b"});
  plan.stages[1].replicas = {{1, {Shard{"d1"}}}, {1, {Shard{"d2"}}}};
  plan.transfers.blocking = true;
  EXPECT_EQ(
      fault_of(plan),
      "F:52: transfers: blocking needs neighbouring stages that divide the micro-batches alike, and stages[1] has "
      "other replicas than stages[0]");
}

TEST(ReadScheduledPlan, NamesFileAndLineOfAScheduleThatDoesNotFitTheStages)
{
  EXPECT_EQ(fault_of(plan_with({"interleavd"}, {0, 1, 0, 1})),
            "F:6: schedule: \"interleavd\" is not known; did you mean interleaved?");
  EXPECT_EQ(fault_of(plan_with({"gpipe", {{"chunks", {2}}}})), "F:6: schedule: gpipe takes no chunks; leave it out");
  EXPECT_EQ(fault_of(plan_with({"1f1b", {{"warm_up", {1}}}})),
            "F:6: schedule: warm_up has 1 number for 2 devices; give one for each");
  EXPECT_EQ(fault_of(plan_with({"1f1b", {{"warm_up", {0, 1}}}})),
            "F:6: schedule: warm_up[1] is 1 and warm_up[0] is 0, so the two devices would wait for each other; give no "
            "device more than the one before");
  EXPECT_EQ(fault_of(plan_with({"interleaved", {{"chunks", {3}}}}, {0, 1, 0, 1})),
            "F:6: schedule: chunks is 3 and each device has 2 stages; give both alike");
}

TEST(ReadScheduledPlan, NamesFileAndLineOfEachFaultOfOrders)
{
  const auto order_of = [](Opcode opcode) { return Order(std::vector<isobar::Run>{{2, {{{opcode, 0, 0}}}}}); };
  const ScheduleChoice halves = {"listed", {}, {{"d0", order_of(Opcode::Backward)}, {"d1", order_of(Opcode::Forward)}}};
  EXPECT_EQ(fault_of(plan_with(halves)),
            "F:6: schedule.orders.d0: F0.0 is missing; order it once\n"
            "F:6: schedule.orders.d1: B0.0 is missing; order it once");
}

/// Parameters, gradients and optimizer on the host, with places for so many of the first two.
Residence on_host(std::size_t parameter_slots, std::size_t gradient_slots)
{
  Residence residence;
  residence.parameters = residence.gradients = residence.optimizer = Tier::Host;
  residence.parameter_slots = parameter_slots;
  residence.gradient_slots = gradient_slots;
  return residence;
}

TEST(ReadScheduledPlan, NamesFileAndLineOfAStageWhoseResidenceContradictsThatOfAnother)
{
  Plan plan = plan_with({"interleaved", {{"chunks", {2}}}}, {0, 1, 0, 1});
  plan.stages[0].residence = on_host(1, 2);
  plan.stages[2].residence = on_host(2, 2);
  EXPECT_THAT(fault_of(plan), testing::MatchesRegex(
                                  "F:[0-9]+: stages.2..residence.parameter_slots: another one than an earlier stage of "
                                  "device d0 has; it is of the device"));
  plan.stages[2].residence = on_host(1, 2);
  EXPECT_EQ(fault_of(plan), "");
}

TEST(ReadScheduledPlan, NamesFileAndLineOfAStageWithTooFewOrTooManyPlaces)
{
  Plan plan = plan_with({"1f1b"}, {0, 0});
  plan.stages[0].residence = plan.stages[1].residence = on_host(1, 1);
  EXPECT_THAT(
      fault_of(plan),
      testing::MatchesRegex("F:[0-9]+: stages.0..residence.gradient_slots: 1; the backward passes of more stages of "
                            "the device overlap, and each needs a place until its last micro-batch; give as many, "
                            "or use schedule gpipe"));
  plan.goal.schedule = {"gpipe"};
  EXPECT_EQ(fault_of(plan), "");
  plan.stages[0].residence = plan.stages[1].residence = on_host(3, 1);
  EXPECT_THAT(fault_of(plan), testing::MatchesRegex(
                                  "F:[0-9]+: stages.0..residence.parameter_slots: 3, while parameters of 2 parts pass "
                                  "through device d0; write 2 or less"));
}

TEST(ReadScheduledPlan, NeedsNoOrdersWithoutStages)
{
  Plan plan = plan_with({"greedy"}, {});
  plan.outcome = Outcome::Infeasible;
  plan.reason = "too little memory";
  EXPECT_EQ(fault_of(plan), "");
}

}  // namespace
}  // namespace isobar::schedules::plan_file_test
