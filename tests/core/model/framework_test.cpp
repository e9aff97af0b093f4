#include "core/model/framework.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "tests/support/thrown_message.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <type_traits>

namespace isobar::framework_test {
namespace {

std::filesystem::path source_file(const std::string& name)
{
  return std::filesystem::path(ISOBAR_SOURCE_DIR) / name;
}

/// One system with all flags, from the file of the project, in which a text is replaced by another.
std::string first_system(const std::string& from = "", const std::string& to = "", const std::string& more = "")
{
  std::string text = read_file(source_file("results/fidelity/systems.yaml"));
  text = text.substr(0, text.find("\n  - name: megatron-lm\n    version: \"2022\""));
  if (!from.empty()) text.replace(text.find(from), from.size(), to);
  return text + more + "words: {}\n";
}

TEST(Frameworks, AreListedByNameAndHaveASource)
{
  const auto names = framework_names();
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  for (const auto& name : names) {
    const auto choice = framework_named(name);
    EXPECT_EQ(choice.framework->name, name);
    EXPECT_EQ(choice.note, "");
    EXPECT_FALSE(choice.framework->source.empty()) << name;
    EXPECT_TRUE(name.starts_with(choice.framework->family)) << name;
    EXPECT_GE(choice.framework->memory.state32.all(), 16) << name;
  }
}

TEST(Frameworks, OfAnUnknownYearTakeTheLatestOfTheirFamily)
{
  const auto choice = framework_named("megatron-lm-2019");
  EXPECT_EQ(choice.framework->name, "megatron-lm-2022");
  EXPECT_EQ(choice.note,
            "framework megatron-lm-2019 has no constants of its own; those of megatron-lm-2022 stand for them");
}

TEST(Frameworks, AreFoundByTheSoftwareThatASystemTrainsWith)
{
  EXPECT_EQ(framework_named("megatron-core-0.12").framework->family, "megatron-core");
  EXPECT_EQ(framework_named("megatron-deepspeed-2022").framework->family, "megatron-deepspeed");
  EXPECT_EQ(framework_named("aceso/megatron").framework->family, "aceso");
  EXPECT_EQ(framework_named("amp-2022").framework->family, "megatron-deepspeed");
  EXPECT_EQ(framework_named("mist-megatron").framework->family, "megatron-lm");
}

TEST(Frameworks, DifferInHowTheyTransferActivationsAndSumGradients)
{
  const auto& megatron = *framework_named("megatron-lm-2021").framework;
  const auto& deepspeed = *framework_named("megatron-deepspeed-2024").framework;
  EXPECT_TRUE(megatron.sliced_transfers);
  EXPECT_TRUE(deepspeed.sliced_transfers);
  EXPECT_EQ(megatron.rebuild, 0);
  EXPECT_GT(deepspeed.rebuild, 0);
  EXPECT_TRUE(megatron.overlaps_gradient_sums);
  EXPECT_FALSE(deepspeed.overlaps_gradient_sums);
  EXPECT_EQ(framework_named("composer-fsdp-2023").framework->gathered, DType::BFloat16);
}

TEST(Frameworks, UnknownOnesAreRefused)
{
  EXPECT_EQ(message_of([] { framework_named("example"); }),
            "InputError framework: \"example\" is unknown; write one of aceso-2024, composer-fsdp-2023, fms-fsdp-2024, "
            "internevo-2023, megascale-moe-2025, megatron-bridge-2026, megatron-core-0.8, "
            "megatron-deepspeed-2023, megatron-deepspeed-2024, megatron-lm-2021, megatron-lm-2022");
}

TEST(Frameworks, OfNamesThatAreNotWordsAndAVersionAreUnknown)
{
  for (const char* name : {"megatron-lm-2021x", "megatron-lm-", "-megatron-lm", "megatron-lm-2021-2022", "megatronlm",
                           "2021", "megatron-lm-2021\n", "x\n-megatron-lm", "megatron-lm--2021", ""}) {
    EXPECT_EQ(standing_for(name), nullptr) << name;
  }
  EXPECT_EQ(standing_for("fork.of/megatron-lm-2021.5")->name, "megatron-lm-2022");
}

TEST(FlagsOfFrameworks, HaveTheRangesThatTheirTableStates)
{
  std::map<std::string, std::string> values;  // by flag, as docs/fidelity.md has them
  std::istringstream lines(read_file(source_file("docs/fidelity.md")));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t begin = line.find(" | ");
    const std::size_t end = line.find(" | ", begin + 1);
    if (!line.starts_with("| `") || end == std::string::npos) continue;
    for (std::size_t name = line.find('`'); name < begin; name = line.find('`', line.find('`', name + 1) + 1)) {
      values.emplace(line.substr(name + 1, line.find('`', name + 1) - name - 1),
                     line.substr(begin + 3, end - begin - 3));
    }
  }
  const auto check = [&](const FlagKey& key, const auto& flag) {
    using Flag = std::remove_cvref_t<decltype(flag)>;
    const auto [lowest, highest] = key.range;
    const std::string stated = values[std::string(key.text)];
    const auto quantity = [&](const char* kind, const char* unit) {
      return fmt::format("{}, {:g} {} to {:g} {}", kind, lowest, unit, highest, unit);
    };
    if constexpr (std::is_same_v<Flag, double>) {
      EXPECT_EQ(stated, fmt::format("number, {:g} to {:g}", lowest, highest));
    }
    if constexpr (std::is_same_v<Flag, unsigned>) {
      EXPECT_EQ(stated, fmt::format("{:g} to {:g}", lowest, highest));
    }
    if constexpr (std::is_same_v<Flag, Seconds>) {
      EXPECT_EQ(stated, quantity("time", "s"));
    }
    if constexpr (std::is_same_v<Flag, Bytes>) {
      EXPECT_EQ(stated, quantity("size", "B"));
    }
    if constexpr (std::is_same_v<Flag, bool>) {
      EXPECT_EQ(stated, "true, false");
    }
  };
  visit_flags(check, *find_framework("megatron-lm-2021"));
}

TEST(FileOfFrameworks, HasASourceBesideEachFlagOfEachSystem)
{
  const auto keys = flag_keys();
  const std::set<std::string> flags(keys.begin(), keys.end());
  EXPECT_EQ(flags.size(), keys.size());
  std::istringstream lines(read_file(source_file("results/fidelity/systems.yaml")));
  std::size_t found = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    if (!line.starts_with("    ") || colon == std::string::npos || !flags.contains(line.substr(4, colon - 4))) continue;
    ++found;
    const std::size_t comment = line.find(" # ");
    EXPECT_TRUE(comment != std::string::npos && line.size() > comment + 8) << line;
  }
  EXPECT_GT(found, 2 * flags.size()) << "two systems are like no other one, and others list what differs";
}

TEST(FileOfFrameworks, GivesASystemTheFlagsOfTheOneThatItIsLike)
{
  const Framework& megatron = *find_framework("megatron-lm-2021");
  const Framework& deepspeed = *find_framework("megatron-deepspeed-2024");
  EXPECT_EQ(deepspeed.logit.forward, megatron.logit.forward);
  EXPECT_EQ(deepspeed.pipeline_host, Seconds(1.87e-3));
  EXPECT_EQ(deepspeed.host_backward, Seconds(1.53e-3));
  EXPECT_EQ(deepspeed.memory.context, Bytes(3.95e9));
  EXPECT_EQ(deepspeed.memory.state32.all(), 24);
  EXPECT_EQ(deepspeed.family, "megatron-deepspeed");
}

TEST(FileOfFrameworks, NeedsAllFlagsOfASystemThatIsLikeNoOtherOne)
{
  const auto message = [](const std::string& from, const std::string& to, const std::string& more = "") {
    const std::string text = message_of([&] { frameworks_from_text(first_system(from, to, more), "s.yaml"); });
    return std::regex_replace(text, std::regex("s.yaml:[0-9]+"), "s.yaml:LINE");
  };
  EXPECT_EQ(frameworks_from_text(first_system(), "s.yaml").frameworks.size(), 1U);
  EXPECT_EQ(
      message("    product_speed: 1 ", "    # "),
      "InputError s.yaml:LINE: systems[0].product_speed: missing; a system that is like no other one has all flags");
  EXPECT_EQ(
      message("host_forward: 1.4 ms", "host_forward: 1.4"),
      "InputError s.yaml:LINE: systems[0].host_forward: \"1.4\" is not a time; write a number and a unit, such as "
      "\"20 ms\"");
  EXPECT_EQ(
      message("memory_reserve: 1.05", "memory_reserve: 0"),
      "InputError s.yaml:LINE: systems[0].memory_reserve: \"0\" is out of range; write a number from 0.001 to 1000");
  EXPECT_EQ(
      message("most_divided: none", "most_divided: all"),
      "InputError s.yaml:LINE: systems[0].most_divided: \"all\" is not one of none, optimizer, gradients, parameters");
  EXPECT_EQ(
      message("causal_softmax:", "casual_softmax:"),
      "InputError s.yaml:LINE: systems[0].causal_softmax: missing; a system that is like no other one has all flags\n"
      "s.yaml:LINE: systems[0].casual_softmax: unknown key; did you mean causal_softmax?");
  EXPECT_EQ(message("", "", "  - {name: b, version: \"1\", source: of a, like: a-1}\n"),
            "InputError s.yaml:LINE: systems[1].like: \"a-1\" is no system above; write the name and version of one: "
            "NAME-VERSION");
}

TEST(FileOfFrameworks, IsRefusedWithTheLineOfTheFault)
{
  const std::string text = first_system("host_forward: 1.4 ms", "host_forward: 1.4");
  const auto line =
      1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(text.find("host_forward")), '\n');
  EXPECT_THAT(message_of([&] { frameworks_from_text(text, "s.yaml"); }),
              testing::StartsWith("InputError s.yaml:" + std::to_string(line) + ": systems[0].host_forward: "));
}

TEST(FileOfFrameworks, HasEachFlagInTheDocumentation)
{
  const std::string page = read_file(source_file("docs/fidelity.md"));
  for (const auto& key : flag_keys()) {
    const std::size_t at = page.find("`" + key + "`", page.find("### Flags of a system"));
    ASSERT_NE(at, std::string::npos) << key;
    EXPECT_EQ(page.substr(page.rfind('\n', at) + 1, 3), "| `") << key;
  }
}

}  // namespace
}  // namespace isobar::framework_test
