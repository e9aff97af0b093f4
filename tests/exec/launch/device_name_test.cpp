#include "exec/launch/device_name.hpp"

#include "tests/support/temporary_folder.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

namespace isobar::exec {
namespace {

/// The files of a machine of 8 GiB.
class MachineMemory : public testing::Test {
 protected:
  MachineMemory() { write("proc/meminfo", "MemTotal:        8388608 kB\nMemAvailable:    1000 kB\n"); }

  void write(const std::string& name, const std::string& content)
  {
    std::filesystem::create_directories((folder_.path() / name).parent_path());
    folder_.write(name, content);
  }
  double gibibytes() const { return machine_memory(folder_.path()).value / (1 << 30); }

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

}  // namespace
}  // namespace isobar::exec
