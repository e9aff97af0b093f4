#include "results/report/report.hpp"

#include "core/costs/cost_model.hpp"
#include "core/errors.hpp"
#include "results/report/site_map.hpp"
#include "results/report/what_if.hpp"
#include "results/trace/step_recorder.hpp"
#include "tests/results/trace/listed_program.hpp"
#include "tests/support/instances.hpp"
#include "tests/support/machines.hpp"
#include "tests/support/shards.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace isobar::results::report_report_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing_support::chain;
using testing_support::cluster;

/// Two sites of two devices each: every device has an up and a down link, and one link each way joins the sites.
class TwoSites : public Network {
 public:
  Path path(std::size_t from, std::size_t to) const override
  {
    return {Seconds(from / 2 == to / 2 ? 0.001 : 0.02), BytesPerSecond(100)};
  }
  std::vector<std::string> links(std::size_t from, std::size_t to) const override
  {
    std::vector<std::string> links = {"up " + std::to_string(from)};
    if (from / 2 != to / 2) links.push_back("wan " + std::to_string(from / 2));
    links.push_back("down " + std::to_string(to));
    return links;
  }
};

Cluster two_sites()
{
  Cluster cluster = testing_support::cluster({1, 2, 1, 2}, {Seconds(0.5), BytesPerSecond(100)});
  cluster.network = std::make_shared<TwoSites>();
  for (std::size_t i = 0; i < 4; ++i) cluster.devices[i].site = i < 2 ? "here" : "there";
  return cluster;
}

/// Three stages: two on the first site, one on the second.
Result some_result(const Workload& workload, const Cluster& on)
{
  const CostModel cost(workload, on);
  Result result;
  result.plan =
      testing_support::plan_of({{0, 0, 0}, {1, 1, 1}, {2, 2, 3}}, cost, Goal::with_defaults(Objective::Pipeline));
  result.step_time = Seconds(12);
  result.step_bound = Seconds(10);
  result.step_times = {Seconds(12)};
  for (std::size_t i = 0; i < 3; ++i) {
    const Seconds compute(static_cast<double>(i + 1));
    result.stages.push_back({on.devices[i].name, compute, Seconds(1), Seconds(2), Bytes(4)});
  }
  result.links = {{"down 1", Bytes(8), 0.25}, {"up 0", Bytes(8), 0.5}, {"wan 0", Bytes(16), 0.75}};
  result.inputs.platform = {"p.xml", "1"};
  result.inputs.workload = {"w.yaml", "2"};
  return result;
}

TEST(SiteMap, GathersDevicesBySite)
{
  const auto map = site_map_of(some_result(chain({1, 1, 1, 1}, 1, 10, 2), two_sites()).plan, two_sites());
  ASSERT_EQ(map.sites.size(), 2U);
  EXPECT_EQ(map.sites[1].name, "there");
  EXPECT_THAT(map.sites[1].devices, ElementsAre(2, 3));
  EXPECT_THAT(map.device_of, ElementsAre(0, 1, 2));
}

TEST(SiteMap, SeparatesLinksOfADeviceFromThoseBetweenSites)
{
  const auto map = site_map_of(some_result(chain({1, 1, 1, 1}, 1, 10, 2), two_sites()).plan, two_sites());
  EXPECT_THAT(map.own_links[0], ElementsAre("up 0", "down 0"));
  ASSERT_EQ(map.connections.size(), 1U);
  EXPECT_EQ(map.connections[0].a, 0U);
  EXPECT_EQ(map.connections[0].b, 1U);
  EXPECT_THAT(map.connections[0].links, ElementsAre("wan 0", "wan 1"));
  EXPECT_DOUBLE_EQ(map.connections[0].path.latency.value, 0.02);
}

TEST(SiteMap, TakesAllLinksBetweenSitesOfOneDeviceEach)
{
  Cluster pair = cluster({1, 2}, {Seconds(0.5), BytesPerSecond(3)});
  pair.devices[0].site = "a";
  pair.devices[1].site = "b";
  const auto workload = chain({1, 1}, 1, 10, 2);
  const auto plan = testing_support::plan_of({{0, 0, 0}, {1, 1, 1}}, CostModel(workload, pair),
                                             Goal::with_defaults(Objective::Pipeline));
  const auto map = site_map_of(plan, pair);
  ASSERT_EQ(map.connections.size(), 1U);
  EXPECT_EQ(map.connections[0].links.size(), 2U);  // one for each direction
}

TEST(SiteMap, HasOneSiteNamedAfterTheClusterWhereDevicesNameNone)
{
  Cluster plain = two_sites();
  plain.name = "pod";
  for (auto& device : plain.devices) device.site.clear();
  const auto map = site_map_of(some_result(chain({1, 1, 1, 1}, 1, 10, 2), plain).plan, plain);
  ASSERT_EQ(map.sites.size(), 1U);
  EXPECT_EQ(map.sites[0].name, "pod");
  EXPECT_THAT(map.connections, IsEmpty());
}

TEST(SiteMap, GivesTheLastDeviceOfTheOnlySiteNoLinkOfAnother)
{
  Cluster plain = two_sites();
  for (auto& device : plain.devices) device.site.clear();
  const auto workload = chain({1, 1}, 1, 10, 2);
  const auto plan = testing_support::plan_of({{0, 0, 0}, {3, 1, 1}}, CostModel(workload, plain),
                                             Goal::with_defaults(Objective::Pipeline));
  EXPECT_THAT(site_map_of(plan, plain).own_links[1], ElementsAre("up 3", "down 3"));
}

TEST(SiteMap, ShowsTheDataServerAsASiteWithoutDevices)
{
  Cluster served = two_sites();
  served.data_server = "store";
  const auto map = site_map_of(some_result(chain({1, 1, 1, 1}, 1, 10, 2), served).plan, served);
  EXPECT_EQ(map.sites.back().name, "store");
  EXPECT_THAT(map.sites.back().devices, IsEmpty());
  EXPECT_THAT(map.device_of, ElementsAre(0, 1, 2, 4));
  EXPECT_EQ(map.connections.size(), 2U);
}

TEST(SiteMap, JoinsAllDevicesThatDivideOperatorsTogether)
{
  Cluster sites = cluster({1, 1, 1, 1, 1}, {Seconds(0.5), BytesPerSecond(100)});
  for (auto& device : sites.devices) device.site = "of " + device.name;
  const auto joined = [&](const Plan& plan) {
    std::vector<std::string> pairs;
    for (const auto& connection : site_map_of(plan, sites).connections) {
      pairs.push_back(std::to_string(connection.a) + "-" + std::to_string(connection.b));
    }
    std::sort(pairs.begin(), pairs.end());
    return pairs;
  };
  const auto stage = [](std::size_t layer, const std::vector<std::vector<std::string>>& replicas) {
    Stage made;
    made.first_layer = made.last_layer = layer;
    made.splits = {{"x", "-> full"}};
    for (const auto& devices : replicas) {
      made.replicas.emplace_back();
      for (const auto& device : devices)
        made.replicas.back().shards.push_back({device, 1 / static_cast<double>(devices.size())});
    }
    return made;
  };
  Plan plan;
  plan.stages = {stage(0, {{"d0", "d1", "d2", "d3"}})};
  EXPECT_THAT(joined(plan), ElementsAre("0-1", "0-2", "0-3", "1-2", "1-3", "2-3"));
  plan.stages = {stage(0, {{"d0", "d1"}, {"d2", "d3"}})};
  EXPECT_THAT(joined(plan), ElementsAre("0-1", "0-2", "1-3", "2-3"));
  // Each device of a group to each of the next one; parts of a group send nothing to each other.
  plan.stages = {stage(0, {{"d0", "d1"}}), stage(1, {{"d2", "d3", "d4"}}), stage(2, {{"d2", "d3", "d4"}})};
  EXPECT_THAT(joined(plan), ElementsAre("0-1", "0-2", "0-3", "0-4", "1-2", "1-3", "1-4", "2-3", "2-4", "3-4"));
}

TEST(WhatIf, TriesAllOfAKindTheSlowestTheBusiestAndEachPairOfSites)
{
  const auto result = some_result(chain({1, 1, 1, 1}, 1, 10, 2), two_sites());
  std::vector<std::string> texts;
  for (const auto& what_if : what_ifs_of(result, site_map_of(result.plan, two_sites()))) texts.push_back(what_if.text);
  EXPECT_THAT(texts,
              ElementsAre("+10 % speed of all devices", "+10 % speed of d2", "+10 % speed of d1", "+10 % speed of d0",
                          "+10 % bandwidth of all links", "+10 % bandwidth between here and there",
                          "+10 % bandwidth of wan 0", "+10 % bandwidth of up 0", "+10 % bandwidth of down 1",
                          "\u221210 % latency of all links", "+10 % memory of all devices"));
}

TEST(WhatIf, TriesADeviceWithSeveralStagesOnceByWhatItComputesInAll)
{
  auto result = some_result(chain({1, 1, 1, 1}, 1, 10, 2), two_sites());
  result.stages[2].device = "d0";  // 1 s and 3 s
  std::vector<std::string> devices;
  for (const auto& what_if : what_ifs_of(result, {})) {
    if (what_if.property == WhatIf::Property::Speed && !what_if.names.empty()) devices.push_back(what_if.names[0]);
  }
  EXPECT_THAT(devices, ElementsAre("d0", "d1"));
}

TEST(WhatIf, TriesTheOnlyLinkBetweenTwoSitesOnce)
{
  const auto result = some_result(chain({1, 1, 1, 1}, 1, 10, 2), two_sites());
  auto map = site_map_of(result.plan, two_sites());
  map.connections[0].links = {"wan 0"};
  std::size_t asked = 0;
  for (const auto& what_if : what_ifs_of(result, map))
    asked += what_if.names == std::vector<std::string>{"wan 0"} ? 1 : 0;
  EXPECT_EQ(asked, 1U);
}

TEST(WhatIf, TriesTheUpdatesOfMachinesThatThePlanUses)
{
  auto result = some_result(chain({1, 1, 1, 1}, 1, 10, 2), two_sites());
  const auto tries_updates = [&] {
    const auto what_ifs = what_ifs_of(result, {});
    return std::any_of(what_ifs.begin(), what_ifs.end(),
                       [](const WhatIf& each) { return each.text == "+10 % update speed of all machines"; });
  };
  EXPECT_FALSE(tries_updates());
  result.plan.stages[0].residence.optimizer = Tier::Host;
  EXPECT_TRUE(tries_updates());
}

TEST(WhatIf, TriesNoLinksWhereNothingIsSent)
{
  auto result = some_result(chain({1, 1, 1, 1}, 1, 10, 2), two_sites());
  result.links.clear();
  for (const auto& what_if : what_ifs_of(result, {})) {
    EXPECT_NE(what_if.property, WhatIf::Property::Bandwidth);
    EXPECT_NE(what_if.property, WhatIf::Property::Latency);
  }
}

/// Three ranks; each of the last two sends to the other.
class TwoSenders : public results::ListedProgram {
 public:
  TwoSenders() : ListedProgram(3)
  {
    for (const std::size_t rank : {1U, 2U}) {
      add_lane(rank, rank == 1 ? "send activation" : "send gradient");
      add_lane(rank, rank == 1 ? "receive gradient" : "receive activation");
    }
    connect({{1, 1}, {2, 2}});
    connect({{2, 1}, {1, 2}});
  }
};

TraceEvent event(std::size_t rank, Opcode opcode, double begin, double end)
{
  TraceEvent result;
  result.rank = rank;
  result.instruction.opcode = opcode;
  if (opcode == Opcode::Send) {
    result.instruction.lane = 1;
    result.instruction.payload = rank == 1 ? Payload::Activation : Payload::Gradient;
    result.instruction.size = Bytes(5);
  }
  result.begin = Seconds(begin);
  result.end = Seconds(end);
  return result;
}

TEST(StepRecorder, KeepsTheFirstStepWithoutReceivesAndCountsWhatItDoesNotKeep)
{
  StepRecorder recorder(TwoSenders(), 2);
  recorder.record(event(0, Opcode::Forward, 0, 1));
  recorder.record(event(2, Opcode::Recv, 1, 2));
  recorder.record(event(1, Opcode::Send, 1, 2));
  recorder.record(event(1, Opcode::Send, 2, 3));
  TraceEvent later = event(0, Opcode::Forward, 2, 5);  // before the first step ends
  later.step = 1;
  recorder.record(later);
  recorder.record(event(0, Opcode::Update, 5, 6));
  EXPECT_EQ(recorder.recorded().events.size(), 2U);
  EXPECT_EQ(recorder.recorded().instructions, 4U);
  EXPECT_DOUBLE_EQ(recorder.recorded().sent.at({1, 2}).value, 10);
}

/// An event of that step on rank 0.
TraceEvent computation(std::uint64_t step, double begin, double end)
{
  TraceEvent result = event(0, Opcode::Forward, begin, end);
  result.step = step;
  return result;
}

std::vector<double> values_of(const std::vector<Seconds>& times)
{
  std::vector<double> values;
  for (const Seconds time : times) values.push_back(time.value);
  return values;
}

std::vector<double> values_of(const std::vector<Bytes>& sizes)
{
  std::vector<double> values;
  for (const Bytes size : sizes) values.push_back(size.value);
  return values;
}

TEST(StepRecorder, TimesAStepBetweenOthersFromTheEndOfTheOneBefore)
{
  StepRecorder recorder(TwoSenders(), 10, 2);
  recorder.record(computation(0, 0, 4));
  recorder.record(computation(2, 6, 7));
  recorder.record(computation(1, 4, 8));
  recorder.record(computation(3, 8, 9));
  recorder.record(computation(2, 8, 12));
  const RecordedStep step = recorder.recorded();
  EXPECT_EQ(step.instructions, 2U);
  ASSERT_EQ(step.events.size(), 2U);
  EXPECT_EQ(step.events[0].begin, Seconds(-2));
  EXPECT_EQ(step.events[0].end, Seconds(-1));
  EXPECT_EQ(step.events[1].end, Seconds(4));
}

TEST(StepRecorder, KeepsOfTheNextStepWhatBeginsBeforeTheStepEnds)
{
  StepRecorder recorder(TwoSenders(), 3, 1);
  recorder.record(computation(0, 0, 4));
  recorder.record(computation(2, 5, 6));
  recorder.record(computation(1, 4, 8));
  recorder.record(computation(2, 7, 9));
  recorder.record(computation(2, 8, 10));  // as the step ends
  const RecordedStep step = recorder.recorded();
  EXPECT_EQ(step.instructions, 1U);
  ASSERT_EQ(step.next.size(), 2U);
  EXPECT_EQ(step.next[0].begin, Seconds(1));
  EXPECT_EQ(step.next[1].end, Seconds(5));
  EXPECT_EQ(step.next[1].step, 1U);

  StepRecorder full(TwoSenders(), 2, 1);
  full.record(computation(2, 5, 6));
  full.record(computation(2, 6, 7));
  full.record(computation(1, 4, 8));
  EXPECT_EQ(full.recorded().events.size(), 1U);
  EXPECT_EQ(full.recorded().next.size(), 1U);
}

TEST(StepRecorder, KeepsTheMemoryOfAStepFromItsFirstInstructionToItsEnd)
{
  StepRecorder recorder(TwoSenders(), 10, 2);
  const auto change = [&](double time, double bytes) {
    recorder.memory_changed(0, Tier::Device, Seconds(time), Bytes(bytes));
  };
  change(0, 100);
  change(1, 110);
  recorder.record(computation(0, 0, 4));
  change(5, 120);
  recorder.record(computation(2, 6, 7));
  change(7, 130);
  change(7, 140);  // at the same time: the last one counts
  recorder.record(computation(1, 4, 8));
  change(10, 150);
  recorder.record(computation(2, 8, 12));
  change(13, 160);
  const MemoryCurve curve = recorder.recorded().memory[0][static_cast<std::size_t>(Tier::Device)];
  EXPECT_THAT(values_of(curve.times), ElementsAre(-2, -1, 2, 4));
  EXPECT_THAT(values_of(curve.bytes), ElementsAre(120, 140, 150, 150));
  EXPECT_THAT(recorder.recorded().memory[0][static_cast<std::size_t>(Tier::Host)].times, IsEmpty());
}

TEST(StepRecorder, KeepsMemoryUntilTheLastInstructionThatItKeeps)
{
  StepRecorder recorder(TwoSenders(), 1);
  recorder.memory_changed(0, Tier::Device, Seconds(0), Bytes(1));
  recorder.record(computation(0, 0, 1));
  recorder.memory_changed(0, Tier::Device, Seconds(1), Bytes(2));
  recorder.record(computation(0, 1, 2));
  recorder.memory_changed(0, Tier::Device, Seconds(2), Bytes(3));
  const MemoryCurve curve = recorder.recorded().memory[0][static_cast<std::size_t>(Tier::Device)];
  EXPECT_THAT(values_of(curve.times), ElementsAre(0, 1));
  EXPECT_THAT(values_of(curve.bytes), ElementsAre(1, 1));
}

nlohmann::json some_run()
{
  const auto workload = chain({1, 1, 1, 1}, 1, 10, 2);
  const auto on = two_sites();
  const auto result = some_result(workload, on);
  StepRecorder recorder(TwoSenders(), 10);
  recorder.record(event(1, Opcode::Send, 1, 2));
  recorder.record(event(2, Opcode::Send, 3, 4));
  recorder.record(event(2, Opcode::Send, 4, 5));
  recorder.record(event(0, Opcode::Forward, 5, 6));
  return nlohmann::json::parse(run_to_json({"r.json", result, workload, on, recorder.recorded()}));
}

TEST(Report, HoldsTheLanesAndPayloadsOfItsTimeline)
{
  const auto timeline = some_run()["timeline"];
  EXPECT_EQ(timeline["instructions"], 4);
  const auto& events = timeline["events"];
  EXPECT_EQ(events["lane"], (nlohmann::json{"send activation", "send gradient", "send gradient", "compute"}));
  EXPECT_EQ(events["payload"], (nlohmann::json{"activation", "gradient", "gradient", nullptr}));
  EXPECT_EQ(events["stage"], (nlohmann::json{0, 0, 0, 0}));
}

TEST(Report, HoldsTheTrafficBetweenSitesAndTheirBusiestLink)
{
  const auto connection = some_run()["connections"][0];
  EXPECT_EQ(connection["a_to_b_bytes"], 5);
  EXPECT_EQ(connection["b_to_a_bytes"], 10);
  EXPECT_EQ(connection["busiest_link"]["name"], "wan 0");
  EXPECT_EQ(connection["busiest_link"]["busy_fraction"], 0.75);
}

TEST(Report, HoldsTheStageOfEachDevice)
{
  const auto run = some_run();
  EXPECT_EQ(run["sites"][0]["devices"][1]["stage"], 1);
  EXPECT_EQ(run["sites"][0]["devices"][1]["stages"], nlohmann::json::array({1}));
  EXPECT_TRUE(run["sites"][1]["devices"][1]["stage"].is_null());
  EXPECT_TRUE(run["sites"][1]["devices"][1]["stages"].empty());
  EXPECT_EQ(run["stages"][0]["own_link"]["name"], "up 0");
  EXPECT_TRUE(run["stages"][2]["own_link"].is_null());  // its links carried nothing
}

TEST(Report, ShowsTheDeviceOfEachStageWhereItHoldsSeveral)
{
  const auto workload = chain({1, 1, 1, 1}, 1, 10, 2);
  const auto on = two_sites();
  auto result = some_result(workload, on);
  result.plan.stages[2].replicas[0].shards[0].device = on.devices[0].name;
  result.stages[2].device = on.devices[0].name;
  const std::string json = result_to_json(result);
  EXPECT_EQ(result_to_json(result_from_json(json, "result.json")), json);
  EXPECT_THAT(site_map_of(result.plan, on).device_of, ElementsAre(0, 1));

  StepRecorder recorder(TwoSenders(), 10);
  const auto run = nlohmann::json::parse(run_to_json({"r.json", result, workload, on, recorder.recorded()}));
  ASSERT_EQ(run["stages"].size(), 3U);
  EXPECT_EQ(run["stages"][2]["device"], "d0");
  EXPECT_EQ(run["stages"][2]["first_layer"], 2);
  EXPECT_EQ(run["stages"][2]["compute_s"], 3);
  EXPECT_EQ(run["stages"][2]["site"], 0);
  EXPECT_EQ(run["sites"][0]["devices"][0]["stages"], nlohmann::json::array({0, 2}));
  EXPECT_TRUE(run["explanation"].is_null());  // it is one of chains
}

/// Layers on one device each: all layers of a device are a stage of the plan's file.
Result result_by_layer(const std::vector<Stage>& stages)
{
  Result result;
  result.plan.goal = testing_support::goal_under("gpipe", 1);
  result.plan.stages = stages;
  result.step_times = {Seconds(12)};
  double number = 0;
  for (const auto& placed : placed_shards(result.plan)) {
    const Seconds compute(number++);
    result.stages.push_back({shard_of(result.plan, placed).device, compute, Seconds(1), Seconds(2), Bytes(4)});
  }
  return result;
}

Stage passing_layer(const std::string& device, std::size_t layer)
{
  Stage stage = stage_on(device, layer, layer);
  stage.residence = {.parameters = Tier::Host, .gradients = Tier::Host, .optimizer = Tier::Disk};
  stage.residence.parameter_slots = 2;
  stage.residence.gradient_slots = 1;
  return stage;
}

TEST(Report, ShowsAStageThatPassesLayerByLayerAsOneRow)
{
  const auto workload = chain({1, 1, 1, 1}, 1, 10, 2);
  const Cluster on = testing_support::cluster_with_machines({{}, {}});
  const Result result = result_by_layer(
      {stage_on("gpu0", 0, 0), passing_layer("gpu0", 1), passing_layer("gpu0", 2), stage_on("gpu1", 3, 3)});
  StepRecorder recorder(TwoSenders(), 10);
  for (const std::uint32_t stage : {2U, 3U}) {
    TraceEvent of_stage = computation(0, stage, stage + 1);
    of_stage.instruction.stage = stage;
    of_stage.instruction.first_layer = of_stage.instruction.last_layer = stage;
    recorder.record(of_stage);
  }
  const auto run = nlohmann::json::parse(run_to_json({"r.json", result, workload, on, recorder.recorded()}));
  ASSERT_EQ(run["stages"].size(), 2U);
  const auto& first = run["stages"][0];
  EXPECT_EQ(first["stage"], 0);
  EXPECT_EQ(first["first_layer"], 0);
  EXPECT_EQ(first["last_layer"], 2);
  EXPECT_EQ(first["last_layer_name"], "layer2");
  EXPECT_EQ(first["resident_layers"], 1);
  EXPECT_EQ(first["residence"]["optimizer"], "disk");
  EXPECT_EQ(first["residence"]["parameter_slots"], 2);
  EXPECT_EQ(first["compute_s"], 0 + 1 + 2);
  EXPECT_EQ(first["send_s"], 3);
  EXPECT_EQ(first["idle_s"], 2);
  EXPECT_EQ(run["stages"][1]["stage"], 1);
  EXPECT_EQ(run["stages"][1]["first_layer"], 3);
  EXPECT_EQ(run["stages"][1]["resident_layers"], 1);
  EXPECT_TRUE(run["stages"][1]["residence"].is_null());
  EXPECT_EQ(run["sites"][0]["devices"][1]["stages"], nlohmann::json::array({1}));
  EXPECT_EQ(run["timeline"]["events"]["stage"], nlohmann::json::array({0, 1}));
  EXPECT_EQ(run["timeline"]["events"]["first_layer"], nlohmann::json::array({2, 3}));
}

TEST(Report, CountsLayersWhoseActivationsAloneLeaveTheDeviceAsThoseThatStay)
{
  const auto workload = chain({1, 1}, 1, 10, 2);
  std::vector<Stage> stages = {stage_on("gpu0", 0, 0), stage_on("gpu0", 1, 1)};
  stages[1].residence.activations = Tier::Host;
  StepRecorder recorder(TwoSenders(), 10);
  const auto run = nlohmann::json::parse(run_to_json(
      {"r.json", result_by_layer(stages), workload, testing_support::cluster_with_machine({}), recorder.recorded()}));
  ASSERT_EQ(run["stages"].size(), 1U);
  EXPECT_EQ(run["stages"][0]["resident_layers"], 2);
  EXPECT_EQ(run["stages"][0]["residence"]["activations"], "host");
}

TEST(Report, ShowsTheLayersOfAStageWithSeveralShardsAsARowForEachShard)
{
  Stage stage = stage_on("d0", 0, 0);
  stage.replicas[0].shards = {{.device = "d0", .share = 0.5}, {.device = "d1", .share = 0.5}};
  std::vector<Stage> stages = {stage, stage};
  stages[1].first_layer = stages[1].last_layer = 1;
  StepRecorder recorder(TwoSenders(), 10);
  const auto run = nlohmann::json::parse(run_to_json(
      {"r.json", result_by_layer(stages), testing_support::divisible(2), cluster({1, 1}), recorder.recorded()}));
  ASSERT_EQ(run["stages"].size(), 2U);
  for (const std::size_t shard : {0U, 1U}) {
    const auto& row = run["stages"][shard];
    EXPECT_EQ(row["stage"], 0);
    EXPECT_EQ(row["shard"], shard);
    EXPECT_EQ(row["shards"], 2);
    EXPECT_EQ(row["device"], shard == 0 ? "d0" : "d1");
    EXPECT_EQ(row["last_layer"], 1);
    EXPECT_EQ(row["compute_s"], shard + (shard + 2));
  }
}

TEST(Report, AddsUpWhatTheRanksOfAMachineHoldInItAndTellsWhatItHas)
{
  const auto workload = chain({1, 1}, 1, 10, 2);
  Cluster on = testing_support::cluster_with_machines({{.host_memory = 64}, {}});
  on.devices[1].machine->machine = 0;
  on.systems["published"] = {.workspace = Bytes(7), .reserved_fraction = 2, .host_fraction = 3};
  Result result = result_by_layer({passing_layer("gpu0", 0), passing_layer("gpu1", 1)});
  StepRecorder recorder(TwoSenders(), 10);
  recorder.memory_changed(0, Tier::Device, Seconds(0), Bytes(5));
  recorder.memory_changed(0, Tier::Host, Seconds(0), Bytes(10));
  recorder.memory_changed(1, Tier::Host, Seconds(0), Bytes(1));
  recorder.memory_changed(0, Tier::Host, Seconds(1), Bytes(30));
  recorder.memory_changed(1, Tier::Host, Seconds(2), Bytes(4));
  recorder.memory_changed(0, Tier::Host, Seconds(3), Bytes(10));
  recorder.record(computation(0, 0, 4));
  const auto memory = [&] {
    return nlohmann::json::parse(run_to_json({"r.json", result, workload, on, recorder.recorded()}))["memory"];
  };
  ASSERT_EQ(memory().size(), 2U);  // of gpu1 nothing is known, and the disk is not there
  EXPECT_EQ(memory()[0]["name"], "gpu0");
  EXPECT_EQ(memory()[0]["tier"], "device");
  EXPECT_EQ(memory()[0]["has_bytes"], 1e12);
  EXPECT_EQ(memory()[1]["name"], "node0");
  EXPECT_EQ(memory()[1]["tier"], "host");
  EXPECT_EQ(memory()[1]["has_bytes"], 64);
  EXPECT_EQ(memory()[1]["peak_bytes"], 34);
  EXPECT_EQ(memory()[1]["times_s"], nlohmann::json::array({0, 1, 2, 3, 4}));
  EXPECT_EQ(memory()[1]["bytes"], nlohmann::json::array({11, 31, 34, 14, 14}));
  result.plan.system =
      TrainingSystem{"published"};  // whose measured constants count, as they do in the plan's prediction
  EXPECT_EQ(memory()[0]["peak_bytes"], 2 * (5 + 7));
  EXPECT_EQ(memory()[1]["peak_bytes"], 3 * 34);
}

TEST(Report, PutsTheChangeThatSavesMostFirstAndThoseWithoutAnswerLast)
{
  std::vector<WhatIfAnswer> answers = {{{.text = "fails", .names = {}}, {}, {}, "a profile sets it"},
                                       {{.text = "little", .names = {}}, Seconds(9), {}, ""},
                                       {{.text = "anew", .names = {}}, Seconds(10), Seconds(7), ""},
                                       {{.text = "much", .names = {}}, Seconds(8), {}, ""}};
  const auto result = some_result(chain({1, 1, 1, 1}, 1, 10, 2), two_sites());
  const auto report = nlohmann::json::parse(report_to_json(result, "0.1", {{some_run().dump(), answers}}));
  std::vector<std::string> order;
  for (const auto& what_if : report["runs"][0]["what_ifs"]) order.push_back(what_if["change"]);
  EXPECT_THAT(order, ElementsAre("anew", "much", "little", "fails"));
  EXPECT_EQ(report["runs"][0]["what_ifs"][3]["fault"], "a profile sets it");
  EXPECT_EQ(report["platform"]["name"], "p.xml");
}

PageParts some_parts()
{
  return {.frame = "<@STYLE@|@LICENCE@|@DATA@|@LIBRARY@|@SCRIPT@>",
          .style = "s",
          .script = "f('@DATA@')",
          .library = "l",
          .licence = "MIT"};
}

TEST(Page, EscapesTextThatCouldEndTheData)
{
  const std::string page = page_of(some_parts(), R"({"name":"</script><!--@STYLE@"})");
  EXPECT_EQ(page, R"(<s|MIT|{"name":"\u003c/script>\u003c!--@STYLE@"}|l|f('@DATA@')>)");
}

TEST(Page, RefusesAPartThatWouldEndItsElement)
{
  auto parts = some_parts();
  parts.script = "'</script>'";
  EXPECT_THAT([&] { page_of(parts, "{}"); },
              testing::ThrowsMessage<std::logic_error>(HasSubstr("the page's script does not end its element")));
}

TEST(Page, RefusesAFrameWithoutAPlaceholderForEveryPart)
{
  auto parts = some_parts();
  parts.frame = "@STYLE@";
  EXPECT_THAT([&] { page_of(parts, "{}"); },
              testing::ThrowsMessage<std::logic_error>(HasSubstr("the frame has a placeholder for every part")));
}

TEST(ResultFile, SurvivesWritingAndReading)
{
  auto result = some_result(chain({1, 1, 1, 1}, 1, 10, 2), two_sites());
  result.network = {{"network/model", "CM02"}};
  result.simgrid_version = "3.32";
  result.inputs.devices = "d.yaml";
  result.inputs.profile = Fingerprint{"m.json", "3"};
  const std::string json = result_to_json(result);
  EXPECT_EQ(result_to_json(result_from_json(json, "result.json")), json);
}

TEST(ResultFile, LocatesAFaultInItsPlan)
{
  const auto result = some_result(chain({1, 1, 1, 1}, 1, 10, 2), two_sites());
  auto json = nlohmann::ordered_json::parse(result_to_json(result));
  json["plan"]["microbatches"] = 0;
  EXPECT_THAT([&] { result_from_json(json.dump(), "result.json"); },
              testing::ThrowsMessage<InputError>(HasSubstr("result.json:1: plan.microbatches: ")));
}

}  // namespace
}  // namespace isobar::results::report_report_test
