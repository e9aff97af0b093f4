#include "core/program/chrome_trace.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sstream>
#include <string>
#include <vector>

namespace isobar {
namespace {

TraceEvent event(std::size_t rank, Lane lane, Opcode opcode, double begin, double end)
{
  TraceEvent result;
  result.rank = rank;
  result.instruction.lane = lane;
  result.instruction.opcode = opcode;
  result.instruction.microbatch = 3;
  result.begin = Seconds(begin);
  result.end = Seconds(end);
  return result;
}

TEST(ChromeTraceWriter, NamesProcessesTracksAndInstructions)
{
  std::ostringstream out;
  ChromeTraceWriter writer(out, {"gpu \"0\""});
  writer.record(event(0, Lane::SendGradient, Opcode::Send, 1e-6, 3e-6));
  writer.finish();
  const auto text = out.str();
  EXPECT_NE(text.find(R"("args":{"name":"gpu \"0\""})"), std::string::npos);
  EXPECT_NE(text.find(R"("tid":2,"args":{"name":"send gradient"})"), std::string::npos);
  EXPECT_NE(text.find(R"({"ph":"X","name":"Send gradient 3","cat":"Send","pid":0,"tid":2,"ts":1.0000,"dur":2.0000,)"),
            std::string::npos);
  EXPECT_TRUE(text.ends_with("\n]}\n"));
}

TEST(ChromeTraceWriter, DrawsAnArrowFromEachSendToItsReceive)
{
  std::ostringstream out;
  ChromeTraceWriter writer(out, {"a", "b"});
  for (std::uint64_t step = 0; step < 2; ++step) {
    // Two transfers at once: each end finds its own.
    for (const bool sends : {true, false}) {
      for (std::uint64_t position = 0; position < 2; ++position) {
        const double begin = static_cast<double>(10 * step + position) * 1e-6;
        auto end = sends ? event(0, Lane::SendActivation, Opcode::Send, begin, begin + 1e-6)
                         : event(1, Lane::ReceiveActivation, Opcode::Recv, begin, begin + 2e-6);
        end.step = step;
        end.instruction.peer = sends ? 1 : 0;
        end.instruction.peer_position = position;
        end.instruction.microbatch = position;
        writer.record(end);
      }
    }
  }
  writer.finish();
  std::vector<std::string> starts;
  std::vector<std::string> ends;
  const auto trace = nlohmann::json::parse(out.str());
  for (const auto& item : trace["traceEvents"]) {
    const auto phase = item["ph"].get<std::string>();
    if (phase != "s" && phase != "f") continue;
    EXPECT_EQ(item.value("bp", ""), phase == "f" ? "e" : "");
    EXPECT_EQ(item["cat"], "transfer");
    (phase == "s" ? starts : ends)
        .push_back(fmt::format("{} {} {} {} {}", item["id"].get<int>(), item["name"].get<std::string>(),
                               item["pid"].get<int>(), item["tid"].get<int>(), item["ts"].get<double>()));
  }
  EXPECT_EQ(starts, (std::vector<std::string>{"1 activation 0 0 1 0", "2 activation 1 0 1 1", "3 activation 0 0 1 10",
                                              "4 activation 1 0 1 11"}));
  EXPECT_EQ(ends, (std::vector<std::string>{"1 activation 0 1 3 2", "2 activation 1 1 3 3", "3 activation 0 1 3 12",
                                            "4 activation 1 1 3 13"}));
}

}  // namespace
}  // namespace isobar
