#include "results/trace/trace_merge.hpp"

#include "core/errors.hpp"
#include "tests/results/trace/two_stages.hpp"
#include "tests/support/thrown_message.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <map>
#include <string>
#include <utility>

namespace isobar::results::trace_merge_test {
namespace {

/// Begin of the first instruction of a step on each process, in microseconds.
std::map<int, double> begins_of(const nlohmann::json& trace, int step)
{
  std::map<int, double> begins;
  for (const auto& event : trace["traceEvents"]) {
    if (event.value("cat", "") != "Forward" || event["args"]["step"] != step) continue;
    begins[event["pid"].get<int>()] = event["ts"].get<double>();
  }
  return begins;
}

class TraceMerge : public testing::Test {
 protected:
  void SetUp() override
  {
    predicted_.write_steps(program_, 1, 0.5);
    measured_.write_steps(program_, 4, 1);
  }
  nlohmann::json merged(const std::optional<std::uint64_t>& step = {}) const
  {
    return nlohmann::json::parse(merged_trace(predicted_.name(), measured_.name(), step));
  }

  TwoStages program_;
  WrittenTrace predicted_;
  WrittenTrace measured_;
};

TEST_F(TraceMerge, AlignsTypicalSteps)
{
  const auto trace = merged();
  EXPECT_EQ(trace["otherData"]["schema"], "isobar-merged-trace/1");
  const auto predicted = begins_of(trace, 0);
  const auto measured = begins_of(trace, 1);
  EXPECT_NEAR(predicted.at(0), 12.75e6, 1e-3);  // one measured step comes before it
  EXPECT_NEAR(measured.at(1), predicted.at(0), 1e-3);
  EXPECT_NEAR(measured.at(3), predicted.at(2) + 0.5e6, 1e-3);
}

TEST_F(TraceMerge, AlignsTheRequestedStep)
{
  const auto trace = merged(3);
  EXPECT_NEAR(begins_of(trace, 3).at(1), begins_of(trace, 0).at(0), 1e-3);
  EXPECT_THAT([&] { merged(4); }, testing::ThrowsMessage<InputError>("--step: 4; the traces have steps 0 to 3"));
}

TEST_F(TraceMerge, KeepsDevicesTogetherAndArrowsApart)
{
  const auto trace = merged();
  std::map<int, std::string> names;
  std::map<int, int> order;
  std::map<int, std::map<std::string, int>> arrows;
  for (const auto& event : trace["traceEvents"]) {
    const int process = event["pid"];
    if (event["name"] == "process_name") names[process] = event["args"]["name"];
    if (event["name"] == "process_sort_index") order[process] = event["args"]["sort_index"];
    const std::string phase = event["ph"];
    if (phase == "s" || phase == "f") ++arrows[event["id"].get<int>()][phase];
  }
  EXPECT_EQ(names, (std::map<int, std::string>{
                       {0, "a (predicted)"}, {1, "a (measured)"}, {2, "b (predicted)"}, {3, "b (measured)"}}));
  EXPECT_EQ(order, (std::map<int, int>{{0, 0}, {1, 1}, {2, 2}, {3, 3}}));
  EXPECT_EQ(arrows.size(), 2U + 8U);
  for (const auto& [id, ends] : arrows) EXPECT_EQ(ends, (std::map<std::string, int>{{"s", 1}, {"f", 1}})) << id;
}

TEST_F(TraceMerge, AcceptsTracksInAnotherOrder)
{
  std::ifstream in(measured_.name());
  auto json = nlohmann::json::parse(in);
  const auto swapped = [](int track) { return track == 1 ? 2 : track == 2 ? 1 : track; };
  for (auto& event : json["traceEvents"]) {
    if (event.contains("tid")) event["tid"] = swapped(event["tid"]);
    if (!event.contains("args") || !event["args"].contains("waits")) continue;
    for (auto& wait : event["args"]["waits"]) wait["tid"] = swapped(wait["tid"]);
  }
  const WrittenTrace other;
  other.write(json.dump());
  const auto trace = nlohmann::json::parse(merged_trace(predicted_.name(), other.name(), {}));
  EXPECT_EQ(begins_of(trace, 1), begins_of(merged(), 1));
}

TEST_F(TraceMerge, RefusesCountersAndArrowsWithWrongMembers)
{
  std::ifstream in(measured_.name());
  auto right = nlohmann::json::parse(in);
  auto& events = right["traceEvents"];
  events.push_back({{"ph", "C"}, {"name", "memory"}, {"pid", 0}, {"ts", 1}, {"args", {{"bytes", 1}}}});
  const WrittenTrace other;
  for (const char* phase : {"C", "s", "f", "M", "X"}) {
    const auto event =
        std::find_if(events.begin(), events.end(), [&](const auto& each) { return each["ph"] == phase; });
    ASSERT_NE(event, events.end()) << phase;
    const auto index = static_cast<std::size_t>(event - events.begin());
    for (const auto& [key, what] : {std::pair("pid", "a whole number below 1000000"),
                                    {"id", "a whole number below 9007199254740992"},
                                    {"ts", "a number from -1e+24 to 1e+24"},
                                    {"name", "a text"},
                                    {"args", "an object"}}) {
      if (!event->contains(key)) continue;
      for (const char* value : {"null", "[]"}) {
        auto wrong = right;
        wrong["traceEvents"][index][key] = nlohmann::json::parse(value);
        other.write(wrong.dump());
        EXPECT_EQ(message_of([&] { merged_trace(predicted_.name(), other.name(), {}); }),
                  fmt::format("InputError {}: traceEvents[{}]: {}: {}: not {}", other.name().string(), index, key,
                              value, what));
      }
    }
  }
}

TEST_F(TraceMerge, RefusesTracesOfOtherDevices)
{
  const WrittenTrace other;
  std::string text = merged_trace(predicted_.name(), predicted_.name(), {});
  other.write(text);
  EXPECT_THAT([&] { merged_trace(predicted_.name(), other.name(), {}); },
              testing::ThrowsMessage<InputError>(
                  other.name().string() + ": otherData.schema: not isobar-trace/1 or isobar-trace/2; pass a trace of "
                                          "isobar simulate or isobar run"));
  ListedProgram one_device(1);
  one_device.add(0, compute_lane, Opcode::Forward);
  other.write(one_device, {{0, 0, 0, one_device.at(0, compute_lane, 0), Seconds(0), Seconds(1), Bytes(0)}}, {"c"});
  EXPECT_THAT([&] { merged_trace(predicted_.name(), other.name(), {}); },
              testing::ThrowsMessage<InputError>(other.name().string() + ": has other devices than " +
                                                 predicted_.name().string() + "; pass two traces of one plan"));
}

}  // namespace
}  // namespace isobar::results::trace_merge_test
