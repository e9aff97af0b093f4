#include "exec/launch/device_name.hpp"

#include "tests/support/temporary_folder.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>

namespace isobar::exec::device_name_test {
namespace {

/// The files of a machine of 8 GiB, of which 6 are available.
class MachineMemory : public testing::Test {
 protected:
  MachineMemory() { write("proc/meminfo", "MemTotal:        8388608 kB\nMemAvailable:    6291456 kB\n"); }

  void write(const std::string& name, const std::string& content)
  {
    std::filesystem::create_directories((folder_.path() / name).parent_path());
    folder_.write(name, content);
  }
  /// The same for a group below sys/fs/cgroup.
  void write_group(const std::string& group, const std::map<std::string, std::string>& files)
  {
    for (const auto& [name, content] : files) write("sys/fs/cgroup/" + group + "/" + name, content);
  }
  double gibibytes() const { return machine_memory(folder_.path()).total.value / (1 << 30); }
  std::string available() const { return text_of(machine_memory(folder_.path())); }

 private:
  testing_support::TemporaryFolder folder_;
};

TEST_F(MachineMemory, IsThatOfTheMachineWithoutALimit)
{
  EXPECT_EQ(gibibytes(), 8);
  write("proc/self/cgroup", "0::/user/job\n");
  write("sys/fs/cgroup/user/job/memory.max", "max\n");
  EXPECT_EQ(gibibytes(), 8);
  write("sys/fs/cgroup/user/job/memory.max", "99999999999\n");
  EXPECT_EQ(gibibytes(), 8);
}

TEST_F(MachineMemory, IsTheLeastLimitOfAGroupAndThoseAroundIt)
{
  write("proc/self/cgroup", "0::/user/job\n");
  write("sys/fs/cgroup/user/job/memory.max", "4294967296\n");
  EXPECT_EQ(gibibytes(), 4);
  write("sys/fs/cgroup/user/memory.max", "3221225472\n");
  EXPECT_EQ(gibibytes(), 3);
}

TEST_F(MachineMemory, IsTheLimitOfTheContainerInWhichTheGroupsPathIsNotThere)
{
  write("proc/self/cgroup", "0::/../outside\n");
  write("sys/fs/cgroup/memory.max", "2147483648\n");
  EXPECT_EQ(gibibytes(), 2);
}

TEST_F(MachineMemory, IsALimitOfVersionOneOfControlGroups)
{
  write("proc/self/cgroup", "12:cpu,cpuacct:/other\n4:memory:/docker/0123\n1:name=systemd:/\n0::/\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(gibibytes(), 8);
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "5368709120\n");
  EXPECT_EQ(gibibytes(), 5);
  write("sys/fs/cgroup/memory/docker/0123/memory.limit_in_bytes", "1073741824\n");
  EXPECT_EQ(gibibytes(), 1);
}

TEST_F(MachineMemory, IsAvailableAsTheMachineSaysWithoutALowerLimit)
{
  EXPECT_EQ(available(), "6.00 GiB available");
  write("proc/self/cgroup", "0::/job\n");
  write_group("job", {{"memory.max", "7516192768\n"}, {"memory.current", "536870912\n"}});
  EXPECT_EQ(available(), "6.00 GiB available") << "the group leaves 6.5 GiB";
}

TEST_F(MachineMemory, IsAllAvailableWhereTheMachineReportsNoMore)
{
  write("proc/meminfo", "MemTotal:        8388608 kB\nMemFree:         1048576 kB\n");
  EXPECT_EQ(available(), "8.00 GiB available");
}

TEST_F(MachineMemory, IsAvailableUpToTheLimitOfTheGroupLessWhatTheGroupUses)
{
  write("proc/self/cgroup", "0::/job\n");
  write_group("job", {{"memory.max", "4294967296\n"}, {"memory.current", "1073741824\n"}});
  EXPECT_EQ(available(), "3.00 GiB available under the limit of the control group");
  write_group("job", {{"memory.current", "5368709120\n"}});
  EXPECT_EQ(available(), "0 B available under the limit of the control group");
}

TEST_F(MachineMemory, CountsFilesThatTheGroupKeepsInMemoryAsAvailable)
{
  write("proc/self/cgroup", "0::/job\n");
  write_group("job", {{"memory.max", "4294967296\n"},
                      {"memory.current", "2147483648\n"},
                      {"memory.stat",
                       "anon 536870912\nfile 1610612736\ninactive_file 1073741824\n"
                       "active_file 268435456\nshmem 268435456\n"}});
  EXPECT_EQ(available(), "3.25 GiB available under the limit of the control group") << "shared memory does not count";
}

TEST_F(MachineMemory, IsWhatTheTightestOfNestedGroupsLeavesAvailable)
{
  write("proc/self/cgroup", "0::/user/job/step\n");
  write_group("user/job/step", {{"memory.max", "max\n"}, {"memory.current", "1073741824\n"}});
  write_group("user/job", {{"memory.max", "5368709120\n"}, {"memory.current", "3221225472\n"}});
  write_group("user", {{"memory.max", "4294967296\n"}, {"memory.current", "1073741824\n"}});
  EXPECT_EQ(available(), "2.00 GiB available under the limit of the control group");
  EXPECT_EQ(gibibytes(), 4);
}

TEST_F(MachineMemory, IsAvailableUpToALimitOfVersionOneOfControlGroups)
{
  write("proc/self/cgroup", "11:cpuset:/\n5:cpu,memory:/slurm/job_7/step_0\n0::/\n");
  write_group("memory/slurm/job_7", {{"memory.limit_in_bytes", "1200000000\n"},
                                     {"memory.usage_in_bytes", "400000000\n"},
                                     {"memory.stat",
                                      "cache 350000000\ninactive_file 7\nactive_file 7\n"
                                      "total_inactive_file 200000000\ntotal_active_file 100000000\n"}});
  write_group("memory/slurm/job_7/step_0",
              {{"memory.limit_in_bytes", "9223372036854771712\n"}, {"memory.usage_in_bytes", "400000000\n"}});
  EXPECT_EQ(available(), "1.02 GiB available under the limit of the control group");
}

}  // namespace
}  // namespace isobar::exec::device_name_test
