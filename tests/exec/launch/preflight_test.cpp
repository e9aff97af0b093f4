#include "exec/launch/preflight.hpp"

#include "core/errors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

namespace isobar::exec::preflight_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

constexpr Bytes gibibyte(1024.0 * 1024 * 1024);

PresentRank rank_on(const std::string& host)
{
  PresentRank rank;
  rank.facts = {.host = host,
                .plan_device = {},
                .device = "cpu",
                .device_name = "a processor",
                .memory = 4 * gibibyte,
                .dtypes = {"float32", "bf16"},
                .version = "0.1.0",
                .torch_version = "2.11.0",
                .plan_hash = "0123",
                .workload_hash = "4567",
                .data_hash = "",
                .settings = "--steps 10"};
  rank.address = "10.0.0.1";
  return rank;
}

std::vector<PresentRank> three_ranks()
{
  return {rank_on("x"), rank_on("y"), rank_on("z")};
}

Preflight three_devices()
{
  Preflight preflight;
  preflight.devices = {"a", "b", "c"};
  preflight.peak_memory = {1 * gibibyte, 2 * gibibyte, 3 * gibibyte};
  preflight.types.resize(3);
  return preflight;
}

/// The only fault of a run of three ranks after a change; "" for none.
template <typename Change>
std::string reason(Change change)
{
  auto ranks = three_ranks();
  change(ranks);
  const auto faults = examine_ranks(three_devices(), ranks).faults;
  EXPECT_LE(faults.size(), 1);
  return faults.empty() ? "" : faults.front();
}

TEST(ExamineRanks, RefusesADeviceOfAnotherTypeThanThePlans)
{
  auto ranks = three_ranks();
  ranks[0].facts.device_name = "NVIDIA H200";
  ranks[1].facts.device_name = "Tesla V100-SXM2-16GB";
  auto preflight = three_devices();
  preflight.types = {"h200", "V100-SXM2-16GB", ""};
  EXPECT_THAT(examine_ranks(preflight, ranks).faults, IsEmpty());
  preflight.types = {"A100", "V100-SXM2-32GB", "a processor"};
  EXPECT_THAT(
      examine_ranks(preflight, ranks).faults,
      testing::ElementsAre(HasSubstr("rank 0 (x): cpu (NVIDIA H200) is of another type than the plan's a, which "
                                     "is \"A100\"; plan for the present devices, or give --emulate"),
                           HasSubstr("rank 1 (y): cpu (Tesla V100-SXM2-16GB) is of another type")));
}

TEST(ExamineRanks, AcceptsRanksThatAgree)
{
  const auto assignment = examine_ranks(three_devices(), three_ranks());
  EXPECT_THAT(assignment.faults, IsEmpty());
  EXPECT_THAT(assignment.device_of_rank, ElementsAre(0, 1, 2));
}

TEST(ExamineRanks, NamesDifferencesFromRankZero)
{
  EXPECT_EQ(reason([](auto& ranks) { ranks[1].facts.version = "0.2.0"; }),
            "rank 1 (y): Isobar \"0.2.0\"; rank 0 has \"0.1.0\"");
  EXPECT_EQ(reason([](auto& ranks) { ranks[2].facts.torch_version = "2.6.0"; }),
            "rank 2 (z): LibTorch \"2.6.0\"; rank 0 has \"2.11.0\"");
  EXPECT_EQ(reason([](auto& ranks) { ranks[2].facts.plan_hash = "89"; }),
            "rank 2 (z): a plan with hash \"89\"; rank 0 has \"0123\"");
  EXPECT_EQ(reason([](auto& ranks) { ranks[2].facts.workload_hash = "89"; }),
            "rank 2 (z): a workload with hash \"89\"; rank 0 has \"4567\"");
  EXPECT_EQ(reason([](auto& ranks) { ranks[2].facts.data_hash = "89"; }),
            "rank 2 (z): data with hash \"89\"; rank 0 has \"\"");
  EXPECT_EQ(reason([](auto& ranks) { ranks[2].facts.settings = "--steps 9"; }),
            "rank 2 (z): options \"--steps 9\"; rank 0 has \"--steps 10\"");
}

TEST(ExamineRanks, RefusesADeviceWithoutTheDtype)
{
  auto preflight = three_devices();
  preflight.dtype = DType::BFloat16;
  auto ranks = three_ranks();
  ranks[0].facts.dtypes = {"float32", "fp16"};
  EXPECT_THAT(examine_ranks(preflight, ranks).faults,
              ElementsAre("rank 0 (x): cpu (a processor) does not compute in bf16, which the workload requires"));
}

TEST(ExamineRanks, RefusesTooLittleMemory)
{
  EXPECT_EQ(reason([](auto& ranks) { ranks[2].facts.memory = 2 * gibibyte; }),
            "rank 2 (z): 2.00 GiB of memory on cpu (a processor); the plan needs 3.00 GiB there, for c");
  EXPECT_EQ(reason([](auto& ranks) { ranks[0].facts.memory = 1 * gibibyte; }), "");
}

TEST(ExamineRanks, AddsTheMemoryOfRanksThatShareADevice)
{
  const auto together = [](auto& ranks) { ranks[1].facts.host = ranks[2].facts.host; };
  EXPECT_EQ(reason(together),
            "rank 1 (z): 4.00 GiB of memory on cpu (a processor); the plan needs 5.00 GiB there, for b, c");
  EXPECT_EQ(reason([&](auto& ranks) {
              together(ranks);
              ranks[1].facts.device = "cuda:0";
            }),
            "");
}

TEST(ExamineRanks, RefusesAClockThatIsWrongDespiteTheMeasurementError)
{
  EXPECT_EQ(reason([](auto& ranks) { ranks[1].clock = Seconds(4.9); }), "");
  EXPECT_EQ(reason([](auto& ranks) { ranks[1].clock = Seconds(50); }),
            "rank 1 (y): its clock is 50.0 s ahead of rank 0's; set the clocks, or allow more than 5.00 s with "
            "--clock-skew");
  EXPECT_THAT(reason([](auto& ranks) { ranks[1].clock = Seconds(-50); }), HasSubstr("is 50.0 s behind rank 0's"));
  EXPECT_EQ(reason([](auto& ranks) {
              ranks[1].clock = Seconds(5.2);  // within the error of a round trip of a second
              ranks[1].round_trip = Seconds(1);
            }),
            "");
}

TEST(ExamineRanks, RefusesALoopbackAddressAmongOthers)
{
  EXPECT_EQ(
      reason([](auto& ranks) { ranks[1].address = "127.0.0.1"; }),
      "rank 1 (y): connects to rank 0 from 127.0.0.1, where rank 2 (z), which connects from 10.0.0.1, cannot reach it; "
      "give --master an address of rank 0's machine that is the same for all");
  EXPECT_EQ(reason([](auto& ranks) { ranks[0].address = "localhost"; }), "");
  EXPECT_EQ(reason([](auto& ranks) {
              for (auto& rank : ranks) rank.address = "127.0.0.1";
            }),
            "");
}

TEST(ExamineRanks, NamesTheDevicesWhenTheNumberOfRanksIsWrong)
{
  auto ranks = three_ranks();
  ranks.pop_back();
  EXPECT_THAT(examine_ranks(three_devices(), ranks).faults, ElementsAre("2 ranks are here; the plan has 3: a, b, c"));
}

TEST(ExamineRanks, ReportsAllFaultsAtOnce)
{
  auto ranks = three_ranks();
  ranks[1].facts.version = "0.2.0";
  ranks[1].clock = Seconds(50);
  ranks[2].facts.dtypes = {};
  ranks[2].facts.memory = Bytes(1);
  ranks[2].facts.plan_hash = "89";
  EXPECT_EQ(examine_ranks(three_devices(), ranks).faults.size(), 5);
}

std::vector<std::size_t> devices(const std::vector<std::string>& hosts, AssignmentRule rule = AssignmentRule::Automatic)
{
  std::vector<PresentRank> ranks;
  for (const auto& host : hosts) ranks.push_back(rank_on(host));
  return assign_devices(ranks, {"a", "b", "c"}, rule).device_of_rank;
}

std::vector<std::string> assignment_faults(const std::vector<std::string>& plan_devices,
                                           const std::vector<std::string>& hosts,
                                           AssignmentRule rule = AssignmentRule::Automatic)
{
  std::vector<PresentRank> ranks;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    ranks.push_back(rank_on(hosts[rank]));
    if (!plan_devices[rank].empty()) ranks.back().facts.plan_device = plan_devices[rank];
  }
  return assign_devices(ranks, {"a", "b", "c"}, rule).faults;
}

TEST(AssignDevices, UsesHostsWhenEachIsADeviceOnce)
{
  EXPECT_THAT(devices({"c", "a.example.org", "b"}), ElementsAre(2, 0, 1));
  EXPECT_THAT(devices({"c", "a", "x"}), ElementsAre(0, 1, 2));
  EXPECT_THAT(devices({"c", "a", "a"}), ElementsAre(0, 1, 2));
  EXPECT_THAT(devices({"c", "a", "b"}, AssignmentRule::Order), ElementsAre(0, 1, 2));
  EXPECT_THAT(devices({"c", "a", "b"}, AssignmentRule::Host), ElementsAre(2, 0, 1));
}

TEST(AssignDevices, RefusesHostsThatAreNotDevicesUnderMapHost)
{
  EXPECT_THAT(assignment_faults({"", "", ""}, {"c", "x", "c"}, AssignmentRule::Host),
              ElementsAre("rank 1 (x): --map host: \"x\" is not one of the plan's devices, which are a, b, c",
                          "rank 2 (c): --map host: \"c\" is already the device of rank 0"));
}

TEST(AssignDevices, GivesARankTheDeviceOfPlanDevice)
{
  std::vector<PresentRank> ranks = {rank_on("a"), rank_on("b"), rank_on("c")};
  ranks[1].facts.plan_device = "a";
  EXPECT_THAT(assign_devices(ranks, {"a", "b", "c"}, AssignmentRule::Automatic).device_of_rank, ElementsAre(1, 0, 2));
  EXPECT_THAT(assignment_faults({"", "d", ""}, {"a", "b", "c"}),
              ElementsAre("rank 1 (b): --plan-device \"d\" is not one of the plan's devices, which are a, b, c"));
  EXPECT_THAT(assignment_faults({"a", "", "a"}, {"a", "b", "c"}),
              ElementsAre("rank 2 (c): --plan-device \"a\" is already the device of rank 0"));
}

RC_GTEST_PROP(AssignDevices, GivesEachRankItsOwnDeviceOrReportsAFault, ())
{
  const std::vector<std::string> names = {"a", "b", "c", "x"};
  const auto count = *rc::gen::inRange<std::size_t>(1, 4);
  std::vector<PresentRank> ranks;
  for (std::size_t rank = 0; rank < count; ++rank) {
    ranks.push_back(rank_on(*rc::gen::elementOf(names)));
    if (*rc::gen::arbitrary<bool>()) ranks.back().facts.plan_device = *rc::gen::elementOf(names);
  }
  const auto rule = *rc::gen::element(AssignmentRule::Automatic, AssignmentRule::Order, AssignmentRule::Host);
  auto assignment = assign_devices(ranks, {names.begin(), names.begin() + static_cast<std::ptrdiff_t>(count)}, rule);
  RC_ASSERT(assignment.device_of_rank.empty() == !assignment.faults.empty());
  if (assignment.device_of_rank.empty()) return;
  std::sort(assignment.device_of_rank.begin(), assignment.device_of_rank.end());
  std::vector<std::size_t> all(count);
  std::iota(all.begin(), all.end(), 0);
  RC_ASSERT(assignment.device_of_rank == all);
}

TEST(DifferentSteps, NameTheRankAndBothSteps)
{
  auto ranks = three_ranks();
  EXPECT_EQ(different_steps(ranks), "");
  for (auto& rank : ranks) rank.facts.first_step = 20;
  EXPECT_EQ(different_steps(ranks), "");
  ranks[1].facts.first_step = 10;
  EXPECT_EQ(different_steps(ranks), "rank 1 (y) begins at step 10, rank 0 at step 20");
  EXPECT_THAT(examine_ranks(three_devices(), ranks).faults, IsEmpty());
}

TEST(PreflightOf, TakesDevicesAndMemoryFromThePlan)
{
  Plan plan;
  plan.stages = {stage_on("a", 0, 0), stage_on("b", 1, 1)};
  plan.data_server = "store";
  plan.predicted.emplace();
  plan.predicted->peak_memory = {{"a", Bytes(1)}, {"b", Bytes(2)}};
  const auto preflight = preflight_of(plan, DType::Float16);
  EXPECT_THAT(preflight.devices, ElementsAre("a", "b", "store"));
  EXPECT_THAT(preflight.peak_memory, ElementsAre(Bytes(1), Bytes(2), Bytes(0)));
}

TEST(AssignmentText, HasALineForEachRank)
{
  const std::vector<PresentRank> ranks = {rank_on("x"), rank_on("y"), rank_on("z")};
  EXPECT_THAT(
      assignment_text(three_devices(), ranks, {2, 0, 1}),
      testing::StartsWith("rank 0 (x) is the plan's c: cpu (a processor), 4.00 GiB\nrank 1 (y) is the plan's a: "));
}

TEST(RankFacts, SurviveAConversionToJsonAndBack)
{
  auto facts = rank_on("host \"of\" many\nlines").facts;
  facts.plan_device = "a";
  facts.first_step = 20;
  const auto text = facts_to_json(facts);
  EXPECT_EQ(facts_to_json(facts_from_json(text)), text);
  EXPECT_EQ(facts_from_json(text).host, facts.host);
  EXPECT_EQ(facts_from_json(text).memory, facts.memory);
  EXPECT_EQ(facts_from_json(text).first_step, facts.first_step);
}

TEST(RankFacts, RefuseOtherTexts)
{
  for (const std::string wrong : {"", "[]", "{}", "{\"host\": 1}", "no JSON"}) {
    EXPECT_THAT([&] { facts_from_json(wrong); }, ThrowsMessage<InputError>(HasSubstr("a rank's facts:"))) << wrong;
  }
}

}  // namespace
}  // namespace isobar::exec::preflight_test
