#include "core/compute/calibration.hpp"

#include "tests/support/temporary_folder.hpp"
#include "tests/support/thrown_message.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

namespace isobar::compute::calibration_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::Pair;

const std::string whole = R"(# A comment.
schema: isobar-calibration/1
device: A100-SXM4-80GB
framework:
  name: megatron-lm-2021
  product_speed: 0.9
  kernel_start: 15.5 us
  causal_softmax: false
links: {inside: 0.95, outside: 1.25}
rows: [mine/a, mine/b]
)";

/// Calls `use` in a new folder with a file of this text.
template <typename Use>
auto with_file(const std::string& name, const std::string& text, Use use)
{
  const testing_support::TemporaryFolder folder;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  folder.write(name, text);
  struct Back {
    std::filesystem::path to;
    ~Back() { std::filesystem::current_path(to); }
  } back{before};
  return use();
}

Calibration read(const std::string& text)
{
  return with_file("c.yaml", text, [] { return read_calibration("c.yaml"); });
}

std::string fault_of(const std::string& text)
{
  return message_of([&] { read(text); });
}

std::string changed(const std::string& from, const std::string& to)
{
  std::string text = whole;
  return text.replace(text.find(from), from.size(), to);
}

/// What a calibration replaces in a workload file.
std::vector<std::string> replaced_in(const std::string& workload, WorkloadSettings& settings)
{
  const Calibration calibration = read(whole);
  return with_file("w.yaml", workload, [&] { return add_calibration(calibration, "w.yaml", settings); });
}

WorkloadSettings added_to(const std::string& workload, WorkloadSettings settings = {})
{
  replaced_in(workload, settings);
  return settings;
}

TEST(Calibration, IsReadWithTheFlagsAndLinksThatItChanges)
{
  const Calibration read_one = read(whole);
  EXPECT_EQ(read_one.system.name, "megatron-lm-2021");
  EXPECT_EQ(read_one.system.product_speed, 0.9);
  EXPECT_EQ(read_one.system.norm_speed, 2) << "of the system";
  EXPECT_EQ(read_one.device, "A100-SXM4-80GB");
  EXPECT_EQ(read_one.links, (LinkFactors{0.95, 1.25}));
  EXPECT_THAT(read_one.rows, ElementsAre("mine/a", "mine/b"));
  EXPECT_THAT(settings_of(read_one),
              ElementsAre(Pair("framework.causal_softmax", "false"), Pair("framework.kernel_start", "1.55e-05 s"),
                          Pair("framework.product_speed", "0.9")));
}

TEST(Calibration, ReadsWhatItWrites)
{
  Calibration first = read(whole);
  first.rows = {"mine/a: \"b\" \\ # c"};
  first.device = "my \"GPU\"";
  const std::string text = calibration_to_yaml(first);
  EXPECT_THAT(text, HasSubstr("product_speed: 0.9                      # 1 as shipped"));
  EXPECT_THAT(text, HasSubstr("kernel_start: 15.5 us                   # 12 us as shipped"));
  const Calibration second = read(text);
  EXPECT_TRUE(have_same_flags(first.system, second.system));
  EXPECT_EQ(first.links, second.links);
  EXPECT_EQ(first.rows, second.rows);
  EXPECT_EQ(first.device, second.device);
}

TEST(Calibration, OfNothingHasNeitherFlagsNorLinks)
{
  const std::string text =
      calibration_to_yaml(read("schema: isobar-calibration/1\ndevice: T4\nframework: composer-fsdp-2023\n"));
  EXPECT_THAT(text, Not(HasSubstr("links:")));
  EXPECT_THAT(settings_of(read(text)), ElementsAre());
}

TEST(Calibration, SaysWhichFlagsOfAWorkloadItReplaces)
{
  const std::string workload =
      "framework: {name: megatron-lm, version: \"2021\", kernel_start: 9 us, norm_speed: 3, product_speed: 0.8}\n";
  WorkloadSettings none;
  EXPECT_THAT(replaced_in(workload, none), ElementsAre("kernel_start", "product_speed"));
  WorkloadSettings own = {{"framework.kernel_start", "1 us"}};
  EXPECT_THAT(replaced_in(workload, own), ElementsAre("product_speed"));
  EXPECT_EQ(own.at("framework.kernel_start"), "1 us");
  WorkloadSettings others;
  EXPECT_THAT(replaced_in("framework: megatron-lm-2021\n", others), ElementsAre());
}

TEST(Calibration, ReportsEachFaultWithItsLineAndWhatWouldBeRight)
{
  EXPECT_EQ(fault_of(changed("calibration/1", "calibration/2")),
            "InputError c.yaml:2: schema: \"isobar-calibration/2\" is not isobar-calibration/1");
  EXPECT_THAT(fault_of(changed("product_speed: 0.9", "product_speed: 0")),
              HasSubstr("c.yaml:6: framework.product_speed: "));
  EXPECT_THAT(fault_of(changed("product_speed", "products_speed")),
              HasSubstr("c.yaml:6: framework.products_speed: unknown key; did you mean product_speed?"));
  EXPECT_THAT(fault_of(changed("15.5 us", "15.5")),
              HasSubstr("c.yaml:7: framework.kernel_start: \"15.5\" is not a time"));
  EXPECT_THAT(fault_of(changed("inside: 0.95", "inside: 0")), HasSubstr("c.yaml:9: links.inside: "));
  EXPECT_THAT(fault_of(changed("megatron-lm-2021", "tensorflow")), HasSubstr("c.yaml:5: framework.name: "));
  EXPECT_THAT(fault_of(changed("device: A100-SXM4-80GB", "devices: A100")), HasSubstr("device: missing"));
  EXPECT_THAT(fault_of(changed("[mine/a, mine/b]", "{a: b}")), HasSubstr("rows: "));
  EXPECT_THAT(fault_of("[]"), HasSubstr("c.yaml:1: "));
}

TEST(Calibration, BecomesSettingsOfAWorkload)
{
  const auto settings = added_to("model: gpt\n");
  EXPECT_EQ(settings.at("compute"), "operators");
  EXPECT_EQ(settings.at("framework"), "megatron-lm-2021");
  EXPECT_EQ(settings.at("framework.product_speed"), "0.9");
}

TEST(Calibration, KeepsSettingsAndTheFrameworkThatTheWorkloadNames)
{
  const auto settings = added_to("model: gpt\nframework: {name: megatron-lm, version: \"2021\", host_forward: 2 ms}\n",
                                 {{"framework.product_speed", "2"}, {"layers", "4"}});
  EXPECT_FALSE(settings.contains("framework")) << "the file's has flags of its own";
  EXPECT_EQ(settings.at("framework.product_speed"), "2");
  EXPECT_EQ(settings.at("framework.kernel_start"), "1.55e-05 s");
  EXPECT_EQ(settings.at("layers"), "4");
}

TEST(Calibration, OfAnotherSystemIsRefused)
{
  EXPECT_EQ(message_of([] { added_to("framework: composer-fsdp-2023\n"); }),
            "InputError --system: c.yaml calibrates megatron-lm-2021, and w.yaml has framework composer-fsdp-2023; "
            "calibrate that one, or write --set framework=megatron-lm-2021");
  EXPECT_EQ(message_of([] {
              added_to("model: gpt\n", {{"framework", "composer-fsdp-2023"}});
            }),
            "InputError --system: c.yaml calibrates megatron-lm-2021, and --set has framework composer-fsdp-2023; "
            "calibrate that one, or write --set framework=megatron-lm-2021");
  EXPECT_EQ(message_of([] {
              added_to("model: gpt\n", {{"compute", "rate"}});
            }),
            "InputError --system: c.yaml is for compute: operators; leave --set compute=rate out");
}

}  // namespace
}  // namespace isobar::compute::calibration_test
