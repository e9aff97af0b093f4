#include "exec/files/scratch_file.hpp"

#include "core/errors.hpp"
#include "tests/support/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <unistd.h>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace isobar::exec::scratch_file_test {
namespace {

using testing::AnyOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::size_t page = ScratchFile::alignment;

using ThreePages = std::array<std::byte, 3 * page>;

struct alignas(page) Pages {
  ThreePages bytes;
};

TEST(ScratchFile, HoldsWhatWasWrittenUnderNoName)
{
  const testing_support::TemporaryFolder folder;
  ScratchFile file(folder.path(), 16 * page);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_EQ(file.size(), 16 * page);
  static Pages written;
  static Pages read;
  for (std::size_t i = 0; i < written.bytes.size(); ++i) written.bytes[i] = static_cast<std::byte>(i / 7);
  file.write(5 * page, written.bytes);
  file.flush();
  file.read(5 * page, read.bytes);
  EXPECT_EQ(read.bytes, written.bytes);
  file.read(13 * page, read.bytes);
  EXPECT_EQ(read.bytes, ThreePages{}) << "never written";
}

TEST(ScratchFile, NeverHasANameWhereTheFileSystemCanDoThat)
{
  const testing_support::TemporaryFolder folder;
  const int nameless = open(folder.path().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (nameless < 0) GTEST_SKIP() << "the file system has no files without a name";
  close(nameless);
  const int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  ASSERT_GE(inotify_add_watch(watch, folder.path().c_str(), IN_CREATE), 0);
  const ScratchFile file(folder.path(), page);
  std::array<std::byte, page> events{};
  EXPECT_EQ(read(watch, events.data(), events.size()), -1) << "a name appeared in the folder";
  EXPECT_EQ(errno, EAGAIN);
  close(watch);
}

TEST(ScratchFile, HasItsSpaceReserved)
{
  const testing_support::TemporaryFolder folder;
  constexpr std::uint64_t size = std::uint64_t{64} << 20;
  const ScratchFile file(folder.path(), size);
  EXPECT_GE(file.capacity().value, static_cast<double>(size));
  const auto all = static_cast<double>(std::filesystem::space(folder.path()).capacity);
  EXPECT_LE(file.capacity().value, all);
}

TEST(ScratchFile, NamesAFolderThatCannotBeWritten)
{
  const testing_support::TemporaryFolder folder;
  const auto is_refused = [&](const std::filesystem::path& where, const std::string& why) {
    EXPECT_THAT([&] { ScratchFile(where, page); },
                ThrowsMessage<EnvironmentError>(where.string() + ": cannot write there: " + why));
  };
  is_refused(folder.path() / "none", "No such file or directory");
  is_refused(folder.write("file", ""), "Not a directory");
  const auto locked = folder.path() / "locked";
  std::filesystem::create_directory(locked);
  std::filesystem::permissions(locked, std::filesystem::perms::owner_read);
  std::filesystem::permissions(folder.path(), std::filesystem::perms::all);
  constexpr uid_t unprivileged = 65534;
  const uid_t user = geteuid();
  ASSERT_TRUE(user != 0 || seteuid(unprivileged) == 0) << "root ignores permissions";
  is_refused(locked, "Permission denied");
  ASSERT_EQ(seteuid(user), 0);
}

TEST(ScratchFile, IsRefusedWhereItHasNoSpaceAndLeavesNothing)
{
  const testing_support::TemporaryFolder folder;
  EXPECT_THAT(
      [&] { ScratchFile(folder.path(), std::uint64_t{1} << 60); },
      ThrowsMessage<EnvironmentError>(AllOf(HasSubstr(folder.path().string() + ": has no space for a file of "),
                                            AnyOf(EndsWith("No space left on device"), EndsWith("File too large")))));
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {page, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THAT(
      [&] { ScratchFile(folder.path(), std::uint64_t{1} << 28); },
      ThrowsMessage<EnvironmentError>(folder.path().string() + ": has no space for a file of 256 MiB: File too large"));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace isobar::exec::scratch_file_test
