#include "core/jobs/mix.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/thrown_message.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

namespace isobar::mix_file_test {
namespace {

using testing::ElementsAre;
using testing_support::TemporaryFolder;

const std::string two_jobs = R"({"schema": "isobar-mix/1",
"jobs": [{"name": "a", "plan": "a.json", "workload": "bert.yaml"},
{"name": "b", "plan": "b.json", "workload": "resnet.yaml", "start_s": 0.5, "steps": 3}])";

Mix mix_of(const std::string& rest)
{
  const TemporaryFolder folder;
  return read_mix(folder.write("mix.json", two_jobs + rest));
}

std::string fault_of_text(const std::string& text)
{
  const TemporaryFolder folder;
  std::filesystem::current_path(folder.path());
  folder.write("mix.json", text);
  auto message = message_of([] { read_mix("mix.json"); });
  std::filesystem::current_path("/");
  return message;
}

std::string fault_of(const std::string& rest)
{
  return fault_of_text(two_jobs + rest);
}

TEST(MixFile, GivesEachJobATurnUnlessItSaysMore)
{
  const Mix mix = mix_of("}");
  ASSERT_EQ(mix.jobs.size(), 2U);
  EXPECT_EQ(mix.jobs[1].start, Seconds(0.5));
  EXPECT_EQ(mix.jobs[1].steps, 3U);
  EXPECT_THAT(mix.turns, ElementsAre(MixTurn{0, 1}, MixTurn{1, 1}));
  EXPECT_EQ(mix.discipline, Discipline::Strict);
  EXPECT_EQ(mix.hand_over, HandOver::Step);
  EXPECT_EQ(mix.links, LinkSharing::Fifo);
}

TEST(MixFile, SurvivesWriteThenRead)
{
  const TemporaryFolder folder;
  const Mix mix = mix_of(R"(, "turns": [{"job": "b"}, {"job": "a", "steps": 2}, {"job": "b"}],
    "discipline": "conserving", "hand_over": "instruction", "links": "fair"})");
  EXPECT_EQ(steps_per_round(mix, 0), 2U);
  EXPECT_EQ(steps_per_round(mix, 1), 2U);
  EXPECT_EQ(read_mix(folder.write("again.json", mix_to_json(mix))), mix);
}

TEST(MixFile, TakesFilesBesideItBeforeThoseOfTheWorkingFolder)
{
  const TemporaryFolder folder;
  folder.write("a.json", "");
  const Mix mix = read_mix(folder.write("mix.json", two_jobs + "}"));
  EXPECT_EQ(mix.jobs[0].plan, (std::filesystem::path(folder.path()) / "a.json").string());
  EXPECT_EQ(mix.jobs[1].plan, "b.json");
}

TEST(MixFile, NamesEveryFaultWithItsLine)
{
  EXPECT_EQ(fault_of_text(R"({"schema": "isobar-plan/1"})"),
            R"(InputError mix.json:1: schema: "isobar-plan/1" is not isobar-mix/1)"
            "\n"
            "mix.json:1: jobs: missing; write a list");
  EXPECT_EQ(fault_of_text(R"({"schema": "isobar-mix/1", "jobs": []})"),
            "InputError mix.json:1: jobs: has 0; a mix has 1 to 64");
  EXPECT_EQ(fault_of_text(R"({"schema": "isobar-mix/1", "jobs": {"a": "a.json"}})"),
            "InputError mix.json:1: jobs: is a mapping; write a list");
  EXPECT_EQ(fault_of_text("[1, 2]"), R"(InputError mix.json:1: the file is a list; write "key: value" pairs)");
  EXPECT_EQ(
      fault_of_text("{\"schema\": \"isobar-mix/1\",\n\"jobs\": [{\"name\": \"a/b\", \"plan\": 3}]}"),
      R"(InputError mix.json:2: jobs[0].name: "a/b" is no name; take 1 to 64 letters, digits, -, _ and dots, the first one no dot)"
      "\n"
      R"(mix.json:2: jobs[0].plan: 3 is not a string; write "3")"
      "\n"
      "mix.json:2: jobs[0].workload: missing; write a string");
  EXPECT_EQ(fault_of_text(R"({"schema": "isobar-mix/1", "jobs": [{"name": "a", "plan": "a", "workload": "w"},
{"name": "a", "plan": "a", "workload": "w", "start": "2 s"}]})"),
            R"(InputError mix.json:2: jobs[1].name: "a" is the name of another job too; give each its own)"
            "\n"
            "mix.json:2: jobs[1].start: unknown key; the keys here are name, plan, start_s, steps, workload");
  EXPECT_EQ(fault_of_text(R"({"schema": "isobar-mix/1", "jobs": [{"name": "a", "plan": "a", "workload": "w",
"start_s": -1, "steps": 0}]})"),
            R"(InputError mix.json:2: jobs[0].start_s: "-1" is out of range; write a number, 0 or more)"
            "\n"
            R"(mix.json:2: jobs[0].steps: "0" is out of range; write a whole number from 1 to 9007199254740992)");
  EXPECT_EQ(fault_of(R"(, "turns": [{"job": "c"}]})"),
            R"(InputError mix.json:3: turns[0].job: "c" is the name of no job; did you mean a?)");
  EXPECT_EQ(fault_of(R"(, "turns": [{"job": "a"}]})"),
            R"(InputError mix.json:3: turns: has none of job b; add {"job": "b"})");
  EXPECT_EQ(fault_of(R"(, "turns": []})"), R"(InputError mix.json:3: turns: has none of job a; add {"job": "a"})"
                                           "\n"
                                           R"(mix.json:3: turns: has none of job b; add {"job": "b"})");
  EXPECT_EQ(fault_of(R"(, "turns": [{"job": "a", "steps": 0}, {"job": "b", "steps": 1.5}]})"),
            R"(InputError mix.json:3: turns[0].steps: "0" is out of range; write a whole number from 1 to 1000)"
            "\n"
            R"(mix.json:3: turns[1].steps: "1.5" is not a whole number; write a whole number from 1 to 1000)");
  EXPECT_EQ(fault_of(R"(, "turns": ["a", "b"]})"),
            R"(InputError mix.json:3: turns[0]: is a single value; write "key: value" pairs)"
            "\n"
            R"(mix.json:3: turns[1]: is a single value; write "key: value" pairs)");
  EXPECT_EQ(fault_of(R"(, "discipline": "fair"})"),
            R"(InputError mix.json:3: discipline: "fair" is not one of strict, conserving, none)");
  EXPECT_EQ(fault_of(R"(, "hand_over": "microbatch"})"),
            R"(InputError mix.json:3: hand_over: "microbatch" is not one of step, instruction)");
  EXPECT_EQ(fault_of(R"(, "links": true})"), R"(InputError mix.json:3: links: "true" is not one of fifo, fair)");
  EXPECT_EQ(fault_of(R"(, "dicipline": "none"})"),
            "InputError mix.json:3: dicipline: unknown key; did you mean discipline?");
  EXPECT_EQ(fault_of(R"(, "links": "fifo", "links": "fair"})"),
            "InputError mix.json:3: links: given twice, first in line 3; remove one");
}

}  // namespace
}  // namespace isobar::mix_file_test
