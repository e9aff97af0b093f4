#include "sim/platform/platform.hpp"

#include "sim/platform/simgrid_compat.hpp"
#include "tests/sim/platform/platform_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

// How SimGrid computes with the options that Isobar sets.
namespace isobar::sim::network_settings_test {
namespace {

TEST(NetworkSettings, OverrideTheConfigurationOfAPlatformFile)
{
  load("version_4");  // asks for LV08, whose latencies are 13 times longer
  const auto* engine = sg4::Engine::get_instance();
  auto transfer = sg4::Comm::sendto_init(engine->host_by_name("a"), engine->host_by_name("b"));
  transfer->set_payload_size(125'000'000);
  start_flow(network_model(), *transfer, 1e-4);
  engine->run();
  EXPECT_NEAR(sg4::Engine::get_clock(), 1.0, 1e-9);  // SimGrid's flows do not include latencies
}

TEST(NetworkSettings, NameEachOptionOnce)
{
  std::set<std::string> names;
  for (const auto& [name, value] : network_settings()) {
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_FALSE(value.empty()) << name;
  }
  EXPECT_TRUE(names.contains("network/model"));
}

TEST(NetworkSettings, TimeMicrosecondActivitiesToAMillionth)
{
  load("floyd");
  const auto* engine = sg4::Engine::get_instance();
  auto* host = engine->host_by_name("a");  // 1 TFLOP/s
  const auto run_for = [&](double flops) {
    auto exec = sg4::Exec::init()->set_host(host)->set_flops_amount(flops);
    start_activity(exec);
    engine->run();
  };
  run_for(1e15);  // begin late, where the spacing of doubles is larger
  const double begin = sg4::Engine::get_clock();
  EXPECT_NEAR(begin, 1000, 1e-9);
  for (int i = 0; i < 1000; ++i) run_for(1e6);
  EXPECT_NEAR(sg4::Engine::get_clock() - begin, 1e-3, 1e-9);
}

TEST(NetworkSettings, SeparateEndsHalfAMicrosecondApart)
{
  load("floyd");
  const auto* engine = sg4::Engine::get_instance();
  std::vector<double> ends;
  on_activity_completion([&ends](const sg4::Activity&) { ends.push_back(sg4::Engine::get_clock()); });
  std::vector<sg4::ExecPtr> execs;
  for (const double flops : {1.000e6, 1.0005e6}) {  // on two hosts: 1 us and 0.50025 us
    auto* host = engine->host_by_name(execs.empty() ? "a" : "b");
    execs.push_back(sg4::Exec::init()->set_host(host)->set_flops_amount(flops));
    start_activity(execs.back());
  }
  engine->run();
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_NEAR(ends[0], 0.50025e-6, 1e-12);
  EXPECT_NEAR(ends[1], 1e-6, 1e-12);
}

TEST(NetworkSettings, LetFlowsShareInInverseProportionToLatencies)
{
  const auto file = write_platform(
      xml_head +
      "<platform version=\"4.1\"><zone id=\"z\" routing=\"Full\">"
      "<host id=\"a\" speed=\"1Tf\"><prop id=\"memory\" value=\"1 GiB\"/></host>"
      "<host id=\"b\" speed=\"1Tf\"><prop id=\"memory\" value=\"1 GiB\"/></host>"
      "<host id=\"c\" speed=\"1Tf\"><prop id=\"memory\" value=\"1 GiB\"/></host>"
      "<link id=\"bus\" bandwidth=\"100MBps\" latency=\"0\"/>"
      "<link id=\"near\" bandwidth=\"1GBps\" latency=\"1ms\"/><link id=\"far\" bandwidth=\"1GBps\" latency=\"3ms\"/>"
      "<route src=\"a\" dst=\"b\"><link_ctn id=\"bus\"/></route>"
      "<route src=\"a\" dst=\"c\"><link_ctn id=\"near\"/><link_ctn id=\"bus\"/></route>"
      "<route src=\"b\" dst=\"c\"><link_ctn id=\"far\"/><link_ctn id=\"bus\"/></route></zone></platform>");
  const auto platform = Platform::load(file);
  const auto* engine = sg4::Engine::get_instance();
  std::vector<double> ends;
  on_activity_completion([&ends](const sg4::Activity&) { ends.push_back(sg4::Engine::get_clock()); });
  std::vector<sg4::CommPtr> transfers;
  for (const auto& [from, latency] : {std::pair("a", 1e-3), std::pair("b", 3e-3)}) {
    transfers.push_back(sg4::Comm::sendto_init(engine->host_by_name(from), engine->host_by_name("c")));
    transfers.back()->set_payload_size(300'000'000);
    start_flow(network_model(), *transfers.back(), latency);
  }
  engine->run();
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_NEAR(ends[0], 300e6 / 75e6, 1e-5);  // 75 and 25 MB/s
  EXPECT_NEAR(ends[1], 6, 1e-5);
}

TEST(SimGridVersion, IsThatOfTheLibrary)
{
  EXPECT_THAT(simgrid_version(), ::testing::MatchesRegex("[0-9]+\\.[0-9]+.*"));
}

}  // namespace
}  // namespace isobar::sim::network_settings_test
