#include "core/errors.hpp"
#include "core/jobs/grouping.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

namespace isobar::grouping_file_test {
namespace {

using testing::ElementsAre;

class GroupingFile : public testing::Test {
 protected:
  std::string write(const std::string& text)
  {
    std::ofstream(file_) << text;
    return file_;
  }
  /// The faults of a table or grouping, without the file's name.
  std::string fault_of(const std::function<void()>& read)
  {
    try {
      read();
    } catch (const InputError& fault) {
      std::string text = fault.what();
      for (auto at = text.find(file_); at != std::string::npos; at = text.find(file_)) text.erase(at, file_.size());
      return text;
    }
    return "";
  }
  std::string fault_of_table(const std::string& text)
  {
    return fault_of([&] { read_job_profiles(write(text)); });
  }
  ~GroupingFile() override { std::filesystem::remove(file_); }

  std::string file_ = testing::TempDir() + "grouping_" + testing::UnitTest::GetInstance()->current_test_info()->name();
};

Grouping small_grouping()
{
  Grouping grouping;
  grouping.size = GroupSize::Pairs;
  grouping.memory = Bytes(16e9);
  const JobStepTimes step{Seconds(1.5), {Seconds(0), Seconds(1), Seconds(0.5)}};
  grouping.jobs = {{"a", 10, 2, step, Bytes(1e9), Bytes(2e9)}, {"b", 10, 2, step, {}, {}}, {"c", 3, 1, step, {}, {}}};
  grouping.groups = {{{0, 1}, Seconds(2), Seconds(20)}, {{2}, Seconds(1.5), Seconds(4.5)}};
  grouping.total = Seconds(24.5);
  grouping.serial = Seconds(34.5);
  grouping.longest = Seconds(2);
  grouping.bound = Seconds(24.5);
  grouping.proofs = {{1, Seconds(1e-9), 0, 0, {0}, {}, {}}, {2, Seconds(1e-9), 5, 10, {20, 20}, {{{0}, 7}}, {1}}};
  grouping.baselines = {{"greedy", Seconds(25), Seconds(2)}};
  return grouping;
}

TEST_F(GroupingFile, IsReadAsItWasWritten)
{
  const auto grouping = small_grouping();
  EXPECT_EQ(read_grouping(write(grouping_to_json(grouping))), grouping);
  auto without_memory = grouping;
  without_memory.memory = std::nullopt;
  EXPECT_EQ(read_grouping(write(grouping_to_json(without_memory))), without_memory);
}

TEST_F(GroupingFile, WithFaultsNamesTheirPlaces)
{
  const auto fault_after = [&](const std::string& from, const std::string& to) {
    std::string text = grouping_to_json(small_grouping());
    text.replace(text.find(from), from.size(), to);
    return fault_of([&] { read_grouping(write(text)); });
  };
  EXPECT_EQ(fault_after("\"pairs\"", "\"pears\""), ":3: group: \"pears\" is not one of pairs, triples, auto");
  EXPECT_EQ(fault_after("\"name\": \"b\"", "\"name\": \"a\""),
            ":14: groups[0].jobs: \"b\" is the name of no job\n"
            ":47: jobs[1].name: \"a\" is the name of another job too; give each its own\n"
            ":99: certificates[1].barrier: \"b\" is the name of no job");
  EXPECT_EQ(fault_after("\"bonus\": 5", "\"bonus\": -5"),
            ":84: certificates[1].bonus: \"-5\" is not a whole number; write a whole number, 0 or more");
  EXPECT_EQ(fault_after("20,\n        20", "20,\n        1e1"),
            ":88: certificates[1].duals: \"1e1\" is not a whole number");
}

TEST_F(GroupingFile, ReadsProfiles)
{
  const auto jobs =
      read_job_profiles(write("name,steps,devices,compute_s,network_s,input_s,alone_s,memory_bytes\n"
                              "# measured\n"
                              "a,100,8,1,0.5,0.25,,2e9\n"
                              "b,50,4,1,0.5,,1.2,\n"));
  ASSERT_EQ(jobs.size(), 2U);
  EXPECT_EQ(jobs[0].steps, 100U);
  EXPECT_EQ(jobs[0].devices, 8U);
  EXPECT_EQ(jobs[0].step.alone, Seconds(1.75));
  EXPECT_EQ(jobs[0].resident, Bytes(2e9));
  EXPECT_THAT(jobs[0].step.busy, ElementsAre(Seconds(0.25), Seconds(1), Seconds(0.5)));
  EXPECT_EQ(jobs[1].step.alone, Seconds(1.2));
}

TEST_F(GroupingFile, RefusesWrongProfilesWithEveryFault)
{
  const std::string header = "name,steps,devices,compute_s,network_s,alone_s\n";
  EXPECT_EQ(
      fault_of_table("name,steps,devices,compute_s\na,1,1,1\n"),
      ":1: network_s: missing column; the columns are name, steps, devices, compute_s, network_s, input_s, alone_s, "
      "memory_bytes, activations_bytes");
  EXPECT_EQ(fault_of_table(header + "a,1,1,1,1,\n"), ": has 1 job; sharing takes two or more");
  EXPECT_EQ(fault_of_table(header + "a,0,x,-1,1s,\n,1,1,1,1,\na,1,1,1,1,\nb,1,1,0,0,\nc,1,1,1,1,0.5\n"),
            ":2: steps: \"0\" is not a whole number from 1 to 1099511627776\n"
            ":2: devices: \"x\" is not a whole number from 1 to 1000000\n"
            ":2: compute_s: \"-1\" is not a number of 0 or more\n"
            ":2: network_s: \"1s\" is not a number of 0 or more\n"
            ":3: name: is empty; give each job a name\n"
            ":4: name: \"a\" is the name of line 2 too\n"
            ":5: alone_s: takes no time\n"
            ":6: alone_s: compute_s is 1, more than alone_s, 0.5");
}

}  // namespace
}  // namespace isobar::grouping_file_test
