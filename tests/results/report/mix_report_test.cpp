#include "results/report/mix_report.hpp"

#include "core/errors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace isobar::results::mix_report_test {
namespace {

/// Two jobs on a device each and one both; rounds of 2 s.
constexpr auto result_text =
    R"({"schema": "isobar-mix-result/1", "rounds": 4, "round_time_s": 2, "round_times_s": [2, 2, 2, 2],
  "total_s": 8, "serial_s": 3, "speedup": 1.5, "bound_s": 1.5, "binds": {"kind": "link", "name": "wire"},
  "gap_fraction": 0.25, "jobs": [{"name": "a"}, {"name": "a: b"}], "devices": [{"name": "left"}, {"name": "right"}],
  "links": [{"name": "wire"}], "simgrid_version": "3", "mix": {"discipline": "strict", "hand_over": "step", "links": "fifo"},
  "inputs": {"platform": {"name": "p.xml", "hash": "0"}, "devices": null}})";

std::string process(int pid, const std::string& name)
{
  return R"({"ph":"M","name":"process_name","pid":)" + std::to_string(pid) + R"(,"args":{"name":")" + name + R"("}})";
}

std::string event(int pid, const std::string& kind, const std::string& name, double begin_s, double end_s,
                  const std::string& args)
{
  return nlohmann::json{{"ph", "X"},
                        {"name", name},
                        {"cat", kind},
                        {"pid", pid},
                        {"tid", 0},
                        {"ts", 1e6 * begin_s},
                        {"dur", 1e6 * (end_s - begin_s)},
                        {"args", nlohmann::json::parse(args)}}
      .dump();
}

std::string trace_of(const std::vector<std::string>& events)
{
  std::string text;
  for (const auto& each : events) text += (text.empty() ? "" : ",") + each;
  return R"({"traceEvents":[)" + text + "]}";
}

const std::vector<std::string> ranks = {process(0, "a: left"), process(1, "a: right"), process(2, "a: b: left"),
                                        process(3, "links")};

std::vector<std::string> wire_between(const std::string& from, const std::string& to)
{
  return {from + "-" + to};
}

nlohmann::json shown(std::vector<std::string> events)
{
  events.insert(events.begin(), ranks.begin(), ranks.end());
  return nlohmann::json::parse(
      mix_to_report({"r.json", result_text}, {"t.json", trace_of(events)}, wire_between))["timeline"]["spans"];
}

TEST(MixReport, TellsJobsApartByTheNamesOfTheirRanks)
{
  const auto spans = shown({event(0, "Forward", "Forward 0", 0, 1, R"({"memory_bytes": 1})"),
                            event(2, "Forward", "Forward 0", 1, 2, R"({"memory_bytes": 1})"),
                            event(2, "turn", "wait", 0.5, 1, "{}"), event(2, "turn", "hold", 1, 2, "{}")});
  EXPECT_THAT(spans["row"], testing::ElementsAre("left", "left", "left"));
  EXPECT_THAT(spans["job"], testing::ElementsAre(0, 1, 1));
  EXPECT_THAT(spans["kind"], testing::ElementsAre("compute", "wait", "compute"));
  EXPECT_THAT(spans["begin_s"], testing::ElementsAre(0.0, 0.5, 1.0));
  EXPECT_THAT(spans["end_s"], testing::ElementsAre(1.0, 1.0, 2.0));
}

TEST(MixReport, DrawsATransferOnTheLinksOfItsRoute)
{
  const auto spans = shown({event(0, "Send", "Send activation 0", 0, 1, R"({"channel": 0, "peer": 1})"),
                            event(1, "Recv", "Recv activation 0", 0, 1, R"({"channel": 0, "peer": 0})")});
  EXPECT_THAT(spans["row"], testing::ElementsAre("left-right"));
  EXPECT_THAT(spans["kind"], testing::ElementsAre("transfer"));
}

TEST(MixReport, DrawsACollectiveAroundItsRing)
{
  const auto spans = shown({event(0, "AllReduce", "AllReduce", 0, 1, R"({"channel": 2, "step": 0, "position": 0})"),
                            event(1, "AllReduce", "AllReduce", 0, 1, R"({"channel": 2, "step": 0, "position": 0})")});
  EXPECT_THAT(spans["row"], testing::ElementsAre("left-right", "right-left"));
}

TEST(MixReport, ShowsTheFirstThreeRounds)
{
  const auto spans = shown({event(0, "Forward", "Forward 0", 5.9, 6.1, R"({"memory_bytes": 1})"),
                            event(0, "Forward", "Forward 0", 6.2, 6.3, R"({"memory_bytes": 1})")});
  EXPECT_THAT(spans["begin_s"], testing::ElementsAre(5.9));
}

TEST(MixReport, SaysWhatARoundSaves)
{
  const auto mix =
      nlohmann::json::parse(mix_to_report({"r.json", result_text}, {"t.json", trace_of(ranks)}, wire_between));
  EXPECT_EQ(mix["saved_s"], 1);
  EXPECT_EQ(mix["binds"]["name"], "wire");
}

TEST(MixReport, RefusesATraceOfOtherJobs)
{
  const auto report = [](const std::string& result, const std::string& trace) {
    return [=] { mix_to_report({"r.json", result}, {"t.json", trace}, wire_between); };
  };
  EXPECT_THAT(
      report(result_text, trace_of({process(0, "a: left")})),
      testing::ThrowsMessage<InputError>("t.json: has no rank of job \"a: b\" of r.json; name the trace that --trace "
                                         "wrote with it"));
  EXPECT_THAT(report(result_text, "{"), testing::ThrowsMessage<InputError>("t.json: is not a trace"));
  EXPECT_THAT(report(result_text, R"({"traceEvents": [{"ph": "X"}]})"),
              testing::ThrowsMessage<InputError>("t.json: is not a trace of isobar simulate --mix"));
  EXPECT_THAT(report("{}", trace_of(ranks)),
              testing::ThrowsMessage<InputError>(testing::StartsWith("r.json: is not a whole result of a mix (")));
}

}  // namespace
}  // namespace isobar::results::mix_report_test
