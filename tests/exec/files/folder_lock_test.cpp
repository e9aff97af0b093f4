#include "core/errors.hpp"
#include "exec/files/durable_files.hpp"
#include "tests/support/temporary_folder.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

std::atomic<int> fault_of_locks = 0;

}  // namespace

/// In place of the C library's, so that it can fail as on a file system without locks.
extern "C" int flock(int descriptor, int operation) noexcept
{
  if (fault_of_locks == 0) return static_cast<int>(syscall(SYS_flock, descriptor, operation));
  errno = fault_of_locks;
  return -1;
}

namespace isobar::exec::folder_lock_test {
namespace {

using testing_support::TemporaryFolder;

void fail_on_warning(const std::string& line)
{
  ADD_FAILURE() << line;
}

bool is_locked(const std::filesystem::path& folder)
{
  const int descriptor = open((folder / ".isobar-lock").c_str(), O_RDONLY | O_CLOEXEC);
  const bool is_refused = flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  close(descriptor);
  return is_refused;
}

TEST(FolderLock, KeepsASecondRunFromTheFolder)
{
  const TemporaryFolder folder;
  std::optional<FolderLock> first(std::in_place, folder.path(), fail_on_warning);
  EXPECT_THAT([&] { const FolderLock second(folder.path(), fail_on_warning); },
              testing::ThrowsMessage<InputError>(
                  folder.path().string() +
                  ": another run is writing checkpoints there; stop it, or name another folder with --checkpoint"));
  std::thread ends([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    first.reset();
  });
  const FolderLock second(folder.path(), fail_on_warning);  // waits for the first
  ends.join();
}

TEST(FolderLock, WarnsWhereTheFileSystemHasNoLocks)
{
  const TemporaryFolder folder;
  for (const auto& [fault, name] : {std::pair(ENOSYS, "Function not implemented"),
                                    std::pair(ENOLCK, "No locks available"), std::pair(EBADF, "Bad file descriptor")}) {
    fault_of_locks = fault;
    std::vector<std::string> warnings;
    const FolderLock lock(folder.path(), [&](const std::string& line) { warnings.push_back(line); });
    fault_of_locks = 0;
    EXPECT_THAT(warnings, testing::ElementsAre(fmt::format(
                              "{}: the file system has no locks (flock: {}), so no second run is kept from writing "
                              "checkpoints there; make sure that there is none",
                              folder.path().string(), name)));
  }
}

TEST(FolderLock, TriesAgainAfterASignal)
{
  const TemporaryFolder folder;
  fault_of_locks = EINTR;
  std::thread ends([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    fault_of_locks = 0;
  });
  const FolderLock lock(folder.path(), fail_on_warning);
  ends.join();
  EXPECT_TRUE(is_locked(folder.path()));
}

TEST(FolderLock, NeedsNoRightToWriteTheFileOfAnotherUser)
{
  const TemporaryFolder folder;
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0755));
  std::filesystem::permissions(folder.write(".isobar-lock", ""), std::filesystem::perms(0444));
  constexpr uid_t nobody = 65534;
  EXPECT_EXIT(
      {
        if (geteuid() == 0 && setuid(nobody) != 0) std::exit(1);
        const FolderLock lock(folder.path(), fail_on_warning);
        std::exit(is_locked(folder.path()) ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace isobar::exec::folder_lock_test
