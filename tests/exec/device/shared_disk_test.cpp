#include "exec/device/shared_disk.hpp"

#include <gtest/gtest.h>

#include <optional>

namespace isobar::exec::shared_disk_test {
namespace {

using Kind = SharedDisk::Kind;

class SharedDiskAccesses : public testing::Test {
 protected:
  SharedDisk disk_{BytesPerSecond(4), BytesPerSecond(2)};
};

TEST_F(SharedDiskAccesses, HaveTheirOwnRateAlone)
{
  SharedDisk::Access read(disk_, Kind::Read, Bytes(8), Seconds(10));
  EXPECT_DOUBLE_EQ(read.left(Seconds(10)).value, 2);
  EXPECT_DOUBLE_EQ(read.left(Seconds(11.5)).value, 0.5);
  EXPECT_DOUBLE_EQ(read.left(Seconds(13)).value, 0);
  SharedDisk::Access write(disk_, Kind::Write, Bytes(8), Seconds(13));
  EXPECT_DOUBLE_EQ(write.left(Seconds(13)).value, 4) << "a read that has passed takes nothing";
}

TEST_F(SharedDiskAccesses, ShareTheLargerRateOfReadsAndWrites)
{
  SharedDisk::Access read(disk_, Kind::Read, Bytes(8), Seconds(0));
  SharedDisk::Access write(disk_, Kind::Write, Bytes(4), Seconds(0));
  EXPECT_DOUBLE_EQ(read.left(Seconds(0)).value, 4);
  EXPECT_DOUBLE_EQ(write.left(Seconds(0)).value, 2);
  // The write ends after 2 s, and the read has 4 B of its 8 left, at 4 B/s.
  EXPECT_DOUBLE_EQ(read.left(Seconds(2.5)).value, 0.5);
  EXPECT_DOUBLE_EQ(write.left(Seconds(2.5)).value, 0);
}

TEST_F(SharedDiskAccesses, LeaveToTheOthersWhatTheirKindCannotUse)
{
  SharedDisk disk(BytesPerSecond(10), BytesPerSecond(1));
  SharedDisk::Access write(disk, Kind::Write, Bytes(10), Seconds(0));
  SharedDisk::Access read(disk, Kind::Read, Bytes(18), Seconds(0));
  EXPECT_DOUBLE_EQ(write.left(Seconds(0)).value, 10);
  EXPECT_DOUBLE_EQ(read.left(Seconds(0)).value, 2);
  std::optional<SharedDisk::Access> another;
  another.emplace(disk, Kind::Read, Bytes(9), Seconds(0));
  EXPECT_DOUBLE_EQ(read.left(Seconds(0)).value, 4);
  another.reset();
  EXPECT_DOUBLE_EQ(read.left(Seconds(0)).value, 2);
}

TEST_F(SharedDiskAccesses, OfOneKindShareItsRate)
{
  SharedDisk::Access first(disk_, Kind::Write, Bytes(2), Seconds(0));
  SharedDisk::Access second(disk_, Kind::Write, Bytes(4), Seconds(0));
  EXPECT_DOUBLE_EQ(first.left(Seconds(0)).value, 2);
  EXPECT_DOUBLE_EQ(second.left(Seconds(0)).value, 4);
  EXPECT_DOUBLE_EQ(second.left(Seconds(3)).value, 0) << "2 s at 1 B/s, then 1 s at 2 B/s";
}

}  // namespace
}  // namespace isobar::exec::shared_disk_test
